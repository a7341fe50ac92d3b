"""Render pictures with matplotlib, for papers and for `record.plot()`."""

import math
import textwrap
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from eigenscape.records import (
    Band,
    Bars,
    Heat,
    Line,
    Mark,
    Note,
    Panel,
    Picture,
    Points,
    Raster,
    Rule,
    colour_ticks,
    ends,
    raster_limits,
    short,
    shorten,
)
from eigenscape.report._marks import is_positive, known, lower_arms, tick_texts
from eigenscape.report._style import HEAT_LIGHT, RC, colour

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 6.8  # inches: the text width of a page
_MANY = 24
_ACROSS = 3  # panels in a row
_LETTER = 0.58  # width of a digit over the size of its font
_FEW = 4  # entries of a legend that find a place among the data
_ENTRY = 0.16  # inches: height of an entry


@contextmanager
def style() -> "Iterator[None]":
    """Use our settings inside a `with`, and nobody else's afterwards."""
    import matplotlib

    with matplotlib.rc_context(RC), warnings.catch_warnings():
        # A layer may be called by a name that the font has no glyph for; a box is good enough.
        warnings.filterwarnings("ignore", message=r".*[Gg]lyph.*")
        yield


def size_of(picture: Picture) -> tuple[float, float]:
    """Return the width and height of a picture in inches."""
    heat = next((m for p in picture.panels for m in p.marks if isinstance(m, Heat)), None)
    if heat is not None:
        side = min(max(2.6 + 0.17 * len(heat.rows), 3.6), 12.0)
        return side * 1.15, side
    height = 0.9 + 0.19 * picture.rows if picture.rows else 2.7
    height = max(height, 2.6 if any(p.y.ticks is None for p in picture.panels) else 1.6)
    high = -(-len(picture.panels) // _columns(picture))
    return _width(picture), min(height * (0.85 * high + 0.15), 22.0) + _below_panels(picture)


def _width(picture: Picture) -> float:
    return 4.6 if len(picture.panels) == 1 and not picture.rows else _WIDTH


def _columns(picture: Picture) -> int:
    """Return the panels in a row: pairs side by side, and no last one alone where that can be."""
    count, titles = len(picture.panels), [panel.title for panel in picture.panels]
    if picture.across or count <= _ACROSS:
        return min(picture.across or count, count)
    if any(titles) and titles[::2] == titles[1::2]:
        return 2
    return next((across for across in (_ACROSS, 2) if count % across != 1), _ACROSS)


def _below_panels(picture: Picture) -> float:
    """Return the inches that legends need below panels."""
    shared = _shared_legend(picture)
    if shared is not None:
        legend = list(_labelled(picture.panels[shared]))
        return _ENTRY * (1 + _lines(legend, _width(picture)))
    long = [legend for panel in picture.panels if len(legend := list(_labelled(panel))) > _FEW]
    return max((_ENTRY * _lines(legend, _panel_width(picture)) for legend in long), default=0.0)


def _panel_width(picture: Picture) -> float:
    """Return the inches of a panel, without the names of the vertical axis."""
    return _width(picture) / _columns(picture) - 0.6


def _lines(legend: Sequence[str], inches: float) -> int:
    """Return over how many lines a legend of this width goes."""
    widest = max(map(len, legend)) + 6  # the mark and the space between two
    return -(-len(legend) // max(1, int(_letters(inches, "legend.fontsize") / widest)))


def _letters(inches: float, font: str) -> int:
    """Return how many letters of a font of ours fit; they are narrower than digits."""
    return int(72 * inches / (0.54 * float(RC[font])))


def make_figure(picture: Picture) -> "Figure":
    """Draw a whole picture on a figure of its own that pyplot never hears of."""
    from matplotlib.figure import Figure

    with style():
        figure = Figure(figsize=size_of(picture), layout="constrained")
        fill_figure(figure, picture)
    return figure


def fill_figure(figure: "Figure", picture: Picture) -> "Axes":
    """Draw a whole picture on a figure, and return the first axes."""
    across = _columns(picture)
    down = -(-len(picture.panels) // across)
    grid = figure.subplots(down, across, squeeze=False, sharex=picture.linked)
    all_axes = list(grid.flat)
    for axes in all_axes[len(picture.panels) :]:
        axes.remove()
    shared = _shared_legend(picture)
    for index, (axes, panel) in enumerate(zip(all_axes, picture.panels, strict=False)):
        entries = _draw_marks(panel, axes, _title_room(picture, panel))
        if shared is None and entries:
            _legend(axes, entries, _panel_width(picture))
        elif index == shared:
            columns = _legend_columns(entries, _width(picture))
            _place_legend(figure, entries, loc="outside lower center", ncols=columns)
        before = picture.panels[index - 1] if index % across else None
        if before is not None and picture.linked:
            axes.set_ylabel("")
        if before is not None and panel.y.ticks and panel.y.ticks == before.y.ticks:
            axes.tick_params(labelleft=False)
    first: Axes = all_axes[0]
    return first


def _labelled(panel: Panel) -> dict[str, tuple[Any, ...]]:
    """Return the entries of a panel's legend, with what tells their looks apart."""
    return {
        mark.label: (type(mark), mark.colour, getattr(mark, "dashed", None))
        for mark in panel.marks
        if isinstance(mark, Line | Band | Points | Bars) and mark.label
    }


def _shared_legend(picture: Picture) -> int | None:
    """Return which panel's legend is good for all; None where they need their own, or none."""
    legends = [_labelled(panel) for panel in picture.panels]
    most = max(legends, key=len)
    colours = {look[1] for look in most.values()}
    if len(legends) == 1 or not most:
        return None
    for panel, legend in zip(picture.panels, legends, strict=True):
        # A panel without a legend shares that of another if it draws all that is named there.
        drawn = {m.colour for m in panel.marks if isinstance(m, Line | Band | Points | Bars)}
        if not (legend.items() <= most.items() and (legend or colours <= drawn)):
            return None
    return legends.index(most)


def _title_room(picture: Picture, panel: Panel) -> float:
    """Return the inches that a title has above a panel."""
    room = _panel_width(picture) - (0.1 if panel.y.log else 0.0)  # powers are wide numbers
    raster = next((mark for mark in panel.marks if isinstance(mark, Raster)), None)
    if raster is not None:
        room -= 0.5  # the colour bar
        if len(raster.values) == len(raster.values[0]):  # no wider than it is high
            down = -(-len(picture.panels) // _columns(picture))
            room = min(room, size_of(picture)[1] / down - 1.0)
    return room


def draw_panel(panel: Panel, axes: "Axes") -> None:
    """Draw one panel on axes of somebody else, with its legend."""
    labelled = _draw_marks(panel, axes)
    if labelled:
        _legend(axes, labelled, axes.bbox.width / axes.figure.dpi)


def _draw_marks(panel: Panel, axes: "Axes", room: float = 100.0) -> list[tuple[Any, str]]:
    """Draw a panel with lines of its title in so many inches; return what a legend names."""
    labelled: list[tuple[Any, str]] = []
    for side, axis in (("x", panel.x), ("y", panel.y)):
        if axis.log:
            getattr(axes, f"set_{side}scale")("log")
    for mark in panel.marks:
        handle = _DRAW[type(mark)](axes, mark, panel)
        label = getattr(mark, "label", None)
        if label and handle is not None and not isinstance(mark, Heat | Raster):
            labelled.append((handle, label))
    if panel.title:
        letters = max(8, _letters(room, "axes.titlesize"))
        title = textwrap.fill(panel.title, letters, break_on_hyphens=False)
        axes.set_title(title, parse_math=False)
    if not any(isinstance(mark, Heat) for mark in panel.marks):
        _set_axis(axes, "x", panel)
        _set_axis(axes, "y", panel)
    return labelled


def _legend(axes: "Axes", labelled: list[tuple[Any, str]], inches: float) -> None:
    """Put a short legend where the data are not, and a long one below the panel."""
    from matplotlib.transforms import ScaledTranslation

    where: dict[str, Any] = {"loc": "best"}
    if len(labelled) > _FEW:
        names = ScaledTranslation(0, -0.4, axes.figure.dpi_scale_trans)  # of the axis
        where = {"loc": "upper left", "bbox_to_anchor": (0.0, 0.0), "borderaxespad": 0.0}
        where["bbox_transform"] = axes.transAxes + names
        where["ncols"] = _legend_columns(labelled, inches)
    _place_legend(axes, labelled, **where)


def _legend_columns(labelled: list[tuple[Any, str]], inches: float) -> int:
    return -(-len(labelled) // _lines([text for _, text in labelled], inches))


def _place_legend(on: "Axes | Figure", labelled: list[tuple[Any, str]], **where: Any) -> None:
    # matplotlib leaves labels with a leading underscore out; a space in front keeps them.
    texts = [f" {text}" if text.startswith("_") else text for _, text in labelled]
    legend = on.legend([handle for handle, _ in labelled], texts, handlelength=1.4, **where)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _set_axis(axes: "Axes", side: str, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    axis = panel.x if side == "x" else panel.y
    if axis.label:
        getattr(axes, f"set_{side}label")(axis.label, parse_math=False)
    if axis.limits is not None:
        getattr(axes, f"set_{side}lim")(*axis.limits)
    mpl_axis = axes.xaxis if side == "x" else axes.yaxis
    if axis.ticks is not None:
        mpl_axis.set_ticks(
            [position for position, _ in axis.ticks],
            [shorten(name) for _, name in axis.ticks],
            parse_math=False,
            fontsize=7.5 if len(axis.ticks) <= _MANY else 6.0,
        )
        mpl_axis.set_tick_params(length=0)
        axes.grid(True, axis="y" if side == "y" else "x", color=colour("grid"), lw=0.5)
        axes.spines["left" if side == "y" else "bottom"].set_visible(False)
    elif axis.log:
        _short_decades(mpl_axis, *ends(panel, side))
    elif axis.whole:
        mpl_axis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    if axis.downward:
        mpl_axis.set_inverted(True)


def _short_decades(mpl_axis: Any, low: float, high: float) -> None:
    """Name 1, 2 and 5 on a short logarithmic axis; matplotlib names all or nothing there."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    mpl_axis.set_minor_formatter(NullFormatter())
    if math.log10(high / low) <= 2:
        mpl_axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        # Asked when it is drawn, since the layout decides how long the axis is.
        mpl_axis.set_major_formatter(
            FuncFormatter(lambda value, _: short(value, 2) if value in _named(mpl_axis) else "")
        )


def _named(mpl_axis: Any) -> list[float]:
    """Return those ticks whose names fit beside each other, powers of ten before all others."""
    low, high = sorted(mpl_axis.get_view_interval())
    low, high = float(low), float(high)
    box, dots = mpl_axis.axes.bbox, float(mpl_axis.axes.figure.dpi) / 72
    is_wide = mpl_axis.axis_name == "x"
    points = float(box.width if is_wide else box.height) / dots
    decade, size = points / math.log10(high / low), float(RC["xtick.labelsize"])

    def half(value: float) -> float:
        letters = len(short(value, 2)) + 1.5 if is_wide else 2.0  # with the space between two
        return 0.5 * letters * _LETTER * size

    def is_clear(one: float, two: float) -> bool:
        return abs(math.log10(one / two)) * decade >= half(one) + half(two)

    ticks = [float(value) for value in mpl_axis.get_majorticklocs() if low <= value <= high]
    named: list[float] = []
    for value in sorted(ticks, key=lambda v: (abs(math.log10(v) % 1 - 0.5) < 0.499, v)):
        if all(is_clear(value, other) for other in named):
            named.append(value)
    return named


def _line(axes: "Axes", mark: Line, panel: Panel) -> Any:
    y = [v if v > 0 or not panel.y.log else math.nan for v in mark.y]
    dash = "--" if mark.dashed else "-"
    # A curve of one point would be invisible without a marker.
    marker = "o" if len(y) == 1 else ""
    drawn = axes.plot(mark.x, y, color=colour(mark.colour), ls=dash, marker=marker, ms=3)
    return drawn[0]


def _band(axes: "Axes", mark: Band, panel: Panel) -> Any:
    tint = colour(mark.colour)
    return axes.fill_between(mark.x, mark.low, mark.high, color=tint, alpha=0.25, lw=0)


def _points(axes: "Axes", mark: Points, panel: Panel) -> Any:
    tint = colour(mark.colour)
    if mark.stem is not None:
        axes.vlines(mark.x, mark.stem, mark.y, color=tint, lw=0.9)
    look: dict[str, Any] = {"ms": 3.2, "color": tint, "mew": 0.9}
    look["mfc"] = "white" if mark.hollow else tint
    if mark.x_error is None and mark.y_error is None:  # several times faster
        return axes.plot(mark.x, mark.y, "o", **look)[0]
    sideways = None if mark.x_error is None else known(mark.x_error)
    upright: Any = None if mark.y_error is None else known(mark.y_error)
    if upright is not None and panel.y.log:
        upright = [lower_arms(mark, upright), upright]
    bars = {"xerr": sideways, "yerr": upright}
    return axes.errorbar(mark.x, mark.y, fmt="o", elinewidth=0.8, capsize=1.5, **bars, **look)


def _bars(axes: "Axes", mark: Bars, panel: Panel) -> Any:
    return axes.stairs(mark.heights, mark.edges, fill=True, color=colour(mark.colour), alpha=0.85)


def _heat(axes: "Axes", mark: Heat, panel: Panel) -> Any:
    from matplotlib.colors import LinearSegmentedColormap, LogNorm

    positive = [v for row in mark.values for v in row if is_positive(v)]
    low, high = (min(positive), max(positive)) if positive else (0.1, 1.0)
    cells = [[v if is_positive(v) else math.nan for v in row] for row in mark.values]
    image = axes.imshow(
        cells,
        cmap=LinearSegmentedColormap.from_list("eigenscape", HEAT_LIGHT),
        norm=LogNorm(low, high if high > low else low * 1.01),
        aspect="auto",
        interpolation="nearest",
    )
    font = 7.5 if len(mark.rows) <= _MANY else 5.5
    for mpl_axis, names in ((axes.xaxis, mark.columns), (axes.yaxis, mark.rows)):
        mpl_axis.set_ticks(
            range(len(names)), [shorten(name, 20) for name in names], parse_math=False
        )
        mpl_axis.set_tick_params(labelsize=font, length=0)
    axes.xaxis.set_tick_params(labelrotation=90)
    axes.spines[:].set_visible(False)
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.8, pad=0.02)
    bar.outline.set_visible(False)
    places = colour_ticks([math.log10(low), math.log10(high)])
    bar.set_ticks(places, labels=tick_texts(places))
    bar.minorticks_off()
    bar.set_label(mark.label, parse_math=False)
    return image


def _raster(axes: "Axes", mark: Raster, panel: Panel) -> Any:
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize

    low, high = raster_limits(mark)
    is_square = len(mark.values) == len(mark.values[0])
    image = axes.imshow(
        mark.values,
        cmap=LinearSegmentedColormap.from_list("eigenscape", HEAT_LIGHT),
        norm=LogNorm(low, high, clip=True) if mark.log else Normalize(low, high, clip=True),
        aspect="equal" if is_square else "auto",
        interpolation="nearest",
        zorder=1,  # above the grid
    )
    # As high as the image: a square one does not fill its panel.
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.65 if is_square else 0.8, pad=0.02)
    bar.outline.set_visible(False)
    bar.set_label(mark.label, parse_math=False)
    return image


def _rule(axes: "Axes", mark: Rule, panel: Panel) -> None:
    tint = colour(mark.colour)
    if mark.upright:
        axes.axvline(mark.at, color=tint, lw=0.7, ls=":")
        position, where = (mark.at, 1.0), axes.get_xaxis_transform()
        # A letter alone cannot be read when it is turned.
        turned: dict[str, Any] = {"rotation": 90 if len(mark.text) > 1 else 0}
        turned |= {"ha": "right", "va": "top"}
    else:
        axes.axhline(mark.at, color=tint, lw=0.7, ls=":")
        position, where = (1.0, mark.at), axes.get_yaxis_transform()
        turned = {"ha": "right", "va": "bottom"}
    if mark.text:
        axes.text(
            *position,
            mark.text,
            transform=where,
            color=tint,
            fontsize=7,
            parse_math=False,
            **turned,
        )


def _note(axes: "Axes", mark: Note, panel: Panel) -> None:
    axes.annotate(
        mark.text,
        (mark.x, mark.y),
        xytext=(4, 5),
        textcoords="offset points",
        color=colour(mark.colour),
        fontsize=7,
        parse_math=False,
    )


_DRAW: dict[type[Mark], Callable[..., Any]] = {
    Line: _line,
    Band: _band,
    Points: _points,
    Bars: _bars,
    Heat: _heat,
    Raster: _raster,
    Rule: _rule,
    Note: _note,
}
