"""Data as two tensors, and the order in which an epoch of a seed walks through them."""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from eigenscape.errors import EmptySelectionError, ShapeError, WrongTypeError


def as_tensors(data: object, call: str) -> tuple[Tensor, Tensor]:
    """Return inputs and targets from anything that holds the two whole.

    Args:
        data: An object with `.inputs` and `.targets`, a pair of tensors, or a `TensorDataset`.
        call: How the user wrote it.

    Returns:
        Inputs and targets with equal first dimensions.

    Raises:
        WrongTypeError: If it is something else.
        ShapeError: If the two differ in length.
        EmptySelectionError: If there is no sample.
    """
    pair: Sequence[object] = ()
    if isinstance(data, TensorDataset):
        pair = data.tensors
    elif hasattr(data, "inputs") and hasattr(data, "targets"):
        pair = (data.inputs, data.targets)
    elif isinstance(data, tuple | list):
        pair = data
    tensors = [part for part in pair if isinstance(part, Tensor)]
    if len(pair) != 2 or len(tensors) != 2:
        raise WrongTypeError(
            f"`{call}` must hold inputs and targets as two tensors: an object with `.inputs` and "
            f"`.targets`, a pair, or a TensorDataset of two; got {_describe(data, pair)}. Training "
            "keeps all data in memory, so read a loader into tensors first."
        )
    inputs, targets = tensors
    sizes = [len(part) if part.ndim else None for part in (inputs, targets)]
    if sizes[0] != sizes[1] or sizes[0] is None:
        raise ShapeError(
            f"`{call}` must have as many targets as inputs; got shapes {tuple(inputs.shape)} and "
            f"{tuple(targets.shape)}."
        )
    if sizes[0] == 0:
        raise EmptySelectionError(f"`{call}` must hold at least one sample; got none.")
    return inputs.detach(), targets.detach()


def epoch_order(seed: int, epoch: int, count: int, *, out: Tensor | None = None) -> Tensor:
    """Return the order in which a seed sees the data in an epoch.

    It depends on nothing else: not on the device, nor on the seeds that train along.

    Args:
        seed: The seed.
        epoch: The epoch, counted from 0.
        count: Number of samples.
        out: Where to write it (count,), int64, on the CPU.

    Returns:
        A permutation of 0 … count − 1.

    Examples:
        >>> sorted(epoch_order(7, 0, 5).tolist())
        [0, 1, 2, 3, 4]
    """
    generator = torch.Generator().manual_seed(mixed_seed("order", seed, epoch))
    return torch.randperm(count, generator=generator, out=out, dtype=torch.int64)


def epoch_noise(seeds: Sequence[int], epoch: int) -> int:
    """Return what to seed PyTorch's own random numbers (dropout) with in an epoch."""
    return mixed_seed("noise", *seeds, epoch)


def mixed_seed(what: str, *numbers: int) -> int:
    """Hash to 63 bits, so that neighbouring seeds, and other uses of one, have nothing in common.

    Args:
        what: What is drawn.
        *numbers: A seed, and what else tells the draw from others.

    Returns:
        The seed of a generator.

    Examples:
        >>> mixed_seed("order", 0, 1) == mixed_seed("order", 0, 1)
        True
        >>> mixed_seed("order", 0, 1) == mixed_seed("noise", 0, 1)
        False
    """
    text = "/".join((what, *map(str, numbers))).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def _describe(data: object, pair: Sequence[object]) -> str:
    if not pair:
        return type(data).__name__
    kinds = ", ".join(type(part).__name__ for part in pair)
    return f"{type(data).__name__} of {len(pair)} ({kinds})"
