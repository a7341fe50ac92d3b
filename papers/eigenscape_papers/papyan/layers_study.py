"""Papyan Figs 7 to 10, 13: class structure of features, backpropagated errors, weights, by depth.

Letters: h^l the features of hidden layer l (h⁰ the inputs), δ^l the errors at its output with every
label, H^l and Δ^l their second moments, W^l its weight; C classes. The bulk is the largest
eigenvalue of the within part; of weights, which have none, σ_{C+1}.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from eigenscape.records import (
    Axis,
    Band,
    Line,
    Mark,
    Panel,
    Picture,
    Points,
    Rule,
    Ticker,
    storable,
)
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape.structure import class_structure
from eigenscape_papers.papyan import networks as casts
from eigenscape_papers.papyan.backpropagated_errors import (
    BackpropagatedErrors,
    backpropagated_errors,
)
from eigenscape_papers.papyan.parts import (
    KINDS,
    LayerPart,
    LayerProducts,
    error_part,
    feature_part,
    layer_products,
    span,
    weight_part,
)
from eigenscape_papers.papyan.separation import Separation, separation
from eigenscape_papers.papyan.whole_spectra import some_of
from eigenscape_papers.runner import (
    Measured,
    Networks,
    Outcome,
    Setting,
    Study,
    Workshop,
    by_label,
    claims_of,
    finite,
    matrix_layers,
    of_each_network,
    picture,
    rounded,
    table,
    worst,
)
from eigenscape_papers.runner.orders import rank_correlation

_MATRIX = {"features": "H", "errors": "Δ", "weights": "W"}
_FIGURES = {
    "features": ("fig7", "fig8"),
    "errors": ("fig9a", "fig10"),
    "weights": ("fig13", "fig13"),
}
# Rate, decay and number of steps are what it takes for weights to forget where they started, which
# §7.13 assumes. A width of 96 leaves a bulk beside ten classes.
WIDE_MLP = casts.network(
    "MLP-6x96-BN", "digits", epochs=150, batch_size=32, rates=(0.1,), seeds=(0, 1, 2)
)
_NO_DECAY = (
    "Claims on weights are not judged for networks that were trained without weight decay, which "
    "§7.13 assumes; with networks of your own give `--weight-decay`."
)
# What is formed densely; features of early convolutions are longer.
_MOST_ENTRIES, _MOST_BYTES = 4096, 16 * 2**30


@storable
@dataclass(frozen=True, eq=False)
class LayerCross:
    """What Δ_cross does beside Δ_class.

    Attributes:
        left: Eigenvalues of Δ^l once Δ_class and k eigenvectors of Δ_cross are projected out: the
            k whose eigenvalues are above the largest of Δ_within.
        together: Eigenvalues of Δ_class + Δ_cross.
    """

    left: Tensor
    together: Tensor


@storable
@dataclass(frozen=True, eq=False)
class LayersNetwork:
    """All layers of one network.

    Attributes:
        label: Which.
        seed: Its seed.
        has_decay: Whether it was trained with weight decay.
        by_kind: Its layers by kind, in order of depth.
        cross: By depth, in text, as files have it.
        products: Likewise, of layers on plain vectors.
        accuracy: What features say of classes.
    """

    # Fields that had another name in older files.
    RENAMED: ClassVar[dict[str, str]] = {"parts": "by_kind"}

    label: str
    seed: int
    has_decay: bool
    by_kind: dict[str, tuple[LayerPart, ...]]
    cross: dict[str, LayerCross]
    products: dict[str, LayerProducts]
    accuracy: Separation

    def hidden(self, kind: str) -> list[LayerPart]:
        """The layers of one kind without the inputs."""
        return [layer for layer in self.by_kind[kind] if layer.depth > 0]


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Take every layer of every network apart."""
    networks = of_each_network("layers", setting, workshop, _look)
    pictures: list[Picture] = []
    for group in by_label(networks).values():
        for kind in KINDS:
            if group[0].hidden(kind):
                pictures += _pictures(group[0], kind, setting.options["shown"])
        pictures.append(_depth_picture(group))
    layers = [(net, one) for net in networks for kind in KINDS for one in net.by_kind[kind]]
    pairs = [(net, depth) for net in networks for depth in net.products]
    sheets = (
        table("papyan-layers.layers", [_row(*pair) for pair in layers]),
        table("papyan-layers.accuracy", [row for net in networks for row in _accuracy_rows(net)]),
        table("papyan-layers.products", [_product_row(*pair) for pair in pairs]),
    )
    notes = () if all(network.has_decay for network in networks) else (_NO_DECAY,)
    return Outcome(_measured(networks), tuple(pictures), sheets, notes)


