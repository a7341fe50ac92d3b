"""Random numbers of this room: from a seed alone, on the CPU, the same on every machine."""

import torch

from eigenscape.errors import LARGEST_SEED, require_count


def generator(seed: int, call: str) -> torch.Generator:
    """Return a fresh generator.

    Args:
        seed: What fixes the numbers.
        call: How the user wrote it, for the refusal.

    Returns:
        A generator on the CPU.

    Raises:
        WrongTypeError: If the seed is not an integer.
        InvalidArgumentError: If it is negative or has more than 32 bits.
    """
    require_count(seed, call, at_least=0, at_most=LARGEST_SEED)
    return torch.Generator().manual_seed(seed)
