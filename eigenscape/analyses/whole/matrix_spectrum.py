"""The spectrum of one curvature matrix: both ends, the density between them, trace and norm.

The ends are found first and taken out, so that Lanczos quadrature resolves the bulk; its first two
moments, with the ends put back, are trace and squared Frobenius norm at no further product.
"""

import dataclasses
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from eigenscape.analyses.whole._spectrum_pictures import hessian_spectrum, log_spectrum
from eigenscape.analyses.whole._stages import kept
from eigenscape.errors import require_count
from eigenscape.linalg import Kernel, SpectralDensity, eigsh, spectral_density
from eigenscape.operator import LinearOperator
from eigenscape.records import (
    Checkpoint,
    Columns,
    EigenPairs,
    Picture,
    Progress,
    ProgressCallback,
    Record,
    Status,
)

# On the logarithmic axis nodes near 0 lie up to a factor of 4 apart (they grow like squares), so
# a kernel as narrow as the linear resolution would draw each as a peak of its own.
_LOG_WIDTH = 0.3


@dataclass(frozen=True, eq=False)
class MatrixSpectrum(Record):
    """What a few hundred products tell about a symmetric matrix.

    Attributes:
        matrix: Its name: "Hessian", "Gauss-Newton" or "residual".
        size: Its size n.
        largest: The largest eigenvalues, descending, with eigenvectors and residuals.
        smallest: The smallest ones, the very smallest last; none where they were not asked for.
        density: Density of the eigenvalues on a linear axis; certified ends are its spikes.
        log_density: The same on the axis log(|λ| + ε), with ε the distance of Lanczos nodes near 0:
            what is smaller cannot be told apart, and stands as one lump at the left end.
        trace: Sum of the eigenvalues.
        trace_stderr: Its standard error.
        frobenius: Frobenius norm.
        frobenius_stderr: Its standard error.
        seconds: Wall time it took.
    """

    matrix: str
    size: int
    largest: EigenPairs
    smallest: EigenPairs
    density: SpectralDensity
    log_density: SpectralDensity
    trace: float
    trace_stderr: float
    frobenius: float
    frobenius_stderr: float
    seconds: float

    def columns(self) -> Columns:
        """Return both ends of the spectrum: end, rank, eigenvalue and residual."""
        ends = {"largest": self.largest, "smallest": self.smallest}
        rows = [
            (end, i + 1, float(pairs.values[i]), float(pairs.residuals[i]))
            for end, pairs in ends.items()
            for i in range(len(pairs))
        ]
        names = ("end", "rank", "eigenvalue", "residual")
        return {name: [row[i] for row in rows] for i, name in enumerate(names)}

    def pictures(self) -> tuple[Picture, ...]:
        """Return its pictures."""
        return (hessian_spectrum(self), log_spectrum([self]))


