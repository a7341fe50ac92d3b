"""What this machine has left, and the refusal to start what it cannot hold."""

import os
import shutil
from pathlib import Path

import torch

from eigenscape.errors import TooLargeError

# Where Linux says how much memory a container may take, and how much it has taken.
_CONTAINER = Path("/sys/fs/cgroup")
_ADVICE = (
    "Take a smaller `budget=` ('quick', 'first-look'), fewer pairs (`num_pairs=`), fewer parameters"
    " (`params=`), fewer samples, or float32 for float64. `ignore_limits=True` (`--ignore-limits`) "
    "starts all the same, and may fail when nothing is left."
)


def available_memory(device: torch.device) -> int | None:
    """Return the bytes that a device has left; None where the machine does not say.

    Args:
        device: A processor, whose memory is the host's, or a GPU.

    Returns:
        The bytes.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    known = [left for left in (_host_memory(), _container_memory()) if left is not None]
    return min(known, default=None)


def available_disk(folder: Path) -> int | None:
    """Return the bytes that are free where a folder is, or will be made."""
    ancestor = folder.absolute()
    while not ancestor.exists() and ancestor != ancestor.parent:
        ancestor = ancestor.parent
    try:
        return shutil.disk_usage(ancestor).free
    except OSError:
        return None


def require_room(
    memory_bytes: int, disk_bytes: int, device: torch.device, folder: Path | None
) -> None:
    """Refuse what needs more memory or disk than there is.

    Args:
        memory_bytes: Memory needed on the device.
        disk_bytes: What is written to the folder.
        device: The device.
        folder: Where it is written; None where nothing is.

    Raises:
        TooLargeError: If there is less.
    """
    left = available_memory(device)
    if left is not None and memory_bytes > left:
        raise TooLargeError(
            f"The analysis needs about {_size(memory_bytes)} of memory on {device} beside model "
            f"and data; {_size(left)} are available. {_ADVICE}"
        )
    free = None if folder is None or not disk_bytes else available_disk(folder)
    if free is not None and disk_bytes > free:
        raise TooLargeError(
            f"The analysis needs about {_size(disk_bytes)} of disk in '{folder}' for eigenvectors; "
            f"{_size(free)} are free. {_ADVICE}"
        )


def _host_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        entry = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(entry.split()[1]) * 1024
    except (OSError, StopIteration, ValueError, IndexError):
        pass
    try:
        return int(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return None


def _container_memory() -> int | None:
    try:
        limit = int((_CONTAINER / "memory.max").read_text())
        taken = int((_CONTAINER / "memory.current").read_text())
        lines = (_CONTAINER / "memory.stat").read_text().splitlines()
        cached = next(line.split()[1] for line in lines if line.startswith("inactive_file "))
        return limit - taken + int(cached)  # files that were read make room for what is needed
    except (OSError, StopIteration, ValueError):  # no container, or no limit: "max"
        return None


def _size(count: int) -> str:
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"
