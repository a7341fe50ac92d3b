"""Products that are checked and counted alike by every algorithm.

Letters: A the operator (m × n); X (n, k) columns; Y = A X.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from eigenscape.errors import (
    CheckpointError,
    NonFiniteError,
    NotSymmetricError,
    ShapeError,
    WrongTypeError,
)
from eigenscape.linalg.probes import draw_probes
from eigenscape.operator import LinearOperator, WrappedOperator, require_square
from eigenscape.records import Record, Ticker
from eigenscape.space import ParamSpace, Partition

# Columns multiplied at a time where the caller sets nothing: enough to keep a GEMM busy, few enough
# that two float64 copies of them stay small beside a network's own activations.
BATCH = 16

# Entries of a float32 inner product that are added in float32.
_PIECE = 4096


def multiply(operator: LinearOperator, X: Tensor, call: str, *, batch: int = BATCH) -> Tensor:
    """Multiply columns (n, k) in portions; the products (m, k) come in float64.

    Cost: k products.

    Args:
        operator: The operator A.
        X: Columns in any floating dtype; they are rounded to the operator's.
        call: The function the user called, for the refusal.
        batch: Columns multiplied at a time.

    Returns:
        A X in float64, on the operator's device.

    Raises:
        NonFiniteError: If a product is NaN or infinite.
    """
    Y = torch.empty(operator.shape[0], X.shape[1], dtype=torch.float64, device=operator.device)
    for start in range(0, X.shape[1], batch):
        portion = X[:, start : start + batch].to(operator.dtype)
        Y[:, start : start + batch] = operator @ portion
    if not bool(torch.isfinite(Y).all()):
        raise NonFiniteError(
            f"`{call}` needs finite products; {operator!r} gave NaN or infinity. "
            "Check that loss and gradient are finite at these parameters, or use a wider dtype."
        )
    return Y


def dots(A: Tensor, B: Tensor) -> Tensor:
    """Return all inner products of rows A (a, n) and B (b, n) in float64, without a float64 copy.

    Rows in float32 are multiplied in pieces whose sums are added in float64: a float32 sum over
    200 000 entries would leave a Lanczos basis orthogonal to no more than 4e-5 (measured).
    """
    if A.dtype == torch.float64:
        return A @ B.T
    # A GPU adds in trees, and launches cost more there.
    piece = _PIECE if A.device.type == "cpu" else 256 * _PIECE
    total = torch.zeros(A.shape[0], B.shape[0], dtype=torch.float64, device=A.device)
    for start in range(0, A.shape[1], piece):
        total += A[:, start : start + piece] @ B[:, start : start + piece].T
    return total


def sums_of(vector: Tensor) -> Tensor:
    """Return 256 sums over the entries of a vector, which tell it from any other, in float64."""
    places = torch.arange(len(vector), device=vector.device) % 256
    sums = torch.zeros(256, dtype=torch.float64, device=vector.device)
    return sums.index_add_(0, places, vector.double()).cpu()


def require_same_product(operator: LinearOperator, vector: Tensor, expected: Tensor) -> None:
    """Refuse to go on with an operator whose product is not that of an interrupted run.

    Its product may round otherwise, as on another machine. What differs by more, however little,
    is another matrix: other weights, or other data.

    Args:
        operator: The operator as it is now.
        vector: A vector (n,) that the interrupted run has multiplied. Cost: one product.
        expected: `sums_of` that product.

    Raises:
        CheckpointError: If they differ.
    """
    product_sums = sums_of((operator @ vector[:, None].contiguous())[:, 0])
    difference = float((product_sums - expected).norm() / expected.norm().clamp_min(1e-300))
    if difference <= torch.finfo(operator.dtype).eps ** 0.6 + operator.noise:
        return
    raise CheckpointError(
        f"The checkpoint belongs to another operator: a product differs by {difference:.1e} of its "
        "size from the one that was saved. Use another folder, or the same weights and data as "
        "before."
    )


def unit_columns(operator: LinearOperator, index: Tensor) -> Tensor:
    """Return the columns of the identity with these numbers: (n, len(index))."""
    columns = torch.zeros(
        operator.shape[1], len(index), dtype=operator.dtype, device=operator.device
    )
    index = index.to(operator.device)
    columns[index, torch.arange(len(index), device=operator.device)] = 1.0
    return columns


def diagonal_entries(
    operator: LinearOperator, call: str, batch: int, ticker: Ticker
) -> Iterator[Tensor]:
    """Yield the diagonal in portions of `batch` entries, from products with unit vectors."""
    n = operator.shape[0]
    for first in range(0, n, batch):
        index = torch.arange(first, min(first + batch, n), device=operator.device)
        Y = multiply(operator, unit_columns(operator, index), call, batch=batch)
        yield Y[index, index - first]
        ticker.tick(first + len(index))


def block_sums(entries: Tensor, labels: Tensor, num_blocks: int) -> Tensor:
    """Add the rows of `entries` (n, k) by block: (num_blocks, k); label −1 belongs to none."""
    sums = entries.new_zeros(num_blocks + 1, entries.shape[1])
    # Rows of no block go to one more row, which is cut off.
    sums.index_add_(0, labels.remainder(num_blocks + 1), entries)
    return sums[:num_blocks]


def require_symmetric(operator: LinearOperator, call: str) -> int:
    """Return n of a symmetric n × n operator, else refuse."""
    n = require_square(operator, call)
    if not operator.is_symmetric:
        raise NotSymmetricError(
            f"`{call}` needs a symmetric operator; got {operator!r}, which does not say so. "
            "Use `A.gram()` or `0.5 * (A + A.T)`, or a curvature operator."
        )
    return n


def require_partition(partition: Partition, space: ParamSpace, call: str) -> None:
    """Refuse what is not a partition of `space`."""
    if not isinstance(partition, Partition):
        raise WrongTypeError(
            f"`{call}` must be a Partition; got {type(partition).__name__}. "
            "Make one, e.g. `Partition.by_layer(operator.space)`."
        )
    if partition.space != space:
        raise ShapeError(
            f"`{call}` must divide the operator's own space, {space!r}; got blocks of "
            f"{partition.space!r}. Build it from `operator.space` (rows: `operator.output_space`)."
        )


_P = ParamSpec("_P")
_R = TypeVar("_R", bound=Record)


def carries_self_test(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Put an operator's verdict on itself into the record that a function of it returns."""

    def tested(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        record = function(*args, **kwargs)
        operator: Any = args[0] if args else kwargs["operator"]
        verdict = operator.self_test
        return record if verdict is None else dataclasses.replace(record, self_test=verdict)

    functools.update_wrapper(tested, function)
    return tested


# Number of the random vector that looks how large an operator is: far from those of any algorithm.
_LOOK = 2**40


class InUnits(WrappedOperator):
    """A/u; u is found from the first product that is not zero.

    Cost: one more product, counted in `looks`, where the first one is very small or very large.
    """

    def __init__(self, inner: LinearOperator, *, beside: float = 0.0) -> None:
        """Wrap an operator.

        Args:
            inner: The operator A.
            beside: The size of what will be added to it, such as a damping.
        """
        super().__init__(inner)
        self._beside, self._known = abs(beside), False
        self.unit, self.looks = 1.0, 0

    def matmat(self, X: Tensor) -> Tensor:
        """Multiply columns, and divide by the unit."""
        return self._divided(X, self._inner.matmat(X))

    def adjoint_matmat(self, Y: Tensor) -> Tensor:
        """Multiply columns by the transpose, and divide by the unit."""
        return self._divided(Y, self._inner.adjoint_matmat(Y))

    def adopt(self, unit: float) -> None:
        """Use the unit of an earlier run."""
        self.unit, self._known = unit, True

    def _divided(self, X: Tensor, Y: Tensor) -> Tensor:
        if not self._known:
            self._settle(_ratio(X, Y))
        return Y if self.unit == 1.0 else Y * (1.0 / self.unit)

    def _settle(self, size: float) -> None:
        """Choose the unit from the size of a first product.

        One that is very small or large may be that of a few directions only, such as a first column
        or a start that was given. Then a random vector is multiplied, which leans on all of them.
        """
        if not 0.0 < size < math.inf:
            return
        if unit_of(max(size, self._beside), self.dtype) != 1.0:
            X = draw_probes(self._inner, 1, seed=0, kind="gaussian", first=_LOOK)
            self.looks += 1
            other = _ratio(X, self._inner.matmat(X))
            if other < math.inf:
                size = max(size, other)
        self.adopt(unit_of(max(size, self._beside), self.dtype))

    def __repr__(self) -> str:
        """Show the operator itself."""
        return repr(self._inner)


def unit_of(size: float, dtype: torch.dtype = torch.float64) -> float:
    """Return a power of two near a size, or 1 where fourth powers of it have room anyway.

    Vectors in less than float64 are squared at most; all that is longer is in float64.
    """
    if not 0.0 < size < math.inf:
        return 1.0
    most = int(math.log2(torch.finfo(dtype).max)) - 7
    ordinary = most // 8 if dtype == torch.float64 else most // 4
    exponent = math.frexp(size)[1]
    return 1.0 if abs(exponent) <= ordinary else 2.0 ** max(-most, min(exponent, most))


def unit_of_each(columns: Tensor) -> Tensor:
    """Return the unit of each column (n, k) of float64 numbers: (k,)."""
    sizes = columns.abs().amax(0).tolist() if columns.shape[0] else [0.0] * columns.shape[1]
    units = [unit_of(size) for size in sizes]
    return torch.tensor(units, dtype=torch.float64, device=columns.device)


def _ratio(X: Tensor, Y: Tensor) -> float:
    """Return how large the entries of products Y are against those of X, in one transfer."""
    if X.numel() == 0 or Y.numel() == 0:
        return 0.0
    from_size, to_size = torch.stack([X.abs().amax().double(), Y.abs().amax().double()]).tolist()
    return to_size / from_size if from_size > 0.0 else 0.0
