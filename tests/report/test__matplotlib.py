"""Names of ticks on logarithmic axes: few enough to be read, and enough to read the axis."""

import io
import itertools

import pytest
from matplotlib.figure import Figure

from eigenscape.report import Axis, Line, Panel, Picture
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
