"""Papyan Figs 3, 4, 14, 17: the spectra of H, G and E on training and test data.

H has about C outliers, a bulk around zero and negative eigenvalues; its outliers are those of G.
Deflation of the outliers sharpens what Lanczos shows of the bulk.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from eigenscape.curvature import Hessian
from eigenscape.linalg import Kernel, SpectralDensity, spectral_density, subspace_iteration
from eigenscape.operator import LinearOperator
from eigenscape.records import (
    Axis,
    EigenPairs,
    Line,
    Mark,
    Panel,
    Picture,
    Points,
    ProgressCallback,
    Ticker,
    storable,
)
from eigenscape_papers.papyan import networks as casts
from eigenscape_papers.papyan.whole_spectra import (
    Spectrum,
    formed,
    held_out_risk,
    hessian_parts,
    seen_risk,
    take_spectrum,
)
from eigenscape_papers.runner import (
    Cast,
    Measured,
    Networks,
    Outcome,
    Setting,
    Sheet,
    Study,
    Workshop,
    of_each_cast,
    picture,
    rounded,
    table,
)
from eigenscape_papers.runner.orders import gap_place

_COLOURS = {"H": "hessian", "G": "gauss_newton", "E": "residual"}
# App. D.2: κ = 3, margin 0.05, 1024 points, one start vector; T = 128 for subspace iteration.
KAPPA, MARGIN, POINTS, SUBSPACE_STEPS = 3.0, 0.05, 1024, 128


@storable
@dataclass(frozen=True, eq=False)
class SpectraLook:
    """H, G and E of one network on one split; `bare` where H is drawn by Lanczos alone."""

    label: str
    seed: int
    split: str
    spectra: dict[str, Spectrum]
    num_classes: int
    bare: SpectralDensity | None

    @property
    def num_products(self) -> int:
        """Products spent."""
        spent = 0 if self.bare is None else self.bare.num_products
        return spent + sum(s.num_products for s in self.spectra.values())


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Measure H, G and E of every network on both splits, and deflate H of that of Fig. 17."""
    by_cast = of_each_cast("spectra", setting, workshop, _of_cast)
    looks = [look for networks, _ in by_cast for look in networks]
    measured = _measured(looks) if looks else {}
    pictures = [picture for networks, _ in by_cast if networks for picture in _pictures(networks)]
    products = sum(look.num_products for look in looks)
    deflations = [deflation for _, deflation in by_cast if deflation is not None]
    for deflated in deflations[-1:]:
        measured |= deflated.measured()
        pictures.append(deflated.picture())
        products += deflated.num_products
    sheets = (_sheet(looks),) if looks else ()
    return Outcome(measured, tuple(pictures), sheets, (), products)


def _of_cast(
    cast: Cast, setting: Setting, workshop: Workshop
) -> tuple[tuple[SpectraLook, ...], "SpectraDeflation | None"]:
    networks, samples = workshop.networks(cast), setting.options["samples"]
    # At paper scale Fig. 17 has a network of its own, and the other figures do not show it.
    seeds = () if cast == casts.RESNET_FEW else cast.seeds
    looks = [look for seed in seeds for look in _looks(workshop, networks, seed, samples)]
    if cast in casts.VGG:
        return tuple(looks), None
    bare = looks[0].bare if looks else None
    return tuple(looks), SpectraDeflation.of(networks, bare, samples, workshop.progress)


def _looks(
    workshop: Workshop, networks: Networks, seed: int, samples: int | None
) -> list[SpectraLook]:
    C = networks.data.num_classes or 0
    risks = {
        "train": seen_risk(networks, seed, samples),
        "test": held_out_risk(workshop, networks, seed, samples),
    }
    label = networks.cast.label
    looks: list[SpectraLook] = []
    ticker = Ticker(workshop.progress, f"H, G and E of {label}", len(_COLOURS) * len(risks))
    for split, risk in risks.items():
        if risk is not None:
            matrices, spectra, bare = hessian_parts(risk), {}, None
            for name in _COLOURS:
                matrix = matrices.pop(name)  # what it holds of a large network goes before the next
                # Twice as many as there are outliers, to see where they end; E has none.
                top = 1 if name == "E" else 2 * C + 1
                spectra[name] = take_spectrum(matrix, top, progress=workshop.progress)
                if name == "H" and seed == networks.cast.seeds[0]:
                    bare = paper_density(matrix, 128)
                ticker.tick(len(_COLOURS) * len(looks) + len(spectra))
            looks.append(SpectraLook(label, seed, split, spectra, C, bare))
    return looks


