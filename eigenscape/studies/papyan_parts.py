"""What a layer's features, backpropagated errors and weight are made of (Papyan §7).

Letters: h^l the features of hidden layer l (h⁰ the inputs), δ^l the errors at its output with every
label, H^l and Δ^l their second moments, W^l its weight; C classes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from eigenscape.analyses import (
    BackpropagatedErrors,
    ClassStructure,
    attribution,
    class_structure,
)
from eigenscape.operators import Dense

KINDS = ("features", "errors", "weights")


@dataclass(frozen=True, eq=False)
class Part:
    """What one layer's features, errors or weights are made of.

    Attributes:
        kind: One of KINDS.
        depth: l; 0 for the inputs.
        before: Eigenvalues of H^l or Δ^l, or singular values of W^l, descending.
        after: The same with the class part projected out.
        class_values: The C of the class part alone, descending; of weights, without the factor 1/η.
        bulk: The largest of the within part; of weights σ_{C+1}.
        mass: Share of the C outliers' mass that the knockout takes.
        null: The same for a random matrix with the spectrum of the class part.
        first: Share of the first outlier's mass that goes with the global means.
        cross_values: Eigenvalues of Δ_cross; of others none.
        cross: Share of the next outliers' mass that goes with Δ_cross; NaN of others.
    """

    kind: str
    depth: int
    before: Tensor
    after: Tensor
    class_values: Tensor
    bulk: float
    mass: float
    null: float
    first: float
    cross_values: Tensor
    cross: float = math.nan

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.class_values)

    @property
    def ratio(self) -> float:
        """λ_C of the class part over the bulk; of weights σ_C/σ_{C+1}."""
        values = self.before if self.kind == "weights" else self.class_values
        return float(values[self.num_classes - 1]) / self.bulk

    @property
    def whiskers(self) -> float:
        """λ₂/λ_C of the class part."""
        return float(self.class_values[1] / self.class_values[-1])

    @property
    def num_cross(self) -> int:
        """Eigenvalues of Δ_cross above the bulk."""
        return int((self.cross_values > self.bulk).sum())

    @property
    def change(self) -> float:
        """How much larger the rest is after the knockout than without the C leading vectors."""
        rest = float(self.before[self.num_classes :].sum())
        return float(self.after.sum()) / rest - 1.0

    @property
    def gap(self) -> float:
        """Ratio of neighbours after C values over the largest later one in the upper half."""
        ratios = self.before[:-1] / self.before[1:]
        later = ratios[self.num_classes : max(len(ratios) // 2, self.num_classes + 1)]
        return float(ratios[self.num_classes - 1] / later.max()) if len(later) else math.nan


def feature_part(seen: BackpropagatedErrors, depth: int, device: torch.device) -> Part | None:
    """Take the second moment of a layer's inputs apart.

    Args:
        seen: The layer's inputs.
        depth: l.
        device: Where to work.

    Returns:
        The part; None where there is no bulk beside C outliers.
    """
    h = seen.features.to(device, torch.float64)
    found = class_structure(h, classes=seen.classes, num_classes=seen.probabilities.shape[1])
    return _symmetric("features", depth, h.T @ h / len(h), found)


def error_part(seen: BackpropagatedErrors, depth: int, device: torch.device) -> Part | None:
    """Take the weighted second moment of a layer's errors apart.

    Args:
        seen: The layer's errors.
        depth: l.
        device: Where to work.

    Returns:
        The part; None where there is no bulk beside C outliers.
    """
    errors = seen.errors.to(device, torch.float64)
    weights = seen.weights.to(device, torch.float64)
    found = class_structure(errors, classes=seen.classes, weights=weights)
    rows = (weights.sqrt()[..., None] * errors).flatten(0, 1)
    return _symmetric("errors", depth, rows.T @ rows, found)


def weight_part(
    weight: Tensor, seen: BackpropagatedErrors, depth: int, device: torch.device
) -> Part | None:
    """Compare a layer's weight with the one that its class means would make.

    Args:
        weight: W (m, n).
        seen: The layer's inputs and errors.
        depth: l.
        device: Where to work.

    Returns:
        The part; None where there is no bulk beside C outliers, or the weight is a convolution's.
    """
    C = seen.probabilities.shape[1]
    true = seen.errors[torch.arange(len(seen.classes)), seen.classes]
    if weight.shape != (true.shape[1], seen.features.shape[1]) or min(weight.shape) <= C:
        return None
    W = weight.detach().to(device, torch.float64)
    own, inputs = (
        class_structure(v.to(device, torch.float64), classes=seen.classes, num_classes=C)
        for v in (true, seen.features)
    )
    between, middle = (own.product_with(inputs, part) for part in ("class", "global"))
    U, class_values, Vt = torch.linalg.svd(between, full_matrices=False)
    before, after = (
        torch.linalg.svdvals(m) for m in (W, _removed(_removed(W, U[:, :C]).T, Vt[:C].T))
    )
    if not _has_bulk(before, C):
        return None
    # The symmetric matrix with blocks W and Wᵀ has ±σ for eigenvalues, u and v stacked for vectors.
    matrix, cause, top = (Dense(_doubled(m)) for m in (W, between, middle))
    all_of_them = attribution(matrix, cause, num_outliers=C, rank=2 * C, which="largest")
    first = attribution(matrix, top, num_outliers=1, rank=2, which="largest", num_draws=0)
    return Part(
        "weights",
        depth,
        before.cpu(),
        after.cpu(),
        class_values[:C].cpu(),
        float(before[C]),
        all_of_them.mass_projected,
        float(all_of_them.null[0, 2]),
        first.mass_projected,
        before.new_zeros(0),
    )


def rank_correlation(values: Sequence[float]) -> float:
    """Return Spearman's correlation of numbers with their place; equal ones share a rank.

    Args:
        values: In order of depth.

    Returns:
        From −1 to 1; NaN for fewer than two numbers, or where all are equal.

    Examples:
        >>> round(rank_correlation([1.0, 3.0, 2.0, 9.0]), 6)
        0.8
    """
    if len(values) < 2 or len(set(values)) < 2:
        return math.nan
    return float(np.corrcoef(rankdata(values), np.arange(len(values)))[0, 1])


def _symmetric(kind: str, depth: int, A: Tensor, found: ClassStructure) -> Part | None:
    C = len(found.weights)
    if len(A) <= C:
        return None
    A = (A + A.T) / 2
    before = _values(A)
    if not _has_bulk(before, C):
        return None
    parts = {name: _second_moment(found.factor(name)) for name in found.eigenvalues}
    within = A - sum(parts[name] for name in parts if name not in ("global", "centred"))
    basis = _span(found.factor("class"))
    left = _projected(A, basis)
    bulk = float(_values(within)[0])
    both = attribution(Dense(A), Dense(parts["class"]), num_outliers=C, which="largest")
    first = attribution(
        Dense(A), Dense(parts["global"]), num_outliers=1, which="largest", num_draws=0
    )
    cross_values, cross = A.new_zeros(0), math.nan
    if "cross" in parts:
        cross_values = found.eigenvalues["cross"]
        k = min(int((cross_values > bulk).sum()), len(A) - 2)
        if k > 0:
            cause = Dense(_projected(parts["cross"], basis))
            cross = attribution(
                Dense(left), cause, num_outliers=k, which="largest", num_draws=0
            ).mass_projected
    return Part(
        kind,
        depth,
        before.cpu(),
        _values(left).clamp_min(0.0).cpu(),
        found.eigenvalues["class"].cpu(),
        bulk,
        both.mass_projected,
        float(both.null[0, 2]),
        first.mass_projected,
        cross_values.cpu(),
        cross,
    )


def _has_bulk(values: Tensor, C: int) -> bool:
    """Say whether there is something after C values, and a gap before it, beyond rounding."""
    floor = len(values) * torch.finfo(values.dtype).eps * float(values[0])
    return float(values[C - 1] - values[C]) > floor and float(values[C]) > floor


def _second_moment(F: Tensor) -> Tensor:
    M = F @ F.T
    return (M + M.T) / 2


def _span(F: Tensor) -> Tensor:
    """Return an orthonormal basis of the columns."""
    U, sizes, _ = torch.linalg.svd(F, full_matrices=False)
    basis: Tensor = U[:, sizes > len(U) * torch.finfo(U.dtype).eps * sizes[0]]
    return basis


def _projected(A: Tensor, basis: Tensor) -> Tensor:
    M = _removed(_removed(A, basis).T, basis)
    return (M + M.T) / 2


def _removed(A: Tensor, basis: Tensor) -> Tensor:
    return A - basis @ (basis.T @ A)


def _doubled(W: Tensor) -> Tensor:
    m, n = W.shape
    return torch.cat([torch.cat([W.new_zeros(m, m), W], 1), torch.cat([W.T, W.new_zeros(n, n)], 1)])


def _values(matrix: Tensor) -> Tensor:
    values: Tensor = torch.linalg.eigvalsh(matrix).flip(0)
    return values
