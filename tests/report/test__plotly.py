"""Pictures for the screen: the numbers of the marks, no more and no less, as strict JSON."""

import json
import math
import re
from typing import Any

import pytest

from eigenscape.records import (
    Axis,
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
)
from eigenscape.report._plotly import palettes, plots
from tests.report import samples

LOG = Axis("size", log=True)


def picture(*marks: Mark, x: Axis | None = None, y: Axis | None = None, **more: Any) -> Picture:
    return Picture("p", "P", [Panel(marks, x or Axis("λ"), y or Axis("ρ"))], **more)


def drawn(*marks: Mark, **axes: Any) -> dict[str, Any]:
    (plot,) = plots(picture(*marks, **axes))
    return strict(plot)


def strict(plot: dict[str, Any]) -> dict[str, Any]:
    """Take it through JSON, which has no NaN and no infinity."""
    return json.loads(json.dumps(plot, allow_nan=False))


def test_strict_json_refuses_what_is_not_finite() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        strict({"x": [math.nan]})


def test_curves_have_gaps_where_a_logarithm_has_none() -> None:
    line = Line([1.0, 2.0, 3.0, 4.0], [0.5, -1.0, math.inf, 2.0], "hessian", dashed=True)
    (trace,) = drawn(line, y=LOG)["data"]
    assert trace["x"] == [1.0, 2.0, 3.0, 4.0]
    assert trace["y"] == [0.5, None, None, 2.0]
    assert trace["line"]["dash"] == "dash"
    assert drawn(line)["data"][0]["y"] == [0.5, -1.0, None, 2.0]


def test_one_point_of_a_curve_is_seen() -> None:
    assert drawn(Line([1.0], [2.0], "ink"))["data"][0]["mode"] == "lines+markers"
    assert drawn(Line([1.0, 2.0], [2.0, 1.0], "ink"))["data"][0]["mode"] == "lines"


def test_a_band_runs_up_and_back() -> None:
    (trace,) = drawn(Band([1.0, 2.0], [0.1, 0.2], [0.3, 0.4], 0.5))["data"]
    assert trace["x"] == [1.0, 2.0, 2.0, 1.0]
    assert trace["y"] == [0.3, 0.4, 0.2, 0.1]
    assert trace["fillcolor"] == "@0.5000/0.25"


def test_points_have_stems_and_error_bars_that_stay_above_zero() -> None:
    points = Points([3.0], [2.0], "outlier", x_error=[math.nan], y_error=[5.0], stem=0.1)
    stems, trace = drawn(points, y=LOG)["data"]
    assert stems["x"] == [3.0, 3.0, None]
    assert stems["y"] == [0.1, 2.0, None]
    assert trace["error_x"]["array"] == [0.0]
    assert trace["error_y"]["array"] == [5.0]
    assert trace["error_y"]["arrayminus"] == [pytest.approx(1.998)]
    assert "arrayminus" not in drawn(points)["data"][1]["error_y"]


def test_bars_stand_between_their_edges() -> None:
    (trace,) = drawn(Bars([0.0, 1.0, 4.0], [7.0, 9.0], "ink"))["data"]
    assert (trace["x"], trace["width"], trace["y"]) == ([0.5, 2.5], [1.0, 3.0], [7.0, 9.0])


def test_a_map_shows_logarithms_with_the_first_row_on_top() -> None:
    heat = Heat([[100.0, 0.0], [1.0, -3.0]], ["a", "b"], ["c", "d"], [["1", "2"], ["3", "4"]], "n")
    plot = drawn(heat)
    (trace,) = plot["data"]
    assert trace["z"] == [[2.0, None], [0.0, None]]
    assert plot["layout"]["yaxis"]["autorange"] == "reversed"
    assert plot["layout"]["yaxis"]["ticktext"] == ["a", "b"]
    assert plot["layout"]["xaxis"]["ticktext"] == ["c", "d"]
    assert plot["width"] > 0


