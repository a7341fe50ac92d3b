"""Do the eigenvalues fall off like a power of their size (Papyan Fig. 16)?

Letters: φ(λ) the density of the eigenvalues, per unit of λ; φ ≈ a |λ|^−b on low ≤ |λ| ≤ high; n
eigenvalues, or θ nodes and ω weights of a quadrature in their place; σ a kernel's width.

A density along log|λ| is |λ| φ(λ), so its exponent is smaller by 1. Papyan's two panels both show φ
per unit of λ, smoothed along λ in the first and along log|λ| in the second; so do we.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.errors import (
    InvalidArgumentError,
    NonFiniteError,
    ShapeError,
    WrongTypeError,
    require_choice,
    require_count,
    require_positive,
)
from eigenscape.linalg import SpectralDensity
from eigenscape.records import Columns, Record, Status, storable

SCALES = ("linear", "log")
_LEAST_POINTS = 3  # two points lie on every line
_NEAR = 2.0  # in widths σ: a density is read only where a node is as near as that


@storable
@dataclass(frozen=True, eq=False)
class TailFit:
    """A straight line through log φ against log|λ|, by least squares.

    Attributes:
        exponent: b of φ ≈ a |λ|^−b.
        stderr: Its standard error, from the residuals, as if the points were independent.
            Neighbouring points of a smoothed density are not, so there it is too small.
        coefficient: a.
        r_squared: Share of the variance of log φ that the line explains.
        mass: Share of all eigenvalues that lies in the range, on this side.
        places: |λ| of the points (q,).
        density: φ there (q,).
    """

    exponent: float
    stderr: float
    coefficient: float
    r_squared: float
    mass: float
    places: Tensor
    density: Tensor

    @property
    def log_exponent(self) -> float:
        """The exponent of the density along log|λ|: b − 1."""
        return self.exponent - 1.0


@dataclass(frozen=True, eq=False)
class PowerTail(Record):
    """Power laws through the two tails of a spectrum, and through both together.

    Attributes:
        both: The fit to the density of |λ|.
        positive: The fit to λ > 0; None where fewer than three points have eigenvalues.
        negative: The fit to λ < 0; None likewise.
        low: Smallest |λ| of the range.
        high: Largest |λ| of the range.
        scale: How eigenvalues were binned or smoothed: "linear" or "log".
    """

    both: TailFit
    positive: TailFit | None
    negative: TailFit | None
    low: float
    high: float
    scale: str

    def columns(self) -> Columns:
        """Return one row for each side that has a fit."""
        sides = {"both": self.both, "positive": self.positive, "negative": self.negative}
        fits = {side: fit for side, fit in sides.items() if fit is not None}
        return {
            "side": fits.keys(),
            "exponent": [fit.exponent for fit in fits.values()],
            "stderr": [fit.stderr for fit in fits.values()],
            "R²": [fit.r_squared for fit in fits.values()],
            "coefficient": [fit.coefficient for fit in fits.values()],
            "mass": [fit.mass for fit in fits.values()],
        }


def power_tail(
    spectrum: Tensor | SpectralDensity,
    *,
    low: float,
    high: float,
    scale: str = "log",
    num_points: int = 20,
) -> PowerTail:
    """Fit a power law to the density of eigenvalues on a stated range of |λ|.

    Eigenvalues are counted in bins, equal along λ or along log|λ| as `scale` says. A density is
    drawn from its nodes and weights with its own width σ, or that of `redraw(scale=scale)` where it
    was drawn on the other axis; outliers that were taken out of it are no part of the tail. Bins
    without eigenvalues are left out, and points with no node within 2σ. The exponent depends on
    the range, which is part of the answer; for a density, let it begin above the spacing of the
    nodes, which lump all smaller eigenvalues together.

    Args:
        spectrum: Eigenvalues (n,), or a density from `spectral_density`.
        low: Smallest |λ|, above 0.
        high: Largest |λ|.
        scale: "linear" as in Fig. 16a, or "log" as in Fig. 16b, which resolves small eigenvalues.
        num_points: Bins, or points at which a density is read, spread along log|λ|.

    Returns:
        Exponent, standard error and R² for either side and for both.

    Raises:
        WrongTypeError: If it is neither eigenvalues nor a density.
        ShapeError: If the eigenvalues are not (n,).
        NonFiniteError: If one of them is NaN or infinite.
        InvalidArgumentError: If the range is empty, or fewer than three points have eigenvalues.

    Examples:
        The quantiles of a law with φ ∝ λ^−3 above 1.

        >>> values = (1.0 - torch.linspace(0.0, 0.9999, 10000, dtype=torch.float64)).pow(-0.5)
        >>> fit = power_tail(values, low=1.0, high=10.0).both
        >>> round(fit.exponent, 2), round(fit.r_squared, 3)
        (3.0, 1.0)
    """
    call = "power_tail"
    require_positive(low, f"{call}(low=...)")
    if not require_positive(high, f"{call}(high=...)") > low:
        raise InvalidArgumentError(f"`{call}(low, high)` needs low < high; got {low} and {high}.")
    require_choice(scale, SCALES, f"{call}(scale=...)")
    require_count(num_points, f"{call}(num_points=...)", at_least=_LEAST_POINTS)
    values, masses, sigma = _atoms(spectrum, scale)
    sides = {}
    for side, kept in (("both", values != 0), ("positive", values > 0), ("negative", values < 0)):
        sizes, shares = values[kept].abs(), masses[kept]
        if sigma is None:
            places, density = _histogram(sizes, shares, low, high, scale, num_points)
        else:
            places = torch.logspace(
                math.log10(low), math.log10(high), num_points, dtype=torch.float64
            )
            density = _smoothed(places, sizes, shares, sigma, scale)
        inside = (sizes >= low) & (sizes <= high)
        sides[side] = _fit(places, density, float(shares[inside].sum()))
    both = sides["both"]
    if both is None:
        raise InvalidArgumentError(
            f"`{call}(low={low:g}, high={high:g})` needs eigenvalues at three points or more of "
            "that range; there are fewer. Choose another range."
        )
    return PowerTail(
        status=Status(True, f"Fitted to {len(both.places)} of {num_points} points."),
        num_products=0,
        seed=0,
        both=both,
        positive=sides["positive"],
        negative=sides["negative"],
        low=float(low),
        high=float(high),
        scale=scale,
    )


def _atoms(spectrum: Tensor | SpectralDensity, scale: str) -> tuple[Tensor, Tensor, float | None]:
    """Return places and masses of the spectral measure, and the kernel's width; None for bins."""
    if isinstance(spectrum, SpectralDensity):
        same = spectrum.scale == scale
        drawn = spectrum if same else spectrum.redraw(scale=scale, num_points=2)
        nodes, weights = (t.detach().cpu().double() for t in (spectrum.nodes, spectrum.weights))
        share = (1.0 - spectrum.spikes.numel() / spectrum.size) / nodes.shape[0]
        return nodes.flatten(), weights.flatten() * share, drawn.sigma
    if not isinstance(spectrum, Tensor) or not spectrum.dtype.is_floating_point:
        kind = spectrum.dtype if isinstance(spectrum, Tensor) else type(spectrum).__name__
        raise WrongTypeError(
            "`power_tail(spectrum)` needs real eigenvalues (n,) or a `SpectralDensity`; got "
            f"{kind}."
        )
    if spectrum.ndim != 1 or spectrum.numel() == 0:
        raise ShapeError(
            f"`power_tail(spectrum)` needs eigenvalues (n,); got {tuple(spectrum.shape)}."
        )
    values = spectrum.detach().cpu().double()
    lost = int((~values.isfinite()).sum())
    if lost:
        raise NonFiniteError(
            f"`power_tail(spectrum)` needs finite eigenvalues; {lost} of {len(values)} are NaN or "
            "infinite. See where they come from: a tail fitted to the others would be no tail of "
            "this spectrum."
        )
    return values, torch.full_like(values, 1.0 / values.numel()), None


