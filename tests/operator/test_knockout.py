"""Knockouts against the formulas of Papyan, Definitions 3.1 and 3.2, written out densely."""

import numpy as np
import pytest
import torch
from torch import Tensor

from eigenscape.errors import NonFiniteError, ShapeError, WrongTypeError
from eigenscape.operator import Dense, projection_knockout, subtraction_knockout
from eigenscape.testing import check_operator, matrix_with_spectrum

S = matrix_with_spectrum([6.0, 3.0, 1.0, -2.0, 0.5, 0.0, 0.2], seed=0)
M = torch.randn(7, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
R = M[:4]


def projector(B: Tensor) -> Tensor:
    return torch.eye(len(B)) - B @ torch.linalg.pinv(B)


def test_subtraction() -> None:
    check_operator(subtraction_knockout(Dense(S), Dense(M)), S - M)


@pytest.mark.parametrize(
    "B", [M[:, :2], M[:, :1] @ M[:1, :3], 1e-8 * M[:, :3], M[:, :0], torch.zeros(7, 2)]
)
def test_projection_of_symmetric_operators(B: Tensor) -> None:
    found = projection_knockout(Dense(S), B)
    check_operator(found, projector(B) @ S @ projector(B), rtol=1e-12)
    assert found.is_symmetric


def test_projection_of_everything_leaves_nothing() -> None:
    assert projection_knockout(Dense(S), torch.eye(7)).to_dense().abs().max() < 1e-14


def test_projection_of_an_operator_is_that_of_its_matrix() -> None:
    low = M[:, :2] @ M[:2]
    check_operator(projection_knockout(Dense(S), Dense(low)), projector(low) @ S @ projector(low))


def test_projection_of_rectangles_removes_both_singular_spaces() -> None:
    B = R[:, :2] @ M[:2]
    U, singular, Vt = torch.linalg.svd(B)
    U, V = U[:, :2], Vt[:2].T
    assert singular[2] < 1e-12
    expected = (torch.eye(4) - U @ U.T) @ R @ (torch.eye(7) - V @ V.T)
    check_operator(projection_knockout(Dense(R), B), expected, rtol=1e-12)


@pytest.mark.parametrize("as_operator", [False, True])
def test_projection_of_square_weights_removes_both_singular_spaces(as_operator: bool) -> None:
    """Papyan §7.13: W is 2048 × 2048 there, and inputs and outputs are different spaces."""
    B = M[:, :2] @ M[3:5]
    U, V = torch.linalg.qr(M[:, :2])[0], torch.linalg.qr(M[3:5].T)[0]
    expected = (torch.eye(7) - U @ U.T) @ M @ (torch.eye(7) - V @ V.T)
    found = projection_knockout(Dense(M), Dense(B) if as_operator else B)
    check_operator(found, expected, rtol=1e-12)
    assert not found.is_symmetric
    assert (expected - projector(B) @ M @ projector(B)).norm() > 0.1 * M.norm()
    # A leading singular pair takes its singular value with it, and no other.
    left, sizes, right = torch.linalg.svd(M)
    rest = projection_knockout(Dense(M), torch.outer(left[:, 0], right[0])).to_dense()
    torch.testing.assert_close(torch.linalg.svdvals(rest)[:6], sizes[1:])


def test_one_space_on_both_sides_of_square_weights() -> None:
    V = torch.linalg.qr(M[:, :2])[0]
    expected = projector(V) @ M @ projector(V)
    check_operator(projection_knockout(Dense(M), V @ V.T), expected, rtol=1e-12)


def test_an_eigenvector_takes_its_eigenvalue_with_it() -> None:
    values, vectors = torch.linalg.eigh(S)
    left = torch.linalg.eigvalsh(projection_knockout(Dense(S), vectors[:, -1:]).to_dense())
    expected = torch.cat([values[:-1], torch.zeros(1)]).sort().values
    torch.testing.assert_close(left, expected, atol=1e-12, rtol=0)


def test_rank_is_judged_in_the_precision_that_b_came_in() -> None:
    B = (M[:, :1] @ M[:1, :3]).float()  # rank one but for rounding in float32
    found = projection_knockout(Dense(S), B).to_dense()
    close = projector(M[:, :1]) @ S @ projector(M[:, :1])
    assert (found - close).norm() < 1e-5 * S.norm()


def test_rank_does_not_depend_on_the_number_of_rows() -> None:
    """With ε times the rows for a limit, nothing of float32 is left from 8.4 million rows on."""
    n = 300  # in bfloat16 that is 2.3 ε⁻¹
    V = torch.zeros(n, 2, dtype=torch.bfloat16)
    V[0, 0], V[1, 1] = 4.0, 3.0
    A = Dense(torch.diag(torch.arange(n, 0.0, -1.0)))
    left = projection_knockout(A, V).to_dense().diagonal()
    assert left[:3].tolist() == [0.0, 0.0, n - 2.0]


def test_refusals() -> None:
    A = Dense(S)
    with pytest.raises(ShapeError, match=r"needs B of shape \(7, r\); got \(6, 2\)"):
        projection_knockout(A, torch.ones(6, 2))
    with pytest.raises(ShapeError, match=r"\(7, r\); got \(7,\)"):
        projection_knockout(A, torch.ones(7))
    with pytest.raises(ShapeError, match=r"B of shape \(7, 7\); got \(7, 2\). .* V @ V.T"):
        projection_knockout(Dense(M), M[:, :2])
    with pytest.raises(ShapeError, match=r"needs B of shape \(4, 7\); got \(4, 3\)"):
        projection_knockout(Dense(R), torch.ones(4, 3))
    with pytest.raises(WrongTypeError, match="needs a LinearOperator; got Tensor"):
        projection_knockout(S, S)
    for wrong in (torch.ones(7, 1, dtype=torch.int64), np.ones((7, 1)), torch.ones(7, 1) * 1j):
        with pytest.raises(WrongTypeError, match="real floating-point tensor or an operator"):
            projection_knockout(A, wrong)
    with pytest.raises(NonFiniteError, match="finite B"):
        projection_knockout(A, torch.full((7, 1), float("nan")))
    with pytest.raises(WrongTypeError, match="needs a LinearOperator"):
        subtraction_knockout(A, S)


def test_few_long_columns_are_projected_out_by_their_gram_matrix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(3)
    A = torch.randn(60, 60, generator=generator)
    B = torch.randn(60, 3, generator=generator)
    B = torch.cat([B, B[:, :1] + B[:, 1:2]], 1)  # of rank three
    expected = projection_knockout(Dense(A + A.T), B).to_dense()
    monkeypatch.setattr("eigenscape.operator.knockout._LARGE", 0)
    monkeypatch.setattr("eigenscape.operator.knockout._PIECE", 44)  # eleven rows at a time
    found = projection_knockout(Dense(A + A.T), B)
    assert found._left.shape == (60, 3)
    # The Gram matrix squares the condition of B, which is about ten here.
    torch.testing.assert_close(found.to_dense(), expected, rtol=1e-10, atol=1e-10)
    nothing = projection_knockout(Dense(A + A.T), torch.zeros(60, 2))
    torch.testing.assert_close(nothing.to_dense(), A + A.T)
