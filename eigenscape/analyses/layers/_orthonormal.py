"""Refuse bases that are none."""

import torch
from torch import Tensor

from eigenscape.errors import InvalidArgumentError

# Columns orthonormal to this accuracy are accepted; it is also the error of an overlap.
_SLACK = 1e-3


def require_orthonormal(X: Tensor, argument: str) -> Tensor:
    """Return X (n, k) in float64; its columns are orthonormal, to the rounding of its dtype.

    Args:
        X: The columns.
        argument: How the user wrote it, to begin a refusal with.

    Returns:
        The columns.

    Raises:
        InvalidArgumentError: If they are not.
    """
    # Entries that are rounded, each by half an eps at most, change an inner product by eps.
    slack = max(_SLACK, 2 * torch.finfo(X.dtype).eps)
    X = X.double()
    error = float((X.T @ X - torch.eye(X.shape[1], dtype=X.dtype, device=X.device)).abs().max())
    if not error <= slack:
        raise InvalidArgumentError(
            f"`{argument}` needs orthonormal columns; XᵀX differs from I by {error:.2g}. "
            "Orthonormalise them, e.g. `torch.linalg.qr(X).Q`."
        )
    return X
