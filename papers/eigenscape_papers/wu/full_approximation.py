"""The whole Hessian's top eigenpairs from the outputs' Hessian and the mean inputs (Wu App. B).

Letters: z̃ the outputs of all layers stacked (44), m̂ of them; G = ∂z/∂z̃ (46); A = ∇²_z ℓ; E[M] =
E[GᵀAG] (m̂ × m̂) the full output Hessian (47), with eigenpairs σ_i, u_i (48); x̃^(p) the input of
layer p with a 1 for its bias (41); T = blockdiag(I ⊗ E[x̃^(p)]), so that w_i = T u_i (49).
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eigenscape.analyses import eigenspace_overlap, layer_names
from eigenscape.curvature import GaussNewton, Hessian, OutputHessian, have_terms, matrix_layers
from eigenscape.device import eigh, full_precision
from eigenscape.errors import EmptySelectionError, require_choice, require_count
from eigenscape.linalg import eigsh
from eigenscape.records import Columns, Picture, Record
from eigenscape.risk import EmpiricalRisk, Layer, capture_tail, from_matrices, input_vectors
from eigenscape_papers.wu._pictures import full_picture

MATRICES = ("hessian", "gauss_newton")


@dataclass(frozen=True, eq=False)
class FullApproximation(Record):
    """The largest eigenpairs of the whole Hessian, and two approximations of them.

    Attributes:
        layers: The layers whose parameters make up the matrix.
        matrix: What was approximated: "hessian" or "gauss_newton".
        values: Its largest eigenvalues (k,), descending.
        residuals: Their residuals (k,).
        approximated: σ_i ‖w_i‖² (k,), Wu (51), in the order of σ_i.
        overlaps: Overlap (k,) of its top j eigenspace with the span of w_1, …, w_j, Wu (50).
        rescaled: The largest eigenvalues of T E[M] Tᵀ (k,), descending.
        rescaled_overlaps: Overlap (k,) with the eigenvectors of T E[M] Tᵀ.
        input_norms: ‖E[x̃^(p)]‖ of each layer.
        seconds: Wall time it took.
    """

    layers: tuple[str, ...]
    matrix: str
    values: Tensor
    residuals: Tensor
    approximated: Tensor
    overlaps: Tensor
    rescaled: Tensor
    rescaled_overlaps: Tensor
    input_norms: Tensor
    seconds: float

    def columns(self) -> Columns:
        """Return one row for each eigenvalue."""
        return {
            "rank": range(1, len(self.values) + 1),
            "eigenvalue": self.values.tolist(),
            "approximated": self.approximated.tolist(),
            "rescaled": self.rescaled.tolist(),
            "overlap": self.overlaps.tolist(),
            "rescaled overlap": self.rescaled_overlaps.tolist(),
        }

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (full_picture(self),)


@full_precision()
def full_approximation(
    risk: EmpiricalRisk,
    layers: Sequence[str] | None = None,
    *,
    num_pairs: int = 10,
    matrix: str = "hessian",
    tolerance: float = 1e-6,
    seed: int = 0,
) -> FullApproximation:
    """Compare the whole Hessian's top eigenspace with one made from E[M] and E[x̃].

    Three steps lead from H to the approximation: H ≈ E[FᵀAF], the Gauss-Newton matrix (43); inputs
    x̃^(p) replaced by their means, which makes that T E[M] Tᵀ; and its eigenvectors taken to be w_i
    = T u_i (50) with eigenvalues σ_i ‖w_i‖² (51). Gram-Schmidt makes the w_i orthonormal. The last
    step is exact only where all ‖E[x̃^(p)]‖ are equal, since T stretches layers by them; "rescaled"
    leaves it out, at no cost: the eigenpairs of T E[M] Tᵀ are those of E[M] scaled on both sides by
    these norms. It is exact for the Gauss-Newton matrix where inputs are constant. Wu Fig. 8 shows
    50 pairs of F-200², F-200⁴, F-600⁴ and F-600⁸.

    Of a convolution slopes are summed over positions and inputs averaged over them, which keeps
    that exactness.

    Cost: about 4 products per pair, C backward passes of the tail of every layer, and an
    eigendecomposition of size m̂.

    Args:
        risk: Its model must be an `nn.Module` with an output (samples, classes).
        layers: Linear layers and convolutions; all layers by default. The matrix is that of their
            parameters, the others held fixed.
        num_pairs: Largest eigenpairs, no more than m̂.
        matrix: "hessian", or "gauss_newton" to leave the first step out.
        tolerance: Asked of the true pairs.
        seed: Fixes the starting vector.

    Returns:
        Eigenvalues and overlaps.

    Raises:
        EmptySelectionError: If there is no layer.
        UnsupportedModelError: If a layer is not one matrix applied to vectors, or does not have
            samples in its first dimension.

    Examples:
        One layer and one sample: H = A ⊗ x̃x̃ᵀ, with A = ¼ (1 −1; −1 1) at equal logits and ‖x̃‖² =
        3² + 1 with the bias: the eigenvalue ½ · 10 and no other.

        >>> from eigenscape.risk.losses import CrossEntropy
        >>> model = torch.nn.Sequential(torch.nn.Linear(1, 2)).double()
        >>> with torch.no_grad():
        ...     for p in model.parameters(): _ = p.zero_()
        >>> data = (torch.tensor([[3.0]]).double(), torch.tensor([0]))
        >>> found = full_approximation(EmpiricalRisk(model, CrossEntropy(), data), num_pairs=1)
        >>> [round(float(x), 6) for x in (found.values, found.approximated, found.overlaps)]
        [5.0, 5.0, 1.0]
    """
    started = time.monotonic()
    require_choice(matrix, MATRICES, "full_approximation(matrix=...)")
    names = layer_names(risk) if layers is None else tuple(layers)
    if not names:
        raise EmptySelectionError(
            "`full_approximation(risk)` found no layer: the model is a pure function, or no layers "
            "were named. Use an `nn.Module`."
        )
    chosen = matrix_layers(risk, names, "full_approximation(risk, layers)")
    restricted = risk.restricted([name for layer in chosen for name in layer.params])
    M = OutputHessian(restricted, names, positions="shared").matrix
    k = require_count(num_pairs, "full_approximation(num_pairs=...)", at_most=len(M))
    operator = Hessian(restricted) if matrix == "hessian" else GaussNewton(restricted)
    pairs = eigsh(operator, num_pairs=k, tolerance=tolerance, seed=seed)
    means = [_mean_input(restricted, layer) for layer in chosen]
    norms = torch.stack([mean.norm() for mean in means])
    sizes = [
        _num_outputs(restricted, layer, mean) for layer, mean in zip(chosen, means, strict=True)
    ]
    scale = norms.repeat_interleave(torch.tensor(sizes, device=norms.device))
    values, U = _top(M, k)
    rescaled, E = _top(scale[:, None] * M * scale, k)
    W = _lifted(U, chosen, means, sizes, restricted)
    straight = _lifted(E, chosen, [F.normalize(mean, dim=0) for mean in means], sizes, restricted)
    return FullApproximation(
        status=pairs.status,
        num_products=pairs.num_products,
        seed=seed,
        layers=names,
        matrix=matrix,
        values=pairs.values.cpu(),
        residuals=pairs.residuals.cpu(),
        approximated=(values * W.square().sum(0)).cpu(),
        overlaps=eigenspace_overlap(pairs, _orthonormal(W)).overlaps,
        rescaled=rescaled.cpu(),
        rescaled_overlaps=eigenspace_overlap(pairs, _orthonormal(straight)).overlaps,
        input_norms=norms.cpu(),
        seconds=time.monotonic() - started,
    )


def _mean_input(risk: EmpiricalRisk, layer: Layer) -> Tensor:
    """Return E[x̃] (n,) over samples and positions that have a term of the loss, float64."""
    total, count = torch.zeros((), dtype=torch.float64, device=risk.device), 0
    with risk.ranks.together():
        for batch in risk.batches:
            tail = capture_tail(risk, layer, batch)
            x = input_vectors(layer, tail)
            kept = have_terms(risk, tail.prediction, batch, x.shape[:2])
            x = x.flatten(0, 1) if kept is None else x[kept]
            total, count = total + x.double().sum(0), count + len(x)
    number = torch.tensor([float(count)], dtype=torch.float64, device=risk.device)
    return risk.ranks.sum(total) / risk.ranks.sum(number)


def _num_outputs(risk: EmpiricalRisk, layer: Layer, mean: Tensor) -> int:
    """Return m: the layer has m · n parameters."""
    return sum(math.prod(risk.space.shapes[name]) for name in layer.params) // len(mean)


def _top(matrix: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, vectors = eigh(matrix)
    return values[-k:].flip(0), vectors[:, -k:].flip(1)


def _lifted(
    U: Tensor,
    layers: Sequence[Layer],
    means: Sequence[Tensor],
    sizes: Sequence[int],
    risk: EmpiricalRisk,
) -> Tensor:
    """Return w (parameters, k) with u^(p) ⊗ x^(p) in the place of layer p, Wu (49)."""
    total = U.new_zeros(risk.space.size, U.shape[1])
    for layer, mean, u in zip(layers, means, U.split(list(sizes)), strict=True):
        rows = from_matrices(layer, u.T[:, :, None] * mean)
        total += risk.space.block(*layer.params).put(rows.T, risk.space.size)
    return total


def _orthonormal(W: Tensor) -> Tensor:
    """Run Gram-Schmidt on the columns, in their order."""
    Q: Tensor = torch.linalg.qr(F.normalize(W, dim=0)).Q
    return Q
