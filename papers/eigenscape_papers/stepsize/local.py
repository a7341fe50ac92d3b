"""The best step size for the next t steps of gradient descent on your own network.

Letters: g the gradient and H the Hessian (or another curvature matrix) where the network stands;
the local model is gᵀδ + ½ δᵀHδ. After t steps of size η it has changed by
½ gᵀ p(H) g with p(λ) = ((1 − ηλ)^(2t) − 1)/λ, a polynomial of degree 2t − 1. Lanczos started at g
gives gᵀ p(H) g exactly after t products, and closely after fewer: λ nodes, γ weights.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from eigenscape.device import eigh, full_precision
from eigenscape.errors import (
    InvalidArgumentError,
    NonFiniteError,
    ShapeError,
    require_count,
    require_positive,
)
from eigenscape.linalg import LanczosRun, certify, lanczos
from eigenscape.operator import LinearOperator, require_operator
from eigenscape.records import Columns, ProgressCallback, Record, Status
from eigenscape.risk import EmpiricalRisk
from eigenscape_papers.stepsize._checks import step_sizes_of
from eigenscape_papers.stepsize._measure import changes, first_root

# Where negative curvature makes more of the change than this, a quadratic model tells nothing.
_MOST_FALLING = 0.5
# How far a product and the sums after it may be off, in roundings of ‖H‖: 0.6 at most were missing
# in 2500 matrices of 2 to 30 rows, held against eigenvalues in twice the precision.
_ROUNDINGS = 4


@dataclass(frozen=True, eq=False)
class StepSize(Record):
    """The step size that the local quadratic model asks for.

    Attributes:
        step_size: η*, the first minimum of the model's value after t steps; NaN if there is none,
            or none of use, because the model falls without end.
        error: Estimate of its error, from how it moved as products were added; 0 where it is exact
            but for rounding, and infinite where there is no η*. Of 576 spectra that were tried with
            fewer products than steps, η* was within it in 96 of 100, and within 2.2 times it in
            all. A sharp direction in which the gradient has next to no part is in no estimate.
        num_steps: t.
        change: What the model says the loss changes by in t steps of η*; NaN where there is none.
        stable: 2/λ_max, above which the model's steps grow.
        stable_change: The change in t steps of 1/λ_max, the usual choice.
        largest: λ_max as seen from the gradient, the largest Ritz value.
        largest_residual: ‖Hv − λ_max v‖ of its Ritz vector v, from one real product, and a few
            roundings of the dtype: an eigenvalue is within this of it.
        smallest: The smallest Ritz value; negative where the model falls without end.
        gradient_norm: ‖g‖.
        nodes: λ (m,), float64.
        weights: γ (m,), float64; they add up to ‖g‖².
    """

    step_size: float
    error: float
    num_steps: int
    change: float
    stable: float
    stable_change: float
    largest: float
    largest_residual: float
    smallest: float
    gradient_norm: float
    nodes: Tensor
    weights: Tensor

    def change_after(self, step_sizes: float | Tensor) -> Tensor:
        """Return what the model says the loss changes by in t steps of other sizes.

        Args:
            step_sizes: η, one or (k,).

        Returns:
            The changes (k,).

        Raises:
            InvalidArgumentError: If a step size is negative.
        """
        eta = step_sizes_of(step_sizes, "StepSize.change_after(step_sizes)")
        return changes(self.nodes, self.weights, eta, self.num_steps)

    def columns(self) -> Columns:
        """Return a row for each step size compared; without η*, the ends of the spectrum alone."""
        if math.isnan(self.step_size):
            return {"λ_max": [self.largest], "λ_min": [self.smallest]}
        return {
            "step size": ["best for t steps", "1/λ_max", "2/λ_max"],
            "η": [self.step_size, self.stable / 2, self.stable],
            "change of the model": [
                self.change,
                self.stable_change,
                float(self.change_after(self.stable)),
            ],
        }


def best_step_size(
    operator: LinearOperator,
    gradient: Tensor,
    *,
    num_steps: int,
    num_products: int | None = None,
    progress: ProgressCallback | None = None,
) -> StepSize:
    """Find the one step size that lowers the local quadratic model most in t steps.

    Cost: `num_products` products and memory for as many vectors, and one product more, which
    certifies λ_max.

    Args:
        operator: Curvature H, symmetric: `Hessian(risk)`, or `GaussNewton(risk)` for a model that
            cannot fall without end.
        gradient: g (n,), as from `risk.gradient()`.
        num_steps: t. With 1 it is the exact line search gᵀg / gᵀHg.
        num_products: Lanczos steps; t or more give the exact answer. By default t, but 20 at least,
            for the sake of λ_max, and 40 at most.
        progress: Called after each Lanczos step.

    Returns:
        The step size, with an error estimate, beside 2/λ_max. All products are counted.

    Raises:
        ShapeError: If the gradient does not fit the operator.
        InvalidArgumentError: If a number is out of range or the gradient is zero.
        NonFiniteError: If the gradient is not finite.

    Examples:
        >>> from eigenscape.operator import Dense
        >>> H = Dense(torch.diag(torch.tensor([1.0, 3.0], dtype=torch.float64)))
        >>> found = best_step_size(H, torch.tensor([3.0, 3.0], dtype=torch.float64), num_steps=1)
        >>> round(found.step_size, 9), round(found.change, 9)  # 18/(9 + 27), −½ · 18²/36
        (0.5, -4.5)
    """
    call = "best_step_size"
    require_operator(operator, f"{call}(operator)")
    t = require_count(num_steps, f"{call}(num_steps=...)")
    m = min(max(t, 20), 40) if num_products is None else num_products
    m = require_count(m, f"{call}(num_products=...)")
    norm = _norm_of(gradient, operator.space.size)
    run = lanczos(operator, num_steps=m, start=gradient, progress=progress)
    nodes, weights = _measure(run, norm)
    root = _useful_root(nodes, weights, t)
    exact = run.alphas.shape[1] >= t or bool((run.betas[0] == 0).any())
    error = 0.0 if exact and root is not None else _error(run, norm, t, root)
    largest = float(nodes.max())
    residual, num_products = _certificate(operator, run, nodes)
    stable = 2 / largest if largest > 0 else math.inf
    both = torch.tensor([math.nan if root is None else root, stable / 2], dtype=torch.float64)
    change, usual = changes(nodes, weights, both, t).tolist()
    return StepSize(
        status=_status(root, error, t, nodes).warn(),
        num_products=num_products,
        seed=0,
        step_size=math.nan if root is None else root,
        error=error,
        num_steps=t,
        change=change,
        stable=stable,
        stable_change=usual,
        largest=largest,
        largest_residual=residual,
        smallest=float(nodes.min()),
        gradient_norm=norm,
        nodes=nodes,
        weights=weights,
    )


def loss_after(risk: EmpiricalRisk, step_size: float, *, num_steps: int) -> float:
    """Take steps of full-batch gradient descent on the network itself, and put it back.

    Cost: `num_steps` gradients.

    Args:
        risk: The loss of a network.
        step_size: η.
        num_steps: t.

    Returns:
        The loss after the steps; infinite where it is no longer finite on the way.

    Raises:
        InvalidArgumentError: If a number is out of range.

    Examples:
        >>> from eigenscape.risk.losses import SquaredError
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> with torch.no_grad(): _ = model.weight.fill_(3.0)
        >>> risk = EmpiricalRisk(model, SquaredError(), (torch.ones(2, 1), torch.zeros(2, 1)))
        >>> loss_after(risk, 0.5, num_steps=1), model.weight.item()  # ½(3/2)²
        (1.125, 3.0)
    """
    eta = require_positive(step_size, "loss_after(step_size)")
    t = require_count(num_steps, "loss_after(num_steps=...)")
    before = {name: tensor.detach().clone() for name, tensor in risk.parameters().items()}
    try:
        for _ in range(t):
            for name, gradient in risk.space.unflatten(risk.gradient()).items():
                risk.parameters()[name].sub_(eta * gradient)
        return risk.value()
    except NonFiniteError:
        return math.inf
    finally:
        for name, tensor in before.items():
            risk.parameters()[name].copy_(tensor)


def _norm_of(gradient: Tensor, size: int) -> float:
    """Return ‖g‖ of a gradient that fits."""
    if not isinstance(gradient, Tensor) or tuple(gradient.shape) != (size,):
        raise ShapeError(
            f"`best_step_size(gradient)` must be a tensor ({size},), as `risk.gradient()` is; got "
            f"{tuple(getattr(gradient, 'shape', ()))}."
        )
    norm = float(gradient.double().norm())
    if not math.isfinite(norm):
        raise NonFiniteError("`best_step_size(gradient)` has entries that are NaN or infinite.")
    if norm == 0:
        raise InvalidArgumentError(
            "`best_step_size(gradient)` is zero: gradient descent stays where it is."
        )
    return norm


def _measure(run: LanczosRun, norm: float) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of gᵀ f(H) g; steps after the end of the space have no weight."""
    nodes, weights = run.quadrature()
    kept = weights[0] > 0
    return nodes[0, kept], norm**2 * weights[0, kept]


