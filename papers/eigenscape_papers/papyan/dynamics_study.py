"""Papyan Fig. 6: how the parts of G move apart over epochs and together with more samples.

Levels are mean eigenvalues: tr G_class/C, tr G_cross/(C(C − 2)), and tr G_within/N with N samples,
as in the caption. Distances are decades between levels. Where all eigenvalues are known, the table
has the distances of their medians too.
"""

import dataclasses
import itertools
import math
from dataclasses import dataclass
from itertools import chain
from statistics import fmean

import torch
from torch import Tensor, nn

from eigenscape.curvature import ClassGradients
from eigenscape.operator import Dense, LinearOperator
from eigenscape.records import (
    Axis,
    Line,
    Mark,
    Panel,
    Picture,
    Points,
    ProgressCallback,
    Ticker,
    storable,
)
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape.structure import ClassSpan
from eigenscape_papers.datasets import DataSet
from eigenscape_papers.papyan import networks as casts
from eigenscape_papers.papyan.whole_spectra import (
    Spectrum,
    formed,
    gradient_parts,
    span_of,
    take_spectrum,
    total_trace,
)
from eigenscape_papers.runner import (
    SERIES,
    Cast,
    Measured,
    Networks,
    Outcome,
    Setting,
    Study,
    Workshop,
    of_each_cast,
    picture,
    rounded,
    table,
)

_SHARES = (1 / 16, 1 / 4, 1.0)  # of a user's own data
_ZERO = 1e-9  # eigenvalues below this share of the largest are rounding
_NO_LEVELS = (
    "Panels are without the levels of G_within by class where a sample has a label for each "
    "position, as in language models, or where the means do not fit into `max_bytes`."
)


@storable
@dataclass(frozen=True, eq=False)
class DynamicsPanel:
    """Eigenvalues for a panel: of G, of all that is not within, and tr/N of G_within by class."""

    spectrum: Spectrum
    means: Tensor
    within: tuple[float, ...]

    def misalignment(self) -> float:
        """Decades between the top C eigenvalues, on average."""
        k = min(len(self.spectrum.top), len(self.means))
        both = torch.stack([self.spectrum.top[:k], self.means[:k]]).clamp_min(1e-300).log10()
        return float(both.diff(dim=0).abs().mean())


@storable
@dataclass(frozen=True, eq=False)
class DynamicsMoment:
    """The parts of G of one network after one epoch."""

    num_samples: int
    num_classes: int
    seed: int
    epoch: int
    traces: dict[str, float]
    medians: dict[str, float]
    shown: DynamicsPanel | None

    @property
    def levels(self) -> dict[str, float]:
        """Mean eigenvalues of the parts."""
        C = self.num_classes
        sizes = {"class": C, "cross": max(C * (C - 2), 1), "within": self.num_samples}
        return {name: max(self.traces[name], 1e-300) / size for name, size in sizes.items()}

    def distance(self, of_matrix: str) -> float:
        """Decades from the level of G_within up to that of another part."""
        return math.log10(self.levels[of_matrix] / self.levels["within"])

    def median_distance(self, of_matrix: str) -> float | None:
        """The same for medians of eigenvalues that are not zero; None where they are not known."""
        if not self.medians:
            return None
        return math.log10(self.medians[of_matrix] / self.medians["within"])


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Take G apart for every sample size, epoch and seed."""
    ordered = [each for cast in setting.casts for each in _along(cast)]
    ordered.sort(key=lambda each: each.samples or 0)
    moments = [*chain(*of_each_cast("dynamics", setting, workshop, _of_cast, ordered))]
    shown = [moment for moment in moments if moment.shown is not None]
    pictures = [_panels_picture(shown, ordered[0].label)] if shown else []
    pictures.append(_levels_picture(moments))
    levels = table("papyan-dynamics.levels", [*map(_row, moments)])
    products = sum(m.shown.spectrum.num_products for m in shown if m.shown)
    notes = (_NO_LEVELS,) if any(m.shown and not m.shown.within for m in shown) else ()
    return Outcome(_measured(moments), tuple(pictures), (levels,), notes, products)


def _of_cast(cast: Cast, setting: Setting, workshop: Workshop) -> tuple[DynamicsMoment, ...]:
    networks = workshop.networks(cast)
    epochs = sorted({*cast.keep_epochs, networks.last})
    stages = [(seed, epoch) for seed in cast.seeds for epoch in epochs]
    ticker = Ticker(workshop.progress, f"parts of G, {cast.label}", len(stages))
    shown = setting.options["shown"]
    is_drawn = shown is None or networks.data.num_samples in shown
    moments = []
    for done, (seed, epoch) in enumerate(stages):
        ticker.tick(done)
        drawn = is_drawn and seed == cast.seeds[0]
        max_bytes, progress = setting.options["max_bytes"], workshop.progress
        moments.append(_moment(networks, seed, epoch, max_bytes, drawn=drawn, progress=progress))
    return tuple(moments)


def _along(cast: Cast) -> list[Cast]:
    """Return a user's own cast at several sample sizes and epochs; others have them already."""
    if cast.own is None:
        return [cast]
    data, last = cast.own.data, cast.recipe.epochs
    least = min(2 * (data.num_classes or 2), data.num_samples)
    sizes = {max(round(share * data.num_samples), least) for share in _SHARES}
    epochs = tuple(sorted({1, round(last ** (1 / 3)), round(last ** (2 / 3))} - {last}))
    # At random, since a user's samples may be sorted by class.
    return [
        dataclasses.replace(
            cast,
            own=dataclasses.replace(cast.own, data=data.take(n, seed=0)),
            samples=n,
            keep_epochs=epochs,
        )
        for n in sorted(sizes)
    ]


