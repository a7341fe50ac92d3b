"""Dong Figs 1, 11 and 12: the Hessian at the start, on images and on clustered data.

Whether data come in K clusters does not decide the structure, the number of classes does: the
hidden layer's Hessian has none with C = 2, and is nearly block-diagonal with many classes.
"""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from eigenscape.errors import DataError
from eigenscape.records import Panel, Picture
from eigenscape_papers.datasets import DataSet, load
from eigenscape_papers.dong.blocks_study import (
    LOSSES,
    NetworkScores,
    lecun_weights,
    network_panel,
    network_scores,
)
from eigenscape_papers.runner import Measured, Outcome, Setting, Study, Workshop, sheet
from eigenscape_papers.theory import one_hidden_layer_hessian

WORDS = {"mse": "squared errors", "ce": "cross-entropy"}
_FIGURE = {"mse": 11, "ce": 12}


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Make Hessians at random weights: of images, and for every C and K."""
    options, m = setting.options, setting.options["num_units"]
    measured: dict[str, Measured] = {}
    rows: list[tuple[object, ...]] = []
    images, note = _images(options["images"], workshop)
    panels = []
    for loss, words in WORDS.items():
        scores, panel = at_start(images, m, loss, workshop, words)
        panels.append(panel)
        rows.append(_row("images", loss, images.num_classes or 0, 0, scores))
        measured[f"dong.fig1.{loss}.hidden"] = Measured(scores.hidden.ratio)
        measured[f"dong.fig1.{loss}.output"] = Measured(scores.output.ratio)
    pictures = [_picture("fig1", "Fig. 1: the Hessian at random weights, images", panels)]
    for loss, words in WORDS.items():
        panels = []
        ratios: dict[int, list[float]] = {}
        for C, counts in options["clusters"]:
            for K in counts:
                sizes = {"num_classes": C, "num_clusters": K, **options["inputs"]}
                title = f"C = {C}, K = {K}"
                scores, panel = at_start(load("clusters", **sizes), m, loss, workshop, title)
                panels.append(panel)
                ratios.setdefault(C, []).append(scores.hidden.ratio)
                rows.append(_row("clusters", loss, C, K, scores))
        few, many = ratios.values()
        figure = f"dong.fig{_FIGURE[loss]}"
        measured[f"{figure}.two-classes"] = Measured(min(few))
        measured[f"{figure}.many-classes"] = Measured(max(many))
        title = f"Fig. {_FIGURE[loss]}: clustered data, {words}"
        pictures.append(_picture(f"fig{_FIGURE[loss]}", title, panels))
    names = ["data", "loss", "C", "K", "hidden: off / diagonal", "share inside"]
    names += ("output: off / diagonal", "weight of H_wv", "stripes in H_wv")
    table = sheet("scores", "Every Hessian", names, rows)
    return Outcome(measured, tuple(pictures), (table,), note)


def at_start(
    data: DataSet, num_units: int, loss: str, workshop: Workshop, title: str
) -> tuple[NetworkScores, Panel]:
    """Return scores and picture of the Hessian of a random network.

    Args:
        data: Inputs and classes.
        num_units: m.
        loss: "mse" or "ce".
        workshop: Says where it runs.
        title: Of the panel.

    Returns:
        The scores and the panel.
    """
    generator = torch.Generator().manual_seed(0)
    d, C = data.inputs.flatten(1).shape[1], data.num_classes or 0
    shapes = ((num_units, d), (C, num_units))
    W, V = (lecun_weights(*shape, generator).to(workshop.device) for shape in shapes)
    H = hessian_on(data, W, V, loss)
    return network_scores(H, W, V), network_panel(H, W, title, num_cells=40)


def hessian_on(data: DataSet, hidden: Tensor, output: Tensor, loss: str) -> Tensor:
    """Return the Hessian of a network with one hidden layer on a data set.

    Args:
        data: Inputs and classes.
        hidden: W (m, d), float32; it says where the Hessian is made.
        output: V (C, m).
        loss: "mse" or "ce".

    Returns:
        The Hessian, as `one_hidden_layer_hessian` makes it.
    """
    x, y = data.inputs.flatten(1).to(hidden), targets_of(data, loss).to(hidden.device)
    return one_hidden_layer_hessian(x, hidden, output, y, loss=LOSSES[loss])


def targets_of(data: DataSet, loss: str) -> Tensor:
    """Return classes for cross-entropy, and one-hot rows for squared errors."""
    if loss == "ce":
        return data.targets
    return one_hot(data.targets, data.num_classes or 0).to(torch.float32)


def _images(sizes: tuple[int, int, int], workshop: Workshop) -> tuple[DataSet, tuple[str, ...]]:
    """Return images of CIFAR-100 where they are at hand and fit, else Gaussian classes."""
    d, C, count = sizes
    if (d, C) == (3072, 100):
        try:
            images = load("cifar100", folder=workshop.data_dir)
            return images.take(count, seed=0), (f"Fig. 1: {count} images of CIFAR-100.",)
        except DataError:
            pass
    images = load("class-mixture", dimension=d, num_classes=C, per_class=-(-count // C))
    note = (
        f"Fig. 1 has a stand-in for 128 images of CIFAR-100: {count} samples of {C} Gaussian "
        f"classes in {d} dimensions."
    )
    return images.take(count, seed=0), (note,)


def _row(data: str, loss: str, C: int, K: int, scores: NetworkScores) -> tuple[object, ...]:
    hidden = scores.hidden
    of_output = (scores.output.ratio, scores.cross, scores.stripes)
    return (data, WORDS[loss], C, K, hidden.ratio, hidden.share, *of_output)


def _picture(name: str, title: str, panels: list[Panel]) -> Picture:
    return Picture(
        name,
        title,
        tuple(panels),
        shows="W are the weights into the hidden units, a block for each; V those out of them. A "
        "cell is the largest magnitude in its part of the matrix, on a logarithmic ramp of three "
        "decades.",
    )


STUDY = Study.of("dong-clusters", measure)
