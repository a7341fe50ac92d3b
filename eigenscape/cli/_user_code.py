"""The user's own functions, by `file.py:function` or `package.module:function`.

A file is imported under a private name, so that `data.py` of the user and any module called `data`
stay apart; its folder is on the path while it is imported and while its function runs. What goes
wrong inside is shown as the user wrote it, without our frames.
"""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from eigenscape.errors import EigenscapeError, InvalidArgumentError, UnknownNameError, near_matches
from eigenscape.plugins import verbs

_PACKAGE = Path(__file__).resolve().parent.parent


def is_reference(text: str) -> bool:
    """Say whether a text names a function in a file or module, and not something built in.

    Args:
        text: What the user wrote.

    Returns:
        Whether it does.

    Examples:
        >>> is_reference("net.py:build"), is_reference("a.b:c"), is_reference("F-200^2")
        (True, True, False)
    """
    return ":" in text or text.endswith(".py")


def call(reference: str, role: str, *, ready: Callable[[object], bool]) -> Any:
    """Return what the user's function gives, called with no arguments.

    Args:
        reference: `file.py:function` or `package.module:function`.
        role: The argument it stands for, "MODEL" or "--data".
        ready: Whether an object is already what was wanted, and need not be called.

    Returns:
        What it returned, or the named object itself where that is ready.

    Raises:
        InvalidArgumentError: If it cannot be imported or called, or raises.
    """
    source, _, name = reference.rpartition(":")
    if not source or not name:
        raise InvalidArgumentError(_no_function(reference, role))
    path = Path(source)
    is_file = source.endswith(".py") or path.is_file()
    folder = path.resolve().parent if is_file else Path.cwd()
    with _on_path(folder), users_own(f"`{source}` could not be imported", _first_file(path)):
        module = _from_file(path, role) if is_file else _from_name(source, role)
    value = _member(module, name, reference, role)
    if ready(value):
        return value
    if not callable(value):
        raise InvalidArgumentError(
            f"{role} `{reference}` must be a function; got {type(value).__name__}. Write a "
            f"function that returns it."
        )
    _require_no_arguments(value, reference, role)
    with _on_path(folder), users_own(f"`{reference}` failed", _first_file(path)):
        return value()


@contextmanager
def users_own(what: str, file: Path | None = None) -> Iterator[None]:
    """Turn an error in the user's code into a refusal that shows their part of the traceback.

    Args:
        what: What failed, for the first words of the message.
        file: Where the user's part begins; by default at the first frame that is not ours.

    Yields:
        Nothing.

    Raises:
        InvalidArgumentError: In place of what was raised.
        EigenscapeError: As it was, if it is a refusal already.
    """
    try:
        yield
    except EigenscapeError as error:
        cause = error.__cause__
        trace = _from_user(cause.__traceback__, file) if cause is not None else None
        if cause is None or trace in (None, cause.__traceback__):  # no line of theirs to show
            raise
        raise InvalidArgumentError(f"{error}\n\n{_shown(cause, trace)}") from error
    except SystemExit as error:
        raise InvalidArgumentError(
            f"{what}: it called sys.exit({error.code!r}). Put what a script does under "
            '`if __name__ == "__main__":`.'
        ) from error
    except Exception as error:
        shown = _shown(error, _from_user(error.__traceback__, file))
        raise InvalidArgumentError(f"{what}:\n\n{shown}") from error


def _shown(error: BaseException, trace: TracebackType | None) -> str:
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


def _from_user(trace: TracebackType | None, file: Path | None) -> TracebackType | None:
    """Skip the frames before the user's first one; all of them stay where none is the user's."""
    step = trace
    while step is not None:
        name = step.tb_frame.f_code.co_filename
        at = Path(name).resolve() if not name.startswith("<") else None
        if at == file if file is not None else at is not None and not _is_library(at):
            return step
        step = step.tb_next
    # An import of a file that cannot be compiled has no frame of its own.
    return None if file is not None else trace


def _is_library(path: Path) -> bool:
    folders = path.parts
    is_ours = any(package in path.parents for package in (_PACKAGE, *_packages_of_verbs()))
    return is_ours or "site-packages" in folders or "dist-packages" in folders


@cache
def _packages_of_verbs() -> frozenset[Path]:
    """Return the folders of packages that add verbs: their frames are not the user's either."""
    specs = (find_spec(point.module.partition(".")[0]) for point in verbs())
    origins = (spec.origin for spec in specs if spec is not None and spec.origin)
    return frozenset(Path(origin).resolve().parent for origin in origins)


def _first_file(path: Path) -> Path | None:
    return path.resolve() if path.is_file() else None


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _from_file(path: Path, role: str) -> ModuleType:
    if not path.is_file():
        beside = [file.name for file in sorted(path.parent.glob("*.py"))] if path.name else []
        near = f" {near_matches(path.name, beside)}" if beside else ""
        raise InvalidArgumentError(
            f"{role} names the file '{path}', which does not exist (looked in "
            f"'{path.resolve().parent}').{near}"
        )
    full = path.resolve()
    # MODEL and --data may name the same file: it is run once, and its functions share what it has.
    name = f"_eigenscape_user_{hashlib.sha256(str(full).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, full)
    if spec is None or spec.loader is None:
        raise InvalidArgumentError(f"{role} names '{path}', which is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _from_name(name: str, role: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports something that is not
        raise InvalidArgumentError(
            f"{role} names the module '{name}', and Python finds no '{error.name}'. Install it, "
            "go to the folder that holds it, or name the file: `path/to/file.py:function`."
        ) from error


def _member(module: ModuleType, name: str, reference: str, role: str) -> Any:
    if hasattr(module, name):
        return getattr(module, name)
    names = [n for n, v in vars(module).items() if not n.startswith("_") and callable(v)]
    defined = [n for n in names if getattr(vars(module)[n], "__module__", "") == module.__name__]
    raise UnknownNameError(
        f"{role} `{reference}`: there is no '{name}' in it. {near_matches(name, defined or names)}"
    )


def _no_function(reference: str, role: str) -> str:
    path = Path(reference.rstrip(":"))
    text = f"{role} `{reference}` must name a function too: `{path}:function`."
    if not path.is_file():
        return text
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError):
        return text
    kinds = ast.FunctionDef | ast.ClassDef
    names = [node.name for node in body if isinstance(node, kinds) and node.name[0] != "_"]
    return f"{text} It has {', '.join(names)}." if names else text


def _require_no_arguments(function: Callable[..., Any], reference: str, role: str) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise InvalidArgumentError(
            f"{role} `{reference}` is called with no arguments, and needs {', '.join(needed)}. "
            "Give them defaults, or write a function without arguments that calls it."
        )
