"""Small helpers for the figures of studies: curves over an index, with few digits."""

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from eigenscape.records import Axis, Band, Line, Mark, Panel, Points

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


def dotted(
    x: Sequence[float],
    y: Tensor | Sequence[float],
    colour: str | float,
    label: str | None = None,
    *,
    dashed: bool = False,
) -> list[Mark]:
    """Return a line with a dot at each of its points."""
    values = rounded(y)
    return [Line(x, values, colour, label, dashed), Points(x, values, colour)]


def stops(names: Iterable[str], label: str = "", *, margin: float) -> Axis:
    """Return an axis with named stops at 0, 1, … and a margin at its ends."""
    ticks = [(float(i), name) for i, name in enumerate(names)]
    return Axis(label, ticks=ticks, limits=(-margin, len(ticks) - 1 + margin))


def sweep_panel(
    x: Sequence[float],
    curves: Mapping[str, Tensor | Sequence[float]],
    across: Axis,
    up: Axis,
    title: str = "",
    *,
    named: bool = True,
) -> Panel:
    """Draw several curves over what is swept: dotted lines, in the colours of a series."""
    marks: list[Mark] = []
    for tint, (name, y) in zip(SERIES, curves.items(), strict=False):
        marks += dotted(x, y, tint, name if named else None)
    return Panel(marks, across, up, title)


def mean_and_band(runs: Tensor, colour: str, label: str | None) -> list[Line | Band]:
    """Return the mean of runs (r, k) and a band of one standard deviation."""
    mean = runs.mean(0)
    marks: list[Line | Band] = [curve(mean, colour, label)]
    if len(runs) > 1:
        sd = runs.std(0)
        x = indices(len(mean))
        marks.insert(0, Band(x, rounded(mean - sd), rounded(mean + sd), colour))
    return marks


def spectrum(
    values: Tensor, colour: str, label: str | None = None, *, hollow: bool = False
) -> Points:
    """Return eigenvalues over their index."""
    y = rounded(values)
    return Points(indices(len(y)), y, colour, label, hollow=hollow)


def values_panel(
    true: Tensor, approximations: Iterable[tuple[str, Tensor, str]], title: str
) -> Panel:
    """Draw eigenvalues: those of approximations as circles, and the true ones as a line on top.

    Args:
        true: The eigenvalues of H.
        approximations: Name, eigenvalues and colour of each.
        title: Of the panel.

    Returns:
        The panel.
    """
    marks: list[Points | Line] = [
        spectrum(values, colour, name, hollow=True) for name, values, colour in approximations
    ]
    marks.append(curve(true, "hessian", "H"))
    return Panel(marks, Axis("index", whole=True), Axis("eigenvalue", log=True), title)


def overlaps_panel(lines: Sequence[Line], title: str) -> Panel:
    """Draw overlaps with the top eigenspaces of H, over their dimension."""
    return Panel(lines, Axis("k", whole=True), Axis("overlap with H", limits=(0, 1.02)), title)
