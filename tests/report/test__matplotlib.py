"""Names of ticks, titles and legends: none is cut, lies on another, or is given twice."""

import io
import itertools
import math

import pytest
from matplotlib.figure import Figure

from eigenscape.errors import InvalidArgumentError
from eigenscape.records import Axis, Line, Panel, Picture, Points, Raster
from eigenscape.report._matplotlib import make_figure


def drawn(low: float, high: float, side: str, panels: int = 3) -> Figure:
    ends, other = (low, high), (1.0, 2.0)
    x, y = (ends, other) if side == "x" else (other, ends)
    axes = Axis("x", log=side == "x"), Axis("y", log=side == "y")
    mark = Line(x, y, "first", None)
    figure = make_figure(Picture("name", "title", [Panel([mark], *axes, "t")] * panels))
    figure.savefig(io.BytesIO(), format="png")  # the layout is done when it is drawn
    return figure


def boxes(figure: Figure, side: str) -> list[tuple[float, float, str]]:
    """Return where the names of the first panel's ticks begin and end, in order."""
    axes = figure.axes[0]
    own = axes.xaxis if side == "x" else axes.yaxis
    low, high = own.get_view_interval()
    found = []
    for tick in own.get_major_ticks():
        if tick.label1.get_text() and low <= tick.get_loc() <= high:
            box = tick.label1.get_window_extent()
            ends = (box.x0, box.x1) if side == "x" else (box.y0, box.y1)
            found.append((*ends, tick.label1.get_text()))
    return sorted(found)


def apart(found: list[tuple[float, float, str]]) -> bool:
    """Say whether there is a space between names: three pixels, half a digit."""
    return all(one[1] + 3.0 <= two[0] for one, two in itertools.pairwise(found))


# From half a decade to just over two, with short names and with long ones.
@pytest.mark.parametrize(("side", "panels"), [("x", 1), ("x", 3), ("y", 3)])
@pytest.mark.parametrize("scale", [1.0, 1e-2, 7e-6])
@pytest.mark.parametrize("ratio", [4.0, 97.0, 150.0])
def test_names_of_ticks_do_not_touch(ratio: float, scale: float, side: str, panels: int) -> None:
    found = boxes(drawn(scale, scale * ratio, side, panels), side)
    assert len(found) >= (2 if ratio > 4 or panels == 1 or side == "y" else 1)
    assert apart(found), found


def test_powers_of_ten_are_named_before_all_others() -> None:
    names = [name for *_, name in boxes(drawn(0.011, 1.05, "x"), "x")]
    assert {"0.1", "1"} <= set(names)
    assert len(names) < 6  # there is no room for 0.02, 0.05, 0.1, 0.2, 0.5 and 1


def test_all_of_1_2_and_5_are_named_where_there_is_room() -> None:
    names = [name for *_, name in boxes(drawn(0.9, 22.0, "x", panels=1), "x")]
    assert names == ["1", "2", "5", "10", "20"]


def test_the_helper_sees_names_that_touch() -> None:
    assert apart([(0.0, 5.0, "1"), (8.0, 12.0, "2")])
    assert not apart([(0.0, 5.0, "1"), (6.0, 12.0, "2")])


@pytest.mark.parametrize("limits", [(0.0, 1.0), (-1.0, 1.0), (math.nan, 1.0)])
def test_a_logarithmic_axis_from_zero_is_refused(limits: tuple[float, float]) -> None:
    with pytest.raises(InvalidArgumentError, match="needs limits above 0"):
        Axis("y", log=True, limits=limits)
    assert Axis("y", limits=limits).limits == limits


# --- titles and legends --------------------------------------------------------------------------

