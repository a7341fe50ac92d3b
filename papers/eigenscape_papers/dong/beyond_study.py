"""Dong App. A, beyond the paper: what makes the blocks of a deeper network stand out?

Letters: n_l the width of layer l, C the number of classes, r the ratio of Dong's figures: mean
squared norm of a layer's off-diagonal blocks over that of its diagonal ones, a block for each
output. 1 where there are no blocks.

The paper conjectures that in deeper networks the fan-out of a layer decides. In a random network
the block of units i and j goes with w_iᵀ K w_j, w_i the weights out of unit i and K made of all
that follows. So r is about ‖K‖²/tr(K)², one over the effective rank of a product of random
matrices: Σ 1/n over all widths behind the layer, C among them. The narrowest one decides.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from eigenscape.records import Axis, Picture
from eigenscape.risk import CrossEntropy, SquaredError
from eigenscape_papers.datasets import DataSet, load
from eigenscape_papers.dong.blocks_study import LOSSES
from eigenscape_papers.dong.clusters_study import WORDS, targets_of
from eigenscape_papers.dong.sweeps import fan_out, layer_ratio, vocabulary
from eigenscape_papers.dong.trainings import risk_of, train
from eigenscape_papers.ensemble import Adam, Recipe
from eigenscape_papers.runner import (
    Measured,
    Outcome,
    Setting,
    Study,
    Workshop,
    sheet,
    stops,
    sweep_panel,
)

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "ReLU": nn.ReLU,
    "GELU": nn.GELU,
    "tanh": nn.Tanh,
    "none": nn.Identity,
}


@dataclass(frozen=True)
class Network:
    """One network of the sweep over factors.

    Attributes:
        depth: Hidden layers.
        width: Units in each.
        activation: A key of the activations.
        loss: "ce" or "mse".
        noise: Share of the labels that is random.
        clusters: Clusters of the inputs; None for digits.
    """

    depth: int = 2
    width: int = 16
    activation: str = "ReLU"
    loss: str = "ce"
    noise: float = 0.0
    clusters: int | None = None


@dataclass(frozen=True, eq=False)
class _Found:
    """r of the first hidden, last hidden and output layer: (2, seeds, 3), start and end."""

    factor: str
    value: str
    ratios: Tensor

    def mean(self, stage: int, layer: int = 0) -> float:
        return float(self.ratios[stage, :, layer].log().mean().exp())


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Sweep widths of random networks, factors of trained ones, and a transformer's vocabulary."""
    options = setting.options
    measured, widths_picture, widths_table = fan_out(options, workshop)
    known: dict[Network, Tensor] = {}  # the usual network has its place in every factor
    trained = []
    for factor, value, network in _networks(options):
        if network not in known:
            known[network] = _ratios(options, workshop, network)
        trained.append(_Found(factor, value, known[network]))
    measured |= _factor_numbers(trained)
    more, words_picture, words_table = vocabulary(options, workshop)
    names = ["factor", "value"]
    for when in ("start", "end"):
        names += [f"{layer}, {when}" for layer in ("first layer", "last hidden", "output")]
    names.append("spread")  # of log r over seeds: of the first layer, at the end
    rows = [
        (
            one.factor,
            one.value,
            *(one.mean(stage, layer) for stage in (0, 1) for layer in range(3)),
            float(one.ratios[1, :, 0].log().std()) if one.ratios.shape[1] > 1 else 0.0,
        )
        for one in trained
    ]
    factors = sheet("factors", "r of trained networks, one factor at a time", names, rows)
    pictures = (widths_picture, _factors_picture(trained), words_picture)
    return Outcome(measured | more, pictures, (factors, widths_table, words_table))


# --- factors of trained networks -----------------------------------------------------------------


def _networks(options: Mapping[str, Any]) -> Iterator[tuple[str, str, Network]]:
    """Yield factor, value and network: the usual one with one thing changed."""
    usual = Network(**options["usual"])
    for factor, values in options["factors"].items():
        for value in values:
            word = WORDS[value] if factor == "loss" else str(value)
            yield factor, word, replace(usual, **{factor: value})


