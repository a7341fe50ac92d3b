"""Pictures of layers: sizes, how Kronecker-like they are, and what goes into them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eigenscape.analyses.whole._pictures import positive_axis, spent
from eigenscape.records import (
    SERIES,
    Axis,
    Line,
    Mark,
    Panel,
    Picture,
    Points,
    Rule,
    Table,
    dots,
    indices,
    layer_axis,
    numbers,
    pair_hover,
    places,
    share_axis,
    short,
    table_of,
    value_axis,
    with_error,
)

if TYPE_CHECKING:
    from eigenscape.analyses.layers.autocorrelation import Autocorrelation, Autocorrelations
    from eigenscape.analyses.layers.eigenspace_overlap import EigenspaceOverlap
    from eigenscape.analyses.layers.eigenvector_rank import EigenvectorRank
    from eigenscape.analyses.layers.kronecker_fit import KroneckerFit
    from eigenscape.analyses.layers.layer_curvature import LayerBlock, LayerCurvature
    from eigenscape.analyses.layers.layer_spectrum import LayerSpectrum

_SHARED_COST = "part of the layers' cost"
_NAMED = 8  # more curves than this are told apart by hovering, not by a legend
_DEEP = 1e-12  # of the largest eigenvalue: below is rounding
_APPROXIMATIONS = {"kronecker": "E[M] ⊗ E[xxᵀ]", "ekfac": "EKFAC", "best pair": "best pair"}
_FLOOR = 1e-17  # of the largest eigenvalue: below is rounding, in any dtype


def layers_picture(curvature: "LayerCurvature") -> Picture:
    """Picture 6: top eigenvalue, trace and stable rank of each layer's block."""
    rows = curvature.layers
    names = layer_axis([row.name for row in rows])
    about = [f"{row.name}\n{row.kind}, {short(row.num_parameters)} parameters" for row in rows]
    tops = [float(row.values[0]) if len(row.values) else math.nan for row in rows]
    certs = [float(row.residuals[0]) if len(row.residuals) else 0.0 for row in rows]

    def panel(
        label: str, values: Sequence[float], errors: Sequence[float], texts: Sequence[str]
    ) -> Panel:
        hover = [f"{layer}\n{text}" for layer, text in zip(about, texts, strict=True)]
        return dots(values, errors, hover, label, names)

    top_texts = [
        f"λ₁ = {short(top, 6)}\nresidual {short(residual, 2)}"
        for top, residual in zip(tops, certs, strict=True)
    ]
    traces, stderr = [row.trace for row in rows], [row.trace_stderr for row in rows]
    trace_texts = [f"trace {with_error(row.trace, row.trace_stderr)}" for row in rows]
    ranks = [row.stable_rank for row in rows]
    panels = [
        panel("top eigenvalue λ₁", tops, [residual / 2 for residual in certs], top_texts),
        panel("trace", traces, stderr, trace_texts),
        panel("stable rank", ranks, [0.0] * len(rows), [f"stable rank {short(r)}" for r in ranks]),
    ]
    sure, converged = _trust(curvature)
    return Picture(
        "layers",
        "The size of each block",
        panels,
        table_of(curvature),
        rows=len(rows),
        shows="Each layer's own block of the Hessian: its largest eigenvalue with its residual, "
        "its trace with two standard errors, and about how many eigenvalues of that size it holds.",
        sure=sure,
        converged=converged,
        cost=spent(curvature.num_products, curvature.seconds),
        terms=("hessian", "certificate", "stable-rank"),
    )


def _trust(curvature: "LayerCurvature") -> tuple[str, bool]:
    """Return how sure the blocks are, in words, and whether all converged."""
    poor = [row.name for row in curvature.layers if not row.converged]
    if poor:
        shown = ", ".join(poor[:5]) + (", …" if len(poor) > 5 else "")
        return f"{len(poor)} of {len(curvature.layers)} layers did not converge: {shown}.", False
    return curvature.status.text, bool(curvature.status)


