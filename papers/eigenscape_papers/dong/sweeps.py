"""Widths of random networks and the vocabulary of a transformer, for `dong_beyond`.

Letters: n_l the width of layer l, C the number of classes, r the mean squared norm of a layer's
off-diagonal blocks over that of its diagonal ones, a block for each output.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from eigenscape.curvature import LayerHessian
from eigenscape.records import Axis, Mark, Panel, Picture, Points
from eigenscape.risk import EmpiricalRisk
from eigenscape.space import Partition
from eigenscape.structure import block_structure, squared_block_norms
from eigenscape_papers.datasets import DataSet, load
from eigenscape_papers.dong.trainings import risk_of
from eigenscape_papers.networks import build
from eigenscape_papers.runner import Measured, Sheet, Workshop, rounded, sheet, sweep_panel

_BATCH = 256  # columns multiplied at a time


def layer_ratio(risk: EmpiricalRisk, layer: str, num_products: int) -> float:
    """Return r of a layer's Hessian, a block for each of its outputs.

    Args:
        risk: Network, loss and data.
        layer: The layer's name.
        num_products: Products to spend; exact from the layer's number of parameters on.

    Returns:
        The ratio.
    """
    H = LayerHessian(risk, layer, num_products=num_products)
    blocks = Partition.by_output(H.space)
    norms = squared_block_norms(H, blocks, num_products=num_products, batch=_BATCH)
    return max(block_structure(norms).ratio, 0.0)  # strict zeros round to either side


def inverse_widths(widths: Sequence[int]) -> float:
    """Return Σ 1/n over widths: about r of the layer in front of them in a random network.

    Args:
        widths: Of all layers behind it, the number of classes last.

    Returns:
        The sum.

    Examples:
        >>> inverse_widths((4, 8, 8))
        0.5
    """
    return sum(1.0 / width for width in widths)


def digit_tokens(levels: int, *, pairs: bool = False) -> DataSet:
    """Return the bundled digits as sequences of grey values, each to be told from those before it.

    Args:
        levels: Grey values, 2 to 17.
        pairs: Make one token of two neighbouring pixels; the vocabulary is then squared.

    Returns:
        Tokens (samples, positions) and the next ones; the classes are the vocabulary.
    """
    grey = load("digits", normalise="unit").inputs.flatten(1).mul(16).round()
    tokens = (grey * (levels - 1) / 16).round().long()
    vocabulary = levels
    if pairs:
        tokens, vocabulary = tokens[:, ::2] * levels + tokens[:, 1::2], levels**2
    return DataSet("digit-tokens", tokens[:, :-1], tokens[:, 1:], num_classes=vocabulary)


# --- widths of random networks -------------------------------------------------------------------


def random_network_ratio(
    widths: Sequence[int], *, dimension: int, num_samples: int, seed: int, device: torch.device
) -> float:
    """Return r of the first layer of a random ReLU network on Gaussian inputs, cross-entropy.

    Args:
        widths: Of the hidden layers; the number of classes last.
        dimension: Of the inputs.
        num_samples: Number of inputs.
        seed: Fixes weights and inputs.
        device: Where it runs.

    Returns:
        The ratio, exact.
    """
    *hidden, C = widths
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(num_samples, dimension, generator=draw, dtype=torch.float64)
    y = torch.randint(C, (num_samples,), generator=draw)
    name = "F-" + "-".join(map(str, hidden))
    model = build(name, input_shape=(dimension,), num_classes=C, seed=seed, init="lecun")
    return layer_ratio(risk_of(model, x, y, device), "fc1.weight", hidden[0] * dimension)


def fan_out(
    options: Mapping[str, Any], workshop: Workshop
) -> tuple[dict[str, Measured], Picture, Sheet]:
    """Fit the exponents of n₁, n₂ and C."""
    first, second, classes = (options["fan_out"][name] for name in ("n1", "n2", "C"))
    seeds = range(options["fan_out"]["num_seeds"])
    sizes = {name: options["fan_out"][name] for name in ("dimension", "num_samples")}
    logs: dict[tuple[int, int, int], Tensor] = {}
    for widths in itertools.product(first, second, classes):
        drawn = [
            random_network_ratio(widths, seed=seed, device=workshop.device, **sizes)
            for seed in seeds
        ]
        logs[widths] = torch.tensor(drawn, dtype=torch.float64).log()
    n1, n2, C = max(first), max(second), max(classes)
    measured = {
        "dong.app-a.fan-out.next": _slope([(n, logs[n1, n, C]) for n in second]),
        "dong.app-a.fan-out.classes": _slope([(n, logs[n1, n2, n]) for n in classes]),
        "dong.app-a.fan-out.own": _size(_slope([(n, logs[n, n2, C]) for n in first])),
    }
    sums = torch.tensor([inverse_widths(widths[1:]) for widths in logs], dtype=torch.float64)
    means = torch.stack([values.mean() for values in logs.values()])
    together = torch.corrcoef(torch.stack([sums.log(), means]))[0, 1]
    measured["dong.beyond.fan-out.all-widths"] = Measured(float(together))
    rows = [
        (*widths, inverse_widths(widths[1:]), float(v.mean().exp()), float(v.std()))
        for widths, v in logs.items()
    ]
    names = ("n₁", "n₂", "C", "Σ 1/n", "r", "spread of log r")
    table = sheet("widths", "First layer of random networks with n₁, n₂ hidden units", names, rows)
    curves = {
        f"C = {count}": [float(logs[n1, n, count].mean().exp()) for n in second]
        for count in classes
    }
    all_widths: list[Mark] = [Points(rounded(sums), rounded(means.exp()), "first")]
    r = Axis("r", log=True)
    panels = [
        sweep_panel([float(n) for n in second], curves, Axis("n₂", log=True), r, f"n₁ = {n1}"),
        Panel(all_widths, Axis("Σ 1/n behind the layer", log=True), r, "all networks"),
    ]
    shows = (
        "Left: r falls with the fan-out n₂ until C is the narrower, and the other way round. "
        "Right: one number, Σ 1/n over all widths behind the layer, orders them all."
    )
    picture = Picture("fan-out", "First layer of random networks", panels, shows=shows)
    return measured, picture, table


def _slope(points: Sequence[tuple[int, Tensor]]) -> Measured:
    """Return the slope of log r (seeds,) over log n by least squares, its spread over seeds."""
    x = torch.tensor([math.log(n) for n, _ in points], dtype=torch.float64)
    x = x - x.mean()
    y = torch.stack([values for _, values in points])
    slopes = (x[:, None] * y).sum(0) / x.square().sum()
    return Measured.over(slopes)


def _size(slope: Measured) -> Measured:
    return Measured(abs(slope.ours), slope.spread)


# --- the vocabulary of a transformer -------------------------------------------------------------


def vocabulary(
    options: Mapping[str, Any], workshop: Workshop
) -> tuple[dict[str, Measured], Picture, Sheet]:
    """Measure every layer of a random transformer as its vocabulary grows."""
    settings = options["vocabulary"]
    ratios: dict[int, dict[str, float]] = {}
    for levels, pairs in settings["tokens"]:
        data = digit_tokens(levels, pairs=pairs).take(settings["samples"], seed=0)
        C = data.num_classes or 0
        drawn: dict[str, list[float]] = {}
        for seed in range(settings["num_seeds"]):
            model = build(settings["model"], input_shape=data.input_shape, num_classes=C, seed=seed)
            risk = risk_of(model, data.inputs, data.targets, workshop.device)
            for name, module in model.named_children():
                if isinstance(module, nn.Linear):
                    ratio = layer_ratio(risk, name, settings["num_products"])
                    drawn.setdefault(name, []).append(math.log(ratio))
        ratios[C] = {name: math.exp(sum(logs) / len(logs)) for name, logs in drawn.items()}
    sizes = sorted(ratios)
    few, many = ratios[sizes[0]], ratios[sizes[-1]]
    inside = [math.log(many[name] / few[name]) for name in few if name != "head"]
    measured = {
        "dong.beyond.vocabulary.head": Measured(many["head"] / few["head"]),
        "dong.beyond.vocabulary.hidden": Measured(math.exp(sum(inside) / len(inside))),
    }
    curves = {name: [ratios[C][name] for C in sizes] for name in few}
    across, r = Axis("vocabulary C", log=True), Axis("r", log=True)
    panel = sweep_panel([float(C) for C in sizes], curves, across, r, settings["model"])
    picture = Picture(
        "vocabulary",
        "Layers of a random transformer as its vocabulary grows",
        (panel,),
        shows="r of each layer, a block for each of its outputs. Tokens are grey values of digits, "
        "or pairs of them.",
    )
    rows = [(C, *(ratios[C][name] for name in few)) for C in sizes]
    table = sheet("vocabulary", f"r of the layers of {settings['model']}", ("C", *few), rows)
    return measured, picture, table
