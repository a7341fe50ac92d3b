"""Dong Fig. 10 (Collobert's Figs 7.3 and 7.5): two classes, real data, ten hidden units.

Collobert saw a near-block-diagonal Hessian with cross-entropy after one iteration, and none with
squared errors after ten, on the Forest data. An iteration is a pass over the data here, the network
has two outputs, and the data are other: the digits 0 and 1.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from eigenscape.records import Panel, Picture
from eigenscape_papers.datasets import DataSet, load
from eigenscape_papers.dong.blocks_study import LOSSES, NetworkScores, network_panel, network_scores
from eigenscape_papers.dong.clusters_study import WORDS, hessian_on
from eigenscape_papers.dong.trainings import train
from eigenscape_papers.ensemble import SGD, Recipe
from eigenscape_papers.networks import build
from eigenscape_papers.runner import Measured, Outcome, Setting, Study, Workshop, sheet

EPOCHS = (0, 1, 10)


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Train with both losses, and make the Hessian at the start, after one pass and after ten."""
    options = setting.options
    data = two_digits(load(options["data"], folder=workshop.data_dir))
    scores: dict[tuple[str, int], list[NetworkScores]] = {}
    panels: list[Panel] = []
    for loss, words in WORDS.items():
        for epoch in EPOCHS:
            of_seeds = scores[loss, epoch] = []
            for W, V in _trained(data, loss, epoch, options, workshop):
                H = hessian_on(data, W, V, loss)
                if not of_seeds:
                    panels.append(network_panel(H, W, f"{words}, pass {epoch}"))
                of_seeds.append(network_scores(H, W, V))
    ce, mse = _ratios(scores["ce", 1]), _ratios(scores["mse", 10])
    measured = {
        "dong.fig10.ce.blocks": Measured.over(ce),
        "dong.fig10.mse.no-blocks": Measured.over(mse),
        "dong.fig10.contrast": Measured.over(ce / mse),
    }
    rows = [
        (WORDS[loss], epoch, seed, s.hidden.ratio, s.hidden.share, s.cross)
        for (loss, epoch), of_seeds in scores.items()
        for seed, s in enumerate(of_seeds)
    ]
    names = ("loss", "passes", "seed", "hidden: off / diagonal", "share inside", "weight of H_wv")
    picture = Picture(
        "fig10",
        f"Fig. 10: two classes, {data.name}, {options['num_units']} hidden units",
        tuple(panels),
        shows="W are the weights into the hidden units, a block for each; V, the two outputs. A "
        "cell is the largest magnitude in its part, on a logarithmic ramp of three decades. Units "
        "that are never active leave empty rows. The first of the seeds.",
    )
    return Outcome(measured, (picture,), (sheet("scores", "Blocks of W", names, rows),))


def two_digits(data: DataSet) -> DataSet:
    """Return the samples of classes 0 and 1, flattened.

    Args:
        data: A set with classes.

    Returns:
        Those samples, in their order.
    """
    kept = data.targets < 2
    return dataclasses.replace(
        data,
        name=f"{data.name}, 0 against 1",
        inputs=data.inputs[kept].flatten(1),
        targets=data.targets[kept],
        num_classes=2,
        class_names=None,
        history=(*data.history, "samples of classes 0 and 1"),
    )


def _trained(
    data: DataSet, loss: str, epochs: int, options: Mapping[str, Any], workshop: Workshop
) -> Iterator[tuple[Tensor, Tensor]]:
    """Give W and V of each seed after so many passes; few passes are the start of many."""
    seeds = range(options["num_seeds"])

    name = f"one-hidden-{options['num_units']}"

    def start(seed: int) -> torch.nn.Module:
        return build(name, input_shape=data.input_shape, num_classes=2, seed=seed, init="lecun")

    if epochs == 0:
        states = [start(seed).state_dict() for seed in seeds]
    else:
        recipe = Recipe(
            epochs=epochs,
            batch_size=options["batch_size"],
            optimizer=SGD(options["learning_rate"]),
            loss=LOSSES[loss],
        )
        deciding = (name, seeds)
        training, _ = train(
            "dong-binary", start, data, recipe, workshop, deciding=deciding, seeds=seeds
        )
        states = [training.state_dict(seed) for seed in seeds]
    for state in states:
        W, V = (state[f"{layer}.weight"].to(workshop.device).float() for layer in ("fc1", "fc2"))
        yield W, V


def _ratios(scores: list[NetworkScores]) -> Tensor:
    return torch.tensor([one.hidden.ratio for one in scores], dtype=torch.float64)


STUDY = Study.of("dong-binary", measure)
