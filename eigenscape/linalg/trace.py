"""Estimate the trace of an operator, or of all its diagonal blocks, from random probes.

Letters: A the operator (n × n), symmetric or not; v a probe with E[v vᵀ] = I; A_bb, v_b the parts
of block b.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.device import full_precision
from eigenscape.errors import WrongTypeError, require_count, require_positive
from eigenscape.linalg._few_samples import Goal, Moments, widening
from eigenscape.linalg._pictures import traces_picture, value_picture
from eigenscape.linalg._products import (
    BATCH,
    InUnits,
    block_sums,
    carries_self_test,
    diagonal_entries,
    multiply,
    require_partition,
    unit_columns,
)
from eigenscape.linalg._trace_methods import Estimate, Hutchinson, TraceMethod
from eigenscape.linalg.probes import draw_probes
from eigenscape.operator import LinearOperator, require_square
from eigenscape.records import Columns, Picture, ProgressCallback, Record, Status, Ticker
from eigenscape.space import Partition


@dataclass(frozen=True, eq=False)
class TraceEstimate(Record):
    """An estimate of a trace.

    Attributes:
        value: The estimate.
        stderr: Its standard error; 0 where it is exact.
        num_probes: Random probes it rests on; 0 where it is exact.
        method: What made it: "Hutchinson", "HutchPlusPlus", "XTrace" or "exact".
    """

    value: float
    stderr: float
    num_probes: int
    method: str

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (value_picture(self, self.value, self.stderr, "trace", "s.e."),)


@dataclass(frozen=True, eq=False)
class BlockTraces(Record):
    """Estimates of the traces of diagonal blocks.

    Attributes:
        names: Names of the blocks.
        values: The estimates (B,), float64.
        stderr: Their standard errors (B,); 0 where exact. One probe serves all blocks, so
            the errors are correlated.
        num_probes: Random probes they rest on; 0 where they are exact.
    """

    names: tuple[str, ...]
    values: Tensor
    stderr: Tensor
    num_probes: int

    def columns(self) -> Columns:
        """Return name, trace and standard error of each block."""
        return {
            "block": self.names,
            "trace": self.values.tolist(),
            "stderr": self.stderr.tolist(),
        }

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (traces_picture(self),)


@carries_self_test
@full_precision()
def trace(
    operator: LinearOperator,
    *,
    num_products: int,
    method: TraceMethod = Hutchinson(),
    tolerance: float | None = None,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> TraceEstimate:
    """Estimate the trace of a square operator.

    Use `Hutchinson()` for any operator, `XTrace()` or `HutchPlusPlus()` where few eigenvalues carry
    the trace. From `num_products` = n on, the diagonal is multiplied out and the answer is exact.

    Cost: `num_products` products or, with a tolerance, as many as it takes up to that.

    Args:
        operator: Square operator A, symmetric or not.
        num_products: Products to spend; at least 2 (Hutchinson) or 6.
        method: `Hutchinson()`, `HutchPlusPlus()` or `XTrace()`.
        tolerance: Stop once the standard error is at most this fraction of |estimate|, after 10
            probes or more. None spends the whole budget.
        seed: Fixes the probes.
        progress: Called after each batch, in products.

    Returns:
        The estimate with its standard error. If a tolerance was given and not reached, its status
        says how many products it would take, and a `ConvergenceWarning` is issued.

    Raises:
        WrongTypeError: If the operator or the method is none.
        ShapeError: If the operator is not square.
        InvalidArgumentError: If a number is out of range.
        NonFiniteError: If a product is NaN or infinite.

    Examples:
        >>> from eigenscape.operator import Dense
        >>> A = Dense(torch.diag(torch.tensor([1.0, 2.0, 3.0])))
        >>> estimate = trace(A, num_products=2)  # Rademacher probes are exact for a diagonal
        >>> estimate.value, estimate.stderr
        (6.0, 0.0)

    References:
        See the three methods.
    """
    n = require_square(operator, "trace(operator)")
    require_count(seed, "trace(seed=...)", at_least=0)
    if not isinstance(method, TraceMethod):
        raise WrongTypeError(
            "`trace(method=...)` must be Hutchinson(), HutchPlusPlus() or XTrace(); "
            f"got {method!r}."
        )
    require_count(num_products, "trace(num_products=...)", at_least=min(method.min_products, n))
    if tolerance is not None:
        require_positive(tolerance, "trace(tolerance=...)")
    scaled = InUnits(operator)
    ticker = Ticker(progress, "trace", min(num_products, n))
    if num_products >= n:
        value = 0.0
        for entries in diagonal_entries(scaled, "trace", BATCH, ticker):
            value += float(entries.sum())
        status = Status(True, f"Exact: {num_products} products allow all {n} diagonal entries.")
        value *= scaled.unit
        return TraceEstimate(status, n + scaled.looks, seed, value, 0.0, 0, "exact")

    goal = Goal(tolerance)
    estimate = method.run(scaled, num_products, seed, goal, ticker)
    status = _status(estimate, goal, scaled.unit).warn()
    return TraceEstimate(
        status,
        estimate.num_products + scaled.looks,
        seed,
        estimate.value * scaled.unit,
        estimate.stderr * scaled.unit,
        estimate.num_probes,
        type(method).__name__,
    )


@carries_self_test
@full_precision()
def block_traces(
    operator: LinearOperator,
    partition: Partition,
    *,
    num_products: int,
    seed: int = 0,
    batch: int = BATCH,
    progress: ProgressCallback | None = None,
) -> BlockTraces:
    """Estimate the traces of all diagonal blocks of an operator from the same probes.

    For a Rademacher probe v, v_b · (Av)_b has mean tr(A_bb) for every block b, so one product
    serves all blocks. From `num_products` = n on, the answer is exact.

    Cost: min(`num_products`, n) products.

    Args:
        operator: Square operator A.
        partition: Blocks of its space; they need not cover it.
        num_products: Products to spend, 2 or more.
        seed: Fixes the probes.
        batch: Probes multiplied at a time.
        progress: Called after each batch.

    Returns:
        The traces with their standard errors, in the partition's order.

    Raises:
        WrongTypeError: If the operator or the partition is none.
        ShapeError: If the operator is not square or the partition divides another space.
        InvalidArgumentError: If a number is out of range.
        NonFiniteError: If a product is NaN or infinite.

    Examples:
        >>> from eigenscape.operator import Dense
        >>> from eigenscape.space.param_space import ParamSpace
        >>> space = ParamSpace({"a": (2,), "b": (1,)})
        >>> A = Dense(torch.ones(3, 3) + torch.diag(torch.tensor([0.0, 1.0, 2.0])), space=space)
        >>> block_traces(A, Partition.by_tensor(space), num_products=3).values.tolist()
        [3.0, 3.0]
    """
    n = require_square(operator, "block_traces(operator)")
    require_partition(partition, operator.space, "block_traces(partition=...)")
    require_count(num_products, "block_traces(num_products=...)", at_least=min(2, n))
    require_count(batch, "block_traces(batch=...)")
    require_count(seed, "block_traces(seed=...)", at_least=0)
    scaled = InUnits(operator)
    labels = partition.labels().to(operator.device)
    exact = num_products >= n
    total = min(num_products, n)
    ticker = Ticker(progress, "block traces", total)
    entries = Moments()
    sums = torch.zeros(len(partition), dtype=torch.float64, device=operator.device)
    for first in range(0, total, batch):
        size = min(batch, total - first)
        if exact:
            V = unit_columns(operator, torch.arange(first, first + size))
        else:
            V = draw_probes(operator, size, seed=seed, first=first)
        products = V * multiply(scaled, V, "block_traces", batch=batch)
        sums += block_sums(products, labels, len(partition)).sum(1)
        if not exact:
            entries.add(products)
        ticker.tick(first + size)
    if exact:
        text, num_probes = f"Exact: {num_products} products allow all {n} diagonal entries.", 0
        stderr = torch.zeros_like(sums)
    else:
        text, num_probes = f"Spent the budget of {num_products} products.", total
        # At most twice the true variance, which is between Σ and 2Σ of the entries' variances.
        variances = 2.0 * block_sums(entries.variance[:, None], labels, len(partition))[:, 0]
        sums, stderr = sums / total, widening(total) * (variances / total).sqrt()
    return BlockTraces(
        Status(True, text),
        total + scaled.looks,
        seed,
        partition.names,
        sums * scaled.unit,
        stderr * scaled.unit,
        num_probes,
    )


def _status(estimate: Estimate, goal: Goal, unit: float) -> Status:
    value, stderr, num_products = estimate.value, estimate.stderr, estimate.num_products
    if (status := goal.met(value, stderr, estimate.num_probes, num_products)) is not None:
        return status
    wanted = (goal.tolerance or 0.0) * abs(value)
    advice = "Raise `tolerance=` or `num_products=`"
    if stderr > wanted > 0:
        ratio = stderr / wanted
        needed = ratio * ratio * num_products
        advice += f", to about {needed:.1e} if the error falls like 1/√products"
    text = (
        f"The standard error {stderr * unit:.2e} is above {goal.tolerance:.1e} · "
        f"|{value * unit:.4e}| "
        f"after {num_products} products and {estimate.num_probes} probes. {advice}."
    )
    return Status(False, text)
