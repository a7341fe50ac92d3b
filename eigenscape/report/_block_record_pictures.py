"""Pictures of blocks: norms of all pairs, scores, stripes, spectra, what preconditioning wins."""

import math

from torch import Tensor

from eigenscape.analyses import (
    BlockPreconditioning,
    BlockSpectra,
    BlockStructure,
    SquaredBlockNorms,
    Stripes,
)
from eigenscape.report._marks import (
    Axis,
    Heat,
    Line,
    Mark,
    Panel,
    Picture,
    Points,
    Raster,
    Rule,
    numbers,
)
from eigenscape.report._numbers import short, with_error
from eigenscape.report._style import places
from eigenscape.report._values import table_of
from eigenscape.report.block_pictures import pool_magnitudes
from eigenscape.report.kronecker_pictures import indices

_NAMED = 12  # more blocks than this are drawn without their names
_CELLS = 96
_FAINTEST = 1e-4  # of squared norms: as 1e-2 of norms


def norms_picture(found: SquaredBlockNorms) -> Picture:
    """Draw the norms of all pairs of blocks as a heat map."""
    values = found.values.clamp_min(0.0)
    return Picture(
        "squared-block-norms",
        "Block against block",
        [_matrix(values, found.stderr, found.names, "squared norm", f"{len(found.names)} blocks")],
        table_of(found),
        notes=_weak(found.values),
    )


def structure_picture(found: BlockStructure) -> Picture:
    """Draw the ratios of all pairs of blocks, and both scores beside their null values."""
    scores = [("ratio r", found.ratio, found.ratio_stderr, found.ratio_null)]
    scores.append(("share inside", found.inside, found.inside_stderr, found.inside_null))
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
    ticks = [(place, score[0]) for place, score in zip(y, scores, strict=True)]
    top = max(1.0, *(s[1] + 2 * s[2] for s in scores), *(s[3] for s in scores))
    panels = [
        _matrix(
            found.pair_ratios.nan_to_num(0.0, posinf=0.0).clamp_min(0.0),  # units that are dead
            found.pair_ratios_stderr,
            found.names,
            "‖H_ab‖²/‖H_aa‖²",
            "every pair",
        ),
        Panel(
            marks,
            Axis("score", limits=(-0.03, 1.05 * top)),
            Axis(ticks=ticks, limits=(-0.6, 1.6), downward=True),
            f"r = {with_error(found.ratio, found.ratio_stderr)}",
        ),
    ]
    notes = _weak(found.pair_ratios)
    return Picture("block-structure", "Is it block-diagonal?", panels, table_of(found), notes)


def stripes_picture(found: Stripes) -> Picture:
    """Draw the share of every wrapped diagonal, beside its null value."""
    x = [float(t) for t in range(len(found.shares))]
    y = numbers(found.shares)
    marks: list[Mark] = [
        Line(x, numbers(found.null), "muted", "no structure", dashed=True),
        Points(x, y, "hessian", "± 2 s.e.", y_error=numbers(2 * found.stderr), stem=0.0),
    ]
    panel = Panel(
        marks,
        Axis("shift", whole=True),
        Axis("share", limits=(0.0, 1.1 * max(y))),
        f"shift {found.shift}: {short(y[found.shift])}",
    )
    return Picture("stripes", "Wrapped diagonals of a cross-layer block", [panel], table_of(found))


def spectra_picture(found: BlockSpectra) -> Picture:
    """Draw the densities of all blocks, one colour for each kind, and their distances."""
    kinds = list(dict.fromkeys(found.kinds))
    tint = dict(zip(kinds, places(len(kinds)), strict=True))
    lines: list[Mark] = []
    named: set[str] = set()
    for name, kind, part in zip(found.names, found.kinds, found.spectra, strict=True):
        label = kind if kind not in named and len(kinds) <= _NAMED else None
        named.add(kind)
        x = [value / math.log(10) for value in numbers(part.grid)]
        lines.append(Line(x, numbers(part.density), tint[kind], label, group=name))
    floor = float(found.wasserstein_floor.max())
    panels = [
        Panel(lines, Axis("log₁₀(|λ| + ε)"), Axis("density"), f"{len(found.names)} blocks"),
        _plain(found.wasserstein, found.names, "Wasserstein, in factors of e"),
    ]
    notes = (f"Distances below {short(floor)} are those of the probes.",) if floor > 0 else ()
    return Picture("block-spectra", "Spectra of the blocks", panels, table_of(found), notes)


def preconditioning_picture(found: BlockPreconditioning) -> Picture:
    """Draw the condition numbers with and without the approximation, and its error."""
    names = ("condition", "max/mean |λ|")
    pairs = (
        (found.condition_before, found.condition),
        (found.effective_before, found.effective),
    )
    shown = [i for i, pair in enumerate(pairs) if all(0 < v < math.inf for v in pair)]
    y = [float(i) for i in shown]
    marks: list[Mark] = [Line(pairs[i], (float(i), float(i)), "muted") for i in shown]
    for place, (word, colour) in enumerate((("without", "muted"), ("with it", "hessian"))):
        values = [pairs[i][place] for i in shown]
        hover = [f"{names[i]} {word}\n{short(pairs[i][place])}" for i in shown]
        marks.append(Points(values, y, colour, word, hollow=not place, hover=hover))
    marks.append(Rule(1.0))
    ticks = [(float(i), name) for i, name in enumerate(names)]
    error = with_error(found.scaled_error, found.scaled_error_stderr)
    panel = Panel(
        marks,
        Axis("condition number, damped", log=bool(shown)),
        Axis(ticks=ticks, limits=(-0.6, 1.6), downward=True),
        f"{found.approximation}, error {error}",
    )
    left = len(names) - len(shown)
    notes = (f"{left} condition number is not finite and not drawn.",) if left else ()
    title = "Preconditioned by an approximation"
    return Picture("block-preconditioning", title, [panel], table_of(found), notes)


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
    ticks = [(place - 1.0, name) for place, name in zip(indices(len(names)), names, strict=True)]
    shown = ticks if len(names) <= _NAMED else ()
    return Panel([raster], Axis(ticks=()), Axis(ticks=shown, downward=True), title)


def _weak(values: Tensor) -> tuple[str, ...]:
    empty = int((~(values > 0)).sum())
    return (f"{empty} pairs are not above zero and stay empty.",) if empty else ()
