"""Is the top eigenspace of a layer's output Hessian the row space of the weights above it?

Letters: E[M] (m × m) the output Hessian of layer p, c logits, S = W^(L) ⋯ W^(p+1) (c × m) the
product of the weights above (Wu §4.4), s = Sᵀ1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.analyses._slopes import all_slopes, matrix_layer, unit_vectors, weights_above
from eigenscape.analyses.eigenspace_overlap import eigenspace_overlap
from eigenscape.errors import EmptySelectionError, require_choice
from eigenscape.layers import Layer
from eigenscape.losses import CrossEntropy
from eigenscape.operators import OutputHessian
from eigenscape.precision import full_precision
from eigenscape.records import Record, Status
from eigenscape.risk import EmpiricalRisk

SPACES = ("weights", "gradients")


@dataclass(frozen=True, eq=False)
class OutputSpaceOverlap(Record):
    """How much of the top eigenspace of E[M] lies in the row space of S.

    Attributes:
        layer: The layer's name.
        space: What S is: "weights" or "gradients".
        dimension: Of both spaces: c − 1 under cross-entropy, less where the layer is narrower.
        overlap: Overlap (Wu Def. 4.1) of the top eigenspace of E[M] and of {Sᵀa : a ⊥ 1}, the range
            of SᵀAS for every A with null space 1; from 0 to 1.
        overlap_removed: The same with R(S) less the direction of s in place of that. The two agree
            where the rows of S are orthogonal and of one length, as in Wu Thm. H.1.
        chance: Overlap of random spaces, dimension/m.
        trace_share: Share of tr E[M] inside {Sᵀa : a ⊥ 1}.
        values: All eigenvalues of E[M] (m,), descending, float64.
    """

    layer: str
    space: str
    dimension: int
    overlap: float
    overlap_removed: float
    chance: float
    trace_share: float
    values: Tensor


@full_precision()
def output_space_overlap(
    risk: EmpiricalRisk, layer: str, *, space: str = "weights"
) -> OutputSpaceOverlap:
    """Compare the top eigenspace of E[M] with the row space of the weights above the layer.

    Wu §4.4 and Thm. H.1 say that at initialisation the top c − 1 eigenspace of E[M^(p)] is the row
    space R(S^(p)) less S^(p)·1. Table 10 finds it at minima: 0.602, 0.967, 0.982 for fc1, fc2, fc3
    of F-1500³ on MNIST, 0.890, 0.931, 0.999 for LeNet5; with random labels 0.235, 0.801, 0.998 and
    0.518, 0.912, 0.999. "S·1" must be Sᵀ1, a vector of the layer's output. Losses other than
    cross-entropy have no null space 1; there all of R(S) is compared.

    Cost: C backward passes of the tail; as many again for "gradients".

    Args:
        risk: Its model must be an `nn.Module` with an output (samples, classes).
        layer: As for `OutputHessian`.
        space: "weights" for S as above, which needs a chain of linear layers after this one;
            "gradients" for S = E[∂z/∂(layer's output)], its mean over samples and positions, which
            any layer has.

    Returns:
        The overlap.

    Raises:
        UnsupportedModelError: If the layer is no matrix, or no chain of linear layers follows.
        EmptySelectionError: If the space is empty: S is zero, or there is one class.

    Examples:
        Above the last layer there is nothing: S = I, and E[M] has the null space 1 itself.

        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3)).double()
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]]).double()
        >>> risk = EmpiricalRisk(model, CrossEntropy(), (x, torch.tensor([0, 2])))
        >>> found = output_space_overlap(risk, "0")
        >>> found.dimension, round(found.overlap, 6)
        (2, 1.0)
    """
    call = f"output_space_overlap(risk, {layer!r})"
    require_choice(space, SPACES, "output_space_overlap(space=...)")
    found = matrix_layer(risk, layer, call)
    S = weights_above(risk, found) if space == "weights" else mean_slopes(risk, found)
    M = OutputHessian(risk, layer).matrix
    spread, rest = S, S
    if isinstance(risk.loss, CrossEntropy):
        s = S.sum(0)
        spread = S - S.mean(0)
        rest = S - torch.outer(S @ s, s) / s.square().sum().clamp_min(torch.finfo(s.dtype).tiny)
    values, vectors = torch.linalg.eigh(M)
    basis = _row_space(spread)
    d = basis.shape[1]
    if d == 0:
        raise EmptySelectionError(
            f"`{call}`: the row space of S is empty, since S is zero or there is one class. "
            "Look at the weights that follow the layer."
        )
    top = vectors[:, -d:].flip(1)
    trace = float(values.sum())
    removed = _row_space(rest)[:, :d]
    return OutputSpaceOverlap(
        status=Status(True, f"Spaces of dimension {d} of {len(M)}."),
        num_products=0,
        seed=0,
        layer=layer,
        space=space,
        dimension=d,
        overlap=float(eigenspace_overlap(top, basis).overlaps[-1]),
        overlap_removed=float((top.T @ removed).square().sum()) / d,
        chance=d / len(M),
        trace_share=float((basis * (M @ basis)).sum()) / trace if trace > 0 else 0.0,
        values=values.flip(0).cpu(),
    )


def mean_slopes(risk: EmpiricalRisk, layer: Layer) -> Tensor:
    """Return E[∂z/∂(layer's output)] (C, m), the mean over samples and positions."""
    total, count = torch.zeros((), dtype=torch.float64, device=risk.device), 0
    with risk.ranks.together():
        for part in all_slopes(risk, layer, unit_vectors):
            total = total + part.slopes.double().sum(dim=(0, 2))
            count += part.slopes.shape[0] * part.slopes.shape[2]
    number = torch.tensor([float(count)], dtype=torch.float64, device=risk.device)
    return risk.ranks.sum(total) / risk.ranks.sum(number)


def _row_space(S: Tensor) -> Tensor:
    """Return an orthonormal basis (m, rank) of the rows, largest first."""
    _, sizes, Vh = torch.linalg.svd(S, full_matrices=False)
    kept = sizes > max(S.shape) * torch.finfo(S.dtype).eps * sizes[0]
    basis: Tensor = Vh[: int(kept.sum())].T
    return basis
