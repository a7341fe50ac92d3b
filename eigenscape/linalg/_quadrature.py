"""What the nodes and weights of Lanczos say about a spectrum, and how far they can be wrong.

Letters: A the operator, of size n; p probes v uniform on the unit sphere, m Lanczos steps each;
θ nodes, ω weights, ρ residuals (p, m); f a function; t a point.

Two errors are told apart. *Sampling*: for a symmetric matrix F = f(A), vᵀFv has the variance
2/(n + 2) · (tr F²/n − (tr F/n)²), and as vᵀF²v is known as well as vᵀFv, its size needs no second
probe (see `_few_samples` for why that is better than the spread of a few). *Resolution*: all
measures with the same 2m + 1 moments may be that of v, and one of them has a node at t. Its weights
below t, and those up to t, enclose what every such measure has there (Chebyshev, Markov,
Stieltjes). For a smooth f, another one of them tells what the nodes lose.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.linalg._few_samples import widening
from eigenscape.linalg._products import unit_of

# A node to be put nearer to an old one than this would push the last entry out of all proportion.
_FARTHEST = 1e6
_EPS = torch.finfo(torch.float64).eps
_NOTHING = 1e-12  # a weight that is rounding


@dataclass(frozen=True)
class Rule:
    """Nodes and weights of all probes, and what they say about sums over eigenvalues.

    Attributes:
        nodes: θ (p, m).
        weights: ω (p, m).
        residuals: ρ (p, m); None where the nodes are all eigenvalues there are.
        size: How many eigenvalues the operator has.
        deflated: How many of them were taken out before.
    """

    nodes: Tensor
    weights: Tensor
    residuals: Tensor | None
    size: int
    deflated: int

    def share(self, low: float, high: float) -> tuple[float, float]:
        """Return which part of the eigenvalues left lies in (low, high], with its error."""
        if self.residuals is None:
            inside = (self.nodes > low) & (self.nodes <= high)
            return float((self.weights * inside).sum(1).mean()), 0.0
        ends = [shares_up_to(self.nodes, self.weights, self.residuals, end) for end in (low, high)]
        (below_low, up_to_low), (below_high, up_to_high) = ends
        least = (below_high - up_to_low).clamp_min(0.0).mean()
        most = (up_to_high - below_low).clamp_max(1.0).mean()
        # A share's spread is largest at one half: take the worst that is possible.
        share = least.clamp_min(0.5).minimum(most).clamp_min(least)[None]
        sampling = sampling_error(share, share, share, self.size - self.deflated, len(self.nodes))
        # Two standard errors reach the ends of what is possible.
        return float(least + most) / 2, float(sampling + (most - least) / 4)

    def mean(self, function: Callable[[Tensor], Tensor], degree: int) -> tuple[float, float]:
        """Return (1/n) Σ f(λ) over what was not deflated, with its error; f of a degree."""
        share = 1.0 - self.deflated / self.size
        values = function(self.nodes)
        first, second, fourth = ((self.weights * values**power).sum(1) for power in (1, 2, 4))
        mean = first.mean()
        error = torch.zeros(())
        if self.residuals is not None:
            error = sampling_error(
                first, second, fourth, self.size - self.deflated, len(self.nodes)
            )
            if degree >= 2 * self.nodes.shape[1]:
                nodes, weights = next_rule(self.nodes, self.weights, self.residuals)
                error = error + ((weights * function(nodes)).sum(1).mean() - mean).abs()
        return float(mean) * share, float(error) * share

    def curve(
        self, points: Tensor, sigma: float, scale: str, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        """Return the Gaussian-smoothed density and its standard error at points (K,) of an axis."""
        height = (1.0 - self.deflated / self.size) / (sigma * math.sqrt(2 * math.pi))

        sums = [
            _smoothed(points, on_axis(theta, scale, epsilon), omega, sigma)
            for theta, omega in zip(self.nodes, self.weights, strict=True)
        ]
        first, second, fourth = (torch.stack(moment) for moment in zip(*sums, strict=True))
        density = first.mean(0)
        if self.residuals is None:
            return density * height, torch.zeros_like(density)
        error = sampling_error(first, second, fourth, self.size - self.deflated, len(first))
        others = [
            _smoothed(points, on_axis(theta, scale, epsilon), omega, sigma)[0]
            for theta, omega in zip(
                *next_rule(self.nodes, self.weights, self.residuals), strict=True
            )
        ]
        resolution = (torch.stack(others).mean(0) - density).abs()
        # Where the curve shows less than what could lie at this very point, that may be missing.
        rule = self.nodes, self.weights, self.residuals
        if scale == "linear":
            hidden = largest_atoms(*rule, points)
        else:
            sizes = (points.exp() - epsilon).clamp_min(0.0)
            hidden = largest_atoms(*rule, sizes) + largest_atoms(*rule, -sizes)
        resolution = torch.maximum(resolution, hidden.mean(0) - density)
        return density * height, (error + resolution) * height


def _smoothed(
    points: Tensor, nodes: Tensor, weights: Tensor, sigma: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σ ω g, Σ ω g², Σ ω g⁴ at points (K,), g the kernel of height 1 at each node."""
    kernel = torch.exp(-0.5 * ((points[:, None] - nodes) / sigma).square())
    squares = kernel.square()
    return kernel @ weights, squares @ weights, squares.square() @ weights


def on_axis(eigenvalues: Tensor, scale: str, epsilon: float) -> Tensor:
    """Return eigenvalues as places on a linear or logarithmic axis."""
    return eigenvalues if scale == "linear" else (eigenvalues.abs() + epsilon).log()


