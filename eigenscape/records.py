"""What every computation returns: a frozen record with its status, its cost and its seed.

A record can be read (`str`), tabulated (`to_frame`), drawn (`plot`), kept (`save`) and turned into
plain values (`to_dict`). `pack` and `unpack` take it to JSON plus named tensors and back, bit by
bit; only classes that registered themselves are ever made from a file.
"""

import dataclasses
import importlib
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from torch import Tensor

from eigenscape.errors import ConvergenceWarning, EigenscapeError, FileError, near_matches

if TYPE_CHECKING:
    from pathlib import Path

    import pandas
    from matplotlib.axes import Axes

Columns = Mapping[str, Iterable[Any]]

_SHOWN = 20
_storable: dict[str, type] = {}
# The rooms whose classes are stored. A class registers when its room is imported, and whoever opens
# a file need not have done so; nothing else is ever imported for a file's sake.
_ROOMS = (
    "pairs",
    "linalg",
    "train",
    "analyses",
    "theory",
    "stepsize",
    "representations",
    "report",
    "bounds",
    "studies",
)
_Class = TypeVar("_Class", bound=type)


def storable(cls: _Class) -> _Class:
    """Let a dataclass be part of stored records; `Record`s are so by themselves."""
    _storable[cls.__name__] = cls
    return cls


@storable
@dataclass(frozen=True)
class Status:
    """Whether a computation reached what was asked, and if not, what to do.

    Attributes:
        converged: True if everything that was asked for was reached.
        text: What happened; advice where it did not converge.
    """

    converged: bool
    text: str

    def __bool__(self) -> bool:
        """Read `if record.status:` as "if it converged"."""
        return self.converged

    def __str__(self) -> str:
        """Return the text alone."""
        return self.text

    def warn(self) -> "Status":
        """Issue a `ConvergenceWarning` if not converged, and return the status."""
        if not self.converged:
            warnings.warn(self.text, ConvergenceWarning, stacklevel=3)
        return self


# What a comparison must resolve to say anything, and how far beyond that is a contradiction.
_COARSEST, BEYOND = 0.1, 10.0


