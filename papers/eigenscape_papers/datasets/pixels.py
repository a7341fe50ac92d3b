"""From stored pixels to the inputs of a network: the normalisations, and what papers say of theirs.

Every normalisation is a shift and a scale per channel, taken from the training split alone.
"""

from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from eigenscape.errors import require_choice

# What each name does. The papers' names exist so that a run can say whom it follows; where a text
# is silent the choice is ours, and the sentence that goes into the history says so.
NORMALISATIONS: Final[dict[str, str]] = {
    "unit": "pixels between 0 and 1",
    "half": "pixels between −1 and 1: less ½, over ½",
    "standard": "mean 0 and standard deviation 1 per channel over the training set",
    "wu": (
        "as 'standard': Wu (App. F.4, caption of Table 6) has channel-wise zero mean; the text "
        "does not give the scale, which is our choice. Its first version used 'half' or "
        "'unit' for MNIST and 'unit' for CIFAR-10, as the study wu-inputs shows"
    ),
    "papyan": (
        "as 'standard', our choice: Papyan (App. D) names no normalisation; D.3 only excludes "
        "random flips and crops"
    ),
    "dong": "as 'standard', our choice: Dong (App. B.3) names none for its CIFAR-100 images",
}

# Shift and scale of those that do not look at the data.
_FIXED: Final = {"unit": (0.0, 1.0), "half": (0.5, 0.5)}


@dataclass(frozen=True)
class PixelScale:
    """How pixels between 0 and 1 became inputs: input = (pixel − shift) / scale, per channel.

    Attributes:
        mean: Mean of the training pixels, per channel.
        std: Standard deviation of the training pixels, per channel.
        how: The normalisation that the inputs have now.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    how: str = "unit"

    @property
    def shift(self) -> tuple[float, ...]:
        """What is subtracted, per channel."""
        if self.how in _FIXED:
            return tuple(_FIXED[self.how][0] for _ in self.mean)
        return self.mean

    @property
    def scale(self) -> tuple[float, ...]:
        """What is divided by, per channel; a channel that is constant is only shifted."""
        if self.how in _FIXED:
            return tuple(_FIXED[self.how][1] for _ in self.std)
        return tuple(std or 1.0 for std in self.std)

    def named(self, how: str, call: str) -> "PixelScale":
        """Return the same statistics under another normalisation.

        Args:
            how: One of `NORMALISATIONS`.
            call: How the user wrote it, for the refusal.

        Returns:
            The other scale.

        Raises:
            UnknownNameError: If there is no such normalisation.
        """
        return replace(self, how=require_choice(how, NORMALISATIONS, call))

    def sentence(self) -> str:
        """Say in words what was done, for a history."""
        text = f"normalised {self.how!r} ({NORMALISATIONS[self.how]})"
        if self.how in _FIXED:
            return text
        mean = ", ".join(f"{value:.6g}" for value in self.mean)
        std = ", ".join(f"{value:.6g}" for value in self.std)
        return f"{text}; mean {mean}; standard deviation {std}"


def pixel_statistics(pixels: Tensor, largest: int = 255) -> PixelScale:
    """Compute the mean and the standard deviation of each channel, exactly.

    Counts of each value are summed as integers, so that no rounding depends on the order.

    Args:
        pixels: Of shape (samples, channels, …), uint8.
        largest: The value that stands for 1.

    Returns:
        The statistics of pixels / largest, as a scale that still is "unit".

    Examples:
        >>> scale = pixel_statistics(torch.tensor([[[0, 255]]], dtype=torch.uint8))
        >>> scale.mean, scale.std
        ((0.5,), (0.5,))
    """
    means, stds = [], []
    for channel in pixels.transpose(0, 1):
        counts = torch.bincount(channel.reshape(-1), minlength=256).tolist()
        total = sum(counts)
        first = sum(value * count for value, count in enumerate(counts))
        second = sum(value * value * count for value, count in enumerate(counts))
        means.append(first / (total * largest))
        stds.append(((total * second - first * first) / (total * largest) ** 2) ** 0.5)
    return PixelScale(mean=tuple(means), std=tuple(stds))


def from_pixels(pixels: Tensor, scale: PixelScale, largest: int = 255) -> Tensor:
    """Turn stored pixels into float32 inputs.

    Args:
        pixels: Of shape (samples, channels, …), uint8.
        scale: The normalisation.
        largest: The value that stands for 1.

    Returns:
        A new tensor; the only one of its size that is made.
    """
    inputs = pixels.to(torch.float32)
    for channel, (shift, factor) in enumerate(zip(scale.shift, scale.scale, strict=True)):
        inputs[:, channel].sub_(shift * largest).div_(factor * largest)
    return inputs


def rescaled(inputs: Tensor, old: PixelScale, new: PixelScale) -> Tensor:
    """Go from one normalisation to another, flattened or not.

    Args:
        inputs: Under the old normalisation, of shape (samples, channels · …) or (samples, …).
        old: The normalisation they have.
        new: The normalisation they shall have.

    Returns:
        A new tensor, equal to what `from_pixels` gives up to rounding in the dtype of `inputs`.
    """
    # Channels are the outermost dimension of an image, so a flattened one can be cut into them.
    channels = inputs.reshape(inputs.shape[0], len(old.mean), -1)
    factors = [a / b for a, b in zip(old.scale, new.scale, strict=True)]
    offsets = [(a - b) / c for a, b, c in zip(old.shift, new.shift, new.scale, strict=True)]
    factor = torch.tensor(factors, dtype=inputs.dtype, device=inputs.device)[:, None]
    offset = torch.tensor(offsets, dtype=inputs.dtype, device=inputs.device)[:, None]
    return (channels * factor + offset).reshape(inputs.shape)
