"""The handwritten digits that come with scikit-learn: a real data set with no download."""

import torch
from torch import Tensor

from eigenscape.errors import require_choice
from eigenscape.zoo import raw_digits
from eigenscape_papers.datasets.data_set import DataSet
from eigenscape_papers.datasets.pixels import NORMALISATIONS, from_pixels, pixel_statistics

_LARGEST = 16  # pixels count the dark cells of a 4 × 4 square


def load_digits(*, split: str = "train", normalise: str = "standard") -> DataSet:
    """Load scikit-learn's 1797 digits of 8 × 8 pixels.

    The test split holds 36 samples of each class (360), the training split the other 1437; which
    is which never changes.

    Args:
        split: "train" or "test".
        normalise: One of `NORMALISATIONS`.

    Returns:
        The data set; images have shape (1, 8, 8).

    Raises:
        MissingPackageError: If scikit-learn is not installed.

    Examples:
        >>> load_digits()
        DataSet 'digits' (train): 1437 samples of shape (1, 8, 8), 10 classes, torch.float32
        >>> load_digits(split="test").num_samples
        360
    """
    require_choice(normalise, NORMALISATIONS, "load('digits', normalise=...)")
    images, targets = raw_digits(split)
    train = images if split == "train" else raw_digits("train")[0]
    scale = pixel_statistics(_pixels(train), _LARGEST)
    scale = scale.named(normalise, "load('digits', normalise=...)")
    return DataSet(
        name="digits",
        inputs=from_pixels(_pixels(images), scale, _LARGEST),
        targets=targets,
        num_classes=10,
        class_names=tuple("0123456789"),
        split=split,
        history=(
            "scikit-learn's bundled digits, 1797 images",
            f"{split} split: 36 of each class are the test (seed 0)",
            scale.sentence(),
        ),
        pixels=scale,
    )


def _pixels(images: Tensor) -> Tensor:
    return images.to(torch.uint8)[:, None]
