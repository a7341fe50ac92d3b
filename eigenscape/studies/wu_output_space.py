"""Wu Table 10: is the top eigenspace of E[M] the row space of the weights above the layer?

S is read in three ways: the product of the weights, as printed, which is what claims of Table 10
judge; the same with the rates at which units fire between the factors; and E[∂z/∂output].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev

import torch

from eigenscape.analyses import OutputSpaceOverlap, output_space_overlap
from eigenscape.errors import UnsupportedModelError
from eigenscape.records import storable
from eigenscape.report import Axis, Panel, Picture, Points
from eigenscape.risk import EmpiricalRisk
from eigenscape.studies import wu_casts as casts
from eigenscape.studies._draw import indices, rounded
from eigenscape.studies._tables import sheet
from eigenscape.studies.cast import Cast
from eigenscape.studies.claim import Claim, Measured
from eigenscape.studies.portrait import matrix_layers
from eigenscape.studies.study import Outcome, Setting, Study
from eigenscape.studies.workshop import Workshop

# Table 10: network, data, labels: fc1, fc2, fc3; nothing is said of fc4 of F-1500^3.
_TABLE = {
    ("F-1500^3", "mnist", "true"): (0.602, 0.967, 0.982),
    ("LeNet5", "mnist", "true"): (0.890, 0.931, 0.999),
    ("F-1500^3", "mnist", "random"): (0.235, 0.801, 0.998),
    ("LeNet5", "mnist", "random"): (0.518, 0.912, 0.999),
    ("F-1500^3", "cifar10", "true"): (0.880, 0.943, 0.993),
    ("LeNet5", "cifar10", "true"): (0.951, 0.972, 0.999),
    ("F-1500^3", "cifar10", "random"): (0.903, 0.931, 0.996),
    ("LeNet5", "cifar10", "random"): (0.213, 0.701, 0.999),
}
_TOLERANCE = 0.1
_SPACES = ("weights", "firing", "gradients")
_OTHER_S = (
    "Their S may be another one than the printed product of the weights: with the rates at which "
    "units fire between its factors, or E[∂z/∂output] in its place, fc1 has "
)
_HALF_FITTED = (
    "One network, which after 1000 epochs has fitted 63 % of the random labels (loss 1.05); how "
    "far theirs came is not said."
)
_KNOWN = {
    ("LeNet5", "cifar10", "true", "fc1"): f"{_OTHER_S}0.87 and 0.88 and fc2 0.95 (in the table), "
    "which would agree. Six networks; with Xavier's first weights in place of PyTorch's the "
    "product had 0.53 and 0.82. All was seen after the first run.",
    ("F-1500^3", "cifar10", "true", "fc1"): f"{_OTHER_S}0.87 (in the table). One network.",
    ("F-1500^3", "cifar10", "random", "fc1"): f"{_OTHER_S}0.905 (in the table). One network.",
    ("F-1500^3", "mnist", "true", "fc1"): "λ₉/λ₁₀ of E[M] is 1.13: there is hardly a gap that "
    "would say which directions are the top nine. One network.",
    ("F-1500^3", "mnist", "random", "fc1"): "As they say of random labels, the overlap is low; "
    "rates or E[∂z/∂output] in S, with which fc1 on CIFAR-10 would agree, give 0.64 here. One "
    "network.",
    ("LeNet5", "mnist", "random", "fc1"): f"{_HALF_FITTED} λ₉/λ₁₀ of E[M] is 1.04, hardly a gap. "
    "With rates or E[∂z/∂output] in S it is 0.62 and 0.64.",
    ("LeNet5", "mnist", "random", "fc2"): f"{_HALF_FITTED} With rates or E[∂z/∂output] in S it is "
    "0.99.",
}
_INITIAL_KNOWN = (
    "Units do not fire half of the time, as (56) takes them to. At infinite width what remains is "
    "0.829 for the first of three layers (`theory.row_overlap_limit`, and the errata). Of the 120 "
    "units of fc1 of LeNet5, 11 to 35 are dead at the start in six networks, and 6 to 25 always "
    "on. With the rates in S nearly all is there: see the claim with rates."
)


def _stem(model: str, data: str, labels: str) -> str:
    return f"wu.table10.{model.lower().replace('^', 'x')}.{data}.{labels}"


def _printed(key: tuple[str, str, str]) -> dict[str, float]:
    """Return what the table has of a network, by layer; nothing for a network it does not have."""
    return dict(zip(("fc1", "fc2", "fc3"), _TABLE.get(key, ()), strict=False))


def _last_words(model: str, layer: str) -> str:
    """Say of a last layer that the claim tells nothing of the network."""
    if (model, layer) != ("LeNet5", "fc3"):
        return ""
    return " Of the last layer it is 1 by construction, since S = I and E[A]·1 = 0."


def _table_claims() -> tuple[Claim, ...]:
    return tuple(
        Claim(
            f"{_stem(*key)}.{layer}",
            f"Table 10, {layer} of {key[0]} on {key[1]}" + (", random labels" * (key[2] != "true")),
            "overlap of the top c − 1 eigenspace of E[M] with R(S) less S·1",
            f"{theirs}",
            low=theirs - _TOLERANCE,
            high=min(1.0 + 1e-9, theirs + _TOLERANCE),
            why=f"0.1 either way: they give one number and no spread.{_last_words(key[0], layer)}",
            known=_KNOWN.get((*key, layer), ""),
            scales=("paper",),
        )
        for key in _TABLE
        for layer, theirs in _printed(key).items()
    )


def _initial_claim(kind: str, whose: str, firing: bool) -> Claim:
    rates = ", with the rates at which units fire between the factors of S" * firing
    return Claim(
        f"wu.sec4.4.initial.{kind}" + ".firing" * firing,
        "§4.4, Theorem 4.1, (56)",
        f"the same at the start, first fully connected layer of {whose}{rates}",
        "approximately R(S) for a large network",
        low=0.7,
        why="Narrow layers at the start are rougher; chance is (c − 1)/m. "
        + (
            "With rates the overlap tends to 1 as layers widen. Joined after the first run."
            if firing
            else "One mean over all networks at the first run; apart since."
        ),
        known="" if firing else _INITIAL_KNOWN,
        scales=("paper",) if kind == "lenet5" else ("laptop", "paper", "own"),
    )


_CLAIMS = (
    *_table_claims(),
    *(
        _initial_claim(kind, whose, firing)
        for kind, whose in (("mlp", "perceptrons"), ("lenet5", "LeNet5"))
        for firing in (False, True)
    ),
)

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
        place = _SPACES.index(space)
        return [found[place] for found in (self.start if start else self.end)]

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


_COLUMNS = (
    "network",
    "layer",
    "overlap at the minimum",
    "sd over seeds",
    "R(S) less Sᵀ1",
    "with firing rates",
    "with E[∂z/∂output]",
    "at the start",
    "at the start, with firing rates",
    "at the start, with E[∂z/∂output]",
    "λ_d/λ_{d+1} of E[M]",
)


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Compare the spaces for every fully connected layer, at the start and at the end."""
    rows: list[tuple[object, ...]] = []
    measured: dict[str, Measured] = {}
    starts: dict[str, list[OutputSpaceLayer]] = {"mlp": [], "lenet5": []}
    panels = []
    for cast in setting.casts:
        own = workshop.part(
            "output-space", (cast,), setting.options, partial(_layers, cast, workshop)
        )
        rows += [layer.row(cast.label) for layer in own]
        key = (cast.model, cast.data, cast.labels)
        printed = _printed(key)
        for layer in own:
            if layer.name in printed:
                measured[f"{_stem(*key)}.{layer.name}"] = Measured.over(layer.overlaps())
        if own and cast.labels == "true":
            starts["lenet5" if cast.model.startswith("LeNet5") else "mlp"].append(own[0])
        if own:
            panels.append(_panel(cast, own, printed))
    for kind, firsts in starts.items():
        for space, end in (("weights", ""), ("firing", ".firing")):
            values = [v for layer in firsts for v in layer.overlaps(space, start=True)]
            if values:
                measured[f"wu.sec4.4.initial.{kind}{end}"] = Measured.over(values)
    picture = Picture(
        "output-space",
        "Top c − 1 eigenspace of E[M] and the rows of S",
        tuple(panels),
        shows="Their overlap, mean and standard deviation over seeds. S is the product of the "
        "weights above the layer, as printed, or E[∂z/∂output], in which units that never fire "
        "count for nothing.",
    )
    table = sheet("layers", "Every layer", _COLUMNS, rows)
    return Outcome(measured, (picture,) if panels else (), (table,))


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
    for place in range(len(names)):
        try:
            return output_space_overlap(risk, names[place:], space=_SPACES)
        except UnsupportedModelError:
            continue
    return {}


