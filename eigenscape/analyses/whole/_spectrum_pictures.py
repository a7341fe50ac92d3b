"""Pictures of the spectra of whole matrices."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from eigenscape.analyses.whole._pictures import spent
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
    Table,
    numbers,
    pair_hover,
    short,
    table_of,
)

if TYPE_CHECKING:
    from eigenscape.analyses.whole.matrix_spectrum import MatrixSpectrum

_ROOM = 6.0  # above the highest curve, on a logarithmic axis
LETTERS = {"Hessian": "H", "Gauss-Newton": "G", "residual": "H − G"}
_COLOURS = {"Hessian": "hessian", "Gauss-Newton": "gauss_newton", "residual": "residual"}
_TERMS = {"Hessian": "hessian", "Gauss-Newton": "gauss-newton", "residual": "residual-matrix"}


def letter_of(spectrum: "MatrixSpectrum") -> str:
    """Return a matrix's letter, or its name where it has none."""
    return LETTERS.get(spectrum.matrix, spectrum.matrix)


def named(spectrum: "MatrixSpectrum") -> str:
    """Return a matrix's name with its letter."""
    name = spectrum.matrix
    return f"{name} {LETTERS[name]}" if name in LETTERS else name


def coloured(spectrum: "MatrixSpectrum") -> str:
    """Return the colour that a matrix has in every picture."""
    return _COLOURS.get(spectrum.matrix, "first")


def trust(spectra: Sequence["MatrixSpectrum"]) -> tuple[str, bool]:
    """Return how sure spectra are, in words, and whether all parts converged."""
    worst, poor, bands = [], [], []
    for spectrum in spectra:
        ends = [pairs for pairs in (spectrum.largest, spectrum.smallest) if len(pairs)]
        residual = max((float(pairs.residuals.max()) for pairs in ends), default=0.0)
        worst.append(f"{letter_of(spectrum)} {short(residual, 2)}")
        statuses = [spectrum.status, *(pairs.status for pairs in ends)]
        texts = dict.fromkeys(status.text for status in statuses if not status)
        poor += [f"{letter_of(spectrum)}: {text}" for text in texts]
        probes, steps = spectrum.density.nodes.shape
        bands.append(f"{probes} probe{'s' if probes > 1 else ''} of {steps} steps")
    text = f"Largest residual of the eigenpairs: {', '.join(worst)}. "
    text += f"Density from {'; '.join(dict.fromkeys(bands))}."
    return " ".join([*poor, text]), not poor


def _cost(spectra: Sequence["MatrixSpectrum"]) -> str:
    return spent(sum(s.num_products for s in spectra), sum(s.seconds for s in spectra))


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
    sure, converged = trust([spectrum])
    return Picture(
        f"{spectrum.matrix.lower()}-spectrum",
        f"Spectrum of the {named(spectrum)}",
        [spectrum_panel(spectrum, num_outliers=num_outliers)],
        table_of(spectrum),
        shows=f"How the {short(spectrum.size)} eigenvalues of {letter_of(spectrum)} are "
        "distributed. The curve is the bulk, drawn with a width of σ = "
        f"{short(spectrum.density.sigma, 2)}; its band is two standard errors. Stems are single "
        "eigenvalues, each with its certificate and as high as one eigenvalue counts. The vertical "
        "axis is logarithmic; on a linear one only the peak would be visible.",
        sure=sure,
        converged=converged,
        cost=_cost([spectrum]),
        terms=(_TERMS.get(spectrum.matrix, "hessian"), "density", "certificate"),
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
    zero = [named(spectrum) for spectrum in spectra if spectrum not in shown]
    sure, converged = trust(spectra)
    return Picture(
        "log-spectrum",
        "Spectra on a logarithmic axis",
        [panel],
        _decades(spectra),
        notes=tuple(f"{name} is zero and not on a logarithmic axis." for name in zero),
        shows="The same eigenvalues by magnitude, each density one of log |λ|, drawn with a width "
        f"of σ = {short(spectra[0].log_density.sigma, 2)}. Discs are the largest eigenvalues, "
        "circles the smallest. Eigenvalues below the resolution of the method form one peak at "
        "the left end of a curve, whose weight is right and whose position is not.",
        sure=sure,
        converged=converged,
        cost=f"no further product for {letter_of(spectra[0])}; {_cost(spectra)} for all of them",
        terms=("density", "gauss-newton", "residual-matrix"),
    )


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
    sure, converged = trust(spectra)
    return Picture(
        "three-matrices",
        "H, G and H − G",
        panels,
        _summary(spectra),
        linked=len(panels) > 1,
        shows="H is the sum of G, which the linearised network has, and of H − G, which the "
        "network's own curvature adds. On the same axes one sees which of the two makes the "
        "outliers, and which the negative eigenvalues. Zooming one panel zooms all.",
        sure=sure,
        converged=converged,
        cost=_cost(spectra),
        terms=("hessian", "gauss-newton", "residual-matrix"),
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