def _moment(
    networks: Networks,
    seed: int,
    epoch: int,
    max_bytes: int,
    *,
    drawn: bool,
    progress: ProgressCallback | None,
) -> DynamicsMoment:
    data, risk = networks.data, networks.risk(seed, epoch)
    C = data.num_classes or 2
    gradients: ClassGradients | ClassSpan
    G: LinearOperator
    # Every epoch is looked at, so that half as many rows are few.
    span = span_of(risk, C, progress, share=2)
    if span is not None:
        gradients, G, traces = span, span.part("G"), span.traces()
        medians = _medians(span, span.part("within"))
    else:
        gradients = ClassGradients(risk, max_bytes=max_bytes)
        traces = gradients.traces()
        traces["within"] = total_trace(risk) - traces["between"]
        G = formed(gradients.total)
        medians = {}  # of matrices that are too large
        if isinstance(G, Dense):
            medians = _medians(gradients, gradient_parts(gradients, G)["within"])
    shown = None
    if drawn:
        means = gradients.eigenvalues("between")[: C * (C - 1)].cpu()
        levels = (
            _class_levels(networks.model(seed, epoch), data, gradients)
            if isinstance(gradients, ClassGradients)
            else tuple(gradients.within_levels()[gradients.class_sizes > 0].tolist())
        )
        shown = DynamicsPanel(take_spectrum(G, C, progress=progress), means, levels)
    return DynamicsMoment(data.num_samples, C, seed, epoch, traces, medians, shown)


def _medians(gradients: ClassGradients | ClassSpan, within: LinearOperator) -> dict[str, float]:
    """Return the medians of the parts' eigenvalues that are not zero."""
    C = len(gradients.weights)
    within_values = torch.linalg.eigvalsh(within.to_dense())
    values = {
        "class": gradients.eigenvalues("class")[:C],
        "cross": gradients.eigenvalues("cross")[: max(C * (C - 2), 1)],
        "within": within_values[within_values > _ZERO * within_values.max()],
    }
    return {name: max(float(v.median()), 1e-300) for name, v in values.items()}


def _class_levels(model: nn.Module, data: DataSet, gradients: ClassGradients) -> tuple[float, ...]:
    """Return tr G_within,c over the samples of class c, for each c.

    None without the means, and none where a sample has a label for each position: then it has
    several classes.
    """
    if not gradients.is_stored or data.targets.ndim > 1:
        return ()
    levels = []
    for row, c in enumerate(gradients.classes.tolist()):
        chosen = data.targets == c
        count = int(chosen.sum())
        if count == 0:
            continue
        samples = data.inputs[chosen], data.targets[chosen]
        mean_trace = total_trace(EmpiricalRisk(model, CrossEntropy(), samples)) / data.num_samples
        weights = gradients.weights[row].tolist()
        squares = [float(gradients.mean(row, k).square().sum()) for k in range(len(weights))]
        means = sum(w * square for w, square in zip(weights, squares, strict=True))
        levels.append(mean_trace - means / count)
    return tuple(levels)


