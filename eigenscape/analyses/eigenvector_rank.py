"""Is an eigenvector of a layer, as a matrix, close to rank one (Wu Def. 4.2)?"""

import torch
from torch import Tensor


def rank_one_share(matrices: Tensor) -> Tensor:
    """Return ‖Mat(h)‖₂/‖Mat(h)‖_F of each matrix: 1 exactly where h = u ⊗ v.

    For a random m × n matrix it is about (√m + √n)/√(mn). Cost: one SVD for each matrix.

    Args:
        matrices: Eigenvectors as matrices (k, m, n), output by input.

    Returns:
        The shares (k,), float64, from 1/√min(m, n) to 1.

    Examples:
        >>> u, v = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0, 1.0])
        >>> rank_one_share(torch.stack([torch.outer(u, v), torch.eye(2, 3)])).tolist()
        [1.0, 0.7071067811865475]
    """
    singular: Tensor = torch.linalg.svdvals(matrices.double()).cpu()
    shares: Tensor = singular[:, 0] / torch.linalg.vector_norm(singular, dim=1)
    return shares
