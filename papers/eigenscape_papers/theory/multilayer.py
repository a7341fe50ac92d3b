"""The output Hessian of a layer of a deep random ReLU network, from the weights above (Wu (56)).

Letters: W^(l) the weights of layer l = 1, …, L; p a layer; S = W^(L) ⋯ W^(p+1); A the Hessian of
the loss with respect to the logits, diag(q) − qqᵀ for probabilities q; D^(l) which units of layer l
are active, π^(l) how often; Π^(l) = diag π^(l); ρ_l the correlation of a unit of layer l, before
its ReLU, between two independent inputs.

Wu takes each D to be independent Bernoulli(½). Above the first layer it is not: inputs of such a
layer are outputs of a ReLU, they have a mean, and so has each unit. `firing` puts the true
probabilities in, and `row_overlap_limit` says how much of the eigenspace Wu's form has.
"""

import math

import torch
from torch import Tensor

from eigenscape.errors import ShapeError, require_count
from eigenscape_papers.theory._two_layer_samples import moments


def centred_row_space(weights: Tensor) -> Tensor:
    """Return a basis of R(S) without 1ᵀS, the papers' top eigenspace of an output Hessian.

    It is the row space of (I − 11ᵀ/c) S: the range of Sᵀ A S, since A has the null space 1.

    Args:
        weights: S (c, n), with 2 ≤ c ≤ n + 1.

    Returns:
        Orthonormal columns (n, c − 1).

    Raises:
        ShapeError: If the shape does not fit.

    Examples:
        >>> centred_row_space(torch.tensor([[3.0, 1.0], [0.0, 1.0]])).abs().tolist()
        [[1.0], [0.0]]
    """
    if weights.ndim != 2 or not 2 <= len(weights) <= weights.shape[1] + 1:
        raise ShapeError(
            "`centred_row_space(weights)` needs a matrix (c, n) with 2 or more rows and n + 1 at "
            f"most; got {tuple(weights.shape)}."
        )
    centred = weights - weights.mean(0)
    basis: Tensor = torch.linalg.svd(centred, full_matrices=False).Vh[: len(weights) - 1].T
    return basis


def row_overlap_limit(*, num_layers: int = 2, layer: int = 1, inputs: str = "gaussian") -> float:
    """Return the overlap, at infinite width, of the top eigenspace of M^(p) with that of Wu (56).

    It is Π_l 1/(1 + (2/π) arcsin ρ_l) over l = p, …, L − 1: of independent rows scaled by π_j,
    (E[π])²/E[π²] remains, E[π²] is the probability that a unit is active at two independent inputs,
    and that is ¼ + arcsin(ρ)/2π. For the inputs ρ_1 = E[x]²/E[x²], which is 0 or 1/π, and through a
    ReLU layer ρ → (√(1 − ρ²) + ρ (π − arccos ρ))/π. The papers have 1 throughout.

    Args:
        num_layers: L, at least 2.
        layer: p, from 1 to L − 1.
        inputs: "gaussian" or "rectified".

    Returns:
        The overlap.

    Raises:
        InvalidArgumentError: If an option is out of range.

    Examples:
        >>> row_overlap_limit()
        1.0
        >>> round(row_overlap_limit(inputs="rectified"), 4)
        0.829
    """
    L = require_count(num_layers, "row_overlap_limit(num_layers=...)", at_least=2)
    p = require_count(layer, "row_overlap_limit(layer=...)", at_most=L - 1)
    mean, variance = moments(inputs, "row_overlap_limit")
    rho, overlap = mean**2 / (mean**2 + variance), 1.0
    for i in range(1, L):
        if i >= p:
            overlap /= 1.0 + 2.0 / math.pi * math.asin(rho)
        rho = (math.sqrt(1.0 - rho * rho) + rho * (math.pi - math.acos(rho))) / math.pi
    return overlap
