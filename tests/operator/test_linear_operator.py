"""The algebra of operators, beyond what the contract asks of each of them."""

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import eigsh as scipy_eigsh
from torch import Tensor

from eigenscape.errors import (
    InvalidArgumentError,
    NotSymmetricError,
    ShapeError,
    TooLargeError,
    UnknownNameError,
    WrongTypeError,
)
from eigenscape.operator import Dense, LinearOperator
from eigenscape.space import Block, ParamSpace
from eigenscape.testing import check_operator, matrix_with_spectrum

SPACE = ParamSpace({"fc.weight": (2, 3), "fc.bias": (2,), "scale": ()})
S = matrix_with_spectrum([4.0, 2.0, 1.0, -3.0, 0.5, 0.0, 0.0, 7.0, 1.0], seed=0)
M = torch.randn(9, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
R = M[:4]


def op(matrix: Tensor) -> Dense:
    return Dense(matrix, space=SPACE if matrix.shape[1] == 9 else None)


# --- composed operators keep the whole contract themselves ---


COMPOSED = {
    "sum": (lambda: op(S) + op(M), S + M),
    "difference": (lambda: op(R) - 2 * op(R), -R),
    "scaled": (lambda: -0.5 * op(M) / 2, -M / 4),
    "shifted": (lambda: op(S).shift(-1.5), S - 1.5 * torch.eye(9)),
    "shifted twice": (lambda: (2 * op(M).shift(1.0)).shift(3), 2 * M + 5 * torch.eye(9)),
    "product": (lambda: op(R) @ op(M), R @ M),
    "long product": (lambda: op(R) @ op(S) @ op(R).T, R @ S @ R.T),
    "gram": (lambda: op(R).gram(), R.T @ R),
    "gram of the transpose": (lambda: op(R).T.gram(), R @ R.T),
    "transposed sum": (lambda: (op(M) + op(S)).T, M.T + S),
    "rows": (lambda: op(M)["fc.bias", :], M[6:8]),
    "block": (lambda: op(S)["fc"], S[:8, :8]),
    "block of a block": (lambda: op(M)["fc", :]["fc.bias", "scale"], M[6:8, 8:]),
    "strided": (lambda: op(M)[Block("odd", (range(1, 9, 2),)), "fc.bias"], M[1::2, 6:8]),
}


@pytest.mark.parametrize(("make", "matrix"), COMPOSED.values(), ids=COMPOSED.keys())
def test_composed_operators_keep_the_contract(make: object, matrix: Tensor) -> None:
    check_operator(make(), matrix, rtol=1e-13)


def test_deflation_moves_eigenvalues_to_zero() -> None:
    values, vectors = torch.linalg.eigh(S)
    deflated = op(S).deflate(values[-2:], vectors[:, -2:])
    assert deflated.is_symmetric
    check_operator(deflated, S - (vectors[:, -2:] * values[-2:]) @ vectors[:, -2:].T, rtol=1e-13)
    found = torch.linalg.eigvalsh(deflated.to_dense())
    expected = torch.cat([values[:-2], torch.zeros(2)]).sort().values
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    check_operator(
        op(M).deflate(values[:1], vectors[:, :1]), M - values[0] * vectors[:, :1] @ vectors[:, :1].T
    )


def test_symmetry_is_claimed_only_where_it_holds() -> None:
    A, B = op(S), op(M)
    assert A.is_symmetric
    assert not B.is_symmetric
    for symmetric in (
        A + A,
        2 * A,
        A.shift(1.0),
        A.gram(),
        B.gram(),
        A["fc"],
        A["fc", "fc.*"],
        A.T,
        B + B.T,
        0.5 * (B.T + B),
    ):
        assert symmetric.is_symmetric
    for other in (
        A + B,
        B + B,
        B - B.T,
        A @ A,
        B.T,
        A["fc", "scale"],
        B["fc"],
        A["fc.weight", "fc"],
    ):
        assert not other.is_symmetric
    assert A.T is A
    assert B.T.T is B


def test_spaces_follow() -> None:
    rows = op(R).T
    assert rows.space.size == 4
    assert rows.output_space == SPACE
    assert op(M)["fc", "scale"].output_space == ParamSpace({"fc.weight": (2, 3), "fc.bias": (2,)})
    assert op(M)["fc", "scale"].space == ParamSpace({"scale": ()})
    assert (op(R) @ op(M)).space == SPACE
    assert op(R).gram().output_space == SPACE
    assert repr(op(R)) == "Dense(4 × 9, torch.float64, cpu)"


def test_nothing_is_multiplied_before_it_is_used() -> None:
    counted = Counted()
    A = (2 * counted + counted).shift(1.0)["x"] @ counted.gram()
    assert counted.products == 0
    A @ torch.ones(3)
    assert counted.products == 4


class Counted(LinearOperator):
    """The smallest operator that a user can write."""

    products = 0
    space = ParamSpace.flat(3)
    dtype = torch.float64
    device = torch.device("cpu")
    is_symmetric = True

    def matmat(self, X: Tensor) -> Tensor:
        self.products += 1
        return X * torch.tensor([[1.0], [2.0], [4.0]])


def test_five_things_make_an_operator() -> None:
    check_operator(Counted(), torch.diag(torch.tensor([1.0, 2.0, 4.0])))


class NoAdjoint(Counted):
    is_symmetric = False


def test_a_missing_transpose_is_explained() -> None:
    with pytest.raises(NotSymmetricError, match=r"NoAdjoint\.T.*Define `adjoint_matmat`"):
        NoAdjoint().T @ torch.ones(3)
    assert (NoAdjoint() @ torch.ones(3)).tolist() == [1.0, 2.0, 4.0]


def test_dense_in_pieces_and_its_limit() -> None:
    wide = torch.randn(3, 600)
    assert torch.equal(Dense(wide).to_dense(), wide @ torch.eye(600))
    with pytest.raises(TooLargeError, match=r"3 × 600 operator needs 1.4e\+04 bytes.*`A\['x'\]`"):
        Dense(wide).to_dense(max_bytes=10_000)


def test_scipy_solves_with_it() -> None:
    values = scipy_eigsh(op(S).to_scipy(), k=3, which="LA", return_eigenvectors=False)
    np.testing.assert_allclose(np.sort(values), [2.0, 4.0, 7.0], atol=1e-9)
    half = Dense(S.to(torch.bfloat16)).to_scipy()
    assert half.dtype == np.float32
    assert (half @ np.ones(9)).dtype == np.float32


A, B = op(S), op(R)
REFUSED = {
    "sum of shapes": (lambda: A + B, ShapeError, r"`A ± B` .* got \(9, 9\)"),
    "sum of dtypes": (lambda: A + op(S.float()), ShapeError, "float32"),
    "product of shapes": (lambda: B @ B, ShapeError, "`A @ B`"),
    "sum with a number": (lambda: A + 1.0, WrongTypeError, "needs a LinearOperator; got float"),
    "sum with a tensor": (lambda: A + S, WrongTypeError, r"Wrap a matrix in `Dense\(matrix\)`"),
    "operator times operator": (lambda: A * A, WrongTypeError, "real number; got Dense"),
    "complex factor": (lambda: A * 1j, WrongTypeError, "real number; got complex"),
    "bool factor": (lambda: A * True, WrongTypeError, "got bool"),
    "nan factor": (lambda: float("nan") * A, InvalidArgumentError, "finite"),
    "division by zero": (lambda: A / 0, InvalidArgumentError, "other than 0"),
    "division by nothing": (lambda: A / "2", WrongTypeError, "real number"),
    "infinite shift": (lambda: A.shift(float("inf")), InvalidArgumentError, "finite"),
    "shift of a rectangle": (lambda: B.shift(1.0), ShapeError, r"square operator; got shape \(4"),
    "rectangular deflation": (lambda: B.deflate(S[0], S), ShapeError, "square"),
    "values too few": (lambda: A.deflate(S[0, :2], S[:, :3]), ShapeError, r"got \(2,\) and \(9, 3"),
    "one vector": (lambda: A.deflate(S[0, 0], S[:, 0]), ShapeError, r"vectors \(n, r\)"),
    "transposed input": (lambda: B @ torch.ones(2, 9), ShapeError, "Did you mean `X.T`"),
    "other device": (lambda: A @ torch.ones(9, device="meta"), ShapeError, "on cpu; got meta"),
    "numpy": (lambda: A @ np.ones(9), WrongTypeError, "needs a torch.Tensor; got ndarray"),
    "unknown block": (lambda: A["fc.wieght"], UnknownNameError, "Nearest: 'fc.weight'"),
    "index": (lambda: A[0], WrongTypeError, "takes blocks, names, patterns or `:`; got 0"),
    "slice": (lambda: A[2:4, :], WrongTypeError, "slice"),
    "block of another space": (
        lambda: A[Block("b", (range(20),))],
        InvalidArgumentError,
        "index 19",
    ),
    "three keys": (lambda: A["fc", "fc", "fc"], WrongTypeError, "takes blocks"),
}


@pytest.mark.parametrize(("make", "error", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals(make: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_tensors_of_one_number_scale() -> None:
    check_operator(torch.tensor(2.0).item() * A, 2 * S)
    check_operator(A * torch.tensor(2.0), 2 * S)
    check_operator(A.shift(torch.tensor([2.0])), S + 2 * torch.eye(9))
