"""Papyan Figs 7 to 10, 13: class structure of features, backpropagated errors, weights, by depth.

Letters: h^l the features of hidden layer l (h⁰ the inputs), δ^l the errors at its output with every
label, H^l and Δ^l their second moments, W^l its weight; C classes. The bulk is the largest
eigenvalue of the within part; of weights, which have none, σ_{C+1}.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eigenscape.analyses import Separation, backpropagated_errors, separation
from eigenscape.losses import CrossEntropy
from eigenscape.report import Axis, Line, Mark, Panel, Picture, Points, Rule, Sheet
from eigenscape.risk import EmpiricalRisk
from eigenscape.studies import papyan_casts as casts
from eigenscape.studies._draw import rounded
from eigenscape.studies._tables import sheet
from eigenscape.studies.claim import Claim, Measured
from eigenscape.studies.papyan_parts import (
    KINDS,
    Part,
    error_part,
    feature_part,
    rank_correlation,
    weight_part,
)
from eigenscape.studies.portrait import matrix_layers
from eigenscape.studies.study import Outcome, Setting, Study
from eigenscape.studies.workshop import Networks, Workshop

_MATRIX = {"features": "H", "errors": "Δ", "weights": "W"}
_FIGURE = {
    "features": ("Fig. 7, §7.5", "fig7", "Fig. 8, §7.6", "fig8"),
    "errors": ("Fig. 9a, §7.8", "fig9a", "Fig. 10, §7.9", "fig10"),
    "weights": ("Fig. 13, §7.13", "fig13", "Fig. 13, §7.13", "fig13"),
}
_FLAT = "Of deep layers the figure shows blue points that fall into the bulk; a tenth may be left."
_DEPTH = "A rank correlation of 1 would be growth at every layer; 0.8 lets neighbours change places"

_ALL = "A tenth may be left. The figure points to one panel, the text says it of all"
_GLOBAL = {
    "features": f"{_ALL}.",
    "errors": f"{_ALL}; on digits it holds in some layers and not in others.",
    "weights": f"{_ALL}. It cannot hold close to a minimum where the layer has a bias, or a "
    "BatchNorm with a shift b behind it: the mean error with true labels is the loss's slope by "
    "that bias, which is −ηb, so that its share of W is b times the mean input and no more.",
}
_SEPARATE = {
    "weights": f"{_DEPTH}. On digits the outliers do come out of the bulk with depth, but C − 1 of "
    "them: the C-th singular value stays near the next. The errors of the true labels add up to "
    "nearly zero over classes.",
}


def _kind_claims(kind: str) -> list[Claim]:
    knockout, first, scree, second = _FIGURE[kind]
    M = _MATRIX[kind]
    bulk = "σ_{C+1}" if kind == "weights" else "the bulk"
    smallest = "σ_C" if kind == "weights" else f"the smallest eigenvalue of {M}_class"
    return [
        Claim(
            f"papyan.{first}.{kind}.outliers",
            knockout,
            f"share of what the C largest values of {M} have above the next that disappears when "
            f"{M}_class is projected out, last hidden layer",
            "the outliers are attributable to it",
            low=0.9,
            why=_FLAT,
        ),
        Claim(
            f"papyan.{first}.{kind}.bulk",
            knockout,
            f"how much larger the sum of {M}'s values is after that knockout than that of the "
            "values after the C largest, as a share of the latter, last hidden layer",
            "the bulk is unaffected",
            high=0.1,
            why="A knockout of the C leading vectors leaves just the others: 0. A tenth cannot be "
            "seen on their logarithmic axes.",
        ),
        Claim(
            f"papyan.{first}.{kind}.global-mean",
            knockout,
            f"share of what the largest value of {M} has above the second that disappears when the "
            "global means' part is projected out, mean over hidden layers",
            "the largest outlier is attributable to it",
            low=0.9,
            why=_GLOBAL[kind],
        ),
        Claim(
            f"papyan.{second}.{kind}.separation",
            scree,
            f"rank correlation of {smallest} over {bulk} with depth, hidden layers",
            "separation increases with depth",
            low=0.8,
            why=_SEPARATE.get(kind, f"{_DEPTH}."),
        ),
    ]


def _scree_claims(kind: str) -> list[Claim]:
    _, _, where, figure = _FIGURE[kind]
    M = _MATRIX[kind]
    ratio = f"smallest eigenvalue of {M}_class over the largest of {M}_within"
    return [
        Claim(
            f"papyan.{figure}.{kind}.first",
            where,
            f"{ratio}, first hidden layer",
            "too small to induce outliers",
            high=1.0,
            why="Above 1 all C would stand out.",
        ),
        Claim(
            f"papyan.{figure}.{kind}.last",
            where,
            f"{ratio}, last hidden layer",
            "a bulk and C eigenvalues sticking out",
            low=1.0,
            why="Above 1 all C stand out.",
        ),
        Claim(
            f"papyan.{figure}.{kind}.whiskers",
            where,
            f"rank correlation of λ₂/λ_C of {M}_class with depth, hidden layers",
            "the ratio decreases with depth",
            high=-0.8,
            why=f"{_DEPTH}, with the other sign.",
        ),
        Claim(
            f"papyan.{figure}.{kind}.whiskers-last",
            where,
            f"λ₂/λ_C of {M}_class, last hidden layer",
            "all of similar magnitude",
            high=3.0,
            why="No number is given; half a decade on axes of several.",
        ),
    ]


_CLAIMS = (
    *(claim for kind in KINDS for claim in _kind_claims(kind)),
    *(claim for kind in KINDS[:2] for claim in _scree_claims(kind)),
    Claim(
        "papyan.s7.6.features.discriminative",
        "§7.6",
        "rank correlation with depth of the share of samples whose nearest class mean is their own",
        "features at later layers are more discriminative",
        low=0.8,
        why=f"{_DEPTH}.",
    ),
    Claim(
        "papyan.fig9b.errors.cross",
        "Fig. 9b, §7.8",
        "once Δ_class is out: share of what the k largest eigenvalues have above the next that "
        "disappears when the k leading eigenvectors of Δ_cross are projected out; k of them are "
        "above the largest of Δ_within; last hidden layer",
        "the C² outliers are attributable to it",
        low=0.9,
        why=f"{_FLAT} Some of the C² are in the bulk, in the figure too.",
    ),
    Claim(
        "papyan.fig10.errors.cross-separation",
        "Fig. 10, §7.9",
        "rank correlation with depth of the number of eigenvalues of Δ_cross above the largest of "
        "Δ_within, hidden layers",
        "the C² outliers emerge from the bulk with depth",
        low=0.8,
        why=f"{_DEPTH}.",
    ),
    Claim(
        "papyan.fig13.weights.gap",
        "Fig. 13, §7.13",
        "σ_C/σ_{C+1} over the largest later ratio of neighbours in the upper half of W's singular "
        "values, last hidden layer",
        "C outliers that are separated from a bulk",
        low=1.0,
        why="Above 1 the widest gap is after C.",
    ),
)


# Rate, decay and number of steps are what it takes for weights to forget where they started, which
# §7.13 assumes. A width of 96 leaves a bulk beside ten classes.
_DIGITS = casts.grid(
    "MLP-6x96-BN", "digits", epochs=150, batch_size=32, rates=(0.1,), seeds=(0, 1, 2)
)
# What is formed densely; features of early convolutions are longer.
_MOST_ENTRIES, _MOST_BYTES = 4096, 16 * 2**30


@dataclass(frozen=True, eq=False)
class _Network:
    """All layers of one network."""

    label: str
    seed: int
    parts: dict[str, list[Part]]
    accuracy: Separation

    def hidden(self, kind: str) -> list[Part]:
        return [part for part in self.parts[kind] if part.depth > 0]


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Take every layer of every network apart."""
    found: list[_Network] = []
    for networks in casts.best_of(workshop, setting.casts):
        for seed in networks.cast.seeds:
            found.append(_look(networks, seed, setting.options["samples"], workshop.device))
    pictures: list[Picture] = []
    for label in dict.fromkeys(network.label for network in found):
        group = [network for network in found if network.label == label]
        for kind in KINDS:
            if group[0].hidden(kind):
                pictures += _pictures(group[0], kind, setting.options["shown"])
        pictures.append(_depth_picture(group))
    return Outcome(_measured(found), tuple(pictures), (_sheet(found), _accuracy_sheet(found)))


