"""Every exception and warning of the package, and the few checks that word refusals alike.

A refusal has three parts: what was expected (the argument named with its call), what came, what to
do now. Shapes and types are shown, never tensors. Exceptions are for misuse, warnings for doubt;
numerical non-convergence is a status in the returned record, not an exception.
"""

import difflib
import importlib
from collections.abc import Iterable


class EigenscapeError(Exception):
    """Root of all errors raised on purpose by this package."""


class InvalidArgumentError(EigenscapeError, ValueError):
    """An argument has a value that the call cannot use."""


class WrongTypeError(EigenscapeError, TypeError):
    """An argument is of a kind that the call cannot use."""


class ShapeError(InvalidArgumentError):
    """A tensor has the wrong shape, dtype or device for the operation."""


class UnknownNameError(InvalidArgumentError):
    """A name matches nothing; the message lists near matches."""


class EmptySelectionError(InvalidArgumentError):
    """A selection of parameters, blocks or data holds nothing."""


class OverlapError(InvalidArgumentError):
    """Blocks that must be disjoint share entries."""


class TooLargeError(InvalidArgumentError):
    """An object would need an absurd amount of memory."""


class NotSymmetricError(InvalidArgumentError):
    """An algorithm for symmetric operators got another one."""


class NonFiniteError(EigenscapeError, ArithmeticError):
    """A loss, gradient or product is NaN or infinite."""


class NonDeterministicRiskError(EigenscapeError, RuntimeError):
    """Two passes over the same data disagree, so the Hessian is not defined."""


class UnsupportedModelError(EigenscapeError, RuntimeError):
    """A model does something that has no exact curvature here."""


class SelfTestError(UnsupportedModelError):
    """Derivatives are not those of the function, as differences of the function show."""


class FileError(EigenscapeError, RuntimeError):
    """A file is missing, damaged, or not what it should be."""


class CheckpointError(FileError):
    """A checkpoint is damaged or belongs to another computation."""


class RunError(FileError):
    """A run folder is damaged, unfinished, or none at all."""


class DataError(FileError):
    """A data file is missing, damaged, or not what it should be."""


class MissingPackageError(EigenscapeError, ImportError):
    """A package that comes with one of our extras cannot be imported."""


class RankError(EigenscapeError, ConnectionError):
    """Another process of the same computation has ended, failed, or does not answer."""


class EigenscapeWarning(UserWarning):
    """Root of all warnings of this package."""


class ConvergenceWarning(EigenscapeWarning):
    """A result did not reach its tolerance; its `status` says what to do."""


class SubstitutionWarning(EigenscapeWarning):
    """Something slower but exact was used in place of what was asked for."""


class GroupingWarning(EigenscapeWarning):
    """The loss depends on how samples are grouped into batches."""


def near_matches(name: str, candidates: Iterable[str], limit: int = 3) -> str:
    """Return a sentence that names the candidates nearest to `name`.

    Args:
        name: What the user wrote.
        candidates: What exists.
        limit: How many to name.

    Returns:
        "Nearest: 'a', 'b'." or, where nothing is near, the first few that exist.

    Examples:
        >>> near_matches("fc1.wieght", ["fc1.weight", "fc2.weight"], limit=1)
        "Nearest: 'fc1.weight'."
    """
    known = list(candidates)
    near = difflib.get_close_matches(name, known, n=limit, cutoff=0.5)
    if near:
        return "Nearest: " + ", ".join(repr(candidate) for candidate in near) + "."
    shown = ", ".join(repr(candidate) for candidate in known[:limit])
    return f"There are {len(known)}: {shown}{', …' if len(known) > limit else ''}."


# The packages that come with our extras, by what is imported; `pyproject.toml` gives the reasons.
EXTRAS = {
    "matplotlib": "report",
    "plotly": "report",
    "jinja2": "report",
    "typer": "cli",
    "rich": "cli",
    "pandas": "tables",
    "sklearn": "digits",
}


def require_packages(call: str, *packages: str) -> None:
    """Import packages of our extras, else refuse and name the extra to install.

    Args:
        call: What the user called.
        *packages: What it imports; keys of `EXTRAS`.

    Raises:
        MissingPackageError: If one cannot be imported.
    """
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingPackageError(
                f"`{call}` needs the package {package}; got: {error}. Install it: "
                f"`pip install 'eigenscape[{EXTRAS[package]}]'`."
            ) from error


# PyTorch's generator reads only 32 bits of a seed; a larger one would repeat a smaller one's draw.
LARGEST_SEED = 2**32 - 1


def require_count(
    value: object, call: str, *, at_least: int = 1, at_most: int | None = None
) -> int:
    """Return `value` if it is an integer in range, else refuse.

    Args:
        value: The argument to check.
        call: How the user wrote it, for example "eigsh(num_pairs=...)".
        at_least: Smallest allowed value.
        at_most: Largest allowed value, if any.

    Returns:
        The same number as an `int`.

    Raises:
        WrongTypeError: If it is not an integer.
        InvalidArgumentError: If it is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongTypeError(f"`{call}` must be an integer; got {type(value).__name__}.")
    if value < at_least or (at_most is not None and value > at_most):
        limits = f"at least {at_least}" if at_most is None else f"from {at_least} to {at_most}"
        raise InvalidArgumentError(f"`{call}` must be {limits}; got {value}.")
    return value


def require_choice(value: str, choices: Iterable[str], call: str) -> str:
    """Return `value` if it is one of `choices`, else refuse with the list.

    Args:
        value: The argument to check.
        choices: What is allowed.
        call: How the user wrote it.

    Returns:
        The same string.

    Raises:
        UnknownNameError: If it is none of the choices.
    """
    allowed = list(choices)
    if value not in allowed:
        names = ", ".join(repr(choice) for choice in allowed)
        raise UnknownNameError(f"`{call}` must be one of {names}; got {value!r}.")
    return value


def require_number(value: object, call: str) -> float:
    """Return `value` as a `float` if it is a real number, else refuse; `call` is as the user's."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongTypeError(f"`{call}` must be a number; got {type(value).__name__}.")
    return float(value)


def require_positive(value: float, call: str) -> float:
    """Return `value` if it is a finite number above zero, else refuse.

    Args:
        value: The argument to check.
        call: How the user wrote it.

    Returns:
        The same number as a `float`.

    Raises:
        WrongTypeError: If it is not a real number.
        InvalidArgumentError: If it is not finite and positive.
    """
    if not 0.0 < (number := require_number(value, call)) < float("inf"):
        raise InvalidArgumentError(f"`{call}` must be finite and above 0; got {value}.")
    return number


def require_not_negative(value: float, call: str) -> float:
    """Return `value` if it is a finite number of 0 or more, else refuse.

    Args:
        value: The argument to check.
        call: How the user wrote it.

    Returns:
        The same number as a `float`.

    Raises:
        WrongTypeError: If it is not a real number.
        InvalidArgumentError: If it is not finite, or negative.
    """
    if not 0.0 <= (number := require_number(value, call)) < float("inf"):
        raise InvalidArgumentError(f"`{call}` must be finite and 0 or more; got {value}.")
    return number


def require_seed(seed: object, call: str) -> int:
    """Return a seed if it is an integer from 0 to 2³² − 1, else refuse; `call` takes it."""
    return require_count(seed, f"{call}(seed=...)", at_least=0, at_most=LARGEST_SEED)
