"""Pictures of layers: sizes, how Kronecker-like they are, and how they are coupled."""

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from eigenscape.analyses import ExactTrace, LayerBlock, LayerCurvature
from eigenscape.linalg import BlockNorms, BlockTraces
from eigenscape.report._marks import (
    Axis,
    Heat,
    Line,
    Mark,
    Panel,
    Picture,
    Points,
    Table,
    numbers,
)
from eigenscape.report._numbers import short, with_error
from eigenscape.report._style import places

_NAMED = 8  # more curves than this are told apart by hovering, not by a legend
_DEEP = 1e-12  # of the largest eigenvalue: below is rounding


def layer_axis(names: Sequence[str]) -> Axis:
    """Return an axis that lists layers from top to bottom."""
    return Axis(
        ticks=list(enumerate(names)), downward=True, limits=(-0.7, max(len(names) - 0.3, 0.7))
    )


def dots(
    values: Sequence[float], errors: Sequence[float], hover: Sequence[str], label: str, names: Axis
) -> Panel:
    """Return one dot a layer; where any is positive on a log axis, with circles for negative ones.

    Args:
        values: One number for each layer.
        errors: Its error.
        hover: What to say about it.
        label: What it is.
        names: The axis with the layers' names.

    Returns:
        The panel.
    """
    rows = [float(i) for i in range(len(values))]
    log = any(value > 0 for value in values)
    kinds = [(False, [i for i, v in enumerate(values) if not log or v > 0])]
    kinds += [(True, [i for i, v in enumerate(values) if log and v < 0])]
    marks: list[Mark] = []
    for negative, picked in kinds:
        if picked:
            x = [abs(values[i]) if log else values[i] for i in picked]
            bars = [
                min(2 * errors[i], 0.999 * abs(values[i])) if log else 2 * errors[i] for i in picked
            ]
            marks.append(
                Points(
                    x,
                    [rows[i] for i in picked],
                    "negative" if negative else "hessian",
                    x_error=bars,
                    hollow=negative,
                    hover=[hover[i] for i in picked],
                )
            )
    title = f"{label} (circles: negative)" if kinds[1][1] else label
    return Panel(marks, Axis(log=log, limits=_roomy(values, log)), names, title)


def _roomy(values: Sequence[float], log: bool) -> tuple[float, float] | None:
    """Return limits of a log axis by the values alone: an error bar may reach down to nothing."""
    sizes = [abs(value) for value in values if value and math.isfinite(value)]
    if not log or not sizes:
        return None
    low, high = min(sizes), max(sizes)
    room = 6.0 / math.sqrt(high / low) if high / low < 10 else 2.0
    return low / room, high * room


def layers_picture(curvature: LayerCurvature) -> Picture:
    """Picture 6: top eigenvalue, trace and stable rank of each layer's block."""
    rows = curvature.layers
    names = layer_axis([row.name for row in rows])
    about = [f"{row.name}\n{row.kind}, {short(row.num_parameters)} parameters" for row in rows]
    tops = [float(row.values[0]) if len(row.values) else math.nan for row in rows]
    certs = [float(row.residuals[0]) if len(row.residuals) else 0.0 for row in rows]
    hovers = (
        [
            f"{text}\nλ₁ = {short(top, 6)}\nresidual {short(residual, 2)}"
            for text, top, residual in zip(about, tops, certs, strict=True)
        ],
        [
            f"{text}\ntrace {with_error(row.trace, row.trace_stderr)}"
            for text, row in zip(about, rows, strict=True)
        ],
        [
            f"{text}\nstable rank {short(row.stable_rank)}"
            for text, row in zip(about, rows, strict=True)
        ],
    )
    none = [0.0] * len(rows)
    panels = [
        dots(tops, [residual / 2 for residual in certs], hovers[0], "top eigenvalue λ₁", names),
        dots([r.trace for r in rows], [r.trace_stderr for r in rows], hovers[1], "trace", names),
        dots([r.stable_rank for r in rows], none, hovers[2], "stable rank", names),
    ]
    table = {name: list(column) for name, column in curvature.columns().items()}
    return Picture("layers", "The size of each block", panels, table, rows=len(rows))