def sampling_error(
    first: Tensor, second: Tensor, fourth: Tensor, size: int, num_probes: int
) -> Tensor:
    """Return the standard error of the mean of vᵀFv over probes.

    Args:
        first: vᵀFv (p, ...), or one row with the mean over probes.
        second: vᵀF²v, alike.
        fourth: vᵀF⁴v, alike.
        size: n.
        num_probes: p.

    Returns:
        Standard errors (...), widened for so few probes as see so few eigenvalues.
    """
    p = num_probes
    mean, square, quartic = first.mean(0), second.mean(0), fourth.mean(0)
    spread = (square - mean.square()).clamp_min(0.0) * 2.0 / (size + 2)
    # The mean's own error is in its square: 1 − 2/(p (n + 2)) of the spread is left.
    variance = spread / (p - 2.0 / (size + 2))
    # How many eigenvalues the form effectively averages over.
    effective_rank = torch.where(quartic > 0, size * square.square() / quartic, 1.0)
    return variance.sqrt() * widening(p * effective_rank.clamp_min(1.0))


def next_rule(nodes: Tensor, weights: Tensor, residuals: Tensor) -> tuple[Tensor, Tensor]:
    """Return nodes and weights (p, m + 1) of a rule that Lanczos cannot tell from its own.

    Its new nodes lie between the old ones: it is what one more step would give, were it like the
    last one.
    """
    unit = _unit(nodes)
    nodes, residuals = nodes / unit, residuals / unit
    squares = residuals.square()
    total = squares.sum(1)
    last = torch.where(total > 0, (squares * nodes).sum(1) / total, 0.0)
    others, shares = _with_last(nodes, weights, residuals, last)
    return others * unit, shares


def shares_up_to(
    nodes: Tensor, weights: Tensor, residuals: Tensor, point: float
) -> tuple[Tensor, Tensor]:
    """Return the least and the largest weight (p,) that eigenvalues up to a point can have."""
    p = nodes.shape[0]
    if math.isinf(point):
        certain = torch.full((p,), float(point > 0), dtype=torch.float64)
        return certain, certain
    unit = _unit(nodes)
    nodes, residuals = nodes / unit, residuals / unit
    size = float(nodes.abs().max())
    # An eigenvalue at the point itself is one up to it, whatever rounding made of it.
    t = point / unit + 16 * _EPS * size
    gaps = nodes - t
    pulls = torch.where(residuals > 0, residuals.square() / gaps, 0.0)
    last = t + pulls.sum(1).nan_to_num(math.inf, math.inf, -math.inf)
    last = last.clamp(-_FARTHEST * size, _FARTHEST * size)
    others, shares = _with_last(nodes, weights, residuals, last)
    # Where nothing is left of the residuals all nodes are eigenvalues, and no other can be.
    at = (others - t).abs().argmin(1, keepdim=True)
    node = others.gather(1, at)
    below = (shares * (others < node)).sum(1)
    known = residuals.amax(1) <= 16 * _EPS * size
    sure = (weights * (nodes <= t)).sum(1)
    up_to = below + shares.gather(1, at)[:, 0]
    both = torch.stack([torch.where(known, sure, below), torch.where(known, sure, up_to)])
    both = torch.where(both < _NOTHING, 0.0, both)
    least, most = torch.where(both > 1.0 - _NOTHING, 1.0, both)
    return least, most


def largest_atoms(nodes: Tensor, weights: Tensor, residuals: Tensor, points: Tensor) -> Tensor:
    """Return the largest weight that a single eigenvalue can have at each of K points (p, K).

    It is that of the new node of the rule that has one there.
    """
    unit = _unit(nodes)
    least = _EPS * float(nodes.abs().max()) / unit
    coupling = _signed(nodes, residuals) / unit
    atoms = []
    for theta, omega, rho in zip(nodes / unit, weights, coupling, strict=True):
        gaps = points[:, None] / unit - theta
        gaps = torch.where(gaps.abs() < least, least, gaps) if least > 0 else gaps + 1.0
        pulls = rho / gaps
        first = pulls @ omega.clamp_min(0.0).sqrt()
        atoms.append(first.square() / (1.0 + pulls.square().sum(1)))
    return torch.stack(atoms)


def _signed(nodes: Tensor, residuals: Tensor) -> Tensor:
    """Return how eigenvectors of the tridiagonal matrices, first entry positive, couple onwards.

    Their last entries have alternating signs in ascending order of the nodes.
    """
    rank = nodes.argsort(1).argsort(1)
    return residuals * (1.0 - 2.0 * ((nodes.shape[1] - 1 - rank) % 2))


def _with_last(
    nodes: Tensor, weights: Tensor, residuals: Tensor, last: Tensor
) -> tuple[Tensor, Tensor]:
    """Extend the tridiagonal matrices by one more diagonal entry each (p,); return their rules.

    In the basis of its eigenvectors the old matrix is diagonal, and couples to the new entry.

    Returns:
        The new nodes and weights (p, m + 1).
    """
    m = nodes.shape[1]
    coupling = _signed(nodes, residuals)
    matrices = torch.diag_embed(torch.cat([nodes, last[:, None]], 1))
    matrices[:, :m, m] = matrices[:, m, :m] = coupling
    values, vectors = torch.linalg.eigh(matrices)
    firsts = (vectors[:, :m] * weights.clamp_min(0.0).sqrt()[:, :, None]).sum(1)
    return values, firsts.square()


def _unit(nodes: Tensor) -> float:
    return unit_of(float(nodes.abs().max()))
