"""The digits run: what must hold of a trained classifier, in counts and shapes rather than floats.

Papyan §1 and Sagun et al. 2016: a classifier of C classes has about C outliers (C − 1 for a softmax
of one hidden layer here), the Gauss-Newton matrix carries them, and the gradient lies in their
space more than chance would have it.
"""

from pathlib import Path

import pytest
import torch

import eigenscape as es
from eigenscape.analyses import eigenspace_overlap
from eigenscape.zoo import Digits, build, load_digits, train

C = 10
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def digits() -> Digits:
    return load_digits()


@pytest.fixture(scope="module")
def networks(digits: Digits) -> list[torch.nn.Module]:
    trained = []
    for seed in SEEDS:
        model = build("F-100", input_shape=(1, 8, 8), num_classes=C, seed=seed)
        assert train(model, digits, seed=seed).status
        trained.append(model)
    return trained


@pytest.fixture(scope="module")
def analyses(digits: Digits, networks: list[torch.nn.Module]) -> list[es.Analysis]:
    risks = [es.EmpiricalRisk(net, es.CrossEntropy(), digits) for net in networks]
    return [es.analyze(risk, budget="quick") for risk in risks]


def test_every_seed_learns(analyses: list[es.Analysis]) -> None:
    for analysis in analyses:
        assert analysis.point.accuracy > 0.95
        assert analysis.point.num_samples == 1437
        assert analysis.point.num_parameters == 64 * 100 + 100 + 100 * 10 + 10


def test_outliers_are_the_classes_less_one(analyses: list[es.Analysis]) -> None:
    for analysis in analyses:
        assert analysis.outliers.num_outliers == C - 1
        assert analysis.outliers.is_certain
        assert "This is the number of classes minus one." in " ".join(analysis.findings)


def test_gauss_newton_carries_the_outliers(analyses: list[es.Analysis]) -> None:
    for analysis in analyses:
        top_H, top_G = (s.largest.values[: C - 1] for s in analysis.spectra()[:2])
        assert float(((top_H - top_G).abs() / top_H).max()) < 0.05
        assert analysis.residual.frobenius < 0.3 * analysis.hessian.frobenius
        overlap = eigenspace_overlap(analysis.hessian.largest, analysis.gauss_newton.largest)
        assert float(overlap.overlaps[C - 2]) > 0.95


def test_traces_add_up(analyses: list[es.Analysis]) -> None:
    for analysis in analyses:
        H, G, E = analysis.spectra()
        slack = (H.trace_stderr**2 + G.trace_stderr**2 + E.trace_stderr**2) ** 0.5
        assert abs(H.trace - G.trace - E.trace) < 5 * slack
        layers = sum(layer.trace for layer in analysis.layers.layers)
        errors = [layer.trace_stderr for layer in analysis.layers.layers] + [H.trace_stderr]
        assert abs(H.trace - layers) < 5 * sum(e**2 for e in errors) ** 0.5


def test_both_ends_and_everything_else_converge(analyses: list[es.Analysis]) -> None:
    for analysis in analyses:
        assert analysis.status
        assert float(analysis.hessian.largest.values[0]) > 0
        # ReLU networks are no minimum: something curves downwards, weakly.
        low = float(analysis.hessian.smallest.values[-1])
        assert low + float(analysis.hessian.smallest.residuals[-1]) < 0
        assert abs(low) < 0.2 * float(analysis.hessian.largest.values[0])
        for spectrum in analysis.spectra():
            assert spectrum.density.integral() == pytest.approx(1.0, abs=0.02)


def test_the_gradient_lies_in_the_top_space_more_than_chance(analyses: list[es.Analysis]) -> None:
    for analysis in analyses:
        overlap = analysis.gradient_overlap
        assert float(overlap.shares[C - 1]) > 20 * float(overlap.chance[C - 1])


def test_layers_have_the_papers_names_and_shapes(analyses: list[es.Analysis]) -> None:
    first, last = analyses[0].layers.layers
    assert (first.name, first.num_parameters, last.name, last.num_parameters) == (
        "fc1", 6500, "fc2", 1010,
    )  # fmt: skip
    assert (first.input_values.numel(), first.output_values.numel()) == (65, 100)
    # Wu §4: top eigenvectors are close to rank one, and Kronecker factors find their space.
    for layer in (first, last):
        assert float(layer.rank_one[0]) > 0.9
        assert float(layer.kronecker_overlap[-1]) > 0.5
    # Softmax ignores a shift of all logits, so E[M] of the last layer has a null vector.
    assert abs(float(last.output_values[-1])) < 1e-6 * float(last.output_values[0])


def test_ragged_batches_change_nothing(
    digits: Digits, networks: list[torch.nn.Module], analyses: list[es.Analysis]
) -> None:
    risk = es.EmpiricalRisk(networks[0], es.CrossEntropy(), digits, batch_size=500)  # … and 437
    ragged = es.analyze(risk, budget="quick")
    for one, other in zip(analyses[0].columns()["value"], ragged.columns()["value"], strict=True):
        assert one == pytest.approx(other, rel=2e-3, abs=1e-6)


def test_a_run_comes_back_as_it_was(analyses: list[es.Analysis], tmp_path: Path) -> None:
    pytest.importorskip("plotly")  # machines that only compute may lack it
    folder = analyses[0].save(tmp_path / "run")
    again = es.read_run(folder).record
    assert again.findings == analyses[0].findings
    assert torch.equal(again.hessian.largest.vectors, analyses[0].hessian.largest.vectors)
    assert (folder / "report.html").stat().st_size > 10_000
