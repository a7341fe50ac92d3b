"""Axes, panels and names that several pictures share."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from eigenscape.records.pictures import Axis, Mark, Panel, Points, Table, numbers

if TYPE_CHECKING:
    from eigenscape.records.record import Record

SERIES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")

_DEEP = 1e-12  # of the largest eigenvalue: below is rounding


def places(count: int) -> list[float]:
    """Return the places of `count` layers on the ramp."""
    return [i / (count - 1) if count > 1 else 0.0 for i in range(count)]


def shorten(name: str, limit: int = 24) -> str:
    """Cut the middle out of a long name, whose ends say most.

    Args:
        name: The name.
        limit: Most characters to keep.

    Returns:
        The name, or its two ends around "…".

    Examples:
        >>> shorten("encoder.layers.11.attention.output.dense", 16)
        'encoder.…t.dense'
    """
    if len(name) <= limit:
        return name
    left = limit // 2
    return f"{name[:left]}…{name[len(name) - (limit - left - 1) :]}"


def table_of(record: "Record") -> Table:
    """Return a record's columns as lists."""
    return {name: list(column) for name, column in record.columns().items()}


def indices(count: int) -> list[float]:
    """Return 1, 2, …, count."""
    return [float(i) for i in range(1, count + 1)]


def share_axis(label: str, *curves: Tensor) -> Axis:
    """Return an axis from 0, up to 1 or to half above curves that stay far below it."""
    top = max((float(curve.max()) for curve in curves if curve.numel()), default=1.0)
    return Axis(label, limits=(0.0, 1.05 if top > 0.5 or top <= 0 else 1.5 * top))


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


def value_axis(label: str, *curves: Tensor) -> Axis:
    """Return an axis for eigenvalues, logarithmic where none is negative beyond rounding."""
    values = [v for curve in curves for v in numbers(curve)]
    top = max(values, default=0.0)
    shown = [v for v in values if v > _DEEP * top]
    if top <= 0 or min(values) < -1e-6 * top or not shown:
        return Axis(label)
    return Axis(label, log=True, limits=(min(shown) / 1.5, 2.0 * top))
