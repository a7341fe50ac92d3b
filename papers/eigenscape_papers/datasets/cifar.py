"""CIFAR-10 and CIFAR-100: Python 2 pickles, read by an unpickler that can build nothing but data.

A pickle is a program. Its checksum is compared before it is opened; what is then run may name three
globals of numpy and no other, and even those are stand-ins that only keep what they are given.
"""

import io
import pickle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eigenscape.errors import DataError
from eigenscape_papers.datasets._images import Folder, RawImages, image_set
from eigenscape_papers.datasets._specs import ImageSpec
from eigenscape_papers.datasets.data_set import DataSet
from eigenscape_papers.datasets.files import read_files


def load_cifar(
    spec: ImageSpec, *, split: str = "train", folder: Folder = None, normalise: str = "standard"
) -> DataSet:
    """Load CIFAR images from their batches: loose, packed with xz, or in the original archive.

    Args:
        spec: The files, and what they must hold.
        split: "train" or "test".
        folder: Where the files are.
        normalise: One of `NORMALISATIONS`.

    Returns:
        The data set; images have shape (3, 32, 32).

    Raises:
        DataError: If a file is missing, damaged, or not what it should be.
    """
    return image_set(spec, _read, split=split, folder=folder, normalise=normalise)


def unpickle(content: bytes, name: str) -> dict[bytes, Any]:
    """Read a pickled dict of numbers, byte strings, lists and uint8 arrays, and nothing else.

    Args:
        content: The whole file.
        name: The file's name, for refusals.

    Returns:
        The dict; keys are bytes, as Python 2 wrote them.

    Raises:
        DataError: If it names any global but those of a numpy array, or is no such dict.
    """
    try:
        loaded = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    except Exception as error:  # a damaged pickle can raise anything at all
        raise DataError(
            f"{name} must be a pickle; got something that cannot be read as one "
            f"({type(error).__name__}: {error})."
        ) from error
    if not isinstance(loaded, dict):
        raise DataError(f"{name} must hold a dict; got {type(loaded).__name__}.")
    return {
        key: value.array(name) if isinstance(value, _Array) else value
        for key, value in loaded.items()
    }


class _Dtype:
    """Stands for numpy.dtype while a pickle is read."""

    def __init__(self, code: object = None, *_: object) -> None:
        self.code = code.decode("ascii", "replace") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        """Take nothing: byte order and flags mean nothing for single bytes."""


class _Array:
    """Stands for numpy.ndarray, and for the function that makes one, while a pickle is read."""

    def __init__(self, *_: object) -> None:
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        """Keep what numpy would build an array from."""
        self.state = state

    def array(self, name: str) -> NDArray[np.uint8]:
        """Build the array, if it is one of plain bytes in C order."""
        state = self.state
        if isinstance(state, tuple) and len(state) == 5:
            _, shape, dtype, is_fortran, data = state
            if (
                isinstance(shape, tuple)
                and isinstance(dtype, _Dtype)
                and dtype.code == "u1"
                and not is_fortran
                and isinstance(data, bytes)
            ):
                try:
                    return np.frombuffer(data, np.uint8).reshape(shape)
                except (TypeError, ValueError) as error:
                    raise DataError(f"{name} holds a damaged array: {error}.") from error
        raise DataError(f"{name} must hold uint8 arrays in C order; got another kind of array.")


# Where _reconstruct lives depends on the numpy that wrote the file.
_STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[_Array] | type[_Dtype]:
        """Give the stand-in of a numpy global, and refuse every other name."""
        known = _STAND_INS.get((module, name))
        if known is None:
            raise DataError(
                "a pickle of arrays may name only numpy's array and dtype; this one asks for "
                f"{module}.{name}, which could run code. Nothing was run; do not use this file."
            )
        return known


def _read(spec: ImageSpec, split: str, folder: Folder) -> RawImages:
    batches, (meta,) = spec.split_files[split], spec.split_files["names"]
    rows = spec.num_samples[split] // len(batches)
    width = int(np.prod(spec.shape))
    # One array for all batches: as bytes they take a quarter of what the inputs will.
    pixels = np.empty((len(batches), rows, width), np.uint8)
    labels = np.empty((len(batches), rows), np.int64)
    names: tuple[str, ...] = ()
    sources = {}
    for file in read_files(spec.files, (*batches, meta), folder):
        content = unpickle(file.data, file.name)
        sources[file.name] = file.source
        if file.name == meta:
            names = _names(content.get(spec.names_key), meta)
            continue
        number = batches.index(file.name)
        pixels[number], labels[number] = _batch(content, spec, file.name, (rows, width))
    return RawImages(
        pixels=torch.from_numpy(pixels.reshape(-1, *spec.shape)),
        labels=torch.from_numpy(labels.reshape(-1)),
        class_names=names,
        sources=tuple(sources[name] for name in (*batches, meta)),
    )


def _batch(
    content: dict[bytes, Any], spec: ImageSpec, name: str, shape: tuple[int, int]
) -> tuple[NDArray[np.uint8], list[int]]:
    data, labels = content.get(b"data"), content.get(spec.label_key)
    if not isinstance(data, np.ndarray) or data.shape != shape:
        got = f"shape {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise DataError(f"{name} must hold an array of shape {shape} under 'data'; got {got}.")
    key = spec.label_key.decode()
    if not isinstance(labels, list) or len(labels) != shape[0]:
        got = f"{len(labels)}" if isinstance(labels, list) else type(labels).__name__
        raise DataError(f"{name} must hold a list of {shape[0]} labels under {key!r}; got {got}.")
    if not all(type(label) is int and 0 <= label < spec.num_classes for label in labels):
        raise DataError(
            f"{name} must hold labels from 0 to {spec.num_classes - 1} under {key!r}; got others."
        )
    return data, labels


def _names(value: object, name: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, bytes) for item in value):
        raise DataError(f"{name} must hold a list of class names; got {type(value).__name__}.")
    return tuple(item.decode("ascii", "replace") for item in value)
