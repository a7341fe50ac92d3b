"""Refusals that the files of this room share."""

import torch
from torch import Tensor

from eigenscape.errors import (
    InvalidArgumentError,
    NonFiniteError,
    ShapeError,
    WrongTypeError,
    require_positive,
)


def require_finite(value: object, call: str, *, ndim: int) -> Tensor:
    """Return a finite floating-point tensor with entries, else refuse.

    Args:
        value: What the user gave.
        call: How the user wrote it.
        ndim: How many axes it must have.

    Returns:
        The tensor, detached.

    Raises:
        WrongTypeError: If it is no floating-point tensor.
        ShapeError: If it has another number of axes, or no entries.
        NonFiniteError: If an entry is NaN or infinite.
    """
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise WrongTypeError(f"`{call}` must be a floating-point tensor; got {kind}.")
    if value.ndim != ndim or value.numel() == 0:
        raise ShapeError(
            f"`{call}` must have {ndim} axes and entries; got shape {tuple(value.shape)}."
        )
    if not bool(torch.isfinite(value).all()):
        raise NonFiniteError(f"`{call}` has entries that are NaN or infinite.")
    return value.detach()


def step_sizes_of(value: float | Tensor, call: str) -> Tensor:
    """Return step sizes (k,) in float64 from a number or a tensor, else refuse.

    Args:
        value: What the user gave; zero is allowed in a tensor.
        call: How the user wrote it.

    Returns:
        The step sizes.

    Raises:
        InvalidArgumentError: If one is negative, or a single number is not positive.
    """
    if not isinstance(value, Tensor):
        return torch.tensor([require_positive(value, call)], dtype=torch.float64)
    found = require_finite(value, call, ndim=1).double()
    if bool((found < 0).any()):
        raise InvalidArgumentError(f"`{call}` must hold step sizes of 0 or more.")
    return found
