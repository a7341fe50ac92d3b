"""Estimate Frobenius norms of an operator and of all pairs of its blocks, with standard errors.

Letters: A the operator (m × n); v a Rademacher probe, so E‖Av‖² = ‖A‖_F²; A_ab the block of rows a
and columns b; v^(b) the probe with all entries outside b set to 0; q = ‖(A v^(b))_a‖², with mean
‖A_ab‖_F². A norm is √q̄; see `root_of` for its standard error.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.device import full_precision
from eigenscape.errors import require_count, require_positive
from eigenscape.linalg._few_samples import Goal, Moments, root_of
from eigenscape.linalg._pictures import blocks_picture, value_picture
from eigenscape.linalg._products import (
    BATCH,
    InUnits,
    block_sums,
    carries_self_test,
    multiply,
    require_partition,
    unit_columns,
)
from eigenscape.linalg.eigsh import eigsh
from eigenscape.linalg.probes import draw_probes
from eigenscape.operator import LinearOperator, require_operator
from eigenscape.records import Columns, Picture, ProgressCallback, Record, Status, Ticker
from eigenscape.space import Partition


@dataclass(frozen=True, eq=False)
class NormEstimate(Record):
    """An estimate of a norm.

    Attributes:
        value: The estimate.
        stderr: Its standard error; 0 where it is exact.
        num_probes: Random probes it rests on; 0 where it is exact.
    """

    value: float
    stderr: float
    num_probes: int

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (value_picture(self, self.value, self.stderr, "Frobenius norm", "s.e."),)


@dataclass(frozen=True, eq=False)
class BlockNorms(Record):
    """Frobenius norms of all pairs of blocks.

    Attributes:
        values: The norms (B_r, B_c), float64.
        stderr: Their standard errors (B_r, B_c); 0 where exact.
        row_names: Names of the row blocks.
        column_names: Names of the column blocks.
        num_probes: Random probes for the blocks that are not exact.
    """

    values: Tensor
    stderr: Tensor
    row_names: tuple[str, ...]
    column_names: tuple[str, ...]
    num_probes: int

    def columns(self) -> Columns:
        """Return one row for each pair of blocks."""
        places = [(r, c) for r in self.row_names for c in self.column_names]
        return {
            "row": [row for row, _ in places],
            "column": [column for _, column in places],
            "norm": self.values.flatten().tolist(),
            "stderr": self.stderr.flatten().tolist(),
        }

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (blocks_picture(self),)


@dataclass(frozen=True, eq=False)
class SpectralNorm(Record):
    """The largest singular value, found by iteration.

    Attributes:
        value: The norm; a singular value lies within `residual` of it, so the true norm is at least
            `value − residual`.
        residual: The certificate, from a real product.
    """

    value: float
    residual: float

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (value_picture(self, self.value, self.residual, "spectral norm", "residual"),)


@carries_self_test
def spectral_norm(
    operator: LinearOperator,
    *,
    tolerance: float = 1e-6,
    max_products: int | None = None,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> SpectralNorm:
    """Find ‖A‖₂, the largest singular value; for symmetric A the largest |λ|.

    Cost: about 10 to 50 products; twice as many (A and Aᵀ) where A is not symmetric.

    Args:
        operator: Operator A, rectangular ones too.
        tolerance: Bound on the relative residual.
        max_products: Products to spend at most.
        seed: Fixes the starting vector.
        progress: Called after each step.

    Returns:
        The norm with its certificate.

    Examples:
        >>> from eigenscape.operator import Dense
        >>> A = Dense(torch.tensor([[3.0, 0.0], [0.0, -4.0]], dtype=torch.float64))
        >>> round(spectral_norm(A).value, 10)
        4.0
    """
    require_operator(operator, "spectral_norm(operator)")
    symmetric = operator.is_symmetric
    scaled = InUnits(operator)  # AᵀA would square the scale
    pairs = eigsh(
        scaled if symmetric else scaled.gram(),
        num_pairs=1,
        which="magnitude",
        tolerance=tolerance,
        max_products=None if max_products is None else max_products // (1 if symmetric else 2),
        seed=seed,
        progress=progress,
    )
    value, residual = abs(float(pairs.values[0])), float(pairs.residuals[0])
    if not symmetric:
        # An eigenvalue of AᵀA within r of σ² is a singular value within √(σ² + r) − σ of σ.
        square, value = value, math.sqrt(value)
        residual = math.sqrt(square + residual) - value
    value, residual = value * scaled.unit, residual * scaled.unit
    cost = pairs.num_products * (1 if symmetric else 2) + scaled.looks
    return SpectralNorm(
        status=pairs.status, num_products=cost, seed=seed, value=value, residual=residual
    )


@carries_self_test
@full_precision()
def frobenius_norm(
    operator: LinearOperator,
    *,
    num_products: int,
    tolerance: float | None = None,
    seed: int = 0,
    batch: int = BATCH,
    progress: ProgressCallback | None = None,
) -> NormEstimate:
    """Estimate the Frobenius norm of an operator of any shape.

    From `num_products` = n (the number of columns) on, the answer is exact.

    Cost: `num_products` products or, with a tolerance, as many as it takes up to that.

    Args:
        operator: Operator A (m × n).
        num_products: Products to spend, 2 or more.
        tolerance: Stop once the standard error is at most this fraction of the norm, after 10
            probes or more. None spends the whole budget.
        seed: Fixes the probes.
        batch: Probes multiplied at a time.
        progress: Called after each batch.

    Returns:
        The norm with its standard error. If a tolerance was given and not reached, its status says
        so, and a `ConvergenceWarning` is issued.

    Raises:
        WrongTypeError: If the operator is none.
        InvalidArgumentError: If a number is out of range.
        NonFiniteError: If a product is NaN or infinite.

    Examples:
        >>> from eigenscape.operator import Dense
        >>> frobenius_norm(Dense(torch.tensor([[3.0], [4.0]])), num_products=1).value
        5.0

    References:
        Hutchinson, "A stochastic estimator of the trace of the influence matrix", 1990: ‖A‖_F² is
        the trace of AᵀA, which needs no product with Aᵀ.
    """
    require_operator(operator, "frobenius_norm(operator)")
    n = operator.shape[1]
    require_count(num_products, "frobenius_norm(num_products=...)", at_least=min(2, n))
    require_count(batch, "frobenius_norm(batch=...)")
    require_count(seed, "frobenius_norm(seed=...)", at_least=0)
    if tolerance is not None:
        require_positive(tolerance, "frobenius_norm(tolerance=...)")
    scaled = InUnits(operator)
    exact, total = num_products >= n, min(num_products, n)
    ticker = Ticker(progress, "Frobenius norm", total)
    moments, goal, squares = Moments(), Goal(tolerance), 0.0
    for first in range(0, total, batch):
        size = min(batch, total - first)
        if exact:
            V = unit_columns(operator, torch.arange(first, first + size))
        else:
            V = draw_probes(operator, size, seed=seed, first=first)
        samples = multiply(scaled, V, "frobenius_norm", batch=batch).square().sum(0)
        squares += float(samples.sum())
        moments.add(samples)
        ticker.tick(first + size)
        if tolerance is not None and not exact and goal.reached(*_root(moments), moments.count):
            break
    if exact:
        status = Status(True, f"Exact: {num_products} products allow all {n} columns.")
        return NormEstimate(status, n + scaled.looks, seed, squares**0.5 * scaled.unit, 0.0, 0)
    value, stderr = _root(moments)
    status = goal.met(value, stderr, moments.count, moments.count) or Status(
        False,
        f"The standard error {stderr * scaled.unit:.2e} is above {tolerance:.1e} · "
        f"{value * scaled.unit:.4e} after {moments.count} products. Raise `tolerance=` or "
        "`num_products=`; the error falls like 1/√products.",
    )
    return NormEstimate(
        status.warn(),
        moments.count + scaled.looks,
        seed,
        value * scaled.unit,
        stderr * scaled.unit,
        moments.count,
    )


@carries_self_test
@full_precision()
def block_norms(
    operator: LinearOperator,
    row_partition: Partition,
    column_partition: Partition | None = None,
    *,
    num_probes: int,
    seed: int = 0,
    batch: int = BATCH,
    progress: ProgressCallback | None = None,
) -> BlockNorms:
    """Estimate the Frobenius norms of all pairs of blocks from shared probes.

    One product with a probe that is masked to column block b serves every row block. A column block
    of no more entries than `num_probes` is multiplied out instead: that is exact and costs no more.
    Where the operator is symmetric and both partitions are the same, A_ab and A_ba are two looks at
    one norm: the exact one is taken if there is one, else their mean.

    Cost: Σ_b min(`num_probes`, size of column block b) products.

    Args:
        operator: Operator A (m × n).
        row_partition: Blocks of `operator.output_space`.
        column_partition: Blocks of `operator.space`; the row partition if None.
        num_probes: Probes for each column block, 2 or more.
        seed: Fixes the probes.
        batch: Columns multiplied at a time.
        progress: Called as column blocks and probes are finished, in products.

    Returns:
        The norms with their standard errors.

    Raises:
        WrongTypeError: If an argument is of another kind.
        ShapeError: If a partition divides another space.
        InvalidArgumentError: If a number is out of range.
        NonFiniteError: If a product is NaN or infinite.

    Examples:
        >>> from eigenscape.operator import Dense
        >>> from eigenscape.space.param_space import ParamSpace
        >>> space = ParamSpace({"a": (2,), "b": (1,)})
        >>> matrix = torch.tensor([[2.0, 0.0, 3.0], [0.0, 0.0, 4.0], [3.0, 4.0, 1.0]])
        >>> A = Dense(matrix, space=space)
        >>> block_norms(A, Partition.by_tensor(space), num_probes=2).values.tolist()
        [[2.0, 5.0], [5.0, 1.0]]
    """
    require_operator(operator, "block_norms(operator)")
    columns = row_partition if column_partition is None else column_partition
    require_partition(row_partition, operator.output_space, "block_norms(row_partition=...)")
    require_partition(columns, operator.space, "block_norms(column_partition=...)")
    require_count(num_probes, "block_norms(num_probes=...)", at_least=2)
    require_count(batch, "block_norms(batch=...)")
    require_count(seed, "block_norms(seed=...)", at_least=0)
    mirrored = operator.is_symmetric and (
        [block.spans for block in row_partition] == [block.spans for block in columns]
    )
    scaled = InUnits(operator)
    run = _BlockRun(scaled, row_partition, columns, batch, seed)
    ticker = Ticker(progress, "block norms", sum(min(num_probes, size) for size in columns.sizes))
    exact = torch.tensor([size <= num_probes for size in columns.sizes], device=operator.device)
    known = run.exact_columns(exact, ticker)
    moments = Moments()
    for number in range(num_probes if not bool(exact.all()) else 0):
        squares = torch.where(exact, known, run.probe_columns(~exact, number, ticker))
        moments.add(_mirror(squares, exact)[..., None] if mirrored else squares[..., None])
    if moments.count == 0:
        moments.add(_mirror(known, exact)[..., None] if mirrored else known[..., None])
    values, stderr = root_of(moments)
    is_exact = exact.expand(len(row_partition), -1)
    is_exact = is_exact | exact[:, None] if mirrored else is_exact
    stderr = torch.where(is_exact, 0.0, stderr)
    status = Status(True, f"{int(is_exact.sum())} of {is_exact.numel()} norms are exact.")
    return BlockNorms(
        status,
        run.spent + scaled.looks,
        seed,
        values * scaled.unit,
        stderr * scaled.unit,
        row_partition.names,
        columns.names,
        0 if bool(exact.all()) else num_probes,
    )


def _root(moments: Moments) -> tuple[float, float]:
    value, stderr = root_of(moments)
    return float(value), float(stderr)


class _BlockRun:
    """Squared norms of blocks from batches of masked columns; counts the products."""

    def __init__(
        self,
        operator: LinearOperator,
        rows: Partition,
        columns: Partition,
        batch: int,
        seed: int,
    ) -> None:
        self._operator, self._rows, self._columns = operator, rows, columns
        self._batch, self._seed = batch, seed
        self._row_labels = rows.labels().to(operator.device)
        self._column_labels = columns.labels().to(operator.device)
        self.spent = 0

    def _squares(self, X: Tensor) -> Tensor:
        """Return ‖(A x)_a‖² for each row block a and column x."""
        Y = multiply(self._operator, X, "block_norms", batch=self._batch)
        self.spent += X.shape[1]
        return block_sums(Y.square(), self._row_labels, len(self._rows))

    def _empty(self) -> Tensor:
        shape = len(self._rows), len(self._columns)
        return torch.zeros(shape, dtype=torch.float64, device=self._operator.device)

    def exact_columns(self, chosen: Tensor, ticker: Ticker) -> Tensor:
        """Return ‖A_ab‖² for the chosen column blocks b from unit vectors, 0 for the others."""
        inside = torch.where(self._column_labels >= 0, chosen[self._column_labels], False)
        entries = inside.nonzero()[:, 0]
        total = self._empty()
        for index in entries.split(self._batch):
            squares = self._squares(unit_columns(self._operator, index))
            total.index_add_(1, self._column_labels[index], squares)
            ticker.tick(self.spent)
        return total

    def probe_columns(self, chosen: Tensor, number: int, ticker: Ticker) -> Tensor:
        """Return one sample of ‖A_ab‖² for the chosen column blocks b, 0 for the others."""
        v = draw_probes(self._operator, 1, seed=self._seed, first=number)
        total = self._empty()
        # Masked copies are made a batch at a time: B_c copies of a large vector need not fit.
        for blocks in chosen.nonzero()[:, 0].split(self._batch):
            masked = torch.where(self._column_labels[:, None] == blocks, v, 0.0)
            total[:, blocks] = self._squares(masked)
            ticker.tick(self.spent)
        return total


def _mirror(squares: Tensor, exact: Tensor) -> Tensor:
    """Merge the two looks at each symmetric pair: the exact one, else the mean."""
    rows, columns = exact[:, None], exact[None, :]
    mean = (squares + squares.T) / 2
    return torch.where(columns & ~rows, squares, torch.where(rows & ~columns, squares.T, mean))