def kronecker_picture(curvature: "LayerCurvature") -> Picture | None:
    """Picture 7: how near each block is to E[M] ⊗ E[xxᵀ]; None if no layer has such a form."""
    rows = [row for row in curvature.layers if row.kronecker_overlap is not None]
    if not rows:
        return None
    names = layer_axis([row.name for row in rows])
    curves = _curves(rows, lambda row: row.kronecker_overlap)
    overlap = Panel(
        curves,
        Axis("number of eigenvectors j", whole=True),
        Axis("overlap of top eigenspaces", limits=(-0.02, 1.05)),
        "overlap of the top j",
    )
    errors = [row.kronecker_error if row.kronecker_error is not None else math.nan for row in rows]
    bars = [row.kronecker_error_stderr or 0.0 for row in rows]
    hover = [
        f"{row.name}\nrelative error {with_error(error, bar)}"
        for row, error, bar in zip(rows, errors, bars, strict=True)
    ]
    line = [float(i) for i in range(len(rows))]
    error = Panel(
        [Points(errors, line, "hessian", x_error=[2 * bar for bar in bars], hover=hover)],
        Axis("relative error", limits=(0.0, max([1.0, *(e for e in errors if e == e)]) * 1.05)),
        names,
        "‖H − E[M] ⊗ E[xxᵀ]‖ / ‖H‖",
    )
    panels = [overlap, error, _rank_one(rows, names)]
    left = len(curvature.layers) - len(rows)
    notes = (f"{left} layers have no Kronecker form here and are left out.",) if left else ()
    sure, converged = _trust(curvature)
    return Picture(
        "kronecker",
        "How Kronecker-like",
        panels,
        _kronecker_table(rows),
        notes,
        rows=len(rows),
        pick=True,
        shows="How near each block is to the Kronecker product of its output and input statistics: "
        "the overlap of their top eigenspaces, the relative error of the whole matrix, and how "
        "near the top eigenvectors (the first one filled) are to rank one. Colours run from the "
        "first layer to the last.",
        sure=sure,
        converged=converged,
        cost=_SHARED_COST,
        terms=("kronecker", "overlap", "rank-one"),
    )


def _rank_one(rows: Sequence["LayerBlock"], names: Axis) -> Panel:
    marks: list[Mark] = []
    for number, row in enumerate(rows):
        if row.rank_one is None:
            continue
        values = numbers(row.rank_one)
        hover = [f"{row.name}\neigenvector {i}\n{v:.4f}" for i, v in enumerate(values, 1)]
        heights = [float(number)] * (len(values) - 1)
        marks.append(
            Points(values[1:], heights, "muted", hollow=True, hover=hover[1:], group=row.name)
        )
        marks.append(
            Points(values[:1], [float(number)], "hessian", hover=hover[:1], group=row.name)
        )
    axis = Axis("‖Mat h‖₂ / ‖h‖", limits=(0.0, 1.05))
    return Panel(marks, axis, names, "rank-one-ness of h")


def _kronecker_table(rows: Sequence["LayerBlock"]) -> Table:
    return {
        "layer": [row.name for row in rows],
        "positions": [row.num_positions for row in rows],
        "relative error": [row.kronecker_error for row in rows],
        "s.e.": [row.kronecker_error_stderr for row in rows],
        "overlap at 1": [_at(row.kronecker_overlap, 0) for row in rows],
        "overlap at last": [_at(row.kronecker_overlap, -1) for row in rows],
        "rank-one-ness of h₁": [_at(row.rank_one, 0) for row in rows],
    }


def _at(values: Tensor | None, index: int) -> float | None:
    return None if values is None or not len(values) else float(values[index])


