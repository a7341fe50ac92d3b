import pytest
import torch

from eigenscape.errors import (
    ConvergenceWarning,
    InvalidArgumentError,
    NonFiniteError,
    NotSymmetricError,
    ShapeError,
    UnknownNameError,
    WrongTypeError,
)
from eigenscape.linalg import solve
from eigenscape.operator import Dense
from eigenscape.records import Progress
from tests.linalg.matrices import Counting, nan_operator, with_spectrum

POSITIVE = torch.logspace(0, 3, 40, dtype=torch.float64)
INDEFINITE = torch.cat([-torch.logspace(0, 1, 15), torch.logspace(0, 2, 25)]).to(torch.float64)


def true_residuals(matrix, x, b, damping=0.0) -> torch.Tensor:
    b, x = (t.double().reshape(matrix.shape[0], -1) for t in (b, x))
    return (b - matrix.double() @ x - damping * x).norm(dim=0) / b.norm(dim=0)


@pytest.mark.parametrize(
    ("method", "spectrum"), [("cg", POSITIVE), ("minres", POSITIVE), ("minres", INDEFINITE)]
)
@pytest.mark.parametrize("columns", [None, 1, 5])
def test_against_a_direct_solution(method, spectrum, columns) -> None:
    matrix = with_spectrum(spectrum)
    b = torch.randn(40) if columns is None else torch.randn(40, columns)
    A = Counting(matrix)
    found = solve(A, b, method=method, tolerance=1e-10)
    assert found.status.converged
    assert found.x.shape == b.shape
    torch.testing.assert_close(found.x, torch.linalg.solve(matrix, b), rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(
        found.residuals, true_residuals(matrix, found.x, b), rtol=1e-2, atol=1e-15
    )
    assert float(found.residuals.max()) <= 1e-10
    assert found.converged.all()
    assert A.count == found.num_products
    assert found.method == method


@pytest.mark.parametrize("method", ["cg", "minres"])
def test_finite_termination(method) -> None:
    # Three different eigenvalues: three steps, and one product for the certificate.
    spectrum = torch.tensor([1.0] * 5 + [2.0] * 9 + [7.0] * 6)
    A = Counting(with_spectrum(spectrum))
    found = solve(A, torch.randn(20), method=method)
    assert found.num_products == A.count == 4


@pytest.mark.parametrize("method", ["cg", "minres"])
def test_converged_columns_are_multiplied_no_more(method) -> None:
    matrix = with_spectrum(POSITIVE)
    easy = torch.linalg.eigh(matrix).eigenvectors[:, 7]  # one step
    hard = torch.randn(40)
    A = Counting(matrix)
    both = solve(A, torch.stack([easy, hard, torch.zeros(40)], 1), method=method)
    alone = solve(Dense(matrix), hard, method=method)
    assert A.count == both.num_products <= alone.num_products + 2 + 3
    torch.testing.assert_close(both.x[:, 1], alone.x)
    assert both.residuals[2] == 0.0


@pytest.mark.parametrize("method", ["cg", "minres"])
def test_zero_right_hand_sides(method) -> None:
    A = Counting(with_spectrum(POSITIVE))
    for shape in [(40,), (40, 3)]:
        found = solve(A, torch.zeros(shape), method=method, start=torch.ones(shape))
        assert torch.equal(found.x, torch.zeros(shape))
        assert float(found.residuals.max()) == 0.0
        assert found.status.converged
    assert A.count == 0


@pytest.mark.parametrize("method", ["cg", "minres"])
@pytest.mark.parametrize("n", [1, 2])
def test_smallest_sizes(method, n) -> None:
    matrix = with_spectrum(torch.arange(2.0, 2 + n))
    b = torch.ones(n)
    torch.testing.assert_close(
        solve(Dense(matrix), b, method=method).x, torch.linalg.solve(matrix, b)
    )


def test_cg_detects_curvature_that_is_not_positive() -> None:
    matrix = with_spectrum(INDEFINITE)
    b = torch.randn(40, 2)
    with pytest.warns(ConvergenceWarning, match='curvature.*method="minres".*damping'):
        found = solve(Dense(matrix), b, method="cg")
    assert not found.converged.any()
    assert torch.isfinite(found.x).all()
    torch.testing.assert_close(found.residuals, true_residuals(matrix, found.x, b))
    assert float(found.residuals.max()) <= 1.0  # Never worse than x = 0.
    damped = solve(Dense(matrix), b, method="cg", damping=11.0)
    assert float(true_residuals(matrix, damped.x, b, 11.0).max()) <= 1e-8
    with pytest.warns(ConvergenceWarning, match="curvature"):
        solve(Dense(-torch.eye(3)), torch.ones(3))
    with pytest.warns(ConvergenceWarning, match="curvature"):
        solve(Dense(torch.zeros(3, 3)), torch.ones(3))


def test_damping_is_added() -> None:
    matrix = with_spectrum(INDEFINITE)
    b = torch.randn(40)
    for damping in (-0.5, 3.5):
        found = solve(Dense(matrix), b, method="minres", damping=damping)
        direct = torch.linalg.solve(matrix + damping * torch.eye(40), b)
        torch.testing.assert_close(found.x, direct, rtol=1e-5, atol=1e-6)


def test_minres_gives_the_shortest_solution_of_a_singular_consistent_system() -> None:
    spectrum = torch.cat([INDEFINITE, torch.zeros(10)])
    matrix = with_spectrum(spectrum)
    b = matrix @ torch.randn(50, 3)
    found = solve(Dense(matrix), b, method="minres")
    assert found.status.converged
    torch.testing.assert_close(found.x, torch.linalg.pinv(matrix) @ b, rtol=1e-5, atol=1e-6)
    semi = with_spectrum(spectrum.abs())
    b = semi @ torch.randn(50)
    torch.testing.assert_close(
        solve(Dense(semi), b).x, torch.linalg.pinv(semi) @ b, rtol=1e-5, atol=1e-6
    )


def test_minres_on_an_inconsistent_system_gives_the_least_residual_and_says_so() -> None:
    spectrum = torch.cat([INDEFINITE, torch.zeros(10)])
    matrix = with_spectrum(spectrum)
    b = torch.randn(50)
    with pytest.warns(ConvergenceWarning, match="outside its range"):
        found = solve(Dense(matrix), b, method="minres")
    outside = b - matrix @ (torch.linalg.pinv(matrix) @ b)
    assert float(found.residuals) == pytest.approx(float(outside.norm() / b.norm()), rel=1e-6)
    assert found.num_products < 200
    with pytest.warns(ConvergenceWarning, match="outside its range"):
        zero = solve(Dense(torch.zeros(3, 3)), torch.ones(3), method="minres")
    assert torch.equal(zero.x, torch.zeros(3))


@pytest.mark.parametrize("method", ["cg", "minres"])
def test_budget_is_kept_and_told(method) -> None:
    A = Counting(with_spectrum(POSITIVE))
    b = torch.randn(40, 3)
    with pytest.warns(ConvergenceWarning, match="max_products"):
        found = solve(A, b, method=method, max_products=25)
    assert A.count == found.num_products <= 25
    torch.testing.assert_close(found.residuals, true_residuals(with_spectrum(POSITIVE), found.x, b))
    with pytest.warns(ConvergenceWarning):
        solve(A, b, method=method, max_products=6)


@pytest.mark.parametrize("method", ["cg", "minres"])
def test_start_is_used_and_kept(method) -> None:
    matrix = with_spectrum(POSITIVE)
    b = torch.randn(40)
    x = torch.linalg.solve(matrix, b)
    A = Counting(matrix)
    near = x + 1e-6 * torch.randn(40)
    kept = near.clone()
    found = solve(A, b, method=method, start=near, tolerance=1e-9)
    assert torch.equal(near, kept)
    assert found.num_products < solve(Dense(matrix), b, method=method, tolerance=1e-9).num_products
    assert solve(A, b, method=method, start=x).num_products == 1


@pytest.mark.parametrize("method", ["cg", "minres"])
def test_float32_residuals_are_true(method) -> None:
    matrix = with_spectrum(torch.logspace(0, 1, 40)).float()
    b = torch.randn(40, 2, dtype=torch.float32)
    found = solve(Dense(matrix), b, method=method)
    assert found.status.converged
    assert found.x.dtype == torch.float32
    assert found.tolerance == pytest.approx(64 * 2.0**-23)
    torch.testing.assert_close(
        found.residuals, true_residuals(matrix, found.x, b), rtol=0.5, atol=1e-7
    )
    # What rounding forbids is said, not hidden behind the recurrence's own residual.
    with pytest.warns(ConvergenceWarning, match="rounding of products in torch.float32"):
        hard = solve(Dense(matrix), b, method=method, tolerance=1e-12)
    assert float(hard.residuals.min()) > 1e-12
    assert float(hard.residuals.max()) < 1e-6


@pytest.mark.parametrize("method", ["cg", "minres"])
def test_ill_conditioned_systems_are_refined(method) -> None:
    matrix = with_spectrum(torch.logspace(0, 7, 30))
    b = matrix @ torch.randn(30)
    found = solve(Dense(matrix), b, method=method, tolerance=1e-12, max_products=5000)
    assert float(true_residuals(matrix, found.x, b)) <= 2e-12


@pytest.mark.parametrize("method", ["cg", "minres"])
def test_a_wrong_operator_is_not_certified(method) -> None:
    # It answers differently each time, so no recurrence describes it.
    noise = torch.Generator().manual_seed(1)
    wrong = Counting(
        with_spectrum(POSITIVE),
        spoil=lambda Y: Y + 0.1 * Y.norm() * torch.randn(Y.shape, generator=noise),
    )
    with pytest.warns(ConvergenceWarning):
        assert not solve(wrong, torch.randn(40), method=method, max_products=400).status


def test_progress() -> None:
    seen: list[Progress] = []
    found = solve(Dense(with_spectrum(POSITIVE)), torch.randn(40), progress=seen.append)
    assert seen[-1].done == found.num_products
    assert seen[0].task == "solve (cg)"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"operator": torch.eye(3)}, WrongTypeError),
        ({"operator": Dense(torch.ones(4, 3))}, ShapeError),
        ({"operator": Dense(torch.ones(4, 4).triu())}, NotSymmetricError),
        ({"operator": nan_operator(4)}, NonFiniteError),
        ({"rhs": torch.ones(3)}, ShapeError),
        ({"rhs": torch.ones(4, 0)}, ShapeError),
        ({"rhs": [1.0] * 4}, WrongTypeError),
        ({"rhs": torch.full((4,), float("inf"))}, NonFiniteError),
        ({"start": torch.ones(4, 2)}, ShapeError),
        ({"start": torch.full((4,), float("nan"))}, NonFiniteError),
        ({"method": "gmres"}, UnknownNameError),
        ({"tolerance": 0.0}, InvalidArgumentError),
        ({"max_products": 1}, InvalidArgumentError),
        ({"damping": -1.0}, InvalidArgumentError),
        ({"damping": float("nan")}, InvalidArgumentError),
        ({"damping": "1"}, WrongTypeError),
    ],
)
def test_refusals(change, error) -> None:
    arguments = {"operator": Dense(torch.eye(4)), "rhs": torch.ones(4)} | change
    with pytest.raises(error):
        solve(arguments.pop("operator"), arguments.pop("rhs"), **arguments)
