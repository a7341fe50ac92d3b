"""Pictures of densities, of single numbers, and of what a Lanczos run found."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from eigenscape.records import (
    Axis,
    Band,
    Bars,
    Colour,
    Heat,
    Line,
    Mark,
    Panel,
    Picture,
    Points,
    Record,
    Rule,
    dots,
    layer_axis,
    numbers,
    places,
    short,
    table_of,
    with_error,
)

if TYPE_CHECKING:
    from eigenscape.linalg.density import SpectralDensity
    from eigenscape.linalg.diagonal import DiagonalEstimate
    from eigenscape.linalg.lanczos import LanczosRun
    from eigenscape.linalg.norms import BlockNorms
    from eigenscape.linalg.trace import BlockTraces

BAND = 2  # standard errors on either side
_ROOM = 6.0  # above the highest curve, on a logarithmic axis
_BINS = 80


def one_eigenvalue(density: "SpectralDensity") -> float:
    """Return the height of a single eigenvalue as the density draws it."""
    return 1.0 / (density.size * density.sigma * math.sqrt(2 * math.pi))


def is_zero(density: "SpectralDensity") -> bool:
    """Say whether every eigenvalue is 0, so that there is no width to draw the density with."""
    return not bool(density.nodes.any()) and not bool(density.spikes.any())


def abscissae(density: "SpectralDensity") -> list[float]:
    """Return the points of the axis as eigenvalues: λ, or |λ| + ε."""
    return numbers(density.grid.exp() if density.scale == "log" else density.grid)


def heights(densities: Sequence["SpectralDensity"]) -> tuple[float, float]:
    """Return the ends of a logarithmic axis: a tenth of one eigenvalue, and above everything.

    Densities of zero matrices do not count: nothing of them is drawn.
    """
    densities = [density for density in densities if not is_zero(density)]
    if not densities:
        return 0.1, 1.0
    floor = min(one_eigenvalue(density) for density in densities) / 10
    tops = [max(numbers(density.density)) for density in densities]
    return floor, _ROOM * max(*tops, *(one_eigenvalue(density) for density in densities))


def density_marks(
    density: "SpectralDensity", floor: float, colour: Colour, label: str | None
) -> list[Mark]:
    """Return a density and its band; none where the error is not known."""
    x, y, stderr = abscissae(density), numbers(density.density), numbers(density.stderr)
    sign = "|λ| + ε" if density.scale == "log" else "λ"
    hover = [
        f"{label or 'density'}\n{sign} = {short(a)}\ndensity {short(b)} ± {short(e, 2)} (s.e.)"
        for a, b, e in zip(x, y, stderr, strict=True)
    ]
    line = Line(x, y, colour, label, hover=hover)
    if any(math.isnan(e) for e in stderr):
        return [line]
    low = [max(b - BAND * e, floor / 10) for b, e in zip(y, stderr, strict=True)]
    high = [max(b + BAND * e, floor / 10) for b, e in zip(y, stderr, strict=True)]
    return [Band(x, low, high, colour), line]


def zero_marks(size: int) -> list[Mark]:
    """Return a line at 0 that says that all eigenvalues are there."""
    return [Rule(0.0, f"all {size} eigenvalues are 0")]


def density_picture(density: "SpectralDensity") -> Picture:
    """Draw one density with its spikes."""
    floor, top = heights([density])
    log = density.scale == "log" and not is_zero(density)
    spikes = [] if is_zero(density) else numbers(density.spikes)
    marks = zero_marks(density.size)
    if not is_zero(density):
        marks = density_marks(density, floor, "hessian", f"density, ± {BAND} s.e.")
    if spikes:
        x = [abs(value) + density.epsilon for value in spikes] if log else spikes
        hover = [f"λ = {short(value, 6)}" for value in spikes]
        level = [one_eigenvalue(density)] * len(x)
        marks.append(Points(x, level, "outlier", "deflated, exact", stem=floor, hover=hover))
    limits = (-1.0, 1.0) if is_zero(density) else None
    axis = Axis("|λ| + ε" if log else "eigenvalue λ", log=log, limits=limits)
    name = "density of log |λ|" if log else "density of eigenvalues"
    panel = Panel(marks, axis, Axis(name, log=True, limits=(floor, top)))
    return Picture("density", "Spectral density", [panel], table_of(density))


def value_picture(record: Record, value: float, error: float, name: str, kind: str) -> Picture:
    """Draw one number with its error bar: two standard errors, or one residual.

    Args:
        record: Where it comes from.
        value: The number.
        error: Half the length of its bar.
        name: The name of the number.
        kind: What the bar is, e.g. "± 2 s.e.".

    Returns:
        The picture.
    """
    hover = [f"{name}\n{with_error(value, error)}"]
    text = f"{name} = {with_error(value, error)}"
    points = Points([value], [0.0], "hessian", kind, x_error=[error], hover=hover)
    axis = Axis(ticks=[(0.0, name)], limits=(-1.0, 1.0))
    panel = Panel([points], Axis(name), axis, text)
    return Picture(name.replace(" ", "-").lower(), name, [panel], table_of(record), rows=1)


def diagonal_picture(diagonal: "DiagonalEstimate") -> Picture:
    """Draw the diagonal's entries as a histogram with logarithmic counts."""
    values = diagonal.values.detach().cpu().double()
    low, high = float(values.min()), float(values.max())
    half = 0.5 * ((high - low) or max(abs(high), 1.0)) * 1.0001
    edges = torch.linspace((low + high) / 2 - half, (low + high) / 2 + half, _BINS + 1)
    counts, _ = torch.histogram(values, edges.double())
    bars = Bars(numbers(edges), numbers(counts), "hessian")
    axis = Axis("entries", log=True, limits=(0.5, 2 * max(1.0, float(counts.max()))))
    panel = Panel([bars, Rule(0.0)], Axis("diagonal entry"), axis)
    return Picture("diagonal", "Entries of the diagonal", [panel], table_of(diagonal))


