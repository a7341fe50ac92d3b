"""What is plugged in from above, so that no room needs to know those above it.

The renderer of pictures is named by the front door. Verbs of the command line, and packages whose
records may be read from files, are entry points of installed packages.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, cast

from eigenscape.errors import EigenscapeError

__version__ = "0.3.0"

_named: dict[str, Callable[[], Any]] = {}


class Renderer(Protocol):
    """What draws records: the room `report`."""

    def draw(self, record: Any, ax: Any = None) -> Any:
        """Draw a record's first picture with matplotlib, and return the axes."""

    def write_files(self, record: Any, folder: Path, settings: Mapping[str, Any]) -> None:
        """Write a record's figures and its page into a folder."""


class RunKeeper(Protocol):
    """What keeps records in folders: the room `runs`."""

    def save_run(self, record: Any, folder: Any, *, overwrite: bool = False) -> Path:
        """Keep a record as a run folder, and return it."""


def use(*, renderer: Callable[[], Renderer], run_keeper: Callable[[], RunKeeper]) -> None:
    """Name what draws records and what keeps them; each is loaded when it is first asked for."""
    _named.update(renderer=renderer, run_keeper=run_keeper)


def renderer() -> Renderer:
    """Return what draws records."""
    return cast(Renderer, _loaded("renderer"))


def run_keeper() -> RunKeeper:
    """Return what keeps records in folders."""
    return cast(RunKeeper, _loaded("run_keeper"))


def _loaded(what: str) -> Any:
    if what not in _named:
        raise EigenscapeError(f"There is no {what} here; `import eigenscape` names one.")
    return _named[what]()


@cache
def record_packages() -> dict[str, Callable[[], dict[str, str]]]:
    """Return the packages whose records may be read from files, by name.

    Each is an entry point in the group "eigenscape.record_names": a package, and a function
    that returns the keys of its classes by the names that old files have for them.
    """
    return {point.name: point.load() for point in entry_points(group="eigenscape.record_names")}


def verbs() -> tuple[EntryPoint, ...]:
    """Return further verbs of the command line: entry points in the group "eigenscape.verbs"."""
    return tuple(sorted(entry_points(group="eigenscape.verbs"), key=lambda point: point.name))


def catalogues(kind: str) -> tuple[Any, ...]:
    """Return further catalogues of names for the command line.

    Args:
        kind: "data", modules with `names()`, `load(name, split=..., folder=...)`,
            `file_state(name, folder)` and `data_folders(folder)`; or "models",
            modules with `describe()` and `build(name, input_shape=..., num_classes=..., ...)`.

    Returns:
        What the entry points of the group "eigenscape.data" or "eigenscape.models" name.
    """
    return tuple(point.load() for point in entry_points(group=f"eigenscape.{kind}"))