def _look(networks: Networks, seed: int, samples: int | None, device: torch.device) -> _Network:
    data = networks.data
    if samples is not None and samples < data.num_samples:
        data = data.take(samples, seed=0)
    model = networks.model(seed)
    risk = EmpiricalRisk(model, CrossEntropy(), data)
    layers = matrix_layers(risk)
    parts: dict[str, list[Part | None]] = {kind: [] for kind in KINDS}
    features: dict[str, Tensor] = {}
    for depth, layer in enumerate(layers):
        seen = backpropagated_errors(risk, layer, max_bytes=_MOST_BYTES)
        features[str(depth)] = seen.features
        if seen.features.shape[1] <= _MOST_ENTRIES:
            parts["features"].append(feature_part(seen, depth, device))
        if layer == layers[-1]:
            break  # its errors are those of the logits: C of them, without a bulk
        if seen.errors.shape[2] <= _MOST_ENTRIES:
            weight = model.get_parameter(f"{layer}.weight")
            parts["errors"].append(error_part(seen, depth + 1, device))
            parts["weights"].append(weight_part(weight, seen, depth + 1, device))
    kept = {kind: [part for part in found if part is not None] for kind, found in parts.items()}
    return _Network(networks.cast.label, seed, kept, separation(features, seen.classes))


