"""What changed between runs? One row for each quantity, one column for each run."""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from eigenscape.analyses import (
    Analysis,
    GradientOverlap,
    LayerBlock,
    MatrixSpectrum,
    Outliers,
    Point,
    eigenspace_overlap,
    spectral_distance,
)
from eigenscape.errors import InvalidArgumentError, WrongTypeError
from eigenscape.linalg import SpectralDensity, density_marks, heights, is_zero
from eigenscape.records import (
    SERIES,
    Axis,
    Band,
    Columns,
    Line,
    Mark,
    Panel,
    Picture,
    Record,
    Status,
    table_of,
)
from eigenscape.runs import Run, read_run

_Part = TypeVar("_Part")
_MOST_VECTORS = 10  # of the eigenspaces that are compared where the number of classes is unknown


@dataclass(frozen=True, eq=False)
class Comparison(Record):
    """The same quantities of several analyses side by side.

    Attributes:
        names: A name for each run.
        quantities: What was compared.
        values: For each quantity one number a run; None where a run does not have it.
        densities: The Hessian's density on the logarithmic axis, one for each run; None where a
            run does not have it.
    """

    names: tuple[str, ...]
    quantities: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    densities: tuple[SpectralDensity | None, ...]

    def columns(self) -> Columns:
        """Return one row for each quantity, one column for each run."""
        table: dict[str, Iterable[object]] = {"quantity": self.quantities}
        for column, name in enumerate(self.names):
            table[name] = [row[column] for row in self.values]
        return table

    def pictures(self) -> tuple[Picture, ...]:
        """Return the densities of all runs on one pair of axes."""
        floor, top = heights([density for density in self.densities if density is not None])
        marks: list[Mark] = []
        for number, (name, density) in enumerate(zip(self.names, self.densities, strict=True)):
            if density is None or is_zero(density):
                continue
            colour, again = SERIES[number % len(SERIES)], number >= len(SERIES)
            for mark in density_marks(density, floor, colour, name):
                if isinstance(mark, Line):
                    marks.append(Line(mark.x, mark.y, colour, name, again, mark.hover, name))
                elif isinstance(mark, Band):
                    marks.append(mark)
        x = Axis("|λ| + ε", log=True, limits=None if marks else (0.1, 1.0))
        axes = (x, Axis("density of log |λ|", log=True, limits=(floor, top)))
        panel = Panel(marks, *axes)
        return (Picture("comparison", "Hessian spectra", [panel], table_of(self), pick=True),)


def compare(runs: Sequence[Run | Analysis | str | os.PathLike[str]]) -> Comparison:
    """Put several analyses side by side.

    Distances and overlaps are those to the first run. The distance between spectra is the
    Wasserstein-1 distance of log(|λ| + ε) under the two spectral measures, in natural logarithms:
    1 means that on average an eigenvalue moves by a factor e. The overlap of the top k eigenspaces
    is ‖UᵀV‖_F²/k (Wu Def. 4.1), where both networks have as many parameters and both runs kept
    their eigenvectors.

    Cost: no product.

    Args:
        runs: Two or more: folders, what `read_run` returns, or analyses themselves.

    Returns:
        The comparison; `print` it, or `plot` it for the densities.

    Raises:
        WrongTypeError: If one is no run of an analysis.
        InvalidArgumentError: If there are fewer than two.
        RunError: If a folder holds no readable run.
    """
    if isinstance(runs, str | os.PathLike | Run | Analysis) or not isinstance(runs, Iterable):
        raise WrongTypeError(
            "`compare(runs)` must be a list of two or more runs; got "
            f"{type(runs).__name__}. Write `compare([first, second])`."
        )
    pairs = [_read(run, number) for number, run in enumerate(runs)]
    if len(pairs) < 2:
        raise InvalidArgumentError(f"`compare(runs)` must hold at least 2 runs; got {len(pairs)}.")
    analyses = [analysis for _, analysis in pairs]
    rows = [*_scalars(analyses), *_layers(analyses), *_distances(analyses)]
    poor = sum(not analysis.status for analysis in analyses)
    text = f"{len(analyses)} runs, {len(rows)} quantities."
    if poor:
        text += f" {poor} of the runs did not converge everywhere, or lack parts that failed; "
        text += "see their own status."
    looks = sum(analysis.subsample is not None for analysis in analyses)
    if looks:
        text += f" {looks} of the runs looked at some of the samples only."
    return Comparison(
        status=Status(not poor, text),
        num_products=0,
        seed=0,
        names=_distinct([name for name, _ in pairs]),
        quantities=tuple(name for name, _ in rows),
        values=tuple(tuple(values) for _, values in rows),
        densities=tuple(None if a.hessian is None else a.hessian.log_density for a in analyses),
    )