def _measured(moments: list[DynamicsMoment]) -> dict[str, Measured]:
    numbers: dict[str, Measured] = {}
    apart = []
    for _, group in itertools.groupby(moments, key=lambda m: (m.num_samples, m.seed)):
        along = [abs(m.distance("cross")) for m in group]
        if len(along) > 1:
            apart.append(along[-1] > along[0])
    if apart:
        numbers["papyan.fig6.epochs"] = Measured(sum(apart) / len(apart))
    sizes = sorted({m.num_samples for m in moments})
    if len(sizes) > 1:
        at = {(m.num_samples, m.seed, m.epoch): abs(m.distance("cross")) for m in moments}
        pairs = [
            (at[sizes[0], seed, epoch], value)
            for (samples, seed, epoch), value in at.items()
            if samples == sizes[-1] and (sizes[0], seed, epoch) in at
        ]
        closer = [large < small for small, large in pairs]
        numbers["papyan.fig6.sizes"] = Measured(sum(closer) / len(closer))
    spans = {}
    for of_matrix in ("class", "cross"):
        distances = [m.distance(of_matrix) for m in moments]
        spans[of_matrix] = max(distances) - min(distances)
    # With one size and one epoch it would be the scatter of seeds.
    if spans["cross"] > 0 and len({(m.num_samples, m.epoch) for m in moments}) > 1:
        numbers["papyan.fig6.class-distance"] = Measured(spans["class"] / spans["cross"])
    wrong = [m.shown.misalignment() for m in moments if m.shown is not None]
    numbers["papyan.fig6.alignment"] = Measured.over(wrong)
    return numbers


def _panels_picture(drawn: list[DynamicsMoment], label: str) -> Picture:
    shown = [m.shown for m in drawn if m.shown is not None]
    high = 3.0 * max(float(s.spectrum.top[0]) for s in shown)
    low = 1e-7 * high
    tallest = 3.0 * max(float(s.spectrum.log_curve(low, high)[1].max()) for s in shown)
    axes = (
        Axis("|λ|", log=True, limits=(low, high)),
        Axis("eigenvalues a decade", log=True, limits=(0.3, tallest)),
    )
    # Rows are epochs, columns sizes, as in the paper.
    ordered = sorted(drawn, key=lambda m: (m.epoch, m.num_samples))
    panels = [
        Panel(
            _panel_marks(moment.shown, low, high, tallest, named=index == 0),
            *axes,
            f"epoch {moment.epoch}, {moment.num_samples} samples",
        )
        for index, moment in enumerate(ordered)
        if moment.shown is not None
    ]
    sizes = {moment.num_samples for moment in drawn}
    return dataclasses.replace(picture("papyan-dynamics.fig6", panels, label), across=len(sizes))


def _panel_marks(
    one: DynamicsPanel, low: float, high: float, tallest: float, *, named: bool
) -> list[Mark]:
    C = len(one.spectrum.top)
    x, y = one.spectrum.log_curve(low, high)
    marks: list[Mark] = [
        Line(
            rounded(x, 4),
            rounded(torch.where(y > 0.1, y, 0.0), 3),
            "hessian",
            "G" if named else None,
        )
    ]
    rows = (
        ("top C of G", "gauss_newton", one.spectrum.top),
        ("means, first C", "sixth", one.means[:C]),
        ("means, others", "third", one.means[C:]),
        ("within", "outlier", torch.tensor(one.within, dtype=torch.float64)),
    )
    for index, (name, colour, values) in enumerate(rows):
        visible = values[values > low]
        heights = [tallest * 0.6 * 0.5**index] * len(visible)
        # One legend is enough for a dozen panels.
        marks.append(Points(rounded(visible), heights, colour, name if named else None))
    return marks


def _levels_picture(moments: list[DynamicsMoment]) -> Picture:
    panels = []
    sizes = sorted({m.num_samples for m in moments})
    for of_matrix in ("cross", "class"):
        marks = []
        for index, samples in enumerate(sizes):
            group = [m for m in moments if m.num_samples == samples]
            epochs = sorted({m.epoch for m in group})
            means = [
                fmean(m.distance(of_matrix) for m in group if m.epoch == epoch) for epoch in epochs
            ]
            colour = SERIES[index] if len(sizes) <= len(SERIES) else index / (len(sizes) - 1)
            x = tuple(float(epoch) for epoch in epochs)
            marks.append(Line(x, rounded(means), colour, f"{samples} samples"))
        axes = Axis("epoch", log=True), Axis("decades above G_within")
        panels.append(Panel(marks, *axes, f"G_{of_matrix}"))
    return picture("papyan-dynamics.distances", panels)


def _row(moment: DynamicsMoment) -> tuple[object, ...]:
    return (
        *(moment.num_samples, moment.seed, moment.epoch),
        *(moment.traces[name] for name in ("class", "cross", "within", "same")),
        *(moment.distance(name) for name in ("cross", "class")),
        *(moment.median_distance(name) for name in ("cross", "class")),
        None if moment.shown is None else moment.shown.misalignment(),
    )


STUDY = Study.of(
    "papyan-dynamics", measure, {"laptop": casts.SMALL_SIZES, "paper": casts.VGG_SIZES}
)
