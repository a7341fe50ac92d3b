"""Papyan Figs 11, 12: one Kronecker product for each class (CFAC) against one for all (KFAC).

Both are compared with a layer's Gauss-Newton matrix G^l by their eigenvalues alone, rank by rank,
on a logarithmic axis. "Aligns better" depends on the part of the spectrum: the C largest are the
outliers, and C² reach to the end of the mini-bulk.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from eigenscape.records import Axis, Mark, Panel, Picture, Points, Rule, Ticker, storable
from eigenscape_papers.papyan import networks as casts
from eigenscape_papers.papyan.kronecker_spectra import KroneckerSpectra, kronecker_spectra
from eigenscape_papers.papyan.layers_study import WIDE_MLP
from eigenscape_papers.papyan.whole_spectra import seen_risk
from eigenscape_papers.runner import (
    Measured,
    Networks,
    Outcome,
    Setting,
    Study,
    Workshop,
    by_label,
    curve,
    finite,
    matrix_layers,
    of_each_network,
    picture,
    rounded,
    table,
    worst,
)


@storable
@dataclass(frozen=True, eq=False)
class KroneckerNetwork:
    """The hidden layers of one network, and the last one, for the table."""

    label: str
    data: str
    seed: int
    layers: tuple[KroneckerSpectra, ...]

    @property
    def hidden(self) -> tuple[KroneckerSpectra, ...]:
        """All but the last layer."""
        return self.layers[:-1] or self.layers

    @property
    def deep(self) -> tuple[KroneckerSpectra, ...]:
        """The deeper half of them."""
        return self.hidden[len(self.hidden) // 2 :]


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Compare the spectra of every layer of every network."""
    networks = of_each_network("kronecker", setting, workshop, _look)
    pictures: list[Picture] = []
    for group in by_label(networks).values():
        pictures += [_spectra_picture(group[0]), _distance_picture(group[0])]
    rows = [_row(net, each) for net in networks for each in net.layers]
    layers = table("papyan-kronecker.layers", rows)
    products = sum(each.num_products for net in networks for each in net.layers)
    return Outcome(_measured(networks), tuple(pictures), (layers,), (), products)


def _look(networks: Networks, seed: int, setting: Setting, workshop: Workshop) -> KroneckerNetwork:
    risk = seen_risk(networks, seed, setting.options["samples"])
    layers: list[KroneckerSpectra] = []
    names = matrix_layers(risk)
    ticker = Ticker(workshop.progress, f"layers of {networks.cast.label}", len(names))
    for layer in names:
        weight = f"{layer}.weight"
        q, C = risk.restricted([weight]).space.size, networks.data.num_classes or 2
        layers.append(
            kronecker_spectra(
                risk,
                weight,
                num_values=min(q, setting.options["num_values"] or C * C),
                max_exact=setting.options["max_exact"],
            )
        )
        layers[-1].status.warn()
        ticker.tick(len(layers))
    return KroneckerNetwork(networks.cast.label, networks.cast.data, seed, tuple(layers))


def range_ratio(spectra: KroneckerSpectra, first: int, last: int) -> float:
    """Return CFAC's distance over KFAC's in the eigenvalues after the first so many up to the last.

    Args:
        spectra: The spectra.
        first: Eigenvalues to leave out.
        last: The last one; what there is, where there are fewer.

    Returns:
        The ratio; NaN where there are none, or KFAC has no distance.
    """
    last = min(last, len(spectra.values))
    if last <= first:
        return math.nan
    cfac, other = (
        float(d[last - 1] * last - (d[first - 1] * first if first else 0.0))
        for d in (spectra.class_distances, spectra.kronecker_distances)
    )
    return cfac / other if other > 0 else math.nan


def shifted_ratio(spectra: KroneckerSpectra, count: int) -> float:
    """Return CFAC's distance over KFAC's once each spectrum is shifted to where it fits best.

    Args:
        spectra: The spectra.
        count: Eigenvalues to compare, the largest; what there is, where there are fewer.

    Returns:
        The ratio; NaN where KFAC has no distance.
    """
    logs = [
        (values[:count] + spectra.epsilon).log()
        for values in (spectra.values, spectra.class_kronecker, spectra.kronecker)
    ]
    # The median is the shift that leaves least.
    cfac, other = (
        float((gap - gap.median()).abs().mean()) for gap in (x - logs[0] for x in logs[1:])
    )
    return cfac / other if other > 0 else math.nan


def _outliers(spectra: KroneckerSpectra) -> float:
    return range_ratio(spectra, 0, spectra.num_classes)


