"""Lanczos: orthogonal bases, exact quadrature, no ghosts, and the same bits after a kill."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eigenscape.errors import (
    CheckpointError,
    InvalidArgumentError,
    NonFiniteError,
    NotSymmetricError,
    ShapeError,
)
from eigenscape.linalg import LanczosRun, lanczos
from eigenscape.operator import Dense
from eigenscape.records import Progress
from tests.linalg.matrices import SPECTRA, Counting, Diagonal, nan_operator, with_spectrum


def outliers_over_a_bulk(n: int, tops: list[float]) -> Tensor:
    values = 0.1 * torch.cos(torch.arange(n, dtype=torch.float64))
    values[: len(tops)] = torch.tensor(tops)
    return values


def same_bits(a: LanczosRun, b: LanczosRun) -> None:
    for name in ("alphas", "betas", "basis"):
        left, right = getattr(a, name), getattr(b, name)
        if left is None:
            assert right is None
        else:
            torch.testing.assert_close(left, right, rtol=0, atol=0)


@pytest.mark.parametrize("spectrum", SPECTRA)
def test_the_recurrence_holds(spectrum: str) -> None:
    matrix = with_spectrum(SPECTRA[spectrum](57))
    run = lanczos(Dense(matrix), num_steps=13, num_probes=3)
    assert run.basis is not None
    assert run.basis.shape == (3, 13, 57)
    for alpha, beta, V in zip(run.alphas, run.betas, run.basis, strict=True):
        T = torch.diag(alpha) + torch.diag(beta[:-1], 1) + torch.diag(beta[:-1], -1)
        torch.testing.assert_close(V @ matrix @ V.T, T, rtol=0, atol=1e-12)
        torch.testing.assert_close(V @ V.T, torch.eye(13), rtol=0, atol=1e-13)
        residual = matrix @ V.T - V.T @ T
        torch.testing.assert_close(residual[:, :-1], torch.zeros(57, 12), rtol=0, atol=1e-12)
        torch.testing.assert_close(residual[:, -1].norm(), beta[-1], rtol=1e-10, atol=1e-12)


def test_quadrature_is_exact_to_degree_2m_minus_1() -> None:
    matrix = with_spectrum(SPECTRA["indefinite"](41))
    start = torch.randn(41)
    run = lanczos(Dense(matrix), num_steps=6, start=start)
    nodes, weights = run.quadrature()
    unit = start / start.norm()
    power = unit
    for degree in range(12):
        exact = unit @ power
        found = (weights * nodes**degree).sum()
        torch.testing.assert_close(found, exact, rtol=0, atol=1e-12)
        power = matrix @ power
    # One degree more is not exact: the check above can fail.
    assert abs((weights * nodes**12).sum() - unit @ power) > 1e-8


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_ten_outliers_are_ten_and_never_ghosts(dtype: torch.dtype) -> None:
    tops = [1.0 + i for i in range(10)]
    matrix = with_spectrum(outliers_over_a_bulk(600, tops)).to(dtype)
    matrix = (matrix + matrix.T) / 2
    run = lanczos(Dense(matrix), num_steps=120, num_probes=2)
    values, _ = run.ritz()
    assert (values > 0.5).sum(1).tolist() == [10, 10]
    assert run.basis is not None
    V = run.basis.double()
    gram = V @ V.transpose(1, 2)
    assert (gram - torch.eye(120)).abs().max() < 100 * torch.finfo(dtype).eps


def test_long_float32_vectors_stay_orthogonal() -> None:
    n = 200_000
    values = torch.linspace(0.0, 1.0, n, dtype=torch.float32) ** 4
    run = lanczos(Diagonal(values), num_steps=30)
    assert run.basis is not None
    V = run.basis[0].double()
    # One float32 sum over n entries would leave about 5e-5.
    assert (V @ V.T - torch.eye(30)).abs().max() < 2e-6


def test_without_reorthogonalisation_ghosts_do_appear_and_the_run_says_so() -> None:
    tops = [1.0 + i for i in range(10)]
    matrix = with_spectrum(outliers_over_a_bulk(600, tops)).float()
    run = lanczos(Dense((matrix + matrix.T) / 2), num_steps=120, reorthogonalise=False)
    assert run.basis is None
    assert not run.reorthogonalised
    assert int((run.ritz()[0] > 0.5).sum()) > 10


@pytest.mark.parametrize("n", [1, 2, 3])
def test_tiny_matrices(n: int) -> None:
    matrix = with_spectrum(torch.arange(1.0, n + 1))
    run = lanczos(Dense(matrix), num_steps=50, num_probes=2)
    nodes, weights = run.quadrature()
    assert nodes.shape == (2, n)
    torch.testing.assert_close(weights.sum(1), torch.ones(2))
    torch.testing.assert_close(nodes, torch.arange(1.0, n + 1).expand(2, n), rtol=1e-10, atol=0)


def test_an_exhausted_space_ends_by_itself() -> None:
    matrix = with_spectrum([3.0, 2.0] + [0.0] * 18)  # Krylov spaces have dimension 3
    run = lanczos(Dense(matrix), num_steps=10, num_probes=2)
    nodes, weights = run.quadrature()
    _, vectors = torch.linalg.eigh(matrix)
    for probe in range(2):
        assert run.basis is not None
        shares = (vectors.T @ run.basis[probe, 0]).square()  # of the starting vector, ascending
        for value, share in ((3.0, shares[-1]), (2.0, shares[-2]), (0.0, shares[:-2].sum())):
            near = (nodes[probe] - value).abs() < 1e-10
            torch.testing.assert_close(weights[probe][near].sum(), share, rtol=1e-9, atol=0)
    torch.testing.assert_close(weights.sum(1), torch.ones(2))


def test_zero_matrix() -> None:
    nodes, weights = lanczos(Dense(torch.zeros(5, 5)), num_steps=3).quadrature()
    torch.testing.assert_close(weights.sum(1), torch.ones(1))
    assert nodes.abs().max() == 0


def test_leave_out_stays_in_the_complement() -> None:
    values = torch.linspace(1, 2, 30)
    matrix = with_spectrum(values)
    eigenvectors = torch.linalg.eigh(matrix).eigenvectors
    Q = eigenvectors[:, -4:]
    run = lanczos(Dense(matrix), num_steps=26, num_probes=2, leave_out=Q)
    assert run.basis is not None
    assert (run.basis @ Q).abs().max() < 1e-13
    torch.testing.assert_close(run.ritz()[0], values[:-4].expand(2, 26), rtol=1e-9, atol=0)


def test_groups_of_probes_are_the_probes() -> None:
    A = Dense(with_spectrum(SPECTRA["decaying"](23)))
    both = lanczos(A, num_steps=5, num_probes=4, seed=3)
    tail = lanczos(A, num_steps=5, num_probes=2, seed=3, first_probe=2)
    torch.testing.assert_close(tail.alphas, both.alphas[2:])


def test_products_are_counted() -> None:
    A = Counting(with_spectrum(SPECTRA["decaying"](23)))
    assert lanczos(A, num_steps=5, num_probes=4).num_products == A.count == 20


class KilledError(Exception):
    """Stands for a kill in the middle of a product."""


def killed_at(matrix: Tensor, products: int) -> Counting:
    left = [products]

    def spoil(Y: Tensor) -> Tensor:
        if left[0] == 0:
            raise KilledError
        left[0] -= 1
        return Y

    return Counting(matrix, spoil=spoil)


@pytest.mark.parametrize("reorthogonalise", [True, False])
@pytest.mark.parametrize("step", range(13))
def test_killed_at_any_step_it_resumes_to_the_same_bits(
    tmp_path: Path, step: int, reorthogonalise: bool
) -> None:
    matrix = with_spectrum(SPECTRA["indefinite"](37)).float()
    matrix = (matrix + matrix.T) / 2
    options = {"num_steps": 12, "num_probes": 3, "reorthogonalise": reorthogonalise, "seed": 5}
    whole = lanczos(Dense(matrix), **options)
    saved = {"checkpoint": tmp_path / "run", "checkpoint_every": 3}
    if step < 12:
        with pytest.raises(KilledError):
            lanczos(killed_at(matrix, step), **options, **saved)
    else:
        lanczos(Dense(matrix), **options, **saved)
    counter = Counting(matrix)
    same_bits(lanczos(counter, **options, **saved), whole)
    finished = step // 3 * 3
    check = 1 if finished else 0  # one product that compares the operator with the saved run
    assert counter.count == 3 * (12 - finished) + check


SCRIPT = """
import os, signal, sys, torch
from eigenscape.linalg import lanczos
from eigenscape.operator import Dense
torch.set_num_threads(1)
g = torch.Generator().manual_seed(0)
M = torch.randn(80, 80, generator=g, dtype=torch.float64)
die = int(sys.argv[2])
def progress(p):
    if p.done == die:
        os.kill(os.getpid(), signal.SIGKILL)
