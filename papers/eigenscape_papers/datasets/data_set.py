"""A data set that knows how it was made: tensors, names, and every step in words."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from eigenscape.errors import InvalidArgumentError, ShapeError, WrongTypeError, require_count
from eigenscape_papers.datasets._random import generator
from eigenscape_papers.datasets.pixels import PixelScale, rescaled


@dataclass(frozen=True, eq=False, repr=False)
class DataSet(TensorDataset):
    """Inputs and targets, frozen, with the history of how they came to be.

    It is a `TensorDataset`, so a `DataLoader` and `EmpiricalRisk` take it as it is; `tensors` is
    the pair (inputs, targets) where all data are wanted at once. Methods return a new set and add
    to its history; tensors that do not change are shared with the old one.

    Attributes:
        name: What the set is called.
        inputs: Of shape (samples, …): float32, or int64 for characters.
        targets: Of shape (samples,), int64; (samples, context) for characters.
        num_classes: Number of classes; None where targets are not classes.
        class_names: Their names, where they have any.
        split: "train" or "test".
        history: Every step that made it, in words.
        pixels: The normalisation of images and the statistics behind it; None for other data.

    Examples:
        >>> import torch
        >>> X, y = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
        >>> toy = DataSet("toy", X, y, num_classes=2)
        >>> toy.per_class(1).take(1).history
        ('1 sample of each class (seed 0)', 'the first 1 of 2 samples')
        >>> toy
        DataSet 'toy' (train): 4 samples of shape (2,), 2 classes, torch.float32
    """

    name: str
    inputs: Tensor
    targets: Tensor
    num_classes: int | None = None
    class_names: tuple[str, ...] | None = None
    split: str = "train"
    history: tuple[str, ...] = ()
    pixels: PixelScale | None = None

    def __post_init__(self) -> None:
        """Check that the parts belong together, and be a `TensorDataset`."""
        if self.inputs.ndim == 0 or self.targets.ndim == 0 or len(self.inputs) != len(self.targets):
            raise ShapeError(
                "`DataSet(inputs=..., targets=...)` needs as many targets as inputs, along the "
                f"first dimension; got shapes {tuple(self.inputs.shape)} and "
                f"{tuple(self.targets.shape)}."
            )
        if self.class_names is not None and len(self.class_names) != self.num_classes:
            raise InvalidArgumentError(
                f"`DataSet(class_names=...)` needs one name for each of {self.num_classes} "
                f"classes; got {len(self.class_names)}."
            )
        # TensorDataset's own __init__ would assign to a frozen object.
        object.__setattr__(self, "tensors", (self.inputs, self.targets))

    def __repr__(self) -> str:
        """Say in one line what it holds."""
        classes = "no classes" if self.num_classes is None else f"{self.num_classes} classes"
        return (
            f"DataSet {self.name!r} ({self.split}): {self.num_samples} samples of shape "
            f"{self.input_shape}, {classes}, {self.inputs.dtype}"
        )

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return len(self.inputs)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.inputs.shape[1:])

    def take(self, n: int, seed: int | None = None) -> "DataSet":
        """Return n samples: the first, or with a seed n at random.

        With one seed, a smaller draw is part of a larger one. The order stays that of the set.

        Args:
            n: How many.
            seed: Fixes the draw; None takes the first.

        Returns:
            The smaller set.

        Raises:
            InvalidArgumentError: If there are not so many.
        """
        require_count(n, f"DataSet.take(n=...) of {self.num_samples} samples")
        if n > self.num_samples:
            raise InvalidArgumentError(
                f"`DataSet.take({n})` needs {n} samples; {self.name!r} ({self.split}) has "
                f"{self.num_samples}. Take at most that many."
            )
        if seed is None:
            return self._chosen(torch.arange(n), f"the first {n} of {self.num_samples} samples")
        draw = generator(seed, "DataSet.take(seed=...)")
        chosen = torch.randperm(self.num_samples, generator=draw)[:n]
        return self._chosen(chosen, f"{n} of {self.num_samples} samples at random (seed {seed})")

    def per_class(self, n: int, seed: int = 0) -> "DataSet":
        """Return a balanced set: n samples of each class, drawn at random.

        Papyan studies balanced classes only (Def. 1.3); the sizes are those of `sample_sizes`. With
        one seed, a smaller draw is part of a larger one. The order stays that of the set.

        Args:
            n: How many of each class.
            seed: Fixes the draw.

        Returns:
            The smaller set.

        Raises:
            InvalidArgumentError: If a class has fewer, with the counts; or if there are no classes.
        """
        require_count(n, "DataSet.per_class(n=...)")
        labels, num_classes = self._labels("per_class")
        counts = torch.bincount(labels, minlength=num_classes)
        if int(counts.min()) < n:
            few = ", ".join(
                f"{self._class_name(c)}: {count}"
                for c, count in enumerate(counts.tolist())
                if count < n
            )
            raise InvalidArgumentError(
                f"`DataSet.per_class({n})` needs {n} samples of each class; {self.name!r} "
                f"({self.split}) has fewer of these: {few}. Take at most {int(counts.min())}."
            )
        draw = generator(seed, "DataSet.per_class(seed=...)")
        order = torch.randperm(self.num_samples, generator=draw)
        shuffled = labels[order]
        chosen = [order[(shuffled == c).nonzero()[:n, 0]] for c in range(num_classes)]
        plural = "sample" if n == 1 else "samples"
        return self._chosen(torch.cat(chosen), f"{n} {plural} of each class (seed {seed})")

    def random_labels(self, fraction: float = 1.0, seed: int = 0) -> "DataSet":
        """Return the set with labels drawn uniformly from all classes, whatever the true ones.

        So MNIST-R and CIFAR10-R "by randomly labeling the images" (Wu App. D.1). The text does not
        give the distribution: it is uniform here, and a new label may be the true one by chance.

        Args:
            fraction: Which part of the samples, chosen at random, gets a new label.
            seed: Fixes the choice and the labels.

        Returns:
            The relabelled set; its name ends in "-random".

        Raises:
            WrongTypeError: If the fraction is no number.
            InvalidArgumentError: If the fraction is not between 0 and 1, or there are no classes.
        """
        if isinstance(fraction, bool) or not isinstance(fraction, int | float):
            raise WrongTypeError(
                "`DataSet.random_labels(fraction=...)` must be a number; got "
                f"{type(fraction).__name__}."
            )
        if not 0.0 <= fraction <= 1.0:
            raise InvalidArgumentError(
                f"`DataSet.random_labels(fraction=...)` must be from 0 to 1; got {fraction}."
            )
        labels, num_classes = self._labels("random_labels")
        draw = generator(seed, "DataSet.random_labels(seed=...)")
        count = round(fraction * self.num_samples)
        chosen = torch.randperm(self.num_samples, generator=draw)[:count]
        new = labels.clone()
        new[chosen] = torch.randint(num_classes, (count,), generator=draw)
        return replace(
            self,
            name=f"{self.name}-random",
            targets=new.to(self.targets.device),
            history=(
                *self.history,
                f"labels of {count} of {self.num_samples} samples drawn uniformly from "
                f"{num_classes} classes (seed {seed})",
            ),
        )

    def two_classes(self) -> "DataSet":
        """Return the set with classes 0 to 4 against 5 to 9, as MNIST-2 (Wu App. D.1).

        Returns:
            The set with targets 0 and 1; its name ends in "-2".

        Raises:
            InvalidArgumentError: If there are not ten classes.
        """
        labels, num_classes = self._labels("two_classes")
        if num_classes != 10:
            raise InvalidArgumentError(
                "`DataSet.two_classes()` puts classes 0 to 4 against 5 to 9, of ten classes; "
                f"{self.name!r} has {num_classes}."
            )
        return replace(
            self,
            name=f"{self.name}-2",
            targets=(labels >= 5).long().to(self.targets.device),
            num_classes=2,
            class_names=("0-4", "5-9"),
            history=(*self.history, "classes 0 to 4 became 0, classes 5 to 9 became 1"),
        )

    def normalised(self, how: str) -> "DataSet":
        """Return images under another normalisation, from the statistics of the training split.

        Equal to loading with `normalise=how` up to rounding. The names: "unit" (pixels between 0
        and 1), "standard" (mean 0, standard deviation 1 per channel over the training set), "wu",
        "papyan", "dong". The papers say little: Wu has channel-wise zero mean (App. F.4, caption of
        Table 6) and gives no scale; Papyan (App. D) and Dong (App. B.3) are silent. All three are
        "standard" here, and the history says that this was our choice.

        Args:
            how: One of the names.

        Returns:
            The set with other inputs.

        Raises:
            InvalidArgumentError: If these are not images with known statistics.
        """
        if self.pixels is None:
            raise InvalidArgumentError(
                f"`DataSet.normalised({how!r})` needs images with known statistics of the training "
                f"pixels; {self.name!r} has none. Scale its inputs before you make the DataSet."
            )
        new = self.pixels.named(how, "DataSet.normalised(how=...)")
        return replace(
            self,
            inputs=rescaled(self.inputs, self.pixels, new),
            pixels=new,
            history=(*self.history, new.sentence()),
        )

    def flattened(self) -> "DataSet":
        """Return the set with each input as one row, channels outermost."""
        rows = self.inputs.reshape(self.num_samples, -1)
        step = f"inputs of shape {self.input_shape} flattened to {tuple(rows.shape[1:])}"
        return replace(self, inputs=rows, history=(*self.history, step))

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> "DataSet":
        """Return the set on another device, or with floating-point tensors of another dtype.

        Args:
            device: Where to; None leaves it.
            dtype: For inputs and targets that are floating-point; integers stay what they are.

        Returns:
            The moved set.

        Raises:
            WrongTypeError: If the dtype is not a floating-point one.
        """
        if dtype is not None and not dtype.is_floating_point:
            raise WrongTypeError(
                f"`DataSet.to(dtype=...)` must be a floating-point dtype; got {dtype}."
            )

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)

        inputs, targets = moved(self.inputs), moved(self.targets)
        step = f"inputs to {inputs.dtype} on {inputs.device}"
        return replace(self, inputs=inputs, targets=targets, history=(*self.history, step))

    def _chosen(self, indices: Tensor, step: str) -> "DataSet":
        indices = indices.sort().values.to(self.inputs.device)
        return replace(
            self,
            inputs=self.inputs[indices],
            targets=self.targets[indices.to(self.targets.device)],
            history=(*self.history, step),
        )

    def _labels(self, method: str) -> tuple[Tensor, int]:
        """Return one label a sample, on the CPU, and the number of classes; else refuse."""
        if self.num_classes is None or self.targets.ndim != 1 or self.targets.is_floating_point():
            raise InvalidArgumentError(
                f"`DataSet.{method}()` needs one class label for each sample; {self.name!r} has "
                f"targets of shape {tuple(self.targets.shape)} and dtype {self.targets.dtype}, "
                f"num_classes={self.num_classes}."
            )
        return self.targets.cpu(), self.num_classes

    def _class_name(self, number: int) -> str:
        return repr(self.class_names[number]) if self.class_names else f"class {number}"