def _measured(found: Sequence[_Network]) -> dict[str, Measured]:
    numbers: dict[str, Measured] = {}

    def add(claim: str, value: Callable[[_Network], float]) -> None:
        numbers[claim] = _worst(claim, found, value)

    for kind in KINDS:
        _, first, _, second = _FIGURE[kind]
        add(f"papyan.{first}.{kind}.outliers", _last(kind, lambda part: part.mass))
        add(f"papyan.{first}.{kind}.bulk", _last(kind, lambda part: part.change))
        add(f"papyan.{first}.{kind}.global-mean", _mean(kind, lambda part: part.first))
        add(f"papyan.{second}.{kind}.separation", _growth(kind, lambda part: part.ratio))
        if kind != "weights":
            stem = f"papyan.{second}.{kind}"
            add(f"{stem}.first", _last(kind, lambda part: part.ratio, place=0))
            add(f"{stem}.last", _last(kind, lambda part: part.ratio))
            add(f"{stem}.whiskers", _growth(kind, lambda part: part.whiskers))
            add(f"{stem}.whiskers-last", _last(kind, lambda part: part.whiskers))
    add("papyan.s7.6.features.discriminative", _discriminative)
    add("papyan.fig9b.errors.cross", _last("errors", lambda part: part.cross))
    add(
        "papyan.fig10.errors.cross-separation",
        _growth("errors", lambda part: float(part.num_cross)),
    )
    add("papyan.fig13.weights.gap", _last("weights", lambda part: part.gap))
    return numbers


def _last(
    kind: str, value: Callable[[Part], float], place: int = -1
) -> Callable[[_Network], float]:
    return lambda net: value(net.hidden(kind)[place]) if net.hidden(kind) else math.nan


def _mean(kind: str, value: Callable[[Part], float]) -> Callable[[_Network], float]:
    return lambda net: float(np.mean([value(part) for part in net.hidden(kind)] or [math.nan]))


def _growth(kind: str, value: Callable[[Part], float]) -> Callable[[_Network], float]:
    return lambda net: rank_correlation([value(part) for part in net.hidden(kind)])


