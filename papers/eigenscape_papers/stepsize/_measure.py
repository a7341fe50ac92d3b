"""Sums over a spectrum with powers that neither overflow nor vanish: they are taken by logarithms.

Letters: λ nodes and γ weights of the gradient's spectral measure, gᵀ p(H) g = Σ γ p(λ); on an
eigenbasis γ_i = (λ_i c_i)². η the step size, t the number of steps. After t steps the slope of the
loss in η is −t Σ γ (1 − ηλ)^(2t−1).
"""

import math

import torch
from scipy.optimize import brentq
from torch import Tensor

_SCAN = 2000


def log_factors(nodes: Tensor, step_sizes: Tensor) -> Tensor:
    """Return log |1 − ηλ| (k, d); −∞ where it is 0."""
    x = step_sizes[:, None] * nodes
    return torch.where(x < 1, torch.log1p(-x.clamp_max(1.0)), torch.log((x - 1).clamp_min(0.0)))


def over_largest(logs: Tensor) -> Tensor:
    """Return exp(logs) over the largest of each row (k, d); 0 where all are."""
    largest = logs.amax(1, keepdim=True)
    return torch.exp(logs - torch.where(largest > -math.inf, largest, 0.0))


def slopes(nodes: Tensor, weights: Tensor, step_sizes: Tensor, num_steps: int) -> Tensor:
    """Return −Σ γ (1 − ηλ)^(2t−1) over the largest term (k,): the slope's sign, of order one."""
    terms = over_largest(weights.log() + (2 * num_steps - 1) * log_factors(nodes, step_sizes))
    return (torch.sign(step_sizes[:, None] * nodes - 1) * terms).sum(1)


def first_root(nodes: Tensor, weights: Tensor, num_steps: int) -> float | None:
    """Return the least η > 0 where the slope is no longer negative.

    Without negative nodes it is the only one. With them, the loss may fall without end; the first
    minimum is looked for on a grid, up to ten times where it would be without them. For one step
    it is Σγ/Σγλ in any case.

    Args:
        nodes: λ (d,), float64.
        weights: γ (d,), not negative.
        num_steps: t.

    Returns:
        The step size, or None where there is none.
    """
    # Nodes of weight 0 do not enter the sum, and must not widen the bracket of the root.
    nodes, weights = nodes[weights > 0], weights[weights > 0]
    if num_steps == 1:
        curvature = float(weights @ nodes)
        return float(weights.sum()) / curvature if curvature > 0 else None
    least_node, top = float(nodes.min()), float(nodes.max())
    if top <= 0:
        return None

    def slope(log_eta: float) -> float:
        eta = torch.tensor([math.exp(log_eta)], dtype=torch.float64)
        return float(slopes(nodes, weights, eta, num_steps))

    # At 1/λ_max no factor is negative; at the end the largest node outweighs all others together,
    # or no factor is positive.
    share = float(weights.sum().log() - weights[nodes == top].sum().log())
    least = -math.log(top)
    most = least + math.log1p(math.exp(share / (2 * num_steps - 1)))
    if least_node > 0:
        most = min(most, -math.log(least_node))
    elif least_node < 0:
        grid = torch.linspace(least, most + math.log(10), _SCAN, dtype=torch.float64)
        risen = (slopes(nodes, weights, grid.exp(), num_steps) >= 0).nonzero()
        if not len(risen):
            return None
        index = int(risen[0])
        least, most = float(grid[max(index - 1, 0)]), float(grid[index])
    if slope(least) >= 0:
        return math.exp(least)
    if slope(most) <= 0:  # equal but for rounding
        return math.exp(most)
    # Along log η, since a node of little weight leaves ends that are many decades apart.
    return math.exp(brentq(slope, least, most, xtol=1e-15, rtol=1e-15, maxiter=1000))


def changes(nodes: Tensor, weights: Tensor, step_sizes: Tensor, num_steps: int) -> Tensor:
    """Return ½ Σ γ ((1 − ηλ)^(2t) − 1)/λ (k,): how the loss changes in t steps; λ of any sign."""
    gained = torch.expm1(2 * num_steps * log_factors(nodes, step_sizes))
    flat = nodes == 0
    ratio = torch.where(flat, -2 * num_steps * step_sizes[:, None], gained / nodes)
    return 0.5 * (weights * ratio).sum(1)
