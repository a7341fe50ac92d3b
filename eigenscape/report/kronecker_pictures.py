"""Pictures of a layer's Hessian beside E[M] ⊗ E[xxᵀ] (Wu): inputs, eigenspaces, approximations."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from eigenscape.analyses import (
    Autocorrelation,
    Autocorrelations,
    EigenspaceOverlap,
    EigenvectorCorrespondence,
    EigenvectorRank,
    FullApproximation,
    KroneckerFit,
    LogitGradients,
    OutputSpaceOverlap,
    OverlapPrediction,
)
from eigenscape.report._layer_pictures import dots, layer_axis
from eigenscape.report._marks import (
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
    numbers,
)
from eigenscape.report._numbers import short
from eigenscape.report._style import SERIES, places
from eigenscape.report._values import table_of

_CELLS = 200  # rows and columns of a matrix that are drawn
_DEEP = 1e-12  # of the largest eigenvalue: below is rounding
_APPROXIMATIONS = {"kronecker": "E[M] ⊗ E[xxᵀ]", "ekfac": "EKFAC", "best pair": "best pair"}


def indices(count: int) -> list[float]:
    """Return 1, 2, …, count."""
    return [float(i) for i in range(1, count + 1)]


def share_axis(label: str, *curves: Tensor) -> Axis:
    """Return an axis from 0, up to 1 or to half above curves that stay far below it."""
    top = max((float(curve.max()) for curve in curves if curve.numel()), default=1.0)
    return Axis(label, limits=(0.0, 1.05 if top > 0.5 or top <= 0 else 1.5 * top))


def value_axis(label: str, *curves: Tensor) -> Axis:
    """Return an axis for eigenvalues, logarithmic where none is negative beyond rounding."""
    values = [v for curve in curves for v in numbers(curve)]
    top = max(values, default=0.0)
    shown = [v for v in values if v > _DEEP * top]
    if top <= 0 or min(values) < -1e-6 * top or not shown:
        return Axis(label)
    return Axis(label, log=True, limits=(min(shown) / 1.5, 2.0 * top))


# --- what goes into a layer ----------------------------------------------------------------------


def autocorrelation_picture(found: Autocorrelation) -> Picture:
    """Draw the eigenvalues of E[xxᵀ], and its first eigenvector against the mean."""
    values = numbers(found.values)
    mean_norm = float(torch.linalg.svdvals(found.means)[0]) ** 2 / found.num_positions
    spread = mean_norm / found.dominance if found.dominance > 0 else values[0]
    axis = value_axis("eigenvalue of E[xxᵀ]", found.values)
    axis = replace(axis, limits=axis.limits and (axis.limits[0], 3.0 * max(values)))
    marks: list[Mark] = [Points(indices(len(values)), values, "hessian")]
    marks += [
        Rule(size, text, upright=False, colour=colour)
        for size, text, colour in (
            (mean_norm, "‖E[x]E[x]ᵀ‖", "gauss_newton"),
            (spread, "‖Σ‖", "muted"),
        )
        if size > _DEEP * values[0]
    ]
    low = sum(v <= _DEEP * values[0] for v in values)
    notes = (f"{low} eigenvalues are zero or rounding and below the axis.",) if low else ()
    x, y = numbers(found.direction), numbers(found.vector)
    ends = [min([*x, *y]), max([*x, *y])]
    against: list[Mark] = [Line(ends, ends, "muted", "equal", dashed=True), Points(x, y, "hessian")]
    panels = [
        Panel(marks, Axis("rank", log=len(values) > 20), axis, f"λ₁/λ₂ = {short(found.ratio, 3)}"),
        Panel(
            against,
            Axis("entry of Ê[x]"),
            Axis("entry of v₁"),
            f"(v₁ᵀÊ[x])² = {found.alignment:.4f}",
        ),
    ]
    return Picture(
        "autocorrelation",
        f"What goes into {found.layer}",
        panels,
        table_of(found),
        notes,
        shows="Where the mean dominates, one eigenvalue stands above ‖Σ‖, and its vector is the "
        "mean.",
    )


def autocorrelations_picture(found: Autocorrelations) -> Picture:
    """Draw alignment, λ₁/λ₂ and dominance of each layer."""
    rows = found.layers
    names = layer_axis([row.layer for row in rows])
    none = [0.0] * len(rows)
    parts = {
        "λ₁/λ₂": [row.ratio for row in rows],
        "‖E[x]E[x]ᵀ‖/‖Σ‖": [row.dominance for row in rows],
    }
    alignments = [row.alignment for row in rows]
    line = [float(i) for i in range(len(rows))]
    hover = [f"{row.layer}\n{row.alignment:.6f}" for row in rows]
    points = Points(alignments, line, "hessian", hover=hover)
    panels = [Panel([points], Axis(limits=(-0.02, 1.05)), names, "(v₁ᵀÊ[x])²")]
    notes = []
    for label, values in parts.items():
        endless = [row.layer for row, v in zip(rows, values, strict=True) if math.isinf(v)]
        if endless:
            notes.append(f"{label} is infinite in {', '.join(endless)}.")
        shown = [v if math.isfinite(v) else math.nan for v in values]
        hover = [f"{row.layer}\n{short(v)}" for row, v in zip(rows, values, strict=True)]
        panels.append(dots(shown, none, hover, label, names))
    title = "What goes into each layer"
    return Picture("autocorrelations", title, panels, table_of(found), tuple(notes), rows=len(rows))


# --- eigenspaces and eigenvectors ----------------------------------------------------------------


def overlap_picture(found: EigenspaceOverlap) -> Picture:
    """Draw the overlap against the number of vectors, with what random spaces have."""
    x = indices(len(found.overlaps))
    marks: list[Mark] = [
        Line(x, numbers(found.overlaps), "hessian", "overlap"),
        Line(x, numbers(found.chance), "muted", "chance", dashed=True),
    ]
    panel = Panel(
        marks,
        Axis("number of eigenvectors k", whole=True),
        share_axis("overlap of the first k", found.overlaps, found.chance),
    )
    return Picture("eigenspace-overlap", "Overlap of eigenspaces", [panel], table_of(found))


def prediction_picture(found: OverlapPrediction) -> Picture:
    """Draw the predicted overlap with its peak, and how much of it t₁ has."""
    count = len(found.overlaps)
    x = indices(count)
    marks: list[Mark] = [
        Line(x, numbers(found.overlaps), "gauss_newton", "predicted"),
        Line(x, numbers(found.chance), "muted", "chance", dashed=True),
    ]
    if found.peak <= count:
        marks.append(
            Points([float(found.peak)], numbers(found.overlaps[found.peak - 1]), "outlier", "peak")
        )
    if found.rank <= count and found.rank != found.peak:
        marks.append(Rule(found.rank, f"rank {found.rank}"))
    wide = Axis("number of eigenvectors k", whole=True)
    names = ("first network", "second network")
    shares: list[Mark] = [
        Line(x, numbers(row), colour, label, dashed=label == names[1])
        for row, colour, label in zip(found.shares, SERIES, names, strict=False)
    ]
    panels = [
        Panel(marks, wide, share_axis("predicted overlap", found.overlaps), found.regime),
        Panel(shares, wide, Axis("share of r ⊗ t₁", limits=(0.0, 1.05)), "how many of k have t₁"),
    ]
    return Picture(
        "overlap-prediction",
        "Predicted overlap of two networks",
        panels,
        table_of(found),
        shows=f"{found.status.text} The rank is that of E[M]. (t₁·t₁')² = {found.alignment:.3f}.",
    )


def correspondence_picture(found: EigenvectorCorrespondence) -> Picture:
    """Draw both matrices; rows without anything to see are left out and counted."""
    k = min(found.output.shape[1], _CELLS)
    panels, notes = [], []
    for matrix, letter, title in (
        (found.output, "u", "outputs: ‖Mat(h)ᵀu‖²"),
        (found.input, "v", "inputs: ‖Mat(h)v‖²"),
    ):
        count = min(len(matrix), max(k, 10), _CELLS)
        cells = [numbers(row) for row in matrix[:count, :k]]
        if count < len(matrix):
            rest = float(matrix[count:, :k].sum(0).mean())
            notes.append(
                f"Only the first {count} of {len(matrix)} {letter}: the others have {rest:.2g} of "
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
    if k < found.output.shape[1]:
        notes.append(f"Only the first {k} of {found.output.shape[1]} eigenvectors of the layer.")
    return Picture(
        "eigenvector-correspondence",
        "What the eigenvectors of a layer are made of",
        panels,
        table_of(found),
        tuple(notes),
        shows="If H were E[M] ⊗ E[xxᵀ] each column would have one dark cell in either picture.",
    )


def _counted(count: int) -> list[tuple[float, str]]:
    """Return about five ticks for cells that are counted from 1."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100) if count <= 5 * s or s == 100)
    return [(0.0, "1"), *((float(i - 1), str(i)) for i in range(step, count + 1, step) if i > 1)]


