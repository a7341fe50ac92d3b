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
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from eigenscape.errors import ShapeError, require_count
from eigenscape_papers.theory._two_layer_samples import moments


def multilayer_output_hessian(
    weights: Sequence[Tensor],
    layer: int,
    *,
    softmax_hessian: Tensor | None = None,
    firing: Sequence[Tensor] | None = None,
) -> Tensor:
    """Return M̃^(p) = 4^{−(L−p)} Sᵀ E[A] S, Wu's form for the output Hessian of layer p, Wu (56).

    With `firing` it is S_πᵀ E[A] S_π, S_π = W^(L) Π^(L−1) W^(L−1) ⋯ W^(p+1) Π^(p), which is the
    same for π = ½. Both leave out what is spread over all directions, such as diag T in Wu (72).

    Args:
        weights: W^(1), …, W^(L), each (outputs, inputs). Those up to `layer` give only shapes.
        layer: p, from 1 to L.
        softmax_hessian: E[A] (c, c); by default that of equal probabilities, (I − 11ᵀ/c)/c.
        firing: π^(1), …, π^(L−1); ½ by default.

    Returns:
        The matrix (m, m) for the m outputs of the layer, in the dtype of the last weights.

    Raises:
        ShapeError: If shapes do not fit.
        InvalidArgumentError: If there is no such layer.

    Examples:
        >>> weights = [torch.ones(3, 5), torch.eye(2, 3)]
        >>> multilayer_output_hessian(weights, 1, softmax_hessian=torch.eye(2)).diagonal().tolist()
        [0.25, 0.25, 0.0]
    """
    L = len(weights)
    p = require_count(layer, "multilayer_output_hessian(layer=...)", at_most=L)
    shapes = [tuple(W.shape) for W in weights]
    if any(len(s) != 2 for s in shapes) or any(
        above[1] != below[0] for below, above in pairwise(shapes)
    ):
        raise ShapeError(
            "`multilayer_output_hessian(weights)` needs matrices (outputs, inputs) from the first "
            f"layer to the last, each fitting the one before; got {shapes}."
        )
    S = torch.eye(shapes[-1][0], dtype=weights[-1].dtype, device=weights[-1].device)
    A = softmax_hessian if softmax_hessian is not None else (S - 1.0 / len(S)) / len(S)
    if A.shape != S.shape:
        raise ShapeError(
            f"`multilayer_output_hessian(softmax_hessian=...)` needs {tuple(S.shape)}; got "
            f"{tuple(A.shape)}."
        )
    if firing is not None and [tuple(pi.shape) for pi in firing] != [s[:1] for s in shapes[:-1]]:
        raise ShapeError(
            "`multilayer_output_hessian(firing=...)` needs one vector for each hidden layer, of "
            f"{[s[0] for s in shapes[:-1]]} units; got {[tuple(pi.shape) for pi in firing]}."
        )
    for i in range(L, p, -1):
        S = S @ weights[i - 1].to(S)
        S = 0.5 * S if firing is None else S * firing[i - 2].to(S)
    return S.T @ A.to(S) @ S


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
