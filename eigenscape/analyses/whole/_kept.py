"""Records that a killed run had finished, kept as files until the whole is saved."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from eigenscape.errors import CheckpointError, FileError
from eigenscape.records import Record, pack, read_tensors, unpack, write_bytes, write_tensors

_Record = TypeVar("_Record", bound=Record)


def is_kept(file: Path | None) -> bool:
    """Say whether a record is there; its JSON is written last."""
    return file is not None and file.with_suffix(".json").exists()


def kept(file: Path | None, compute: Callable[[], _Record]) -> _Record:
    """Return the record that is kept in a file, or compute it and keep it.

    Args:
        file: Where, without a suffix; in a folder that a `Checkpoint` guards. None keeps nothing.
        compute: Makes the record.

    Returns:
        The record, in host memory.

    Raises:
        CheckpointError: If the file is damaged.
    """
    if file is None:
        return compute().cpu()
    plain_file, tensor_file = file.with_suffix(".json"), file.with_suffix(".safetensors")
    if not plain_file.exists():
        record = compute().cpu()
        plain, tensors = pack(record)
        write_tensors(tensor_file, tensors)
        write_bytes(plain_file, json.dumps(plain).encode())
        return record
    try:
        stored = unpack(json.loads(plain_file.read_text()), read_tensors(tensor_file))
    except (ValueError, FileError) as error:
        raise CheckpointError(
            f"What is kept in '{file}' is damaged ({error}). Delete the folder '{file.parent}' to "
            "start again."
        ) from error
    return cast(_Record, stored)
