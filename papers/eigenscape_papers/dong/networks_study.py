"""Dong beyond the paper: blocks of whole networks, and what approximations by blocks lose.

Letters: r the mean squared norm of a layer's off-diagonal blocks over that of its diagonal ones, a
block for each output; G the Gauss-Newton matrix, B an approximation of it. Scores are those of the
Hessian. What approximations lose is measured on G: it is what optimisers stand for, and a
condition number needs a matrix that is not indefinite.
"""

import contextlib
import math
import warnings
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from eigenscape.curvature import GaussNewton, Hessian, KroneckerHessian
from eigenscape.errors import ConvergenceWarning, DataError, EigenscapeError
from eigenscape.operator import Dense, LinearOperator
from eigenscape.records import Axis, Mark, Panel, Picture, Points, Raster
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape.space import ParamSpace, Partition
from eigenscape.structure import (
    SquaredBlockNorms,
    pool_magnitudes,
    squared_block_norms,
)
from eigenscape_papers.datasets import DataSet
from eigenscape_papers.dong.adam_diagonal import adam_diagonal
from eigenscape_papers.dong.block_preconditioning import block_preconditioning
from eigenscape_papers.dong.sweeps import digit_tokens
from eigenscape_papers.ensemble import Adam, Recipe
from eigenscape_papers.networks import build
from eigenscape_papers.runner import (
    SERIES,
    Cast,
    Measured,
    Networks,
    Outcome,
    Own,
    Setting,
    Study,
    Workshop,
    matrix_layers,
    rounded,
    sheet,
    stops,
    sweep_panel,
)
from eigenscape_papers.runner import common_networks as casts

_TICKS = {"diagonal": "diag.", "Kronecker": "Kron."}
_SHOWN = 64  # blocks in a row of a heat map


