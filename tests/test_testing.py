"""The contracts accept what is right and, above all, reject what is wrong."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from eigenscape.errors import ShapeError
from eigenscape.operator import Dense, LinearOperator, WrappedOperator
from eigenscape.space import ParamSpace
from eigenscape.testing import (
    ContractError,
    check_estimator,
    check_operator,
    check_representation,
    dense_hessian,
    matrix_with_spectrum,
)

SPACE = ParamSpace({"fc.weight": (3, 2), "fc.bias": (3,), "scale": ()})
SYMMETRIC = matrix_with_spectrum([5.0, -2.0, 1.0, 0.5, 0.1, 0.0, 0.0, -0.3, 7.0, 2.0], seed=1)
SQUARE = torch.randn(10, 10, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
WIDE = SQUARE[:4, :9].clone()


def good(matrix: Tensor) -> Dense:
    return Dense(matrix, space=SPACE if matrix.shape[1] == SPACE.size else None)


# --- what is right passes ---


@pytest.mark.parametrize("matrix", [SYMMETRIC, SQUARE, WIDE, WIDE.T, SQUARE[:1, :1], SYMMETRIC * 0])
def test_right_operators_pass(matrix: Tensor) -> None:
    check_operator(good(matrix.clone()), matrix, rtol=1e-13)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_low_precision_passes_with_its_own_tolerance(dtype: torch.dtype, rtol: float) -> None:
    check_operator(good(SQUARE.to(dtype)), SQUARE.to(dtype), rtol=rtol)


# --- what is wrong does not ---


class Wrong(WrappedOperator):
    """An operator with one thing spoilt."""

    def matmat(self, X: Tensor) -> Tensor:
        return self._inner.matmat(X)

    def adjoint_matmat(self, Y: Tensor) -> Tensor:
        return self._inner.adjoint_matmat(Y)


class Scaled(Wrong):
    def matmat(self, X: Tensor) -> Tensor:
        return super().matmat(X) * (1 + 1e-6)


class BlockZeroed(Wrong):
    def matmat(self, X: Tensor) -> Tensor:
        Y = super().matmat(X).clone()
        Y[6:9] = 0
        return Y


class Stochastic(Wrong):
    def matmat(self, X: Tensor) -> Tensor:
        Y = super().matmat(X)
        return Y + 1e-13 * torch.randn_like(Y)


class Rounded(Wrong):
    def matmat(self, X: Tensor) -> Tensor:
        return super().matmat(X.float().double())


class ClaimsSymmetry(Wrong):
    @property
    def is_symmetric(self) -> bool:
        return True


class Mutates(Wrong):
    def matmat(self, X: Tensor) -> Tensor:
        Y = super().matmat(X)
        X.mul_(2)
        return Y


class OneColumn(Wrong):
    def matmat(self, X: Tensor) -> Tensor:
        return super().matmat(X[:, :1]).expand(-1, X.shape[1])


class FewColumns(Wrong):
    def matmat(self, X: Tensor) -> Tensor:
        return torch.cat([super().matmat(X[:, :4]), X.new_zeros(10, max(0, X.shape[1] - 4))], 1)


class WrongRestriction(Wrong):
    def __getitem__(self, key: object) -> LinearOperator:
        rows, columns = key if isinstance(key, tuple) else (key, key)
        part = super().__getitem__((rows, columns))
        return 1.001 * part if rows != columns else part


class WrongAdjoint(Wrong):
    def adjoint_matmat(self, Y: Tensor) -> Tensor:
        return self._inner.matmat(Y)


class NotLinear(Wrong):
    def matmat(self, X: Tensor) -> Tensor:
        return super().matmat(X) + 1e-4 * X.abs()


class Contiguous(Wrong):
    """Reads the memory of its input as if it were laid out row by row."""

    def matmat(self, X: Tensor) -> Tensor:
        flat = X.as_strided((X.numel(),), (1,)) if X.numel() else X.reshape(-1)
        return super().matmat(flat.reshape(X.shape))


class OtherDtype(Wrong):
    def matmat(self, X: Tensor) -> Tensor:
        return super().matmat(X).float()


class OtherShape(Wrong):
    def matmat(self, X: Tensor) -> Tensor:
        return super().matmat(X).T


class Attached(Wrong):
    def matmat(self, X: Tensor) -> Tensor:
        return super().matmat(X).clone().requires_grad_()


class WrongDense(Wrong):
    def to_dense(self, *, max_bytes: int = 0) -> Tensor:
        return self._inner.to_dense().T


class Careless(Wrong):
    def __matmul__(self, other: object) -> object:
        if isinstance(other, Tensor) and other.is_floating_point():
            other = other.double()
        return super().__matmul__(other)


REJECTED: dict[str, tuple[LinearOperator, Tensor, str]] = {
    "transposed": (good(SQUARE.T.clone()), SQUARE, "A @ x:"),
    "transposed rectangle": (good(WIDE.T.clone()), WIDE, r"expected shape \(4, 9\); got \(9, 4\)"),
    "scaled": (Scaled(good(SQUARE)), SQUARE, "A @ x:"),
    "block zeroed": (BlockZeroed(good(SQUARE)), SQUARE, "A @ x:"),
    "stochastic": (Stochastic(good(SQUARE)), SQUARE, "the same bits"),
    "float32 inside": (Rounded(good(SQUARE)), SQUARE, "A @ x:"),
    "claims symmetry": (ClaimsSymmetry(good(SQUARE)), SQUARE, "claimed symmetry"),
    "claims symmetry, wide": (ClaimsSymmetry(good(WIDE)), WIDE, r"got \(4, 3\)"),
    "mutates": (Mutates(good(SQUARE)), SQUARE, "input unchanged"),
    "one column": (OneColumn(good(SQUARE)), SQUARE, "A @ X"),
    "few columns": (FewColumns(good(SQUARE)), SQUARE, "A @ X:"),
    "wrong restriction": (WrongRestriction(good(SQUARE)), SQUARE, r"A\['"),
    "wrong adjoint": (WrongAdjoint(good(SQUARE)), SQUARE, r"A\.T @ Y"),
    "not linear": (NotLinear(good(SQUARE)), SQUARE, "A @ x:"),
    "memory layout": (Contiguous(good(SQUARE)), SQUARE, "A @ "),
    "dtype of results": (OtherDtype(good(SQUARE)), SQUARE, "expected .*float64.*got .*float32"),
    "shape of results": (OtherShape(good(WIDE)), WIDE, r"expected \(\(4,\),.*got \(\(1,\),"),
    "graph attached": (Attached(good(SQUARE)), SQUARE, "expected .*False.*got .*True"),
    "dense form": (WrongDense(good(SQUARE)), SQUARE, "to_dense"),
    "no refusals": (Careless(good(SQUARE)), SQUARE, "another dtype: expected an EigenscapeError"),
}


@pytest.mark.parametrize(("operator", "matrix", "text"), REJECTED.values(), ids=REJECTED.keys())
def test_wrong_operators_are_rejected(operator: LinearOperator, matrix: Tensor, text: str) -> None:
    # A wrong shape may already fail in a refusal of the operator; all else is the contract's.
    with pytest.raises((ContractError, ShapeError), match=text):
        check_operator(operator, matrix)


def test_a_wrong_operator_within_the_tolerance_is_the_callers_choice() -> None:
    check_operator(Scaled(good(SQUARE)), SQUARE, rtol=1e-5)
    with pytest.raises(ContractError, match="A @ x: expected an error of at most"):
        check_operator(good(SQUARE), SQUARE * (1 + 1e-9))
    check_operator(good(SYMMETRIC * 1e-14), SYMMETRIC * 0, atol=1e-12)


# --- check_representation ---


@dataclass(frozen=True)
class Memory:
    """What a representation says about its bytes."""

    kept: object
    working: object


class Rows:
    """A right representation: a sum over two batches, of which it keeps its own copy."""

    def __init__(self, matrix: Tensor, dtype: torch.dtype = torch.float64) -> None:
        self.matrix, self.dtype, self.known = matrix.clone(), dtype, None
        self.forgotten = 0

    def multiply(self, rows: Tensor) -> Tensor:
        if self.known is None:
            self.known = (0.25 * self.matrix).to(self.dtype), (0.75 * self.matrix).to(self.dtype)
        return sum(rows @ summand.T for summand in self.known)

    def memory(self, num_columns: int) -> Memory:
        return Memory(8 * self.matrix.numel(), 8 * num_columns * len(self.matrix))

    def forget(self) -> None:
        self.known = None
        self.forgotten += 1

    def move(self) -> Tensor:
        self.matrix = self.matrix + torch.eye(len(self.matrix))
        return self.matrix


@pytest.mark.parametrize("matrix", [SYMMETRIC, SQUARE, SQUARE[:1, :1], SYMMETRIC * 0])
def test_right_representations_pass(matrix: Tensor) -> None:
    rows = Rows(matrix)
    check_representation(rows, matrix, rtol=1e-13)
    check_representation(rows, matrix, moved=rows.move, rtol=1e-13)
    assert rows.forgotten == 3


def test_representations_in_low_precision_have_their_own_tolerance() -> None:
    rows = Rows(SQUARE, torch.float32)
    check_representation(rows, SQUARE, moved=rows.move, rtol=1e-5, dtype=torch.float32)
    with pytest.raises(ContractError, match="multiply, one row: expected an error of at most"):
        check_representation(Rows(SQUARE, torch.float32), SQUARE, dtype=torch.float32)


class Divided(Rows):
    def multiply(self, rows: Tensor) -> Tensor:
        return super().multiply(rows) / 2


class OneRow(Rows):
    """Its first call decides for how many rows it has room."""

    room = 0

    def multiply(self, rows: Tensor) -> Tensor:
        self.room = self.room or len(rows)
        return super().multiply(rows[: self.room]).expand_as(rows)


class OneBuffer(Rows):
    """Writes all results to one place."""

    buffer = torch.zeros(7, 10, dtype=torch.float64)

    def multiply(self, rows: Tensor) -> Tensor:
        self.buffer[: len(rows)] = super().multiply(rows)
        return self.buffer[: len(rows)]


class Overwrites(Rows):
    def multiply(self, rows: Tensor) -> Tensor:
        products = super().multiply(rows)
        rows.zero_()
        return products


class Clipped(Rows):
    """Right for rows as they are drawn, and for none that are larger."""

    most = 3.5

    def multiply(self, rows: Tensor) -> Tensor:
        return super().multiply(rows.clamp(-self.most, self.most))


class ClippedLater(Clipped):
    most = 100.0


class Columns(Rows):
    def multiply(self, rows: Tensor) -> Tensor:
        return super().multiply(rows).T


class NoTensor(Rows):
    def multiply(self, rows: Tensor) -> object:
        return super().multiply(rows).numpy()


class WithGraph(Rows):
    def multiply(self, rows: Tensor) -> Tensor:
        return super().multiply(rows).clone().requires_grad_()


class NegativeMemory(Rows):
    def memory(self, num_columns: int) -> Memory:
        return Memory(-8, 8)


class FractionalMemory(Rows):
    def memory(self, num_columns: int) -> Memory:
        return Memory(0, 8.5)


class ShrinkingMemory(Rows):
    def memory(self, num_columns: int) -> Memory:
        return Memory(8, 1024 // num_columns)


class NeverForgets(Rows):
    def forget(self) -> None:
        pass


class ForgetsAll(Rows):
    """Loses what no parameter changes, too."""

    def forget(self) -> None:
        self.matrix, self.known = self.matrix * 0, None


class StaysPut(Rows):
    def move(self) -> Tensor:
        return self.matrix


BROKEN: dict[str, tuple[type[Rows], str]] = {
    "divided": (Divided, "multiply, one row: expected an error of at most"),
    "one row": (OneRow, "multiply, 5 rows: expected an error of at most"),
    "one buffer": (OneBuffer, "multiply: expected results of before unchanged; got them overw"),
    "overwrites": (Overwrites, "multiply, one row: expected the rows unchanged; got them overw"),
    "not linear": (Clipped, "multiply, linearity: expected an error of at most"),
    "clipped": (ClippedLater, "multiply, a row of length 10000 beside others: expected an error"),
    "shape": (Columns, r"multiply, one row: expected \(\(1, 10\),.*got \(\(10, 1\),"),
    "no tensor": (NoTensor, r"multiply, one row: expected a tensor \(1, 10\); got ndarray"),
    "graph attached": (WithGraph, "one row: expected .*False.*got .*True"),
    "negative memory": (NegativeMemory, r"memory\(1\): expected integers of 0 or more; got \(-8"),
    "bytes in parts": (
        FractionalMemory,
        r"memory\(1\): expected integers of 0 or more; got .*8\.5",
    ),
    "shrinking memory": (
        ShrinkingMemory,
        r"memory\(2\): expected at least \(8, 1024\).*got \(8, 512",
    ),
    "never forgets": (
        NeverForgets,
        r"multiply after moved\(\) and forget\(\), one row: expected an",
    ),
    "forgets all": (ForgetsAll, r"multiply after forget\(\), one row: expected an error"),
    "stays put": (StaysPut, r"moved\(\): expected another matrix than before; got the same"),
}


@pytest.mark.parametrize(("broken", "text"), BROKEN.values(), ids=BROKEN.keys())
def test_wrong_representations_are_rejected(broken: type[Rows], text: str) -> None:
    rows = broken(SQUARE)
    with pytest.raises(ContractError, match=text):
        check_representation(rows, SQUARE, moved=rows.move)


def test_a_representation_is_compared_with_a_square_matrix() -> None:
    with pytest.raises(ContractError, match=r"matrix: expected shape \(n, n\); got \(4, 9\)"):
        check_representation(Rows(SQUARE), WIDE)


# --- dense_hessian ---


def test_dense_hessian_of_a_polynomial() -> None:
    params = {"a": torch.tensor([2.0, 3.0]), "never": torch.ones(2), "b": torch.tensor(5.0)}
    found = dense_hessian(lambda p: p["a"][0] ** 3 + p["a"].prod() * p["b"], params)
    expected = torch.zeros(5, 5)
    expected[0, 0], expected[0, 1], expected[0, 4], expected[1, 4] = 12.0, 5.0, 3.0, 2.0
    torch.testing.assert_close(found, expected + expected.triu(1).T)
    assert all(not p.requires_grad for p in params.values())


def test_dense_hessian_of_linear_and_constant_functions_is_zero() -> None:
    x = {"x": torch.ones(3)}
    assert not dense_hessian(lambda p: p["x"].sum(), x).any()
    assert not dense_hessian(lambda p: torch.tensor(1.0), x).any()


def test_dense_hessian_refuses() -> None:
    with pytest.raises(ContractError, match=r"expected float64; got x in torch\.float32"):
        dense_hessian(lambda p: p["x"].sum(), {"x": torch.ones(2, dtype=torch.float32)})
    with pytest.raises(ContractError, match=r"scalar function; got shape \(2,\)"):
        dense_hessian(lambda p: p["x"], {"x": torch.ones(2)})


def test_matrix_with_spectrum() -> None:
    values = [4.0, -1.0, 4.0, 0.0, 1e-8]
    A = matrix_with_spectrum(values, seed=3)
    assert torch.equal(A, A.T)
    assert A.dtype == torch.float64
    torch.testing.assert_close(
        torch.linalg.eigvalsh(A), torch.tensor(sorted(values)), atol=1e-14, rtol=0
    )
    assert torch.equal(A, matrix_with_spectrum(torch.tensor(values), seed=3))
    assert not torch.allclose(A, matrix_with_spectrum(values, seed=4))


# --- check_estimator ---


@dataclass(frozen=True)
class Record:
    value: object
    stderr: object


def mean_of(num: int, *, bias: float = 0.0, factor: float = 1.0) -> Callable[[int], Record]:
    """The mean of `num` normal numbers around 3, with its usual standard error."""

    def estimate(seed: int) -> Record:
        x = np.random.default_rng(seed).normal(3.0, 2.0, num)
        return Record(x.mean() + bias, factor * x.std(ddof=1) / num**0.5)

    return estimate


def test_right_estimators_pass() -> None:
    check_estimator(mean_of(10), 3.0)
    check_estimator(mean_of(3), 3.0, num_seeds=100)
    check_estimator(lambda seed: Record(torch.tensor([1.0, 2.0]), torch.zeros(2)), [1.0, 2.0])

    def vector(seed: int) -> Record:
        x = torch.randn(20, 3, generator=torch.Generator().manual_seed(seed)).exp()
        return Record(x.mean(0), x.std(0) / 20**0.5)

    check_estimator(vector, torch.full((3,), float(np.exp(0.5))))


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (mean_of(10, bias=0.3), "bias over 200 seeds"),
        (mean_of(10, bias=-0.3), "bias over 200 seeds"),
        (mean_of(10, factor=1.4), "stderr² / variance − 1 over 200 seeds"),
        (mean_of(10, factor=0.6), "stderr² / variance − 1 over 200 seeds"),
        (mean_of(10, factor=0.0), "stderr² / variance − 1 over 200 seeds"),
        (mean_of(10, factor=-1.0), "stderr: expected 1 finite numbers above 0"),
        (lambda seed: Record(3.0, 0.1), "stderr of a fixed value"),
        (lambda seed: Record(3.1, 0.0), "bias"),
        (lambda seed: Record(float("nan"), 0.0), "value: expected 1 finite"),
        (lambda seed: Record([3.0, 3.0], [0.0, 0.0]), "value: expected 1 finite"),
    ],
)
def test_wrong_estimators_are_rejected(estimate: Callable[[int], Record], text: str) -> None:
    with pytest.raises(ContractError, match=text):
        check_estimator(estimate, 3.0)
