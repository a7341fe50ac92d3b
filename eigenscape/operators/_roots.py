"""Roots of the loss's curvature at the model's output: r_j with Σ_j r_j r_jᵀ = ∇²_z ℓ."""

import torch
from torch import Tensor

from eigenscape.batches import Batch
from eigenscape.errors import NonFiniteError
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
    multiply = risk.loss.hessian_at(z, batch.target)
    units = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    A = torch.stack([multiply(unit.expand_as(z)) for unit in units], dim=2).double()
    if not bool(A.isfinite().all()):
        raise NonFiniteError(
            "The loss's curvature at the model's output is NaN or infinite. Check the parameters "
            "and the data, e.g. with `risk.value()`."
        )
    parts = [torch.linalg.eigh(part) for part in A.split(_EIGH_SAMPLES)]
    values, vectors = (torch.cat([part[i] for part in parts]) for i in (0, 1))
    # Negative eigenvalues of a convex loss are rounding.
    roots = (vectors * values.clamp(min=0.0).sqrt()[:, None, :]).to(z.dtype)
    return list(roots.unbind(2))
