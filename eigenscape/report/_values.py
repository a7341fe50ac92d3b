"""Pictures of single values, histograms, recurrences, costs and training curves."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from eigenscape.analyses import Plan, Point
from eigenscape.linalg import DiagonalEstimate, LanczosRun
from eigenscape.records import Record
from eigenscape.report._layer_pictures import layer_axis
from eigenscape.report._marks import (
    Axis,
    Bars,
    Line,
    Mark,
    Panel,
    Picture,
    Points,
    Rule,
    Table,
    numbers,
)
from eigenscape.report._numbers import seconds, short, with_error
from eigenscape.report._style import SERIES, places

_BINS = 80


def table_of(record: Record) -> Table:
    """Return a record's columns as lists."""
    return {name: list(column) for name, column in record.columns().items()}


def value_picture(record: Record, value: float, error: float, name: str, kind: str) -> Picture:
    """Draw one number with its error bar: two standard errors, or one residual.

    Args:
        record: Where it comes from.
        value: The number.
        error: Half the length of its bar.
        name: What it is.
        kind: What the bar is, e.g. "± 2 s.e.".

    Returns:
        The picture.
    """
    hover = [f"{name}\n{with_error(value, error)}"]
    text = f"{name} = {with_error(value, error)}"
    points = Points([value], [0.0], "hessian", kind, x_error=[error], hover=hover)
    axis = Axis(ticks=[(0.0, name)], limits=(-1.0, 1.0))
    panel = Panel([points], Axis(name), axis, text)
    return Picture(name.replace(" ", "-").lower(), name, [panel], table_of(record), rows=1)


def point_picture(point: Point) -> Picture:
    """Draw loss, gradient norm and parameter norm as dots on one logarithmic axis."""
    parts = {
        "loss": point.loss,
        "gradient norm": point.gradient_norm,
        "parameter norm": point.parameter_norm,
    }
    if point.accuracy is not None:
        parts["accuracy"] = point.accuracy
    names = layer_axis(list(parts))
    shown = [(i, value) for i, value in enumerate(parts.values()) if value > 0]
    hover = [f"{list(parts)[i]}\n{short(value, 6)}" for i, value in shown]
    dots = Points([v for _, v in shown], [float(i) for i, _ in shown], "hessian", hover=hover)
    panel = Panel([dots], Axis("value", log=bool(shown)), names, "at the present parameters")
    left = len(parts) - len(shown)
    notes = (f"{left} values are not positive and not on the logarithmic axis.",) if left else ()
    return Picture("point", "Loss and gradient", [panel], table_of(point), notes, len(parts))


def diagonal_picture(diagonal: DiagonalEstimate) -> Picture:
    """Draw the diagonal's entries as a histogram with logarithmic counts."""
    values = diagonal.values.detach().cpu().double()
    low, high = float(values.min()), float(values.max())
    half = 0.5 * ((high - low) or max(abs(high), 1.0)) * 1.0001
    edges = torch.linspace((low + high) / 2 - half, (low + high) / 2 + half, _BINS + 1)
    counts, _ = torch.histogram(values, edges.double())
    bars = Bars(numbers(edges), numbers(counts), "hessian")
    axis = Axis("entries", log=True, limits=(0.5, 2 * max(1.0, float(counts.max()))))
    panel = Panel([bars, Rule(0.0)], Axis("diagonal entry"), axis)
    return Picture("diagonal", "Entries of the diagonal", [panel], table_of(diagonal))


def lanczos_picture(run: LanczosRun) -> Picture:
    """Draw the coefficients of each probe's recurrence."""
    marks: dict[str, list[Mark]] = {"α": [], "β": []}
    probes = run.alphas.shape[0]
    for number, place in enumerate(places(probes)):
        for letter, rows in (("α", run.alphas), ("β", run.betas)):
            y = numbers(rows[number])
            x = [float(i) for i in range(1, len(y) + 1)]
            marks[letter].append(Line(x, y, place, group=f"probe {number}"))
    panels = [
        Panel(lines, Axis("step", whole=True), Axis(letter), f"{letter} of {probes} probes")
        for letter, lines in marks.items()
    ]
    return Picture("lanczos", "Lanczos coefficients", panels, table_of(run), pick=probes > 1)


def plan_picture(plan: Plan, measured: Mapping[str, float] | None = None) -> Picture:
    """Picture 10: predicted and, where known, measured seconds of each stage."""
    names = [stage.name for stage in plan.stages]
    # A stage that was not planned still took its time.
    names += [name for name in measured or {} if name not in names]
    predicted = {stage.name: stage.seconds for stage in plan.stages}
    products = {stage.name: stage.num_products for stage in plan.stages}
    series: list[tuple[str, Mapping[str, float], str, bool]] = [
        ("predicted", predicted, "muted", True)
    ]
    if measured is not None:
        series.append(("measured", measured, "hessian", False))
    marks: list[Mark] = []
    for label, values, colour, hollow in series:
        picked = [(i, values[name]) for i, name in enumerate(names) if values.get(name, 0) > 0]
        hover = [f"{names[i]}\n{label} {seconds(value)}" for i, value in picked]
        x, y = [value for _, value in picked], [float(i) for i, _ in picked]
        if picked:
            marks.append(Points(x, y, colour, label, hollow=hollow, hover=hover))
    table: Table = {
        "stage": names,
        "products": [products.get(name) for name in names],
        "predicted seconds": [predicted.get(name) for name in names],
    }
    if measured is not None:
        table["measured seconds"] = [measured.get(name) for name in names]
    panel = Panel(marks, Axis("seconds", log=bool(marks)), layer_axis(names))
    return Picture("cost", "Predicted and measured time", [panel], table, rows=len(names))


def training_picture(training: Any) -> Picture:
    """Draw losses and accuracies over epochs, one curve a seed.

    Args:
        training: A record with `seeds` and curves of shape (epochs, seeds).

    Returns:
        The picture.
    """
    panels = []
    for what, log in (("loss", True), ("accuracy", False)):
        marks: list[Mark] = []
        positive = True
        for split, colour in (("train", SERIES[0]), ("test", SERIES[1])):
            curve = getattr(training, f"{split}_{what}", None)
            if curve is None or not curve.numel():
                continue
            rows = curve.detach().cpu().double().reshape(curve.shape[0], -1)
            positive = positive and bool((rows > 0).any())
            epochs = [float(i) for i in range(1, len(rows) + 1)]
            for column in range(rows.shape[1]):
                label = split if column == 0 else None
                seed = training.seeds[column] if column < len(training.seeds) else column
                # Epochs without an evaluation are NaN, and a curve goes from known to known.
                known = [
                    (x, y)
                    for x, y in zip(epochs, numbers(rows[:, column]), strict=True)
                    if math.isfinite(y)
                ]
                group = f"{split}, seed {seed}"
                x, y = [x for x, _ in known], [y for _, y in known]
                marks.append(Line(x, y, colour, label, group=group))
        if marks:
            panels.append(
                Panel(marks, Axis("epoch", whole=True), Axis(what, log=log and positive), what)
            )
    return Picture("training", "Training", panels, table_of(training))
