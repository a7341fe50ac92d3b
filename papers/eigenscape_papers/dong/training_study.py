"""Dong Figs 2, 3 and 13: the Hessian of a network with one hidden layer along its training.

Letters: W weights into the hidden units, V out of them; H_ww, H_vv, H_wv the Hessian's parts. At
the start cross-entropy leaves stripes in H_wv: a unit's incoming weights and its own outgoing ones,
which are every m-th column. Training should make them fade, and keep the blocks of H_ww and H_vv.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from eigenscape.records import Axis, Line, Panel, Picture, Raster, read_tensors
from eigenscape.structure import pool_magnitudes
from eigenscape_papers.datasets import DataSet, load
from eigenscape_papers.dong.blocks_study import LOSSES, NetworkScores, network_panel, network_scores
from eigenscape_papers.dong.clusters_study import WORDS, hessian_on
from eigenscape_papers.dong.trainings import train
from eigenscape_papers.ensemble import Adam, Cosine, Recipe
from eigenscape_papers.networks import build
from eigenscape_papers.runner import (
    Measured,
    Outcome,
    Setting,
    Study,
    Workshop,
    rounded,
    sheet,
)

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)  # of the training, at which Hessians are made
_FIGURE = {"mse": 2, "ce": 3}
_SHOWN = 8  # classes in the close-up of H_wv


@dataclass(frozen=True, eq=False)
class Course:
    """A training with Hessians along it.

    Attributes:
        scores: At every share of the training.
        panels: Whole Hessians, likewise.
        first: Close-up of H_wv at the start.
        last: The same at the end.
        losses: One for each epoch.
    """

    scores: tuple[NetworkScores, ...]
    panels: tuple[Panel, ...]
    first: Panel
    last: Panel
    losses: Tensor


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Train with both losses, and make the Hessian six times along each training."""
    options = setting.options
    data = load("gaussian", **options["data"])
    courses = {loss: _course(data, loss, options, workshop) for loss in LOSSES}
    mse, ce = courses["mse"], courses["ce"]
    start, end = ce.scores[0], ce.scores[-1]
    weight = start.cross * start.stripes
    other = mse.scores[0].cross * mse.scores[0].stripes
    measured = {
        "dong.fig3.stripes.start": Measured(start.stripes),
        "dong.fig3.stripes.fade": Measured(end.cross * end.stripes / weight),
        "dong.fig3.stripes.end": Measured(end.stripes),
        "dong.fig2.stripes.absent": Measured(other / weight),
        "dong.fig2.cross.negligible": Measured(max(s.cross for s in mse.scores)),
    }
    for loss, course in courses.items():
        stem = f"dong.fig{_FIGURE[loss]}"
        measured[f"{stem}.hidden.kept"] = Measured(min(s.hidden.share for s in course.scores))
        measured[f"{stem}.output.kept"] = Measured(min(s.output.share for s in course.scores))
        losses = course.losses
        late = losses[-1 - len(losses) // 10] - losses[-1]
        measured[f"dong.fig13.{loss}.converged"] = Measured(float(late / (losses[0] - losses[-1])))
    rows = [
        (
            WORDS[loss],
            f"{100 * share:g} %",
            *(s.hidden.ratio, s.hidden.share, s.output.ratio, s.output.share, s.cross, s.stripes),
        )
        for loss, course in courses.items()
        for share, s in zip(SHARES, course.scores, strict=True)
    ]
    names = ["loss", "training", "hidden: off / diagonal", "share inside"]
    names += ("output: off / diagonal", "share inside ", "weight of H_wv", "stripes in H_wv")
    table = sheet("scores", "Along training", names, rows)
    pictures = [_picture(loss, course) for loss, course in courses.items()]
    return Outcome(measured, (*pictures, _close_up(courses), _losses(courses)), (table,))


def _course(data: DataSet, loss: str, options: Mapping[str, Any], workshop: Workshop) -> Course:
    recipe = Recipe(
        epochs=options["epochs"],
        batch_size=options["batch_size"],
        optimizer=Adam(options["learning_rate"]),
        schedule=Cosine(),
        loss=LOSSES[loss],
    )
    epochs = [round(share * recipe.epochs) for share in SHARES]
    name = f"one-hidden-{options['num_units']}"

    def start(seed: int) -> nn.Module:
        shape, C = data.input_shape, data.num_classes or 0
        return build(name, input_shape=shape, num_classes=C, seed=seed, init="lecun")

    training, folder = train(
        "dong-training",
        start,
        data,
        recipe,
        workshop,
        deciding=(name, epochs),
        keep_epochs=epochs,
        keep=True,
    )
    scores, panels, close = [], [], []
    for share, epoch in zip(SHARES, epochs, strict=True):
        W, V = (weight.to(workshop.device) for weight in _weights(folder, epoch))
        H = hessian_on(data, W, V, loss)
        scores.append(network_scores(H, W, V))
        panels.append(network_panel(H, W, f"{100 * share:g} %"))
        if share in (0.0, 1.0):
            title = f"{WORDS[loss]}, {'start' if share == 0.0 else 'end'}"
            close.append(stripes_panel(H, W, title))
    first, last = close
    return Course(tuple(scores), tuple(panels), first, last, training.train_loss[:, 0])


def _weights(folder: Path, epoch: int) -> tuple[Tensor, Tensor]:
    state = read_tensors(folder / "seed-0" / f"epoch-{epoch:04d}.safetensors")
    return state["fc1.weight"], state["fc2.weight"]


def stripes_panel(H: Tensor, hidden: Tensor, title: str) -> Panel:
    """Return a close-up of H_wv: all rows of W, and the columns of the first classes.

    Args:
        H: As `one_hidden_layer_hessian` makes it.
        hidden: W (m, d).
        title: Of the panel.

    Returns:
        The panel; every column is one of V's entries.
    """
    m, d = hidden.shape
    width = min(_SHOWN * m, len(H) - m * d)
    corner = H[: m * d, m * d : m * d + width]
    # As many rows for each unit as make the picture square.
    cells = pool_magnitudes(corner, width).double().cpu()
    top = float(cells.amax(1).quantile(0.9))
    raster = Raster(
        tuple(rounded(row, 2) for row in cells),
        "largest |entry|",
        (0.0, top) if top > 0.0 else None,
    )
    return Panel(
        [raster],
        Axis(f"entries of V, {width // m} classes of {m}"),
        Axis("rows of W, by unit", ticks=(), downward=True),
        title,
    )


def _picture(loss: str, course: Course) -> Picture:
    figure = _FIGURE[loss]
    return Picture(
        f"fig{figure}-{loss}",
        f"Fig. {figure}: the Hessian along training, {WORDS[loss]}",
        course.panels,
        shows="W are the weights into the hidden units, a block for each; V those out of them. A "
        "cell is the largest magnitude in its part, on a logarithmic ramp of three decades.",
    )


def _close_up(courses: dict[str, Course]) -> Picture:
    panels = [panel for course in courses.values() for panel in (course.first, course.last)]
    return Picture(
        "stripes",
        "Between the layers: H_wv of the first classes",
        (*panels[2:], *panels[:2]),
        shows="A step is one hidden unit: its incoming weights meet its own outgoing weights in "
        "every m-th column. Colours of each panel follow its own largest values; the table has "
        "the weights of H_wv.",
    )


def _losses(courses: dict[str, Course]) -> Picture:
    panels = []
    for (loss, course), tint in zip(courses.items(), ("first", "second"), strict=True):
        step = max(1, len(course.losses) // 200)
        epochs = tuple(float(k + 1) for k in range(0, len(course.losses), step))
        line = Line(epochs, rounded(course.losses[::step]), tint)
        panels.append(Panel([line], Axis("epoch"), Axis("loss"), WORDS[loss]))
    return Picture(
        "fig13-losses",
        "Fig. 13: losses along training",
        tuple(panels),
        shows="The mean over each epoch, with labels that are independent of the inputs.",
    )


STUDY = Study.of("dong-training", measure)