def _measured(looks: list[SpectraLook]) -> dict[str, Measured]:
    train = [look for look in looks if look.split == "train"]
    test = [look for look in looks if look.split == "test"]
    places = [gap_place(look.spectra["H"].top, 2 * look.num_classes) for look in looks]
    near = [p - look.num_classes in (-1, 0) for p, look in zip(places, looks, strict=True)]
    numbers = {
        "papyan.fig3.outliers": Measured(sum(near) / len(near)),
        "papyan.fig3.concentration": Measured.over([_small(one) for one in train]),
        "papyan.fig3.negative": Measured.over(
            [-s.lowest / float(s.top[0]) for s in _of(train, "H")]
        ),
    }
    if test:
        firsts = [[float(s.top[0]) for s in _of(group, "H")] for group in (train, test)]
        ratios = [two / one for one, two in zip(*firsts, strict=True)]
        numbers["papyan.fig3.test-magnitude"] = Measured.over(ratios)
        numbers["papyan.fig4.test-tails"] = Measured(min(_interlaced(look) for look in test))
    return numbers


def _of(looks: list[SpectraLook], name: str) -> list[Spectrum]:
    return [look.spectra[name] for look in looks]


def _small(look: SpectraLook) -> float:
    """Return the share of eigenvalues of H below a hundredth of the first."""
    H = look.spectra["H"]
    limit = 0.01 * float(H.top[0])
    few = float(H.counts[H.nodes.abs() < limit].sum()) + int((H.top.abs() < limit).sum())
    return few / H.size


def _interlaced(look: SpectraLook) -> float:
    """Return the share of the first C − 1 eigenvalues that interlace, the better way round."""
    C = look.num_classes
    H, G = (look.spectra[name].top[:C] for name in "HG")
    shares = [((A[1:] <= B[:-1]) & (B <= A)[:-1]).double().mean() for A, B in ((H, G), (G, H))]
    return float(max(shares))


@storable
@dataclass(frozen=True, eq=False)
class SpectraDeflation:
    """The train Hessian of one network by the settings of App. D.2, with and without outliers.

    Attributes:
        label: Which network.
        outliers: What subspace iteration found, descending.
        bare: The density of all.
        deflated: That without outliers.
        num_products: Products spent, without those of a density that was there.
    """

    # Fields that had another name in older files.
    RENAMED: ClassVar[dict[str, str]] = {"rest": "deflated"}

    label: str
    outliers: Tensor
    bare: SpectralDensity
    deflated: SpectralDensity
    num_products: int

    @classmethod
    def of(
        cls,
        networks: Networks,
        bare: SpectralDensity | None,
        samples: int | None,
        progress: ProgressCallback | None,
    ) -> "SpectraDeflation":
        """Deflate the Hessian of the first network on training data; find `bare` if need be."""
        risk = seen_risk(networks, networks.cast.seeds[0], samples)
        H, C = formed(Hessian(risk)), networks.data.num_classes or 0
        pairs = subspace_iteration(
            H,
            num_pairs=C,
            num_iterations=SUBSPACE_STEPS,
            num_extra=0,
            tolerance=1e-3,
            progress=progress,
        )
        deflated = paper_density(H, 128, pairs)
        spent = pairs.num_products + deflated.num_products
        if bare is None:
            bare = paper_density(H, 128)
            spent += bare.num_products
        return cls(networks.cast.label, pairs.values.cpu(), bare, deflated, spent)

    def measured(self) -> dict[str, Measured]:
        """Return the numbers of Fig. 17."""
        nodes = self.bare.nodes.flatten()
        away = (self.outliers.double()[:, None] - nodes).abs().amin(1)
        return {
            "papyan.fig17.aligned": Measured(float(away.max()) / self.bare.sigma),
            "papyan.fig17.resolution": Measured(self.bare.sigma / self.deflated.sigma),
        }

    def picture(self) -> Picture:
        """Draw Fig. 17."""
        single = 1.0 / (self.bare.size * self.bare.sigma * math.sqrt(2.0 * math.pi))
        marks: list[list[Mark]] = [
            [
                _density_line(self.deflated, single),
                Points(
                    rounded(self.outliers),
                    [single] * len(self.outliers),
                    "outlier",
                    "deflated",
                    stem=1e-3 * single,
                ),
            ],
            [_density_line(self.bare, single)],
        ]
        ends = float(self.bare.grid[0]), float(self.bare.grid[-1])
        tall = 1e-3 * single, 2.0 * float(self.deflated.density.max())
        titles = ("subspace iteration, then Lanczos", "Lanczos alone")
        panels = [
            Panel(drawn, Axis("λ", limits=ends), Axis("density", log=True, limits=tall), title)
            for drawn, title in zip(marks, titles, strict=True)
        ]
        return picture("papyan-spectra.fig17", panels, self.label)