def _mini_bulk(spectra: KroneckerSpectra) -> float:
    return range_ratio(spectra, spectra.num_classes, spectra.num_classes**2)


def _both(spectra: KroneckerSpectra) -> float:
    return range_ratio(spectra, 0, spectra.num_classes**2)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _measured(networks: Sequence[KroneckerNetwork]) -> dict[str, Measured]:
    def depth(net: KroneckerNetwork) -> float:
        shallow = net.hidden[: len(net.hidden) // 2]
        return _mean([_both(f) for f in net.deep]) / _mean([_both(f) for f in shallow])

    def aligned(net: KroneckerNetwork) -> float:
        return _mean([float(f.class_distances[: f.num_classes**2][-1]) for f in net.hidden[-2:]])

    claims: dict[str, Callable[[KroneckerNetwork], float]] = {
        "fig11.outliers": lambda net: _outliers(net.hidden[-1]),
        "fig11.mini-bulk": lambda net: _mini_bulk(net.hidden[-1]),
        "fig12.deep.outliers": lambda net: _mean([*map(_outliers, net.deep)]),
        "fig12.deep.mini-bulk": lambda net: _mean([*map(_mini_bulk, net.deep)]),
        "fig12.deep.shifted": lambda net: _mean(
            [shifted_ratio(f, f.num_classes**2) for f in net.deep]
        ),
        "fig12.deep.all": lambda net: _mean([*map(_both, net.deep)]),
        "fig12.depth": depth,
    }
    numbers = {f"papyan.{claim}": worst(networks, of, _mean) for claim, of in claims.items()}
    cifar = [net for net in networks if net.data == "cifar10"]
    if cifar:
        numbers["papyan.fig12.cifar10.aligned"] = worst(cifar, aligned, _mean)
    return numbers


def _spectra_picture(network: KroneckerNetwork) -> Picture:
    return picture(
        "papyan-kronecker.spectra",
        (_spectra_panel(spectra) for spectra in network.hidden),
        network.label,
    )


def _spectra_panel(spectra: KroneckerSpectra) -> Panel:
    C = spectra.num_classes
    shown = min(C * C, len(spectra.values))
    series = (
        ("G", spectra.values, "hessian", False),
        ("KFAC", spectra.kronecker, "gauss_newton", True),
        ("CFAC", spectra.class_kronecker, "residual", True),
    )
    marks: list[Mark] = []
    for label, values, tint, hollow in series:
        kept = [(i + 1.0, v) for i, v in enumerate(values[:shown].tolist()) if v > spectra.epsilon]
        x, y = tuple(i for i, _ in kept), rounded([v for _, v in kept], 4)
        marks.append(Points(x, y, tint, label, hollow=hollow))
    marks.append(Rule(C + 0.5))
    return Panel(marks, Axis("rank", log=True), Axis("eigenvalue", log=True), _name(spectra))


def _distance_picture(network: KroneckerNetwork) -> Picture:
    panels = []
    for spectra in network.hidden:
        ends = spectra.num_classes, spectra.num_classes**2
        marks: list[Mark] = [
            curve(spectra.kronecker_distances, "gauss_newton", "KFAC"),
            curve(spectra.class_distances, "residual", "CFAC"),
            Rule(ends[0], "C"),
        ]
        if len(spectra.values) >= ends[1]:
            marks.append(Rule(ends[1], "C²"))
        highest = float(torch.cat([spectra.kronecker_distances, spectra.class_distances]).max())
        # Room for the names of the rules, which stand at the top, left of them.
        x = Axis("j", log=True, limits=(0.9, 1.3 * len(spectra.values)))
        y = Axis("distance from G", limits=(0.0, 1.2 * (highest or 1.0)))
        panels.append(Panel(marks, x, y, _name(spectra)))
    return picture("papyan-kronecker.distances", panels, network.label)


def _name(spectra: KroneckerSpectra) -> str:
    return spectra.layer.removesuffix(".weight")


def _row(network: KroneckerNetwork, layer: KroneckerSpectra) -> tuple[object, ...]:
    j = min(layer.num_classes**2, len(layer.values)) - 1
    return (
        *(network.label, network.seed, _name(layer)),
        *(float(v[0] / layer.values[0]) for v in (layer.kronecker, layer.class_kronecker)),
        *(finite(ratio(layer)) for ratio in (_outliers, _mini_bulk, _both)),
        *(float(v[j]) for v in (layer.kronecker_distances, layer.class_distances)),
    )


STUDY = Study.of(
    "papyan-kronecker", measure, {"laptop": (casts.DIGITS_MLP, WIDE_MLP), "paper": casts.MLP}
)
