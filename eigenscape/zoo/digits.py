"""The handwritten digits that come with scikit-learn: a real data set with no download."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from eigenscape.errors import (
    InvalidArgumentError,
    require_choice,
    require_count,
    require_packages,
)

# The split is ours, since the set has none: 36 of each class for the test, drawn with this seed.
_SPLIT_SEED, _TEST_PER_CLASS = 0, 36
_LARGEST = 16.0  # pixels count the dark cells of a 4 × 4 square


@dataclass(frozen=True, eq=False, repr=False)
class Digits(TensorDataset):
    """Images of digits: a `TensorDataset` that says what it holds.

    Attributes:
        inputs: Images (samples, 1, 8, 8), float32.
        targets: Classes (samples,), int64.
        split: "train" or "test".
        num_classes: 10.
        name: What the set is called.
    """

    inputs: Tensor
    targets: Tensor
    split: str
    num_classes: int = 10
    name: str = "digits"

    def __post_init__(self) -> None:
        """Be a `TensorDataset`, whose own `__init__` would assign to a frozen object."""
        object.__setattr__(self, "tensors", (self.inputs, self.targets))

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return len(self.inputs)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return tuple(self.inputs.shape[1:])

    def take(self, n: int, seed: int | None = None) -> "Digits":
        """Return n samples in their order: the first, or with a seed n at random.

        Raises:
            InvalidArgumentError: If there are not so many.
        """
        if require_count(n, "Digits.take(n=...)") > self.num_samples:
            raise InvalidArgumentError(
                f"`Digits.take({n})` needs {n} samples; the {self.split} split has "
                f"{self.num_samples}. Take at most that many."
            )
        chosen = torch.arange(n)
        if seed is not None:
            draw = torch.Generator().manual_seed(seed)
            chosen = torch.randperm(self.num_samples, generator=draw)[:n].sort().values
        return replace(self, inputs=self.inputs[chosen], targets=self.targets[chosen])


def load_digits(split: str = "train", *, pixels: str = "unit") -> Digits:
    """Load scikit-learn's 1797 digits of 8 × 8 pixels.

    Args:
        split: "train" (1437 samples) or "test" (36 of each class); which is which never changes.
        pixels: "unit", between 0 and 1; or "standard", with mean 0 and standard deviation 1 over
            the training split.

    Returns:
        The data set.

    Raises:
        MissingPackageError: If scikit-learn is not installed.

    Examples:
        >>> load_digits("test").num_samples
        360
    """
    require_choice(pixels, ("unit", "standard"), "load_digits(pixels=...)")
    images, labels = raw_digits(split)
    scaled = images / _LARGEST
    if pixels == "standard":
        train = raw_digits("train")[0] / _LARGEST
        scaled = (scaled - train.mean()) / train.std(correction=0)
    return Digits(scaled[:, None].float(), labels, split)


def raw_digits(split: str) -> tuple[Tensor, Tensor]:
    """Return images (n, 8, 8) with pixels from 0 to 16, float64, and labels (n,), int64.

    Raises:
        MissingPackageError: If scikit-learn is not installed.
    """
    require_choice(split, ("train", "test"), "load_digits(split=...)")
    require_packages("load_digits()", "sklearn")
    from sklearn.datasets import load_digits as bundled

    loaded = bundled()
    images, labels = torch.from_numpy(loaded.images), torch.from_numpy(loaded.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    shuffled = labels[order]
    per_class = [order[(shuffled == c).nonzero()[:_TEST_PER_CLASS, 0]] for c in range(10)]
    is_test = torch.zeros(len(labels), dtype=torch.bool)
    is_test[torch.cat(per_class)] = True
    chosen = is_test if split == "test" else ~is_test
    return images[chosen], labels[chosen]