def paper_density(
    operator: LinearOperator,
    num_steps: int,
    outliers: EigenPairs | None = None,
    *,
    num_probes: int = 1,
    scale: str = "linear",
    reorthogonalise: bool = False,
) -> SpectralDensity:
    """Estimate a density with the settings of App. D.2.

    Args:
        operator: The matrix.
        num_steps: M.
        outliers: Pairs to deflate.
        num_probes: Start vectors.
        scale: "linear" or "log".
        reorthogonalise: Papyan does not.

    Returns:
        The density. The range is that of the same run and not of 32 steps before it.
    """
    return spectral_density(
        operator,
        num_steps=num_steps,
        num_probes=num_probes,
        outliers=outliers,
        kernel=Kernel(kappa=KAPPA),
        scale=scale,
        num_points=POINTS,
        margin=MARGIN,
        reorthogonalise=reorthogonalise,
    )


def _density_line(density: SpectralDensity, single: float) -> Line:
    y = torch.where(density.density > 1e-4 * single, density.density, 0.0)  # zeros leave gaps
    return Line(rounded(density.grid, 5), rounded(y, 4), "hessian")


def _pictures(looks: Sequence[SpectraLook]) -> list[Picture]:
    """Draw the first network of a cast."""
    spectra, bulks = [], []
    looks = [look for look in looks if look.bare is not None]
    for look in looks:
        width = 0.004 * float(look.spectra["H"].top[0])
        both = Axis("λ", limits=_range(look, width))
        for name in _COLOURS:
            s = _with_top(look.spectra[name], look.num_classes if name != "E" else 0)
            marks = s.marks(_COLOURS[name], None, width)
            panel = Panel(marks, both, Axis("density", log=True), f"{name}, {look.split}")
            bulks.append(panel)
            if name == "H":
                spectra.append(panel)
    label = looks[0].label
    slug = "-".join("".join(c if c.isalnum() else " " for c in label.lower()).split())
    return [
        picture("papyan-spectra.fig3", spectra, label, key=slug),
        picture("papyan-spectra.fig4a", bulks, label, key=slug),
        picture("papyan-spectra.fig4b", [_zoom_panel(look) for look in looks], label, key=slug),
        picture(
            "papyan-spectra.fig14",
            [_bare_panel(look.bare, look.split) for look in looks if look.bare is not None],
            label,
            key=slug,
        ),
    ]


def _zoom_panel(look: SpectraLook) -> Panel:
    """Draw the bulks as far as E reaches below zero, and as far above."""
    H, E = (look.spectra[name] for name in "HE")
    reach = 1.2 * max(-E.lowest, 1e-3 * float(H.top[0]))  # a linear model has no E
    lines = [
        _with_top(s, 0).line(_COLOURS[name], name, reach / 60, (-reach, reach))
        for name, s in look.spectra.items()
    ]
    return Panel(lines, Axis("λ"), Axis("density", log=True), f"bulks, {look.split}")


def _bare_panel(density: SpectralDensity, split: str) -> Panel:
    single = 1.0 / (density.size * density.sigma * math.sqrt(2.0 * math.pi))
    line = _density_line(density, single)
    return Panel([line], Axis("λ"), Axis("density", log=True), f"H, {split}")


def _with_top(spectrum: Spectrum, count: int) -> Spectrum:
    """Return a spectrum of which fewer eigenvalues count as outliers."""
    others: Tensor = spectrum.top[count:]
    return Spectrum(
        spectrum.top[:count],
        torch.cat([others, spectrum.nodes]),
        torch.cat([torch.ones_like(others), spectrum.counts]),
        spectrum.lowest,
        spectrum.size,
        spectrum.num_products,
    )


def _range(look: SpectraLook, width: float) -> tuple[float, float]:
    lows = [s.lowest for s in look.spectra.values()]
    highs = [float(s.top[0]) for s in look.spectra.values()]
    return min(lows) - 8 * width, 1.04 * max(highs)


def _sheet(looks: list[SpectraLook]) -> Sheet:
    rows = []
    for look in looks:
        C = look.num_classes
        for name, s in look.spectra.items():
            bulk = _with_top(s, C if name != "E" else 0)
            at = [float(s.top[i]) if i < len(s.top) else None for i in (0, C - 1, C)]
            gap = gap_place(s.top, 2 * C) if name != "E" else None
            start = (look.label, look.seed, look.split, name)
            rows.append((*start, *at, s.lowest, gap, bulk.bulk_mean(), bulk.bulk_rms()))
    return table("papyan-spectra.spectra", rows)


STUDY = Study.of(
    "papyan-spectra", measure, {"laptop": (casts.SMALL,), "paper": (*casts.VGG, casts.RESNET_FEW)}
)