def lanczos_picture(run: "LanczosRun") -> Picture:
    """Draw the coefficients of each probe's recurrence."""
    marks: dict[str, list[Mark]] = {"α": [], "β": []}
    probes = run.alphas.shape[0]
    for number, shade in enumerate(places(probes)):
        for letter, rows in (("α", run.alphas), ("β", run.betas)):
            y = numbers(rows[number])
            x = [float(i) for i in range(1, len(y) + 1)]
            marks[letter].append(Line(x, y, shade, group=f"probe {number}"))
    panels = [
        Panel(lines, Axis("step", whole=True), Axis(letter), f"{letter} of {probes} probes")
        for letter, lines in marks.items()
    ]
    return Picture("lanczos", "Lanczos coefficients", panels, table_of(run), pick=probes > 1)


def blocks_picture(blocks: "BlockNorms") -> Picture:
    """Picture 9: Frobenius norms between all pairs of layers."""
    values, stderr = blocks.values.tolist(), blocks.stderr.tolist()
    hover = [
        [
            f"{row} × {column}\n{with_error(values[i][j], stderr[i][j])}"
            for j, column in enumerate(blocks.column_names)
        ]
        for i, row in enumerate(blocks.row_names)
    ]
    label = "Frobenius norm of the block"
    heat = Heat(values, blocks.row_names, blocks.column_names, hover, label)
    empty = sum(not v > 0 for row in values for v in row)
    relative = (blocks.stderr / blocks.values)[blocks.values > 0]
    worst = float(relative.max()) if relative.numel() else 0.0
    sure = blocks.status.text
    if worst > 0 and math.isfinite(worst):
        sure += f" The largest standard error is {worst:.0%} of its norm."
    return Picture(
        "block-norms",
        "Layer against layer",
        [Panel([heat], Axis(), Axis())],
        table_of(blocks),
        notes=(f"{empty} blocks are zero and stay empty.",) if empty else (),
        shows="How strongly the parameters of one layer are coupled with those of another, on a "
        "logarithmic ramp of colours. The diagonal holds the layers' own blocks.",
        sure=sure,
        converged=bool(blocks.status),
        terms=("block-norms", "standard-error"),
    )


def traces_picture(traces: "BlockTraces") -> Picture:
    """Draw the traces of blocks with their errors."""
    values, stderr = numbers(traces.values), numbers(traces.stderr)
    hover = [
        f"{name}\ntrace {with_error(value, error)}"
        for name, value, error in zip(traces.names, values, stderr, strict=True)
    ]
    panel = dots(values, stderr, hover, "trace", layer_axis(traces.names))
    return Picture("block-traces", "Traces of blocks", [panel], table_of(traces), rows=len(values))
