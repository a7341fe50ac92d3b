"""Estimate the diagonal of an operator from random probes, with a standard error per entry.

Letters: A the operator (n × n); v a Rademacher probe; d = v ⊙ Av, whose mean is the diagonal and
whose entry i has variance Σ_{j≠i} A_ij².
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.device import full_precision
from eigenscape.errors import require_count, require_positive
from eigenscape.linalg._few_samples import Moments
from eigenscape.linalg._pictures import diagonal_picture
from eigenscape.linalg._products import (
    BATCH,
    carries_self_test,
    in_units,
    multiply,
    require_seed,
    require_square,
    unit_columns,
)
from eigenscape.linalg.probes import draw_probes
from eigenscape.operator import LinearOperator
from eigenscape.records import Columns, Picture, ProgressCallback, Record, Status, Ticker

# Before this many probes a standard error is itself too uncertain to end a run on.
_MIN_PROBES = 10


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
    require_seed(seed, "diagonal")
    if tolerance is not None:
        require_positive(tolerance, "diagonal(tolerance=...)")
    scaled = in_units(operator)
    ticker = Ticker(progress, "diagonal", min(num_products, n))
    if num_products >= n:
        values = _exact(scaled, batch, ticker) * scaled.unit
        status = Status(True, f"Exact: {num_products} products allow all {n} unit vectors.")
        return DiagonalEstimate(status, n + scaled.looks, seed, values, torch.zeros_like(values), 0)
    moments = Moments()
    while moments.count < num_products:
        size = min(batch, num_products - moments.count)
        V = draw_probes(operator, size, seed=seed, first=moments.count)
        moments.add(V * multiply(scaled, V, "diagonal", batch=batch))
        ticker.tick(moments.count)
        if tolerance is not None and _reached(moments, tolerance):
            break
    status = _status(moments, tolerance, scaled.unit).warn()
    return DiagonalEstimate(
        status,
        moments.count + scaled.looks,
        seed,
        moments.mean * scaled.unit,
        moments.stderr * scaled.unit,
        moments.count,
    )


def _exact(operator: LinearOperator, batch: int, ticker: Ticker) -> Tensor:
    n = operator.shape[0]
    values = torch.empty(n, dtype=torch.float64, device=operator.device)
    for first in range(0, n, batch):
        index = torch.arange(first, min(first + batch, n), device=operator.device)
        Y = multiply(operator, unit_columns(operator, index), "diagonal", batch=batch)
        values[index] = Y[index, torch.arange(len(index), device=operator.device)]
        ticker.tick(first + len(index))
    return values


def _reached(moments: Moments, tolerance: float) -> bool:
    if moments.count < _MIN_PROBES:
        return False
    return bool(moments.stderr.norm() <= tolerance * moments.mean.norm())


def _status(moments: Moments, tolerance: float | None, unit: float) -> Status:
    if tolerance is None:
        return Status(True, f"Spent the budget of {moments.count} products.")
    if _reached(moments, tolerance):
        return Status(True, f"Reached the tolerance with {moments.count} products.")
    error, size = (float(vector.norm()) * unit for vector in (moments.stderr, moments.mean))
    return Status(
        False,
        f"The standard errors have norm {error:.2e}, above {tolerance:.1e} · {size:.2e}, after "
        f"{moments.count} products. Raise `tolerance=` or `num_products=`; the error falls like "
        "1/√products.",
    )