@full_precision()
def _certificate(operator: LinearOperator, run: LanczosRun, nodes: Tensor) -> tuple[float, int]:
    """Return ‖Hv − λ_max v‖ for the Ritz vector of λ_max, and the products spent in all.

    β_m times the last entry of the tridiagonal matrix's eigenvector would cost nothing, but it is
    the residual of a run without rounding: in float32 it falls to 1e-27 where λ_max is 1e-8 off.
    """
    basis = cast(Tensor, run.basis)[0]  # `lanczos` keeps it where it reorthogonalises
    largest = float(nodes.max())
    ritz, vectors = eigh(torch.diag(run.alphas[0]) + torch.diag(run.betas[0, :-1], -1))
    # Steps after the end of the space have no part in the gradient, and no vector.
    off = torch.where(vectors[0] != 0, (ritz - largest).abs(), math.inf)
    v = vectors[:, int(off.argmin())].to(basis) @ basis
    pairs = certify(operator, v, rotate=False, num_products=run.num_products)
    # The pair's residual is about vᵀHv, and at right angles to v. The product itself is rounded.
    residual = math.hypot(float(pairs.residuals[0]), largest - float(pairs.values[0]))
    rounding = torch.finfo(operator.dtype).eps * float(nodes.abs().max())
    return residual + _ROUNDINGS * rounding, pairs.num_products


