"""Wu Tables 6, 7 and 8: is the mean of a layer's input all there is to its autocorrelation?

(v₁ᵀÊ[x])² near 1 and a large λ₁/λ₂ mean E[xxᵀ] ≈ E[x]E[x]ᵀ. With BatchNorm the mean is gone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from torch import nn

from eigenscape.analyses import Autocorrelation, autocorrelations
from eigenscape.errors import RunError
from eigenscape.records import Axis, Panel, Picture, storable
from eigenscape_papers.runner import (
    SERIES,
    Cast,
    Measured,
    Networks,
    Outcome,
    Setting,
    Sheet,
    Study,
    Workshop,
    curve,
    matrix_layers,
    picture,
    slug,
    spectrum,
    table,
)
from eigenscape_papers.wu import networks as casts


def _table(model: str, kind: str) -> str:
    return "Table 8" if model.endswith("-BN") else "Table 7" if kind == "conv" else "Table 6"


def _stem(model: str, data: str, kind: str) -> str:
    table = _table(model, kind).lower().replace(" ", "")
    return f"wu.{table}.{slug(model)}-{data}-{kind}"


_Row = tuple[str, str, str, int, str, bool, float, float, float]


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Measure E[xxᵀ] of every layer of every network."""
    measurements = [autocorrelation_part(cast, workshop) for cast in setting.casts]
    rows = [row for one in measurements for row in one.rows]
    pictures = [one.picture for one in measurements]
    along = [moment for one in measurements for moment in one.along]
    sheets = [_summary(rows), table("wu-autocorrelation.layers", rows)]
    if along:
        moments = [(m.network, m.epoch, m.layer, m.ratio.ours, m.ratio.spread) for m in along]
        sheets.append(table("wu-autocorrelation.along", moments))
        pictures.append(_along_picture(along))
    notes = tuple(note for one in measurements for note in one.notes)
    return Outcome({}, tuple(pictures), tuple(sheets), notes, by_name=_measured(rows))


@storable
@dataclass(frozen=True)
class RatioAlong:
    """λ₁/λ₂ of one layer at one epoch, over the seeds of a cast."""

    network: str
    epoch: int
    layer: str
    ratio: Measured


@storable
@dataclass(frozen=True)
class AutocorrelationPart:
    """What was found of one cast."""

    rows: tuple[_Row, ...]
    picture: Picture
    along: tuple[RatioAlong, ...]
    notes: tuple[str, ...]


def autocorrelation_part(cast: Cast, workshop: Workshop) -> AutocorrelationPart:
    """Measure a cast, or find it where parts are kept; for all studies of layers' inputs.

    Args:
        cast: Which networks.
        workshop: Where they are, and parts.

    Returns:
        What was found.
    """
    return workshop.part("autocorrelation", (cast,), {}, partial(_of_cast, cast, workshop))


def _of_cast(cast: Cast, workshop: Workshop) -> AutocorrelationPart:
    networks = workshop.networks(cast)
    rows: list[_Row] = []
    last = []
    for seed in cast.seeds:
        layers = _layers(networks, seed)
        rows += [_row(networks, seed, kind, r, r is layers[0][1]) for kind, r in layers]
        last.append([record for _, record in layers])
    along, gone = _along(networks, last) if cast.keep_epochs else ([], [])
    which = ", ".join(str(epoch) for epoch in gone)
    notes = (f"Weights of {cast.label} at epoch {which} are not at hand.",) if gone else ()
    return AutocorrelationPart(tuple(rows), _picture(networks, last[0]), tuple(along), notes)


def _along(
    networks: Networks, last: Sequence[Sequence[Autocorrelation]]
) -> tuple[list[RatioAlong], list[int]]:
    """Return what was found at every kept epoch, and the epochs whose weights are gone."""
    cast = networks.cast
    ratios: list[RatioAlong] = []
    gone = []
    for epoch in sorted({0, *cast.keep_epochs, networks.last}):
        runs = last
        if epoch != networks.last:
            try:
                runs = [[r for _, r in _layers(networks, seed, epoch)] for seed in cast.seeds]
            except RunError:  # weights may be kept for the end alone
                gone.append(epoch)
                continue
        for records in list(zip(*runs, strict=True))[1:]:  # no training touches what images are
            ratio = Measured.over([record.ratio for record in records])
            ratios.append(RatioAlong(cast.label, epoch, records[0].layer, ratio))
    return ratios, gone


def _along_picture(along: Sequence[RatioAlong]) -> Picture:
    panels = []
    for network in dict.fromkeys(m.network for m in along):
        moments = [m for m in along if m.network == network]
        epochs = list(dict.fromkeys(m.epoch for m in moments))
        ticks = tuple((float(i + 1), str(epoch)) for i, epoch in enumerate(epochs))
        lines = [
            curve(
                [m.ratio.ours for m in moments if m.layer == layer], SERIES[i % len(SERIES)], layer
            )
            for i, layer in enumerate(dict.fromkeys(m.layer for m in moments))
        ]
        axis = Axis("epoch", ticks=ticks, limits=(0.5, len(epochs) + 0.5))
        panels.append(Panel(lines, axis, Axis("λ₁/λ₂", log=True), network))
    return picture("wu-autocorrelation.ratios-along", panels)


