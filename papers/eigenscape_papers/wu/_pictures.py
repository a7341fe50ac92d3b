"""Pictures of approximations of whole networks, logit gradients and output spaces."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from eigenscape.records import (
    SERIES,
    Axis,
    Colour,
    Line,
    Mark,
    Note,
    Panel,
    Picture,
    Points,
    Raster,
    Rule,
    indices,
    layer_axis,
    numbers,
    places,
    share_axis,
    table_of,
    value_axis,
)

if TYPE_CHECKING:
    from eigenscape_papers.wu.eigenvector_correspondence import EigenvectorCorrespondence
    from eigenscape_papers.wu.full_approximation import FullApproximation
    from eigenscape_papers.wu.logit_gradients import LogitGradients
    from eigenscape_papers.wu.output_space import OutputSpaceOverlap
    from eigenscape_papers.wu.overlap_prediction import OverlapPrediction


_DEEP = 1e-12  # of the largest eigenvalue: below is rounding
_CELLS = 200  # rows and columns of a matrix that are drawn


def full_picture(record: "FullApproximation") -> Picture:
    """Draw the whole Hessian's top eigenvalues and overlaps with both approximations."""
    x = indices(len(record.values))
    what = "H" if record.matrix == "hessian" else "G"
    drawn = (
        ("T E[M] Tᵀ", "third", record.rescaled, record.rescaled_overlaps),
        ("w = T u (Wu)", "second", record.approximated, record.overlaps),
    )
    values: list[Mark] = [
        Line(x, numbers(value), tint, name, dashed=tint == "third")
        for name, tint, value, _ in drawn
    ]
    values.append(
        Points(x, numbers(record.values), "hessian", what, y_error=numbers(record.residuals))
    )
    overlaps: list[Mark] = [
        Line(x, numbers(overlap), tint, name, dashed=tint == "third")
        for name, tint, _, overlap in drawn
    ]
    axis = value_axis("eigenvalue", record.values, record.approximated, record.rescaled)
    panels = [
        Panel(values, Axis("rank", whole=True), axis, "top eigenvalues"),
        Panel(
            overlaps,
            Axis("number of eigenvectors k", whole=True),
            Axis(f"overlap with those of {what}", limits=(0.0, 1.05)),
            "overlap of the first k",
        ),
    ]
    title = f"The whole {'Hessian' if what == 'H' else 'Gauss-Newton matrix'} from E[M] and E[x̃]"
    return Picture("full-approximation", title, panels, table_of(record))


def logit_picture(record: "LogitGradients") -> Picture:
    """Draw the points in the plane, by logit and by class; without coordinates the shares."""
    title = f"Logit gradients of {record.layer}, by {record.variable}"
    where = record.coordinates
    if where is None:
        return _shares_picture(record, title)
    panels = [
        _cloud(where, record.point_logits, record.point_classes, "logit", record.logit_share),
        _cloud(where, record.point_classes, record.point_logits, "class", record.class_share),
    ]
    return Picture(
        "logit-gradients",
        title,
        panels,
        table_of(record),
        shows="t-SNE of the means over each class: one point for each class and logit, a number at "
        "each centre. Distances and axes mean nothing; the shares are measured before it.",
    )


def _cloud(where: Tensor, groups: Tensor, others: Tensor, word: str, share: float) -> Panel:
    """Return the points coloured by one of their two indices, with that index at its centres."""
    kinds = sorted({int(i) for i in groups.tolist() if i >= 0})
    tints: Sequence[Colour] = SERIES if len(kinds) <= len(SERIES) else places(len(kinds))
    marks: list[Mark] = []
    for kind, tint in zip(kinds, tints, strict=False):
        for is_centre in (False, True):
            picked = where[(groups == kind) & ((others < 0) == is_centre)]
            x, y = numbers(picked[:, 0]), numbers(picked[:, 1])
            hover = [f"{'centre of ' * is_centre}{word} {kind}"] * len(x)
            marks.append(Points(x, y, tint, hollow=is_centre, hover=hover))
            if is_centre:
                marks += [Note(a, b, str(kind)) for a, b in zip(x, y, strict=True)]
    plain = Axis("", ticks=())
    return Panel(marks, plain, plain, f"coloured by {word} (share {share:.2f})")


def _shares_picture(record: "LogitGradients", title: str) -> Picture:
    """Draw the shares of variance alone."""
    shares = {
        "class means, by logit": record.logit_share,
        "class means, by class": record.class_share,
        "samples, by logit": record.sample_logit_share,
        "samples, by class": record.sample_class_share,
        "trace in class means": record.mean_share,
    }
    line = [float(i) for i in range(len(shares))]
    hover = [f"{name}\n{value:.4f}" for name, value in shares.items()]
    points = Points(list(shares.values()), line, "hessian", hover=hover)
    panel = Panel([points], Axis("share", limits=(0.0, 1.05)), layer_axis(list(shares)))
    return Picture("logit-gradients", title, [panel], table_of(record), rows=len(shares))


