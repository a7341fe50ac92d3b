"""Compare two eigenspaces: how much do they have in common (Wu Def. 4.1)?"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.analyses.layers._orthonormal import require_orthonormal
from eigenscape.analyses.layers._pictures import overlap_picture
from eigenscape.errors import ShapeError
from eigenscape.records import Columns, EigenPairs, Picture, Record, Status


@dataclass(frozen=True, eq=False)
class EigenspaceOverlap(Record):
    """Overlap of the spaces of the first j vectors of two bases, for every j.

    Attributes:
        overlaps: Tr(P_U P_V)/j (k,) for j = 1, …, k: 1 for equal spaces, 0 for orthogonal ones.
        chance: What two random spaces have: j/n (k,).
    """

    overlaps: Tensor
    chance: Tensor

    def columns(self) -> Columns:
        """Return one row for each number of vectors."""
        return {
            "num_vectors": range(1, self.overlaps.numel() + 1),
            "overlap": self.overlaps.tolist(),
            "chance": self.chance.tolist(),
        }

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (overlap_picture(self),)


def eigenspace_overlap(
    first: EigenPairs | Tensor, second: EigenPairs | Tensor
) -> EigenspaceOverlap:
    """Compare the spaces spanned by the first j vectors of two orthonormal bases, for every j.

    Overlap is Tr(P_U P_V)/j = ‖UᵀV‖_F²/j, Wu Def. 4.1. Cost: one product of (k, n) and (n, k); all
    j come from cumulative sums of its squared entries.

    Args:
        first: Eigenpairs, or orthonormal columns (n, k).
        second: As many of the same length. Where the numbers differ, the smaller one counts.

    Returns:
        The overlaps.

    Raises:
        ShapeError: If lengths differ or there is no vector.
        InvalidArgumentError: If the columns are not orthonormal.

    Examples:
        >>> U = torch.eye(4)[:, [0, 1]]
        >>> eigenspace_overlap(U, torch.eye(4)[:, [0, 2]]).overlaps.tolist()
        [1.0, 0.5]
    """
    U, V = (x.vectors if isinstance(x, EigenPairs) else x for x in (first, second))
    if U.ndim != 2 or V.ndim != 2 or U.shape[0] != V.shape[0] or 0 in (*U.shape, *V.shape):
        raise ShapeError(
            "`eigenspace_overlap(first, second)` needs columns (n, k) of one length; got "
            f"{tuple(U.shape)} and {tuple(V.shape)}."
        )
    n, k = U.shape[0], min(U.shape[1], V.shape[1])
    U = require_orthonormal(U[:, :k], "eigenspace_overlap(first=...)")
    V = require_orthonormal(V[:, :k], "eigenspace_overlap(second=...)").to(U.device)
    squares = (U.T @ V).square().cpu()
    sums = squares.cumsum(0).cumsum(1).diagonal()
    count = torch.arange(1, k + 1, dtype=torch.float64)
    return EigenspaceOverlap(
        status=Status(True, f"{k} vectors of length {n}."),
        num_products=0,
        seed=0,
        overlaps=sums / count,
        chance=count / n,
    )
