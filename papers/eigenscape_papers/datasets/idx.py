"""MNIST and Fashion-MNIST: arrays in LeCun's IDX format."""

import math
import struct

import numpy as np
import torch
from numpy.typing import NDArray

from eigenscape.errors import DataError
from eigenscape_papers.datasets._images import Folder, RawImages, image_set
from eigenscape_papers.datasets._specs import ImageSpec
from eigenscape_papers.datasets.data_set import DataSet
from eigenscape_papers.datasets.files import read_files

_UNSIGNED_BYTE = 0x08


def load_idx(
    spec: ImageSpec, *, split: str = "train", folder: Folder = None, normalise: str = "standard"
) -> DataSet:
    """Load a set of images from an IDX file of images and one of labels.

    Args:
        spec: The files, and what they must hold.
        split: "train" or "test".
        folder: Where the files are.
        normalise: One of `NORMALISATIONS`.

    Returns:
        The data set; images have shape (1, height, width).

    Raises:
        DataError: If a file is missing, damaged, or not what it should be.
    """
    return image_set(spec, _read, split=split, folder=folder, normalise=normalise)


def parse_idx(content: bytes, name: str) -> NDArray[np.uint8]:
    """Read an array of bytes in IDX format: two zeros, type, rank, the dimensions, the entries.

    Args:
        content: The whole file, unpacked.
        name: The file's name, for refusals.

    Returns:
        The array, read-only.

    Raises:
        DataError: If the magic number, the type or the length is wrong.

    Examples:
        >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), "two labels")
        array([7, 9], dtype=uint8)
    """
    head = content[:4]
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] != _UNSIGNED_BYTE or head[3] == 0:
        raise DataError(
            f"{name} is no IDX file of bytes: expected it to begin with 00 00 08 and the rank, "
            f"got {head.hex(' ') or 'nothing'}."
        )
    start = 4 + 4 * head[3]
    if len(content) < start:
        raise DataError(
            f"{name} breaks off: expected {head[3]} dimensions in {start} bytes, got "
            f"{len(content)}."
        )
    shape = struct.unpack(f">{head[3]}I", content[4:start])
    if len(content) - start != math.prod(shape):
        raise DataError(
            f"{name} has the wrong length: expected {math.prod(shape)} bytes for shape {shape}, "
            f"got {len(content) - start}."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _read(spec: ImageSpec, split: str, folder: Folder) -> RawImages:
    image_file, label_file = spec.split_files[split]
    contents = {file.name: file for file in read_files(spec.files, spec.split_files[split], folder)}
    images = parse_idx(contents[image_file].data, image_file)
    labels = parse_idx(contents[label_file].data, label_file)
    if images.ndim != 3 or labels.ndim != 1:
        raise DataError(
            f"{image_file} and {label_file} must have 3 dimensions and 1; got {images.ndim} and "
            f"{labels.ndim}."
        )
    return RawImages(
        pixels=torch.from_numpy(images.copy()).unsqueeze(1),
        labels=torch.from_numpy(labels.astype(np.int64)),
        class_names=spec.class_names or (),
        sources=(contents[image_file].source, contents[label_file].source),
    )
