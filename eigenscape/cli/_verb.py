"""What all verbs share: how they fail, how they end, and the options that several of them have."""

import functools
import inspect
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

import typer

from eigenscape.cli._screen import Screen
from eigenscape.errors import EigenscapeError, EigenscapeWarning, InvalidArgumentError, RankError

# Set by torchrun for what it starts; machines of a cluster may set the rest for every command.
_TORCHRUN = "TORCHELASTIC_RUN_ID"
_SPEAKING_SECONDS = 2.0
FINE, NOT_CONVERGED, REFUSED, UNEXPECTED, INTERRUPTED = 0, 1, 2, 3, 130

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print the result and errors, nothing else.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Seed = Annotated[int, typer.Option(help="Seed of all random numbers.", min=0)]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder with the files of data sets [default: $EIGENSCAPE_DATA or cache]."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


def verb(
    function: Callable[_Args, _Result], *, in_parallel: bool = False
) -> Callable[_Args, _Result]:
    """Make a command end with a message and an exit code in place of a traceback.

    Args:
        function: The command; it may have arguments `quiet` and `debug`.
        in_parallel: Whether several processes may share its work; others are refused.

    Returns:
        The command with its errors translated.
    """

    @functools.wraps(function)
    def run(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
        silent = is_follower() and (in_parallel or _TORCHRUN in os.environ)
        screen = Screen(quiet=bool(kwargs.get("quiet")), silent=silent)
        debug = bool(kwargs.get("debug"))
        try:
            if not in_parallel:
                _require_alone(function.__name__)
            with _warnings_as_notes(screen):
                return function(*args, **kwargs)
        except (typer.Exit, typer.Abort, typer.TyperException):
            raise
        except EigenscapeError as error:
            # Every process meets other refusals, so the first one shows them. A lost rank is shown
            # by all that notice: the first may be the one that died.
            _show(screen, str(error), debug, aloud=isinstance(error, RankError))
            raise typer.Exit(REFUSED) from None
        except KeyboardInterrupt:
            screen.error("Interrupted.")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # the reader of our output has gone, and needs no more of it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(FINE) from None
        except Exception as error:
            _show(screen, _unexpected(error, debug), debug, aloud=True)
            raise typer.Exit(UNEXPECTED) from None

    run.__doc__ = _help(function)
    return run


def _help(function: Callable[..., object]) -> str:
    """Make help from a docstring: examples keep their lines, and what callers need is left out."""
    text = re.split(r"\n\n(?:Args|Returns|Raises):\n", inspect.getdoc(function) or "")[0]
    return text.replace("\nExamples:\n", "\n\b\nExamples:\n")


def _unexpected(error: Exception, debug: bool) -> str:
    what = f"{type(error).__name__}: {error}".rstrip(": .")
    if "OutOfMemory" in what or "MemoryError" in what or "not enough memory" in what:
        return (
            f"The memory is not enough ({what.splitlines()[0]}). Lower `--batch-size`, or take a "
            "smaller `--budget` or fewer `--params`; the same command continues."
        )
    if isinstance(error, OSError) and ("No space left" in what or "Disk quota" in what):
        return (
            f"The disk is full ({what.splitlines()[0]}). Free some space and run the same command "
            "again: it continues from what was saved."
        )
    advice = "" if debug else " Add `--debug` for the traceback, and please report it."
    return f"Unexpected {what}.{advice}"


def _show(screen: Screen, text: str, debug: bool, *, aloud: bool) -> None:
    if debug and (aloud or not screen.silent):
        screen.err.print(traceback.format_exc().rstrip(), soft_wrap=True)
    screen.error(text, aloud=aloud)
    if screen.silent and not aloud:
        # torchrun ends all processes when one has failed; the first may still be printing.
        time.sleep(_SPEAKING_SECONDS)


def is_launched() -> bool:
    """Say whether this process is to join others; `distributed.join` asks the same."""
    # Not asked there: it would load PyTorch, and help must be instant.
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return all(name in os.environ for name in names)


def is_follower() -> bool:
    """Say whether another process of the same command is the first, which speaks for all."""
    return is_launched() and os.environ["RANK"] != "0"


def _require_alone(name: str) -> None:
    """Refuse several processes that would all do, and write, the same."""
    if _TORCHRUN in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        raise InvalidArgumentError(
            f"`eigenscape {name}` works in one process; torchrun started "
            f"{os.environ['WORLD_SIZE']}. Start it without torchrun: only `analyze` shares work."
        )


@contextmanager
def _warnings_as_notes(screen: Screen) -> Iterator[None]:
    """Print the package's own warnings as plain remarks; leave all others to Python."""
    with warnings.catch_warnings():
        warnings.filterwarnings("always", category=EigenscapeWarning)
        plain = warnings.showwarning

        def show(message: Any, category: Any, *args: Any, **options: Any) -> None:
            if isinstance(message, EigenscapeWarning):
                screen.note(f"Note: {message}")
            else:
                plain(message, category, *args, **options)

        warnings.showwarning = show
        yield


def open_file(screen: Screen, path: Path) -> None:
    """Open a report in the browser; say where it is if there is none."""
    import webbrowser

    if not webbrowser.open(path.resolve().as_uri()):
        screen.note(f"No browser was found; open {path} yourself.")