def _look(networks: Networks, seed: int, setting: Setting, workshop: Workshop) -> LayersNetwork:
    data, device = some_of(networks.data, setting.options["samples"]), workshop.device
    model = networks.model(seed)
    risk = EmpiricalRisk(model, CrossEntropy(), data)
    layers = matrix_layers(risk)
    layers_of: dict[str, list[LayerPart | None]] = {kind: [] for kind in KINDS}
    features: dict[str, Tensor] = {}
    cross: dict[str, LayerCross] = {}
    products: dict[str, LayerProducts] = {}
    ticker = Ticker(workshop.progress, f"layers of {networks.cast.label}", len(layers))
    for depth, layer in enumerate(layers):
        backpropagated = backpropagated_errors(risk, layer, max_bytes=_MOST_BYTES)
        features[str(depth)] = backpropagated.features.to(device)
        if backpropagated.features.shape[1] <= _MOST_ENTRIES:
            layers_of["features"].append(feature_part(backpropagated, depth, device))
        if layer == layers[-1]:
            break  # its errors are those of the logits: C of them, without a bulk
        if backpropagated.errors.shape[2] <= _MOST_ENTRIES:
            weight = model.get_parameter(f"{layer}.weight")
            errors = error_part(backpropagated, depth + 1, device)
            layers_of["errors"].append(errors)
            if errors is not None:
                cross[str(depth + 1)] = _cross(backpropagated, errors.num_cross, device)
            layers_of["weights"].append(weight_part(weight, backpropagated, depth + 1, device))
            if weight.shape == (backpropagated.errors.shape[2], backpropagated.features.shape[1]):
                products[str(depth + 1)] = layer_products(backpropagated, device)
        ticker.tick(depth + 1)
    kept = {
        kind: tuple(one for one in of_kind if one is not None)
        for kind, of_kind in layers_of.items()
    }
    has_decay = getattr(networks.cast.recipe.optimizer, "weight_decay", 0.0) > 0
    accuracy = separation(features, backpropagated.classes)
    return LayersNetwork(networks.cast.label, seed, has_decay, kept, cross, products, accuracy)


def _cross(backpropagated: BackpropagatedErrors, k: int, device: torch.device) -> LayerCross:
    errors, weights = (
        t.to(device, torch.float64) for t in (backpropagated.errors, backpropagated.weights)
    )
    structure = class_structure(errors, classes=backpropagated.classes, weights=weights)
    rows = (weights.sqrt()[..., None] * errors).flatten(0, 1)
    between, pairs = structure.factor("class"), structure.factor("cross")
    basis = span(between)
    # Δ_class first: what Δ_cross has in its directions is out already.
    others = span(pairs - basis @ (basis.T @ pairs), k)
    out = torch.cat([basis, others], 1)
    left = rows.T @ rows
    left = left - out @ (out.T @ left)
    left = left - (left @ out) @ out.T
    return LayerCross(
        torch.linalg.eigvalsh((left + left.T) / 2).flip(0).clamp_min(0.0).cpu(),
        torch.linalg.svdvals(torch.cat([between, pairs], 1)).square().cpu(),
    )


def _measured(networks: Sequence[LayersNetwork]) -> dict[str, Measured]:
    numbers: dict[str, Measured] = {}

    def add(claim: str, value: Callable[[LayersNetwork], float]) -> None:
        judged = [net for net in networks if net.has_decay or ".weights." not in claim]
        numbers[claim] = _worst(claim, judged, value)

    for kind in KINDS:
        first, second = _FIGURES[kind]
        add(f"papyan.{first}.{kind}.outliers", _last(kind, lambda layer: layer.mass))
        add(f"papyan.{first}.{kind}.bulk", _last(kind, lambda layer: layer.change))
        add(f"papyan.{first}.{kind}.global-mean", _mean(kind, lambda layer: layer.first))
        add(f"papyan.{second}.{kind}.separation", _growth(kind, lambda layer: layer.ratio))
        if kind != "weights":
            stem = f"papyan.{second}.{kind}"
            add(f"{stem}.first", _last(kind, lambda layer: layer.second, index=0))
            add(f"{stem}.last", _last(kind, lambda layer: layer.ratio))
            add(f"{stem}.whiskers", _growth(kind, lambda layer: layer.whiskers))
            add(f"{stem}.whiskers-last", _last(kind, lambda layer: layer.whiskers))
    add("papyan.s7.6.features.discriminative", _discriminative)
    add("papyan.fig9b.errors.cross", _last("errors", lambda layer: layer.cross))
    add(
        "papyan.fig10.errors.cross-separation",
        _growth("errors", lambda layer: float(layer.num_cross)),
    )
    add("papyan.fig13.weights.gap", _last("weights", lambda layer: layer.gap))
    add("papyan.table1.layers.class-products", _product(lambda each: each.classes))
    add("papyan.table1.layers.cross-products", _product(lambda each: each.pairs))
    return numbers


