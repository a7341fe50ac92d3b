"""Pictures of spectra and of what stands out in them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eigenscape.linalg import (
    BAND,
    SpectralDensity,
    abscissae,
    density_marks,
    heights,
    is_zero,
    one_eigenvalue,
    zero_marks,
)
from eigenscape.records import (
    Axis,
    Band,
    Line,
    Mark,
    Note,
    Panel,
    Picture,
    Points,
    Rule,
    Table,
    dots,
    layer_axis,
    numbers,
    pair_hover,
    seconds,
    short,
    table_of,
)

if TYPE_CHECKING:
    from eigenscape.analyses.whole.exact_trace import ExactTrace
    from eigenscape.analyses.whole.gradient_overlap import GradientOverlap
    from eigenscape.analyses.whole.matrix_spectrum import MatrixSpectrum
    from eigenscape.analyses.whole.outliers import Outliers
    from eigenscape.analyses.whole.plan import Plan
    from eigenscape.analyses.whole.point import Point

_ROOM = 6.0  # above the highest curve, on a logarithmic axis
NAMES = {
    "Hessian": "Hessian H",
    "Gauss-Newton": "Gauss-Newton G",
    "residual": "residual H − G",
}
COLOURS = {"Hessian": "hessian", "Gauss-Newton": "gauss_newton", "residual": "residual"}


def named(spectrum: "MatrixSpectrum") -> str:
    """Return a matrix's name with its letter."""
    return NAMES.get(spectrum.matrix, spectrum.matrix)


def coloured(spectrum: "MatrixSpectrum") -> str:
    """Return the colour that a matrix has in every picture."""
    return COLOURS.get(spectrum.matrix, "first")


def end_marks(
    spectrum: "MatrixSpectrum", height: float, floor: float, num_outliers: int | None
) -> list[Mark]:
    """Return both certified ends as stems with residuals, the most negative eigenvalue named."""
    top = spectrum.largest
    split = len(top) if num_outliers is None else min(num_outliers, len(top))
    marks: list[Mark] = []
    hover = pair_hover(top, "from the top")
    values, residuals = numbers(top.values), numbers(top.residuals)
    what = (
        "largest, certified"
        if num_outliers is None
        else f"{split} outlier{'s' * (split != 1)}, certified"
    )
    groups = ((0, split, "outlier", what), (split, len(top), "muted", "the next, certified"))
    for first, last, colour, label in groups:
        if last > first:
            span = slice(first, last)
            level = [height] * (last - first)
            marks.append(
                Points(
                    values[span],
                    level,
                    colour,
                    label,
                    x_error=residuals[span],
                    stem=floor,
                    hover=hover[span],
                )
            )
    return marks + _bottom(spectrum, height, floor)


def _bottom(spectrum: "MatrixSpectrum", height: float, floor: float) -> list[Mark]:
    low = spectrum.smallest
    if len(low) == 0:
        return []
    values = numbers(low.values)
    # Ranks count from the bottom, and the last of a descending list is the smallest.
    count = len(values)
    hover = [
        f"λ = {short(value, 6)}\nresidual {short(residual, 2)}\nrank {count - i} from the bottom"
        for i, (value, residual) in enumerate(zip(values, numbers(low.residuals), strict=True))
    ]
    points = Points(
        values,
        [height] * count,
        "negative",
        "smallest, certified",
        x_error=numbers(low.residuals),
        stem=floor,
        hover=hover,
    )
    return [points]


def smallest_marks(spectrum: "MatrixSpectrum", height: float, top: float) -> list[Mark]:
    """Return a line from the smallest eigenvalue up to its name, which stands above the curve."""
    if len(spectrum.smallest) == 0:
        return []
    value = float(spectrum.smallest.values[-1])
    label_height = 1.2 * top / _ROOM
    line = Line([value, value], [height, label_height], "negative", dashed=True)
    return [line, Note(value, label_height, f"λ min {short(value, 3)}", "negative")]


def ends_table(spectrum: "MatrixSpectrum") -> Table:
    """Return both ends as columns."""
    return {name: list(column) for name, column in spectrum.columns().items()}