def _layers(
    networks: Networks, seed: int, epoch: int | None = None
) -> list[tuple[str, Autocorrelation]]:
    risk = networks.risk(seed, epoch)
    modules = dict(networks.model(seed).named_modules())
    names = matrix_layers(risk)
    records = autocorrelations(risk, names).layers
    kinds = ["fc" if isinstance(modules[name], nn.Linear) else "conv" for name in names]
    return list(zip(kinds, records, strict=True))


def _row(networks: Networks, seed: int, kind: str, record: Autocorrelation, first: bool) -> _Row:
    cast = networks.cast
    numbers = (record.alignment, record.ratio, record.dominance)
    return (cast.model, cast.data, kind, seed, record.layer, first, *numbers)


def _picture(networks: Networks, records: Sequence[Autocorrelation]) -> Picture:
    panels = [
        inputs_panel(record, "eigenvalue", f"{record.layer}: λ₁/λ₂ = {record.ratio:.3g}")
        for record in records
    ]
    name = slug(networks.cast.model)
    return picture("wu-autocorrelation.input-spectra", panels, networks.cast, model=name)


def inputs_panel(record: Autocorrelation, label: str, title: str) -> Panel:
    """Draw the top eigenvalues of E[xxᵀ]."""
    values = record.values[:20].clamp_min(0)
    x, y = Axis("index", whole=True), Axis(label, log=True)
    return Panel([spectrum(values, "hessian")], x, y, title)


def _groups(rows: Sequence[_Row]) -> dict[tuple[str, str, str], list[_Row]]:
    """Return the rows of each line of the tables: the first layer is left out, as there."""
    groups: dict[tuple[str, str, str], list[_Row]] = {}
    for row in rows:
        if not row[5]:
            groups.setdefault((row[0], row[1], row[2]), []).append(row)
    return groups


def _summary(rows: Sequence[_Row]) -> Sheet:
    groups = _groups(rows)
    columns: dict[str, tuple[object, ...]] = {
        "network": tuple(key[0] for key in groups),
        "data": tuple(key[1] for key in groups),
        "layers": tuple(key[2] for key in groups),
    }
    for column, name in ((6, "(v₁ᵀÊ[x])²"), (7, "λ₁/λ₂")):
        for word, reduce in (("mean", fmean), ("min", min), ("max", max)):
            columns[f"{name} {word}"] = tuple(
                float(reduce([float(row[column]) for row in group])) for group in groups.values()
            )
    return Sheet("summary", "As in Tables 6, 7 and 8: all layers but the first", columns)


def _measured(rows: Sequence[_Row]) -> dict[str, Measured]:
    numbers: dict[str, Measured] = {}
    groups = _groups(rows)
    for (model, data, kind), group in groups.items():
        stem = _stem(model, data, kind)
        ratios = [row[7] for row in group]
        numbers[f"{stem}.spectral-ratio"] = Measured.over(ratios)
        if model.endswith("-BN"):
            numbers[f"{stem}.mean-direction.mean"] = Measured.over([row[6] for row in group])
        else:
            numbers[f"{stem}.mean-direction"] = Measured(min(row[6] for row in group))
    plain = [r for r in rows if r[2] == "fc" and not r[5] and not r[0].endswith("-BN")]
    normed = [group for (model, *_), group in groups.items() if model.endswith("-BN")]
    if plain:
        numbers["wu.sec4.3.mean-direction.least"] = Measured(min(row[6] for row in plain))
        numbers["wu.sec4.3.mean-direction.mean"] = Measured(_over_layers(plain, 6))
        numbers["wu.sec4.3.spectral-ratio.mean"] = Measured(_over_layers(plain, 7))
    # Inputs without any mean, or without any spread, are bounded by nothing.
    bounded = [r for r in rows if r[2] == "fc" and math.isfinite(r[7]) and 0 < r[8] < math.inf]
    if bounded:
        numbers["wu.eq52.lower-bound"] = Measured(min(row[7] / row[8] for row in bounded))
    if normed:
        means = [fmean(row[7] for row in group) for group in normed]
        numbers["wu.table8.batchnorm.ratio"] = Measured(max(means))
    return numbers


def _over_layers(rows: Sequence[_Row], column: int) -> float:
    """Return the mean over layers, each of which counts once however many seeds it has."""
    layers: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        layers.setdefault((row[0], row[1], row[4]), []).append(float(row[column]))
    return fmean(fmean(values) for values in layers.values())


STUDY = Study.of(
    "wu-autocorrelation",
    measure,
    {
        "laptop": (casts.SMALL_MLP, casts.SMALL_CONV, casts.SMALL_MLP_BN),
        "paper": (
            casts.MLP,
            *casts.MLPS,
            *casts.CIFAR_MLPS,
            casts.LENET,
            *casts.LENET_WIDTHS,
            casts.VGG,
            casts.VGG_WIDE,
            *casts.MLP_BN,
            casts.LENET_BN,
        ),
    },
)
