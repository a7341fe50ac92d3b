"""Ends, density, trace and norm of a matrix whose spectrum is known."""

import sys
from pathlib import Path

import pytest
import torch

import eigenscape as es
from eigenscape.analyses import matrix_spectrum
from eigenscape.errors import CheckpointError, ConvergenceWarning
from eigenscape.operator import Dense
from eigenscape.records import Progress
from eigenscape.testing import matrix_with_spectrum
from tests.small_net import X, Y, net

SPECTRUM = torch.cat([torch.tensor([12.0, 9.0, 7.0]), torch.linspace(-0.5, 0.5, 77)]).double()
MATRIX = Dense(matrix_with_spectrum(SPECTRUM, seed=0))


def test_everything_about_a_known_matrix() -> None:
    record = matrix_spectrum(MATRIX, "known", num_pairs=3, num_smallest=2, num_steps=30)
    torch.testing.assert_close(record.largest.values, SPECTRUM[:3])
    assert float(record.smallest.values[-1]) == pytest.approx(-0.5, abs=1e-3)
    assert abs(record.trace - float(SPECTRUM.sum())) < 4 * record.trace_stderr
    assert abs(record.frobenius - float(SPECTRUM.norm())) < 4 * record.frobenius_stderr
    # The three outliers hold almost all of the norm and are exact, so little is left to estimate.
    assert record.frobenius_stderr < 0.02 * record.frobenius
    assert record.density.integral() == pytest.approx(1.0, abs=1e-3)
    assert (record.log_density.scale, record.size) == ("log", 80)
    assert record.status
    frame = record.to_frame()
    assert frame["end"].tolist() == ["largest"] * 3 + ["smallest"] * 2
    spent = record.largest.num_products + record.smallest.num_products
    assert record.num_products == spent + record.density.num_products


def test_trace_and_norm_are_unbiased_with_honest_errors() -> None:
    records = [
        matrix_spectrum(MATRIX, "m", num_pairs=3, num_smallest=0, num_steps=8, seed=10 * seed)
        for seed in range(40)
    ]
    for truth, values, errors in (
        (float(SPECTRUM.sum()), [r.trace for r in records], [r.trace_stderr for r in records]),
        (
            float(SPECTRUM.norm()),
            [r.frobenius for r in records],
            [r.frobenius_stderr for r in records],
        ),
    ):
        draws = torch.tensor(values)
        assert abs(float(draws.mean()) - truth) < 4 * float(draws.std()) / 40**0.5
        stated = torch.tensor(errors).square().mean().sqrt()
        assert 0.6 < float(stated / draws.std()) < 1.6


def test_a_definite_matrix_needs_no_smallest_pairs() -> None:
    record = matrix_spectrum(Dense(torch.diag(SPECTRUM.abs())), "m", num_pairs=2, num_smallest=0)
    assert len(record.smallest) == 0
    assert record.smallest.vectors.shape == (80, 0)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_tiny_matrices(n: int) -> None:
    A = Dense(torch.diag(torch.arange(1.0, n + 1)))
    record = matrix_spectrum(A, "tiny", num_pairs=4, num_smallest=2)
    assert float(record.largest.values[0]) == pytest.approx(n)
    assert record.trace == pytest.approx(n * (n + 1) / 2)


def test_pairs_that_do_not_converge_are_kept_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def impatient(operator, **settings):
        return es.eigsh(operator, **(settings | {"max_products": 40, "tolerance": 1e-13}))

    home = sys.modules[
        "eigenscape.analyses.whole.matrix_spectrum"
    ]  # the name is the function's too
    monkeypatch.setattr(home, "eigsh", impatient)
    close = Dense(torch.diag(torch.linspace(0.0, 1.0, 400)))
    with pytest.warns(ConvergenceWarning):
        record = matrix_spectrum(close, "m", num_pairs=8, num_smallest=0, num_steps=10)
    assert not record.status
    assert "Not converged" in str(record.status)
    true = (close @ record.largest.vectors - record.largest.vectors * record.largest.values).norm(
        dim=0
    )
    torch.testing.assert_close(record.largest.residuals, true, atol=1e-10, rtol=1e-3)


def test_progress_never_goes_back() -> None:
    seen: list[Progress] = []
    matrix_spectrum(MATRIX, "m", num_pairs=3, num_steps=20, progress=seen.append)
    done = [step.done for step in seen]
    assert done == sorted(done)
    assert {step.task for step in seen} >= {"m: largest eigenvalues", "m: density"}
    assert all(step.done <= step.total for step in seen)


def test_a_checkpoint_continues_and_belongs_to_its_matrix(tmp_path: Path) -> None:
    settings = {"num_pairs": 3, "num_steps": 20, "checkpoint": tmp_path}
    first = matrix_spectrum(MATRIX, "m", **settings)
    again = matrix_spectrum(MATRIX, "m", **settings)
    assert torch.equal(first.density.nodes, again.density.nodes)
    with pytest.raises(CheckpointError, match="another computation"):
        matrix_spectrum(MATRIX, "m", **(settings | {"num_steps": 21}))


def test_a_network_whatever_its_batches() -> None:
    model = net()

    def spectrum(batch_size: int | None):
        risk = es.EmpiricalRisk(model, es.CrossEntropy(), (X, Y), batch_size=batch_size)
        return matrix_spectrum(es.Hessian(risk), "H", num_pairs=4, num_steps=20)

    whole, ragged = spectrum(None), spectrum(11)
    torch.testing.assert_close(whole.largest.values, ragged.largest.values)
    assert whole.trace == pytest.approx(ragged.trace)
    assert whole.frobenius == pytest.approx(ragged.frobenius)
