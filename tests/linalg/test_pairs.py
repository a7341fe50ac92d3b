import math
import sys

import pytest
import torch

from eigenscape.errors import (
    InvalidArgumentError,
    NonFiniteError,
    NotSymmetricError,
    ShapeError,
    UnknownNameError,
    WrongTypeError,
)
from eigenscape.linalg import certify
from eigenscape.linalg.pairs import orthonormal
from eigenscape.operator import Dense
from tests.linalg.matrices import Counting, nan_operator, with_spectrum

VALUES = torch.tensor([-7.0, -3.0, -1.0, 0.0, 0.5, 2.0, 4.0, 7.0], dtype=torch.float64)


def exact_vectors(matrix: torch.Tensor) -> torch.Tensor:
    return torch.linalg.eigh(matrix).eigenvectors


@pytest.mark.parametrize("rotate", [True, False])
def test_eigenvectors_are_certified_in_the_order_asked(rotate) -> None:
    matrix = with_spectrum(VALUES)
    vectors = exact_vectors(matrix)[:, torch.randperm(8)]
    A = Counting(matrix)
    for which in ("largest", "smallest", "both"):
        pairs = certify(A, vectors, which=which, rotate=rotate)
        torch.testing.assert_close(pairs.values, VALUES.flip(0), atol=1e-12, rtol=0)
    by_size = certify(A, vectors, which="magnitude", rotate=rotate, num_products=100)
    torch.testing.assert_close(by_size.values.abs(), VALUES.abs().sort(descending=True).values)
    assert sorted(by_size.values[:2].tolist()) == pytest.approx([-7.0, 7.0])
    assert pairs.status.converged
    assert float(pairs.residuals.max()) < 1e-13
    assert (len(pairs), pairs.num_products, by_size.num_products, A.count) == (8, 8, 108, 32)


def test_residuals_are_those_of_the_returned_vectors_and_intervals_hold() -> None:
    matrix = with_spectrum(VALUES)
    rough = exact_vectors(matrix)[:, 3:] + 0.05 * torch.randn(8, 5)
    for rotate in (True, False):
        pairs = certify(Dense(matrix), rough, rotate=rotate)
        V = pairs.vectors
        torch.testing.assert_close(V.T @ V, torch.eye(5))
        true = (matrix @ V - V * pairs.values).norm(dim=0)
        torch.testing.assert_close(pairs.residuals, true)
        assert not pairs.status.converged
        low, high = pairs.intervals().T
        inside = (VALUES[:, None] >= low) & (VALUES[:, None] <= high)
        assert inside.any(0).all()


def test_pieces_of_large_vectors_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = with_spectrum(VALUES)
    rough = exact_vectors(matrix)[:, 3:] + 0.05 * torch.randn(8, 5)
    whole = certify(Dense(matrix), rough)
    for piece in (1, 17):  # single rows and columns; three rows, two columns, and what is left
        monkeypatch.setattr(sys.modules[certify.__module__], "_PIECE", piece)
        pairs = certify(Dense(matrix), rough)
        torch.testing.assert_close(pairs.values, whole.values)
        torch.testing.assert_close(pairs.vectors, whole.vectors)
        torch.testing.assert_close(pairs.residuals, whole.residuals)


def test_rotation_beats_single_vectors() -> None:
    # Two mixtures of two eigenvectors: Rayleigh–Ritz takes them apart, quotients cannot.
    matrix = with_spectrum(VALUES)
    u = exact_vectors(matrix)[:, [6, 7]]
    mixed = u @ torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    torch.testing.assert_close(certify(Dense(matrix), mixed).values, torch.tensor([7.0, 4.0]))
    kept = certify(Dense(matrix), mixed, rotate=False)
    torch.testing.assert_close(kept.values, torch.tensor([5.5, 5.5]))
    torch.testing.assert_close(kept.residuals, torch.tensor([1.5, 1.5]))


