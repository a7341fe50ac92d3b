"""Pictures as data: their groups, their ends, and what cannot be drawn."""

import json
import math

import pytest
import torch

from eigenscape.errors import InvalidArgumentError
from eigenscape.records import pack, unpack
from eigenscape.records.pictures import (
    Axis,
    Band,
    Bars,
    Heat,
    Line,
    Note,
    Panel,
    Picture,
    Points,
    Raster,
    Rule,
    ends,
    numbers,
    raster_limits,
)


def panel(*marks: object, **axes: Axis) -> Panel:
    return Panel(marks, axes.get("x", Axis(log=True)), axes.get("y", Axis(log=True)))


def test_groups_come_in_their_order_and_once() -> None:
    first = panel(Line([1.0], [2.0], 0.5, group="b"), Rule(1.0), Points([1.0], [2.0], 0.1))
    second = panel(Points([1.0], [2.0], 0.1, group="a"), Line([1.0], [2.0], 0.5, group="b"))
    assert Picture("x", "X", [first, second]).groups() == ["b", "a"]
    assert Picture("x", "X", [panel(Rule(1.0))]).groups() == []


def test_ends_are_those_of_what_is_positive() -> None:
    line = Line([0.0, 0.5, 20.0], [-1.0, math.inf, 3.0], "ink")
    points = Points([4.0, 7.0], [0.25, math.nan], "ink")
    drawn = panel(line, points, Bars([1e-9, 1e9], [1e9], "ink"))  # bars have edges of their own
    assert ends(drawn, "x") == (0.5, 20.0)
    assert ends(drawn, "y") == (0.25, 3.0)


def test_limits_win_over_what_is_drawn() -> None:
    line = Line([0.5, 20.0], [1.0, 3.0], "ink")
    drawn = panel(line, x=Axis(log=True, limits=(0.1, 5.0)))
    assert ends(drawn, "x") == (0.1, 5.0)
    assert ends(drawn, "y") == (1.0, 3.0)


def test_an_axis_with_nothing_positive_has_ends_all_the_same() -> None:
    low, high = ends(panel(Line([-1.0, 0.0], [math.nan, -2.0], "ink"), Rule(3.0)), "x")
    assert 0 < low < high < math.inf


def test_a_matrix_is_coloured_from_its_least_to_its_greatest() -> None:
    values = [[0.5, -2.0, math.nan], [4.0, math.inf, 0.0]]
    assert raster_limits(Raster(values, "x")) == (-2.0, 4.0)
    assert raster_limits(Raster(values, "x", log=True)) == (0.5, 4.0)
    assert raster_limits(Raster(values, "x", limits=(-1.0, 1.0))) == (-1.0, 1.0)


@pytest.mark.parametrize("value", [0.0, 3.0, -5e10, 1e-30])
@pytest.mark.parametrize("limits", [True, False])
def test_colours_never_have_one_end(value: float, limits: bool) -> None:
    mark = Raster([[value, value]], "x", limits=(value, value) if limits else None)
    low, high = raster_limits(mark)
    assert low == value
    assert high > low


@pytest.mark.parametrize("log", [True, False])
def test_a_matrix_without_numbers_has_colours_all_the_same(log: bool) -> None:
    low, high = raster_limits(Raster([[math.nan], [math.inf]], "x", log=log))
    assert 0 < low < high


@pytest.mark.parametrize("limits", [(0.0, 1.0), (-1.0, 1.0), (2.0, 0.0), (math.nan, 1.0)])
def test_a_logarithmic_axis_refuses_what_is_not_positive(limits: tuple[float, float]) -> None:
    with pytest.raises(InvalidArgumentError, match="limits above 0"):
        Axis(log=True, limits=limits)
    assert Axis(limits=limits).limits == limits


def test_numbers_are_those_of_a_tensor() -> None:
    leaf = torch.tensor([1.5, -2.0], dtype=torch.float32, requires_grad=True)
    assert numbers(leaf * 2) == [3.0, -4.0]
    assert numbers(torch.tensor(7)) == [7.0]
    assert all(type(value) is float for value in numbers(torch.arange(3)))


def test_a_picture_of_every_mark_goes_to_json_and_back() -> None:
    marks = (
        Line((1.0, 2.0), (0.5, math.inf), "hessian", "λ", True, ("a\nb", "c"), "fc"),
        Band((1.0,), (0.5,), (2.0,), 0.25),
        Points((1.0,), (2.0,), 0.75, x_error=(0.1,), stem=0.01, hollow=True),
        Bars((0.0, 1.0), (3.0,), "ink"),
        Heat(((1.0, 2.0),), ("r",), ("c", "d"), (("x", "y"),), "norm"),
        Raster(((1.0, 2.0),), "value", (0.0, 1.0), log=False),
        Rule(2.0, "here", upright=False),
        Note(1.0, 2.0, "there"),
    )
    axis = Axis("x", log=True, limits=(0.5, 2.0), ticks=((1.0, "one"),), downward=True, whole=True)
    before = Picture("p", "P", (Panel(marks, axis, Axis(), "t"),), {"n": (1, 2)}, ("note",), 3)
    plain, tensors = pack(before)
    assert tensors == {}
    assert unpack(json.loads(json.dumps(plain, allow_nan=False)), {}) == before
