"""Weights from a file that a user wrote. Nothing is ever unpickled that could run."""

import re
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from eigenscape.errors import FileError, near_matches

WRAPPERS = ("state_dict", "model_state_dict", "model")


def read_weights(path: Path, name: str) -> Any:
    """Read tensors and plain values; a pickle that names anything else is refused unopened.

    Args:
        path: A `.safetensors` file, or one that `torch.save` wrote.
        name: How a message begins, such as "The prior 'net.pt'".

    Returns:
        What the file holds, on the CPU.

    Raises:
        FileError: If it cannot be read, or would have to run code to be read.
    """
    if not path.is_file():
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        near = f" {near_matches(path.name, beside)}" if beside else ""
        raise FileError(f"{name} cannot be read: there is no such file.{near}")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise FileError(
                f"{name} cannot be read: it is no complete safetensors file ({error}). Save it "
                "again."
            ) from error
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:  # whose text recommends to read the file nevertheless
        match = re.search(r"GLOBAL ([\w.]+)", str(error))
        content = f"Python objects beside tensors ({match[1]})" if match else "more than tensors"
        raise FileError(
            f"{name} holds {content}. Reading it could run any code, so it was not read and "
            "nothing was run. Where you trust the file, save its weights alone: "
            "`torch.save(model.state_dict(), 'net.pt')`."
        ) from error
    except Exception as error:  # a zip that breaks off, a TorchScript archive, another format
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FileError(
            f"{name} cannot be read as weights ({text}). Save them with "
            "`torch.save(model.state_dict(), 'net.pt')`."
        ) from error


def unwrapped(content: Any) -> tuple[Any, str]:
    """Return the state dict that training code has put under a key, and that key.

    Args:
        content: What a file holds.

    Returns:
        The inner mapping and its key; the content itself and "" where there is none.

    Examples:
        >>> unwrapped({"model": {"w": 1.0}, "epoch": 3}), unwrapped({"w": 1.0})
        (({'w': 1.0}, 'model'), ({'w': 1.0}, ''))
    """
    for key in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            return content[key], key
    return content, ""