def _discriminative(network: _Network) -> float:
    return rank_correlation(network.accuracy.centre_accuracy[1:].tolist())


def _worst(claim: str, found: Sequence[_Network], value: Callable[[_Network], float]) -> Measured:
    """Return the mean over seeds, of the data set that agrees least; NaN where there is none."""
    groups: dict[str, list[float]] = {}
    for network in found:
        number = value(network)
        if math.isfinite(number):
            groups.setdefault(network.label, []).append(number)
    wants_more = math.isinf(next(c for c in _CLAIMS if c.id == claim).high)
    choose = min if wants_more else max
    numbers = choose(groups.values(), key=lambda group: sum(group) / len(group), default=[math.nan])
    mean = sum(numbers) / len(numbers)
    return Measured(mean, float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None)


def _pictures(network: _Network, kind: str, shown: int) -> list[Picture]:
    parts, M = network.parts[kind], _MATRIX[kind]
    word = "singular values" if kind == "weights" else "eigenvalues"
    stem = f"{kind}-{''.join(c for c in network.label.lower() if c.isalnum())}"
    knockouts = Picture(
        f"knockout-{stem}",
        f"{word.capitalize()} of {M} with and without {M}_class, {network.label}",
        tuple(_knockout_panel(part, shown) for part in network.hidden(kind)),
        shows=f"The C largest {word} of {M} are discs, the others circles. On the line nothing "
        f"changed. Below it, and level with the circles, are outliers that are due to {M}_class.",
    )
    if kind == "weights":
        return [knockouts]
    screes = Picture(
        f"scree-{stem}",
        f"Largest eigenvalues of {M} and of its class part, {network.label}",
        tuple(_scree_panel(part, M) for part in parts),
        shows=f"Dotted: the largest eigenvalue of {M}_within. With depth the C eigenvalues of "
        f"{M}_class rise above it and come closer to each other.",
    )
    return [knockouts, screes]