def spectrum_panel(
    spectrum: "MatrixSpectrum",
    *,
    num_outliers: int | None = None,
    limits: tuple[float, float] | None = None,
    levels: tuple[float, float] | None = None,
    title: str = "",
) -> Panel:
    """Return density and ends of one matrix on a linear axis of eigenvalues.

    Of a zero matrix there is a line at 0 that says so.
    """
    floor, top = levels or heights([spectrum.density])
    if is_zero(spectrum.density):
        marks = zero_marks(spectrum.size)
    else:
        height = one_eigenvalue(spectrum.density)
        label = f"bulk of {named(spectrum)}, ± {BAND} s.e."
        marks = density_marks(spectrum.density, floor, coloured(spectrum), label)
        marks += end_marks(spectrum, height, floor, num_outliers)
        if not title:  # a panel among others is too narrow for names
            marks += smallest_marks(spectrum, height, top)
    return Panel(
        marks,
        Axis("eigenvalue λ", limits=limits or eigenvalue_limits([spectrum])),
        Axis("density of eigenvalues", log=True, limits=(floor, top)),
        title,
    )


def eigenvalue_limits(spectra: Sequence["MatrixSpectrum"]) -> tuple[float, float]:
    """Return the ends of an axis that shows every density and every certified eigenvalue."""
    shown: list[float] = []
    for spectrum in spectra:
        if is_zero(spectrum.density):
            shown.append(0.0)
            continue
        grid = numbers(spectrum.density.grid)
        shown += [grid[0], grid[-1]]
        for pairs in (spectrum.largest, spectrum.smallest):
            shown += [*numbers(pairs.values - pairs.residuals)]
            shown += [*numbers(pairs.values + pairs.residuals)]
    low, high = min(shown), max(shown)
    if low == high == 0:
        return -1.0, 1.0
    pad = 0.03 * ((high - low) or max(abs(high), 1e-12))
    return low - pad, high + pad


def hessian_spectrum(spectrum: "MatrixSpectrum", num_outliers: int | None = None) -> Picture:
    """Picture 1: one matrix on a linear axis."""
    return Picture(
        f"{spectrum.matrix.lower()}-spectrum",
        f"Spectrum of the {named(spectrum)}",
        [spectrum_panel(spectrum, num_outliers=num_outliers)],
        ends_table(spectrum),
    )


def log_spectrum(spectra: Sequence["MatrixSpectrum"]) -> Picture:
    """Picture 2: all matrices on one logarithmic axis of |λ|."""
    shown = [spectrum for spectrum in spectra if not is_zero(spectrum.log_density)]
    floor, top = heights([spectrum.log_density for spectrum in shown])
    marks: list[Mark] = []
    for spectrum in shown:
        marks += density_marks(spectrum.log_density, floor, coloured(spectrum), named(spectrum))
    for spectrum in reversed(shown):
        density = spectrum.log_density
        ends = ((spectrum.largest, "from the top"), (spectrum.smallest, "from the bottom"))
        for pairs, end in ends:
            x = [abs(value) + density.epsilon for value in numbers(pairs.values)]
            hover = [f"{named(spectrum)}\n{text}" for text in pair_hover(pairs, end)]
            level = [one_eigenvalue(density)] * len(x)
            if end == "from the top":
                marks.append(Points(x, level, coloured(spectrum), stem=floor, hover=hover))
            else:
                hover = [text.rsplit("\n", 1)[0] for text in hover]
                marks.append(Points(x, level, coloured(spectrum), hollow=True, hover=hover))
    panel = Panel(
        marks,
        Axis("|λ| + ε", log=True, limits=_log_limits(shown)),
        Axis("density of log |λ|", log=True, limits=(floor, top)),
    )
    title, table = "Spectra on a logarithmic axis", _decades(spectra)
    zero = [named(spectrum) for spectrum in spectra if spectrum not in shown]
    notes = tuple(f"{name} is zero and not on a logarithmic axis." for name in zero)
    return Picture("log-spectrum", title, [panel], table, notes)


def _log_limits(spectra: Sequence["MatrixSpectrum"]) -> tuple[float, float]:
    if not spectra:
        return 0.1, 1.0
    grids = [abscissae(spectrum.log_density) for spectrum in spectra]
    tops = [
        float(pairs.values.abs().max())
        for spectrum in spectra
        for pairs in (spectrum.largest, spectrum.smallest)
        if len(pairs)
    ]
    return min(grid[0] for grid in grids), 1.3 * max(*tops, *(grid[-1] for grid in grids))


