"""Does one Kronecker product for each class have a layer's spectrum better than one for all?

Letters: G (q × q) the layer's Gauss-Newton matrix, λ its eigenvalues, μ those of an approximation,
both descending; C classes.
"""

import time
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.analyses import layer_spectrum
from eigenscape.curvature import (
    ClassKronecker,
    GaussNewton,
    KroneckerHessian,
    LayerHessian,
    matrix_layers,
)
from eigenscape.device import full_precision
from eigenscape.errors import (
    ConvergenceWarning,
    SubstitutionWarning,
    require_count,
    require_positive,
)
from eigenscape.linalg import eigsh
from eigenscape.operator import LinearOperator
from eigenscape.records import Columns, Record, Status
from eigenscape.risk import EmpiricalRisk, Layer


@dataclass(frozen=True, eq=False)
class KroneckerSpectra(Record):
    """The largest eigenvalues of a layer's Gauss-Newton matrix, of KFAC and of CFAC.

    A distance is the Wasserstein-1 distance between two spectra on the axis log(λ + ε). Entry j − 1
    compares the j largest eigenvalues of both, which is the mean of |log(λ_i + ε) − log(μ_i + ε)|
    over i ≤ j. Which part is compared matters: the first C are Papyan's outliers, C² reach to the
    end of his mini-bulk, and of a whole spectrum most are small or zero, where ε decides.

    Attributes:
        layer: The layer's name.
        num_parameters: q.
        num_classes: Classes that occur.
        method: "exact" for all eigenvalues of formed matrices, "pairs" for the largest by products.
        epsilon: ε.
        values: The largest eigenvalues of G (k,), descending, float64.
        kronecker: Those of `KroneckerHessian` (k,).
        class_kronecker: Those of `ClassKronecker` (k,).
        residuals: Of `values` (k,); 0 where they are exact.
        class_residuals: Of `class_kronecker` (k,); 0 where they are exact.
        kronecker_distances: Distance (k,) of KFAC from G in the j largest, j = 1, …, k.
        class_distances: Distance (k,) of CFAC from G.
        seconds: Wall time it took.
    """

    layer: str
    num_parameters: int
    num_classes: int
    method: str
    epsilon: float
    values: Tensor
    kronecker: Tensor
    class_kronecker: Tensor
    residuals: Tensor
    class_residuals: Tensor
    kronecker_distances: Tensor
    class_distances: Tensor
    seconds: float

    def ratio(self, num_values: int) -> float:
        """Return CFAC's distance over KFAC's in the j largest eigenvalues: below 1, it is closer.

        Args:
            num_values: j.

        Returns:
            The ratio; NaN where both distances are zero.
        """
        j = require_count(num_values, "ratio(num_values)", at_most=len(self.values)) - 1
        return float(self.class_distances[j] / self.kronecker_distances[j])

    def columns(self) -> Columns:
        """Return one row for each eigenvalue."""
        return {
            "rank": range(1, len(self.values) + 1),
            "eigenvalue": self.values.tolist(),
            "KFAC": self.kronecker.tolist(),
            "CFAC": self.class_kronecker.tolist(),
            "KFAC distance": self.kronecker_distances.tolist(),
            "CFAC distance": self.class_distances.tolist(),
        }


