"""Papyan Figs 3, 4, 14, 17: the spectra of H, G and E on training and test data.

H has about C outliers, a bulk around zero and negative eigenvalues; its outliers are those of G.
Deflation of the outliers sharpens what Lanczos shows of the bulk.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from eigenscape.linalg import Kernel, SpectralDensity, spectral_density, subspace_iteration
from eigenscape.linear_operator import LinearOperator
from eigenscape.operators import Hessian
from eigenscape.pairs import EigenPairs
from eigenscape.progress import ProgressCallback, Ticker
from eigenscape.records import storable
from eigenscape.report import Axis, Line, Mark, Panel, Picture, Points, Sheet
from eigenscape.studies import papyan_casts as casts
from eigenscape.studies._draw import rounded
from eigenscape.studies._tables import sheet
from eigenscape.studies._whole_spectra import (
    Spectrum,
    formed,
    held_out_risk,
    hessian_parts,
    seen_risk,
    take_spectrum,
)
from eigenscape.studies.cast import Cast
from eigenscape.studies.claim import Claim, Measured
from eigenscape.studies.study import Outcome, Setting, Study
from eigenscape.studies.workshop import Networks, Workshop
from eigenscape.studies.wu_spectra import gap_place

_COLOURS = {"H": "hessian", "G": "gauss_newton", "E": "residual"}
# App. D.2: κ = 3, margin 0.05, 1024 points, one start vector; T = 128 for subspace iteration.
KAPPA, MARGIN, POINTS, SUBSPACE_STEPS = 3.0, 0.05, 1024, 128
_KNOWN_TAILS = (
    "On digits λ_{i+1} of either matrix is below λ_i of the other, but for one of 36. But which is "
    "the larger changes with i: both differ by some per cent, and E reaches as far below zero as "
    "above. The first is larger of G in both networks; of the next eight, six and eight of H. Of "
    "VGG11 on MNIST, at paper scale, four of the first five are larger of G, by 0.2 to 0.8 per "
    "cent, and all others of H; on Fashion-MNIST all but the third are larger of H, by 0.6 per "
    "cent or less, on CIFAR-10 all but the first and the seventh, by 0.4 per cent or less."
)
_CLAIMS = (
    Claim(
        "papyan.fig3.outliers",
        "Fig. 3, §4.1",
        "share of Hessians, train and test, whose largest ratio λ_i/λ_{i+1} among i = 2 … 2C "
        "stands at C − 1 or C",
        "a bulk and, arguably, C outliers",
        low=0.5,
        why="“Arguably” allows exceptions; most must agree. C − 1 as well, since C class means "
        "around a small global mean span C − 1 directions.",
        known="The eigenvalues of the narrow network on digits fall past C without a jump: no "
        "ratio of neighbours is above 1.6, and that after C is from 1.09 to 1.22. So noise decides "
        "where the largest stands. What an eye calls outliers in Fig. 3, ten stems above a bulk of "
        "28 million, needs no jump after C, and a ratio cannot see it. At paper scale, VGG11 on "
        "training data of MNIST, the ratio is 1.9 after the second eigenvalue, 1.3 after the ninth "
        "and 1.05 after the tenth; of Fashion-MNIST 1.3 after the sixth, 1.1 after the ninth; of "
        "CIFAR-10 1.3 after the seventh and 1.2 after the tenth. On its test data it is 1.37 after "
        "the eighth and 1.35 after the ninth, and below 1.25 elsewhere: nearly as claimed.",
    ),
    Claim(
        "papyan.fig3.concentration",
        "Fig. 3, §4.1",
        "share of the eigenvalues of the train Hessian with |λ| below a hundredth of λ₁",
        "a big concentration of eigenvalues at zero",
        low=0.9,
        why="Nine of ten is a big concentration. Papyan has 28 million parameters for 50 000 "
        "samples, so more than 98 % must be near zero there.",
    ),
    Claim(
        "papyan.fig3.negative",
        "Fig. 3, §4.1",
        "−λ_min/λ_max of the train Hessian",
        "negative eigenvalues exist at the end of training",
        low=1e-6,
        why="Far above rounding, which is 10⁻¹⁶ here. A sign is all the text says.",
    ),
    Claim(
        "papyan.fig3.test-magnitude",
        "Fig. 3, §4.1",
        "λ₁ of the test Hessian over λ₁ of the train Hessian",
        "a clear difference in magnitude between train and test",
        low=2.0,
        why="The axes of the figure differ by a factor or more; two is a clear difference.",
    ),
    Claim(
        "papyan.fig4.test-tails",
        "Fig. 4, §5.1",
        "share of i = 1 … C − 1 with λ_{i+1}(A) ≤ λ_i(B) ≤ λ_i(A), test data, where A is H and B "
        "is G or the other way round, whichever has more",
        "upper tails of H and G interlace",
        low=1.0,
        why="“As in Cauchy's theorem”, which has both sides and no exceptions. E is not of rank "
        "one, so that it holds would be a finding and no theorem.",
        known=_KNOWN_TAILS,
    ),
    Claim(
        "papyan.fig17.aligned",
        "Fig. 17, App. C.8",
        "largest distance of the C values of subspace iteration from the nearest node of plain "
        "Lanczos, in widths σ of the kernel",
        "top eigenvalues align with the outliers of the bare density",
        high=1.0,
        why="Within the width in which both are drawn.",
    ),
    Claim(
        "papyan.fig17.resolution",
        "Fig. 17, App. C.8",
        "kernel width σ without deflation over that with it",
        "deflation improves the resolution of the bulk",
        low=1.5,
        why="Any factor above 1 improves; half as much again can be seen.",
    ),
)


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
    found = [
        workshop.part(
            "spectra", (cast,), setting.options, partial(_of_cast, cast, setting, workshop)
        )
        for cast in setting.casts
    ]
    looks = [look for networks, _ in found for look in networks]
    measured = _measured(looks) if looks else {}
    pictures = [picture for networks, _ in found if networks for picture in _pictures(networks)]
    products = sum(look.num_products for look in looks)
    deflations = [deflation for _, deflation in found if deflation is not None]
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
    found: list[SpectraLook] = []
    ticker = Ticker(workshop.progress, f"H, G and E of {label}", len(_COLOURS) * len(risks))
    for split, risk in risks.items():
        if risk is not None:
            parts, spectra, bare = hessian_parts(risk), {}, None
            for name in _COLOURS:
                part = parts.pop(name)  # what it holds of a large network goes before the next
                # Twice as many as there are outliers, to see where they end; E has none.
                top = 1 if name == "E" else 2 * C + 1
                spectra[name] = take_spectrum(part, top, progress=workshop.progress)
                if name == "H" and seed == networks.cast.seeds[0]:
                    bare = paper_density(part, 128)
                ticker.tick(len(_COLOURS) * len(found) + len(spectra))
            found.append(SpectraLook(label, seed, split, spectra, C, bare))
    return found


def _measured(looks: list[SpectraLook]) -> dict[str, Measured]:
    train = [look for look in looks if look.split == "train"]
    test = [look for look in looks if look.split == "test"]
    places = [gap_place(look.spectra["H"].top, 2 * look.num_classes) for look in looks]
    near = [p - look.num_classes in (-1, 0) for p, look in zip(places, looks, strict=True)]
    found = {
        "papyan.fig3.outliers": Measured(sum(near) / len(near)),
        "papyan.fig3.concentration": Measured.over([_small(one) for one in train]),
        "papyan.fig3.negative": Measured.over(
            [-s.lowest / float(s.top[0]) for s in _of(train, "H")]
        ),
    }
    if test:
        firsts = [[float(s.top[0]) for s in _of(group, "H")] for group in (train, test)]
        ratios = [two / one for one, two in zip(*firsts, strict=True)]
        found["papyan.fig3.test-magnitude"] = Measured.over(ratios)
        found["papyan.fig4.test-tails"] = Measured(min(_interlaced(look) for look in test))
    return found


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
        rest: That without outliers.
        num_products: Products spent, without those of a density that was there.
    """

    label: str
    outliers: Tensor
    bare: SpectralDensity
    rest: SpectralDensity
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
        rest = paper_density(H, 128, pairs)
        spent = pairs.num_products + rest.num_products
        if bare is None:
            bare = paper_density(H, 128)
            spent += bare.num_products
        return cls(networks.cast.label, pairs.values.cpu(), bare, rest, spent)

    def measured(self) -> dict[str, Measured]:
        """Return the numbers of Fig. 17."""
        nodes = self.bare.nodes.flatten()
        away = (self.outliers.double()[:, None] - nodes).abs().amin(1)
        return {
            "papyan.fig17.aligned": Measured(float(away.max()) / self.bare.sigma),
            "papyan.fig17.resolution": Measured(self.bare.sigma / self.rest.sigma),
        }

    def picture(self) -> Picture:
        """Draw Fig. 17."""
        single = 1.0 / (self.bare.size * self.bare.sigma * math.sqrt(2.0 * math.pi))
        marks: list[list[Mark]] = [
            [
                _density_line(self.rest, single),
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
        tall = 1e-3 * single, 2.0 * float(self.rest.density.max())
        titles = ("subspace iteration, then Lanczos", "Lanczos alone")
        panels = [
            Panel(drawn, Axis("λ", limits=ends), Axis("density", log=True, limits=tall), title)
            for drawn, title in zip(marks, titles, strict=True)
        ]
        return Picture(
            "fig17",
            f"Fig. 17: deflation of the train Hessian, {self.label}",
            panels,
            shows="With the settings of App. D.2: 128 steps from one vector, no "
            "reorthogonalisation, κ = 3; 128 subspace iterations. Without outliers the kernel is "
            "narrower, and the bulk shows its edge.",
        )


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
    spectra, parts = [], []
    looks = [look for look in looks if look.bare is not None]
    for look in looks:
        width = 0.004 * float(look.spectra["H"].top[0])
        both = Axis("λ", limits=_range(look, width))
        for name in _COLOURS:
            s = _with_top(look.spectra[name], look.num_classes if name != "E" else 0)
            marks = s.marks(_COLOURS[name], None, width)
            panel = Panel(marks, both, Axis("density", log=True), f"{name}, {look.split}")
            parts.append(panel)
            if name == "H":
                spectra.append(panel)
    label = looks[0].label
    slug = "-".join("".join(c if c.isalnum() else " " for c in label.lower()).split())
    return [
        Picture(
            f"fig3-{slug}",
            f"Fig. 3: spectrum of the Hessian, {label}",
            spectra,
            shows="The top C eigenvalues are stems, at the height that one eigenvalue has. Note "
            "the different axes of train and test.",
        ),
        Picture(
            f"fig4a-{slug}",
            f"Fig. 4a: H and its parts G and E, {label}",
            parts,
            shows="Outliers of H are those of G: with G knocked out, E has none. What is left of "
            "zero is due to E, as G has no negative eigenvalues.",
        ),
        Picture(
            f"fig4b-{slug}",
            f"Fig. 4b: the bulks of H, G and E, {label}",
            [_zoom_panel(look) for look in looks],
            shows="Where the bulk of H is that of E, it is due to E; where it is that of G, to G.",
        ),
        Picture(
            f"fig14-{slug}",
            f"Fig. 14: the Hessian by Lanczos alone, {label}",
            [_bare_panel(look.bare, look.split) for look in looks if look.bare is not None],
            shows="With the settings of App. D.2 and nothing deflated: each outlier is as wide as "
            "the kernel, and so is the edge of the bulk.",
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
    rest: Tensor = spectrum.top[count:]
    return Spectrum(
        spectrum.top[:count],
        torch.cat([rest, spectrum.nodes]),
        torch.cat([torch.ones_like(rest), spectrum.counts]),
        spectrum.lowest,
        spectrum.size,
        spectrum.num_products,
    )


def _range(look: SpectraLook, width: float) -> tuple[float, float]:
    lows = [s.lowest for s in look.spectra.values()]
    highs = [float(s.top[0]) for s in look.spectra.values()]
    return min(lows) - 8 * width, 1.04 * max(highs)


def _sheet(looks: list[SpectraLook]) -> Sheet:
    names = ["network", "seed", "data", "matrix", "λ₁", "λ_C", "λ_{C+1}", "λ_min"]
    names += ("gap after", "mean |λ| of the bulk", "rms of the bulk")
    rows = []
    for look in looks:
        C = look.num_classes
        for name, s in look.spectra.items():
            bulk = _with_top(s, C if name != "E" else 0)
            at = [float(s.top[i]) if i < len(s.top) else None for i in (0, C - 1, C)]
            gap = gap_place(s.top, 2 * C) if name != "E" else None
            start = (look.label, look.seed, look.split, name)
            rows.append((*start, *at, s.lowest, gap, bulk.bulk_mean(), bulk.bulk_rms()))
    return sheet("spectra", "H, G and E of every network", names, rows)


STUDY = Study(
    name="papyan-spectra",
    paper="Papyan",
    where="Figs 3, 4, 14, 17; §4, §5; App. C.8",
    title="What do the spectra of H, G and E look like on training and test data?",
    settings={
        "laptop": Setting((casts.SMALL,), {"samples": None}, note=casts.NOTE),
        "paper": Setting(
            (*casts.VGG, casts.RESNET_FEW),
            {"samples": 512},
            note="Spectra are those of 512 training and 512 test samples, where Papyan takes all. "
            f"{casts.VGG_EPOCHS} {casts.NOTE} {casts.FIRST} {casts.NO_CIFAR100}",
            dtype=torch.float32,
        ),
    },
    measure=measure,
    claims=_CLAIMS,
)