run = lanczos(Dense(M + M.T), num_steps=20, num_probes=2, checkpoint=sys.argv[1],
              checkpoint_every=4, progress=progress)
torch.save({"alphas": run.alphas, "betas": run.betas}, sys.argv[1] + ".pt")
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no SIGKILL on this system")
def test_a_killed_process_loses_nothing_it_had_saved(tmp_path: Path) -> None:
    def call(name: str, die: int) -> int:
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / name), str(die)]
        root = Path(__file__).resolve().parents[2]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        return subprocess.run(command, env=environment, check=False).returncode

    assert call("whole", 99) == 0
    assert call("killed", 11) == -signal.SIGKILL
    assert len(list((tmp_path / "killed").glob("piece-*"))) == 2
    assert call("killed", 99) == 0
    whole, resumed = (torch.load(tmp_path / f"{name}.pt") for name in ("whole", "killed"))
    for name in whole:
        torch.testing.assert_close(whole[name], resumed[name], rtol=0, atol=0)


def test_a_checkpoint_of_other_weights_is_refused(tmp_path: Path) -> None:
    matrix = with_spectrum(SPECTRA["decaying"](20))
    lanczos(Dense(matrix), num_steps=5, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="another operator"):
        lanczos(Dense(1.01 * matrix), num_steps=5, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="start"):
        lanczos(Dense(matrix), num_steps=5, seed=1, checkpoint=tmp_path)