def _decades(spectra: Sequence["MatrixSpectrum"]) -> Table:
    """Return the estimated number of eigenvalues in each decade of |λ|."""
    magnitudes: list[Tensor] = []
    for spectrum in spectra:
        density = spectrum.log_density
        magnitudes += [density.nodes[density.weights > 1e-14].abs().flatten(), density.spikes.abs()]
    values = torch.cat(magnitudes)
    values = values[values > 0]
    if not values.numel():
        return {"|λ| from": [], "to": []}
    lowest = max(values.min().log10().floor().item(), values.max().log10().floor().item() - 12)
    powers = range(int(lowest), int(values.max().log10().floor().item()) + 1)
    table: Table = {
        "|λ| from": [0.0, *(10.0**k for k in powers)],
        "to": [10.0**lowest, *(10.0 ** (k + 1) for k in powers)],
    }
    for spectrum in spectra:
        counts = [
            _count(spectrum.log_density, low, high)
            for low, high in zip(table["|λ| from"], table["to"], strict=True)
        ]
        table[f"{named(spectrum)}, number"] = [count for count, _ in counts]
        table[f"{named(spectrum)}, s.e."] = [stderr for _, stderr in counts]
    return table


def _count(density: SpectralDensity, low: float, high: float) -> tuple[float, float]:
    """Estimate how many eigenvalues have low ≤ |λ| < high."""
    sizes, spikes = density.nodes.abs(), density.spikes.abs()
    shares = (density.weights * ((sizes >= low) & (sizes < high))).sum(1)
    shares = shares * (density.size - density.spikes.numel())
    exact = int(((spikes >= low) & (spikes < high)).sum())
    stderr = float(shares.std() / math.sqrt(len(shares))) if len(shares) > 1 else math.nan
    return exact + float(shares.mean()), stderr


def side_by_side(spectra: Sequence["MatrixSpectrum"], num_outliers: int = 0) -> Picture:
    """Picture 3: each matrix in its own panel, on the same axes; outliers are those of H."""
    limits, levels = eigenvalue_limits(spectra), heights([s.density for s in spectra])
    panels = [
        spectrum_panel(
            spectrum,
            num_outliers=num_outliers if spectrum.matrix == "Hessian" else 0,
            limits=limits,
            levels=levels,
            title=named(spectrum),
        )
        for spectrum in spectra
    ]
    # The title says which matrix it is and the first picture has the legend.
    panels = [replace(panel, marks=[_bare(mark) for mark in panel.marks]) for panel in panels]
    return Picture(
        "three-matrices", "H, G and H − G", panels, _summary(spectra), linked=len(panels) > 1
    )


def _bare(mark: Mark) -> Mark:
    return replace(mark, label=None) if isinstance(mark, Line | Band | Points) else mark


def _summary(spectra: Sequence["MatrixSpectrum"]) -> Table:
    return {
        "matrix": [named(s) for s in spectra],
        "largest λ": [float(s.largest.values[0]) if len(s.largest) else None for s in spectra],
        "smallest λ": [float(s.smallest.values[-1]) if len(s.smallest) else None for s in spectra],
        "trace": [s.trace for s in spectra],
        "s.e. of trace": [s.trace_stderr for s in spectra],
        "‖·‖ Frobenius": [s.frobenius for s in spectra],
        "s.e. of norm": [s.frobenius_stderr for s in spectra],
    }


def positive_axis(values: Sequence[float], label: str) -> tuple[Axis, tuple[str, ...]]:
    """Return a logarithmic axis if anything is positive, and what it leaves out."""
    positive = sum(value > 0 for value in values)
    if positive == 0:
        return Axis(label), ()
    left = len(values) - positive
    note = f"{left} of {len(values)} eigenvalues are not positive and not on the logarithmic axis."
    return Axis(label, log=True), ((f"{note} They are among the numbers.",) if left else ())


def scree(outliers: "Outliers") -> Picture:
    """Picture 4: the largest eigenvalues by rank, with the number of classes and the widest gap."""
    values, residuals = numbers(outliers.values), numbers(outliers.residuals)
    axis, notes = positive_axis(values, "eigenvalue λ")
    hover = [
        f"rank {i}\nλ = {short(value, 6)}\nresidual {short(residual, 2)}"
        for i, (value, residual) in enumerate(zip(values, residuals, strict=True), 1)
    ]
    ranks = [float(i) for i in range(1, len(values) + 1)]
    cut = outliers.num_outliers
    marks: list[Mark] = [Line(ranks, values, "grid", hover=hover)] if len(values) > 1 else []
    for first, last, colour in ((0, cut, "outlier"), (cut, len(values), "hessian")):
        if last > first:
            span = slice(first, last)
            marks.append(
                Points(
                    ranks[span], values[span], colour, y_error=residuals[span], hover=hover[span]
                )
            )
    classes = outliers.num_classes
    if classes is not None:
        for count, text in ((classes - 1, "C − 1"), (classes, "C")):
            if 0 < count < len(values):
                marks.append(Rule(count + 0.5, f"{text} = {count}"))
    if 0 < cut < len(values) and values[cut - 1] > 0 and values[cut] > 0:
        middle = math.sqrt(values[cut - 1] * values[cut])
        sure = "" if outliers.is_certain else ", not certain"
        marks.append(Note(cut + 0.5, middle, f"gap ×{outliers.gap:.2f}{sure}", "outlier"))
    panel = Panel(marks, Axis("rank", whole=True), axis)
    table = {name: list(column) for name, column in outliers.columns().items()}
    return Picture("top-eigenvalues", "The largest eigenvalues", [panel], table, notes)


