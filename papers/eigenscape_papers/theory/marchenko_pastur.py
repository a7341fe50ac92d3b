"""The generalised Marchenko–Pastur law: limiting eigenvalues of weighted Gram matrices.

Letters: A = (1/N) Σ_n t_n x_n x_nᵀ (d, d) with x_n of independent entries of mean 0 and variance 1,
and weights t of either sign, distributed as ν and independent of x; γ = d/N; s(z) = ∫ 1/(x − z) the
Stieltjes transform of the limit; φ the share of weights that are not zero. In Dong's scaling
(1/N, as in (55) and not as in (37)) s = 1 / (E[t/(1 + γst)] − z). The right-hand side maps the
upper half-plane into itself for weights of any sign, so a solution there is the only one.

References: Marčenko and Pastur 1967; Silverstein and Choi 1995 for the edges; Dong, Zhang, Yao,
Sun, "Towards Quantifying the Hessian Structure of Neural Networks", (37), (55), (81).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.optimize import brentq
from torch import Tensor

from eigenscape.errors import (
    InvalidArgumentError,
    ShapeError,
    WrongTypeError,
    require_count,
    require_positive,
)
from eigenscape.records import Columns, Record, Status

# In units of the largest weight: where the continuation in Im z starts (times the norm's bound),
# how fast it falls, and how far above the axis densities are read.
_START, _FALL, _HEIGHT = 10.0, 0.25, 1e-9
_NEWTON_STEPS, _MAP_STEPS, _TOLERANCE = 30, 200, 1e-11
# Points are solved for in parts, so that points × weights stay within some 30 MB.
_PART = 2**21


@dataclass(frozen=True, eq=False)
class SpectralLaw(Record):
    """A limiting distribution of eigenvalues: a density, and perhaps an atom at zero.

    Attributes:
        points: Where the density is known (p,), ascending, inside the support's hull.
        density: The density there (p,), without the atom.
        quadrature: Weights (p,) with which sums over the points are integrals.
        zero_mass: Mass of the atom at zero.
        lower: Lower end of the density's support.
        upper: Upper end of the density's support.
        mass: The density's integral and the atom; 1 but for the error of the grid.
        residual: Largest error of the equation that the transform solves.
    """

    points: Tensor
    density: Tensor
    quadrature: Tensor
    zero_mass: float
    lower: float
    upper: float
    mass: float
    residual: float

    def columns(self) -> Columns:
        """Return one row for each point."""
        return {"point": self.points.tolist(), "density": self.density.tolist()}

    def wasserstein(self, eigenvalues: Tensor) -> float:
        """Return the Wasserstein-1 distance of the law from given eigenvalues.

        It is ∫ |F − F'| dx over the two distribution functions. The grid's law is taken as its
        points with their masses, so distances below the spacing of the points mean nothing.

        Args:
            eigenvalues: Eigenvalues of a matrix (d,), in any order.

        Returns:
            The distance, in the unit of the eigenvalues.
        """
        masses = torch.cat(
            [self.density * self.quadrature, self.density.new_tensor([self.zero_mass])]
        )
        values = eigenvalues.detach().double().cpu()
        share = torch.full_like(values, 1.0 / len(values))
        places = torch.cat([self.points, self.points.new_zeros(1), values])
        steps = torch.cat([masses / masses.sum(), -share])
        order = places.argsort()
        heights = steps[order].cumsum(0)[:-1]
        return float((heights.abs() * places[order].diff()).sum())


def stieltjes_transform(
    z: Tensor, weights: Tensor, *, ratio: float, masses: Tensor | None = None
) -> Tensor:
    """Return the Stieltjes transform of the limiting law of (1/N) Σ t_n x_n x_nᵀ (Dong (55)).

    Newton steps along a path that starts far above the real axis, where s = −1/z. Where a step
    leaves the upper half-plane the equation's own map is iterated instead, which cannot.

    Cost: about a hundred sums over the weights for each point.

    Args:
        z: Points (p,) above the real axis, complex.
        weights: The values of t (k,).
        ratio: γ = d/N.
        masses: Their probabilities (k,); equal by default.

    Returns:
        s(z) (p,), complex128.

    Raises:
        ShapeError: If weights and masses are not vectors of one length.
        InvalidArgumentError: If a point is not above the axis, or weights, masses or the ratio are
            not what they must be.
        WrongTypeError: If the ratio is not a number.

    Examples:
        All weights 1 and γ = 1: z s² + z s + 1 = 0, so s(4i) = (√(1 + i) − 1) / 2.

        >>> s = stieltjes_transform(torch.tensor([4j]), torch.ones(1), ratio=1.0)
        >>> abs(complex(s[0]) - ((1 + 1j) ** 0.5 - 1) / 2) < 1e-12
        True
    """
    t, mass, gamma = _checked("stieltjes_transform", weights, masses, ratio)
    points = z.detach().to(torch.complex128)
    if points.ndim != 1 or not bool((points.imag > 0.0).all() & points.isfinite().all()):
        raise InvalidArgumentError(
            "`stieltjes_transform(z=...)` needs a vector of finite points above the real axis."
        )
    scale = float(t.abs().max())
    s, _ = _solve(points.to(t.device) / scale, t / scale, mass, gamma)
    return s / scale


def spectral_law(
    weights: Tensor, *, ratio: float, masses: Tensor | None = None, num_points: int = 256
) -> SpectralLaw:
    """Return the limiting eigenvalue distribution of (1/N) Σ t_n x_n x_nᵀ (Dong (37), (55)).

    Ends of the support are zeros of dz/ds (found to rounding), the atom at zero is 1 − φ/γ where
    γ > φ, and the density is Im s/π just above the axis at Chebyshev points between the ends
    (and on either side of zero), so that square-root ends cost no accuracy. Gaps inside the
    support show as zeros of the density.

    Cost: some hundred sums over the weights for each point; seconds for 256 points and 2048
    weights.

    Args:
        weights: The values of t (k,), of either sign; for instance a sample of them.
        ratio: γ = d/N.
        masses: Their probabilities (k,); equal by default.
        num_points: Points of the grid.

    Returns:
        The law. Its `mass` tells how well the grid resolves it.

    Raises:
        ShapeError: If weights and masses are not vectors of one length.
        InvalidArgumentError: If weights, masses, the ratio or the count are out of range.
        WrongTypeError: If the ratio is not a number.

    Examples:
        The classical law with γ = ¼ lies between (1 ± √γ)².

        >>> law = spectral_law(torch.ones(1), ratio=0.25)
        >>> round(law.lower, 12), round(law.upper, 12), round(law.mass, 6)
        (0.25, 2.25, 1.0)
    """
    t, mass, gamma = _checked("spectral_law", weights, masses, ratio)
    require_count(num_points, "spectral_law(num_points=...)", at_least=2)
    scale = float(t.abs().max())
    t = t / scale
    lower, upper = _edges(t, mass, gamma)
    zero_mass = max(0.0, 1.0 - float(mass[t != 0.0].sum()) / gamma)
    x, quadrature = _grid(lower, upper, num_points, t)
    z = torch.complex(x, torch.full_like(x, _HEIGHT))
    s, residual = _solve(z, t, mass, gamma)
    density = (s + zero_mass / z).imag.clamp_min(0.0) / math.pi
    total = float((density * quadrature).sum()) + zero_mass
    converged = residual < math.sqrt(_TOLERANCE) and abs(total - 1.0) < 0.01
    text = (
        f"Solved with residual {residual:.1e}; the masses add up to {total:.6f}."
        if converged
        else f"The masses add up to {total:.4f} (residual {residual:.1e}): pass more `num_points=`."
    )
    return SpectralLaw(
        status=Status(converged, text).warn(),
        num_products=0,
        seed=0,
        points=(scale * x).cpu(),
        density=(density / scale).cpu(),
        quadrature=(scale * quadrature).cpu(),
        zero_mass=zero_mass,
        lower=scale * lower,
        upper=scale * upper,
        mass=total,
        residual=residual,
    )


def spectral_moments(
    weights: Tensor, *, ratio: float, masses: Tensor | None = None, order: int = 4
) -> Tensor:
    """Return the moments ∫ x^k of the limiting law, exactly.

    Its free cumulants are γ^(k−1) E[t^k]. The second moment γ E[t²] + E[t]² is the limit of
    ‖A‖²_F / d, and with it of all of Dong's block norms.

    Args:
        weights: The values of t (k,).
        ratio: γ = d/N.
        masses: Their probabilities (k,); equal by default.
        order: The highest moment.

    Returns:
        Moments 1 to `order`, float64.

    Raises:
        ShapeError: If weights and masses are not vectors of one length.
        InvalidArgumentError: If weights, masses, the ratio or the order are out of range.
        WrongTypeError: If the ratio is not a number.

    Examples:
        The Catalan numbers, for weights 1 and γ = 1.

        >>> spectral_moments(torch.ones(1), ratio=1.0, order=5)
        tensor([ 1.,  2.,  5., 14., 42.], dtype=torch.float64)
    """
    t, mass, gamma = _checked("spectral_moments", weights, masses, ratio)
    require_count(order, "spectral_moments(order=...)")
    cumulants = [gamma ** (k - 1) * float((mass * t**k).sum()) for k in range(1, order + 1)]
    moments = [1.0]
    for n in range(1, order + 1):
        # m_n is the sum over k of κ_k times the coefficient of z^(n−k) in (Σ m_j z^j)^k.
        power, total = [1.0] + [0.0] * (n - 1), 0.0
        for k in range(1, n + 1):
            power = [sum(power[i] * moments[j - i] for i in range(j + 1)) for j in range(n)]
            total += cumulants[k - 1] * power[n - k]
        moments.append(total)
    return torch.tensor(moments[1:], dtype=torch.float64)


def _grid(lower: float, upper: float, num_points: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return Chebyshev points with their weights, on either side of zero where it lies between."""
    if lower < 0.0 < upper:
        below = min(max(1, round(num_points * -lower / (upper - lower))), num_points - 1)
        left = _grid(lower, 0.0, below, like)
        right = _grid(0.0, upper, num_points - below, like)
        return torch.cat([left[0], right[0]]), torch.cat([left[1], right[1]])
    step, half = math.pi / num_points, 0.5 * (upper - lower)
    angles = (torch.arange(num_points, dtype=like.dtype, device=like.device) + 0.5) * step
    return 0.5 * (lower + upper) - half * angles.cos(), half * step * angles.sin()


