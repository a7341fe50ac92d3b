"""Solve (A + δI) x = b for one or many right-hand sides, with the true residual of each.

Letters: A the symmetric operator (n × n); δ the damping; B (n, k) right-hand sides; X the
solutions; R = B − (A + δI) X. All vectors of the iteration are float64; each is rounded only to be
multiplied.

The recurrences of CG and MINRES carry a residual that drifts from the true one by rounding. So each
run is followed by one product that computes the true residual, and starts again from it where that
is above the tolerance and still falling (iterative refinement).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.device import full_precision
from eigenscape.errors import (
    InvalidArgumentError,
    NonFiniteError,
    ShapeError,
    WrongTypeError,
    require_choice,
    require_count,
    require_number,
    require_positive,
)
from eigenscape.linalg._krylov import Ending, Problem, run_cg, run_minres
from eigenscape.linalg._products import InUnits, carries_self_test, require_symmetric, unit_of_each
from eigenscape.operator import LinearOperator
from eigenscape.records import Columns, ProgressCallback, Record, Status, Ticker

METHODS = ("cg", "minres")

# A restart must at least halve the true residual; less is rounding, and would go on for ever.
_WORTHWHILE = 0.5

_TOLERANCE = 1e-8
_ROUNDINGS = 64


@dataclass(frozen=True, eq=False)
class Solution(Record):
    """Solutions of linear systems.

    Attributes:
        x: The solutions, shaped like the right-hand side, in the operator's dtype.
        residuals: ‖b − (A + δI)x‖/‖b‖ (k,), float64, each from a real product with this very x;
            k = 1 for a single right-hand side, and 0 for b = 0.
        converged: For each column, whether its residual is within the tolerance (k,).
        tolerance: The relative residual asked for.
        method: "cg" or "minres".
    """

    x: Tensor
    residuals: Tensor
    converged: Tensor
    tolerance: float
    method: str

    def columns(self) -> Columns:
        """Return one row for each right-hand side."""
        return {"residual": self.residuals.tolist(), "converged": self.converged.tolist()}


@carries_self_test
@full_precision()
def solve(
    operator: LinearOperator,
    rhs: Tensor,
    *,
    method: str = "cg",
    tolerance: float | None = None,
    max_products: int | None = None,
    damping: float = 0.0,
    start: Tensor | None = None,
    progress: ProgressCallback | None = None,
) -> Solution:
    """Solve (A + damping·I) x = b without forming A.

    Use "cg" where A + damping·I is positive definite (a Gauss-Newton matrix with damping), "minres"
    where it may be indefinite or singular (a Hessian). Columns are multiplied together; one that
    has converged is multiplied no more.

    Cost: about √κ·log(1/tolerance) products per column for CG, κ the condition number, and one or
    two more per column to certify the residual. Memory: about 4 (CG) or 7 (MINRES) float64 vectors
    per column.

    Args:
        operator: Symmetric operator A.
        rhs: Right-hand side b (n,), or k of them (n, k).
        method: "cg" or "minres".
        tolerance: Relative true residual asked for. None is 1e-8, or 64 roundings of the operator's
            dtype where that is more (8e-6 in float32).
        max_products: Products at most, all columns together; min(10 n + 10, 2000) per column if
            None.
        damping: The number δ, 0 or more for "cg", any for "minres".
        start: First guess, shaped like `rhs`; zero if None. From zero, MINRES finds the shortest
            solution of a singular consistent system.
        progress: Called after each step, in products.

    Returns:
        The solutions. For columns that did not converge, x is the best found, the status says why
        and what to do, and a `ConvergenceWarning` is issued. The seed is 0: nothing is random.

    Raises:
        WrongTypeError: If an argument is of another kind.
        NotSymmetricError: If the operator is not symmetric.
        ShapeError: If `rhs` or `start` does not fit.
        UnknownNameError: If the method is unknown.
        InvalidArgumentError: If a number is out of range.
        NonFiniteError: If `rhs`, `start` or a product is NaN or infinite.

    Examples:
        >>> from eigenscape.operator import Dense
        >>> A = Dense(torch.tensor([[2.0, 0.0], [0.0, 4.0]]))
        >>> solve(A, torch.tensor([2.0, 2.0])).x
        tensor([1.0000, 0.5000])

    References:
        Hestenes, Stiefel, "Methods of conjugate gradients for solving linear systems", 1952.
        Paige, Saunders, "Solution of sparse indefinite systems of linear equations", 1975.
    """
    n = require_symmetric(operator, "solve(operator)")
    require_choice(method, METHODS, "solve(method=...)")
    B = _require_columns(rhs, operator, None, "solve(rhs=...)")
    if tolerance is None:
        tolerance = max(_TOLERANCE, _ROUNDINGS * torch.finfo(operator.dtype).eps)
    require_positive(tolerance, "solve(tolerance=...)")
    _require_damping(damping, method)
    k = B.shape[1]
    if max_products is None:
        max_products = k * min(10 * n + 10, 2000)
    require_count(max_products, "solve(max_products=...)", at_least=2 * k)
    scaled, units = InUnits(operator, beside=damping), unit_of_each(B)
    B = B / units
    X = torch.zeros_like(B)
    if start is not None:
        X = _require_columns(start, operator, tuple(rhs.shape), "solve(start=...)") / units
    ticker = Ticker(progress, f"solve ({method})", max_products)
    problem = Problem(scaled, damping, max_products, ticker)
    X, residuals, endings = _refine(problem, B, X, method, tolerance, started=start is not None)
    status = _status(problem, residuals, endings, method, tolerance).warn()
    X = X * (units / scaled.unit)
    return Solution(
        status,
        problem.spent + scaled.looks,
        0,
        X.to(operator.dtype).reshape(rhs.shape),
        residuals,
        residuals <= tolerance,
        tolerance,
        method,
    )


def _refine(
    problem: Problem, B: Tensor, X: Tensor, method: str, tolerance: float, *, started: bool
) -> tuple[Tensor, Tensor, list[Ending]]:
    """Run the method, certify, and restart the columns for which that pays."""
    run = run_cg if method == "cg" else run_minres
    lengths = B.norm(dim=0)
    X = torch.where(lengths > 0, X, 0.0)
    best, R = X.clone(), B.clone()
    residuals = torch.where(lengths > 0, 1.0, 0.0).to(B)
    endings = [Ending.REACHED] * B.shape[1]
    live = lengths.nonzero()[:, 0]
    if started and len(live):
        # The unit u is known after this product only; a start x is xu in units of A/u.
        MX, u = problem.multiply_rounded(X[:, live]), problem.operator.unit
        X, best = X * u, best * u
        R[:, live] = B[:, live] - MX * u
        residuals[live] = R[:, live].norm(dim=0) / lengths[live]
        live = live[residuals[live] > tolerance]
    while len(live):
        # The recurrence aims at half the tolerance, so that its drift seldom costs a restart.
        correction, ends = run(problem, R[:, live], 0.5 * tolerance * lengths[live])
        X[:, live] += correction
        R[:, live] = B[:, live] - problem.multiply_rounded(X[:, live])
        true = R[:, live].norm(dim=0) / lengths[live]
        better = true < residuals[live]
        worthwhile = true < _WORTHWHILE * residuals[live]
        best[:, live[better]] = X[:, live[better]]
        residuals[live] = torch.where(better, true, residuals[live])
        again: list[int] = []
        for column, end, good, pays in zip(
            live.tolist(), ends, (true <= tolerance).tolist(), worthwhile.tolist(), strict=True
        ):
            if good:
                endings[column] = Ending.REACHED
            elif end is Ending.REACHED and pays and problem.left >= 2 * (len(again) + 1):
                again.append(column)
            else:
                stalled = end is Ending.REACHED and not pays
                out = Ending.STALLED if stalled else Ending.BUDGET
                endings[column] = out if end is Ending.REACHED else end
        live = torch.tensor(again, dtype=torch.int64, device=B.device)
    return best, residuals, endings


def _status(
    problem: Problem, residuals: Tensor, endings: list[Ending], method: str, tolerance: float
) -> Status:
    k, worst = len(residuals), float(residuals.max())
    failed = [end for end, r in zip(endings, residuals.tolist(), strict=True) if r > tolerance]
    if not failed:
        text = f"All {k} residuals are within {tolerance:.1e} after {problem.spent} products."
        return Status(True, text)
    dtype = problem.operator.dtype
    advice = {
        Ending.CURVATURE: "CG met non-positive curvature (to rounding): the operator is not "
        'positive definite. Pass method="minres", or a `damping=` that makes it so.',
        Ending.OUTSIDE: "The operator is singular, or nearly so, and part of the right-hand side "
        "lies outside its range: x has the least residual there is. Pass `damping=`.",
        Ending.BUDGET: "The budget is spent. Raise `max_products=`, the tolerance or `damping=`.",
        Ending.STALLED: f"The residual stands still at the rounding of products in {dtype}. Raise "
        "the tolerance, or use an operator in float64.",
    }
    reasons = " ".join(text for end, text in advice.items() if end in failed)
    return Status(
        False,
        f"{len(failed)} of {k} columns did not reach {tolerance:.1e} with {method} after "
        f"{problem.spent} products; the largest relative residual is {worst:.1e}. {reasons}",
    )


def _require_columns(
    vectors: Tensor, operator: LinearOperator, shape: tuple[int, ...] | None, call: str
) -> Tensor:
    """Return vectors as float64 columns, else refuse; None for the shape allows (n,) and (n, k)."""
    n = operator.shape[0]
    if not isinstance(vectors, Tensor):
        raise WrongTypeError(f"`{call}` must be a torch.Tensor; got {type(vectors).__name__}.")
    fits = vectors.ndim in (1, 2) and vectors.shape[0] == n and 0 not in vectors.shape
    if not fits or (shape is not None and tuple(vectors.shape) != shape):
        wanted = f"({n},) or ({n}, k)" if shape is None else str(shape)
        raise ShapeError(f"`{call}` must have shape {wanted}; got {tuple(vectors.shape)}.")
    if vectors.device != operator.device:
        raise ShapeError(
            f"`{call}` must be on {operator.device}; got {vectors.device}. Move it there."
        )
    if not bool(torch.isfinite(vectors).all()):
        raise NonFiniteError(f"`{call}` must be finite; got NaN or infinity. Check its origin.")
    return vectors.detach().to(torch.float64).reshape(n, -1)


def _require_damping(damping: float, method: str) -> None:
    finite = abs(require_number(damping, "solve(damping=...)")) < float("inf")
    if not finite or (method == "cg" and damping < 0):
        raise InvalidArgumentError(
            f"`solve(damping=...)` must be finite, and 0 or more for CG; got {damping}. "
            'A negative shift makes A indefinite: pass method="minres".'
        )