def _ratios(options: Mapping[str, Any], workshop: Workshop, network: Network) -> Tensor:
    """Train a network from each seed, and measure three layers at the start and at the end."""
    data = _data(options, network)
    recipe = Recipe(
        epochs=options["epochs"],
        batch_size=options["batch_size"],
        optimizer=Adam(options["learning_rate"]),
        loss=LOSSES[network.loss],
    )
    seeds = tuple(range(options["num_seeds"]))

    def make(seed: int) -> nn.Module:
        return sequential(network, data, seed)

    deciding = (network, seeds)
    training, _ = train("dong-beyond", make, data, recipe, workshop, deciding=deciding, seeds=seeds)
    loss = CrossEntropy() if network.loss == "ce" else SquaredError()
    x, y = data.inputs.double(), targets_of(data, network.loss)
    layers = [1, 2 * network.depth - 1, 2 * network.depth + 1]  # after Flatten, every other one

    def ratios(model: nn.Module) -> list[float]:
        risk = risk_of(model, x, y, workshop.device, loss)
        return [layer_ratio(risk, str(layer), options["num_products"]) for layer in layers]

    start = [ratios(make(seed)) for seed in seeds]
    end = [ratios(training.load_into(make(seed), seed)) for seed in seeds]
    return torch.tensor([start, end], dtype=torch.float64)


def sequential(network: Network, data: DataSet, seed: int) -> nn.Module:
    """Build a network of the sweep: layers "1", "3", …, behind a Flatten.

    Args:
        network: Depth, width, activation.
        data: Shape of inputs and number of classes.
        seed: Fixes the weights.

    Returns:
        The network, float32, with PyTorch's initial weights.
    """
    sizes = [math.prod(data.input_shape), *[network.width] * network.depth]
    layers: list[nn.Module] = [nn.Flatten()]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for before, after in itertools.pairwise(sizes):
            layers += [
                nn.Linear(before, after, dtype=torch.float32),
                _ACTIVATIONS[network.activation](),
            ]
        layers.append(nn.Linear(sizes[-1], data.num_classes or 0, dtype=torch.float32))
    return nn.Sequential(*layers)


def _data(options: Mapping[str, Any], network: Network) -> DataSet:
    if network.clusters is not None:
        return load("clusters", num_clusters=network.clusters, **options["clustered"])
    digits = load("digits").take(options["samples"], seed=0)
    return digits.random_labels(network.noise) if network.noise else digits


def _factor_numbers(trained: Sequence[_Found]) -> dict[str, Measured]:
    by = {
        factor: [one for one in trained if one.factor == factor]
        for factor in dict.fromkeys(one.factor for one in trained)
    }

    def over(factor: str, stage: int) -> float:
        return by[factor][-1].mean(stage) / by[factor][0].mean(stage)

    def range_of(factor: str, stage: int) -> float:
        values = [one.mean(stage) for one in by[factor]]
        return max(values) / min(values)

    changes = torch.stack([(one.ratios[1, :, 0] / one.ratios[0, :, 0]).log() for one in trained])
    return {
        "dong.beyond.depth": Measured(over("depth", 0)),
        "dong.beyond.width": Measured(over("width", 0)),
        "dong.beyond.activation": Measured(range_of("activation", 0)),
        "dong.beyond.loss": Measured(max(one.mean(0) for one in by["loss"])),
        "dong.beyond.label-noise": Measured(over("noise", 1)),
        "dong.beyond.clusters": Measured(range_of("clusters", 1)),
        "dong.beyond.training": Measured(float(changes.mean().exp()), float(changes.mean(1).std())),
    }


def _factors_picture(trained: Sequence[_Found]) -> Picture:
    panels = []
    for factor in dict.fromkeys(one.factor for one in trained):
        values = [one for one in trained if one.factor == factor]
        x = [float(i) for i in range(len(values))]
        curves = {
            word: [one.mean(stage) for one in values] for stage, word in enumerate(("start", "end"))
        }
        across = stops([one.value for one in values], margin=0.4)
        is_first = factor == trained[0].factor
        r = Axis("r", log=True)
        panels.append(sweep_panel(x, curves, across, r, factor, named=is_first))
    return Picture(
        "factors",
        "First layer of networks on digits, one factor at a time",
        panels,
        shows="r of the first hidden layer, a block for each unit, before and after training. A "
        "matrix without blocks has 1. Geometric means over seeds.",
    )


STUDY = Study.of("dong-beyond", measure)
