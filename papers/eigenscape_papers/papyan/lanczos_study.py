"""Papyan Fig. 15, App. C.5, D.2: what Lanczos without reorthogonalisation does to a spectrum.

FastLanczos keeps three vectors, so converged eigenvalues come again as ghosts. Their weights add up
to that of the eigenvalue, so the smoothed density suffers little; but who counts outliers by Ritz
values counts the ghosts, and steps spent on ghosts do not resolve the bulk.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.curvature import Hessian
from eigenscape.linalg import Kernel, SpectralDensity
from eigenscape.operator import Dense, LinearOperator
from eigenscape.records import Axis, Line, Mark, Panel, Picture, Points
from eigenscape_papers.papyan import networks as casts
from eigenscape_papers.papyan.spectra_study import MARGIN, POINTS, paper_density
from eigenscape_papers.papyan.whole_spectra import formed
from eigenscape_papers.runner import (
    Measured,
    Outcome,
    Setting,
    Sheet,
    Study,
    Workshop,
    picture,
    rounded,
    table,
)

_PROBES = 10  # Fig. 15
_BINS = 100
_COPY = 1e-6  # Ritz values closer than this share of the range are one eigenvalue


@dataclass(frozen=True, eq=False)
class _Run:
    """One Lanczos run beside the truth."""

    name: str
    num_steps: int
    density: SpectralDensity

    @property
    def ritz(self) -> Tensor:
        """Ritz values of the first probe, descending, without those that carry nothing."""
        return self.density.nodes[0].sort(descending=True).values

    @property
    def ghosts(self) -> int:
        """Ritz values that repeat their neighbour."""
        span = float(self.ritz[0] - self.ritz[-1])
        return int((self.ritz.diff().abs() < _COPY * span).sum())

    def above(self, edge: float) -> int:
        """Ritz values above an edge, ghosts and all."""
        return int((self.ritz > edge).sum())

    def copies(self, edge: float) -> list[tuple[float, int]]:
        """Return the Ritz values above an edge, each with how often it is there."""
        span = float(self.ritz[0] - self.ritz[-1])
        copies: list[tuple[float, int]] = []
        for value in self.ritz[self.ritz > edge].tolist():
            if copies and abs(copies[-1][0] - value) < _COPY * span:
                copies[-1] = (value, copies[-1][1] + 1)
            else:
                copies.append((value, 1))
        return copies


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Check densities on matrices whose eigenvalues are known, then look for ghosts in a Hessian.

    Args:
        setting: "spiked" (n), "pareto" (n, r), "log_steps", and "steps" of the network's runs.
        workshop: Where networks are kept.

    Returns:
        The outcome.
    """
    options = setting.options
    panels, distances, verified = [], {}, []
    for name, A, scale, steps in (
        ("fig15a.density", _spiked(options["spiked"]), "linear", 128),
        ("fig15b.log-density", _pareto(*options["pareto"]), "log", options["log_steps"]),
    ):
        figure, exact = name.partition(".")[0], torch.linalg.eigvalsh(A)
        curves = {}
        for kind in ("FastLanczos", "reorthogonalised"):
            density = paper_density(
                Dense(A),
                steps,
                num_probes=_PROBES,
                scale=scale,
                reorthogonalise=kind == "reorthogonalised",
            )
            if scale == "log":
                density = _as_histogram(density)
            curves[kind] = _curves(density, exact)
            verified.append((figure, kind, steps, _distance(*curves[kind])))
        distances[f"papyan.{name}"] = Measured(_distance(*curves["FastLanczos"]))
        panels.append(_verification_panel(figure, scale, curves))
    networks = workshop.networks(setting.casts[0])
    H = formed(Hessian(networks.risk(networks.cast.seeds[0])))
    runs = _runs(H, options["steps"])
    numbers = distances | _ghost_numbers(runs)
    truth = torch.linalg.eigvalsh(H.to_dense()).flip(0).cpu() if isinstance(H, Dense) else None
    C = networks.data.num_classes or 1
    tables = (
        table("papyan-lanczos.fig15", verified),
        _ghost_sheet(runs, truth, C),
    )
    verification = picture("papyan-lanczos.fig15", panels)
    label = networks.cast.label
    pictures = (verification, _ghost_picture(runs, truth, C, label), _harm_picture(runs, label))
    products = sum(run.density.num_products for run in runs)
    return Outcome(numbers, pictures, tables, (), products)


