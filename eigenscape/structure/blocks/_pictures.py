"""Pictures of matrices with blocks."""

import itertools
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eigenscape.errors import ShapeError, require_count
from eigenscape.records import (
    Axis,
    Heat,
    Line,
    Mark,
    Panel,
    Picture,
    Points,
    Raster,
    indices,
    numbers,
    places,
    short,
    table_of,
    with_error,
)

if TYPE_CHECKING:
    from eigenscape.structure.blocks.block_norms import SquaredBlockNorms
    from eigenscape.structure.blocks.block_spectra import BlockSpectra
    from eigenscape.structure.blocks.block_structure import BlockStructure, Stripes

_NAMED = 12  # more blocks than this are drawn without their names
_CELLS = 96
_FAINTEST = 1e-4  # of squared norms: as 1e-2 of norms
# Numbers of magnitudes that are held beside the matrix.
_STRIP = 2**24


def pool_magnitudes(matrix: Tensor, num_cells: int) -> Tensor:
    """Return the largest magnitude in each cell of a grid over a matrix.

    Memory: the result and strips of 16 million numbers.

    Args:
        matrix: A matrix (r, c).
        num_cells: Rows and columns of the grid; fewer where the matrix has fewer.

    Returns:
        The grid, in the matrix's dtype on its device. Cells differ by at most one entry in height
        and in width, and share none.

    Raises:
        ShapeError: If it is no matrix, or has no entries.
        InvalidArgumentError: If the number is below 1.
        WrongTypeError: If the number is no integer.

    Examples:
        >>> pool_magnitudes(torch.tensor([[1.0, -7.0], [0.0, 2.0]]), 1)
        tensor([[7.]])
    """
    require_count(num_cells, "pool_magnitudes(num_cells=...)")
    if matrix.ndim != 2 or matrix.numel() == 0:
        raise ShapeError(
            f"`pool_magnitudes(matrix)` needs a matrix with entries; got {tuple(matrix.shape)}."
        )
    height, width = matrix.shape
    columns = _ends(width, num_cells)
    strips = []
    for top, bottom in _ends(height, num_cells):
        best = matrix.new_zeros(width)
        for rows in matrix[top:bottom].split(max(1, _STRIP // width)):
            best = torch.maximum(best, rows.abs().amax(0))
        strips.append(torch.stack([best[left:right].amax() for left, right in columns]))
    return torch.stack(strips)


def _ends(size: int, num_cells: int) -> list[tuple[int, int]]:
    """Return where the cells along one side begin and end."""
    count = min(size, num_cells)
    places = [size * k // count for k in range(count + 1)]
    return list(itertools.pairwise(places))


def norms_picture(record: "SquaredBlockNorms") -> Picture:
    """Draw the norms of all pairs of blocks as a heat map."""
    values = record.values.clamp_min(0.0)
    return Picture(
        "squared-block-norms",
        "Block against block",
        [
            _matrix(
                values, record.stderr, record.names, "squared norm", f"{len(record.names)} blocks"
            )
        ],
        table_of(record),
        notes=_weak(record.values),
    )


def structure_picture(record: "BlockStructure") -> Picture:
    """Draw the ratios of all pairs of blocks, and both scores beside their null values."""
    scores = [("ratio r", record.ratio, record.ratio_stderr, record.ratio_null)]
    scores.append(("share inside", record.inside, record.inside_stderr, record.inside_null))
    y = [float(i) for i in range(len(scores))]
    hover = [f"{name}\n{with_error(value, error)}" for name, value, error, _ in scores]
    null = [f"{name}\nnull value {short(value)}" for name, _, _, value in scores]
    marks: list[Mark] = [
        Points([s[3] for s in scores], y, "muted", "no structure", hollow=True, hover=null),
        Points(
            [s[1] for s in scores],
            y,
            "hessian",
            "± 2 s.e.",
            x_error=[2 * s[2] for s in scores],
            hover=hover,
        ),
    ]
    ticks = [(height, score[0]) for height, score in zip(y, scores, strict=True)]
    top = max(1.0, *(s[1] + 2 * s[2] for s in scores), *(s[3] for s in scores))
    panels = [
        _matrix(
            record.pair_ratios.nan_to_num(0.0, posinf=0.0).clamp_min(0.0),  # units that are dead
            record.pair_ratios_stderr,
            record.names,
            "‖H_ab‖²/‖H_aa‖²",
            "every pair",
        ),
        Panel(
            marks,
            Axis("score", limits=(-0.03, 1.05 * top)),
            Axis(ticks=ticks, limits=(-0.6, 1.6), downward=True),
            f"r = {with_error(record.ratio, record.ratio_stderr)}",
        ),
    ]
    notes = _weak(record.pair_ratios)
    return Picture("block-structure", "Is it block-diagonal?", panels, table_of(record), notes)


def stripes_picture(stripes: "Stripes") -> Picture:
    """Draw the share of every wrapped diagonal, beside its null value."""
    x = [float(t) for t in range(len(stripes.shares))]
    y = numbers(stripes.shares)
    marks: list[Mark] = [
        Line(x, numbers(stripes.null), "muted", "no structure", dashed=True),
        Points(x, y, "hessian", "± 2 s.e.", y_error=numbers(2 * stripes.stderr), stem=0.0),
    ]
    panel = Panel(
        marks,
        Axis("shift", whole=True),
        Axis("share", limits=(0.0, 1.1 * max(y))),
        f"shift {stripes.shift}: {short(y[stripes.shift])}",
    )
    return Picture(
        "stripes", "Wrapped diagonals of a cross-layer block", [panel], table_of(stripes)
    )


def spectra_picture(record: "BlockSpectra") -> Picture:
    """Draw the densities of all blocks, one colour for each kind, and their distances."""
    kinds = list(dict.fromkeys(record.kinds))
    tint = dict(zip(kinds, places(len(kinds)), strict=True))
    lines: list[Mark] = []
    named: set[str] = set()
    for name, kind, density in zip(record.names, record.kinds, record.spectra, strict=True):
        label = kind if kind not in named and len(kinds) <= _NAMED else None
        named.add(kind)
        x = [value / math.log(10) for value in numbers(density.grid)]
        lines.append(Line(x, numbers(density.density), tint[kind], label, group=name))
    floor = float(record.wasserstein_floor.max())
    panels = [
        Panel(lines, Axis("log₁₀(|λ| + ε)"), Axis("density"), f"{len(record.names)} blocks"),
        _plain(record.wasserstein, record.names, "Wasserstein, in factors of e"),
    ]
    notes = (f"Distances below {short(floor)} are those of the probes.",) if floor > 0 else ()
    return Picture("block-spectra", "Spectra of the blocks", panels, table_of(record), notes)


def _matrix(
    values: Tensor, stderr: Tensor, names: tuple[str, ...], label: str, title: str
) -> Panel:
    """Return all pairs of blocks: named if there are few, else as a raster of the largest."""
    if len(names) <= _NAMED:
        hover = [
            [
                f"{row} × {column}\n{with_error(float(values[i, j]), float(stderr[i, j]))}"
                for j, column in enumerate(names)
            ]
            for i, row in enumerate(names)
        ]
        heat = Heat([numbers(row) for row in values], names, names, hover, label)
        return Panel([heat], Axis(), Axis(), title)
    cells = pool_magnitudes(values, _CELLS).cpu()
    top = float(cells.amax(1).quantile(0.9))
    limits = (_FAINTEST * top, top) if top > 0 else None
    raster = Raster([numbers(row) for row in cells], label, limits, top > 0)
    return Panel([raster], Axis("block", ticks=()), Axis("block", ticks=(), downward=True), title)


def _plain(values: Tensor, names: tuple[str, ...], title: str) -> Panel:
    """Return distances on a ramp that starts at 0."""
    raster = Raster([numbers(row) for row in values], "distance")
    ticks = [(rank - 1.0, name) for rank, name in zip(indices(len(names)), names, strict=True)]
    shown = ticks if len(names) <= _NAMED else ()
    return Panel([raster], Axis(ticks=()), Axis(ticks=shown, downward=True), title)


def _weak(values: Tensor) -> tuple[str, ...]:
    empty = int((~(values > 0)).sum())
    return (f"{empty} pairs are not above zero and stay empty.",) if empty else ()
