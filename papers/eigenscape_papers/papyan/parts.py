"""What a layer's features, backpropagated errors and weight are made of (Papyan §7).

Letters: h^l the features of hidden layer l (h⁰ the inputs), δ^l the errors at its output with every
label, H^l and Δ^l their second moments, W^l its weight; C classes.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eigenscape.records import storable
from eigenscape.structure import ClassStructure, class_structure
from eigenscape_papers.papyan.backpropagated_errors import BackpropagatedErrors

KINDS = ("features", "errors", "weights")


@storable
@dataclass(frozen=True, eq=False)
class LayerPart:
    """What one layer's features, errors or weights are made of.

    Attributes:
        kind: One of KINDS.
        depth: l; 0 for the inputs.
        before: Eigenvalues of H^l or Δ^l, or singular values of W^l, descending.
        after: The same with the class part projected out.
        class_values: The C of the class part alone, descending; of weights, without the factor 1/η.
        bulk: The largest of the within part; of weights σ_{C+1}.
        mass: Share of the C outliers' mass that the knockout takes.
        null: The same for equally many random directions.
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
    def second(self) -> float:
        """λ₂ of the class part over the bulk: the first is the global mean's."""
        return float(self.class_values[1]) / self.bulk

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
        bulk = float(self.before[self.num_classes :].sum())
        return float(self.after.sum()) / bulk - 1.0

    @property
    def gap(self) -> float:
        """Ratio of neighbours after C values over the largest later one in the upper half."""
        ratios = self.before[:-1] / self.before[1:]
        later = ratios[self.num_classes : max(len(ratios) // 2, self.num_classes + 1)]
        return float(ratios[self.num_classes - 1] / later.max()) if len(later) else math.nan


@storable
@dataclass(frozen=True)
class LayerProducts:
    """How near the means of a layer's gradients are to Kronecker products of means.

    Attributes:
        classes: Mean cosine of g_c and h_c ⊗ δ_c, over classes.
        pairs: Mean cosine of g_{c,c'} and h_c ⊗ δ_{c,c'}, over pairs c' ≠ c.
        others: As `classes`, with the features of the next class for h_c: what is due to what all
            classes have in common.
    """

    classes: float
    pairs: float
    others: float


def feature_part(
    errors: BackpropagatedErrors, depth: int, device: torch.device
) -> LayerPart | None:
    """Take the second moment of a layer's inputs apart.

    Args:
        errors: The layer's inputs.
        depth: l.
        device: Where to work.

    Returns:
        The part; None where there is no bulk beside C outliers.
    """
    h = errors.features.to(device, torch.float64)
    structure = class_structure(
        h, classes=errors.classes, num_classes=errors.probabilities.shape[1]
    )
    return _symmetric("features", depth, h.T @ h / len(h), structure)


def error_part(
    backpropagated: BackpropagatedErrors, depth: int, device: torch.device
) -> LayerPart | None:
    """Take the weighted second moment of a layer's errors apart.

    Args:
        backpropagated: The layer's errors.
        depth: l.
        device: Where to work.

    Returns:
        The part; None where there is no bulk beside C outliers.
    """
    errors = backpropagated.errors.to(device, torch.float64)
    weights = backpropagated.weights.to(device, torch.float64)
    structure = class_structure(errors, classes=backpropagated.classes, weights=weights)
    rows = (weights.sqrt()[..., None] * errors).flatten(0, 1)
    return _symmetric("errors", depth, rows.T @ rows, structure)


def weight_part(
    weight: Tensor, errors: BackpropagatedErrors, depth: int, device: torch.device
) -> LayerPart | None:
    """Compare a layer's weight with the one that its class means would make.

    Args:
        weight: W (m, n).
        errors: The layer's inputs and errors.
        depth: l.
        device: Where to work.

    Returns:
        The part; None where there is no bulk beside C outliers, or the weight is a convolution's.
    """
    C = errors.probabilities.shape[1]
    true = errors.errors[torch.arange(len(errors.classes)), errors.classes]
    if weight.shape != (true.shape[1], errors.features.shape[1]) or min(weight.shape) <= C:
        return None
    W = weight.detach().to(device, torch.float64)
    before = _singular_values(W)
    if not _has_bulk(before, C):
        return None
    by_output, inputs = (
        class_structure(v.to(device, torch.float64), classes=errors.classes, num_classes=C)
        for v in (true, errors.features)
    )
    U, class_values, V = _product_svd(by_output.factor("class"), inputs.factor("class"))
    first_U, _, first_V = _product_svd(by_output.factor("global"), inputs.factor("global"))

    def without(left: Tensor, right: Tensor) -> Tensor:
        return _singular_values(_removed(_removed(W, left).T, right))

    after = without(U, V)
    return LayerPart(
        "weights",
        depth,
        before.cpu(),
        after.cpu(),
        class_values.cpu(),
        float(before[C]),
        _gone(before, after, C),
        _gone(before, without(_random_basis(U, 0), _random_basis(V, 1)), C),
        _gone(before, without(first_U, first_V), 1),
        before.new_zeros(0).cpu(),
    )


def layer_products(backpropagated: BackpropagatedErrors, device: torch.device) -> LayerProducts:
    """Compare means of a layer's gradients g = h ⊗ δ with products of the means of h and δ.

    Cost: 2(C − 1)·N·m·n flops, and one matrix (m, n) at a time.

    Args:
        backpropagated: The inputs and errors of a layer on plain vectors.
        device: Where to work.

    Returns:
        Cosines. Classes without samples, and pairs without weight, are left out.
    """
    errors, weights, features = (
        t.to(device, torch.float64)
        for t in (backpropagated.errors, backpropagated.weights, backpropagated.features)
    )
    y = backpropagated.classes.to(device)
    present = y.unique().tolist()
    centres = {c: features[y == c].mean(0) for c in present}
    cosines: dict[str, list[float]] = {"classes": [], "pairs": [], "others": []}
    for index, c in enumerate(present):
        h, w, d = features[y == c], weights[y == c], errors[y == c]
        g, delta = h.new_zeros(d.shape[2], h.shape[1]), h.new_zeros(d.shape[2])
        for label in range(w.shape[1]):
            total = float(w[:, label].sum())
            if label == c or total == 0.0:
                continue
            rows = (w[:, label, None] / total) * d[:, label]
            pair, mean = rows.T @ h, rows.sum(0)
            cosines["pairs"].append(_cosine(pair, mean, centres[c]))
            g, delta = g + total * pair, delta + total * mean
        cosines["classes"].append(_cosine(g, delta, centres[c]))
        cosines["others"].append(_cosine(g, delta, centres[present[(index + 1) % len(present)]]))
    means = {name: [v for v in values if math.isfinite(v)] for name, values in cosines.items()}
    return LayerProducts(**{name: float(np.mean(v or [math.nan])) for name, v in means.items()})


def _cosine(g: Tensor, left: Tensor, right: Tensor) -> float:
    """Return the cosine of a matrix (m, n) and left ⊗ right; NaN where one of them is zero."""
    return float(left @ g @ right / (g.norm() * left.norm() * right.norm()))


def span(F: Tensor, most: int | None = None) -> Tensor:
    """Return an orthonormal basis of columns.

    Args:
        F: The columns (d, r).
        most: Only so many of their leading directions.

    Returns:
        The basis (d, at most r), directions of rounding left out.
    """
    U, sizes, _ = torch.linalg.svd(F, full_matrices=False)
    basis: Tensor = U[:, sizes > len(U) * torch.finfo(U.dtype).eps * sizes[0]]
    return basis[:, :most]


def _symmetric(kind: str, depth: int, A: Tensor, structure: ClassStructure) -> LayerPart | None:
    C = len(structure.weights)
    if len(A) <= C:
        return None
    A = (A + A.T) / 2
    before = _values(A)
    if not _has_bulk(before, C):
        return None
    has_labels = "cross" in structure.eigenvalues
    means = structure.factor("between" if has_labels else "class")
    bulk = float(_values(A - _second_moment(means))[0])
    basis = span(structure.factor("class"))
    left = _projected(A, basis)
    after = _values(left)
    cross_values, cross = A.new_zeros(0), math.nan
    if has_labels:
        cross_values = structure.eigenvalues["cross"]
        k = min(int((cross_values > bulk).sum()), len(A) - 2)
        if k > 0:
            others = span(_removed(structure.factor("cross"), basis), k)
            cross = _gone(after, _values(_projected(left, others)), k)
    return LayerPart(
        kind,
        depth,
        before.cpu(),
        after.clamp_min(0.0).cpu(),
        structure.eigenvalues["class"].cpu(),
        bulk,
        _gone(before, after, C),
        _gone(before, _values(_projected(A, _random_basis(basis, 0))), C),
        _gone(before, _values(_projected(A, span(structure.factor("global")))), 1),
        cross_values.cpu(),
        cross,
    )


def _gone(before: Tensor, after: Tensor, k: int) -> float:
    """Return the share of the first k values' mass above the next one that a knockout took."""
    # As in `attribution`; but projections are all that is wanted here, of matrices known already.
    edge = before[k]
    mass = (before[:k] - edge).sum()
    return float((1.0 - (after[:k] - edge).clamp_min(0.0).sum() / mass).clamp(0.0, 1.0))


def _has_bulk(values: Tensor, C: int) -> bool:
    """Say whether there is something after C values, and a gap before it, beyond rounding."""
    floor = len(values) * torch.finfo(values.dtype).eps * float(values[0])
    return float(values[C - 1] - values[C]) > floor and float(values[C]) > floor


def _second_moment(F: Tensor) -> Tensor:
    M = F @ F.T
    return (M + M.T) / 2


def _random_basis(like: Tensor, seed: int) -> Tensor:
    """Return a basis of equally many random directions."""
    draw = torch.Generator().manual_seed(seed)
    columns = torch.randn(like.shape, generator=draw, dtype=like.dtype)
    Q: Tensor = torch.linalg.qr(columns.to(like.device)).Q
    return Q


def _product_svd(F: Tensor, G: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return U, σ, V of F Gᵀ, which has few columns."""
    (Q, R), (P, S) = torch.linalg.qr(F), torch.linalg.qr(G)
    U, sizes, Vt = torch.linalg.svd(R @ S.T)
    return Q @ U, sizes, P @ Vt.T


def _projected(A: Tensor, basis: Tensor) -> Tensor:
    M = _removed(_removed(A, basis).T, basis)
    return (M + M.T) / 2


def _removed(A: Tensor, basis: Tensor) -> Tensor:
    return A - basis @ (basis.T @ A)


def _values(matrix: Tensor) -> Tensor:
    values: Tensor = torch.linalg.eigvalsh(matrix).flip(0)
    return values


def _singular_values(W: Tensor) -> Tensor:
    if W.device.type == "cpu":
        values: Tensor = torch.linalg.svdvals(W)
        return values
    # What PyTorch calls on a GPU turns columns pair by pair, and 2048 of them take long.
    return _by_squares(W)


def _by_squares(W: Tensor) -> Tensor:
    """Return the singular values from the smaller Gram matrix; σ is off by about ε σ₁²/σ."""
    gram = W @ W.T if W.shape[0] <= W.shape[1] else W.T @ W
    return _values((gram + gram.T) / 2).clamp_min(0.0).sqrt()
