"""Sums over a spectrum with powers that neither overflow nor vanish.

Letters: λ nodes and γ weights of the gradient's spectral measure, gᵀ p(H) g = Σ γ p(λ); on an
eigenbasis γ_i = (λ_i c_i)². η the step size, t the number of steps. After t steps the slope of the
loss in η is −t Σ γ (1 − ηλ)^(2t−1).
"""

import torch
from scipy.optimize import brentq
from torch import Tensor

_SCAN = 2000


def scaled_powers(nodes: Tensor, step_sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Return v = (1 − ηλ)/s (k, d) and s = max |1 − ηλ| (k,); v is 0 where s is."""
    factors = 1 - step_sizes[:, None] * nodes
    scale = factors.abs().amax(1)
    return factors / torch.where(scale > 0, scale, 1.0)[:, None], scale


def slopes(nodes: Tensor, weights: Tensor, step_sizes: Tensor, num_steps: int) -> Tensor:
    """Return −Σ γ v^(2t−1) (k,): the slope's sign, with a size that stays of order one."""
    v, _ = scaled_powers(nodes, step_sizes)
    return -(weights * v ** (2 * num_steps - 1)).sum(1)


def first_root(nodes: Tensor, weights: Tensor, num_steps: int) -> float | None:
    """Return the least η > 0 where the slope is no longer negative.

    Without negative nodes it is the only one. With them, the loss may fall without end; the first
    minimum is looked for on a grid, up to ten times where it would be without them.

    Args:
        nodes: λ (d,), float64.
        weights: γ (d,), not negative.
        num_steps: t.

    Returns:
        The step size, or None where there is none.
    """
    top = float(nodes.max())
    if top <= 0:
        return None

    def slope(eta: float) -> float:
        value = slopes(nodes, weights, torch.tensor([eta], dtype=torch.float64), num_steps)
        return float(value)

    # At 1/λ_max no factor is negative; at the end the largest node outweighs all others together.
    share = float(weights.sum() / weights[nodes.argmax()].clamp_min(1e-300))
    least, most = 1 / top, float(1 + share ** (1 / (2 * num_steps - 1))) / top
    if slope(least) >= 0:
        return least
    if bool((nodes < 0).any()):
        grid = torch.linspace(least, 10 * most, _SCAN, dtype=torch.float64)
        risen = (slopes(nodes, weights, grid, num_steps) >= 0).nonzero()
        if not len(risen):
            return None
        place = int(risen[0])
        least, most = float(grid[place - 1]), float(grid[place])
    if slope(most) <= 0:  # equal but for rounding
        return most
    return float(brentq(slope, least, most, xtol=1e-14 * most, rtol=1e-14))


def changes(nodes: Tensor, weights: Tensor, step_sizes: Tensor, num_steps: int) -> Tensor:
    """Return ½ Σ γ ((1 − ηλ)^(2t) − 1)/λ (k,): how the loss changes in t steps; λ of any sign."""
    x = step_sizes[:, None] * nodes
    logs = torch.where(x < 1, torch.log1p(-x.clamp_max(1.0)), torch.log((x - 1).clamp_min(0.0)))
    gained = torch.expm1(2 * num_steps * logs)
    flat = nodes == 0
    ratio = torch.where(flat, -2 * num_steps * step_sizes[:, None], gained / nodes)
    return 0.5 * (weights * ratio).sum(1)