@full_precision()
def kronecker_spectra(
    risk: EmpiricalRisk,
    layer: str,
    *,
    num_values: int | None = None,
    floor: float = 1e-6,
    max_exact: int = 4096,
    tolerance: float = 1e-4,
    seed: int = 0,
) -> KroneckerSpectra:
    """Compare a layer's Gauss-Newton spectrum with those of KFAC and CFAC (Papyan Figs 11, 12).

    Papyan finds that CFAC's outliers and mini-bulks lie where G's do, and KFAC's elsewhere, in deep
    layers above all; the distances make that a number for every part of the spectrum. Eigenvalues
    are compared by rank alone: equal spectra need not have equal eigenvectors.

    Cost: forming CFAC, and where q ≤ `max_exact` two eigenproblems of size q (for G the inner
    products of its N·C rows where that is cheaper); else about 4 products per value with G and with
    CFAC each.

    Args:
        risk: As for `ClassKronecker`.
        layer: As for `ClassKronecker`.
        num_values: Eigenvalues to compare, k. By default all where they are exact, else C².
        floor: ε as a part of the largest eigenvalue of G. Smaller ones count as equal.
        max_exact: The largest q for which matrices are formed.
        tolerance: Asked of eigenpairs, where there are some.
        seed: Fixes starting vectors and drawn targets.

    Returns:
        Eigenvalues, and distances for each number of them.

    Raises:
        UnknownNameError: If there is no such layer.
        UnsupportedModelError: If layer, loss or output do not fit.

    Examples:
        Inputs 0 and 1 with the curvatures ½ and 3/8: only the second counts, G has the eigenvalue
        ½ · 3/8. CFAC sees that; KFAC multiplies means, ½ · 7/16, and is off by log(7/6).

        >>> from eigenscape.risk.losses import CrossEntropy
        >>> model = torch.nn.Sequential(torch.nn.Linear(1, 2, bias=False)).double()
        >>> model[0].weight.data = torch.tensor([[1.0], [3.0]]).double().log()
        >>> data = (torch.tensor([[0.0], [1.0]]).double(), torch.tensor([0, 1]))
        >>> found = kronecker_spectra(EmpiricalRisk(model, CrossEntropy(), data), "0")
        >>> round(float(found.values[0]), 6), round(float(found.kronecker[0]), 6)
        (0.1875, 0.21875)
        >>> round(float(found.kronecker_distances[0]), 4), round(float(found.class_distances[0]), 4)
        (0.1542, 0.0)

    References:
        Papyan §7.10, §7.11.
    """
    started = time.monotonic()
    require_positive(floor, "kronecker_spectra(floor=...)")
    require_count(max_exact, "kronecker_spectra(max_exact=...)")
    (chosen,) = matrix_layers(risk, [layer], f"kronecker_spectra(risk, {layer!r})")
    classes = ClassKronecker(risk, layer, seed=seed)
    q, C = classes.space.size, len(classes.classes)
    is_exact = q <= max_exact
    usual = q if is_exact else min(C * C, q)
    k = require_count(
        usual if num_values is None else num_values,
        "kronecker_spectra(num_values=...)",
        at_most=q,
    )
    if is_exact:
        ours, theirs = _exact(_layer_values(risk, chosen, layer)), _exact(_class_values(classes))
    else:
        ours = _pairs(_layer_operator(risk, chosen, layer), k, tolerance, seed)
        theirs = _pairs(classes, k, tolerance, seed)
    values, mixed, single = (
        eigenvalues[:k].clamp_min(0.0)  # negative ones are rounding
        for eigenvalues in (ours.values, _kronecker_values(risk, layer, k, seed), theirs.values)
    )
    epsilon = floor * max(float(values[0]), torch.finfo(torch.float64).tiny)
    good = ours.converged and theirs.converged
    text = f"{k} of {q} eigenvalues, {'all exact' if is_exact else 'by products'}."
    return KroneckerSpectra(
        status=Status(good, text if good else f"{text} Some did not converge."),
        num_products=ours.num_products + theirs.num_products,
        seed=seed,
        layer=layer,
        num_parameters=q,
        num_classes=C,
        method="exact" if is_exact else "pairs",
        epsilon=epsilon,
        values=values,
        kronecker=mixed,
        class_kronecker=single,
        residuals=ours.residuals[:k],
        class_residuals=theirs.residuals[:k],
        kronecker_distances=_distances(values, mixed, epsilon),
        class_distances=_distances(values, single, epsilon),
        seconds=time.monotonic() - started,
    )


@dataclass(frozen=True)
class _Found:
    """Eigenvalues, descending, on the CPU, with what they cost."""

    values: Tensor
    residuals: Tensor
    num_products: int = 0
    converged: bool = True


def _exact(values: Tensor) -> _Found:
    return _Found(values, torch.zeros_like(values))


def _pairs(operator: LinearOperator, k: int, tolerance: float, seed: int) -> _Found:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the record's status has it
        pairs = eigsh(operator, num_pairs=k, tolerance=tolerance, seed=seed)
    values, residuals = (t.double().cpu() for t in (pairs.values, pairs.residuals))
    return _Found(values, residuals, pairs.num_products, bool(pairs.status))


def _layer_operator(risk: EmpiricalRisk, chosen: Layer, layer: str) -> LinearOperator:
    """Return G: the layer's block where what follows it is piecewise linear, for it is cheaper."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SubstitutionWarning)  # then it is not used
        H = LayerHessian(risk, layer)
    if H.plan.candidate("factors").obstacle is None:
        return H
    return GaussNewton(risk.restricted(chosen.params))


def _layer_values(risk: EmpiricalRisk, chosen: Layer, layer: str) -> Tensor:
    """Return all eigenvalues of G."""
    G = _layer_operator(risk, chosen, layer)
    if isinstance(G, LayerHessian):
        return layer_spectrum(risk, layer).values
    dense = G.to_dense().double()
    return _eigenvalues((dense + dense.T) / 2)


def _class_values(K: ClassKronecker) -> Tensor:
    """Return all eigenvalues of CFAC; they do not depend on the order of the parameters."""
    total = torch.zeros(2 * (K.space.size,), dtype=torch.float64, device=K.device)
    for weight, left, right in zip(K.weights, K.output_factors, K.input_factors, strict=True):
        total += torch.kron(weight * left, right)
    return _eigenvalues(total)


def _eigenvalues(matrix: Tensor) -> Tensor:
    values: Tensor = torch.linalg.eigvalsh(matrix)
    return values.flip(0).cpu()


def _kronecker_values(risk: EmpiricalRisk, layer: str, k: int, seed: int) -> Tensor:
    """Return the largest eigenvalues of KFAC: products of those of its factors."""
    K = KroneckerHessian(risk, layer, seed=seed)
    left, right = (torch.linalg.eigvalsh(factor) for factor in (K.output_factor, K.input_factor))
    return torch.outer(left, right).flatten().topk(k).values.cpu()


# Of two lists of equal length the cheapest transport on a line pairs them by rank.
def _distances(first: Tensor, second: Tensor, epsilon: float) -> Tensor:
    """Return the Wasserstein-1 distances between the logarithms of the j largest, for all j."""
    gaps = ((first + epsilon).log() - (second + epsilon).log()).abs()
    return gaps.cumsum(0) / torch.arange(1.0, len(gaps) + 1, dtype=gaps.dtype)
