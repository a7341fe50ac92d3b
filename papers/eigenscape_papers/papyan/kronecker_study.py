"""Papyan Figs 11, 12: one Kronecker product for each class (CFAC) against one for all (KFAC).

Both are compared with a layer's Gauss-Newton matrix G^l by their eigenvalues alone, rank by rank,
on a logarithmic axis. "Aligns better" depends on the part of the spectrum: the C largest are the
outliers, and C² reach to the end of the mini-bulk.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from eigenscape.records import Axis, Mark, Panel, Picture, Points, Rule, Ticker, storable
from eigenscape_papers.papyan import networks as casts
from eigenscape_papers.papyan.kronecker_spectra import KroneckerSpectra, kronecker_spectra
from eigenscape_papers.papyan.layers_study import WIDE_MLP
from eigenscape_papers.papyan.whole_spectra import seen_risk
from eigenscape_papers.runner import (
    Cast,
    Measured,
    Networks,
    Outcome,
    Setting,
    Sheet,
    Workshop,
    curve,
    described,
    matrix_layers,
    of_each_cast,
    picture,
    rounded,
    sheet,
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
    networks = [*chain(*of_each_cast("kronecker", setting, workshop, _of_cast))]
    pictures: list[Picture] = []
    for label in dict.fromkeys(network.label for network in networks):
        group = [network for network in networks if network.label == label]
        pictures += [_spectra_picture(group[0]), _distance_picture(group[0])]
    products = sum(each.num_products for net in networks for each in net.layers)
    return Outcome(_measured(networks), tuple(pictures), (_sheet(networks),), (), products)


def _of_cast(cast: Cast, setting: Setting, workshop: Workshop) -> tuple[KroneckerNetwork, ...]:
    networks = workshop.networks(cast)
    return tuple(_look(networks, seed, setting, workshop) for seed in cast.seeds)


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

    numbers = {
        "papyan.fig11.outliers": _worst(networks, lambda net: _outliers(net.hidden[-1])),
        "papyan.fig11.mini-bulk": _worst(networks, lambda net: _mini_bulk(net.hidden[-1])),
        "papyan.fig12.deep.outliers": _worst(
            networks, lambda net: _mean([*map(_outliers, net.deep)])
        ),
        "papyan.fig12.deep.mini-bulk": _worst(
            networks, lambda net: _mean([*map(_mini_bulk, net.deep)])
        ),
        "papyan.fig12.deep.shifted": _worst(
            networks, lambda net: _mean([shifted_ratio(f, f.num_classes**2) for f in net.deep])
        ),
        "papyan.fig12.deep.all": _worst(networks, lambda net: _mean([*map(_both, net.deep)])),
        "papyan.fig12.depth": _worst(networks, depth),
    }
    cifar = [net for net in networks if net.data == "cifar10"]
    if cifar:
        numbers["papyan.fig12.cifar10.aligned"] = _worst(
            cifar,
            lambda net: _mean(
                [float(f.class_distances[: f.num_classes**2][-1]) for f in net.hidden[-2:]]
            ),
        )
    return numbers


def _worst(
    networks: Sequence[KroneckerNetwork], value: Callable[[KroneckerNetwork], float]
) -> Measured:
    """Return the mean over seeds, of the data set where it is largest; NaN where there is none."""
    groups: dict[str, list[float]] = {}
    for network in networks:
        number = value(network)
        if math.isfinite(number):
            groups.setdefault(network.label, []).append(number)
    numbers = max(groups.values(), key=_mean, default=[math.nan])
    spread = float(np.std(numbers, ddof=1)) if len(numbers) > 1 else None
    return Measured(_mean(numbers), spread)


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


def _sheet(networks: Sequence[KroneckerNetwork]) -> Sheet:
    names = (
        "network",
        "seed",
        "layer",
        "λ₁ of KFAC / G",
        "λ₁ of CFAC / G",
        "CFAC/KFAC, C",
        "after C to C²",
        "C²",
        "KFAC distance, C²",
        "CFAC distance, C²",
    )
    rows = []
    for net in networks:
        for each in net.layers:
            j = min(each.num_classes**2, len(each.values)) - 1
            ratios = (_outliers(each), _mini_bulk(each), _both(each))
            rows.append(
                (
                    net.label,
                    net.seed,
                    _name(each),
                    float(each.kronecker[0] / each.values[0]),
                    float(each.class_kronecker[0] / each.values[0]),
                    *(ratio if math.isfinite(ratio) else None for ratio in ratios),
                    float(each.kronecker_distances[j]),
                    float(each.class_distances[j]),
                )
            )
    return sheet("layers", "Every layer of every network", names, rows)


STUDY = described(
    "papyan-kronecker",
    measure,
    Setting((casts.DIGITS_MLP, WIDE_MLP), {"samples": None, "num_values": None, "max_exact": 2048}),
    Setting(casts.MLP, {"samples": 5000, "num_values": None, "max_exact": 2048}),
)