def factors_picture(curvature: "LayerCurvature") -> Picture | None:
    """Picture 8: eigenvalues of E[xxᵀ] and E[M] of each layer; None if no layer has them."""
    rows = [row for row in curvature.layers if row.input_values is not None]
    if not rows:
        return None
    notes: list[str] = []
    panels = []
    for title, pick in (
        ("inputs: E[xxᵀ]", lambda row: row.input_values),
        ("outputs: E[M]", lambda row: row.output_values),
    ):
        curves = _curves(rows, pick)
        every = [v for curve in curves if isinstance(curve, Line) for v in curve.y if v > 0]
        limits = None
        if every:
            floor = max(min(every) / 2, max(every) * _DEEP)
            limits = (floor, 2 * max(every))
            low = sum(v < floor for curve in curves if isinstance(curve, Line) for v in curve.y)
            if low:
                notes.append(f"{title}: {low} eigenvalues are below the axis (zero or rounding).")
        axis = Axis("eigenvalue", log=bool(every), limits=limits)
        panels.append(Panel(curves, Axis("rank", log=True), axis, title))
    table: Table = {
        "layer": [row.name for row in rows],
        "inputs n": [len(row.input_values) for row in rows if row.input_values is not None],
        "λ₁ of E[xxᵀ]": [_at(row.input_values, 0) for row in rows],
        "λ₂ of E[xxᵀ]": [
            _at(row.input_values, 1) if _many(row.input_values) else None for row in rows
        ],
        "outputs m": [0 if row.output_values is None else len(row.output_values) for row in rows],
        "λ₁ of E[M]": [_at(row.output_values, 0) for row in rows],
        "λ₂ of E[M]": [
            _at(row.output_values, 1) if _many(row.output_values) else None for row in rows
        ],
    }
    return Picture(
        "input-output-spectra",
        "Inputs and outputs of the layers",
        panels,
        table,
        tuple(notes),
        pick=True,
        shows="Eigenvalues of the two Kronecker factors of each layer. One large eigenvalue of "
        "E[xxᵀ] means that the inputs have a large mean; E[M] has about as many large ones as "
        "there are classes. Colours run from the first layer to the last.",
        sure="Both matrices are formed and diagonalised exactly, up to rounding.",
        cost=_SHARED_COST,
        terms=("inputs", "outputs"),
    )


def _many(values: Tensor | None) -> bool:
    return values is not None and len(values) > 1


def _curves(
    rows: Sequence["LayerBlock"], pick: Callable[["LayerBlock"], Tensor | None]
) -> list[Mark]:
    """Return one curve a layer, coloured from first to last, with a legend if they are few."""
    marks: list[Mark] = []
    for row, shade in zip(rows, places(len(rows)), strict=True):
        values = pick(row)
        if values is None or not len(values):
            continue
        named = len(rows) <= _NAMED or shade in (0.0, 1.0)
        label = row.name if named else None
        marks.append(Line(indices(len(values)), numbers(values), shade, label, group=row.name))
    return marks


def layer_picture(spectrum: "LayerSpectrum") -> Picture:
    """Draw all eigenvalues of a layer's block by rank, down to where they are rounding."""
    values = numbers(spectrum.values)
    axis, notes = positive_axis(values, "eigenvalue λ")
    ranks = indices(len(values))
    hover = [f"rank {i}\nλ = {short(value, 6)}" for i, value in enumerate(values, 1)]
    marks: list[Mark] = [Line(ranks, values, "hessian", hover=hover)]
    if axis.log:
        largest, least = max(values), min(value for value in values if value > 0)
        axis = replace(axis, limits=(max(_FLOOR * largest, least / 2), 2 * largest))
    if spectrum.pairs is not None:
        k = len(spectrum.pairs)
        x, y = ranks[:k], numbers(spectrum.pairs.values)
        certified = pair_hover(spectrum.pairs, "from the top")
        marks.append(Points(x, y, "outlier", "certified", hover=certified))
    if 0 < spectrum.rank < len(values):
        marks.append(Rule(spectrum.rank + 0.5, f"rank {spectrum.rank}"))
    title = f"All {len(values)} eigenvalues of {spectrum.layer}"
    panel = Panel(marks, Axis("rank", whole=True), axis)
    return Picture("layer-spectrum", title, [panel], table_of(spectrum), notes)


def autocorrelation_picture(record: "Autocorrelation") -> Picture:
    """Draw the eigenvalues of E[xxᵀ], and its first eigenvector against the mean."""
    values = numbers(record.values)
    mean_norm = float(torch.linalg.svdvals(record.means)[0]) ** 2 / record.num_positions
    spread = mean_norm / record.dominance if record.dominance > 0 else values[0]
    axis = value_axis("eigenvalue of E[xxᵀ]", record.values)
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
    x, y = numbers(record.direction), numbers(record.vector)
    ends = [min([*x, *y]), max([*x, *y])]
    against: list[Mark] = [Line(ends, ends, "muted", "equal", dashed=True), Points(x, y, "hessian")]
    panels = [
        Panel(marks, Axis("rank", log=len(values) > 20), axis, f"λ₁/λ₂ = {short(record.ratio, 3)}"),
        Panel(
            against,
            Axis("entry of Ê[x]"),
            Axis("entry of v₁"),
            f"(v₁ᵀÊ[x])² = {record.alignment:.4f}",
        ),
    ]
    return Picture(
        "autocorrelation",
        f"What goes into {record.layer}",
        panels,
        table_of(record),
        notes,
        shows="Where the mean dominates, one eigenvalue stands above ‖Σ‖, and its vector is the "
        "mean.",
    )


