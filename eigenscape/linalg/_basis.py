"""Where the basis of a Lanczos run lives: on the operator's device, in host memory, or in a file.

Letters: V (j, n) the rows so far; W (b, n) rows on the device; c (b, j) coefficients of W on V.

Rows that live elsewhere pass through the device a chunk at a time, so that the device holds no more
of them than that. One pass that removes V reads it once: each chunk gives its coefficients and is
taken out before the next one comes, which for orthonormal rows is the same.
"""

import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from types import TracebackType

import torch
from torch import Tensor

from eigenscape.errors import FileError, TooLargeError, WrongTypeError
from eigenscape.linalg._products import dots
from eigenscape.linear_operator import LinearOperator

Place = str | os.PathLike[str] | None

# What passes through the device at a time: enough for a full-speed copy, little beside a network.
CHUNK_BYTES = 2**28


class Basis:
    """Up to `capacity` rows: append, remove from others, combine, and turn in place."""

    def __init__(self, operator: LinearOperator, capacity: int, place: Place = None) -> None:
        """Reserve the room.

        Args:
            operator: Gives the length of a row, its dtype and the device that computes.
            capacity: How many rows.
            place: None or "device", "host", or a folder for a file.
        """
        shape = capacity, operator.space.size
        self.capacity, self._device = capacity, operator.device
        row = shape[1] * operator.dtype.itemsize
        self._chunk = capacity if on_device(place) else max(1, CHUNK_BYTES // max(1, row))
        self._count = 0
        if place is None or place == "device":
            self._rows = torch.empty(shape, dtype=operator.dtype, device=operator.device)
        elif place == "host":
            pinned = operator.device.type == "cuda"
            self._rows = _in_memory(shape, operator.dtype, pinned=pinned)
        else:
            self._rows = _in_file(place, shape, operator.dtype)

    def __enter__(self) -> "Basis":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The file has no name any more; its room on the disk goes with the last reference.
        self._rows = self._rows.new_empty(0, 0)

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Tensor:
        """V itself, wherever it lives."""
        return self._rows[: self._count]

    def append(self, rows: Tensor) -> None:
        """Add rows, from any device."""
        end = self._count + rows.shape[0]
        self._rows[self._count : end] = rows
        self._count = end

    def project_out(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """Remove V from rows W, in one pass.

        Args:
            W: Rows (b, n) on the device.

        Returns:
            What is left of W, and the coefficients (b, j) in float64, on the device.
        """
        removed = [W.new_empty(W.shape[0], 0, dtype=torch.float64)]
        for index in self._chunks(torch.arange(self._count)):
            V = self._pick(index)
            c = dots(W, V)
            W = W - c.to(W) @ V
            removed.append(c)
        return W, torch.cat(removed, dim=1)

    def combine(self, coefficients: Tensor) -> Tensor:
        """Return coefficients · V (k, n) on the device; rows that count for nothing are not read.

        Args:
            coefficients: (k, j) on the host.
        """
        k, n = coefficients.shape[0], self._rows.shape[1]
        total: Tensor | None = None
        for index in self._chunks(coefficients.any(0).nonzero()[:, 0]):
            V = self._pick(index)
            part = coefficients[:, index].to(V, non_blocking=True) @ V
            total = part if total is None else total.add_(part)
        if total is None:
            return torch.zeros(k, n, dtype=self._rows.dtype, device=self._device)
        return total

    def rotate(self, Y: Tensor) -> None:
        """Replace V by Yᵀ V, in place.

        A chunk here is a panel of columns: it depends on the same columns of V only.

        Args:
            Y: (j, k) with k ≤ j, on the host.
        """
        j, k = Y.shape
        turn = Y.T.to(self._device, self._rows.dtype)
        width = max(1, CHUNK_BYTES // max(1, j * self._rows.element_size()))
        for start in range(0, self._rows.shape[1], width):
            columns = slice(start, start + width)
            self._rows[:k, columns] = turn @ self._rows[:j, columns].to(self._device)
        self._count = k

    def _chunks(self, index: Tensor) -> Iterator[Tensor]:
        yield from index.split(self._chunk) if index.numel() else ()

    def _pick(self, index: Tensor) -> Tensor:
        """Return these rows (ascending, at least one) on the device."""
        first, last = int(index[0]), int(index[-1]) + 1
        if last - first == index.numel():  # neighbours: no copy where they live on the device
            V = self._rows[first:last]
        else:
            V = self._rows[index.to(self._rows.device, non_blocking=True)]
        return V.to(self._device, non_blocking=True)


def on_device(place: Place) -> bool:
    """Say whether rows live where they are used; refuse what names no place."""
    if place is not None and not isinstance(place, str | os.PathLike):
        raise WrongTypeError(
            f'`eigsh(basis=...)` must be "device", "host" or a folder; got {type(place).__name__}.'
        )
    return place is None or place == "device"


def _in_memory(shape: tuple[int, int], dtype: torch.dtype, *, pinned: bool) -> Tensor:
    try:
        return torch.empty(shape, dtype=dtype, pin_memory=pinned)
    except RuntimeError as error:
        if pinned:  # copies are slower from plain memory, and it may be had where pinned is not
            return _in_memory(shape, dtype, pinned=False)
        raise TooLargeError(
            f'`eigsh(basis="host")` needs {_size(shape, dtype)} of memory for {shape[0]} vectors, '
            "which the machine does not give. Lower `max_basis=`, or give a folder: `basis=path`."
        ) from error


def _in_file(place: str | os.PathLike[str], shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Return rows in a file that nobody else sees: it has no name, and ends with the process."""
    folder, size = os.fspath(place), math.prod(shape) * dtype.itemsize
    needs = f"`eigsh(basis='{folder}')` needs {_size(shape, dtype)} for {shape[0]} vectors"
    try:
        free = shutil.disk_usage(folder).free
        if size > free:
            raise FileError(
                f"{needs}, and the folder's disk has {free / 2**30:.1f} GiB left. Lower "
                "`max_basis=`, or choose another folder."
            )
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):
                # Without its room set aside, a disk that fills up later would kill the process.
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            view = mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise FileError(
            f"{needs} in a folder that is there and can be written; got: {error}. Make it, choose "
            'another one, or use "device" or "host".'
        ) from error
    return torch.frombuffer(view, dtype=dtype).view(shape)


def _size(shape: tuple[int, int], dtype: torch.dtype) -> str:
    return f"{math.prod(shape) * dtype.itemsize / 2**30:.1f} GiB"
