"""Panels of matrices with blocks, and of eigenvalues with the density that theory gives them.

A Hessian of 8000² entries has more of them than a screen has dots. What is drawn is the largest
magnitude in each cell of a coarse grid, so that no large entry is lost, and the ends of the colours
follow what is typical of a row, so that a single large entry does not make the rest disappear.
"""

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eigenscape.errors import InvalidArgumentError, ShapeError, require_count
from eigenscape.records import (
    Axis,
    Bars,
    Line,
    Mark,
    Panel,
    Picture,
    Points,
    Raster,
    Rule,
    numbers,
    short,
    table_of,
    with_error,
)
from eigenscape.structure import pool_magnitudes
from eigenscape_papers.theory.marchenko_pastur import SpectralLaw

if TYPE_CHECKING:
    from eigenscape_papers.dong.block_preconditioning import BlockPreconditioning

# The palest colour on a logarithmic ramp, as a share of the darkest.
_FAINTEST = 1e-3


def block_panel(
    matrix: Tensor,
    *,
    sizes: Sequence[int],
    title: str = "",
    names: Sequence[tuple[int, str]] = (),
    num_cells: int = 64,
    quantile: float = 0.9,
    log: bool = False,
) -> Panel:
    """Return a square matrix as a heat map of magnitudes with its blocks drawn in.

    The darkest colour stands for a quantile over the rows of the largest value in each row. One
    that is taken over all cells would be that of the cells beside the diagonal, which are nearly
    all of them.

    Args:
        matrix: The matrix (n, n).
        sizes: Rows of each block, in their order; they add up to n.
        title: Of the panel.
        names: Names along the axes: after how many rows a part begins, and its name.
        num_cells: The most cells in a row; as many as fit whole blocks, where all blocks have one
            size.
        quantile: Which quantile of the rows the darkest colour stands for.
        log: Whether colours follow the logarithm, over three decades.

    Returns:
        The panel. Lines are drawn between blocks of at least four cells.

    Raises:
        ShapeError: If the matrix is not square, or the blocks do not fill it.
        InvalidArgumentError: If a number is out of range.
        WrongTypeError: If a number is none.

    Examples:
        >>> panel = block_panel(torch.eye(6), sizes=(2, 4))
        >>> [mark.at for mark in panel.marks if isinstance(mark, Rule)]
        [1.5, 1.5]
    """
    if not 0.0 <= quantile <= 1.0:
        raise InvalidArgumentError(
            f"`block_panel(quantile=...)` must be from 0 to 1; got {quantile!r}."
        )
    n = sum(sizes)
    if matrix.shape != (n, n) or min(sizes, default=0) < 1:
        raise ShapeError(
            f"`block_panel(matrix, sizes=...)` needs a square matrix and sizes of its blocks that "
            f"add up to its rows; got {tuple(matrix.shape)} and {len(sizes)} blocks of {n} rows."
        )
    cells = pool_magnitudes(matrix, _fitting(sizes, num_cells)).detach().double().cpu()
    scale = len(cells) / n
    top = float(cells.amax(1).quantile(quantile))
    limits = (_FAINTEST * top if log else 0.0, top) if top > 0.0 else None
    values = [[float(f"{v:.2g}") for v in row] for row in cells.tolist()]
    marks: list[Mark] = [Raster(values, "largest |entry|", limits, log and top > 0.0)]
    for offset in _grid(sizes, scale):
        marks += [Rule(offset), Rule(offset, upright=False)]
    starts = [*(start for start, _ in names), n]
    ticks = [
        (0.5 * scale * (start + end) - 0.5, name)
        for (start, name), end in zip(names, starts[1:], strict=True)
    ]
    return Panel(marks, Axis(ticks=ticks), Axis(ticks=ticks, downward=True), title)


