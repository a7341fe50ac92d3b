"""Pieces, the approximation that they make, and its inverse root, against dense matrices."""

import math

import pytest
import torch
from torch import Tensor, nn

from eigenscape.curvature import KroneckerHessian
from eigenscape.errors import InvalidArgumentError, ShapeError, TooLargeError, WrongTypeError
from eigenscape.operator import Dense
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape.space import ParamSpace, Partition
from eigenscape.testing import check_operator, matrix_with_spectrum
from eigenscape_papers.dong._preconditioners import Approximate, Preconditioned, approximate
from tests.small_net import X, Y

SPACE = ParamSpace({"a": (4,), "b": (7,), "c": (2,)})
N, LIMIT = 13, 100


def operator() -> Dense:
    return Dense(matrix_with_spectrum(torch.linspace(-1.0, 3.0, N), seed=0), space=SPACE)


def on(matrix: Tensor, name: str) -> Dense:
    """An operator on one tensor alone."""
    return Dense(matrix, space=ParamSpace({name: (len(matrix),)}))


def block_diagonal(A: Tensor) -> Tensor:
    B = torch.zeros_like(A)
    for low, high in ((0, 4), (4, 11), (11, 13)):
        B[low:high, low:high] = A[low:high, low:high]
    return B


def check(made: Approximate, truth: Tensor) -> None:
    check_operator(made, truth, rtol=1e-12)


@pytest.mark.parametrize("is_formed", [True, False])
def test_blocks_are_kept_and_the_rest_is_not(is_formed: bool) -> None:
    A = operator()
    dense = A.to_dense()
    made, spent = approximate(A, Partition.by_tensor(SPACE), dense if is_formed else None, LIMIT)
    check(made, block_diagonal(dense))
    assert spent == (0 if is_formed else N)
    assert made.what == "3 blocks"
    with pytest.raises(AssertionError):
        check(made, dense)


def test_a_diagonal_is_one() -> None:
    values = torch.linspace(-2.0, 5.0, N)
    made, spent = approximate(operator(), values, None, LIMIT)
    check(made, torch.diag(values))
    assert (made.what, spent) == ("diagonal", 0)


def test_operators_on_some_tensors_leave_the_others_out() -> None:
    A = operator()
    b, c = (matrix_with_spectrum(torch.randn(n), seed=n) for n in (7, 2))
    some = [on(c, "c"), on(b, "b")]
    made, spent = approximate(A, some, None, LIMIT)
    truth = torch.zeros(N, N)
    truth[4:11, 4:11], truth[11:, 11:] = b, c
    check(made, truth)
    assert (made.what, spent) == ("Dense", 0)
    alone, _ = approximate(A, some[0], None, LIMIT)
    truth[4:11, 4:11] = 0
    check(alone, truth)


def kronecker() -> tuple[KroneckerHessian, EmpiricalRisk]:
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    risk = EmpiricalRisk(net, CrossEntropy(), (X, Y))
    return KroneckerHessian(risk, "0"), risk


def test_a_kronecker_product_is_taken_apart_by_its_factors() -> None:
    K, risk = kronecker()
    identity = Dense(torch.eye(risk.space.size), space=risk.space)
    made, _ = approximate(identity, K, None, limit=1)  # it is never formed
    truth = torch.zeros(identity.shape)
    truth[:25, :25] = K.to_dense()
    check(made, truth)
    (piece,) = made.pieces
    exact = torch.linalg.eigvalsh(K.to_dense())
    torch.testing.assert_close(piece.values.flatten().sort().values, exact, rtol=1e-9, atol=1e-12)


def root(B: Tensor, scale: float, damping: float) -> Tensor:
    values, V = torch.linalg.eigh(B)
    return V @ torch.diag((scale * values.abs() + damping).rsqrt()) @ V.T


@pytest.mark.parametrize("kind", ["partition", "diagonal", "some", "kronecker"])
def test_the_preconditioned_matrix_is_that_of_the_formula(kind: str) -> None:
    A = operator()
    approximation: object = Partition.by_tensor(SPACE)
    if kind == "diagonal":
        approximation = torch.linspace(-2.0, 5.0, N)
    if kind == "some":
        approximation = on(matrix_with_spectrum(torch.randn(7), seed=1), "b")
    if kind == "kronecker":
        approximation, risk = kronecker()
        n = risk.space.size
        A = Dense(matrix_with_spectrum(torch.linspace(-1.0, 3.0, n), seed=0), space=risk.space)
    made, _ = approximate(A, approximation, None, LIMIT)
    dense, scale, damping = A.to_dense(), 1.7, 0.3
    R = root(made.to_dense(), scale, damping)
    truth = R @ (dense + damping * torch.eye(len(dense))) @ R
    preconditioned = Preconditioned(A, made, scale, damping)
    columns = torch.randn(len(dense), 3)
    torch.testing.assert_close(preconditioned.root(columns), R @ columns, rtol=1e-10, atol=1e-11)
    check_operator(preconditioned, (truth + truth.T) / 2, rtol=1e-11)


def test_outside_the_pieces_only_the_damping_counts() -> None:
    made, _ = approximate(operator(), on(torch.eye(2), "c"), None, LIMIT)
    rooted = Preconditioned(operator(), made, 3.0, 0.25).root(torch.eye(N))
    expected = torch.full((N,), 2.0)
    expected[11:] = 1 / math.sqrt(3.25)
    torch.testing.assert_close(rooted, torch.diag(expected))


def test_refusals() -> None:
    A = operator()
    other = ParamSpace({"a": (13,)})
    with pytest.raises(ShapeError, match="operator's own space"):
        approximate(A, Partition.by_tensor(other), None, LIMIT)
    with pytest.raises(TooLargeError, match="at most 6 entries; got one of 7"):
        approximate(A, Partition.by_tensor(SPACE), None, 6)
    for diagonal in (torch.ones(12), torch.full((N,), math.nan)):
        with pytest.raises(ShapeError, match=r"needs 13 finite numbers"):
            approximate(A, diagonal, None, LIMIT)
    with pytest.raises(InvalidArgumentError, match="got none"):
        approximate(A, [], None, LIMIT)
    with pytest.raises(WrongTypeError, match="got str"):
        approximate(A, ["a"], None, LIMIT)
    with pytest.raises(ShapeError, match=r"'a' of shape \(13,\)"):
        approximate(A, Dense(torch.eye(13), space=other), None, LIMIT)
    both = Dense(torch.eye(9), space=ParamSpace({"b": (7,), "c": (2,)}))
    with pytest.raises(InvalidArgumentError, match="needs disjoint blocks"):
        approximate(A, [both, on(torch.eye(2), "c")], None, LIMIT)