def autocorrelations_picture(record: "Autocorrelations") -> Picture:
    """Draw alignment, λ₁/λ₂ and dominance of each layer."""
    rows = record.layers
    names = layer_axis([row.layer for row in rows])
    none = [0.0] * len(rows)
    columns = {
        "λ₁/λ₂": [row.ratio for row in rows],
        "‖E[x]E[x]ᵀ‖/‖Σ‖": [row.dominance for row in rows],
    }
    alignments = [row.alignment for row in rows]
    line = [float(i) for i in range(len(rows))]
    hover = [f"{row.layer}\n{row.alignment:.6f}" for row in rows]
    points = Points(alignments, line, "hessian", hover=hover)
    panels = [Panel([points], Axis(limits=(-0.02, 1.05)), names, "(v₁ᵀÊ[x])²")]
    notes = []
    for label, values in columns.items():
        endless = [row.layer for row, v in zip(rows, values, strict=True) if math.isinf(v)]
        if endless:
            notes.append(f"{label} is infinite in {', '.join(endless)}.")
        shown = [v if math.isfinite(v) else math.nan for v in values]
        hover = [f"{row.layer}\n{short(v)}" for row, v in zip(rows, values, strict=True)]
        panels.append(dots(shown, none, hover, label, names))
    title = "What goes into each layer"
    return Picture(
        "autocorrelations", title, panels, table_of(record), tuple(notes), rows=len(rows)
    )


def overlap_picture(overlap: "EigenspaceOverlap") -> Picture:
    """Draw the overlap against the number of vectors, with what random spaces have."""
    x = indices(len(overlap.overlaps))
    marks: list[Mark] = [
        Line(x, numbers(overlap.overlaps), "hessian", "overlap"),
        Line(x, numbers(overlap.chance), "muted", "chance", dashed=True),
    ]
    panel = Panel(
        marks,
        Axis("number of eigenvectors k", whole=True),
        share_axis("overlap of the first k", overlap.overlaps, overlap.chance),
    )
    return Picture("eigenspace-overlap", "Overlap of eigenspaces", [panel], table_of(overlap))


def rank_picture(record: "EigenvectorRank") -> Picture:
    """Draw how close eigenvectors are to rank one, beside random ones, and singular values."""
    count, few = len(record.shares), min(4, len(record.singular))
    shares: list[Mark] = [
        Points(indices(count), numbers(record.shares), "hessian"),
        Rule(record.null, f"random {record.num_outputs}×{record.num_inputs}", upright=False),
    ]
    singular: list[Mark] = [
        Line(indices(len(row)), numbers(row), shade, f"h{'₁₂₃₄'[i]}")
        for i, (row, shade) in enumerate(zip(record.singular[:few], places(few), strict=True))
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
    return Picture("eigenvector-rank", "How close to rank one", panels, table_of(record))


def fit_picture(fit: "KroneckerFit") -> Picture:
    """Draw eigenvalues, overlaps and errors of the approximations of one layer."""
    rows = fit.approximations
    x = indices(len(fit.values))
    hessian = Points(x, numbers(fit.values), "hessian", "H", y_error=numbers(fit.residuals))
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
    axis = value_axis("eigenvalue", fit.values, *(row.values for row in rows))
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
    title = f"{fit.layer}: its Hessian and Kronecker products"
    return Picture(
        "kronecker-fit",
        title,
        panels,
        table_of(fit),
        shows="EKFAC keeps the "
        "eigenvectors of E[M] ⊗ E[xxᵀ] with the best eigenvalues; “best pair” is the nearest "
        "product of all.",
    )