@pytest.mark.parametrize("condition", [1.0, 30.0, 900.0, 1e5, 1e12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_columns_are_orthogonal_to_rounding_whatever_their_condition(
    condition: float, dtype: torch.dtype
) -> None:
    n, k = 700, 9
    draw = torch.Generator().manual_seed(0)
    Q, _ = torch.linalg.qr(torch.randn(n, k, generator=draw, dtype=torch.float64))
    turn, _ = torch.linalg.qr(torch.randn(k, k, generator=draw, dtype=torch.float64))
    sizes = torch.logspace(0, -math.log10(condition), k, dtype=torch.float64)
    V = ((Q * sizes) @ turn).to(dtype)
    found = orthonormal(V)
    torch.testing.assert_close(
        found.T @ found, torch.eye(k, dtype=torch.float64), atol=1e-13, rtol=0
    )
    # The span is that of V as it was given.
    V = V.double()
    assert float((V - found @ (found.T @ V)).norm()) < 1e-13 * float(V.norm())


def test_vectors_need_not_be_orthonormal_nor_independent() -> None:
    matrix = with_spectrum(VALUES)
    u = exact_vectors(matrix)
    skew = torch.stack([1e-30 * u[:, 7], 1e20 * u[:, 6] + 1e10 * u[:, 7]], 1)
    pairs = certify(Dense(matrix), skew)
    torch.testing.assert_close(pairs.values, torch.tensor([7.0, 4.0]))
    twice = certify(Dense(matrix), torch.stack([u[:, 7], u[:, 7]], 1))
    torch.testing.assert_close(twice.vectors.T @ twice.vectors, torch.eye(2))
    assert float(twice.values[0]) == pytest.approx(7.0)


def test_float32_values_are_good_to_the_rounding_of_products() -> None:
    matrix = with_spectrum(VALUES)
    pairs = certify(Dense(matrix.float()), exact_vectors(matrix))
    assert (pairs.values.dtype, pairs.vectors.dtype) == (torch.float64, torch.float32)
    torch.testing.assert_close(pairs.values, VALUES.flip(0), atol=2e-6, rtol=0)
    assert pairs.status.converged  # 1e-6 is below rounding for λ = 0, which is enough there


def test_null_vectors_converge_at_the_rounding_of_the_norm() -> None:
    matrix = with_spectrum([0.0, 0.0, 0.0, 5.0])
    null = exact_vectors(matrix)[:, :3]
    tilted = null + 1e-15
    assert certify(Dense(matrix), tilted, which="smallest", norm=5.0).status.converged


def test_a_wrong_operator_is_not_certified() -> None:
    matrix = with_spectrum(VALUES)
    wrong = Counting(matrix, spoil=lambda Y: Y + 0.1)
    assert not certify(wrong, exact_vectors(matrix)[:, :3]).status.converged


@pytest.mark.parametrize("n", [1, 2])
def test_smallest_sizes(n) -> None:
    matrix = with_spectrum(torch.arange(1.0, n + 1))
    pairs = certify(Dense(matrix), torch.randn(n, n))
    torch.testing.assert_close(pairs.values, torch.arange(float(n), 0, -1))
    one = certify(Dense(matrix), torch.ones(n))
    assert one.values.shape == (1,)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"operator": torch.eye(3)}, WrongTypeError),
        ({"operator": Dense(torch.ones(4, 3))}, ShapeError),
        ({"operator": Dense(torch.ones(4, 4).triu())}, NotSymmetricError),
        ({"operator": nan_operator(4)}, NonFiniteError),
        ({"vectors": torch.ones(3, 2)}, ShapeError),
        ({"vectors": torch.ones(4, 5)}, ShapeError),
        ({"vectors": [1.0]}, ShapeError),
        ({"vectors": torch.zeros(4, 2)}, ShapeError),
        ({"vectors": torch.full((4, 2), float("nan"))}, NonFiniteError),
        ({"which": "top"}, UnknownNameError),
        ({"tolerance": 0.0}, InvalidArgumentError),
        ({"seed": -1}, InvalidArgumentError),
    ],
)
def test_refusals(change, error) -> None:
    arguments = {"operator": Dense(torch.eye(4)), "vectors": torch.eye(4)} | change
    with pytest.raises(error):
        certify(arguments.pop("operator"), arguments.pop("vectors"), **arguments)