def law_panel(
    law: SpectralLaw, eigenvalues: Tensor, *, title: str = "", num_bins: int = 40
) -> Panel:
    """Return a histogram of eigenvalues under the density of a limiting law.

    Bars and curve are both densities. Eigenvalues at zero that belong to the law's atom are left
    out, and the axis names their share.

    Args:
        law: The law.
        eigenvalues: Of a matrix (d,), in any order.
        title: Of the panel.
        num_bins: Number of bars.

    Returns:
        The panel.

    Raises:
        ShapeError: If there are no eigenvalues.
        InvalidArgumentError: If there are less than two bars.
        WrongTypeError: If the number is no integer.

    Examples:
        >>> from eigenscape_papers.theory import spectral_law
        >>> law = spectral_law(torch.ones(1), ratio=2.0, num_points=16)
        >>> law_panel(law, torch.tensor([0.0, 2.0])).x.label
        'eigenvalue (50 % are zero)'
    """
    require_count(num_bins, "law_panel(num_bins=...)", at_least=2)
    if eigenvalues.ndim != 1 or len(eigenvalues) == 0:
        raise ShapeError(
            f"`law_panel(eigenvalues)` needs a vector of them; got {tuple(eigenvalues.shape)}."
        )
    values = eigenvalues.detach().double().cpu()
    kept, label = values, "eigenvalue"
    if law.zero_mass > 0.0:
        kept = values[values.abs() > 1e-9 * values.abs().max()]
        label = f"eigenvalue ({100 * law.zero_mass:.0f} % are zero)"
    low, high = min(law.lower, float(values.min())), max(law.upper, float(values.max()))
    edges = torch.linspace(low, high, num_bins + 1, dtype=torch.float64)
    counts, _ = torch.histogram(kept, edges)
    heights = counts / (len(values) * edges.diff())
    x = [law.lower, *numbers(law.points), law.upper]
    y = [0.0, *numbers(law.density), 0.0]
    highest = max(float(heights.max()), float(law.density.quantile(0.95)))
    marks: list[Mark] = [
        Bars(_short(numbers(edges)), _short(numbers(heights)), "fifth", "simulated"),
        Line(_short(x), _short(y), "second", "theory"),
    ]
    return Panel(marks, Axis(label), Axis("density", limits=(0.0, 1.15 * highest)), title)


def _fitting(sizes: Sequence[int], num_cells: int) -> int:
    """Return at most so many cells that no cell holds parts of two blocks, where that can be."""
    most = require_count(num_cells, "block_panel(num_cells=...)")
    blocks = len(sizes)
    if len(set(sizes)) > 1:
        return min(most, sum(sizes))
    if blocks <= most:
        per_block = max(k for k in range(1, min(sizes[0], most // blocks) + 1) if not sizes[0] % k)
        return blocks * per_block
    divisor = max(k for k in range(1, most + 1) if blocks % k == 0)
    # A number of blocks with small divisors only would leave a picture of a few cells.
    return divisor if 2 * divisor > most else most


def _grid(sizes: Sequence[int], scale: float) -> list[float]:
    """Return the places of lines, in cells, between neighbours of which one has four cells."""
    starts, end = [], 0
    for size, after in itertools.pairwise(sizes):
        end += size
        if max(size, after) * scale >= 4.0:
            starts.append(scale * end - 0.5)
    return starts


def _short(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def preconditioning_picture(record: "BlockPreconditioning") -> Picture:
    """Draw the condition numbers with and without the approximation, and its error."""
    names = ("condition", "max/mean |λ|")
    pairs = (
        (record.condition_before, record.condition),
        (record.effective_before, record.effective),
    )
    shown = [i for i, pair in enumerate(pairs) if all(0 < v < math.inf for v in pair)]
    y = [float(i) for i in shown]
    marks: list[Mark] = [Line(pairs[i], (float(i), float(i)), "muted") for i in shown]
    for side, (word, colour) in enumerate((("without", "muted"), ("with it", "hessian"))):
        values = [pairs[i][side] for i in shown]
        hover = [f"{names[i]} {word}\n{short(pairs[i][side])}" for i in shown]
        marks.append(Points(values, y, colour, word, hollow=not side, hover=hover))
    marks.append(Rule(1.0))
    ticks = [(float(i), name) for i, name in enumerate(names)]
    error = with_error(record.scaled_error, record.scaled_error_stderr)
    panel = Panel(
        marks,
        Axis("condition number, damped", log=bool(shown)),
        Axis(ticks=ticks, limits=(-0.6, 1.6), downward=True),
        f"{record.approximation}, error {error}",
    )
    left = len(names) - len(shown)
    notes = (f"{left} condition number is not finite and not drawn.",) if left else ()
    title = "Preconditioned by an approximation"
    return Picture("block-preconditioning", title, [panel], table_of(record), notes)