def _read(run: object, number: int) -> tuple[str, Analysis]:
    if isinstance(run, str | os.PathLike):
        run = read_run(run)
    name = ""
    if isinstance(run, Run):
        name, run = Path(run.folder).resolve().name, run.record
    if not isinstance(run, Analysis):
        raise WrongTypeError(
            f"`compare(runs)[{number}]` must be a run of an analysis; got {type(run).__name__}. "
            "Analyse each network first: `es.analyze(risk).save(folder)`."
        )
    return name or run.title or f"run {number + 1}", run


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    """Number the names that stand more than once, and leave "quantity" to the first column."""
    numbered: list[str] = []
    for number, name in enumerate(names, 1):
        clash = names.count(name) > 1 or name == "quantity"
        numbered.append(f"{name} ({number})" if clash else name)
    return tuple(numbered)


Row = tuple[str, list[float | None]]


def _scalars(analyses: Sequence[Analysis]) -> list[Row]:
    of_point: dict[str, Callable[[Point], float | None]] = {
        "loss": lambda p: p.loss,
        "accuracy": lambda p: p.accuracy,
        "gradient norm": lambda p: p.gradient_norm,
        "parameters": lambda p: float(p.num_parameters),
    }
    of_hessian: dict[str, Callable[[MatrixSpectrum], float | None]] = {
        "largest eigenvalue λ₁": lambda H: _first(H.largest.values),
        "its residual": lambda H: _first(H.largest.residuals),
        "most negative eigenvalue": lambda H: _last(H.smallest.values),
        "trace": lambda H: H.trace,
        "standard error of the trace": lambda H: H.trace_stderr,
        "Frobenius norm": lambda H: H.frobenius,
        "standard error of the norm": lambda H: H.frobenius_stderr,
    }
    of_outliers: dict[str, Callable[[Outliers], float | None]] = {
        "outliers": lambda outliers: float(outliers.num_outliers)
    }
    of_overlap: dict[str, Callable[[GradientOverlap], float | None]] = {
        "share of the gradient in the top eigenvectors": lambda overlap: _last(overlap.shares)
    }
    return [
        *_rows([a.point for a in analyses], of_point),
        *_rows([a.hessian for a in analyses], of_hessian),
        *_rows([a.outliers for a in analyses], of_outliers),
        *_rows([a.gradient_overlap for a in analyses], of_overlap),
    ]


def _rows(
    records: Sequence[_Part | None], measures: Mapping[str, Callable[[_Part], float | None]]
) -> list[Row]:
    """Return a row for each measure; None where a run lacks the part, or nobody knows."""
    return [
        (name, [None if record is None else _known(measure(record)) for record in records])
        for name, measure in measures.items()
    ]


def _layers(analyses: Sequence[Analysis]) -> list[Row]:
    """Return each layer's top eigenvalue, for layers that all runs call by the same name."""
    tables: list[dict[str, LayerBlock]] = [
        {} if a.layers is None else {row.name: row for row in a.layers.layers} for a in analyses
    ]
    shared = [name for name in tables[0] if all(name in table for table in tables)]
    return [
        (f"λ₁ of layer {name}", [_first(table[name].values) for table in tables]) for name in shared
    ]


def _distances(analyses: Sequence[Analysis]) -> list[Row]:
    """Return how far the Hessians are from the first run's, where that has one."""
    spectra, here = [a.hessian for a in analyses], analyses[0].point
    first = spectra[0]
    if first is None:
        return []
    moved = [
        None if H is None else spectral_distance(first.log_density, H.log_density) for H in spectra
    ]
    rows: list[Row] = [("distance of log |λ| to the first run", moved)]
    counts = [H.largest.vectors.shape[1] for H in spectra if H is not None]
    classes = None if here is None else here.num_classes
    k = min(*counts, classes or _MOST_VECTORS)
    if k > 0:
        name = f"overlap of the top {k} eigenvectors with the first run"
        rows.append((name, [None if H is None else _overlap(first, H, k) for H in spectra]))
    return rows


def _overlap(first: MatrixSpectrum, second: MatrixSpectrum, k: int) -> float | None:
    U, V = (H.largest.vectors[:, :k] for H in (first, second))
    return float(eigenspace_overlap(U, V).overlaps[-1]) if U.shape[0] == V.shape[0] else None


def _first(values: Tensor) -> float | None:
    return float(values[0]) if values.numel() else None


def _last(values: Tensor) -> float | None:
    return float(values[-1]) if values.numel() else None


def _known(value: float | None) -> float | None:
    """Return the number; None for NaN, which here means that nobody knows."""
    return None if value is None or math.isnan(value) else value
