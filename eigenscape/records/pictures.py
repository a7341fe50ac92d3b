"""Pictures as plain data: what is drawn, before anybody draws it.

A record returns `Picture`s; the room `report` renders them, on paper and on screen. Both show the
same numbers because there is only one place where the numbers are.

A colour is a role ("hessian", "muted"), or a number from 0 to 1 on the ramp from the first layer to
the last; the renderer knows the colour of each role in print and on a dark screen.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from eigenscape.errors import InvalidArgumentError
from eigenscape.records.stored import storable

Numbers = Sequence[float]
Colour = str | float
Table = dict[str, list[Any]]


@storable
@dataclass(frozen=True)
class Line:
    """A curve.

    Attributes:
        x: Abscissae.
        y: Ordinates; on a logarithmic axis those that are not positive leave a gap.
        colour: Its colour.
        label: Its name in the legend; None for none.
        dashed: Whether it is dashed.
        hover: A text for each point, lines separated by newlines; None for x and y.
        group: What it belongs to, for a reader who picks one layer.
    """

    x: Numbers
    y: Numbers
    colour: Colour
    label: str | None = None
    dashed: bool = False
    hover: Sequence[str] | None = None
    group: str | None = None


@storable
@dataclass(frozen=True)
class Band:
    """The area between two curves: an uncertainty."""

    x: Numbers
    low: Numbers
    high: Numbers
    colour: Colour
    label: str | None = None


@storable
@dataclass(frozen=True)
class Points:
    """Single values, with error bars and stems where wanted.

    Attributes:
        x: Abscissae.
        y: Ordinates.
        colour: Their colour.
        label: Their name in the legend; None for none.
        x_error: Half lengths of horizontal error bars.
        y_error: Half lengths of vertical error bars.
        stem: Where vertical stems start; None for no stems.
        hollow: Whether they are circles and not discs.
        hover: A text for each point, lines separated by newlines; None for x and y.
        group: What they belong to, for a reader who picks one layer.
    """

    x: Numbers
    y: Numbers
    colour: Colour
    label: str | None = None
    x_error: Numbers | None = None
    y_error: Numbers | None = None
    stem: float | None = None
    hollow: bool = False
    hover: Sequence[str] | None = None
    group: str | None = None


@storable
@dataclass(frozen=True)
class Bars:
    """Upright bars between edges: a histogram."""

    edges: Numbers
    heights: Numbers
    colour: Colour
    label: str | None = None


@storable
@dataclass(frozen=True)
class Heat:
    """A matrix of positive numbers on a logarithmic ramp; what is not positive stays empty.

    Attributes:
        values: Rows of numbers.
        rows: Their names, top first.
        columns: Names of the columns.
        hover: A text for each cell.
        label: What the colour means.
    """

    values: Sequence[Numbers]
    rows: Sequence[str]
    columns: Sequence[str]
    hover: Sequence[Sequence[str]]
    label: str


@storable
@dataclass(frozen=True)
class Raster:
    """A matrix with too many cells to name them, first row on top.

    Attributes:
        values: Rows of numbers.
        label: What the colour means.
        limits: Values of the ends of the colours; those of the matrix by default.
        log: Whether colours follow the logarithm; what is not positive stays empty then.
    """

    values: Sequence[Numbers]
    label: str
    limits: tuple[float, float] | None = None
    log: bool = False


@storable
@dataclass(frozen=True)
class Rule:
    """A straight line across the panel with a short text at its end."""

    at: float
    text: str = ""
    upright: bool = True
    colour: Colour = "muted"


@storable
@dataclass(frozen=True)
class Note:
    """A short text at a point."""

    x: float
    y: float
    text: str
    colour: Colour = "ink"


Mark = Line | Band | Points | Bars | Heat | Raster | Rule | Note


@storable
@dataclass(frozen=True)
class Axis:
    """One axis.

    Attributes:
        label: What it measures.
        log: Whether it is logarithmic.
        limits: Its ends; None where the renderer chooses.
        ticks: Names at places, for a list of layers; None for numbers.
        downward: Whether it runs from top to bottom, as lists do.
        whole: Whether it counts, so that ticks are whole numbers.
    """

    label: str = ""
    log: bool = False
    limits: tuple[float, float] | None = None
    ticks: Sequence[tuple[float, str]] | None = None
    downward: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn, where it is made and not where somebody looks at it."""
        if self.log and self.limits is not None and not min(self.limits) > 0.0:
            raise InvalidArgumentError(
                f"`Axis(log=True, limits={tuple(self.limits)})` needs limits above 0. Leave out "
                "what is not."
            )


@storable
@dataclass(frozen=True)
class Panel:
    """Marks on one pair of axes."""

    marks: Sequence[Mark]
    x: Axis
    y: Axis
    title: str = ""


@storable
@dataclass(frozen=True)
class Picture:
    """One figure of one or more panels, and what a page says around it.

    Attributes:
        name: Its file name, without ending.
        title: What it shows, in a few words.
        panels: Side by side, in rows of two or three.
        table: The numbers behind it, as columns.
        notes: What is not on the page although it is in the numbers.
        rows: How many layers or stages are listed downwards; 0 where none are.
        pick: Whether a reader may pick one of the groups.
        linked: Whether the panels share their horizontal axis.
        shows: What is seen, in a sentence or two.
        across: Panels in a row; 0 where the renderer chooses.
        section: The title of the part of a page that it stands in; "" for a page's only one.
        sure: How sure it is.
        converged: Whether all of it reached what was asked for.
        cost: What it cost.
        terms: What a page has to define for it: keys of `report/definitions.toml`.
    """

    name: str
    title: str
    panels: Sequence[Panel]
    table: Table = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    rows: int = 0
    pick: bool = False
    linked: bool = False
    shows: str = ""
    across: int = 0
    section: str = ""
    sure: str = ""
    converged: bool = True
    cost: str = ""
    terms: tuple[str, ...] = ()

    def groups(self) -> list[str]:
        """Return the groups that can be picked, in their order and each once."""
        names = [getattr(mark, "group", None) for panel in self.panels for mark in panel.marks]
        return list(dict.fromkeys(group for group in names if group is not None))


def ends(panel: Panel, side: str) -> tuple[float, float]:
    """Return the ends of a logarithmic axis: its limits, or those of the positive numbers on it."""
    axis = panel.x if side == "x" else panel.y
    if axis.limits is not None:
        return axis.limits
    drawn = [mark for mark in panel.marks if isinstance(mark, Line | Points)]
    shown = [v for mark in drawn for v in (mark.x if side == "x" else mark.y)]
    positive = [v for v in shown if 0 < v < math.inf]
    return (min(positive), max(positive)) if positive else (0.1, 1.0)


def raster_limits(mark: Raster) -> tuple[float, float]:
    """Return the values at the ends of a matrix's colours, never the same one twice."""
    shown = [v for row in mark.values for v in row if math.isfinite(v) and (v > 0 or not mark.log)]
    low, high = mark.limits or ((min(shown), max(shown)) if shown else (0.1, 1.0))
    return low, high if high > low else low + max(abs(low), 1.0) * 1e-2


def numbers(tensor: Tensor) -> list[float]:
    """Return a tensor of one dimension as Python floats."""
    return [float(value) for value in tensor.detach().cpu().double().reshape(-1).tolist()]