def _useful_root(nodes: Tensor, weights: Tensor, t: int) -> float | None:
    """Return η*, or None where negative curvature makes most of what the model promises."""
    root, down = first_root(nodes, weights, t), nodes < 0
    # One step is a line search, along which the model is a parabola that opens upward.
    if root is None or t == 1 or not bool(down.any()):
        return root
    eta = torch.tensor([root], dtype=torch.float64)
    falling = changes(nodes[down], weights[down], eta, t) / changes(nodes, weights, eta, t)
    # Both may be infinite: then the ratio is NaN, and compares as false.
    return root if float(falling) <= _MOST_FALLING else None


def _error(run: LanczosRun, norm: float, t: int, root: float | None) -> float:
    """Return how far η* was at the most with half of the products, or more but not all."""
    steps = run.alphas.shape[1]
    if root is None or steps == 1:
        return math.inf
    furthest = 0.0
    for fewer in range(max(1, steps // 2), steps):
        shorter = dataclasses.replace(
            run, alphas=run.alphas[:, :fewer], betas=run.betas[:, :fewer], basis=None
        )
        before = first_root(*_measure(shorter, norm), t)
        furthest = max(furthest, math.inf if before is None else abs(root - before))
    return furthest


def _status(root: float | None, error: float, t: int, nodes: Tensor) -> Status:
    """Say what was found."""
    smallest, largest = float(nodes.min()), float(nodes.max())
    if root is None and smallest >= 0:
        return Status(
            False,
            "The local model falls without end: along the gradient there is no curvature at all. "
            "Try step sizes on the loss itself, with `loss_after`.",
        )
    if root is None:
        positive = f"outweighs the positive, up to {largest:.3g}" if largest > 0 else "is all"
        return Status(
            False,
            f"The local model falls without end: negative curvature down to {smallest:.3g} "
            f"{positive}. Use `GaussNewton(risk)` (`--matrix gauss-newton`), which has none, or "
            "fewer steps.",
        )
    if error > 0.1 * root:
        return Status(
            False,
            f"η* = {root:.4g} for t = {t} may be off by {error:.2g}. Take more products; "
            f"{t} of them make it exact.",
        )
    what = "gradient descent on the local quadratic model"
    text = f"η* = {root:.4g} for {t} step{'s' if t > 1 else ''} of {what}"
    text += "." if error == 0 else f", to about {error:.1g}."
    if smallest < 0 and t > 1:  # one step is a parabola, with one minimum
        text += (
            f" There is negative curvature ({smallest:.3g}), so that this is the first minimum "
            "and not the lowest value."
        )
    return Status(True, text)