def output_space_picture(record: "OutputSpaceOverlap") -> Picture:
    """Draw the eigenvalues of E[M] with the dimension of the row space marked."""
    values, d = numbers(record.values), record.dimension
    x = indices(len(values))
    marks: list[Mark] = [
        Points(x[:d], values[:d], "hessian", f"the first {d}: dimension of R(S)"),
        Points(x[d:], values[d:], "muted", "the rest", hollow=True),
        Rule(d + 0.5),
    ]
    axis = value_axis("eigenvalue of E[M]", record.values)
    low = sum(v <= _DEEP * values[0] for v in values) if axis.log else 0
    notes = (f"{low} eigenvalues are zero or rounding and below the axis.",) if low else ()
    title = f"overlap with R(S): {record.overlap:.3f}, chance {record.chance:.3f}"
    return Picture(
        "output-space",
        f"Outputs of {record.layer} and the {record.space} above",
        [Panel(marks, Axis("rank", whole=True), axis, title)],
        table_of(record),
        notes,
        shows=f"{record.trace_share:.1%} of the trace of E[M] lie in the row space of S.",
    )


def prediction_picture(prediction: "OverlapPrediction") -> Picture:
    """Draw the predicted overlap with its peak, and how much of it t₁ has."""
    count = len(prediction.overlaps)
    x = indices(count)
    marks: list[Mark] = [
        Line(x, numbers(prediction.overlaps), "gauss_newton", "predicted"),
        Line(x, numbers(prediction.chance), "muted", "chance", dashed=True),
    ]
    if prediction.peak <= count:
        marks.append(
            Points(
                [float(prediction.peak)],
                numbers(prediction.overlaps[prediction.peak - 1]),
                "outlier",
                "peak",
            )
        )
    if prediction.rank <= count and prediction.rank != prediction.peak:
        marks.append(Rule(prediction.rank, f"rank {prediction.rank}"))
    wide = Axis("number of eigenvectors k", whole=True)
    names = ("first network", "second network")
    shares: list[Mark] = [
        Line(x, numbers(row), colour, label, dashed=label == names[1])
        for row, colour, label in zip(prediction.shares, SERIES, names, strict=False)
    ]
    panels = [
        Panel(marks, wide, share_axis("predicted overlap", prediction.overlaps), prediction.regime),
        Panel(shares, wide, Axis("share of r ⊗ t₁", limits=(0.0, 1.05)), "how many of k have t₁"),
    ]
    return Picture(
        "overlap-prediction",
        "Predicted overlap of two networks",
        panels,
        table_of(prediction),
        shows=f"{prediction.status.text} The rank is that of E[M]. "
        f"(t₁·t₁')² = {prediction.alignment:.3f}.",
    )


def correspondence_picture(record: "EigenvectorCorrespondence") -> Picture:
    """Draw both matrices; rows without anything to see are left out and counted."""
    k = min(record.output.shape[1], _CELLS)
    panels, notes = [], []
    for matrix, letter, title in (
        (record.output, "u", "outputs: ‖Mat(h)ᵀu‖²"),
        (record.input, "v", "inputs: ‖Mat(h)v‖²"),
    ):
        count = min(len(matrix), max(k, 10), _CELLS)
        cells = [numbers(row) for row in matrix[:count, :k]]
        if count < len(matrix):
            share = float(matrix[count:, :k].sum(0).mean())
            notes.append(
                f"Only the first {count} of {len(matrix)} {letter}: the others have {share:.2g} of "
                "an eigenvector on average."
            )
        panels.append(
            Panel(
                [Raster(cells, "share", (0.0, 1.0))],
                Axis("eigenvector h of the layer", ticks=_counted(k)),
                Axis(f"eigenvector {letter}", ticks=_counted(count), downward=True),
                title,
            )
        )
    if k < record.output.shape[1]:
        notes.append(f"Only the first {k} of {record.output.shape[1]} eigenvectors of the layer.")
    return Picture(
        "eigenvector-correspondence",
        "What the eigenvectors of a layer are made of",
        panels,
        table_of(record),
        tuple(notes),
        shows="If H were E[M] ⊗ E[xxᵀ] each column would have one dark cell in either picture.",
    )


def _counted(count: int) -> list[tuple[float, str]]:
    """Return about five ticks for cells that are counted from 1."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100) if count <= 5 * s or s == 100)
    return [(0.0, "1"), *((float(i - 1), str(i)) for i in range(step, count + 1, step) if i > 1)]
