"""The output Hessian of a layer of a perceptron, in closed form; Wu (56)."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from eigenscape.errors import ShapeError, require_count


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
