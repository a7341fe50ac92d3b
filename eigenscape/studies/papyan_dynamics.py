"""Papyan Fig. 6: how the parts of G move apart over epochs and together with more samples.

Levels are mean eigenvalues: tr G_class/C, tr G_cross/(C(C − 2)), and tr G_within/N with N samples,
as in the caption. Distances are decades between levels.
"""

import itertools
import math
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from eigenscape.linalg import eigsh
from eigenscape.linear_operator import LinearOperator
from eigenscape.operators import ClassGradients, Dense
from eigenscape.report import Axis, Line, Mark, Panel, Picture, Points, Rule, Sheet
from eigenscape.studies import papyan_casts as casts
from eigenscape.studies._draw import SERIES, rounded
from eigenscape.studies._tables import sheet
from eigenscape.studies._whole_spectra import (
    Spectrum,
    formed,
    take_spectrum,
    total_trace,
)
from eigenscape.studies.claim import Claim, Measured
from eigenscape.studies.study import Outcome, Setting, Study
from eigenscape.studies.workshop import Networks, Workshop

_SHOWN = 3  # sizes of the panels: the smallest, one in the middle, the largest
_CLAIMS = (
    Claim(
        "papyan.fig6.epochs",
        "Fig. 6, §6.2",
        "share of sample sizes and seeds at which G_cross and G_within are further apart after the "
        "last epoch than after the first that was kept",
        "with more epochs the bulks of G_cross and G_within separate",
        low=0.75,
        why="A statement about all sizes; one exception in four is allowed for noise. On digits "
        "the exceptions are those with 10 samples a class, after one epoch of four steps.",
    ),
    Claim(
        "papyan.fig6.sizes",
        "Fig. 6, §6.2",
        "share of epochs and seeds at which they are closer for the largest sample than for the "
        "smallest",
        "with more samples the bulks merge",
        low=0.75,
        why="As above, for epochs. Levels of G_within fall like 1/N. On digits G_cross is above "
        "it, so they part; in Fig. 5 the mini-bulk is left of the bulk, where the same fall would "
        "make them meet.",
    ),
    Claim(
        "papyan.fig6.class-distance",
        "Fig. 6, §6.2",
        "range over all epochs and sizes of the distance of G_class and G_within, over that of the "
        "distance of G_cross and G_within",
        "the distance of G_class and G_within does not change significantly",
        high=0.5,
        why="Half of what does change is the most that can pass for no change. The level of "
        "G_within is tr/N as in the caption, so ten times more samples alone move it by a decade.",
    ),
    Claim(
        "papyan.fig6.alignment",
        "Fig. 6, §6.2",
        "mean distance in decades of the top C eigenvalues of G and of G_class + G_cross + G_c=c'",
        "they align",
        high=0.15,
        why="A third of a decade can be seen on an axis of six; half of that is aligned.",
    ),
)


@dataclass(frozen=True, eq=False)
class _Moment:
    """The parts of G of one network after one epoch."""

    networks: Networks
    seed: int
    epoch: int
    traces: dict[str, float]
    shown: "_Shown | None"

    @property
    def num_samples(self) -> int:
        return self.networks.data.num_samples

    @property
    def levels(self) -> dict[str, float]:
        """Mean eigenvalues of the parts."""
        C = self.networks.data.num_classes or 2
        sizes = {"class": C, "cross": max(C * (C - 2), 1), "within": self.num_samples}
        return {name: max(self.traces[name], 1e-300) / size for name, size in sizes.items()}

    def distance(self, part: str) -> float:
        """Decades from the level of G_within up to that of another part."""
        return math.log10(self.levels[part] / self.levels["within"])


