"""The handwritten digits that come with scikit-learn: a real data set with no download."""

import numpy as np
import torch

from eigenscape.errors import DataError, require_choice
from eigenscape_papers.datasets._random import generator
from eigenscape_papers.datasets.data_set import DataSet
from eigenscape_papers.datasets.pixels import NORMALISATIONS, from_pixels, pixel_statistics

# The split is ours, since the set has none: 36 of each class for the test, drawn with this seed.
SPLIT_SEED = 0
TEST_PER_CLASS = 36
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
        DataError: If scikit-learn is not installed.

    Examples:
        >>> load_digits()
        DataSet 'digits' (train): 1437 samples of shape (1, 8, 8), 10 classes, torch.float32
        >>> load_digits(split="test").num_samples
        360
    """
    require_choice(normalise, NORMALISATIONS, "load('digits', normalise=...)")
    require_choice(split, ("train", "test"), "load('digits', split=...)")
    try:
        from sklearn.datasets import load_digits as bundled
    except ImportError as error:
        raise DataError(
            "`load('digits')` reads the digits that scikit-learn brings along, and it is not "
            "installed. Install it: pip install 'eigenscape[demo]'."
        ) from error
    images, labels = bundled(return_X_y=True)
    pixels = torch.from_numpy(images.astype(np.uint8)).reshape(-1, 1, 8, 8)
    targets = torch.from_numpy(labels.astype(np.int64))
    order = torch.randperm(len(targets), generator=generator(SPLIT_SEED, "SPLIT_SEED"))
    is_test = torch.zeros(len(targets), dtype=torch.bool)
    for c in range(10):
        is_test[order[targets[order] == c][:TEST_PER_CLASS]] = True
    scale = pixel_statistics(pixels[~is_test], _LARGEST)
    scale = scale.named(normalise, "load('digits', normalise=...)")
    chosen = is_test if split == "test" else ~is_test
    return DataSet(
        name="digits",
        inputs=from_pixels(pixels[chosen], scale, _LARGEST),
        targets=targets[chosen],
        num_classes=10,
        class_names=tuple("0123456789"),
        split=split,
        history=(
            "scikit-learn's bundled digits, 1797 images",
            f"{split} split: {TEST_PER_CLASS} of each class are the test (seed {SPLIT_SEED})",
            scale.sentence(),
        ),
        pixels=scale,
    )