def rank_picture(found: EigenvectorRank) -> Picture:
    """Draw how close eigenvectors are to rank one, beside random ones, and singular values."""
    count, few = len(found.shares), min(4, len(found.singular))
    shares: list[Mark] = [
        Points(indices(count), numbers(found.shares), "hessian"),
        Rule(found.null, f"random {found.num_outputs}×{found.num_inputs}", upright=False),
    ]
    singular: list[Mark] = [
        Line(indices(len(row)), numbers(row), place, f"h{'₁₂₃₄'[i]}")
        for i, (row, place) in enumerate(zip(found.singular[:few], places(few), strict=True))
    ]
    panels = [
        Panel(
            shares,
            Axis("eigenvector", whole=True),
            Axis("‖Mat h‖₂ / ‖Mat h‖_F", limits=(0.0, 1.05)),
            "1: exactly u ⊗ v",
        ),
        Panel(
            singular,
            Axis("rank", whole=True),
            Axis("singular value of Mat h", limits=(0.0, 1.05)),
            f"the first {few}",
        ),
    ]
    return Picture("eigenvector-rank", "How close to rank one", panels, table_of(found))


# --- approximations ------------------------------------------------------------------------------


def fit_picture(found: KroneckerFit) -> Picture:
    """Draw eigenvalues, overlaps and errors of the approximations of one layer."""
    rows = found.approximations
    x = indices(len(found.values))
    hessian = Points(x, numbers(found.values), "hessian", "H", y_error=numbers(found.residuals))
    # Overlaps may coincide; the first curve is the one that is asked about, and is drawn last.
    named = list(zip(rows, SERIES[1:], strict=False))[::-1]
    values: list[Mark] = [
        Line(
            x, numbers(row.values), tint, _APPROXIMATIONS[row.name], dashed=row.name != "kronecker"
        )
        for row, tint in named
    ]
    overlaps: list[Mark] = [
        Line(x, numbers(row.overlaps), tint, dashed=row.name != "kronecker") for row, tint in named
    ]
    labels = layer_axis([_APPROXIMATIONS[row.name] for row in rows])
    line = [float(i) for i in range(len(rows))]
    errors: list[Mark] = [
        Points(
            [row.frobenius_error for row in rows],
            line,
            "hessian",
            "Frobenius",
            x_error=[2 * row.frobenius_stderr for row in rows],
        ),
        Points([row.spectral_error for row in rows], line, "muted", "spectral", hollow=True),
    ]
    largest = max(max(row.frobenius_error, row.spectral_error) for row in rows)
    axis = value_axis("eigenvalue", found.values, *(row.values for row in rows))
    panels = [
        Panel([*values, hessian], Axis("rank", whole=True), axis, "top eigenvalues"),
        Panel(
            overlaps,
            Axis("number of eigenvectors k", whole=True),
            Axis("overlap with those of H", limits=(0.0, 1.05)),
            "overlap of the first k",
        ),
        Panel(
            errors,
            Axis("‖H − Ĥ‖ / ‖H‖", limits=(0.0, 1.15 * max(largest, 0.05))),
            replace(labels, limits=(-1.4, len(rows) - 0.3)),
            "relative error",
        ),
    ]
    title = f"{found.layer}: its Hessian and Kronecker products"
    return Picture(
        "kronecker-fit",
        title,
        panels,
        table_of(found),
        shows="EKFAC keeps the "
        "eigenvectors of E[M] ⊗ E[xxᵀ] with the best eigenvalues; “best pair” is the nearest "
        "product of all.",
    )