def _checked(
    call: str, weights: Tensor, masses: Tensor | None, ratio: float
) -> tuple[Tensor, Tensor, float]:
    """Return t, its probabilities and γ in float64, or refuse."""
    gamma = require_positive(ratio, f"{call}(ratio=...)")
    if not isinstance(weights, Tensor) or weights.is_complex():
        raise WrongTypeError(f"`{call}(weights=...)` must be a real tensor.")
    t = weights.detach().double()
    mass = torch.ones_like(t) if masses is None else masses.detach().double().to(t.device)
    if t.ndim != 1 or t.shape != mass.shape:
        raise ShapeError(
            f"`{call}(weights, masses=...)` needs two vectors of one length; got "
            f"{tuple(t.shape)} and {tuple(mass.shape)}."
        )
    if not bool(t.isfinite().all() & (t != 0.0).any()):
        raise InvalidArgumentError(f"`{call}(weights=...)` must be finite, and not all zero.")
    if not bool((mass >= 0.0).all() & mass.isfinite().all() & (mass[t != 0.0].sum() > 0.0)):
        raise InvalidArgumentError(
            f"`{call}(masses=...)` must be finite and 0 or more, and some weight that is not zero "
            "needs one above 0."
        )
    keep = mass > 0.0
    return t[keep], mass[keep] / mass.sum(), gamma