def _last(
    kind: str, value: Callable[[LayerPart], float], index: int = -1
) -> Callable[[LayersNetwork], float]:
    return lambda net: value(net.hidden(kind)[index]) if net.hidden(kind) else math.nan


def _mean(kind: str, value: Callable[[LayerPart], float]) -> Callable[[LayersNetwork], float]:
    return lambda net: float(np.mean([value(layer) for layer in net.hidden(kind)] or [math.nan]))


def _product(value: Callable[[LayerProducts], float]) -> Callable[[LayersNetwork], float]:
    return lambda net: float(np.mean([value(v) for v in net.products.values()] or [math.nan]))


def _growth(kind: str, value: Callable[[LayerPart], float]) -> Callable[[LayersNetwork], float]:
    return lambda net: rank_correlation([value(layer) for layer in net.hidden(kind)])


def _discriminative(network: LayersNetwork) -> float:
    return rank_correlation(network.accuracy.centre_accuracy[1:].tolist())


def _worst(
    claim: str, networks: Sequence[LayersNetwork], value: Callable[[LayersNetwork], float]
) -> Measured:
    """Return the mean over seeds, of the data set that agrees least; NaN where there is none."""
    high = next(c.high for c in claims_of("papyan-layers") if c.id == claim)
    return worst(networks, value, lambda v: sum(v) / len(v), is_least=math.isinf(high))


def _pictures(network: LayersNetwork, kind: str, shown: int) -> list[Picture]:
    layers, M = network.by_kind[kind], _MATRIX[kind]
    word = "singular values" if kind == "weights" else "eigenvalues"
    names = {"kind": kind, "M": M, "values": word, "Values": word.capitalize()}
    knockouts = [
        _knockout_panel(layer.before, layer.after, layer.num_classes, shown, layer.depth)
        for layer in network.hidden(kind)
    ]
    pictures = [picture("papyan-layers.knockout", knockouts, network.label, **names)]
    if kind == "errors":
        pictures += _cross_picture(network, shown)
    if kind != "weights":
        names["grey"] = f" Grey: {M}_class + {M}_cross." if kind == "errors" else ""
        screes = [_scree_panel(one, M, network.cross.get(str(one.depth))) for one in layers]
        pictures.append(picture("papyan-layers.scree", screes, network.label, **names))
    return pictures


def _cross_picture(network: LayersNetwork, shown: int) -> list[Picture]:
    """Return Fig. 9b: the layers in which Δ_cross has eigenvalues above the bulk."""
    layers = [layer for layer in network.hidden("errors") if layer.num_cross]
    panels = [
        _knockout_panel(
            layer.after, network.cross[str(layer.depth)].left, layer.num_cross, shown, layer.depth
        )
        for layer in layers
    ]
    return [picture("papyan-layers.knockout-cross", panels, network.label)] if panels else []


