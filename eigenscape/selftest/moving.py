"""Tensors moved where they are, and put back bit by bit."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor


@contextmanager
def displaced(tensors: Sequence[Tensor]) -> Iterator[Callable[[Sequence[Tensor], float], None]]:
    """Move somebody's own tensors in place, not copies: a copy would hide what else uses them.

    Writes go through `.data`, which PyTorch does not count, so that graphs that were kept for the
    tensors as they were hold again afterwards.

    Args:
        tensors: What moves.

    Yields:
        A function of directions and a step that moves the tensors to where they were plus the step
        times the directions.
    """
    kept = [tensor.detach().clone() for tensor in tensors]

    def move(directions: Sequence[Tensor], step: float) -> None:
        for tensor, start, direction in zip(tensors, kept, directions, strict=True):
            tensor.data.copy_(start + step * direction.reshape(start.shape))

    try:
        yield move
    finally:
        for tensor, start in zip(tensors, kept, strict=True):
            tensor.data.copy_(start)
