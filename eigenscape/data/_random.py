"""Random numbers of this room: from a seed alone, on the CPU, the same on every machine."""

import torch

from eigenscape.errors import require_count

# PyTorch's generator reads only 32 bits of a seed; a larger one would repeat a smaller one's draw.
_LARGEST_SEED = 2**32 - 1


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
    require_count(seed, call, at_least=0, at_most=_LARGEST_SEED)
    return torch.Generator().manual_seed(seed)
