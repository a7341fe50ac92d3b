"""Records as plain JSON values and named tensors, and back, bit by bit.

A stored record names its class by room: "eigenscape.linalg:SpectralDensity". So files may move
inside a room. A file makes no module run but those of eigenscape and of packages that were
installed to extend it.
"""

import dataclasses
import importlib
import json
import math
import sys
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from torch import Tensor

from eigenscape.errors import FileError, InvalidArgumentError, near_matches
from eigenscape.plugins import record_packages

_Class = TypeVar("_Class", bound=type)
_classes: dict[str, type] = {}


def storable(cls: _Class) -> _Class:
    """Let a dataclass be part of stored records; `Record`s are so by themselves.

    Args:
        cls: The class.

    Returns:
        The same class.

    Raises:
        InvalidArgumentError: If another class of the same room has this name.
    """
    key = key_of(cls)
    known = _classes.get(key)
    if known is not None and known.__module__ != cls.__module__:
        raise InvalidArgumentError(
            f"Two storable classes would be '{key}' in files: those of {known.__module__} and of "
            f"{cls.__module__}. Give one another name."
        )
    _classes[key] = cls
    return cls


def key_of(cls: type) -> str:
    """Return the name of a class in files: its room and its own name."""
    return f"{'.'.join(cls.__module__.split('.')[:2])}:{cls.__qualname__}"


def pack(record: Any) -> tuple[Any, dict[str, Tensor]]:
    """Split a record into plain JSON values and named tensors.

    Args:
        record: Any record whose fields are numbers, text, tensors, records, and tuples and dicts of
            such; or such a tuple or dict itself.

    Returns:
        The plain part, in which `{"$tensor": name}` stands for a tensor, and the tensors.
    """
    tensors: dict[str, Tensor] = {}
    return _pack(record, "", tensors), tensors


def unpack(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Make the record again from what `pack` returned.

    Args:
        plain: The plain part.
        tensors: The tensors by name.

    Returns:
        The record.

    Raises:
        FileError: If it names a class or a tensor that is not there, or fields do not fit.
    """
    try:
        return _unpack(plain, tensors)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise FileError(
            f"A stored record is not as `pack` writes it ({type(error).__name__}: {error}); the "
            "file is damaged or was edited. Run the computation again."
        ) from error


def _unpack(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(plain, list):
        return tuple(_unpack(item, tensors) for item in plain)
    if not isinstance(plain, dict):
        return plain
    if "$tensor" in plain:
        if plain["$tensor"] not in tensors:
            raise FileError(f"The array '{plain['$tensor']}' of a record is missing.")
        return tensors[plain["$tensor"]]
    if "$float" in plain:
        return float(plain["$float"])
    if "$record" not in plain:
        return {key: _unpack(item, tensors) for key, item in plain.items()}
    cls = _class_of(plain["$record"])
    if cls is None:
        raise FileError(
            f"A file holds a record of the unknown kind '{plain['$record']}'; it was written by "
            f"another version of eigenscape. {near_matches(str(plain['$record']), _classes)}"
        )
    fields = {key: _unpack(item, tensors) for key, item in plain["fields"].items()}
    for old, new in getattr(cls, "RENAMED", {}).items():
        if old in fields:
            fields[new] = fields.pop(old)
    try:
        return cls(**fields)
    except TypeError as error:
        raise FileError(
            f"A stored {cls.__name__} has other fields than this version's ({error}); it was "
            "written by another version of eigenscape. Run the computation again."
        ) from error


def _class_of(kind: str) -> type | None:
    """Find a storable class, in rooms that were not imported yet too."""
    key = _old_names().get(kind, kind)
    if key in _classes:
        return _classes[key]
    room, _, name = key.rpartition(":")
    package = room.partition(".")[0]
    if package == "eigenscape" or package in record_packages():
        try:
            importlib.import_module(room)
        except ImportError:
            return None
    elif room and package not in sys.modules:
        raise FileError(
            f"A file holds a record '{name}' of '{room}', which is not imported. Import the module "
            f"that defines {name} first."
        )
    return _classes.get(key)


@cache
def _old_names() -> dict[str, str]:
    """Return the keys of classes that files of before 0.3 name without a room."""
    text = files("eigenscape.records").joinpath("old_names.json").read_text(encoding="utf-8")
    known: dict[str, str] = json.loads(text)
    for package in record_packages().values():
        known |= package()
    return known


def _pack(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = path or "value"
        while name in tensors:  # keys with dots in them may give one path twice
            name += "'"
        tensors[name] = value
        return {"$tensor": name}
    if key_of(type(value)) in _classes and dataclasses.is_dataclass(value):
        fields = {
            f.name: _pack(getattr(value, f.name), f"{path}.{f.name}".lstrip("."), tensors)
            for f in dataclasses.fields(value)
        }
        return {"$record": key_of(type(value)), "fields": fields}
    if isinstance(value, list | tuple):
        return [_pack(item, f"{path}.{i}", tensors) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        if len({str(key) for key in value}) < len(value):
            raise FileError(
                f"A record's field '{path}' has keys that are one text; give them other names."
            )
        return {str(k): _pack(item, f"{path}.{k}", tensors) for k, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise FileError(
        f"A record's field '{path}' is a {type(value).__name__}, which cannot be stored; use "
        "numbers, text, tensors, records (or classes marked `storable`), tuples and dicts."
    )