def _spiked(n: int) -> Tensor:
    """Return diag(5, 4, 3, 0, …) + ZZᵀ/n."""
    Z = torch.randn(n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    A = Z @ Z.T / n
    A[range(3), range(3)] += torch.tensor([5.0, 4.0, 3.0], dtype=torch.float64)
    return 0.5 * (A + A.T)


def _pareto(n: int, rank: int) -> Tensor:
    """Return ZᵀZ/n with Z (r, n) of Pareto entries of index 1.

    The caption has ZZᵀ of Z (500, 1000) for a matrix of 1000²; ZᵀZ has that size.
    """
    draw = torch.rand(rank, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    Z = 1.0 / (1.0 - draw)
    A = Z.T @ Z / n
    return 0.5 * (A + A.T)


def _as_histogram(density: SpectralDensity) -> SpectralDensity:
    """Draw a log-density as wide as a bin of the figure: the paper prints no κ for it."""
    width = float(density.grid[-1] - density.grid[0]) / _BINS
    return density.redraw(kernel=Kernel(width=width), scale="log", num_points=POINTS, margin=MARGIN)


def _curves(density: SpectralDensity, exact: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return axis, density, and that of all eigenvalues; along log λ without what is zero."""
    nodes, grid, y = exact.double(), density.grid, density.density
    if density.scale == "log":
        # Zeros stand at log ε, as far from all else as rounding is small.
        live = exact > 1e-12 * exact.max()
        nodes = (exact[live] + density.epsilon).log()
        low = float(nodes.min()) - 6 * density.sigma
        grid, y = grid[grid > low], y[grid > low]
    bumps = torch.exp(-0.5 * ((grid[:, None] - nodes) / density.sigma).square()).sum(1)
    scale = len(exact) * density.sigma * math.sqrt(2.0 * math.pi)
    return grid, y, bumps / scale


def _distance(grid: Tensor, one: Tensor, two: Tensor) -> float:
    """Return half the L1 distance over the mass of the second."""
    return 0.5 * float(torch.trapezoid((one - two).abs(), grid) / torch.trapezoid(two, grid))


def _verification_panel(
    name: str, scale: str, curves: Mapping[str, tuple[Tensor, Tensor, Tensor]]
) -> Panel:
    """Draw all eigenvalues, and each run over them on its own grid."""
    grid, _, truth = curves["FastLanczos"]
    marks = [Line(rounded(grid[::2], 5), rounded(truth[::2], 4), "first", "all eigenvalues")]
    for (kind, (x, y, _)), colour in zip(curves.items(), ("second", "fourth"), strict=True):
        marks.append(Line(rounded(x[::2], 5), rounded(y[::2], 4), colour, kind, dashed=True))
    top = float(truth.max())
    tall = Axis("density", log=True, limits=(1e-5 * top, 2.0 * top))
    across = Axis("log λ" if scale == "log" else "λ")
    return Panel(marks, across, tall, "Fig. 15b" if name.endswith("b") else "Fig. 15a")


def _runs(H: LinearOperator, steps: tuple[int, ...]) -> list[_Run]:
    """Run both kinds from the same vector, and FastLanczos in float32 where H is there."""
    runs = []
    for m in steps:
        runs.append(_Run("reorthogonalised", m, paper_density(H, m, reorthogonalise=True)))
        runs.append(_Run("FastLanczos", m, paper_density(H, m)))
        if isinstance(H, Dense):
            single = Dense(H.to_dense().float())
            runs.append(_Run("FastLanczos, float32", m, paper_density(single, m)))
    return runs


def _ghost_numbers(runs: list[_Run]) -> dict[str, Measured]:
    m = 256 if any(run.num_steps == 256 for run in runs) else runs[-1].num_steps
    slow, fast = (
        next(r for r in runs if (r.name, r.num_steps) == (name, m))
        for name in ("reorthogonalised", "FastLanczos")
    )
    grid = slow.density.grid
    other, _ = fast.density.evaluate(grid)
    return {
        "papyan.appc5.ghosts": Measured(fast.ghosts),
        "papyan.appc5.harmless": Measured(_distance(grid, other, slow.density.density)),
    }


def _ghost_sheet(runs: list[_Run], truth: Tensor | None, C: int) -> Sheet:
    edge = _edge(runs, truth, C)
    real = None if truth is None else int((truth > edge).sum())
    rows = []
    for run in runs:
        wrong = None if truth is None else _distance(*_curves(run.density, truth))
        rows.append((run.name, run.num_steps, run.ghosts, run.above(edge), real, wrong))
    return table("papyan-lanczos.ghosts", rows, classes=C)


def _edge(runs: list[_Run], truth: Tensor | None, C: int) -> float:
    """Return a place between the C-th and the next eigenvalue."""
    values = runs[0].ritz if truth is None else truth
    at = min(C, len(values) - 1)
    return 0.5 * float(values[at - 1] + values[at])


def _ghost_picture(runs: list[_Run], truth: Tensor | None, C: int, label: str) -> Picture:
    edge, m = _edge(runs, truth, C), runs[-1].num_steps
    shown = [run for run in runs if run.num_steps == m]
    most = max(copies for run in shown for _, copies in run.copies(edge))
    panels = []
    for colour, run in zip(("first", "second", "fourth"), shown, strict=False):
        x, y = zip(*run.copies(edge), strict=True)
        marks: list[Mark] = [Points(rounded(x), rounded(y), colour, stem=0.0)]
        if truth is not None:
            known = truth[truth > edge]
            marks.append(Points(rounded(known), [0.0] * len(known), "seventh", "eigenvalues"))
        tall = Axis("copies", limits=(-0.3, most + 0.7), whole=True)
        panels.append(Panel(marks, Axis("Ritz value above the bulk"), tall, run.name))
    return picture("papyan-lanczos.ghosts", panels, label, steps=m)


def _harm_picture(runs: list[_Run], label: str) -> Picture:
    """Draw the difference of the densities: they themselves coincide."""
    m = runs[-1].num_steps
    slow = next(run for run in runs if run.num_steps == m).density  # the first of its steps
    single = 1.0 / (slow.size * slow.sigma * math.sqrt(2.0 * math.pi))
    marks: list[Mark] = []
    others = [run for run in runs if run.num_steps == m and run.density is not slow]
    for colour, run in zip(("second", "fourth"), others, strict=False):
        other, _ = run.density.evaluate(slow.grid)
        away = (other - slow.density) / single
        marks.append(Line(rounded(slow.grid[::2], 5), rounded(away[::2], 4), colour, run.name))
    across = Axis("λ"), Axis("difference, in eigenvalues")
    return picture(
        "papyan-lanczos.harmless",
        [Panel(marks, *across, "less the density with reorthogonalisation")],
        label,
        steps=m,
    )


STUDY = Study.of(
    "papyan-lanczos", measure, {"laptop": (casts.SMALL,), "paper": (casts.RESNET_FEW,)}
)