def _histogram(
    sizes: Tensor, shares: Tensor, low: float, high: float, scale: str, num_bins: int
) -> tuple[Tensor, Tensor]:
    """Return the bins' middles and the density in them, per unit of λ."""
    if scale == "log":
        edges = torch.logspace(math.log10(low), math.log10(high), num_bins + 1, dtype=torch.float64)
        middles = (edges[:-1] * edges[1:]).sqrt()
    else:
        edges = torch.linspace(low, high, num_bins + 1, dtype=torch.float64)
        middles = 0.5 * (edges[:-1] + edges[1:])
    edges[0], edges[-1] = low, high
    inside = (sizes >= low) & (sizes <= high)
    counts, _ = torch.histogram(sizes[inside], edges, weight=shares[inside])
    return middles, counts / edges.diff()


def _smoothed(places: Tensor, sizes: Tensor, shares: Tensor, sigma: float, scale: str) -> Tensor:
    """Return the density per unit of λ, with Gaussian bumps along the axis that `scale` names."""
    tiny = torch.finfo(torch.float64).tiny
    x, y = (places.log(), sizes.clamp_min(tiny).log()) if scale == "log" else (places, sizes)
    away = (x[:, None] - y).abs() / sigma
    bumps = torch.exp(-0.5 * away.square()) @ shares
    # Between nodes far apart a sum of Gaussians says how far, and nothing of the spectrum.
    near = (away <= _NEAR).any(1)
    density: Tensor = torch.where(near, bumps / (sigma * math.sqrt(2.0 * math.pi)), 0.0)
    return density / places if scale == "log" else density


def _fit(places: Tensor, density: Tensor, mass: float) -> TailFit | None:
    """Fit a line on logarithmic axes; None where too few points are above zero."""
    kept = density > 0.0
    q = int(kept.sum())
    if q < _LEAST_POINTS:
        return None
    x, y = places[kept].log(), density[kept].log()
    dx, dy = x - x.mean(), y - y.mean()
    slope = float((dx @ dy) / (dx @ dx))
    residual, total = float((dy - slope * dx).square().sum()), float(dy @ dy)
    return TailFit(
        exponent=-slope,
        stderr=math.sqrt(residual / (q - 2) / float(dx @ dx)),
        coefficient=math.exp(float(y.mean()) - slope * float(x.mean())),
        r_squared=1.0 - residual / total if total > 0.0 else 1.0,
        mass=mass,
        places=places[kept],
        density=density[kept],
    )