@pytest.mark.parametrize("log", [True, False])
def test_a_raster_has_the_ends_of_its_colours(log: bool) -> None:
    raster = Raster([[0.1, math.nan], [10.0, 0.0]], "v", log=log)
    (trace,) = drawn(raster)["data"]
    expected = [[-1.0, None], [1.0, None]] if log else [[0.1, None], [10.0, 0.0]]
    assert trace["z"] == [[pytest.approx(v) if v else v for v in row] for row in expected]
    assert (trace["zmin"], trace["zmax"]) == ((-1.0, 1.0) if log else (0.0, 10.0))


def test_rules_and_notes_stand_where_they_belong() -> None:
    plot = drawn(Rule(100.0, "here"), Rule(2.0, upright=False), Note(10.0, 3.0, "there"), x=LOG)
    upright, flat = plot["layout"]["shapes"]
    assert (upright["x0"], upright["x1"], upright["yref"]) == (100.0, 100.0, "paper")
    assert (flat["y0"], flat["y1"], flat["xref"]) == (2.0, 2.0, "paper")
    first, second = plot["layout"]["annotations"]  # in logarithms there, as plotly has it
    assert (first["x"], first["text"]) == (2.0, "here")
    assert (second["x"], second["y"]) == (1.0, 3.0)


def test_axes_have_their_limits_in_their_own_scale() -> None:
    plot = drawn(
        Line([1.0, 2.0], [1.0, 2.0], "ink"),
        x=Axis("a", log=True, limits=(0.01, 1000.0)),
        y=Axis("b", limits=(0.0, 3.0), downward=True, ticks=[(0.0, "x" * 80), (1.0, "fc")]),
        rows=2,
    )
    x, y = plot["layout"]["xaxis"], plot["layout"]["yaxis"]
    assert x["range"] == [-2.0, 3.0]
    assert y["range"] == [3.0, 0.0]
    assert y["tickvals"] == [0.0, 1.0]
    assert len(y["ticktext"][0]) < 30
    assert y["ticktext"][1] == "fc"


@pytest.mark.parametrize(("high", "step"), [(2.0, "D1"), (50.0, "D2"), (1e5, 1), (1e20, 3)])
def test_long_axes_have_ticks_at_decades_alone(high: float, step: str | int) -> None:
    plot = drawn(Line([1.0, high], [1.0, 2.0], "ink"), x=Axis("a", log=True))
    assert plot["layout"]["xaxis"]["dtick"] == step


def test_counts_have_whole_ticks() -> None:
    axis = Axis("step", whole=True)
    few, many = (drawn(Line([1.0, end], [1.0, 2.0], "ink"), x=axis) for end in (3.0, 90.0))
    assert few["layout"]["xaxis"]["dtick"] == 1
    assert "dtick" not in many["layout"]["xaxis"]


def test_text_is_shown_and_not_read() -> None:
    nasty = samples.NASTY + "%{x}\nsecond"
    line = Line([1.0], [2.0], "ink", nasty, hover=[nasty])
    other = Line([1.0], [2.0], "ink", group=nasty)
    plot = drawn(line, other, Rule(1.0, nasty), x=Axis(nasty))
    # A group is compared with the one that was picked, and shown nowhere.
    assert [trace.pop("meta") for trace in plot["data"]] == [None, nasty]
    text = json.dumps(plot)
    assert "<script" not in text
    assert "$a_b" not in text
    first, second = plot["data"]
    assert first["text"][0].endswith("<br>second")
    assert second["hovertemplate"].count("%{x") == 1  # our own field


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_token_has_a_colour(theme: str) -> None:
    pictures = [
        picture(Line([1.0], [2.0], 0.123), Points([1.0], [2.0], "outlier", hollow=True)),
        picture(Heat([[1.0]], ["a"], ["b"], [["x"]], "n"), Raster([[1.0, 2.0]], "v")),
        *samples.analysis(n=40).pictures(),
    ]
    palette = palettes(pictures)[theme]
    text = json.dumps([plots(p) for p in pictures])
    used = {token.split("/")[0] for token in re.findall(r'"@([^"]+)"', text)}
    assert "0.1230" in used
    assert used <= palette.keys()
    assert all(re.fullmatch(r"#[0-9a-fA-F]{6}", palette[token]) for token in used)
