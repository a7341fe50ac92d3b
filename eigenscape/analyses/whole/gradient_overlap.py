"""How much of the gradient lies in the space of the largest eigenvalues?"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.analyses.whole._pictures import overlap_picture
from eigenscape.errors import ShapeError
from eigenscape.records import Columns, EigenPairs, Picture, Record, Status


@dataclass(frozen=True, eq=False)
class GradientOverlap(Record):
    """Share of the gradient's squared norm inside growing eigenspaces.

    Attributes:
        values: The eigenvalues (k,) whose eigenvectors span the spaces, descending.
        shares: ‖P_j g‖²/‖g‖² (k,), P_j the projection on the first j eigenvectors.
        chance: What a random direction has there: j/n (k,).
        gradient_norm: ‖g‖.
    """

    values: Tensor
    shares: Tensor
    chance: Tensor
    gradient_norm: float

    def columns(self) -> Columns:
        """Return one row for each number of eigenvectors."""
        return {
            "num_vectors": range(1, self.values.numel() + 1),
            "eigenvalue": self.values.tolist(),
            "share": self.shares.tolist(),
            "chance": self.chance.tolist(),
        }

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (overlap_picture(self),)


def gradient_overlap(gradient: Tensor, pairs: EigenPairs) -> GradientOverlap:
    """Measure how much of a gradient lies in the span of eigenvectors. Cost: no product.

    Args:
        gradient: Any flat vector g (n,).
        pairs: Eigenpairs with their vectors, in the order in which the spaces grow.

    Returns:
        The shares; zeros for g = 0.

    Raises:
        ShapeError: If the sizes differ.

    References:
        Gur-Ari, Roberts and Dyer, "Gradient descent happens in a tiny subspace", 2018.
    """
    n, k = pairs.vectors.shape
    if gradient.shape != (n,) or k == 0:
        raise ShapeError(
            f"`gradient_overlap(gradient, pairs)` needs a gradient ({n},) and vectors ({n}, k) "
            f"with k ≥ 1; got {tuple(gradient.shape)} and {tuple(pairs.vectors.shape)}."
        )
    g = gradient.to(pairs.vectors.device).double()
    norm = g.norm()
    captured = (pairs.vectors.double().T @ g).square().cumsum(0).cpu()
    return GradientOverlap(
        status=Status(bool(pairs.status), str(pairs.status)),
        num_products=0,
        seed=pairs.seed,
        values=pairs.values,
        shares=captured / norm.square().cpu() if norm > 0 else torch.zeros_like(captured),
        chance=torch.arange(1, k + 1, dtype=torch.float64) / n,
        gradient_norm=norm.item(),
    )
