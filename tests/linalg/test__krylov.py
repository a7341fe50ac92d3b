"""The rows of a Krylov basis wherever they live, and the two solvers against direct solutions."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from eigenscape.errors import FileError, WrongTypeError
from eigenscape.linalg import _krylov
from eigenscape.linalg._krylov import Basis, Ending, Problem, on_device, run_cg, run_minres
from eigenscape.linalg._products import InUnits
from eigenscape.operator import Dense
from eigenscape.records import Ticker
from tests.linalg.matrices import Counting, with_spectrum

N = 29
PLACES = ["device", "host", "file"]


def orthonormal_rows(count: int) -> Tensor:
    return torch.linalg.qr(torch.randn(N, count)).Q.T.contiguous()


@pytest.fixture(params=[1, 3, 100])
def small_chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let so many rows of float64 pass through the device at a time."""
    monkeypatch.setattr(_krylov, "CHUNK_BYTES", request.param * N * 8)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("lives", PLACES)
def test_rows_are_removed_combined_and_turned(lives: str, tmp_path: Path) -> None:
    V = orthonormal_rows(7)
    W, C, Y = torch.randn(2, N), torch.randn(4, 7), orthonormal_rows(7)[:, :7]
    C[:, [0, 3, 4]] = 0.0  # rows that count for nothing
    with Basis(Dense(torch.eye(N)), 11, tmp_path if lives == "file" else lives) as basis:
        basis.append(V[:3])
        basis.append(V[3:])
        assert len(basis) == 7
        assert torch.equal(basis.rows, V)
        left, coefficients = basis.project_out(W)
        torch.testing.assert_close(coefficients, W @ V.T, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(left, W - W @ V.T @ V, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(basis.combine(C), C @ V, rtol=1e-12, atol=1e-13)
        assert not basis.combine(torch.zeros(2, 7)).any()
        basis.rotate(Y[:, :5])
        torch.testing.assert_close(basis.rows, Y[:, :5].T @ V, rtol=1e-12, atol=1e-13)
        basis.append(W)
        assert torch.equal(basis.rows[5:], W)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_basis_removes_nothing() -> None:
    W = torch.randn(2, N)
    left, coefficients = Basis(Dense(torch.eye(N)), 3).project_out(W)
    assert torch.equal(left, W)
    assert coefficients.shape == (2, 0)


def test_places_are_named_or_refused(tmp_path: Path) -> None:
    assert on_device(None)
    assert on_device("device")
    assert not on_device("host")
    assert not on_device(tmp_path)
    with pytest.raises(WrongTypeError, match="got float"):
        on_device(0.5)
    with pytest.raises(FileError, match="Make it, choose"):
        Basis(Dense(torch.eye(N)), 3, tmp_path / "nowhere")


# --- the two solvers -----------------------------------------------------------------------------

RUNS = {"cg": run_cg, "minres": run_minres}
POSITIVE = torch.logspace(0, 2, N, dtype=torch.float64)
INDEFINITE = torch.cat([-torch.logspace(0, 1, 10), torch.logspace(0, 2, 19)]).double()


def solved(
    name: str,
    A: Counting,
    R: Tensor,
    *,
    target: float = 1e-10,
    damping: float = 0.0,
    most: int = 999,
) -> tuple[Tensor, list[Ending], Problem]:
    """Solve (A + δI) x = R, in the operator's own unit and back."""
    scaled = InUnits(A, beside=damping)
    problem = Problem(scaled, damping, most, Ticker(None, "test", most))
    x, endings = RUNS[name](problem, R, 1e-10 * R.norm(dim=0))
    return x / scaled.unit, endings, problem


def check(x: Tensor, truth: Tensor) -> None:
    assert (x - truth).norm() <= 1e-7 * truth.norm()


@pytest.mark.parametrize("damping", [0.0, 3.5])
@pytest.mark.parametrize("name", RUNS)
def test_against_a_direct_solution(name: str, damping: float) -> None:
    matrix, R = with_spectrum(POSITIVE), torch.randn(N, 3)
    A = Counting(matrix)
    x, endings, problem = solved(name, A, R, damping=damping)
    truth = torch.linalg.solve(matrix + damping * torch.eye(N), R)
    check(x, truth)
    assert set(endings) == {Ending.REACHED}
    assert problem.spent == A.count
    with pytest.raises(AssertionError):
        check(x, truth.roll(1, 1))


def test_only_minres_solves_an_indefinite_system() -> None:
    matrix, R = with_spectrum(INDEFINITE), torch.randn(N, 2)
    x, endings, _ = solved("minres", Counting(matrix), R)
    assert set(endings) == {Ending.REACHED}
    check(x, torch.linalg.solve(matrix, R))
    v = torch.linalg.eigh(matrix).eigenvectors[:, :1]  # of a negative eigenvalue
    assert solved("cg", Counting(matrix), v)[1] == [Ending.CURVATURE]


def test_columns_end_each_for_its_own_reason() -> None:
    values, vectors = torch.linalg.eigh(with_spectrum(INDEFINITE))
    R = torch.stack([vectors[:, 0], vectors[:, -1], vectors @ torch.ones(N)], 1)
    x, endings, problem = solved("cg", Counting(with_spectrum(INDEFINITE)), R, most=3 + 3 + 2)
    assert endings[:2] == [Ending.CURVATURE, Ending.REACHED]
    check(x[:, 1], vectors[:, -1] / values[-1])
    assert problem.spent <= 8


def test_what_lies_outside_the_range_is_told_and_the_rest_solved() -> None:
    values = torch.cat([torch.zeros(4), torch.linspace(1.0, 5.0, N - 4)])
    matrix = with_spectrum(values)
    inside = matrix @ torch.randn(N, 1)
    outside = torch.linalg.eigh(matrix).eigenvectors[:, :1] * inside.norm()
    x, endings, _ = solved("minres", Counting(matrix), torch.cat([inside, inside + outside], 1))
    assert endings == [Ending.REACHED, Ending.OUTSIDE]
    shortest = torch.linalg.pinv(matrix, hermitian=True) @ inside
    check(x[:, :1], shortest)
    assert (matrix @ x[:, 1:] - inside).norm() <= 1e-6 * inside.norm()


@pytest.mark.parametrize("name", RUNS)
def test_a_product_for_each_column_is_left_for_the_certificate(name: str) -> None:
    A = Counting(with_spectrum(POSITIVE))
    _, endings, problem = solved(name, A, torch.randn(N, 3), most=17)
    assert set(endings) == {Ending.BUDGET}
    assert problem.spent == A.count <= 17 - 3
    assert problem.left == 17 - A.count


@pytest.mark.parametrize("name", RUNS)
def test_columns_that_are_done_are_multiplied_no_more(name: str) -> None:
    matrix = with_spectrum(POSITIVE)
    easy = torch.linalg.eigh(matrix).eigenvectors[:, 5:6]
    alone = solved(name, Counting(matrix), torch.ones(N, 1))[2].spent
    both = solved(name, Counting(matrix), torch.cat([easy, torch.ones(N, 1)], 1))[2].spent
    assert both == alone + 1


def test_products_are_those_of_what_is_handed_out() -> None:
    matrix = with_spectrum(POSITIVE).float()
    scaled = InUnits(Dense((matrix + matrix.T) / 2), beside=0.5)
    X = torch.randn(N, 2)
    problem = Problem(scaled, 0.5, 99, Ticker(None, "test", 99))
    rounded = problem.multiply_rounded(X)
    truth = ((matrix + matrix.T) / 2).double() @ X.float().double() + 0.5 * X.float().double()
    torch.testing.assert_close(rounded * scaled.unit, truth, rtol=1e-4, atol=1e-4)
    assert problem.spent == 2
