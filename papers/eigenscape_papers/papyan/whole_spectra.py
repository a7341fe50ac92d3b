"""Spectra of whole networks: exact where the matrix can be formed, else outliers and Lanczos.

A spectrum is kept as outliers and as nodes that stand for so many eigenvalues each: one each where
all eigenvalues are known. Curves are sums of Gaussians over the nodes, so both kinds look alike.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.analyses import exact_trace
from eigenscape.curvature import ClassGradients, GaussNewton, Hessian, Residual
from eigenscape.errors import UnsupportedModelError, WrongTypeError
from eigenscape.linalg import eigsh, spectral_density, trace
from eigenscape.operator import Dense, LinearOperator
from eigenscape.records import Line, Mark, Points, ProgressCallback, storable
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape.structure import ClassSpan, class_span
from eigenscape_papers.datasets import DataSet
from eigenscape_papers.runner import Networks, Workshop, rounded

DENSE = 3000  # parameters up to which a matrix is formed
# Gradients, of all samples and classes, up to which all eigenvalues of G are found.
_MOST_ROWS = {"cpu": 2048, "cuda": 16384}
LONG = 10**6  # parameters from which one probe says as much as four do of fewer
NUM_STEPS, NUM_PROBES = 256, 4
LONG_STEPS = 128  # as in App. D.2 for densities along λ
# Of long vectors in float32, whose rounding may keep residuals above what is asked of others. What
# an eigenvalue is off by goes with the square of its residual, so a picture shows neither.
_LONG_PRODUCTS = 400
TOLERANCE, _LONG_TOLERANCE = 1e-4, 1e-3
_POINTS = 400
_BULK_WIDTH = 0.15  # decades: wider than the distance of neighbours, narrower than a bulk


@storable
@dataclass(frozen=True, eq=False)
class Spectrum:
    """The eigenvalues of a symmetric matrix, or what is known of them.

    Attributes:
        top: The largest (k,), descending.
        nodes: Places of all others.
        counts: How many eigenvalues each node stands for.
        lowest: The smallest eigenvalue, or a bound below it.
        size: n.
        num_products: Products spent.
    """

    top: Tensor
    nodes: Tensor
    counts: Tensor
    lowest: float
    size: int
    num_products: int

    def bulk_mean(self, skip: int = 0) -> float:
        """Return the mean |λ| of all eigenvalues but the top ones.

        Args:
            skip: Leave out so many more, the largest. A node may be left out in part.

        Returns:
            The mean.
        """
        nodes, order = self.nodes.sort(descending=True)
        counts = self.counts[order]
        counts = torch.minimum(counts, (counts.cumsum(0) - skip).clamp_min(0.0))
        return float((counts * nodes.abs()).sum() / counts.sum())

    def bulk_rms(self) -> float:
        """Return the root of the mean λ² of all eigenvalues but the top ones."""
        return math.sqrt(float((self.counts * self.nodes.square()).sum() / self.counts.sum()))

    def marks(self, colour: str, label: str | None, width: float) -> list[Mark]:
        """Return the share of eigenvalues per unit of λ, and the top ones as stems.

        Args:
            colour: Of all.
            label: Of the curve.
            width: σ of the Gaussians.

        Returns:
            A curve, and points at the height that one eigenvalue has.
        """
        single = self._single(width)
        ends = float(self.nodes.min()) - 4 * width, float(self.nodes.max()) + 4 * width
        return [
            self.line(colour, label, width, ends),
            Points(rounded(self.top), [single] * len(self.top), colour, stem=1e-2 * single),
        ]

    def line(self, colour: str, label: str | None, width: float, ends: tuple[float, float]) -> Line:
        """Return the share of eigenvalues per unit of λ between two ends, without the top ones."""
        grid = torch.linspace(*ends, _POINTS, dtype=torch.float64)
        y = _smooth(grid, self.nodes, self.counts, width) / self.size
        y = torch.where(y > 1e-2 * self._single(width), y, 0.0)  # zeros leave gaps
        return Line(rounded(grid, 5), rounded(y, 4), colour, label)

    def _single(self, width: float) -> float:
        """Return the height of one eigenvalue."""
        return 1.0 / (self.size * width * math.sqrt(2.0 * math.pi))

    def log_curve(self, low: float, high: float, width: float = 0.07) -> tuple[Tensor, Tensor]:
        """Return how many eigenvalues there are per decade of |λ|, top ones included.

        Args:
            low: Smallest |λ|.
            high: Largest |λ|.
            width: σ of the Gaussians, in decades.

        Returns:
            Places λ (not their logarithms) and counts.
        """
        nodes = torch.cat([self.nodes, self.top]).abs().clamp_min(1e-300).log10()
        counts = torch.cat([self.counts, torch.ones_like(self.top)])
        grid = torch.linspace(math.log10(low), math.log10(high), _POINTS, dtype=torch.float64)
        return 10.0**grid, _smooth(grid, nodes, counts, width)

    def num_bulks(self) -> int:
        """Count the separate bulks along log λ, down to 10⁻⁵ of the largest eigenvalue.

        A bulk ends where its density has fallen to half of its peak, and another begins where it
        has doubled again. Less than two eigenvalues at one place are no bulk.

        Returns:
            The number.
        """
        high = float(self.top[0])
        _, y = self.log_curve(1e-5 * high, 10.0 * high, _BULK_WIDTH)
        least = 2.0 / (_BULK_WIDTH * math.sqrt(2.0 * math.pi))
        count, peak, valley = 0, 0.0, 0.0  # what is cut off on the left counts
        for height in y.tolist():
            if peak == 0.0:  # in a valley
                valley = min(valley, height)
                if height >= max(least, 2.0 * valley):
                    count, peak = count + 1, height
            elif height < 0.5 * peak:
                peak, valley = 0.0, height
            else:
                peak = max(peak, height)
        return count


def _smooth(grid: Tensor, nodes: Tensor, counts: Tensor, width: float) -> Tensor:
    bumps = torch.exp(-0.5 * ((grid[:, None] - nodes) / width).square()) @ counts
    return bumps / (width * math.sqrt(2.0 * math.pi))


def formed(operator: LinearOperator) -> LinearOperator:
    """Return the matrix itself where it is small enough, symmetric to the last bit."""
    if isinstance(operator, Dense) or operator.space.size > DENSE:
        return operator
    full = operator.to_dense().double()
    return Dense(0.5 * (full + full.T))


def take_spectrum(
    operator: LinearOperator, num_top: int, *, progress: ProgressCallback | None = None
) -> Spectrum:
    """Measure a spectrum.

    Args:
        operator: Symmetric; all eigenvalues of a `Dense` are computed.
        num_top: Outliers to keep apart.
        progress: Called after each step of what is not a `Dense`.

    Returns:
        The spectrum.
    """
    n = operator.space.size
    k = min(num_top, n - 1)
    if isinstance(operator, Dense):
        values = torch.linalg.eigvalsh(operator.to_dense()).flip(0).cpu()
        ones = torch.ones(n - k, dtype=torch.float64)
        return Spectrum(values[:k], values[k:], ones, float(values[-1]), n, 0)
    is_long, limit = n >= LONG, most_products(n, k)
    tolerance = _LONG_TOLERANCE if is_long else TOLERANCE
    pairs = eigsh(operator, num_pairs=k, tolerance=tolerance, max_products=limit, progress=progress)
    steps, probes = (LONG_STEPS, 1) if is_long else (NUM_STEPS, NUM_PROBES)
    density = spectral_density(
        operator, num_steps=steps, num_probes=probes, outliers=pairs, progress=progress
    )
    return Spectrum(
        pairs.values.cpu().double(),
        density.nodes.flatten(),
        density.weights.flatten() * (n - k) / len(density.nodes),
        density.edges[0],
        n,
        pairs.num_products + density.num_products,
    )


def most_products(size: int, num_pairs: int) -> int | None:
    """Return how many products eigenpairs of long vectors may take; None for others."""
    # With many classes it may be more: two a pair are the least that `eigsh` takes.
    return max(_LONG_PRODUCTS, 10 * num_pairs) if size >= LONG else None


def hessian_parts(
    risk: EmpiricalRisk, G: LinearOperator | None = None
) -> dict[str, LinearOperator]:
    """Return H, G, where it is not there yet, and E of a risk, formed where they are small."""
    G = formed(GaussNewton(risk) if G is None else G)
    if risk.space.size > DENSE:
        return {"H": Hessian(risk), "G": G, "E": Residual(risk)}
    H = formed(Hessian(risk))
    return {"H": H, "G": G, "E": Dense(H.to_dense() - G.to_dense())}


def gradient_parts(
    gradients: ClassGradients, G: LinearOperator | None = None
) -> dict[str, LinearOperator]:
    """Return G, where it is not there yet, and its parts by name, formed where they are small."""
    low = ("class", "cross", "same", "global")
    matrices = {name: formed(gradients.part(name)) for name in low}
    G = formed(gradients.total if G is None else G)
    if not isinstance(G, Dense):
        return {"G": G, **matrices, "within": gradients.part("within")}
    taken = sum(
        (matrices[name].to_dense() for name in low[:3]), start=torch.zeros_like(G.to_dense())
    )
    return {"G": G, **matrices, "within": Dense(G.to_dense() - taken)}


def span_of(
    risk: EmpiricalRisk, num_classes: int, progress: ProgressCallback | None = None, share: int = 1
) -> ClassSpan | None:
    """Return G and its parts in the span of the gradients, of a large network on few samples.

    Args:
        risk: The risk.
        num_classes: C.
        progress: Told how many layers are done.
        share: Take so many times fewer rows for few, where several networks are looked at.

    Returns:
        All eigenvalues; None for small networks, whose matrices are formed, for many samples, and
        for layers that `class_span` does not cover.
    """
    most = _MOST_ROWS["cuda" if risk.device.type == "cuda" else "cpu"] // share
    if risk.space.size <= DENSE or risk.num_samples * num_classes > most:
        return None
    try:
        return class_span(risk, progress=progress)
    except (UnsupportedModelError, WrongTypeError):
        return None


def span_parts(span: ClassSpan) -> dict[str, LinearOperator]:
    """Return what `gradient_parts` does, in the span, and "between"."""
    names = ("G", "class", "cross", "same", "global", "within", "between")
    return {name: span.part(name) for name in names}


def seen_risk(networks: Networks, seed: int, samples: int | None = None) -> EmpiricalRisk:
    """Return the risk on the training data, or on so many of them."""
    return EmpiricalRisk(networks.model(seed), CrossEntropy(), some_of(networks.data, samples))


def held_out_risk(
    workshop: Workshop, networks: Networks, seed: int, samples: int | None = None
) -> EmpiricalRisk | None:
    """Return the same on the test data; None for a user's own network without any."""
    if networks.cast.own is not None and networks.cast.own.test is None:
        return None
    data = some_of(networks.cast.load(split="test", folder=workshop.data_dir), samples)
    data = data.to(workshop.device, networks.dtype)
    return EmpiricalRisk(networks.model(seed), CrossEntropy(), data)


def some_of(data: DataSet, samples: int | None) -> DataSet:
    """Return so many samples at random, since a user's may be sorted by class; or all."""
    if samples is None or samples >= data.num_samples:
        return data
    return data.take(samples, seed=0)


def total_trace(risk: EmpiricalRisk) -> float:
    """Return the trace of G: exactly where the layers allow it, else by probes."""
    try:
        return exact_trace(risk).trace
    except (UnsupportedModelError, WrongTypeError):
        small = risk.space.size <= DENSE  # as many products as parameters are exact
        return trace(GaussNewton(risk), num_products=risk.space.size if small else 64).value