LONG = "E[M] ⊗ E[xxᵀ] with E[xxᵀ] of F-200^2 (mnist, half, random labels)"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("size", [(4, 4), (2, 9), None], ids=str)
def test_titles_are_neither_cut_nor_on_others(count: int, size: tuple[int, int] | None) -> None:
    mark = Raster([[1.0] * size[1]] * size[0], "share") if size else Line((1, 2), (1, 2), "first")
    panel = Panel([mark], Axis("x"), Axis("y"), LONG)
    figure = make_figure(Picture("p", "P", [panel] * count))
    figure.savefig(io.BytesIO(), format="png")
    titles = [axes._left_title for axes in figure.axes if axes.get_title(loc="left")]
    assert [title.get_text().split() for title in titles] == [LONG.split()] * count
    found = [title.get_window_extent() for title in titles]
    whole = figure.bbox
    assert all(whole.x0 <= box.x0 and box.x1 <= whole.x1 and box.y1 <= whole.y1 for box in found)
    others = [axes.get_window_extent() for axes in figure.axes]  # colour bars are axes too
    for one, box in enumerate(found):
        assert not any(box.overlaps(other) for other in [*others, *found[:one]])


def test_a_title_beside_powers_of_ten_is_not_cut() -> None:
    line = Line((1, 4000), (1e-7, 1.0), "first")
    axes = Axis("segment"), Axis("meta-objective", log=True, limits=(5e-8, 4.0))
    panels = [Panel([line], *axes, "60000 samples, 20% noise")] * 3
    figure = make_figure(Picture("p", "P", panels))
    figure.savefig(io.BytesIO(), format="png")
    ends = [each._left_title.get_window_extent().x1 for each in figure.axes]
    assert max(ends) <= figure.bbox.x1


def panel_of(*labels: str | None, colours: tuple[str, ...] = ("first", "second")) -> Panel:
    marks = [
        Line((1.0, 2.0), (1.0, 3.0), colour, label)
        for colour, label in zip(colours, labels, strict=True)
    ]
    return Panel(marks, Axis("x"), Axis("y"))


def legends(*panels: Panel) -> tuple[list[list[str]], list[list[str]]]:
    """Return the legends of the figure and those of its panels, as texts."""
    figure = make_figure(Picture("p", "P", panels))
    figure.savefig(io.BytesIO(), format="png")
    own = [axes.get_legend() for axes in figure.axes]
    return tuple(
        [[text.get_text() for text in legend.get_texts()] for legend in found if legend]
        for found in (figure.legends, own)
    )


def test_a_legend_that_all_share_is_drawn_once() -> None:
    both, silent = panel_of("a", "b"), panel_of(None, None)
    assert legends(both, both) == ([["a", "b"]], [])
    assert legends(silent, both) == ([["a", "b"]], [])  # it draws the same
    assert legends(panel_of("a", None), both) == ([["a", "b"]], [])
    assert legends(both) == ([], [["a", "b"]])
    assert legends(silent, silent) == ([], [])


def test_legends_that_differ_stay_with_their_panels() -> None:
    both = panel_of("a", "b")
    assert legends(both, panel_of("a", "c")) == ([], [["a", "b"], ["a", "c"]])
    turned = panel_of("a", "b", colours=("second", "first"))
    assert legends(both, turned) == ([], [["a", "b"]] * 2)
    dots = Panel([Points((1.0,), (1.0,), "first")], Axis("x"), Axis("y"))
    assert legends(both, dots) == ([], [["a", "b"]])  # which are not "a"


@pytest.mark.parametrize("count", [1, 2])
def test_long_legends_stand_below_the_data(count: int) -> None:
    marks = [Line((1.0, 2.0), (1.0, i), i / 6, f"layer {i}") for i in range(7)]
    panels = [Panel(marks[i:], Axis("x"), Axis("y")) for i in range(count)]
    panels[0] = Panel([*marks, Line((1.0,), (1.0,), "first", "x")], Axis("x"), Axis("y"))
    figure = make_figure(Picture("p", "P", panels))
    figure.savefig(io.BytesIO(), format="png")
    found = [axes.get_legend() for axes in figure.axes if axes.get_legend()] or figure.legends
    for legend in found:
        box = legend.get_window_extent()
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1
        for axes in figure.axes:
            assert box.y1 < axes.get_window_extent().y0