def kronecker_picture(curvature: LayerCurvature) -> Picture | None:
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
    return Picture(
        "kronecker", "How Kronecker-like", panels, _kronecker_table(rows), notes, len(rows), True
    )


def _rank_one(rows: Sequence[LayerBlock], names: Axis) -> Panel:
    marks: list[Mark] = []
    for place, row in enumerate(rows):
        if row.rank_one is None:
            continue
        values = numbers(row.rank_one)
        hover = [f"{row.name}\neigenvector {i}\n{v:.4f}" for i, v in enumerate(values, 1)]
        rest = [float(place)] * (len(values) - 1)
        marks.append(
            Points(values[1:], rest, "muted", hollow=True, hover=hover[1:], group=row.name)
        )
        marks.append(Points(values[:1], [float(place)], "hessian", hover=hover[:1], group=row.name))
    axis = Axis("‖Mat h‖₂ / ‖h‖", limits=(0.0, 1.05))
    return Panel(marks, axis, names, "rank-one-ness of h")


def _kronecker_table(rows: Sequence[LayerBlock]) -> Table:
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


def factors_picture(curvature: LayerCurvature) -> Picture | None:
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
    title = "Inputs and outputs of the layers"
    return Picture("input-output-spectra", title, panels, table, tuple(notes), pick=True)


def _many(values: Tensor | None) -> bool:
    return values is not None and len(values) > 1


def _curves(rows: Sequence[LayerBlock], pick: Callable[[LayerBlock], Tensor | None]) -> list[Mark]:
    """Return one curve a layer, coloured from first to last, with a legend if they are few."""
    marks: list[Mark] = []
    for row, place in zip(rows, places(len(rows)), strict=True):
        values = pick(row)
        if values is None or not len(values):
            continue
        named = len(rows) <= _NAMED or place in (0.0, 1.0)
        x = [float(i) for i in range(1, len(values) + 1)]
        marks.append(Line(x, numbers(values), place, row.name if named else None, group=row.name))
    return marks


def blocks_picture(blocks: BlockNorms) -> Picture:
    """Picture 9: Frobenius norms between all pairs of layers."""
    values, stderr = blocks.values.tolist(), blocks.stderr.tolist()
    hover = [
        [
            f"{row} × {column}\n{with_error(values[i][j], stderr[i][j])}"
            for j, column in enumerate(blocks.column_names)
        ]
        for i, row in enumerate(blocks.row_names)
    ]
    label = "Frobenius norm of the block"
    heat = Heat(values, blocks.row_names, blocks.column_names, hover, label)
    empty = sum(not v > 0 for row in values for v in row)
    notes = (f"{empty} blocks are zero and stay empty.",) if empty else ()
    table = {name: list(column) for name, column in blocks.columns().items()}
    return Picture(
        "block-norms", "Layer against layer", [Panel([heat], Axis(), Axis())], table, notes
    )


def traces_picture(traces: BlockTraces) -> Picture:
    """Draw the traces of blocks with their errors."""
    values, stderr = numbers(traces.values), numbers(traces.stderr)
    hover = [
        f"{name}\ntrace {with_error(value, error)}"
        for name, value, error in zip(traces.names, values, stderr, strict=True)
    ]
    panel = dots(values, stderr, hover, "trace", layer_axis(traces.names))
    table = {name: list(column) for name, column in traces.columns().items()}
    return Picture("block-traces", "Traces of blocks", [panel], table, rows=len(values))


def exact_traces_picture(found: ExactTrace) -> Picture:
    """Draw the exact traces of the layers."""
    values = numbers(found.traces)
    hover = [f"{n}\ntrace {short(v, 6)}" for n, v in zip(found.layers, values, strict=True)]
    panel = dots(values, [0.0] * len(values), hover, "trace", layer_axis(found.layers))
    table = {name: list(column) for name, column in found.columns().items()}
    return Picture("exact-traces", "Exact traces of the layers", [panel], table, rows=len(values))
