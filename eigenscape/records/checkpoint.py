"""A folder that holds what a long computation had finished, so that a killed run loses nothing.

Pieces are numbered safetensors files, each there whole or not at all. `key.json` says which
computation the folder belongs to; another one, or a damaged piece, is refused.
"""

import json
import os
from pathlib import Path
from typing import Any

from torch import Tensor

from eigenscape.errors import CheckpointError, FileError
from eigenscape.records.files import read_tensors, write_bytes, write_tensors

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
        elif any(not file.name.endswith(".unfinished") for file in self._path.iterdir()):
            raise CheckpointError(
                f"`checkpoint='{path}'` must be a new or empty folder or an earlier checkpoint; it "
                "holds other files. Choose another folder."
            )
        else:
            write_bytes(key_file, json.dumps(key, sort_keys=True, indent=1).encode())

    def append(self, tensors: dict[str, Tensor]) -> None:
        """Add a piece after those that are there."""
        numbers = self._numbers()
        write_tensors(self._file(numbers[-1] + 1 if numbers else 0), tensors)

    def replace(self, tensors: dict[str, Tensor]) -> None:
        """Add a piece that makes all earlier ones superfluous, then remove those."""
        earlier = self._numbers()
        self.append(tensors)
        for number in earlier:
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
            stored_key = json.loads(key_file.read_text())
        except ValueError:
            stored_key = None
        expected = json.loads(json.dumps(key))
        if stored_key == expected:
            return
        if isinstance(stored_key, dict):
            names = sorted(
                n for n in {*stored_key, *expected} if stored_key.get(n) != expected.get(n)
            )
            what = ", ".join(f"{n}: {stored_key.get(n)!r}, now {expected.get(n)!r}" for n in names)
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

    def _load(self, number: int) -> dict[str, Tensor]:
        try:
            return read_tensors(self._file(number))
        except FileError as error:
            raise CheckpointError(f"{error} Delete the folder to start again.") from error