def overlap_picture(overlap: "GradientOverlap") -> Picture:
    """Picture 5: share of the gradient in the first j eigenvectors, and what chance would give."""
    shares, chance = numbers(overlap.shares), numbers(overlap.chance)
    ranks = [float(i) for i in range(1, len(shares) + 1)]
    hover = [
        f"first {i} eigenvectors\nshare {share:.4f}\nchance {short(luck, 3)}"
        for i, (share, luck) in enumerate(zip(shares, chance, strict=True), 1)
    ]
    marks: list[Mark] = [
        Line(ranks, shares, "hessian", "share of ‖g‖²", hover=hover),
        Line(ranks, chance, "muted", "a random direction", dashed=True, hover=hover),
        Points(ranks, shares, "hessian", hover=hover),
    ]
    axis = Axis("share of the gradient", limits=(-0.02, 1.05))
    panel = Panel(marks, Axis("number of eigenvectors", whole=True), axis)
    table = {name: list(column) for name, column in overlap.columns().items()}
    return Picture("gradient-overlap", "The gradient in the top eigenspaces", [panel], table)


def point_picture(point: "Point") -> Picture:
    """Draw loss, gradient norm and parameter norm as dots on one logarithmic axis."""
    quantities = {
        "loss": point.loss,
        "gradient norm": point.gradient_norm,
        "parameter norm": point.parameter_norm,
    }
    if point.accuracy is not None:
        quantities["accuracy"] = point.accuracy
    names = layer_axis(list(quantities))
    shown = [(i, value) for i, value in enumerate(quantities.values()) if value > 0]
    hover = [f"{list(quantities)[i]}\n{short(value, 6)}" for i, value in shown]
    dots = Points([v for _, v in shown], [float(i) for i, _ in shown], "hessian", hover=hover)
    panel = Panel([dots], Axis("value", log=bool(shown)), names, "at the present parameters")
    left = len(quantities) - len(shown)
    notes = (f"{left} values are not positive and not on the logarithmic axis.",) if left else ()
    return Picture("point", "Loss and gradient", [panel], table_of(point), notes, len(quantities))


def plan_picture(plan: "Plan", measured: Mapping[str, float] | None = None) -> Picture:
    """Picture 10: predicted and, where known, measured seconds of each stage."""
    names = [stage.name for stage in plan.stages]
    # A stage that was not planned still took its time.
    names += [name for name in measured or {} if name not in names]
    predicted = {stage.name: stage.seconds for stage in plan.stages}
    products = {stage.name: stage.num_products for stage in plan.stages}
    series: list[tuple[str, Mapping[str, float], str, bool]] = [
        ("predicted", predicted, "muted", True)
    ]
    if measured is not None:
        series.append(("measured", measured, "hessian", False))
    marks: list[Mark] = []
    for label, values, colour, hollow in series:
        picked = [(i, values[name]) for i, name in enumerate(names) if values.get(name, 0) > 0]
        hover = [f"{names[i]}\n{label} {seconds(value)}" for i, value in picked]
        x, y = [value for _, value in picked], [float(i) for i, _ in picked]
        if picked:
            marks.append(Points(x, y, colour, label, hollow=hollow, hover=hover))
    table: Table = {
        "stage": names,
        "products": [products.get(name) for name in names],
        "predicted seconds": [predicted.get(name) for name in names],
    }
    if measured is not None:
        table["measured seconds"] = [measured.get(name) for name in names]
    panel = Panel(marks, Axis("seconds", log=bool(marks)), layer_axis(names))
    return Picture("cost", "Predicted and measured time", [panel], table, rows=len(names))


def exact_traces_picture(record: "ExactTrace") -> Picture:
    """Draw the exact traces of the layers."""
    values = numbers(record.traces)
    hover = [f"{n}\ntrace {short(v, 6)}" for n, v in zip(record.layers, values, strict=True)]
    panel = dots(values, [0.0] * len(values), hover, "trace", layer_axis(record.layers))
    table = {name: list(column) for name, column in record.columns().items()}
    return Picture("exact-traces", "Exact traces of the layers", [panel], table, rows=len(values))