def matrix_spectrum(
    operator: LinearOperator,
    name: str,
    *,
    num_pairs: int = 16,
    num_smallest: int = 2,
    num_steps: int = 80,
    num_probes: int = 4,
    tolerance: float = 1e-3,
    max_products: int | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: ProgressCallback | None = None,
) -> MatrixSpectrum:
    """Find both ends of a spectrum, its density, trace and Frobenius norm.

    Cost: about 4 products per eigenpair, and `num_steps · num_probes` for the density.

    Args:
        operator: Symmetric operator A.
        name: What to call it.
        num_pairs: Largest eigenpairs; at most half of n is taken.
        num_smallest: Smallest eigenpairs; 0 for a matrix that is known to be positive
            semidefinite.
        num_steps: Lanczos steps per probe.
        num_probes: Probes; with one there are no standard errors.
        tolerance: Bound on residuals, as a fraction of the eigenvalue; ten times that for the
            smallest, which usually lie at the edge of a bulk.
        max_products: Most products for one end; see `eigsh`.
        seed: Fixes starting vectors and probes.
        checkpoint: Folder to save to and to resume from.
        progress: Called after each step.

    Returns:
        The record. If some pairs did not converge, it holds them with their true residuals, and
        the status says so.

    Examples:
        >>> from eigenscape.operator import Dense
        >>> A = Dense(torch.diag(torch.linspace(-1.0, 3.0, 60, dtype=torch.float64)))
        >>> s = matrix_spectrum(A, "ramp", num_pairs=3, num_steps=50)
        >>> round(float(s.largest.values[0]), 6), round(float(s.smallest.values[-1]), 6)
        (3.0, -1.0)
        >>> abs(s.trace - 60.0) <= 4 * s.trace_stderr
        True
    """
    started = time.monotonic()
    n = operator.space.size
    require_count(num_smallest, "matrix_spectrum(num_smallest=...)", at_least=0)
    wanted = {"largest": min(num_pairs, max(1, n // 2)), "smallest": min(num_smallest, n // 2)}
    folder = None if checkpoint is None else Path(checkpoint)
    if folder is not None:
        key = {"matrix": name, "size": n, "dtype": str(operator.dtype), "seed": seed, **wanted}
        key |= {"tolerance": tolerance, "num_steps": num_steps, "num_probes": num_probes}
        key |= {} if max_products is None else {"max_products": max_products}
        Checkpoint(folder, key)
    costs = [eigsh_products(wanted["largest"]), edge_products(wanted["smallest"])]
    costs.append(min(num_steps, n) * num_probes)
    ends = {
        which: _end(
            operator,
            which,
            wanted[which],
            tolerance=tolerance * slack,
            max_products=max_products,
            seed=seed,
            file=None if folder is None else folder / which,
            progress=_part(progress, f"{name}: {which} eigenvalues", costs, number),
        )
        for number, (which, slack) in enumerate((("largest", 1.0), ("smallest", 10.0)))
    }
    both = dataclasses.replace(
        ends["largest"],
        values=torch.cat([pairs.values for pairs in ends.values()]),
        vectors=torch.cat([p.vectors for p in ends.values()], dim=1).to(operator.device),
        residuals=torch.cat([pairs.residuals for pairs in ends.values()]),
    )
    density = spectral_density(
        operator,
        num_steps=min(num_steps, n),
        num_probes=num_probes,
        outliers=both if len(both) < n else None,
        seed=seed + 1,
        checkpoint=None if folder is None else folder / "density.steps",
        progress=_part(progress, f"{name}: density", costs, 2),
    )
    trace, trace_stderr, frobenius, frobenius_stderr = _sums(density, both)
    problems = [str(pairs.status) for pairs in ends.values() if not pairs.status]
    return MatrixSpectrum(
        status=Status(not problems, " ".join(problems) or "Both ends are certified."),
        num_products=sum(pairs.num_products for pairs in ends.values()) + density.num_products,
        seed=seed,
        matrix=name,
        size=n,
        largest=ends["largest"],
        smallest=ends["smallest"],
        density=density,
        log_density=density.redraw(
            scale="log", epsilon=_spacing_at_zero(density), kernel=Kernel(width=_LOG_WIDTH)
        ),
        trace=trace,
        trace_stderr=trace_stderr,
        frobenius=frobenius,
        frobenius_stderr=frobenius_stderr,
        seconds=time.monotonic() - started,
    )


def _sums(density: SpectralDensity, ends: EigenPairs) -> tuple[float, float, float, float]:
    """Return trace and Frobenius norm, each with its standard error."""
    n = density.size
    if len(ends) == n:  # nothing is left to estimate
        return float(ends.values.sum()), 0.0, float(ends.values.norm()), 0.0
    trace, trace_stderr = (n * value for value in density.moment(1))
    square, square_stderr = (n * value for value in density.moment(2))
    norm = math.sqrt(max(square, 0.0))
    return trace, trace_stderr, norm, square_stderr / (2 * norm) if norm > 0 else 0.0


def _spacing_at_zero(density: SpectralDensity) -> float | None:
    """Return how far apart m Gauss nodes on [a, b] lie near 0; None for the zero matrix.

    They crowd together like those of Chebyshev: π √((x − a)(b − x))/m inside, and about
    π² (b − a)/(4m²) at an end.
    """
    (a, b), m = density.edges, density.nodes.shape[1]
    inside = math.pi * math.sqrt(max(-a, 0.0) * max(b, 0.0)) / m
    at_end = math.pi**2 * (b - a) / (4 * m**2)
    return max(inside, at_end, density.unit * max(abs(a), abs(b))) or None


def eigsh_products(num_pairs: int) -> int:
    """Predict the products that separated eigenpairs take, certificates included."""
    return 10 + 4 * num_pairs if num_pairs else 0


def edge_products(num_pairs: int) -> int:
    """Predict the products for eigenpairs at the edge of a bulk, where they lie close together."""
    return 60 + 20 * num_pairs if num_pairs else 0


def _end(
    operator: LinearOperator,
    which: str,
    num_pairs: int,
    *,
    tolerance: float,
    max_products: int | None,
    seed: int,
    file: Path | None,
    progress: ProgressCallback | None,
) -> EigenPairs:
    """Find one end of the spectrum, or no pairs where none are asked for; in host memory."""
    if num_pairs == 0:
        return EigenPairs(
            status=Status(True, "Not asked for."),
            num_products=0,
            seed=seed,
            values=torch.zeros(0, dtype=torch.float64),
            vectors=torch.zeros(operator.space.size, 0, dtype=operator.dtype),
            residuals=torch.zeros(0, dtype=torch.float64),
            which=which,
            tolerance=tolerance,
            shapes=dict(operator.space.shapes),
        )

    def compute() -> EigenPairs:
        return eigsh(
            operator,
            num_pairs=num_pairs,
            which=which,
            tolerance=tolerance,
            max_products=max_products,
            seed=seed,
            checkpoint=None if file is None else file.with_suffix(".steps"),
            progress=progress,
        )

    return kept(file, compute)


def _part(
    progress: ProgressCallback | None, task: str, costs: list[int], number: int
) -> ProgressCallback | None:
    """Report one part's products as products of the whole."""
    if progress is None:
        return None
    call, before = progress, sum(costs[:number])

    def report(step: Progress) -> None:
        done = before + min(step.done, costs[number])
        call(dataclasses.replace(step, task=task, done=done, total=sum(costs)))

    return report