def _knockout_panel(part: Part, shown: int) -> Panel:
    C = part.num_classes
    # The last values fall because there are C less of them, and say nothing.
    shown = min(shown, len(part.before) // 2)
    floor = 1e-9 * float(part.before[0])
    pairs = [
        (x, y)
        for x, y in zip(part.before[:shown].tolist(), part.after[:shown].tolist(), strict=True)
        if min(x, y) > floor
    ]
    x, y = (rounded([pair[i] for pair in pairs], 4) for i in (0, 1))
    low, high = min((*x, *y), default=floor), max((*x, *y), default=1.0)
    marks: list[Mark] = [
        Line((low, high), (low, high), "muted"),
        Points(x[C:], y[C:], "gauss_newton", "others", hollow=True),
        Points(x[:C], y[:C], "hessian", "C largest"),
    ]
    return Panel(marks, Axis("before", log=True), Axis("after", log=True), f"l = {part.depth}")


def _scree_panel(part: Part, M: str) -> Panel:
    count = 3 * part.num_classes
    marks: list[Mark] = [_scree(part.before[:count], "hessian", M)]
    if len(part.cross_values):
        marks.append(_scree(part.cross_values[:count], "muted", f"{M}_cross", hollow=True))
    marks.append(_scree(part.class_values, "gauss_newton", f"{M}_class", hollow=True))
    marks.append(Rule(part.bulk, "", upright=False))
    return Panel(marks, Axis("index", whole=True), Axis("", log=True), f"l = {part.depth}")


def _scree(values: Tensor, colour: str, label: str, *, hollow: bool = False) -> Points:
    kept = [(i + 1.0, v) for i, v in enumerate(values.tolist()) if v > 1e-9 * float(values[0])]
    return Points(
        tuple(i for i, _ in kept), rounded([v for _, v in kept], 4), colour, label, hollow=hollow
    )


def _depth_picture(group: Sequence[_Network]) -> Picture:
    tints = dict(zip(KINDS, ("first", "second", "third"), strict=True))
    values: tuple[tuple[str, Callable[[Part], float], tuple[str, ...], bool], ...] = (
        ("share taken by the knockout", lambda part: part.mass, KINDS, False),
        ("λ_C of the class part / bulk", lambda part: part.ratio, KINDS, True),
        ("λ₂/λ_C of the class part", lambda part: part.whiskers, KINDS[:2], True),
    )
    panels = []
    for label, value, kinds, log in values:
        marks: list[Mark] = []
        for kind in kinds:
            marks += _depth_marks(group, kind, value, tints[kind])
        if "bulk" in label:
            marks.append(Rule(1.0, "", upright=False))
        panels.append(Panel(marks, Axis("layer l", whole=True), Axis(label, log=log)))
    return Picture(
        f"depth-{''.join(c for c in group[0].label.lower() if c.isalnum())}",
        f"Class structure by depth, {group[0].label}",
        tuple(panels),
        shows="Mean over seeds, with one standard deviation. Layer 0 are the inputs. Of weights "
        "the middle panel has σ_C/σ_{C+1}. Above 1 all C class means stand out of the bulk.",
    )


def _depth_marks(
    group: Sequence[_Network], kind: str, value: Callable[[Part], float], tint: str
) -> list[Line | Points]:
    depths = [part.depth for part in group[0].parts[kind]]
    rows = [[value(part) for part in net.parts[kind]] for net in group]
    if not depths or any(len(row) != len(depths) for row in rows) or not np.isfinite(rows).all():
        return []
    mean, sd = np.mean(rows, 0), np.std(rows, 0, ddof=1) if len(rows) > 1 else None
    x, y = tuple(float(d) for d in depths), rounded(mean.tolist())
    error = None if sd is None else rounded(sd.tolist())
    return [Line(x, y, tint), Points(x, y, tint, kind, y_error=error)]


def _sheet(found: Sequence[_Network]) -> Sheet:
    names = (
        "network",
        "seed",
        "matrix",
        "l",
        "taken by knockout",
        "by chance",
        "first, by global mean",
        "change of the bulk",
        "λ_C/bulk",
        "λ₂/λ_C",
        "Δ_cross above bulk",
        "taken by Δ_cross",
    )
    rows = [
        (
            net.label,
            net.seed,
            _MATRIX[kind],
            part.depth,
            part.mass,
            part.null,
            part.first,
            part.change,
            _told(part.ratio),
            _told(part.whiskers),
            part.num_cross if kind == "errors" else None,
            _told(part.cross),
        )
        for net in found
        for kind in KINDS
        for part in net.parts[kind]
    ]
    return sheet("layers", "Every layer of every network", names, rows)


def _told(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _accuracy_sheet(found: Sequence[_Network]) -> Sheet:
    names = ("network", "seed", "l", "nearest class mean", "least squares")
    rows = [
        (net.label, net.seed, int(layer), float(centre), float(linear))
        for net in found
        for layer, centre, linear in zip(
            net.accuracy.layers,
            net.accuracy.centre_accuracy,
            net.accuracy.linear_accuracy,
            strict=True,
        )
    ]
    return sheet("accuracy", "Samples that the features of a layer classify right", names, rows)


STUDY = Study(
    name="papyan-layers",
    paper="Papyan",
    where="Figs 7 to 10, 13; §7.4 to §7.9, §7.13",
    title="Do class means cause the outliers of features, errors and weights, and with depth more?",
    settings={
        "laptop": Setting(_DIGITS, {"samples": None, "shown": 300}),
        "paper": Setting(
            casts.MLP,
            {"samples": 10000, "shown": 300},
            note="The learning rate is the best of 0.1, 0.02 and 0.004 by test accuracy; Papyan "
            "tries 25 for this network. Spectra are those of 10000 samples, where he does not say "
            "how many; he draws 750 eigenvalues and 150 singular values, we 300.",
        ),
    },
    measure=measure,
    claims=_CLAIMS,
)
