"""`eigenscape env`: versions, devices, threads and data, as this command line sees them."""

import json
import platform
from importlib.metadata import version
from typing import Any

import typer

from eigenscape.cli._progress import Watch
from eigenscape.cli._screen import Screen
from eigenscape.cli._verb import AsJson, DataDir, Debug
from eigenscape.plugins import catalogues

_TF32 = "off inside all products, whatever PyTorch is set to; training may allow it"


def env(data_dir: DataDir = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Show versions, devices, threads and data sets.

    Examples:
      eigenscape env --json
    """
    screen = Screen()
    facts = environment()
    with Watch(screen, "checking the files of data sets"):
        data_sets = {"digits": "bundled with scikit-learn"}
        for catalogue in catalogues("data"):
            facts["data folder"] = str(catalogue.data_folders(data_dir)[0])
            data_sets |= {name: catalogue.file_state(name, data_dir) for name in catalogue.names()}
    facts["data sets"] = data_sets
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    states = ", ".join(f"{name} ({state})" for name, state in data_sets.items())
    screen.facts({**facts, "devices": ", ".join(facts["devices"]), "data sets": states})


def environment() -> dict[str, Any]:
    """Return versions, devices and threads, as plain values."""
    import torch

    from eigenscape.runs import versions

    return {
        **versions(),
        "scipy": version("scipy"),
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
