"""Small helpers for the figures of studies: curves over an index, with few digits."""

from collections.abc import Sequence

from torch import Tensor

from eigenscape.report import Axis, Band, Line, Panel, Points, Raster

SERIES = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")


def rounded(values: Tensor | Sequence[float], digits: int = 6) -> tuple[float, ...]:
    """Return numbers with few digits: more cannot be seen, and would fill files."""
    items = values.detach().cpu().reshape(-1).tolist() if isinstance(values, Tensor) else values
    return tuple(float(f"{value:.{digits}g}") for value in items)


def indices(count: int) -> tuple[float, ...]:
    """Return 1, 2, …, count."""
    return tuple(float(i) for i in range(1, count + 1))


def curve(
    values: Tensor | Sequence[float],
    colour: str | float,
    label: str | None = None,
    *,
    dashed: bool = False,
) -> Line:
    """Return a curve over the index, from 1."""
    y = rounded(values)
    return Line(indices(len(y)), y, colour, label, dashed)


def mean_and_band(runs: Tensor, colour: str, label: str | None) -> list[Line | Band]:
    """Return the mean of runs (r, k) and a band of one standard deviation."""
    mean = runs.mean(0)
    found: list[Line | Band] = [curve(mean, colour, label)]
    if len(runs) > 1:
        sd = runs.std(0)
        x = indices(len(mean))
        found.insert(0, Band(x, rounded(mean - sd), rounded(mean + sd), colour))
    return found


def spectrum(values: Tensor, colour: str, label: str | None) -> Points:
    """Return eigenvalues over their index."""
    y = rounded(values)
    return Points(indices(len(y)), y, colour, label)


def matrix_panel(
    matrix: Tensor, *, title: str, x: str, y: str, label: str, limits: tuple[float, float] | None
) -> Panel:
    """Return a matrix as a picture."""
    raster = Raster(tuple(rounded(row, 3) for row in matrix), label, limits)
    return Panel([raster], Axis(x), Axis(y, downward=True), title)