@storable
@dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes:
        name: What was compared, and on what.
        deviation: Distance of the two, relative to the larger.
        resolution: How small a deviation could be seen.
    """

    name: str
    deviation: float
    resolution: float

    @property
    def is_resolved(self) -> bool:
        """Whether the comparison can tell right from wrong."""
        return self.resolution <= _COARSEST

    @property
    def is_wrong(self) -> bool:
        """Whether the two contradict each other beyond doubt."""
        return self.is_resolved and not self.deviation <= BEYOND * self.resolution

    def __str__(self) -> str:
        """Say it in a line."""
        return f"{self.name}: {self.deviation:.1e} apart, where {self.resolution:.1e} can be seen"


@storable
@dataclass(frozen=True)
class SelfTest:
    """Whether a matrix is that of the user's own function.

    Attributes:
        verdict: "passed", "unresolved" (the function does not let differences be taken) or "off".
        text: Why, and to how many digits.
        checks: What was compared.
    """

    verdict: str
    text: str
    checks: tuple[Check, ...] = ()

    @classmethod
    def of(cls, checks: Sequence[Check], reason: str = "") -> "SelfTest":
        """Sum up checks, none of which is wrong.

        Args:
            checks: The comparisons.
            reason: Why something could not be compared, if so.

        Returns:
            Passed if each kind of comparison resolves something somewhere and nothing was left out.
        """
        resolved = [check for check in checks if check.is_resolved]
        kinds = dict.fromkeys(check.name for check in checks)
        blurred = [name for name in kinds if all(check.name != name for check in resolved)]
        if not resolved or blurred or reason:
            what = " and ".join(blurred) or "its derivatives"
            why = reason or f"differences of the function do not resolve {what}"
            return cls("unresolved", f"Unresolved, because {why}.", tuple(checks))
        worst: dict[str, float] = {}
        for check in resolved:
            digits = max(check.deviation, check.resolution)
            worst[check.name] = max(worst.get(check.name, 0.0), digits)
        listed = ", ".join(f"{name} to {digits:.0e}" for name, digits in worst.items())
        text = f"Agrees with differences of the function itself: {listed}."
        return cls("passed", text, tuple(checks))

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "SelfTest":
        """Make the verdict again from what `dataclasses.asdict` returned."""
        checks = tuple(Check(**check) for check in plain["checks"])
        return cls(plain["verdict"], plain["text"], checks)

    @staticmethod
    def weaker(one: "SelfTest | None", other: "SelfTest | None") -> "SelfTest | None":
        """Return the verdict that promises less; one that is missing promises nothing itself."""
        if one is None or other is None:
            return one or other
        return other if one.verdict == "passed" else one

    def __str__(self) -> str:
        """Return the text."""
        return self.text


# Compared by identity: a field-by-field comparison of tensors has no truth value.
@dataclass(frozen=True, eq=False)
class Record:
    """Base of all results.

    Attributes:
        status: Whether it converged, with advice.
        num_products: Products with the operator that were spent, columns counted one by one.
        seed: What fixed the random numbers.
        self_test: Whether the matrix is that of the user's own function; None where there is no
            such function, or where the parts of the record say it.
    """

    status: Status
    num_products: int
    seed: int
    self_test: SelfTest | None = field(default=None, kw_only=True)

    def __init_subclass__(cls) -> None:
        """Register the class, and keep `dataclass` from printing whole tensors."""
        super().__init_subclass__()
        storable(cls)
        if "__repr__" not in vars(cls):
            type.__setattr__(cls, "__repr__", Record.__repr__)

    def require_converged(self) -> None:
        """Raise if the result did not converge, for those who prefer an exception.

        Raises:
            EigenscapeError: With the status text.
        """
        if not self.status:
            raise EigenscapeError(self.status.text)

    def columns(self) -> Columns:
        """Return the result as named columns of equal length; by default one row of its numbers."""
        own = [f.name for f in dataclasses.fields(self) if f.name not in _BASE]
        values = {name: getattr(self, name) for name in own}
        return {n: [v] for n, v in values.items() if isinstance(v, bool | int | float | str)}

    def to_frame(self) -> "pandas.DataFrame":
        """Return the result as a pandas DataFrame."""
        import pandas

        return pandas.DataFrame({name: list(column) for name, column in self.columns().items()})

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python values, ready for `json.dumps`."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def cpu(self) -> Self:
        """Return the record with all its tensors in host memory."""
        return cast(Self, _moved(self))

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the result with matplotlib.

        Args:
            ax: Where to draw; a new figure by default.

        Returns:
            The axes, for titles and limits of your own.
        """
        from eigenscape.report import draw

        return draw(self, ax)

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> "Path":
        """Keep the result as a run: a folder with `run.json`, arrays, figures and a report.

        Args:
            folder: A new or empty folder.
            overwrite: Replace an earlier run that stands there.

        Returns:
            The folder.
        """
        from eigenscape.report import save_run

        return save_run(self, folder, overwrite=overwrite)

    @property
    def self_tests(self) -> tuple[SelfTest, ...]:
        """The verdicts on all matrices that this record or its parts are about, each once."""
        return tuple(dict.fromkeys(_self_tests(self)))

    def remarks(self) -> list[str]:
        """Return the status, and what is not known of the matrix, line by line."""
        doubts = [str(test) for test in self.self_tests if test.verdict != "passed"]
        return [str(self.status), *doubts]

    def __str__(self) -> str:
        """Return a short table and the remarks."""
        return "\n".join([text_table(self.columns()), *self.remarks()])

    def __repr__(self) -> str:
        """Return the class, the size of what it holds, and the status; no tensors."""
        parts = [f"{f.name}={_brief(getattr(self, f.name))}" for f in dataclasses.fields(self)]
        return f"{type(self).__name__}({', '.join(parts)})"


_BASE = frozenset(field.name for field in dataclasses.fields(Record))


