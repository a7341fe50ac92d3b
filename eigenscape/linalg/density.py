"""Spectral densities by stochastic Lanczos quadrature, with an error band.

Letters: A the operator (n, n); p probes, m Lanczos steps each; θ nodes and ω weights (p, m) of the
quadrature; σ the kernel's width; r outliers deflated first. A random unit vector v in the
complement of the outliers has E[vᵀ δ(t − A) v] = (1/(n−r)) Σ δ(t − λ_i), and its quadrature is
exact for moments up to 2m − 1 (Lin, Saad, Yang 2016; Ubaru, Chen, Saad 2017; Papyan App. C).
Standard errors hold what few probes leave open and what few steps do; see `_quadrature`.
"""

import dataclasses
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from eigenscape.errors import (
    InvalidArgumentError,
    NonFiniteError,
    require_choice,
    require_count,
    require_positive,
)
from eigenscape.linalg._pictures import density_picture
from eigenscape.linalg._products import carries_self_test, require_symmetric, unit_of
from eigenscape.linalg._quadrature import Rule, on_axis
from eigenscape.linalg.lanczos import lanczos
from eigenscape.linalg.pairs import orthonormal
from eigenscape.operator import LinearOperator
from eigenscape.records import Columns, Picture, Progress, ProgressCallback, Record, Status

SCALES = ("linear", "log")
_BASIS_BYTES = 2 * 2**30


class Pairs(Protocol):
    """Anything with eigenvalues and eigenvectors, such as the result of `eigsh`."""

    @property
    def values(self) -> Tensor:
        """Eigenvalues (r,)."""

    @property
    def vectors(self) -> Tensor:
        """Orthonormal eigenvectors (n, r)."""


@dataclass(frozen=True)
class Kernel:
    """How wide each node is drawn.

    Attributes:
        width: A width σ in units of the axis; None for the resolution of m steps, π/(2m) of the
            half range (the width of a Jackson kernel of degree 2m).
        kappa: Papyan's κ (Alg. 3): σ = 2 / ((m − 1) √(8 log κ)) of the half range.
    """

    width: float | None = None
    kappa: float | None = None

    def __post_init__(self) -> None:
        """Refuse settings that mean nothing."""
        if self.width is not None and self.kappa is not None:
            raise InvalidArgumentError("`Kernel` takes `width` or `kappa`; got both.")
        if self.width is not None:
            require_positive(self.width, "Kernel(width=...)")
        if self.kappa is not None and not self.kappa > 1.0:
            raise InvalidArgumentError(f"`Kernel(kappa=...)` must exceed 1; got {self.kappa}.")

    def sigma(self, half_range: float, m: int) -> float:
        """Return σ for an axis of the given half range and m steps."""
        if self.width is not None:
            return self.width
        if self.kappa is not None:
            return half_range * 2.0 / (max(m - 1, 1) * math.sqrt(8.0 * math.log(self.kappa)))
        return half_range * math.pi / (2.0 * m)