def _gap(found: OutputSpaceOverlap) -> float | None:
    """Return λ_d/λ_{d+1}: how well the top space is defined; None where nothing is left of E[M]."""
    d, values = found.dimension, found.values
    floor = len(values) * torch.finfo(values.dtype).eps * float(values[0])
    if d >= len(values) or float(values[d]) <= floor:
        return None
    return float(values[d - 1] / values[d])


def _panel(cast: Cast, layers: Sequence[OutputSpaceLayer], printed: dict[str, float]) -> Panel:
    x = indices(len(layers))
    series = (
        ("weights, minimum", "first", "weights", False),
        ("weights, start", "first", "weights", True),
        ("E[∂z/∂output], minimum", "second", "gradients", False),
        ("E[∂z/∂output], start", "second", "gradients", True),
    )
    marks = []
    for place, (label, colour, space, start) in enumerate(series):
        found = [Measured.over(layer.overlaps(space, start=start)) for layer in layers]
        errors = [one.spread or 0.0 for one in found] if len(cast.seeds) > 1 else None
        marks.append(
            Points(
                _aside(x, place),
                rounded([one.ours for one in found]),
                colour,
                label,
                y_error=errors and rounded(errors),
                hollow=start,
            )
        )
    theirs = [
        (i, printed[layer.name])
        for i, layer in zip(x, layers, strict=True)
        if layer.name in printed
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


def _aside(x: Sequence[float], place: int) -> tuple[float, ...]:
    """Move the marks of one of five series, so that none hides another."""
    return tuple(at + 0.1 * (place - 2) for at in x)


STUDY = Study(
    name="wu-output-space",
    paper="Wu",
    where="Table 10; §4.4",
    title="Is the top eigenspace of E[M] the row space of the weights above the layer?",
    settings={
        "laptop": Setting((casts.SMALL_MLP, casts.SMALL_MLP_RANDOM)),
        "paper": Setting(
            (
                casts.LENET,
                casts.LENET_MNIST,
                casts.CIFAR_MLPS[1],
                *casts.ROWS,
                casts.MLP,
                casts.MLP_RANDOM,
            ),
        ),
    },
    measure=measure,
    claims=_CLAIMS,
)
