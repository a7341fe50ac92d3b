"""Refusals that the files of this room share."""

from collections.abc import Sequence

import torch
from torch import Tensor

from eigenscape.errors import (
    InvalidArgumentError,
    NonFiniteError,
    ShapeError,
    WrongTypeError,
    require_count,
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
    step_sizes = require_finite(value, call, ndim=1).double()
    if bool((step_sizes < 0).any()):
        raise InvalidArgumentError(f"`{call}` must hold step sizes of 0 or more.")
    return step_sizes


def require_widths(widths: Sequence[int], call: str) -> None:
    """Refuse layers without units."""
    for width in widths:
        require_count(width, call)


def require_classes(
    value: object, call: str, *, length: int, num_classes: int | None = None
) -> Tensor:
    """Return the classes of samples if they are integers from 0, else refuse.

    Args:
        value: What the user gave.
        call: How the user wrote it.
        length: How many samples there are.
        num_classes: How many classes there are; any number by default.

    Returns:
        The same tensor.

    Raises:
        WrongTypeError: If it is no tensor of integers.
        ShapeError: If it is not of that length.
        InvalidArgumentError: If a class is below 0, or above the last.
    """
    if not isinstance(value, Tensor) or value.dtype not in (torch.int64, torch.int32):
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise WrongTypeError(
            f"`{call}` must be a tensor of integers, torch.int64 or torch.int32; got {kind}."
        )
    if tuple(value.shape) != (length,):
        raise ShapeError(f"`{call}` must be {(length,)}; got {tuple(value.shape)}.")
    low, high = int(value.min()), int(value.max())
    if low < 0 or (num_classes is not None and high >= num_classes):
        upward = "from 0" if num_classes is None else f"from 0 to {num_classes - 1}"
        raise InvalidArgumentError(
            f"`{call}` must be classes {upward}; got {low} to {high}. Number them anew."
        )
    return value
