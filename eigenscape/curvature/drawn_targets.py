"""Random numbers that belong to a sample, whatever batch it comes in and whatever the device."""

import numpy as np
import torch
from torch import Tensor

from eigenscape.risk import Batch, Noise

_BLOCK = 256


def sample_noise(batch: Batch, draw: int, seed: int, device: torch.device) -> Noise:
    """Return a source of uniform numbers in (0, 1) for the samples of a batch.

    Args:
        batch: It knows the number of its first sample.
        draw: Which of several draws.
        seed: What fixes them all.
        device: Where they are needed.

    Returns:
        A function of a shape whose first dimension counts the batch's samples.
    """

    def noise(shape: torch.Size) -> Tensor:
        first, last = batch.first, batch.first + shape[0]
        blocks = range(first // _BLOCK, (last - 1) // _BLOCK + 1)
        drawn = torch.cat([_block(seed, draw, block, shape[1:]) for block in blocks])
        start = first - blocks.start * _BLOCK
        return drawn[start : start + shape[0]].to(device)

    return noise


def _block(seed: int, draw: int, block: int, shape: torch.Size) -> Tensor:
    sequence = np.random.SeedSequence([seed, draw, block])
    generator = np.random.Generator(np.random.Philox(sequence))
    uniform = torch.from_numpy(generator.random((_BLOCK, *shape)))
    # Keep clear of 0 and 1, where the inverse normal distribution is infinite.
    return uniform.clamp_(1e-16, 1 - 1e-16)