def test_weights_that_moved_a_little_are_refused_in_float32(tmp_path: Path) -> None:
    # A change whose first quotient vᵀAv is that of before: only the whole product tells.
    matrix = with_spectrum(SPECTRA["decaying"](200)).float()
    run = lanczos(Dense(matrix), num_steps=5, checkpoint=tmp_path)
    assert run.basis is not None
    v = run.basis[0, 0]
    change = 1e-2 * with_spectrum(SPECTRA["indefinite"](200), seed=1).float()
    change -= (v @ change @ v) * torch.outer(v, v)
    assert float((v @ change @ v).abs()) < 1e-8
    with pytest.raises(CheckpointError, match="another operator"):
        lanczos(Dense(matrix + change), num_steps=5, checkpoint=tmp_path)


def test_a_run_of_very_small_products_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    matrix = 2.0**-900 * with_spectrum(SPECTRA["decaying"](40))
    whole = lanczos(Dense(matrix), num_steps=9)
    lanczos(Dense(matrix), num_steps=9, checkpoint=tmp_path)
    resumed = lanczos(Dense(matrix), num_steps=9, checkpoint=tmp_path)
    assert torch.equal(resumed.alphas, whole.alphas)
    assert float(whole.alphas.abs().max()) > 0.0


def test_progress_is_reported() -> None:
    seen: list[Progress] = []
    lanczos(Dense(torch.eye(9)), num_steps=4, progress=seen.append)
    assert [p.done for p in seen] == [1, 2, 3, 4]


def test_refusals() -> None:
    with pytest.raises(NotSymmetricError, match="symmetric"):
        lanczos(Dense(torch.tensor([[0.0, 1.0], [0.0, 0.0]])), num_steps=1)
    with pytest.raises(ShapeError, match=r"\(4,\) or \(4, k\)"):
        lanczos(Dense(torch.eye(4)), num_steps=1, start=torch.ones(3))
    with pytest.raises(InvalidArgumentError, match="neither zero"):
        lanczos(Dense(torch.eye(4)), num_steps=1, start=torch.zeros(4))
    with pytest.raises(InvalidArgumentError, match="neither zero"):
        lanczos(Dense(torch.eye(4)), num_steps=1, start=torch.tensor([float("nan"), 0, 0, 0]))
    with pytest.raises(InvalidArgumentError, match="num_steps"):
        lanczos(Dense(torch.eye(4)), num_steps=0)
    with pytest.raises(NonFiniteError, match="NaN"):
        lanczos(nan_operator(), num_steps=2)
