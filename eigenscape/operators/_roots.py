"""Roots of the loss's curvature at the model's output: r_j with Σ_j r_j r_jᵀ = ∇²_z ℓ."""

import torch
from torch import Tensor

from eigenscape.batches import Batch
from eigenscape.dense import eigh
from eigenscape.errors import NonFiniteError
from eigenscape.losses import CrossEntropy, OutputProduct
from eigenscape.risk import EmpiricalRisk

# Up to this many outputs per sample the curvature is taken apart exactly: that many backward
# passes.
MOST_OUTPUTS = 256
# In parts: on a GPU the solver's workspace grows with the number of matrices, to gigabytes.
_EIGH_SAMPLES = 1024


def have_exact_roots(output: object) -> bool:
    """Say whether outputs are (N, C), one term a sample, with few enough entries."""
    return isinstance(output, Tensor) and output.ndim == 2 and output.shape[1] <= MOST_OUTPUTS


def exact_roots(risk: EmpiricalRisk, z: Tensor, batch: Batch) -> list[Tensor]:
    """Take the curvature A_n of every sample apart.

    Args:
        risk: It has the loss.
        z: Outputs (N, C), detached.
        batch: It has the targets.

    Returns:
        C tensors r_j (N, C). Where the loss is not convex in z, A has no root, and these are those
        of its positive part.

    Raises:
        NonFiniteError: If the curvature is NaN or infinite.
    """
    loss = risk.loss
    if isinstance(loss, CrossEntropy) and not loss.next_token:
        s = loss.term_weights(*loss.aligned(z, batch.target))
        roots = _softmax_roots(z.double(), s.double())
    else:
        roots = _general_roots(loss.hessian_at(z, batch.target), z)
    if not bool(roots.isfinite().all()):
        raise NonFiniteError(
            "The loss's curvature at the model's output is NaN or infinite. Check the parameters "
            "and the data, e.g. with `risk.value()`."
        )
    return list(roots.to(z.dtype).unbind(2))


def _softmax_roots(z: Tensor, s: Tensor) -> Tensor:
    """Return √(s p_j) (e_j − p), for s (diag p − ppᵀ) = Σ_j s p_j (e_j − p)(e_j − p)ᵀ; Wu (28)."""
    p = z.softmax(1)
    roots = -p[:, :, None] * (s * p).sqrt()[:, None, :]
    roots.diagonal(dim1=1, dim2=2).add_((s * p).sqrt())
    return roots


def _general_roots(multiply: OutputProduct, z: Tensor) -> Tensor:
    """Take A apart by its eigenvectors, or by its diagonal where it has no more."""
    units = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    A = torch.stack([multiply(unit.expand_as(z)) for unit in units], dim=2).double()
    diagonal = A.diagonal(dim1=1, dim2=2)
    if torch.equal(A, torch.diag_embed(diagonal)):
        return torch.diag_embed(diagonal.clamp(min=0.0).sqrt())
    if not bool(A.isfinite().all()):  # the solver would not end
        return A
    parts = [eigh(part) for part in A.split(_EIGH_SAMPLES)]
    values, vectors = (torch.cat([part[i] for part in parts]) for i in (0, 1))
    # Negative eigenvalues of a convex loss are rounding.
    return vectors * values.clamp(min=0.0).sqrt()[:, None, :]
