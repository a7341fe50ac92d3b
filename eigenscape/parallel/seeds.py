"""Seeds of random numbers that have nothing in common with each other."""

import hashlib

import torch
from torch import Tensor


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
