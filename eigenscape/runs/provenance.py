"""Where a result comes from: versions, device, commit."""

import platform
import subprocess
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eigenscape.plugins import __version__
from eigenscape.records import Record, pack

_GIT_SECONDS = 5


def versions() -> dict[str, str]:
    """Return the versions of what computed a result."""
    return {
        "eigenscape": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def commit() -> str | None:
    """Return the commit of the git repository that we stand in; None where there is none."""
    try:
        process = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip() or None if process.returncode == 0 else None


def now() -> str:
    """Return the time in UTC, to the second, in ISO form."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def device_of(record: Record) -> str:
    """Return where a record was computed: what it says itself, or where its tensors are."""
    for holder in (record, getattr(record, "plan", None)):
        device = getattr(holder, "device", None)
        if isinstance(device, str):
            return device
    tensors: dict[str, Tensor] = pack(record)[1]
    return next((str(tensor.device) for tensor in tensors.values()), "cpu")


def seconds_of(record: Record) -> float | None:
    """Return the wall time that a record knows of itself."""
    stages: Any = getattr(record, "stage_seconds", None)
    if isinstance(stages, dict) and stages:
        return float(sum(stages.values()))
    measured = getattr(record, "seconds", None)
    return float(measured) if isinstance(measured, int | float) else None


def provenance(record: Record) -> dict[str, Any]:
    """Return where a record comes from, as plain values for a file.

    Args:
        record: Any record.

    Returns:
        Date, device, versions and commit.
    """
    return {
        "created": now(),
        "device": device_of(record),
        "seconds": seconds_of(record),
        "versions": versions(),
        "commit": commit(),
    }
