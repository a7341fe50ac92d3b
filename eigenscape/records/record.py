"""What every computation returns: a frozen record with its status, its cost and its seed.

A record can be read (`str`), tabulated (`to_frame`), drawn (`plot`), kept (`save`) and turned into
plain values (`to_dict`). A class of records may define two things anew: `columns`, its numbers as a
table, and `pictures`, its figures as data.
"""

import dataclasses
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, cast

from torch import Tensor

from eigenscape.errors import ConvergenceWarning, EigenscapeError, require_packages
from eigenscape.plugins import renderer, run_keeper
from eigenscape.records.pictures import Picture
from eigenscape.records.self_test import SelfTest
from eigenscape.records.stored import storable

if TYPE_CHECKING:
    from pathlib import Path

    import pandas
    from matplotlib.axes import Axes

Columns = Mapping[str, Iterable[Any]]

# What a class of records may define anew. Nothing else is written anew in a subclass.
HOOKS = ("columns", "pictures")
_SHOWN = 20


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
        names = [f.name for f in dataclasses.fields(self) if f.name not in _BASE]
        values = {name: getattr(self, name) for name in names}
        return {n: [v] for n, v in values.items() if isinstance(v, bool | int | float | str)}

    def to_frame(self) -> "pandas.DataFrame":
        """Return the result as a pandas DataFrame."""
        require_packages("record.to_frame()", "pandas")
        import pandas

        return pandas.DataFrame({name: list(column) for name, column in self.columns().items()})

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python values, ready for `json.dumps`."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def cpu(self) -> Self:
        """Return the record with all its tensors in host memory."""
        return cast(Self, _moved(self))

    def pictures(self) -> tuple[Picture, ...]:
        """Return the result as pictures, the main one first; none by default.

        A record of your own gives its pictures here; then it can be plotted, saved with its
        figures, and stands in a report.
        """
        return ()

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the result with matplotlib.

        Args:
            ax: Where to draw; a new figure by default.

        Returns:
            The axes, for titles and limits of your own.
        """
        axes: Axes = renderer().draw(self, ax)
        return axes

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> "Path":
        """Keep the result as a run: a folder with `run.json`, arrays, figures and a report.

        Args:
            folder: A new or empty folder.
            overwrite: Replace an earlier run that stands there.

        Returns:
            The folder.
        """
        return run_keeper().save_run(self, folder, overwrite=overwrite)

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
        fields = [f"{f.name}={_brief(getattr(self, f.name))}" for f in dataclasses.fields(self)]
        return f"{type(self).__name__}({', '.join(fields)})"


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


def _self_tests(value: object) -> Iterator[SelfTest]:
    """Walk the verdicts in a record, its parts, and tuples and dicts of parts."""
    if isinstance(value, SelfTest):
        yield value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for entry in dataclasses.fields(value):
            yield from _self_tests(getattr(value, entry.name))
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
