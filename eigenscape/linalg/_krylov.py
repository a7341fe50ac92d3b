"""The recurrences of conjugate gradients and MINRES, for many right-hand sides at once.

Letters: M = A + δI the symmetric matrix; R right-hand sides, here always residuals to be removed;
x the correction found. CG: p direction, ρ = rᵀr, c = pᵀMp curvature. MINRES: v Lanczos vectors with
Mv_j = β_j v_{j−1} + α_j v_j + β_{j+1} v_{j+1}; (c, s) the plane rotation that makes the tridiagonal
matrix triangular, with entries ε, δ, γ in each column; φ the rotated right-hand side, |φ̄| the norm
of the residual; w directions.

Every array has one column per right-hand side that is still running; a column that ends is copied
out and cut off, and is multiplied no more.
"""

from enum import Enum

import torch
from torch import Tensor

from eigenscape.linalg._products import multiply
from eigenscape.linalg._units import InUnits
from eigenscape.progress import Ticker

# MINRES takes a column for inconsistent when its residual r has ‖Mr‖ below this part of ‖M‖‖r‖: no
# step can then shorten it. In floating point a least-squares residual gets no further than about
# √eps (measured: 1e-9 to 1e-11), after which x grows without bound. Float32 products are noisier.
_NULL = 2.0**-26
_NULL_ROUNDINGS = 256


class Ending(Enum):
    """Why the iteration of a column ended."""

    REACHED = "the recurrence's residual is small enough"
    CURVATURE = "non-positive curvature"
    OUTSIDE = "the rest lies in the null space"
    BUDGET = "the products are spent"
    STALLED = "the true residual no longer falls"


class Problem:
    """The matrix A + δI with a budget of products, which it counts."""

    def __init__(
        self, operator: InUnits, damping: float, max_products: int, ticker: Ticker
    ) -> None:
        self.operator = operator
        self.spent = 0
        self.eps = torch.finfo(operator.dtype).eps
        self._damping, self._max_products, self._ticker = damping, max_products, ticker

    @property
    def left(self) -> int:
        """Products that may still be spent."""
        return self._max_products - self.spent

    def multiply(self, X: Tensor) -> Tensor:
        """Return (A + δI) X in float64, in the operator's unit."""
        Y = multiply(self.operator, X, "solve", batch=X.shape[1])
        self.spent += X.shape[1]
        self._ticker.tick(self.spent)
        return Y.add_(X, alpha=self._damping / self.operator.unit)

    def multiply_rounded(self, X: Tensor) -> Tensor:
        """Return (A + δI) X for X as it will be handed out, in the operator's dtype."""
        return self.multiply(X.to(self.operator.dtype).to(torch.float64))


class _Columns:
    """Results of all columns, and the numbers of those that still run."""

    def __init__(self, R: Tensor) -> None:
        self.x = torch.zeros_like(R)
        self.endings = [Ending.BUDGET] * R.shape[1]
        self.running = torch.arange(R.shape[1], device=R.device)

    def end(self, which: Tensor, x: Tensor, reason: Ending) -> None:
        """Store the columns in the mask `which` with their reason, without cutting them off."""
        self.x[:, self.running[which]] = x[:, which]
        for number in self.running[which].tolist():
            self.endings[number] = reason


def run_cg(problem: Problem, R: Tensor, targets: Tensor) -> tuple[Tensor, list[Ending]]:
    """Run conjugate gradients from zero until each ‖r‖ is at most its target.

    Args:
        problem: The matrix; one product per column of its budget is left unspent, for the residual
            that certifies it.
        R: Right-hand sides, none of them zero.
        targets: Residual norm to reach, for each column.

    Returns:
        The corrections, and why each column ended.
    """
    columns, reserve = _Columns(R), R.shape[1]
    r, p, x = R.clone(), R.clone(), torch.zeros_like(R)
    rho = (r * r).sum(0)
    while len(columns.running) and problem.left >= len(columns.running) + reserve:
        Mp = problem.multiply(p)
        curvature = (p * Mp).sum(0)
        positive = curvature > problem.eps * p.norm(dim=0) * Mp.norm(dim=0)
        step = torch.where(positive, rho / torch.where(positive, curvature, 1.0), 0.0)
        x, r = x + step * p, r - step * Mp
        before, rho = rho, (r * r).sum(0)
        reached = positive & (rho.sqrt() <= targets)
        columns.end(~positive, x, Ending.CURVATURE)
        columns.end(reached, x, Ending.REACHED)
        go = positive & ~reached
        p = r + p * (rho / before)
        x, r, p, rho, targets = x[:, go], r[:, go], p[:, go], rho[go], targets[go]
        columns.running = columns.running[go]
    columns.x[:, columns.running] = x
    return columns.x, columns.endings


def run_minres(problem: Problem, R: Tensor, targets: Tensor) -> tuple[Tensor, list[Ending]]:
    """Run MINRES from zero until each ‖r‖ is at most its target. See `run_cg`."""
    columns, reserve = _Columns(R), R.shape[1]
    threshold = max(_NULL, _NULL_ROUNDINGS * problem.eps)
    length = R.norm(dim=0)
    x, v = torch.zeros_like(R), R / length
    v_before, w, w_before = (torch.zeros_like(R) for _ in range(3))
    # Rows: β of this step, the last two rotations, φ̄, the largest column norm of T so far.
    zero, one = torch.zeros_like(length), torch.ones_like(length)
    beta, c, s, c_before, s_before, phi, size = zero, one, zero, one, zero, length, zero
    while len(columns.running) and problem.left >= len(columns.running) + reserve:
        u = problem.multiply(v) - beta * v_before
        alpha = (u * v).sum(0)
        u = u - alpha * v
        beta_next = u.norm(dim=0)
        size = torch.maximum(size, (alpha**2 + beta**2 + beta_next**2).sqrt())
        # The two rotations before this one act on the new column (β, α, β_next) of T.
        epsilon, middle = s_before * beta, c_before * beta
        delta, gamma_bar = c * middle + s * alpha, c * alpha - s * middle
        # ‖M r‖ = |φ̄| ‖(γ̄, c β_next)‖ for the residual r before this step.
        null = torch.hypot(gamma_bar, c * beta_next) <= threshold * size
        gamma = torch.hypot(gamma_bar, beta_next)
        gamma = torch.where(null, 1.0, gamma)
        c_before, s_before, c, s = c, s, gamma_bar / gamma, beta_next / gamma
        w, w_before = (v - delta * w - epsilon * w_before) / gamma, w
        x = x + torch.where(null, 0.0, c * phi) * w
        phi = -s * phi
        reached = ~null & (phi.abs() <= targets)
        columns.end(null, x, Ending.OUTSIDE)
        columns.end(reached, x, Ending.REACHED)
        go = ~(null | reached)
        # β_next = 0 ends the Krylov space: then s = 0, φ̄ = 0, and the column has been reached.
        v, v_before, beta = u / torch.where(beta_next > 0, beta_next, 1.0), v, beta_next
        x, v, v_before, w, w_before = (a[:, go] for a in (x, v, v_before, w, w_before))
        beta, c, s, c_before, s_before, phi, size, targets = (
            a[go] for a in (beta, c, s, c_before, s_before, phi, size, targets)
        )
        columns.running = columns.running[go]
    columns.x[:, columns.running] = x
    return columns.x, columns.endings
