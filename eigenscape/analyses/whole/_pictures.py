"""Pictures of what stands out in a spectrum, of one point, and of what an analysis costs."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from eigenscape.records import (
    Axis,
    Line,
    Mark,
    Note,
    Panel,
    Picture,
    Points,
    Rule,
    Table,
    dots,
    indices,
    layer_axis,
    numbers,
    seconds,
    short,
    table_of,
)

if TYPE_CHECKING:
    from eigenscape.analyses.whole.exact_trace import ExactTrace
    from eigenscape.analyses.whole.gradient_overlap import GradientOverlap
    from eigenscape.analyses.whole.outliers import Outliers
    from eigenscape.analyses.whole.plan import Plan
    from eigenscape.analyses.whole.point import Point


def spent(products: int, wall: float | None = None) -> str:
    """Say what products and, where it is known, time were spent."""
    if wall is not None:
        return f"{short(products)} products, {seconds(wall)}"
    return f"{short(products)} products" if products else "no further product"


def positive_axis(values: Sequence[float], label: str) -> tuple[Axis, tuple[str, ...]]:
    """Return a logarithmic axis if anything is positive, and what it leaves out."""
    positive = sum(value > 0 for value in values)
    if positive == 0:
        return Axis(label), ()
    left = len(values) - positive
    note = f"{left} of {len(values)} eigenvalues are not positive and not on the logarithmic axis."
    return Axis(label, log=True), ((f"{note} They are among the numbers.",) if left else ())


def scree(outliers: "Outliers") -> Picture:
    """Picture 4: the largest eigenvalues by rank, with the number of classes and the widest gap."""
    values, residuals = numbers(outliers.values), numbers(outliers.residuals)
    axis, notes = positive_axis(values, "eigenvalue λ")
    hover = [
        f"rank {i}\nλ = {short(value, 6)}\nresidual {short(residual, 2)}"
        for i, (value, residual) in enumerate(zip(values, residuals, strict=True), 1)
    ]
    ranks = indices(len(values))
    cut = outliers.num_outliers
    marks: list[Mark] = [Line(ranks, values, "grid", hover=hover)] if len(values) > 1 else []
    for first, last, colour in ((0, cut, "outlier"), (cut, len(values), "hessian")):
        if last > first:
            span = slice(first, last)
            marks.append(
                Points(
                    ranks[span], values[span], colour, y_error=residuals[span], hover=hover[span]
                )
            )
    classes = outliers.num_classes
    if classes is not None:
        for count, text in ((classes - 1, "C − 1"), (classes, "C")):
            if 0 < count < len(values):
                marks.append(Rule(count + 0.5, f"{text} = {count}"))
    if 0 < cut < len(values) and values[cut - 1] > 0 and values[cut] > 0:
        middle = math.sqrt(values[cut - 1] * values[cut])
        sure = "" if outliers.is_certain else ", not certain"
        marks.append(Note(cut + 0.5, middle, f"gap ×{outliers.gap:.2f}{sure}", "outlier"))
    shows, sure, converged = _gap_in_words(outliers)
    return Picture(
        "top-eigenvalues",
        "The largest eigenvalues",
        [Panel(marks, Axis("rank", whole=True), axis)],
        table_of(outliers),
        notes,
        shows=shows,
        sure=sure,
        converged=converged,
        cost=spent(outliers.num_products),
        terms=("outliers", "certificate"),
    )


def _gap_in_words(outliers: "Outliers") -> tuple[str, str, bool]:
    """Return what is seen of the widest gap, how sure that is, and whether it is sure."""
    shows = "The largest eigenvalues by rank, their residuals as error bars."
    if outliers.num_classes is not None:
        shows += (
            " Dotted lines stand after C − 1 and C eigenvalues, where classifiers often have a gap."
        )
    good = bool(outliers.status)
    if not outliers.num_outliers:
        shows += " No gap stands out, so nothing is called an outlier."
        return shows, outliers.status.text, good
    shows += f" The widest gap, a factor {outliers.gap:.2f}, comes after {outliers.num_outliers}."
    certain, touch = ("", "do not touch") if outliers.is_certain else ("not ", "touch")
    sure = f"The gap is {certain}certain: the intervals λ ± residual on its two sides {touch}."
    return shows, sure, good and outliers.is_certain


def overlap_picture(overlap: "GradientOverlap") -> Picture:
    """Picture 5: share of the gradient in the first j eigenvectors, and what chance would give."""
    shares, chance = numbers(overlap.shares), numbers(overlap.chance)
    ranks = indices(len(shares))
    hover = [
        f"first {i} eigenvectors\nshare {share:.4f}\nchance {short(luck, 3)}"
        for i, (share, luck) in enumerate(zip(shares, chance, strict=True), 1)
    ]
    marks: list[Mark] = [
        Line(ranks, shares, "hessian", "share of ‖g‖²", hover=hover),
        Line(ranks, chance, "muted", "a random direction", dashed=True, hover=hover),
        Points(ranks, shares, "hessian", hover=hover),
    ]
    axis = Axis("share of the gradient", limits=(-0.02, 1.05))
    return Picture(
        "gradient-overlap",
        "The gradient in the top eigenspaces",
        [Panel(marks, Axis("number of eigenvectors", whole=True), axis)],
        table_of(overlap),
        shows="How much of the gradient lies in the space of the first j eigenvectors of H; the "
        "dashed line is what a random direction would have.",
        sure=overlap.status.text,
        converged=bool(overlap.status),
        cost=spent(overlap.num_products),
        terms=("gradient-overlap",),
    )


def point_picture(point: "Point") -> Picture:
    """Draw loss, gradient norm and parameter norm as dots on one logarithmic axis."""
    quantities = {
        "loss": point.loss,
        "gradient norm": point.gradient_norm,
        "parameter norm": point.parameter_norm,
    }
    if point.accuracy is not None:
        quantities["accuracy"] = point.accuracy
    names = layer_axis(list(quantities))
    shown = [(i, value) for i, value in enumerate(quantities.values()) if value > 0]
    hover = [f"{list(quantities)[i]}\n{short(value, 6)}" for i, value in shown]
    dots = Points([v for _, v in shown], [float(i) for i, _ in shown], "hessian", hover=hover)
    panel = Panel([dots], Axis("value", log=bool(shown)), names, "at the present parameters")
    left = len(quantities) - len(shown)
    notes = (f"{left} values are not positive and not on the logarithmic axis.",) if left else ()
    return Picture("point", "Loss and gradient", [panel], table_of(point), notes, len(quantities))


def plan_picture(
    plan: "Plan", measured: Mapping[str, float] | None = None, num_products: int | None = None
) -> Picture:
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
    planned = seconds(sum(predicted.values()))
    total = None if measured is None else sum(measured.values())
    limits = "".join(f" {limit}" for limit in plan.limits)
    shows = f"Seconds that each stage is predicted to take: {planned} in all"
    if measured is not None:
        shows = "Seconds that were predicted before it ran, and seconds it took: "
        shows += f"{planned} planned, {seconds(total)} measured"
    return Picture(
        "cost",
        "Predicted and measured time",
        [Panel(marks, Axis("seconds", log=bool(marks)), layer_axis(names))],
        table,
        rows=len(names),
        shows=f"{shows}, on {plan.device}.{limits}",
        sure="Predictions come from a few timed products; wall time depends on the machine's load.",
        cost=spent(plan.num_products if num_products is None else num_products, total),
        terms=("product",),
    )


def exact_traces_picture(record: "ExactTrace") -> Picture:
    """Draw the exact traces of the layers."""
    values = numbers(record.traces)
    hover = [f"{n}\ntrace {short(v, 6)}" for n, v in zip(record.layers, values, strict=True)]
    panel = dots(values, [0.0] * len(values), hover, "trace", layer_axis(record.layers))
    title = "Exact traces of the layers"
    return Picture("exact-traces", title, [panel], table_of(record), rows=len(values))