def text_table(columns: Columns, *, shown: int = _SHOWN) -> str:
    """Lay columns out as aligned text.

    Args:
        columns: Names and their values, of equal length.
        shown: Most rows to show.

    Returns:
        A header line, the rows, and how many more there are.

    Examples:
        >>> print(text_table({"layer": ["fc1", "fc2"], "trace": [1.5, 0.25]}))
        layer  trace
        fc1      1.5
        fc2     0.25
    """
    lists = {name: list(values) for name, values in columns.items()}
    count = max((len(values) for values in lists.values()), default=0)
    blocks = []
    for name, values in lists.items():
        cells = [name, *(_cell(value) for value in values[:shown])]
        width = max(map(len, cells))
        numeric = all(isinstance(v, int | float) or v is None for v in values)
        blocks.append([cell.rjust(width) if numeric else cell.ljust(width) for cell in cells])
    lines = ["  ".join(row).rstrip() for row in zip(*blocks, strict=True)]
    if count > shown:
        lines.append(f"… {count - shown} more")
    return "\n".join(lines)


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
    if isinstance(plain, list):
        return tuple(unpack(item, tensors) for item in plain)
    if not isinstance(plain, dict):
        return plain
    if "$tensor" in plain:
        if plain["$tensor"] not in tensors:
            raise FileError(f"The array '{plain['$tensor']}' of a record is missing.")
        return tensors[plain["$tensor"]]
    if "$float" in plain:
        return float(plain["$float"])
    if "$record" not in plain:
        return {key: unpack(item, tensors) for key, item in plain.items()}
    cls = _class_of(plain["$record"])
    if cls is None:
        raise FileError(
            f"A file holds a record of the unknown kind '{plain['$record']}'; it was written by "
            f"another version of eigenscape. {near_matches(str(plain['$record']), _storable)}"
        )
    fields = {key: unpack(item, tensors) for key, item in plain["fields"].items()}
    try:
        return cls(**fields)
    except TypeError as error:
        raise FileError(
            f"A stored {cls.__name__} has other fields than this version's ({error}); it was "
            "written by another version of eigenscape. Run the computation again."
        ) from error


def _class_of(kind: str) -> type | None:
    """Find a storable class, in rooms that were not imported yet too."""
    for room in _ROOMS:
        if kind in _storable:
            break
        importlib.import_module(f"eigenscape.{room}")
    return _storable.get(kind)


def _pack(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = path or "value"
        tensors[name] = value
        return {"$tensor": name}
    if type(value).__name__ in _storable and dataclasses.is_dataclass(value):
        fields = {
            f.name: _pack(getattr(value, f.name), f"{path}.{f.name}".lstrip("."), tensors)
            for f in dataclasses.fields(value)
        }
        return {"$record": type(value).__name__, "fields": fields}
    if isinstance(value, list | tuple):
        return [_pack(item, f"{path}.{i}", tensors) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {str(k): _pack(item, f"{path}.{k}", tensors) for k, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise FileError(
        f"A record's field '{path}' is a {type(value).__name__}, which cannot be stored; use "
        "numbers, text, tensors, records (or classes marked `storable`), tuples and dicts."
    )


def _self_tests(value: object) -> Iterator[SelfTest]:
    """Walk the verdicts in a record, its parts, and tuples and dicts of parts."""
    if isinstance(value, SelfTest):
        yield value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for part in dataclasses.fields(value):
            yield from _self_tests(getattr(value, part.name))
    elif isinstance(value, list | tuple | Mapping):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _self_tests(item)


def _moved(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _moved(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    if isinstance(value, list | tuple):
        return tuple(_moved(item) for item in value)
    if isinstance(value, dict):
        return {key: _moved(item) for key, item in value.items()}
    return value


def _plain(value: object) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _brief(value: object) -> str:
    if isinstance(value, Tensor):
        return f"Tensor{tuple(value.shape)}"
    if isinstance(value, Record):
        return f"{type(value).__name__}(…)"
    if isinstance(value, dict) or (isinstance(value, tuple | list) and len(value) > 4):
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(_brief(item) for item in value) + ")"
    return repr(value)
