"""Render pictures as plain data for plotly.js, which the report carries with it.

Colours stay tokens ("@hessian", "@hessian/0.25" for a tint, "@0.25" for a place on the ramp); the
page's script replaces them when the reader changes between light and dark.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from eigenscape.records import (
    Band,
    Bars,
    Colour,
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
    shorten,
)
from eigenscape.report._marks import is_positive, known, lower_arms, tick_texts
from eigenscape.report._style import DARK, HEAT_DARK, HEAT_LIGHT, LIGHT, colour

Plot = dict[str, Any]

_HEIGHT = 340
_ROW = 19
_RAMP = [[i / 5, f"@heat{i}"] for i in range(6)]
_SIDE = 640  # of a heat map, in pixels, where cells need not be larger or smaller


def plots(picture: Picture) -> list[Plot]:
    """Return the `data`, `layout`, `height` and largest `width` of each panel of a picture.

    Args:
        picture: The picture.

    Returns:
        One plot for each panel, ready for JSON: what is not finite is None.
    """
    return [_plot(panel, picture) for panel in picture.panels]


def palettes(pictures: Sequence[Picture]) -> dict[str, dict[str, str]]:
    """Return the colour of every token that the pictures use, for each theme."""
    used = {
        mark.colour
        for picture in pictures
        for panel in picture.panels
        for mark in panel.marks
        if not isinstance(mark, Heat | Raster) and not isinstance(mark.colour, str)
    }
    themes = {}
    for theme, roles, heat in (("light", LIGHT, HEAT_LIGHT), ("dark", DARK, HEAT_DARK)):
        places = {_name(token): colour(token, dark=theme == "dark") for token in used}
        stops = {f"heat{i}": stop for i, stop in enumerate(heat)}
        themes[theme] = roles | places | stops
    return themes


@dataclass(frozen=True)
class _Drawing:
    """What the marks of a panel become."""

    data: list[Plot] = field(default_factory=list)
    shapes: list[Plot] = field(default_factory=list)
    notes: list[Plot] = field(default_factory=list)


def _plot(panel: Panel, picture: Picture) -> Plot:
    on = _Drawing()
    for mark in panel.marks:
        _DRAW[type(mark)](mark, panel, on)
    heat = any(isinstance(mark, Heat) for mark in panel.marks)
    layout: Plot = {
        "xaxis": {"side": "bottom"} if heat else _axis(panel, "x"),
        "yaxis": {} if heat else _axis(panel, "y"),
        "shapes": on.shapes,
        "annotations": on.notes,
        "showlegend": any(trace.get("showlegend") for trace in on.data),
    }
    if heat:
        mark = next(mark for mark in panel.marks if isinstance(mark, Heat))
        layout["xaxis"] |= _names(mark.columns) | {"tickangle": -90}
        layout["yaxis"] |= _names(mark.rows) | {"autorange": "reversed"}
        cell = min(max(_SIDE / max(len(mark.rows), 1), 14.0), 90.0)
        height, width = 130 + cell * len(mark.rows), 260 + cell * len(mark.columns)
        return {"data": on.data, "layout": layout, "height": round(height), "width": round(width)}
    rows = picture.rows if panel.y.ticks is not None else 0
    height = max(_HEIGHT if rows == 0 else 180, 110 + _ROW * rows)
    return {"data": on.data, "layout": layout, "height": height, "width": None}


def _axis(panel: Panel, side: str) -> Plot:
    axis = panel.x if side == "x" else panel.y
    out: Plot = {"title": {"text": _escaped(axis.label)}, "type": "log" if axis.log else "linear"}
    if axis.limits is not None:
        shown = [math.log10(end) for end in axis.limits] if axis.log else list(axis.limits)
        out["range"] = shown[::-1] if axis.downward else shown
    elif axis.downward:
        out["autorange"] = "reversed"
    if axis.ticks is not None:
        out |= {
            "tickvals": [position for position, _ in axis.ticks],
            "ticktext": [_escaped(shorten(name)) for _, name in axis.ticks],
        }
    elif axis.log:
        out |= _decades(*ends(panel, side))
    elif axis.whole:
        low, high = ends(panel, side)
        # Without a step of its own a short axis would repeat its numbers: 1, 2, 2, 3, 3.
        out |= {"tickformat": "d"} | ({"dtick": 1} if high - low < 8 else {})
    return out


def _decades(low: float, high: float) -> Plot:
    """Return where a logarithmic axis has ticks: at 1, 2 and 5 if it is short, else at decades."""
    span = math.log10(high / low)
    if span > 2:
        return {"dtick": max(1, math.ceil(span / 9)), "exponentformat": "power"}
    plain = low >= 1e-4 and high < 1e5
    return {
        "dtick": "D2" if span > 0.5 else "D1",
        "minorloglabels": "complete",
        "exponentformat": "none" if plain else "power",
    }


def _names(names: Sequence[str]) -> Plot:
    return {
        "tickvals": list(range(len(names))),
        "ticktext": [_escaped(shorten(name, 20)) for name in names],
        "type": "linear",
        "showgrid": False,
    }


def _line(mark: Line, panel: Panel, on: _Drawing) -> None:
    trace = {
        "type": "scatter",
        "mode": "lines" if len(mark.y) > 1 else "lines+markers",
        "x": _finite(mark.x),
        "y": _ordinates(mark, panel),
        "line": {
            "color": _token(mark.colour),
            "width": 1.8,
            "dash": "dash" if mark.dashed else "solid",
        },
    }
    on.data.append(trace | _common(mark, panel))


def _band(mark: Band, panel: Panel, on: _Drawing) -> None:
    trace = {
        "type": "scatter",
        "mode": "lines",
        "x": _finite([*mark.x, *reversed(mark.x)]),
        "y": _finite([*mark.high, *reversed(mark.low)]),
        "fill": "toself",
        "fillcolor": f"{_token(mark.colour)}/0.25",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "name": _escaped(mark.label or ""),
        "showlegend": mark.label is not None,
    }
    on.data.append(trace)


def _points(mark: Points, panel: Panel, on: _Drawing) -> None:
    tint = _token(mark.colour)
    if mark.stem is not None:
        stems: Plot = {
            "type": "scatter",
            "mode": "lines",
            "x": [v for x in mark.x for v in (x, x, None)],
            "y": [v for y in mark.y for v in (mark.stem, y, None)],
            "line": {"color": tint, "width": 1.2},
            "hoverinfo": "skip",
            "showlegend": False,
        }
        on.data.append(stems)
    look = {
        "color": "@paper" if mark.hollow else tint,
        "size": 7,
        "line": {"color": tint, "width": 1.5},
    }
    trace: Plot = {
        "type": "scatter",
        "mode": "markers",
        "x": _finite(mark.x),
        "y": _ordinates(mark, panel),
        "marker": look,
    }
    arms = {"type": "data", "thickness": 1.2, "width": 3, "color": tint}
    if mark.x_error is not None:
        trace["error_x"] = arms | {"array": known(mark.x_error)}
    if mark.y_error is not None:
        errors = known(mark.y_error)
        trace["error_y"] = arms | {"array": errors}
        if panel.y.log:
            trace["error_y"] |= {"symmetric": False, "arrayminus": lower_arms(mark, errors)}
    on.data.append(trace | _common(mark, panel))


def _bars(mark: Bars, panel: Panel, on: _Drawing) -> None:
    sides = list(zip(mark.edges[:-1], mark.edges[1:], strict=True))
    trace = {
        "type": "bar",
        "x": [(low + high) / 2 for low, high in sides],
        "width": [high - low for low, high in sides],
        "y": _finite(mark.heights),
        "marker": {"color": _token(mark.colour)},
        "name": _escaped(mark.label or ""),
        "showlegend": mark.label is not None,
    }
    on.data.append(trace)


def _heat(mark: Heat, panel: Panel, on: _Drawing) -> None:
    logs = [[math.log10(v) if is_positive(v) else None for v in row] for row in mark.values]
    places = colour_ticks([v for row in logs for v in row if v is not None] or [0.0])
    trace = {
        "type": "heatmap",
        "z": logs,
        "text": [[_lines(text) for text in row] for row in mark.hover],
        "hovertemplate": "%{text}<extra></extra>",
        "colorscale": _RAMP,
        "xgap": 1,
        "ygap": 1,
        "colorbar": _colour_bar(mark)
        | {"tickvals": [math.log10(tick) for tick in places], "ticktext": tick_texts(places)},
    }
    on.data.append(trace)


def _raster(mark: Raster, panel: Panel, on: _Drawing) -> None:
    low, high = raster_limits(mark)
    shown = [[math.log10(v) if is_positive(v) else None for v in row] for row in mark.values]
    trace = {
        "type": "heatmap",
        "z": shown if mark.log else [_finite(row) for row in mark.values],
        "zmin": math.log10(low) if mark.log else low,
        "zmax": math.log10(high) if mark.log else high,
        "colorscale": _RAMP,
        "hovertemplate": "%{x}, %{y}: %{z:.3~g}<extra></extra>",
        "colorbar": _colour_bar(mark) | {"tickprefix": "10^" if mark.log else ""},
    }
    on.data.append(trace)


def _colour_bar(mark: Heat | Raster) -> Plot:
    title = {"text": _escaped(mark.label), "side": "right"}
    return {"title": title, "thickness": 12, "outlinewidth": 0}


def _rule(mark: Rule, panel: Panel, on: _Drawing) -> None:
    side, other = ("x", "y") if mark.upright else ("y", "x")
    axis = panel.x if mark.upright else panel.y
    on.shapes.append(
        {
            "type": "line",
            f"{side}0": mark.at,
            f"{side}1": mark.at,
            f"{other}0": 0,
            f"{other}1": 1,
            f"{other}ref": "paper",
            "line": {"color": _token(mark.colour), "width": 1, "dash": "dot"},
        }
    )
    if mark.text:
        on.notes.append(
            {
                side: math.log10(mark.at) if axis.log else mark.at,
                other: 1,
                f"{other}ref": "paper",
                "text": _lines(mark.text),
                "textangle": -90 if mark.upright else 0,
                "xanchor": "right",
                "yanchor": "top" if mark.upright else "bottom",
                "showarrow": False,
                "font": {"color": _token(mark.colour), "size": 11},
            }
        )


def _note(mark: Note, panel: Panel, on: _Drawing) -> None:
    on.notes.append(
        {
            "x": math.log10(mark.x) if panel.x.log else mark.x,
            "y": math.log10(mark.y) if panel.y.log else mark.y,
            "text": _lines(mark.text),
            "showarrow": False,
            "xanchor": "left",
            "yanchor": "bottom",
            "xshift": 5,
            "yshift": 4,
            "font": {"color": _token(mark.colour), "size": 11},
        }
    )


def _common(mark: Line | Points, panel: Panel) -> Plot:
    """Return what curves and points share: name, legend, hover, group."""
    if mark.hover is None:
        axes = (_escaped(panel.x.label) or "x", _escaped(panel.y.label) or "y")
        named = f"<b>{_escaped(mark.group or mark.label or '')}</b><br>"
        body = f"{axes[0]}: %{{x:.4~g}}<br>{axes[1]}: %{{y:.4~g}}<extra></extra>"
        hover: Plot = {"hovertemplate": (named if mark.group or mark.label else "") + body}
    else:
        texts = [_lines(text) for text in mark.hover]
        hover = {"text": texts, "hovertemplate": "%{text}<extra></extra>"}
    return {
        "name": _escaped(mark.label or ""),
        "showlegend": mark.label is not None,
        "meta": mark.group,
    } | hover


def _lines(text: str) -> str:
    """Return text for plotly with our line breaks as its tags, and all else as it is."""
    return _escaped(text).replace("\n", "<br>")


def _escaped(text: str) -> str:
    """Escape what plotly would read: tags, formulas between dollars, and fields of templates."""
    return escape(text).replace("$", "&#36;").replace("%{", "%&#123;")


def _name(which: Colour) -> str:
    return which if isinstance(which, str) else f"{which:.4f}"


def _token(which: Colour) -> str:
    return f"@{_name(which)}"


def _finite(values: Sequence[float]) -> list[float | None]:
    return [v if math.isfinite(v) else None for v in values]


def _ordinates(mark: Line | Points, panel: Panel) -> list[float | None]:
    """Return y with gaps for what cannot be drawn."""
    return [v if is_positive(v) else None for v in mark.y] if panel.y.log else _finite(mark.y)


_DRAW: dict[type[Mark], Callable[..., None]] = {
    Line: _line,
    Band: _band,
    Points: _points,
    Bars: _bars,
    Heat: _heat,
    Raster: _raster,
    Rule: _rule,
    Note: _note,
}