@dataclass(frozen=True, eq=False)
class _Shown:
    """Eigenvalues for a panel: of G, and of all that is not within."""

    spectrum: Spectrum
    means: Tensor

    def misalignment(self) -> float:
        """Decades between the top C eigenvalues, on average."""
        k = min(len(self.spectrum.top), len(self.means))
        both = torch.stack([self.spectrum.top[:k], self.means[:k]]).clamp_min(1e-300).log10()
        return float(both.diff(dim=0).abs().mean())


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Take G apart for every sample size, epoch and seed."""
    found = sorted(
        casts.best_of(workshop, setting.casts), key=lambda networks: networks.data.num_samples
    )
    places = {round(i * (len(found) - 1) / (_SHOWN - 1)) for i in range(_SHOWN)}
    moments = []
    for place, networks in enumerate(found):
        for seed in networks.cast.seeds:
            drawn = place in places and seed == networks.cast.seeds[0]
            for epoch in _epochs(networks):
                moments.append(
                    _moment(networks, seed, epoch, setting.options["max_bytes"], drawn=drawn)
                )
    shown = [moment for moment in moments if moment.shown is not None]
    pictures = (_panels_picture(shown), _levels_picture(moments))
    products = sum(m.shown.spectrum.num_products for m in shown if m.shown)
    return Outcome(_measured(moments), pictures, (_sheet(moments),), (), products)


def _epochs(networks: Networks) -> list[int]:
    return sorted({*networks.cast.keep_epochs, networks.last})


def _moment(networks: Networks, seed: int, epoch: int, max_bytes: int, *, drawn: bool) -> _Moment:
    risk = networks.risk(seed, epoch)
    gradients = ClassGradients(risk, max_bytes=max_bytes)
    traces = gradients.traces()
    means = ("class", "cross", "same")
    traces["within"] = total_trace(risk) - sum(traces[name] for name in means)
    shown = None
    if drawn:
        C = len(gradients.classes)
        parts = formed(gradients.part("class") + gradients.part("cross") + gradients.part("same"))
        shown = _Shown(take_spectrum(formed(gradients.total), C), _largest(parts, C * (C - 1)))
    return _Moment(networks, seed, epoch, traces, shown)


def _largest(operator: LinearOperator, count: int) -> Tensor:
    k = min(count, operator.space.size)
    if isinstance(operator, Dense):
        values: Tensor = torch.linalg.eigvalsh(operator.to_dense()).flip(0)[:k].cpu()
        return values
    return eigsh(operator, num_pairs=k, tolerance=1e-3).values.cpu().double()


def _measured(moments: list[_Moment]) -> dict[str, Measured]:
    found: dict[str, Measured] = {}
    apart = []
    for _, group in itertools.groupby(moments, key=lambda m: (m.num_samples, m.seed)):
        along = [abs(m.distance("cross")) for m in group]
        if len(along) > 1:
            apart.append(along[-1] > along[0])
    if apart:
        found["papyan.fig6.epochs"] = Measured(sum(apart) / len(apart))
    sizes = sorted({m.num_samples for m in moments})
    if len(sizes) > 1:
        at = {(m.num_samples, m.seed, m.epoch): abs(m.distance("cross")) for m in moments}
        pairs = [
            (at[sizes[0], seed, epoch], value)
            for (samples, seed, epoch), value in at.items()
            if samples == sizes[-1] and (sizes[0], seed, epoch) in at
        ]
        closer = [large < small for small, large in pairs]
        found["papyan.fig6.sizes"] = Measured(sum(closer) / len(closer))
    spans = {}
    for part in ("class", "cross"):
        distances = [m.distance(part) for m in moments]
        spans[part] = max(distances) - min(distances)
    if spans["cross"] > 0:
        found["papyan.fig6.class-distance"] = Measured(spans["class"] / spans["cross"])
    wrong = [m.shown.misalignment() for m in moments if m.shown is not None]
    found["papyan.fig6.alignment"] = Measured.over(wrong)
    return found


def _panels_picture(drawn: list[_Moment]) -> Picture:
    shown = [m.shown for m in drawn if m.shown is not None]
    high = 3.0 * max(float(s.spectrum.top[0]) for s in shown)
    low = 1e-7 * high
    panels: list[Panel] = []
    # Rows are epochs, columns sizes, as in the paper.
    for moment in sorted(drawn, key=lambda m: (m.epoch, m.num_samples)):
        one = moment.shown
        if one is None:
            continue
        C = len(one.spectrum.top)
        x, y = one.spectrum.log_curve(low, high)
        top = 3.0 * float(y.max())
        rest = one.means[C:][one.means[C:] > low]
        # One legend is enough for a dozen panels.
        names = ("G", "top C of G", "means, first C", "means, others") if not panels else [None] * 4
        marks: list[Mark] = [
            Line(rounded(x, 4), rounded(torch.where(y > 0.1, y, 0.0), 3), "hessian", names[0]),
            Points(rounded(one.spectrum.top), [0.5 * top] * C, "gauss_newton", names[1]),
            Points(rounded(one.means[:C]), [0.15 * top] * C, "sixth", names[2]),
            Points(rounded(rest), [0.05 * top] * len(rest), "third", names[3]),
            Rule(moment.levels["within"], "" if panels else "within", colour="outlier"),
        ]
        title = f"epoch {moment.epoch}, {moment.num_samples} samples"
        tall = Axis("eigenvalues a decade", log=True, limits=(0.3, top))
        panels.append(Panel(marks, Axis("|λ|", log=True, limits=(low, high)), tall, title))
    return Picture(
        "fig6",
        f"Fig. 6: the log-spectrum of G and its parts, {drawn[0].networks.cast.label}",
        panels,
        shows="“Means” are the eigenvalues of G_class + G_cross + G_{c=c'}: the first C are due to "
        "G_class, the others to G_cross. The upright line is tr G_within/N. Heights of points "
        "mean nothing.",
    )


def _levels_picture(moments: list[_Moment]) -> Picture:
    panels = []
    sizes = sorted({m.num_samples for m in moments})
    for part in ("cross", "class"):
        marks = []
        for place, samples in enumerate(sizes):
            group = [m for m in moments if m.num_samples == samples]
            epochs = sorted({m.epoch for m in group})
            means = [fmean(m.distance(part) for m in group if m.epoch == epoch) for epoch in epochs]
            colour = SERIES[place] if len(sizes) <= len(SERIES) else place / (len(sizes) - 1)
            x = tuple(float(epoch) for epoch in epochs)
            marks.append(Line(x, rounded(means), colour, f"{samples} samples"))
        axes = Axis("epoch", log=True), Axis("decades above G_within")
        panels.append(Panel(marks, *axes, f"G_{part}"))
    return Picture(
        "distances",
        "Distance of the levels of G_cross and G_class from that of G_within",
        panels,
        shows="Mean over seeds. The bulks separate where the left curves move away from zero.",
    )


def _sheet(moments: list[_Moment]) -> Sheet:
    names = ["samples", "seed", "epoch", "tr G_class", "tr G_cross", "tr G_within", "tr G_c=c'"]
    names += ("cross above within (decades)", "class above within (decades)")
    rows = [
        (
            m.num_samples,
            m.seed,
            m.epoch,
            *(m.traces[name] for name in ("class", "cross", "within", "same")),
            m.distance("cross"),
            m.distance("class"),
        )
        for m in moments
    ]
    return sheet("levels", "Traces of the parts", names, rows)


STUDY = Study(
    name="papyan-dynamics",
    paper="Papyan",
    where="Fig. 6; §6.2",
    title="Do the parts of G separate over epochs and merge with more samples?",
    settings={
        "laptop": Setting(
            casts.SMALL_SIZES,
            {"max_bytes": 2**32},
            note=f"Learning rate 0.1, three sample sizes of Papyan's 20. {casts.FIRST}",
        ),
        "paper": Setting(
            casts.VGG_SIZES,
            {"max_bytes": 24 * 10**9},
            note=f"Learning rate 0.02 for all sizes. {casts.FIRST}",
        ),
    },
    measure=measure,
    claims=_CLAIMS,
)
