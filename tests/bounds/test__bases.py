"""Eigenvectors where a matrix has none of its own: the same for every solver, and near units."""

import pytest
import torch
from torch import Tensor

from eigenscape.bounds import _bases
from eigenscape.bounds._bases import _eigh
from eigenscape.device import eigh


def deficient(n: int = 9, rank: int = 3, dead: tuple[int, ...] = (1, 6)) -> Tensor:
    """Return an indefinite matrix of some rank, with rows of zeros."""
    draw = torch.Generator().manual_seed(0)
    A = torch.randn(n, rank, generator=draw)
    A[list(dead)] = 0
    return A @ torch.diag(torch.tensor([2.0, 0.5, -1.0])[:rank]) @ A.T


def another_solver(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Mix the vectors whose eigenvalues are 0, as may be done."""
    values, vectors = eigh(matrix)
    null = (values.abs() < 1e-12).nonzero()[:, 0]
    mixing, _ = torch.linalg.qr(torch.randn(len(null), len(null)))
    vectors[:, null] = vectors[:, null] @ mixing
    return values, vectors


def test_vectors_of_zero_do_not_depend_on_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    A = deficient()
    values, vectors = _eigh(A)
    torch.testing.assert_close(vectors @ torch.diag(values) @ vectors.T, A)
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(9))
    assert bool((values.diff() <= 0).all())
    monkeypatch.setattr(_bases, "eigh", another_solver)
    again = _eigh(A)[1]
    null = values.abs() < 1e-12
    assert int(null.sum()) == 6
    torch.testing.assert_close(again[:, null], vectors[:, null])
    # Rows of zeros have their unit vectors.
    for unit in (1, 6):
        assert float(vectors[unit, null].abs().max()) == 1


def test_one_direction_leaves_the_others_near_unit_vectors() -> None:
    w = torch.randn(200, 1, generator=torch.Generator().manual_seed(1))
    vectors = _eigh(w @ w.T)[1]
    largest = vectors[:, 1:].abs().amax(0)
    # A reflection moves a unit vector by twice an entry of a unit vector of 200.
    assert float(largest.min()) > 0.5
    assert float(largest.median()) > 0.99


@pytest.mark.parametrize("matrix", [torch.zeros(4, 4), torch.eye(4), torch.zeros(1, 1)])
def test_nothing_and_everything_is_null(matrix: Tensor) -> None:
    matrix = matrix.double()
    values, vectors = _eigh(matrix)
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(len(matrix)))
    torch.testing.assert_close(vectors @ torch.diag(values) @ vectors.T, matrix)
    assert vectors.is_contiguous()
