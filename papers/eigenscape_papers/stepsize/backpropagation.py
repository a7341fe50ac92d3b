"""The same meta-gradient by back-propagation through the steps, and where it fails.

Letters as in `quadratic.py`. Back-propagation forms f(w_t) and 1/(t f(w_t)), one of which is
exponentially large (Corollary 5.3.3): float32 ends at 10^38.
"""

import math

import torch
from torch import Tensor

from eigenscape.errors import (
    ShapeError,
    require_choice,
    require_count,
    require_not_negative,
    require_positive,
)
from eigenscape_papers.stepsize._checks import require_finite

METHODS = ("descent", "rmsprop")
_DECAY, _EPSILON = 0.9, 1e-10


def backpropagated_gradient(
    matrix: Tensor, start: Tensor, step_size: float, *, num_steps: int
) -> tuple[float, float]:
    """Return (1/t) log f(w_t) and its slope in η by unrolling, in the dtype of the matrix.

    Args:
        matrix: H (d, d).
        start: w₀ (d,).
        step_size: η.
        num_steps: t.

    Returns:
        Value and slope; infinite, NaN or 0 where the dtype does not reach.

    Raises:
        ShapeError: If matrix and start do not fit.
        InvalidArgumentError: If a number is out of range.

    Examples:
        >>> H, w = torch.diag(torch.tensor([1.0, 2.0])), torch.tensor([1.0, 1.0])
        >>> round(backpropagated_gradient(H, w, 0.5, num_steps=1)[1], 6)
        -4.0
    """
    call = "backpropagated_gradient"
    H, w = _require_pair(matrix, start, call)
    t = require_count(num_steps, f"{call}(num_steps=...)")
    eta = require_not_negative(step_size, f"{call}(step_size)")
    return _gradient(H, w, eta, t)


def _require_pair(matrix: Tensor, start: Tensor, call: str) -> tuple[Tensor, Tensor]:
    """Return H and w₀ in the dtype of H if they fit, else refuse."""
    H = require_finite(matrix, f"{call}(matrix)", ndim=2)
    w = require_finite(start, f"{call}(start)", ndim=1).to(H)
    if H.shape != (len(w), len(w)):
        raise ShapeError(
            f"`{call}` needs H ({len(w)}, {len(w)}) for a start of {len(w)} entries; got "
            f"{tuple(H.shape)}."
        )
    return H, w


def _gradient(H: Tensor, w: Tensor, step_size: float, t: int) -> tuple[float, float]:
    """Return value and slope, without checks."""
    with torch.enable_grad():
        eta = torch.tensor(step_size, dtype=H.dtype, requires_grad=True)
        for _ in range(t):
            w = w - eta * (H @ w)
        value = (0.5 * w @ (H @ w)).log() / t
        (slope,) = torch.autograd.grad(value, eta)
    return float(value.detach()), float(slope)


def backpropagated_descent(
    matrix: Tensor,
    start: Tensor,
    *,
    num_steps: int,
    step_size: float,
    method: str = "rmsprop",
    num_meta_steps: int = 1000,
    rate: float = 0.001,
) -> Tensor:
    """Meta-train η by back-propagation, as the thesis's rival does.

    A slope that is not finite leaves η where it is, as in the thesis's runs.

    Args:
        matrix: H (d, d); its dtype is that of the computation.
        start: w₀ (d,).
        num_steps: t.
        step_size: η₀.
        method: "descent" or "rmsprop" (decay 0.9).
        num_meta_steps: How many meta steps.
        rate: Meta step size.

    Returns:
        η₀ and all that follow (num_meta_steps + 1,), float64.

    Raises:
        ShapeError: If matrix and start do not fit.
        InvalidArgumentError: If a number is out of range.

    Examples:
        >>> H, w = torch.diag(torch.tensor([1.0, 3.0])), torch.tensor([3.0, 1.0])
        >>> path = backpropagated_descent(H, w, num_steps=1, step_size=0.4, num_meta_steps=300)
        >>> abs(float(path[-1]) - 0.5) < 0.01
        True
    """
    call = "backpropagated_descent"
    require_choice(method, METHODS, f"{call}(method=...)")
    H, w = _require_pair(matrix, start, call)
    t = require_count(num_steps, f"{call}(num_steps=...)")
    require_count(num_meta_steps, f"{call}(num_meta_steps=...)")
    rate = require_positive(rate, f"{call}(rate=...)")
    eta = require_positive(step_size, f"{call}(step_size=...)")
    square, path = 1.0, [eta]
    for _ in range(num_meta_steps):
        _, slope = _gradient(H, w, eta, t)
        if slope == 0.0 or not math.isfinite(slope):  # nothing will ever change
            path += [eta] * (num_meta_steps + 1 - len(path))
            break
        if method == "rmsprop":
            square = _DECAY * square + (1 - _DECAY) * slope**2
            slope /= (square + _EPSILON) ** 0.5
        eta = max(eta - rate * slope, 0.0)
        path.append(eta)
    return torch.tensor(path, dtype=torch.float64)
