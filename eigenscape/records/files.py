"""Files that are there whole or not at all: written aside, flushed to the disk, then renamed.

Arrays are safetensors with a checksum of their content, so that reading one back is also a proof.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from eigenscape.errors import FileError


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file in one step: after a crash the old content or the new one is there.

    Args:
        path: Where; its folder must exist.
        content: What.
    """
    write_with(path, lambda file: file.write_bytes(content))


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file under a temporary name beside `path`, then give it its name.

    A failure on the way (a full disk, say) removes what was begun and leaves `path` as it was.

    Args:
        path: The file's final place.
        write: Called with the temporary path.
    """
    temporary = path.with_name(f".{path.name}.unfinished")
    try:
        temporary.touch()
        mode = temporary.stat().st_mode  # what the user's umask gives; safetensors would narrow it
        write(temporary)
        temporary.chmod(mode)
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write named tensors as one safetensors file with a checksum, in one step.

    Args:
        path: Where.
        tensors: What; on any device.

    Raises:
        OSError: If it cannot be written, for instance to a full disk.
    """
    # Tensors that share memory are refused by safetensors, so each is copied where it may.
    host = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    metadata = {"checksum": _checksum(host)}
    try:
        write_with(path, lambda file: save_file(host, file, metadata=metadata))
    except SafetensorError as error:  # it has an error of its own for a full disk
        raise OSError(f"'{path}' could not be written: {error}") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read what `write_tensors` wrote, and prove that it is what was written.

    Args:
        path: The file.

    Returns:
        The tensors, on the CPU.

    Raises:
        FileError: If the file is missing, damaged, or from elsewhere.
    """
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())  # such a file cannot be iterated over itself
            tensors = {name: file.get_tensor(name) for name in names}
            expected = (file.metadata() or {}).get("checksum")
    except (SafetensorError, OSError) as error:
        raise FileError(f"'{path}' is damaged ({error}).") from error
    if expected != _checksum(tensors):
        raise FileError(f"'{path}' is damaged: its checksum does not fit its content.")
    return tensors


def crc(tensor: Tensor) -> int:
    """Return the CRC-32 of a tensor's bytes."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().data) if flat.numel() else 0


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(plain: Any) -> str:
    """Return ten hex digits that tell plain values from others, for the name of a file."""
    text = json.dumps(plain, sort_keys=True, default=list)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def text_tensor(text: str) -> Tensor:
    """Return text as bytes (n,), to be written among tensors."""
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def tensor_text(tensor: Tensor) -> str:
    """Return the text that `text_tensor` was given."""
    return bytes(tensor.tolist()).decode()


def _checksum(tensors: dict[str, Tensor]) -> str:
    return ",".join(f"{name}:{crc(tensors[name]):08x}" for name in sorted(tensors))


def _flush_folder(folder: Path) -> None:
    """Make the renaming itself survive a power cut."""
    if hasattr(os, "O_DIRECTORY"):  # Windows cannot open a folder, and need not
        handle = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
