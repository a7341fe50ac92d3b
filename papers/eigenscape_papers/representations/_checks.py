"""Refusals that the files of this room share, and the one precision that products need."""

from numbers import Integral

import torch
from torch import Tensor

from eigenscape.errors import NonFiniteError, ShapeError, WrongTypeError


def require_tensor(value: object, call: str) -> Tensor:
    """Return a tensor, else refuse; `call` is how the user wrote it."""
    if not isinstance(value, Tensor):
        raise WrongTypeError(f"`{call}` must be a tensor; got {type(value).__name__}.")
    return value


def require_matrix(value: object, call: str, *, columns: int | None = None) -> Tensor:
    """Return a finite floating-point matrix with one row or more, else refuse.

    Args:
        value: What the user gave.
        call: How the user wrote it.
        columns: How many columns it must have; any number by default.

    Returns:
        The matrix, detached.

    Raises:
        WrongTypeError: If it is no tensor.
        ShapeError: If it is no matrix of that width, or not of floating point.
        NonFiniteError: If an entry is NaN or infinite.
    """
    value = require_tensor(value, call)
    width = "any number of" if columns is None else str(columns)
    fits = value.ndim == 2 and value.numel() > 0 and columns in (None, value.shape[-1])
    if not fits or not value.is_floating_point():
        raise ShapeError(
            f"`{call}` must be a floating-point matrix with one row or more and {width} columns; "
            f"got {tuple(value.shape)} of {value.dtype}."
        )
    if not bool(torch.isfinite(value).all()):
        raise NonFiniteError(
            f"`{call}` has entries that are NaN or infinite. Take those rows out first."
        )
    return value.detach()


def require_states(value: object, call: str, *, columns: int | None = None) -> Tensor:
    """Return states as `require_matrix` does, else refuse; say what to do with (N, T, d).

    Args:
        value: What the user gave.
        call: How the user wrote it.
        columns: As for `require_matrix`.

    Returns:
        The matrix, detached.

    Raises:
        ShapeError: If there are positions left, or as `require_matrix` does.
    """
    if isinstance(value, Tensor) and value.ndim == 3:
        raise ShapeError(
            f"`{call}` must be a matrix with one row a position; got {tuple(value.shape)}. Of "
            "states (N, T, d) pass `.flatten(0, 1)`."
        )
    return require_matrix(value, call, columns=columns)


def require_sizes(value: object, call: str) -> None:
    """Refuse one size where several are expected; `call` is how the user wrote it."""
    if isinstance(value, Integral):
        raise WrongTypeError(
            f"`{call}` must be a sequence of sizes; got the integer {value}. Pass `({value},)`."
        )


def require_wide(value: Tensor, call: str) -> Tensor:
    """Return a matrix of float32 or float64; PyTorch solves nothing in narrower types.

    Args:
        value: A matrix of floating point.
        call: How the user wrote it.

    Returns:
        The same matrix.

    Raises:
        ShapeError: If its dtype is a narrower one.
    """
    if value.dtype not in (torch.float32, torch.float64):
        raise ShapeError(
            f"`{call}` must be of torch.float32 or torch.float64, to solve for coefficients; got "
            f"{value.dtype}. Pass `.float()` of it."
        )
    return value


def widened(value: Tensor) -> Tensor:
    """Return float32 of half precision, whose products would keep three digits; others stay."""
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def require_vector(value: object, call: str) -> Tensor:
    """Return a finite floating-point vector with one entry or more, else refuse.

    Args:
        value: What the user gave.
        call: How the user wrote it.

    Returns:
        The vector, detached.

    Raises:
        WrongTypeError: If it is no tensor.
        ShapeError: If it is no vector, or not of floating point.
        NonFiniteError: If an entry is NaN or infinite.
    """
    value = require_tensor(value, call)
    if value.ndim != 1 or not value.numel() or not value.is_floating_point():
        raise ShapeError(
            f"`{call}` must be a floating-point vector with one entry or more; got "
            f"{tuple(value.shape)} of {value.dtype}."
        )
    if not bool(torch.isfinite(value).all()):
        raise NonFiniteError(f"`{call}` has entries that are NaN or infinite.")
    return value.detach()