def _knockout_panel(before: Tensor, after: Tensor, count: int, shown: int, depth: int) -> Panel:
    # The last values fall because there are fewer of them, and say nothing.
    shown = min(shown, len(before) // 2)
    floor = 1e-9 * float(before[0])
    pairs = [
        (x, y)
        for x, y in zip(before[:shown].tolist(), after[:shown].tolist(), strict=True)
        if min(x, y) > floor
    ]
    x, y = (rounded([pair[i] for pair in pairs], 4) for i in (0, 1))
    low, high = min((*x, *y), default=floor), max((*x, *y), default=1.0)
    marks: list[Mark] = [
        Line((low, high), (low, high), "muted"),
        Points(x[count:], y[count:], "gauss_newton", "others", hollow=True),
        Points(x[:count], y[:count], "hessian", "largest"),
    ]
    return Panel(marks, Axis("before", log=True), Axis("after", log=True), f"l = {depth}")


def _scree_panel(layer: LayerPart, M: str, cross: LayerCross | None) -> Panel:
    count = 5 * layer.num_classes
    marks: list[Mark] = [_scree(layer.before[:count], "hessian", M)]
    if layer.kind == "errors" and cross is not None:
        label = f"{M}_class + {M}_cross"
        marks.append(_scree(cross.together[:count], "muted", label, hollow=True))
    marks.append(_scree(layer.class_values, "gauss_newton", f"{M}_class", hollow=True))
    marks.append(Rule(layer.bulk, "", upright=False))
    return Panel(marks, Axis("index", whole=True), Axis("", log=True), f"l = {layer.depth}")


def _scree(values: Tensor, colour: str, label: str, *, hollow: bool = False) -> Points:
    kept = [(i + 1.0, v) for i, v in enumerate(values.tolist()) if v > 1e-9 * float(values[0])]
    return Points(
        tuple(i for i, _ in kept), rounded([v for _, v in kept], 4), colour, label, hollow=hollow
    )


def _depth_picture(group: Sequence[LayersNetwork]) -> Picture:
    tints = dict(zip(KINDS, ("first", "second", "third"), strict=True))
    values: tuple[tuple[str, Callable[[LayerPart], float], tuple[str, ...], bool], ...] = (
        ("share taken by the knockout", lambda layer: layer.mass, KINDS, False),
        ("λ_C of the class part / bulk", lambda layer: layer.ratio, KINDS, True),
        ("λ₂/λ_C of the class part", lambda layer: layer.whiskers, KINDS[:2], True),
    )
    panels = []
    for label, value, kinds, log in values:
        marks: list[Mark] = []
        for kind in kinds:
            marks += _depth_marks(group, kind, value, tints[kind], log=log)
        if "bulk" in label:
            marks.append(Rule(1.0, "", upright=False))
        panels.append(Panel(marks, Axis("layer l", whole=True), Axis(label, log=log)))
    return picture("papyan-layers.depth", panels, group[0].label)


def _depth_marks(
    group: Sequence[LayersNetwork],
    kind: str,
    value: Callable[[LayerPart], float],
    tint: str,
    *,
    log: bool,
) -> list[Line | Points | Band]:
    depths = [layer.depth for layer in group[0].by_kind[kind]]
    rows = [[value(layer) for layer in net.by_kind[kind]] for net in group]
    if not depths or any(len(row) != len(depths) for row in rows) or not np.isfinite(rows).all():
        return []
    if log and np.min(rows) <= 0:
        return []
    mean = np.exp(np.mean(np.log(rows), 0)) if log else np.mean(rows, 0)
    x, y = tuple(float(d) for d in depths), rounded(mean.tolist())
    low, high = (rounded(ends.tolist()) for ends in (np.min(rows, 0), np.max(rows, 0)))
    band = [Band(x, low, high, tint)] if len(rows) > 1 else []
    return [*band, Line(x, y, tint), Points(x, y, tint, kind)]


def _row(network: LayersNetwork, layer: LayerPart) -> tuple[object, ...]:
    return (
        *(network.label, network.seed, _MATRIX[layer.kind], layer.depth),
        *(layer.mass, layer.null, layer.first, layer.change, finite(layer.ratio)),
        finite(layer.second) if layer.kind != "weights" else None,
        finite(layer.whiskers),
        layer.num_cross if layer.kind == "errors" else None,
        finite(layer.cross),
    )


def _accuracy_rows(network: LayersNetwork) -> list[tuple[object, ...]]:
    accuracy = network.accuracy
    columns = (accuracy.layers, accuracy.centre_accuracy, accuracy.linear_accuracy)
    return [
        (network.label, network.seed, int(layer), float(centre), float(linear))
        for layer, centre, linear in zip(*columns, strict=True)
    ]


def _product_row(network: LayersNetwork, depth: str) -> tuple[object, ...]:
    cosines = network.products[depth]
    numbers = map(finite, (cosines.classes, cosines.pairs, cosines.others))
    return (network.label, network.seed, int(depth), *numbers)


STUDY = Study.of("papyan-layers", measure, {"laptop": (WIDE_MLP,), "paper": casts.MLP})
