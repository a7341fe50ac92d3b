"""Wu Table 10: is the top eigenspace of E[M] the row space of the weights above the layer?

S is read in three ways: the product of the weights, as printed, which is what claims of Table 10
judge; the same with the rates at which units fire between the factors; and E[∂z/∂output].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev

import torch

from eigenscape.errors import UnsupportedModelError
from eigenscape.records import Axis, Panel, Points, storable
from eigenscape.risk import EmpiricalRisk
from eigenscape_papers.runner import (
    Cast,
    Measured,
    Outcome,
    Setting,
    Study,
    Workshop,
    indices,
    matrix_layers,
    picture,
    printed,
    rounded,
    table,
)
from eigenscape_papers.wu import networks as casts
from eigenscape_papers.wu.output_space import OutputSpaceOverlap, output_space_overlap

_NAME = "wu-output-space"
_SPACES = ("weights", "firing", "gradients")


def _stem(model: str, data: str, labels: str) -> str:
    return f"wu.table10.{model.lower().replace('^', 'x')}.{data}.{labels}"


_Found = dict[tuple[str, str], OutputSpaceOverlap]


@storable
@dataclass(frozen=True)
class OutputSpaceLayer:
    """One layer of the networks of a cast.

    Attributes:
        name: The layer's name.
        is_last: Whether no other follows.
        start: Overlaps at the start, for each seed by each reading of S.
        end: The same at the minimum.
        removed: For each seed, with R(S) less Sᵀ1 in place of {Sᵀa : a ⊥ 1}, at the minimum.
        gaps: For each seed λ_d/λ_{d+1} of E[M] there; None where nothing is left of E[M].
    """

    name: str
    is_last: bool
    start: tuple[tuple[float, ...], ...]
    end: tuple[tuple[float, ...], ...]
    removed: tuple[float, ...]
    gaps: tuple[float | None, ...]

    def overlaps(self, space: str = "weights", *, start: bool = False) -> list[float]:
        """Return them for each seed."""
        column = _SPACES.index(space)
        return [of_seed[column] for of_seed in (self.start if start else self.end)]

    def row(self, network: str) -> tuple[object, ...]:
        """Return its row of the table."""
        ours = self.overlaps()
        return (
            network,
            self.name,
            fmean(ours),
            stdev(ours) if len(ours) > 1 else None,
            fmean(self.removed),
            *(fmean(self.overlaps(space)) for space in _SPACES[1:]),
            *(fmean(self.overlaps(space, start=True)) for space in _SPACES),
            None if None in self.gaps else fmean(gap for gap in self.gaps if gap is not None),
        )


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Compare the spaces for every fully connected layer, at the start and at the end."""
    rows: list[tuple[object, ...]] = []
    measured: dict[str, Measured] = {}
    by_name: dict[str, Measured] = {}
    starts: dict[str, list[OutputSpaceLayer]] = {"mlp": [], "lenet5": []}
    panels = []
    for cast in setting.casts:
        layers = workshop.part(
            "output-space", (cast,), setting.options, partial(_layers, cast, workshop)
        )
        rows += [layer.row(cast.label) for layer in layers]
        stem = _stem(cast.model, cast.data, cast.labels)
        by_name |= {f"{stem}.{layer.name}": Measured.over(layer.overlaps()) for layer in layers}
        if layers and cast.labels == "true":
            starts["lenet5" if cast.model.startswith("LeNet5") else "mlp"].append(layers[0])
        if layers:
            panels.append(_panel(cast, layers, stem))
    for kind, firsts in starts.items():
        for space, end in (("weights", ""), ("firing", ".firing")):
            values = [v for layer in firsts for v in layer.overlaps(space, start=True)]
            if values:
                measured[f"wu.sec4.4.initial.{kind}{end}"] = Measured.over(values)
    drawn = (picture(f"{_NAME}.output-space", panels),) if panels else ()
    return Outcome(measured, drawn, (table(f"{_NAME}.layers", rows),), by_name=by_name)


def _layers(cast: Cast, workshop: Workshop) -> tuple[OutputSpaceLayer, ...]:
    """Return the layers with a chain of linear layers above, in order."""
    networks = workshop.networks(cast)
    names = matrix_layers(networks.risk(cast.seeds[0]))
    start = [_found(networks.risk(seed, 0), names) for seed in cast.seeds]
    end = [_found(networks.risk(seed), names) for seed in cast.seeds]
    return tuple(
        OutputSpaceLayer(
            name,
            name == names[-1],
            tuple(tuple(one[name, space].overlap for space in _SPACES) for one in start),
            tuple(tuple(one[name, space].overlap for space in _SPACES) for one in end),
            tuple(one[name, "weights"].overlap_removed for one in end),
            tuple(_gap(one[name, "weights"]) for one in end),
        )
        for name in names
        if (name, "weights") in end[0]
    )


def _found(risk: EmpiricalRisk, names: tuple[str, ...]) -> _Found:
    # A convolution has no chain of linear layers above it; what follows the last one has.
    for first in range(len(names)):
        try:
            return output_space_overlap(risk, names[first:], space=_SPACES)
        except UnsupportedModelError:
            continue
    return {}


def _gap(overlap: OutputSpaceOverlap) -> float | None:
    """Return λ_d/λ_{d+1}: how well the top space is defined; None where nothing is left of E[M]."""
    d, values = overlap.dimension, overlap.values
    floor = len(values) * torch.finfo(values.dtype).eps * float(values[0])
    if d >= len(values) or float(values[d]) <= floor:
        return None
    return float(values[d - 1] / values[d])


def _panel(cast: Cast, layers: Sequence[OutputSpaceLayer], stem: str) -> Panel:
    x = indices(len(layers))
    series = (
        ("weights, minimum", "first", "weights", False),
        ("weights, start", "first", "weights", True),
        ("E[∂z/∂output], minimum", "second", "gradients", False),
        ("E[∂z/∂output], start", "second", "gradients", True),
    )
    marks = []
    for index, (label, colour, space, start) in enumerate(series):
        numbers = [Measured.over(layer.overlaps(space, start=start)) for layer in layers]
        errors = [one.spread or 0.0 for one in numbers] if len(cast.seeds) > 1 else None
        marks.append(
            Points(
                _aside(x, index),
                rounded([one.ours for one in numbers]),
                colour,
                label,
                y_error=errors and rounded(errors),
                hollow=start,
            )
        )
    theirs = [
        (i, printed(_NAME)[f"{stem}.{layer.name}"])
        for i, layer in zip(x, layers, strict=True)
        if f"{stem}.{layer.name}" in printed(_NAME)
    ]
    if theirs:
        places, values = zip(*theirs, strict=True)
        marks.append(Points(_aside(places, len(series)), values, "muted", "Table 10"))
    names = tuple((float(i + 1), layer.name) for i, layer in enumerate(layers))
    return Panel(
        marks,
        Axis("layer", ticks=names, limits=(0.5, len(layers) + 0.5)),
        Axis("overlap", limits=(0, 1.05)),
        cast.label,
    )


def _aside(x: Sequence[float], index: int) -> tuple[float, ...]:
    """Move the marks of one of five series, so that none hides another."""
    return tuple(at + 0.1 * (index - 2) for at in x)


STUDY = Study.of(
    _NAME,
    measure,
    {
        "laptop": (casts.SMALL_MLP, casts.SMALL_MLP_RANDOM),
        "paper": (
            casts.LENET,
            casts.LENET_MNIST,
            casts.CIFAR_MLPS[1],
            *casts.ROWS,
            casts.MLP,
            casts.MLP_RANDOM,
        ),
    },
)
