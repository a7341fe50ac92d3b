"""`eigenscape env`: versions, devices, threads and data, as this command line sees them."""

import importlib
import json
import platform
from typing import Any

import typer

from eigenscape.cli._progress import Watch
from eigenscape.cli._screen import Screen
from eigenscape.cli._verb import AsJson, DataDir, Debug
from eigenscape.plugins import __version__, catalogues

_TF32 = "off inside all products, whatever PyTorch is set to; training may allow it"


def env(data_dir: DataDir = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show versions, devices, threads and data sets.

    Examples:
      eigenscape env --json
    """
    screen = Screen()
    facts = environment()
    with Watch(screen, "checking the files of data sets"):
        facts["data folder"] = _data_folder(data_dir)
        facts["data sets"] = {"digits": "bundled with scikit-learn"}
        for catalogue in catalogues("data"):
            states = {name: catalogue.file_state(name, data_dir) for name in catalogue.names()}
            facts["data sets"] |= states
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    data_sets = ", ".join(f"{name} ({state})" for name, state in facts["data sets"].items())
    screen.facts({**facts, "devices": ", ".join(facts["devices"]), "data sets": data_sets})


def environment() -> dict[str, Any]:
    """Return versions, devices and threads, as plain values."""
    import torch

    versions = {
        name: str(importlib.import_module(name).__version__) for name in ("torch", "numpy", "scipy")
    }
    return {
        "eigenscape": __version__,
        "python": platform.python_version(),
        **versions,
        "devices": devices(),
        "threads": torch.get_num_threads(),
        "tf32": _TF32,
    }


def devices() -> list[str]:
    """Return the devices that PyTorch can use, in words."""
    import torch

    from eigenscape.records import size

    names = [f"cpu ({platform.machine()})"]
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            card = torch.cuda.get_device_properties(number)
            names.append(f"cuda:{number} ({card.name}, {size(card.total_memory)})")
    return names


def _data_folder(data_dir: object) -> str:
    """Return where data are looked for: the option, the variable, or the cache."""
    import os
    from pathlib import Path

    if data_dir is not None:
        return str(data_dir)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return os.environ.get("EIGENSCAPE_DATA") or str(cache / "eigenscape" / "data")
