"""A folder that holds what a long computation had finished, so that a killed run loses nothing.

Pieces are numbered safetensors files with a checksum, each written to a temporary name, flushed to
the disk and renamed: a piece is there whole or not at all. `key.json` says which computation the
folder belongs to; another one, or a damaged piece, is refused.
"""

import json
import os
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from eigenscape.errors import CheckpointError

Key = dict[str, Any]


class Checkpoint:
    """Numbered pieces of one computation's state."""

    def __init__(self, path: str | os.PathLike[str], key: Key) -> None:
        """Open the folder, or make it.

        Args:
            path: The folder; it must be new, empty, or of the same computation.
            key: Plain values that tell this computation from others.

        Raises:
            CheckpointError: If the folder holds something else.
        """
        self._path = Path(path)
        self._path.mkdir(parents=True, exist_ok=True)
        key_file = self._path / "key.json"
        if key_file.exists():
            self._require_same(key_file, key)
        elif any(self._path.iterdir()):
            raise CheckpointError(
                f"`checkpoint='{path}'` must be a new or empty folder or an earlier checkpoint; it "
                "holds other files. Choose another folder."
            )
        else:
            _write(key_file, json.dumps(key, sort_keys=True, indent=1).encode())

    def append(self, tensors: dict[str, Tensor]) -> None:
        """Add a piece after those that are there."""
        numbers = self._numbers()
        self._save(numbers[-1] + 1 if numbers else 0, tensors)

    def replace(self, tensors: dict[str, Tensor]) -> None:
        """Add a piece that makes all earlier ones superfluous, then remove those."""
        numbers = self._numbers()
        self._save(numbers[-1] + 1 if numbers else 0, tensors)
        for number in numbers:
            self._file(number).unlink()

    def load(self) -> list[dict[str, Tensor]]:
        """Read all pieces in order.

        Returns:
            The tensors of each piece, on the CPU; an empty list for a new checkpoint.

        Raises:
            CheckpointError: If a piece is damaged or missing.
        """
        numbers = self._numbers()
        if numbers != list(range(numbers[0], numbers[0] + len(numbers)) if numbers else []):
            raise CheckpointError(
                f"`checkpoint='{self._path}'` lacks pieces: found {numbers}. Delete the folder to "
                "start again."
            )
        return [self._load(number) for number in numbers]

    def _require_same(self, key_file: Path, key: Key) -> None:
        try:
            found = json.loads(key_file.read_text())
        except ValueError:
            found = None
        expected = json.loads(json.dumps(key))
        if found == expected:
            return
        if isinstance(found, dict):
            names = sorted(n for n in {*found, *expected} if found.get(n) != expected.get(n))
            what = ", ".join(f"{n}: {found.get(n)!r}, now {expected.get(n)!r}" for n in names)
        else:
            what = "key.json cannot be read"
        raise CheckpointError(
            f"`checkpoint='{self._path}'` belongs to another computation ({what}). Use the same "
            "arguments as before, or another folder."
        )

    def _numbers(self) -> list[int]:
        return sorted(int(file.stem.removeprefix("piece-")) for file in self._path.glob("piece-*"))

    def _file(self, number: int) -> Path:
        return self._path / f"piece-{number:06d}.safetensors"

    def _save(self, number: int, tensors: dict[str, Tensor]) -> None:
        host = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        temporary = self._path / "unfinished"
        save_file(host, temporary, metadata={"checksum": _checksum(host)})
        _commit(temporary, self._file(number))

    def _load(self, number: int) -> dict[str, Tensor]:
        file = self._file(number)
        try:
            with safe_open(file, framework="pt") as piece:
                names = list(piece.keys())  # a piece cannot be iterated over itself
                tensors = {name: piece.get_tensor(name) for name in names}
                expected = (piece.metadata() or {}).get("checksum")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"'{file}' is damaged ({error}). Delete the folder to start again."
            ) from error
        if expected != _checksum(tensors):
            raise CheckpointError(
                f"'{file}' is damaged: its checksum does not fit. Delete the folder to start again."
            )
        return tensors


def crc(tensor: Tensor) -> int:
    """Return the CRC-32 of a tensor's bytes."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().data) if flat.numel() else 0


def _checksum(tensors: dict[str, Tensor]) -> str:
    return ",".join(f"{name}:{crc(tensors[name]):08x}" for name in sorted(tensors))


def _write(file: Path, content: bytes) -> None:
    temporary = file.with_name("unfinished")
    temporary.write_bytes(content)
    _commit(temporary, file)


def _commit(temporary: Path, file: Path) -> None:
    """Flush a finished file to the disk and give it its name in one step."""
    with temporary.open("rb") as handle:
        os.fsync(handle.fileno())
    temporary.replace(file)
    if hasattr(os, "O_DIRECTORY"):  # Windows cannot open a folder, and need not
        folder = os.open(file.parent, os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
