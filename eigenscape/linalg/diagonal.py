"""Estimate the diagonal of an operator from random probes, with a standard error per entry.

Letters: A the operator (n × n); v a Rademacher probe; d = v ⊙ Av, whose mean is the diagonal and
whose entry i has variance Σ_{j≠i} A_ij².
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.device import full_precision
from eigenscape.errors import require_count, require_positive
from eigenscape.linalg._few_samples import Goal, Moments
from eigenscape.linalg._pictures import diagonal_picture
from eigenscape.linalg._products import (
    BATCH,
    InUnits,
    carries_self_test,
    diagonal_entries,
    multiply,
)
from eigenscape.linalg.probes import draw_probes
from eigenscape.operator import LinearOperator, require_square
from eigenscape.records import Columns, Picture, ProgressCallback, Record, Status, Ticker


@dataclass(frozen=True, eq=False)
class DiagonalEstimate(Record):
    """An estimate of a diagonal.

    Attributes:
        values: The estimates (n,), float64.
        stderr: Their standard errors (n,); 0 where exact.
        num_probes: Random probes they rest on; 0 where they are exact.
    """

    values: Tensor
    stderr: Tensor
    num_probes: int

    def columns(self) -> Columns:
        """Return value and standard error of each entry."""
        return {"value": self.values.tolist(), "stderr": self.stderr.tolist()}

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (diagonal_picture(self),)


@carries_self_test
@full_precision()
def diagonal(
    operator: LinearOperator,
    *,
    num_products: int,
    tolerance: float | None = None,
    seed: int = 0,
    batch: int = BATCH,
    progress: ProgressCallback | None = None,
) -> DiagonalEstimate:
    """Estimate the diagonal of a square operator by Hutchinson's method.

    Use it for preconditioners and per-parameter curvature. The error of entry i is the norm of the
    rest of its row over √probes: a matrix near its diagonal needs few probes, others many. From
    `num_products` = n on, the unit vectors are multiplied and the answer is exact.

    Cost: `num_products` products or, with a tolerance, as many as it takes up to that.

    Args:
        operator: Square operator A.
        num_products: Products to spend, 2 or more.
        tolerance: Stop once ‖stderr‖ is at most this fraction of ‖values‖, after 10 probes or more.
            None spends the whole budget.
        seed: Fixes the probes.
        batch: Probes multiplied at a time.
        progress: Called after each batch.

    Returns:
        The diagonal with a standard error for each entry. If a tolerance was given and not reached,
        its status says so, and a `ConvergenceWarning` is issued.

    Raises:
        WrongTypeError: If the operator is none.
        ShapeError: If it is not square.
        InvalidArgumentError: If a number is out of range.
        NonFiniteError: If a product is NaN or infinite.

    Examples:
        >>> from eigenscape.operator import Dense
        >>> A = Dense(torch.tensor([[2.0, 1.0], [1.0, 3.0]]))
        >>> diagonal(A, num_products=2).values.tolist()
        [2.0, 3.0]

    References:
        Bekas, Kokiopoulou, Saad, "An estimator for the diagonal of a matrix", 2007.
    """
    n = require_square(operator, "diagonal(operator)")
    require_count(num_products, "diagonal(num_products=...)", at_least=min(2, n))
    require_count(batch, "diagonal(batch=...)")
    require_count(seed, "diagonal(seed=...)", at_least=0)
    if tolerance is not None:
        require_positive(tolerance, "diagonal(tolerance=...)")
    scaled = InUnits(operator)
    ticker = Ticker(progress, "diagonal", min(num_products, n))
    if num_products >= n:
        values = torch.cat([*diagonal_entries(scaled, "diagonal", batch, ticker)]) * scaled.unit
        status = Status(True, f"Exact: {num_products} products allow all {n} unit vectors.")
        return DiagonalEstimate(status, n + scaled.looks, seed, values, torch.zeros_like(values), 0)
    moments, goal = Moments(), Goal(tolerance)
    while moments.count < num_products:
        size = min(batch, num_products - moments.count)
        V = draw_probes(operator, size, seed=seed, first=moments.count)
        moments.add(V * multiply(scaled, V, "diagonal", batch=batch))
        ticker.tick(moments.count)
        if tolerance is not None and goal.reached(*_sizes(moments), moments.count):
            break
    status = _status(moments, goal, scaled.unit).warn()
    return DiagonalEstimate(
        status,
        moments.count + scaled.looks,
        seed,
        moments.mean * scaled.unit,
        moments.stderr * scaled.unit,
        moments.count,
    )


def _sizes(moments: Moments) -> tuple[float, float]:
    """Return the norms of the entries and of their standard errors."""
    return float(moments.mean.norm()), float(moments.stderr.norm())


def _status(moments: Moments, goal: Goal, unit: float) -> Status:
    size, error = _sizes(moments)
    return goal.met(size, error, moments.count, moments.count) or Status(
        False,
        f"The standard errors have norm {error * unit:.2e}, above {goal.tolerance:.1e} · "
        f"{size * unit:.2e}, after {moments.count} products. Raise `tolerance=` or "
        "`num_products=`; the error falls like 1/√products.",
    )
