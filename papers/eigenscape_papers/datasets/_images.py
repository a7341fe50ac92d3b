"""What the readers of image files share: check the arrays, normalise, write the history."""

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike

from torch import Tensor

from eigenscape.errors import DataError, require_choice
from eigenscape_papers.datasets._specs import ImageSpec
from eigenscape_papers.datasets.data_set import DataSet
from eigenscape_papers.datasets.files import advice
from eigenscape_papers.datasets.pixels import NORMALISATIONS, from_pixels, pixel_statistics

Folder = str | PathLike[str] | None


@dataclass(frozen=True)
class RawImages:
    """Images as they stand in their files.

    Attributes:
        pixels: Of shape (samples, channels, height, width), uint8.
        labels: Of shape (samples,), int64.
        class_names: Names of the classes.
        sources: One sentence a file, for the history.
    """

    pixels: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    sources: tuple[str, ...]


Reader = Callable[[ImageSpec, str, Folder], RawImages]


def image_set(
    spec: ImageSpec, read: Reader, *, split: str, folder: Folder, normalise: str
) -> DataSet:
    """Read one split and normalise it with the statistics of the training split.

    Args:
        spec: What the files must hold.
        read: Reads one split.
        split: "train" or "test".
        folder: Where the files are.
        normalise: One of `NORMALISATIONS`.

    Returns:
        The data set.

    Raises:
        DataError: If a file is missing, damaged, or does not hold what the spec says.
    """
    call = f"load({spec.files.name!r}, normalise=...)"
    require_choice(normalise, NORMALISATIONS, call)
    raw = _checked(spec, split, read(spec, split, folder))
    statistics = spec.statistics
    if statistics is None:
        train = raw if split == "train" else _checked(spec, "train", read(spec, "train", folder))
        statistics = pixel_statistics(train.pixels)
    scale = statistics.named(normalise, call)
    return DataSet(
        name=spec.files.name,
        inputs=from_pixels(raw.pixels, scale),
        targets=raw.labels,
        num_classes=spec.num_classes,
        class_names=raw.class_names,
        split=split,
        history=(*raw.sources, scale.sentence()),
        pixels=scale,
    )


def _checked(spec: ImageSpec, split: str, raw: RawImages) -> RawImages:
    name, expected = spec.files.name, (spec.num_samples[split], *spec.shape)
    if tuple(raw.pixels.shape) != expected or tuple(raw.labels.shape) != expected[:1]:
        raise DataError(
            f"The files of {name!r} ({split}) must hold images {expected} and labels "
            f"{expected[:1]}; got {tuple(raw.pixels.shape)} and {tuple(raw.labels.shape)}. "
            f"{advice(spec.files)}"
        )
    low, high = int(raw.labels.min()), int(raw.labels.max())
    if low < 0 or high >= spec.num_classes or len(raw.class_names) != spec.num_classes:
        raise DataError(
            f"The files of {name!r} ({split}) must hold {spec.num_classes} classes with labels "
            f"from 0; got labels from {low} to {high} and {len(raw.class_names)} names. "
            f"{advice(spec.files)}"
        )
    return raw