@dataclass(frozen=True, eq=False)
class _Stage:
    """Scores of one network at one epoch, seed by seed."""

    epoch: int
    ratios: dict[str, list[float]]  # r of each layer
    inside: list[float]  # share of ‖H‖² inside the blocks of units

    def mean(self, layer: str) -> float:
        return math.exp(sum(map(math.log, self.ratios[layer])) / len(self.ratios[layer]))

    def mean_of_all(self) -> float:
        logs = [math.log(self.mean(layer)) for layer in self.ratios]
        return math.exp(sum(logs) / len(logs))


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Score all layers along training, and measure what approximations lose at the end."""
    options = setting.options
    chosen, notes = list(setting.casts), []
    if chosen[0].own is None and options["transformer"]:
        cast, note = transformer(options["transformer"], workshop)
        chosen.append(cast)
        notes += note
    scores, losses, lines, maps, products = [], [], [], [], 0
    by_id: defaultdict[str, list[float]] = defaultdict(list)
    for cast in chosen:
        networks = workshop.networks(cast)
        stages, panels, spent = _along(networks, options["num_products"])
        products += spent
        maps += panels
        curves = {layer: [stage.mean(layer) for stage in stages] for layer in stages[0].ratios}
        across = stops([str(stage.epoch) for stage in stages], "epoch", margin=0.3)
        x = [float(i) for i in range(len(stages))]
        lines.append(sweep_panel(x, curves, across, Axis("r", log=True), cast.label))
        for stage in stages:
            for layer in stage.ratios:
                share = sum(stage.inside) / len(stage.inside)
                scores.append((cast.label, stage.epoch, layer, stage.mean(layer), share))
        first, last = stages[0].mean_of_all(), stages[-1].mean_of_all()
        by_id["dong.networks.blocks"].append(last)
        by_id["dong.networks.training"].append(last / first)
        table, words = losses_of(networks, options["dense"])
        notes += words
        losses += [(cast.label, *row) for row in table]
        by = {row[0]: row for row in table}
        if "units" in by:
            _, error, _, _, effective, before = by["units"]
            by_id["dong.networks.neurons.error"].append(error)
            by_id["dong.networks.neurons.condition"].append(effective / before)
            by_id["dong.networks.neurons.adam"].append(effective / by["Adam"][4])
    names = ("network", "B", "‖G−B‖/‖G‖", "at best scale", "condition", "max/mean λ", "without B")
    sheets = (
        sheet("losses", "What an approximation B of G loses, after training", names, losses),
        sheet(
            "scores",
            "Hessian, a block for each output",
            ("network", "epoch", "layer", "r", "share inside, whole network"),
            scores,
        ),
    )
    measured = {name: Measured(max(values)) for name, values in by_id.items()}
    maps_picture = Picture(
        "maps",
        "Norms of all pairs of units' blocks in the Hessian",
        tuple(maps),
        shows="A block for each output of each layer, the first layer's first. A logarithmic ramp "
        "of three decades.",
    )
    ratios_picture = Picture(
        "ratios",
        "Off-diagonal to diagonal ratio r of the layers along training",
        tuple(lines),
        shows="A matrix without blocks has 1. Geometric means over seeds.",
    )
    pictures = (maps_picture, ratios_picture, _losses_picture(losses))
    return Outcome(measured, pictures, sheets, tuple(notes), products)


def transformer(options: Mapping[str, Any], workshop: Workshop) -> tuple[Cast, list[str]]:
    """Return a small GPT on characters where the text is at hand, else on grey values of digits.

    Args:
        options: "model", "data", "samples", "epochs", "learning_rate", "num_seeds".
        workshop: Knows where files of data sets are.

    Returns:
        The cast, and notes.
    """
    recipe = Recipe(
        epochs=options["epochs"], batch_size=16, optimizer=Adam(options["learning_rate"])
    )
    seeds = tuple(range(options["num_seeds"]))
    cast = Cast(options["model"], options["data"], recipe, seeds, samples=options["samples"])
    if options["data"] == "characters":
        try:
            cast.load(folder=workshop.data_dir)
            return cast, []
        except DataError:
            pass
    data = digit_tokens(4, pairs=True)
    network = Own(lambda seed: _gpt(options["model"], data, seed), data)
    cast = Cast(options["model"], data.name, recipe, seeds, samples=options["samples"], own=network)
    return cast, ["The transformer tells the next pair of grey values of a digit, out of 16."]


def _gpt(name: str, data: DataSet, seed: int) -> torch.nn.Module:
    vocabulary = data.num_classes or 0
    return build(name, input_shape=data.input_shape, num_classes=vocabulary, seed=seed)


# --- scores along training -----------------------------------------------------------------------


def _along(networks: Networks, num_products: int) -> tuple[list[_Stage], list[Panel], int]:
    cast = networks.cast
    stages, panels, spent = [], [], 0
    epochs = sorted({0, *cast.keep_epochs, networks.last})
    for epoch in epochs:
        ratios: dict[str, list[float]] = {}
        inside = []
        for seed in cast.seeds:
            risk = networks.risk(seed, epoch)
            H = Hessian(risk, num_products=num_products)
            units = Partition.by_output(H.space)
            norms = squared_block_norms(H, units, num_products=num_products, batch=64)
            spent += norms.num_products
            for layer, ratio in layer_ratios(norms).items():
                ratios.setdefault(layer, []).append(ratio)
            inside.append(float(norms.values.trace() / norms.values.sum()))
            if seed == cast.seeds[0] and epoch in (0, networks.last):
                when = "start" if epoch == 0 else "end"
                panels.append(_map_panel(norms, f"{cast.model}, {when}"))
        stages.append(_Stage(epoch, ratios, inside))
    return stages, panels, spent


def layer_ratios(norms: SquaredBlockNorms) -> dict[str, float]:
    """Return r of each layer that has two outputs or more.

    Args:
        norms: Of a partition by outputs.

    Returns:
        The ratios by layer; those that chance makes negative count as 1e-12.
    """
    places: dict[str, list[int]] = {}
    for number, name in enumerate(norms.names):
        places.setdefault(name.rpartition(".out.")[0], []).append(number)
    ratios = {}
    for layer, index in places.items():
        E = norms.values[index][:, index]
        k, diagonal = len(index), float(E.trace())
        if k > 1 and diagonal > 0:
            off = (float(E.sum()) - diagonal) / (k * (k - 1))
            ratios[layer] = max(off / (diagonal / k), 1e-12)
    return ratios


def _map_panel(norms: SquaredBlockNorms, title: str) -> Panel:
    """Return norms of all pairs of units; of many blocks, the largest in each cell."""
    E = norms.values.clamp_min(0.0).sqrt().cpu()
    cells = pool_magnitudes(E, _SHOWN)
    top = float(cells.amax(1).quantile(0.9))
    limits = (1e-3 * top, top) if top > 0 else None
    raster = Raster(tuple(rounded(row, 2) for row in cells), "norm", limits, top > 0)
    return Panel([raster], Axis("unit", ticks=()), Axis("unit", ticks=(), downward=True), title)


# --- what approximations lose --------------------------------------------------------------------


def losses_of(
    networks: Networks, dense_limit: int
) -> tuple[list[tuple[str, float, float, float, float, float]], list[str]]:
    """Measure approximations of the Gauss-Newton matrix of the first seed's trained network.

    Args:
        networks: The networks.
        dense_limit: Largest matrix that is multiplied out. Of larger ones, blocks are left out.

    Returns:
        Rows of: name; error; error at the best scale; condition number, largest over mean
        eigenvalue with it, and without it. And notes.
    """
    risk = networks.risk(networks.cast.seeds[0])
    G: LinearOperator = GaussNewton(risk)
    blocks_of: dict[str, Any] = {}
    notes = []
    if G.space.size <= dense_limit:
        matrix = G.to_dense()
        G = Dense((matrix + matrix.T) / 2, space=G.space)
        model = networks.model(networks.cast.seeds[0])
        blocks_of |= partitions(G.space, getattr(model, "num_heads", None))
        blocks_of["diagonal"] = matrix.diagonal().clone()
    else:
        notes.append(
            f"{networks.cast.label} has {G.space.size} parameters, more than {dense_limit}: its "
            "blocks were not multiplied out."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # the notes say it
            factors = [KroneckerHessian(risk, layer) for layer in matrix_layers(risk)]
        blocks_of["Kronecker"] = factors
        notes += sorted({str(K.status) for K in factors if not K.status})
    except EigenscapeError as error:
        notes.append(f"{networks.cast.label}: no Kronecker approximation. {error}")
    blocks_of["Adam"] = adam_diagonal(adam_state(networks), G.space).to(G.device)
    rows = []
    for name, what in blocks_of.items():
        one = block_preconditioning(G, what, dense_limit=dense_limit)
        numbers = (one.error, one.scaled_error, one.condition, one.effective, one.effective_before)
        rows.append((name, *numbers))
    return rows, notes


def partitions(space: ParamSpace, num_heads: int | None) -> dict[str, Partition]:
    """Return the blocks whose loss is measured: units, heads where there are any, layers.

    Args:
        space: The parameters.
        num_heads: Attention heads; None for none. They are left out where none are found.

    Returns:
        Partitions of all parameters, as far as they go: what is in no head is cut into units.
    """
    partitions = {"units": Partition.by_output(space, space.names)}
    with contextlib.suppress(EigenscapeError):  # what a user calls heads may be something else
        heads = Partition.by_head(space, num_heads or 0)
        taken = heads.labels() >= 0
        free = [n for n in space.names if not bool(taken[space.block(n).index()].any())]
        partitions["heads"] = heads + Partition.by_output(space, free)
    return {**partitions, "layers": Partition.by_layer(space)}


def adam_state(networks: Networks, num_steps: int = 200) -> dict[str, Any]:
    """Return the state of PyTorch's Adam at the first seed's trained network.

    Adam is run with a learning rate of 0, so that its averages are those of this very point.

    Args:
        networks: The networks; batches are as large as those that they were trained with.
        num_steps: Steps.

    Returns:
        The optimiser's `state_dict()`.
    """
    model = networks.model(networks.cast.seeds[0])
    optimiser = torch.optim.Adam(model.named_parameters(), lr=0.0)
    draw = torch.Generator().manual_seed(0)
    loss, (x, y) = CrossEntropy(), networks.data.tensors
    size = min(networks.cast.recipe.batch_size, len(x))
    for _ in range(num_steps):
        chosen = torch.randint(len(x), (size,), generator=draw).to(x.device)
        risk = EmpiricalRisk(model, loss, (x[chosen], y[chosen]))
        slopes = risk.space.unflatten(risk.gradient())
        for name, parameter in model.named_parameters():
            if name in slopes:
                parameter.grad = slopes[name].to(parameter)
        optimiser.step()
    return optimiser.state_dict()


# --- pictures ------------------------------------------------------------------------------------


def _losses_picture(losses: list[tuple[Any, ...]]) -> Picture:
    kinds = list(dict.fromkeys(row[1] for row in losses))
    networks = list(dict.fromkeys(row[0] for row in losses))
    across = stops([_TICKS.get(kind, kind) for kind in kinds], margin=0.5)
    panels: list[Panel] = []
    for title, column, log in (("‖G − cB‖/‖G‖", 3, False), ("max/mean λ", 5, True)):
        marks: list[Mark] = []
        for tint, network in zip(SERIES, networks, strict=False):
            rows = [row for row in losses if row[0] == network]
            x = [float(kinds.index(row[1])) for row in rows]
            y = rounded([row[column] for row in rows])
            marks.append(Points(x, y, tint, network if not panels else None))
        panels.append(Panel(marks, across, Axis(title, log=log), title))
    return Picture(
        "losses",
        "What an approximation B of the Gauss-Newton matrix loses",
        tuple(panels),
        shows="Left: relative error at the best scale c. Right: what is left of the condition "
        "after preconditioning with damping 1e-3; 1 is the best. Kronecker factors are those of "
        "linear layers and convolutions, and leave embeddings out.",
    )


_SHORT = Recipe(epochs=40, batch_size=32, optimizer=Adam(3e-3))
_MLP = Cast("F-12^2", "digits", _SHORT, (0, 1, 2), samples=200, keep_epochs=(3,))
_CONV = Cast("SmallConv-4-6", "digits", _SHORT, (0, 1), samples=100, keep_epochs=(3,))
STUDY = Study.of(
    "dong-networks", measure, {"laptop": (_MLP, _CONV), "paper": (casts.MLP, casts.LENET)}
)