@dataclass(frozen=True, eq=False)
class SpectralDensity(Record):
    """The density of an operator's eigenvalues, or of their logarithms.

    It integrates to 1 over the axis together with the spikes, which carry 1/n each.

    Attributes:
        grid: Points t of the axis (K,): λ, or log(|λ| + ε) where `scale` is "log".
        density: The smoothed density at the grid, without spikes (K,).
        stderr: Its standard error (K,), of sampling and of resolution.
        nodes: Quadrature nodes (p, m), always eigenvalue estimates, never logarithms.
        weights: Their weights (p, m); each row adds up to 1.
        spikes: Exact outliers (r,) that were deflated first.
        size: The operator's size n.
        sigma: The kernel's width.
        scale: "linear" or "log".
        epsilon: The ε of the logarithm.
        edges: Bounds of the spectrum without spikes, as Lanczos saw it (residuals included).
        unit: The rounding unit of the operator's dtype.
        residuals: Of the nodes as eigenvalues (p, m); None where the nodes are all eigenvalues of
            a matrix that was formed, so that nothing was sampled.
    """

    grid: Tensor
    density: Tensor
    stderr: Tensor
    nodes: Tensor
    weights: Tensor
    spikes: Tensor
    size: int
    sigma: float
    scale: str
    epsilon: float
    edges: tuple[float, float]
    unit: float
    residuals: Tensor | None = None

    def columns(self) -> Columns:
        """Return the curve: point, density and standard error."""
        return {
            "grid": self.grid.tolist(),
            "density": self.density.tolist(),
            "stderr": self.stderr.tolist(),
        }

    def redraw(
        self,
        *,
        kernel: Kernel | None = None,
        scale: str = "linear",
        epsilon: float | None = None,
        num_points: int = 1024,
        margin: float = 0.05,
    ) -> "SpectralDensity":
        """Draw the same nodes and weights another way. Cost: no product.

        Args:
            kernel: As for `spectral_density`.
            scale: As for `spectral_density`.
            epsilon: As for `spectral_density`.
            num_points: As for `spectral_density`.
            margin: As for `spectral_density`.

        Returns:
            The same estimate with another curve.
        """
        picture = _Picture(kernel or Kernel(), scale, epsilon, num_points, margin)
        return dataclasses.replace(self, **picture.drawn(self._rule, self.edges, self.unit))

    def count(self, low: float, high: float) -> tuple[float, float]:
        """Estimate how many eigenvalues lie in (low, high], with the standard error.

        Spikes are counted exactly. An interval that is narrow against the spacing of the nodes gets
        an error as large as what may lie in it.

        Args:
            low: Lower end, not included.
            high: Upper end, included.

        Returns:
            The estimate and its standard error.
        """
        number, stderr = self._rule.share(low, high)
        exact = int(((self.spikes > low) & (self.spikes <= high)).sum())
        bulk = self.size - self.spikes.numel()
        return exact + bulk * number, bulk * stderr

    def moment(self, power: int) -> tuple[float, float]:
        """Estimate (1/n) Σ λ_i^power with its standard error; unbiased for power ≤ 2m − 1.

        Args:
            power: The power.

        Returns:
            The estimate and its standard error.

        Raises:
            NonFiniteError: If the moment is too large or too small for a number in float64.
        """
        require_count(power, "SpectralDensity.moment(power)", at_least=0)
        largest = torch.cat([self.nodes.flatten(), self.spikes]).abs().max()
        unit = unit_of(float(largest))
        mean, stderr = self._rule.mean(lambda nodes: (nodes / unit) ** power, power)
        mean += float(((self.spikes / unit) ** power).sum()) / self.size
        scale = math.log2(unit) * power
        if mean != 0.0 and not -1000 < scale + math.log2(abs(mean)) < 1000:
            raise NonFiniteError(
                f"`SpectralDensity.moment({power})` of eigenvalues near {float(largest):.1e} is no "
                "number that float64 holds. Divide the operator by its size first: `A / size`."
            )
        return math.ldexp(mean, int(scale)), math.ldexp(stderr, int(scale))

    def integral(self) -> float:
        """Return the area under the density plus the spikes' mass; 1 to the grid's accuracy."""
        return torch.trapezoid(self.density, self.grid).item() + self.spikes.numel() / self.size

    def evaluate(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return density and standard error at other points of the axis.

        Args:
            points: Where, (K,).

        Returns:
            Both (K,).
        """
        return self._rule.curve(points.double(), self.sigma, self.scale, self.epsilon)

    @property
    def _rule(self) -> Rule:
        return Rule(self.nodes, self.weights, self.residuals, self.size, self.spikes.numel())

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (density_picture(self),)


@carries_self_test
def spectral_density(
    operator: LinearOperator,
    *,
    num_steps: int = 100,
    num_probes: int = 8,
    outliers: Pairs | None = None,
    kernel: Kernel | None = None,
    scale: str = "linear",
    epsilon: float | None = None,
    num_points: int = 1024,
    margin: float = 0.05,
    reorthogonalise: bool = True,
    seed: int = 0,
    memory_budget: int = _BASIS_BYTES,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: ProgressCallback | None = None,
) -> SpectralDensity:
    """Estimate the density of the eigenvalues of a symmetric operator.

    Cost: `num_steps · num_probes` products. Memory: the bases of as many probes as `memory_budget`
    holds at a time (at least one).

    Args:
        operator: Symmetric operator A.
        num_steps: Lanczos steps m per probe; the resolution is the range over about m.
        num_probes: Random probes p; the band shrinks like 1/√p.
        outliers: Eigenpairs to take out first and put back as exact spikes, e.g. from `eigsh`. They
            sharpen the bulk, whose resolution is a share of the range that is left.
        kernel: Width of the kernel; by default the resolution of m steps.
        scale: "linear" for λ, "log" for log(|λ| + ε), the natural logarithm.
        epsilon: ε; by default the operator's rounding unit times its largest |λ|.
        num_points: Grid points.
        margin: Share of the range added at either end of the grid.
        reorthogonalise: As in `lanczos`.
        seed: Fixes the probes.
        memory_budget: Bytes for Lanczos bases.
        checkpoint: Folder to save to and to resume from; a resumed run gives the same bits.
        progress: Called after each step.

    Returns:
        The density with its band, its raw nodes and weights, and the spikes.

    Raises:
        EigenscapeError: One of its kinds, for arguments that do not fit or products that are not
            finite.

    Examples:
        >>> from eigenscape.operator import Dense
        >>> A = Dense(torch.diag(torch.linspace(0.0, 1.0, 101, dtype=torch.float64)))
        >>> rho = spectral_density(A, num_steps=20, num_probes=4)
        >>> round(rho.integral(), 3)
        1.0
    """
    require_symmetric(operator, "spectral_density(operator)")
    require_count(num_probes, "spectral_density(num_probes=...)")
    n = operator.space.size
    picture = _Picture(kernel or Kernel(), scale, epsilon, num_points, margin)
    Q = _left_out(operator, outliers)
    spikes = torch.zeros(0) if outliers is None else outliers.values.detach().cpu()
    m = require_count(num_steps, "spectral_density(num_steps=...)")
    # As many probes at a time as there is memory for their bases.
    one = (m + 3 if reorthogonalise else 4) * n * operator.dtype.itemsize
    group = max(1, min(num_probes, memory_budget // max(one, 1)))
    rules: list[tuple[Tensor, Tensor, Tensor]] = []
    low, high, products = math.inf, -math.inf, 0
    for first in range(0, num_probes, group):
        count = min(group, num_probes - first)
        run = lanczos(
            operator,
            num_steps=m,
            num_probes=count,
            leave_out=Q,
            reorthogonalise=reorthogonalise,
            seed=seed,
            first_probe=first,
            checkpoint=None if checkpoint is None else Path(checkpoint) / f"probes-{first:04d}",
            progress=_overall(progress, first, count, num_probes, m),
        )
        theta, omega = run.quadrature()
        _, residuals = run.ritz()
        # Nodes of an exhausted Krylov space carry no weight and say nothing about the spectrum.
        has_weight = omega > 1e-14
        low = min(low, (theta - residuals)[has_weight].min().item())
        high = max(high, (theta + residuals)[has_weight].max().item())
        rules.append((theta, omega, residuals))
        products += run.num_products
    nodes, weights, residuals = (torch.cat(rows) for rows in zip(*rules, strict=True))
    unit = torch.finfo(operator.dtype).eps
    rule = Rule(nodes, weights, residuals, n, spikes.numel())
    return SpectralDensity(
        status=Status(True, f"{num_probes} probes of {nodes.shape[1]} steps."),
        num_products=products,
        seed=seed,
        nodes=nodes,
        weights=weights,
        spikes=spikes.double(),
        size=n,
        edges=(low, high),
        unit=unit,
        residuals=residuals,
        **picture.drawn(rule, (low, high), unit),
    )


@dataclass(frozen=True)
class _Picture:
    """How nodes and weights become a curve."""

    kernel: Kernel
    scale: str
    epsilon: float | None
    num_points: int
    margin: float

    def __post_init__(self) -> None:
        require_choice(self.scale, SCALES, "spectral_density(scale=...)")
        require_count(self.num_points, "spectral_density(num_points=...)", at_least=2)
        if self.epsilon is not None:
            require_positive(self.epsilon, "spectral_density(epsilon=...)")

    def drawn(self, rule: Rule, edges: tuple[float, float], unit: float) -> dict[str, Any]:
        """Return the fields of a `SpectralDensity` that depend on the picture."""
        largest = max(abs(edges[0]), abs(edges[1]), torch.finfo(torch.float64).tiny)
        epsilon = unit * largest if self.epsilon is None else self.epsilon
        low, high = _axis_range(edges, rule, self.scale, epsilon)
        # A spectrum of one point still needs an axis with room to draw it.
        half = max((high - low) / 2, 1e-6 * max(abs(low), abs(high))) or 1e-300
        sigma = self.kernel.sigma(half * (1 + 2 * self.margin), rule.nodes.shape[1])
        pad = 2 * half * self.margin + 4 * sigma  # room for the tails of the outermost kernels
        grid = torch.linspace(low - pad, high + pad, self.num_points, dtype=torch.float64)
        density, stderr = rule.curve(grid, sigma, self.scale, epsilon)
        return {
            "grid": grid,
            "density": density,
            "stderr": stderr,
            "sigma": sigma,
            "scale": self.scale,
            "epsilon": epsilon,
        }


def _overall(
    progress: ProgressCallback | None, first: int, count: int, total: int, m: int
) -> ProgressCallback | None:
    """Turn the progress of one group into that of all probes, counted in products."""
    if progress is None:
        return None

    resumed: list[int] = []  # steps that an interrupted run had finished, seen at the first report

    def report(step: Progress) -> None:
        if not resumed:
            resumed.append(step.done - 1)
        done = first * m + step.done * count
        rate = step.seconds / ((step.done - resumed[0]) * count)
        left = None if step.seconds_left is None else rate * (total * m - done)
        progress(Progress("spectral density", done, total * m, step.seconds, left))

    return report


def _left_out(operator: LinearOperator, outliers: Pairs | None) -> Tensor | None:
    if outliers is None or outliers.values.numel() == 0:
        return None
    if outliers.vectors.shape != (operator.space.size, outliers.values.numel()):
        raise InvalidArgumentError(
            f"`spectral_density(outliers=...)` needs vectors ({operator.space.size}, r), one per "
            f"value; got {tuple(outliers.vectors.shape)} for {outliers.values.numel()} values."
        )
    if outliers.values.numel() >= operator.space.size:
        raise InvalidArgumentError(
            "`spectral_density(outliers=...)` leaves nothing to estimate: all "
            f"{operator.space.size} eigenvalues are given."
        )
    return orthonormal(outliers.vectors).to(operator.device, operator.dtype)


def _axis_range(
    edges: tuple[float, float], rule: Rule, scale: str, epsilon: float
) -> tuple[float, float]:
    """Return the range of the axis that carries mass."""
    if scale == "linear":
        return edges
    top = math.log(max(abs(edges[0]), abs(edges[1])) + epsilon)
    # The spectrum may reach down to 0; below log ε there is nothing.
    least = on_axis(rule.nodes, scale, epsilon)[rule.weights > 1e-14].min().item()
    return max(least, math.log(epsilon)), top