def full_picture(found: FullApproximation) -> Picture:
    """Draw the whole Hessian's top eigenvalues and overlaps with both approximations."""
    x = indices(len(found.values))
    what = "H" if found.matrix == "hessian" else "G"
    parts = (
        ("T E[M] Tᵀ", "third", found.rescaled, found.rescaled_overlaps),
        ("w = T u (Wu)", "second", found.approximated, found.overlaps),
    )
    values: list[Mark] = [
        Line(x, numbers(value), tint, name, dashed=tint == "third")
        for name, tint, value, _ in parts
    ]
    values.append(
        Points(x, numbers(found.values), "hessian", what, y_error=numbers(found.residuals))
    )
    overlaps: list[Mark] = [
        Line(x, numbers(overlap), tint, name, dashed=tint == "third")
        for name, tint, _, overlap in parts
    ]
    axis = value_axis("eigenvalue", found.values, found.approximated, found.rescaled)
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
    return Picture("full-approximation", title, panels, table_of(found))


# --- logits --------------------------------------------------------------------------------------


def logit_picture(found: LogitGradients) -> Picture:
    """Draw the points in the plane, by logit and by class; without coordinates the shares."""
    title = f"Logit gradients of {found.layer}, by {found.variable}"
    where = found.coordinates
    if where is None:
        return _shares_picture(found, title)
    panels = [
        _cloud(where, found.point_logits, found.point_classes, "logit", found.logit_share),
        _cloud(where, found.point_classes, found.point_logits, "class", found.class_share),
    ]
    return Picture(
        "logit-gradients",
        title,
        panels,
        table_of(found),
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


def _shares_picture(found: LogitGradients, title: str) -> Picture:
    """Draw the shares of variance alone."""
    parts = {
        "class means, by logit": found.logit_share,
        "class means, by class": found.class_share,
        "samples, by logit": found.sample_logit_share,
        "samples, by class": found.sample_class_share,
        "trace in class means": found.mean_share,
    }
    line = [float(i) for i in range(len(parts))]
    hover = [f"{name}\n{value:.4f}" for name, value in parts.items()]
    points = Points(list(parts.values()), line, "hessian", hover=hover)
    panel = Panel([points], Axis("share", limits=(0.0, 1.05)), layer_axis(list(parts)))
    return Picture("logit-gradients", title, [panel], table_of(found), rows=len(parts))


def output_space_picture(found: OutputSpaceOverlap) -> Picture:
    """Draw the eigenvalues of E[M] with the dimension of the row space marked."""
    values, d = numbers(found.values), found.dimension
    x = indices(len(values))
    marks: list[Mark] = [
        Points(x[:d], values[:d], "hessian", f"the first {d}: dimension of R(S)"),
        Points(x[d:], values[d:], "muted", "the rest", hollow=True),
        Rule(d + 0.5),
    ]
    axis = value_axis("eigenvalue of E[M]", found.values)
    low = sum(v <= _DEEP * values[0] for v in values) if axis.log else 0
    notes = (f"{low} eigenvalues are zero or rounding and below the axis.",) if low else ()
    title = f"overlap with R(S): {found.overlap:.3f}, chance {found.chance:.3f}"
    return Picture(
        "output-space",
        f"Outputs of {found.layer} and the {found.space} above",
        [Panel(marks, Axis("rank", whole=True), axis, title)],
        table_of(found),
        notes,
        shows=f"{found.trace_share:.1%} of the trace of E[M] lie in the row space of S.",
    )
