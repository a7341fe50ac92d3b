"""Roots of the loss's curvature at the model's output: r_j with Σ_j r_j r_jᵀ = ∇²_z ℓ.

Letters: N samples of K output numbers each, C classes, Q positions; K = C·Q where every
position has a class.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from eigenscape.device import eigh
from eigenscape.errors import NonFiniteError
from eigenscape.risk import Batch, CrossEntropy, EmpiricalRisk, OutputProduct

# Up to this many outputs per sample the roots are exact, with a backward pass for each.
MOST_OUTPUTS = 256
# In chunks: on a GPU the solver's workspace grows with the number of matrices, to gigabytes.
_EIGH_SAMPLES = 1024


def num_outputs(output: Tensor) -> int:
    """Return K, the numbers that a model gives for each sample."""
    return output.shape[1:].numel()


def have_exact_roots(output: object) -> bool:
    """Say whether outputs are (samples, …), with at most `MOST_OUTPUTS` numbers for each."""
    return isinstance(output, Tensor) and output.ndim > 0 and num_outputs(output) <= MOST_OUTPUTS


def exact_roots(risk: EmpiricalRisk, z: Tensor, batch: Batch) -> list[Tensor]:
    """Return roots of the curvature A_n (K, K) of every sample.

    Args:
        risk: It has the loss.
        z: Outputs (N, …), detached.
        batch: It has the targets.

    Returns:
        K tensors r_j in the shape of z. Where the loss is not convex in z, A has no root, and these
        are those of its positive part.

    Raises:
        NonFiniteError: If the curvature is NaN or infinite.
    """
    loss = risk.loss
    if isinstance(loss, CrossEntropy):
        roots = _softmax_roots(loss, z, batch.target)
    else:
        roots = _general_roots(loss.hessian_at(z, batch.target), z)
    if not bool(roots.isfinite().all()):
        raise NonFiniteError(
            "The loss's curvature at the model's output is NaN or infinite. Check the parameters "
            "and the data, e.g. with `risk.value()`."
        )
    return list(roots.to(z.dtype).unbind(-1))


def _softmax_roots(loss: CrossEntropy, z: Tensor, target: Tensor) -> Tensor:
    """Return √(s p_j) (e_j − p) for every position, (*z.shape, K).

    At a position s (diag p − ppᵀ) = Σ_j s p_j (e_j − p)(e_j − p)ᵀ, Wu (28); positions are terms of
    their own, so each has its own roots, zero elsewhere.
    """
    (class_dim,) = loss.term_dims(z, target)
    s = loss.term_weights(*loss.aligned(z, target)).double()
    p = z.double().movedim(class_dim, 1).softmax(1)
    if loss.next_token:  # the last position is compared with nothing, and may be anything
        s, p = F.pad(s, (0, 1)), F.pad(p[:, :, :-1], (0, 1))
    shape = p.shape
    s, p = s.reshape(len(z), 1, -1), p.reshape(*shape[:2], -1)  # (N, 1, Q) and (N, C, Q)
    size = (s * p).sqrt()
    roots = -p[:, :, None] * size[:, None]  # (N, C, number j, Q)
    roots.diagonal(dim1=1, dim2=2).add_(size.mT)
    if p.shape[2] > 1:
        roots = roots.diag_embed(dim1=2, dim2=4)  # (N, C, Q, number j, position of the root)
    return roots.reshape(*shape, -1).movedim(1, class_dim)


def _general_roots(multiply: OutputProduct, z: Tensor) -> Tensor:
    """Return roots of A from its eigenvectors, or its diagonal if A is diagonal: (*z.shape, K)."""
    units = torch.eye(num_outputs(z), dtype=z.dtype, device=z.device)
    columns = [multiply(unit.reshape(z.shape[1:]).expand_as(z)) for unit in units]
    A = torch.stack([column.reshape(len(z), -1) for column in columns], dim=2).double()
    return _root_of(A).reshape(*z.shape, -1)


def _root_of(A: Tensor) -> Tensor:
    """Return R (N, K, K) with RRᵀ = A, or its positive part."""
    diagonal = A.diagonal(dim1=1, dim2=2)
    if torch.equal(A, torch.diag_embed(diagonal)):
        return torch.diag_embed(diagonal.clamp(min=0.0).sqrt())
    if not bool(A.isfinite().all()):  # the solver would not end
        return A
    pairs = [eigh(chunk) for chunk in A.split(_EIGH_SAMPLES)]
    values, vectors = (torch.cat([pair[i] for pair in pairs]) for i in (0, 1))
    # Negative eigenvalues of a convex loss are rounding.
    return vectors * values.clamp(min=0.0).sqrt()[:, None, :]