def _solve(z: Tensor, t: Tensor, mass: Tensor, gamma: float) -> tuple[Tensor, float]:
    """Return s(z) for |t| ≤ 1, and the largest residual."""
    solutions, residual = [], 0.0
    for chunk in z.split(max(1, _PART // len(t))):
        s = _follow(chunk, t, mass, gamma)
        residual = max(residual, float(_equation(s, chunk, t, mass, gamma)[0].abs().max()))
        solutions.append(s)
    return torch.cat(solutions), residual


def _follow(z: Tensor, t: Tensor, mass: Tensor, gamma: float) -> Tensor:
    """Go down from far above each z, solving on the way."""
    height = _START * (1.0 + math.sqrt(gamma)) ** 2
    s = -1.0 / (z + 1j * height)
    smallest = float(z.imag.min())
    while height > 0.0:
        height = height * _FALL if height > 0.1 * smallest else 0.0
        target = z + 1j * height
        solution = _newton(s, target, t, mass, gamma)
        lost = ~_solved(solution, target, t, mass, gamma)
        if bool(lost.any()):
            again = _iterate(s[lost], target[lost], t, mass, gamma)
            solution[lost] = _newton(again, target[lost], t, mass, gamma)
            # Rather a point that is not exact than one of another branch.
            wrong = lost & ~(solution.imag > 0.0)
            solution[wrong] = again[wrong[lost]]
        s = solution
    return s


def _equation(s: Tensor, z: Tensor, t: Tensor, mass: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Return 1 + s (z − E[t/(1 + γst)]) and its derivative in s."""
    share = t / (1.0 + gamma * s[:, None] * t)
    difference = z - share @ mass.to(share)
    return 1.0 + s * difference, difference + gamma * s * (share.square() @ mass.to(share))


def _newton(s: Tensor, z: Tensor, t: Tensor, mass: Tensor, gamma: float) -> Tensor:
    for _ in range(_NEWTON_STEPS):
        value, slope = _equation(s, z, t, mass, gamma)
        step = value / slope
        s = s - step
        if bool((step.abs() <= 1e-14 * s.abs()).all() | (value.abs() < 1e-15).all()):
            break
    return s


def _solved(s: Tensor, z: Tensor, t: Tensor, mass: Tensor, gamma: float) -> Tensor:
    value, _ = _equation(s, z, t, mass, gamma)
    return (value.abs() < _TOLERANCE) & (s.imag > 0.0)


def _iterate(s: Tensor, z: Tensor, t: Tensor, mass: Tensor, gamma: float) -> Tensor:
    """Iterate s ← 1/(E[t/(1 + γst)] − z), averaged, which stays in the upper half-plane."""
    for _ in range(_MAP_STEPS):
        value, _ = _equation(s, z, t, mass, gamma)
        # The map's value: E[...] − z = (1 − value) / s.
        s = 0.5 * (s + s / (1.0 - value))
    return s


def _edges(t: Tensor, mass: Tensor, gamma: float) -> tuple[float, float]:
    """Return the outer ends of the density's support, for |t| ≤ 1."""
    smallest, largest = float(t.min()), float(t.max())
    if smallest >= 0.0:
        return _inner_edge(t, mass, gamma), _outer_edge(t, mass, gamma)
    if largest <= 0.0:
        return -_outer_edge(-t, mass, gamma), -_inner_edge(-t, mass, gamma)
    return -_outer_edge(-t, mass, gamma), _outer_edge(t, mass, gamma)


def _outer_edge(t: Tensor, mass: Tensor, gamma: float) -> float:
    """Return the upper end: where dz/ds = 0 for s between −1/(γ max t) and 0."""
    s = -_crossing(lambda r: _excess(-r, t, mass, gamma), 1.0 / (gamma * float(t.max())))
    return _point(s, t, mass, gamma)


def _inner_edge(t: Tensor, mass: Tensor, gamma: float) -> float:
    """Return the lower end for t ≥ 0: where dz/ds = 0 for s > 0, or below all poles."""
    share = float(mass[t > 0.0].sum())
    if abs(share / gamma - 1.0) < 1e-9:
        return 0.0
    if share > gamma:
        top = 1.0
        while _excess(top, t, mass, gamma) < 0.0:
            top *= 2.0
        return _point(_crossing(lambda r: _excess(r, t, mass, gamma), top), t, mass, gamma)
    pole = 1.0 / (gamma * float(t[t > 0.0].min()))
    # In 1/|s|, from 0 (at s = −∞) to the pole.
    q = _crossing(lambda r: _excess(-1.0 / r, t, mass, gamma), 1.0 / pole)
    return _point(-1.0 / q, t, mass, gamma)


def _excess(s: float, t: Tensor, mass: Tensor, gamma: float) -> float:
    """Return γ E[(st/(1 + γst))²] − 1, which has the sign of −dz/ds."""
    term = s * t / (1.0 + gamma * s * t)
    return gamma * float((mass * term.square()).sum()) - 1.0


def _crossing(function: Callable[[float], float], top: float) -> float:
    """Return the zero of a function that rises from below 0 near 0 to above 0 near `top`."""
    low, gap = top, 0.5
    while function(low) >= 0.0 or not math.isfinite(function(low)):
        low *= 0.5
    high = top
    while not math.isfinite(function(high)) or function(high) < 0.0:
        high = top * (1.0 - gap)
        gap *= 0.5
    return float(brentq(function, low, high, xtol=1e-300, rtol=1e-15))


def _point(s: float, t: Tensor, mass: Tensor, gamma: float) -> float:
    return float((mass * t / (1.0 + gamma * s * t)).sum()) - 1.0 / s
