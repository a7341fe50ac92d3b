"""What the command line prints: sentences, tables, and nothing that a pipe could not read."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

# A pipe has no width: rows in it stay whole, so that they can be searched and cut.
_PIPE_WIDTH = 10_000
# Text in a column may be broken over lines, but not into pieces shorter than this.
_LEAST_TEXT = 16
_GAP = 3


class Screen:
    """Where a verb writes: results to stdout, notes and errors to stderr."""

    def __init__(self, *, quiet: bool = False, silent: bool = False) -> None:
        """Open both streams as they are now.

        Args:
            quiet: Print results and errors only.
            silent: Print nothing: another process of the same command does the talking.
        """
        self.quiet, self.silent = quiet or silent, silent
        self._started = time.monotonic()
        self.out, self.err = _console(stderr=False), _console(stderr=True)

    @property
    def seconds(self) -> float:
        """How long the verb has run."""
        return time.monotonic() - self._started

    def say(self, text: str = "", *, bold: bool = False) -> None:
        """Print sentences, unless quiet."""
        if not self.quiet:
            _print(self.out, text, "bold" if bold else "")

    def result(self, text: str) -> None:
        """Print what the verb was called for, quiet or not, and as it stands."""
        if not self.silent:
            self.out.print(Text(text), soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a remark to stderr, unless quiet."""
        if not self.quiet:
            _print(self.err, text, "yellow")

    def error(self, text: str, *, aloud: bool = False) -> None:
        """Print a refusal to stderr; one that is `aloud`, on a silent screen too."""
        if aloud or not self.silent:
            _print(self.err, text, "red")

    def table(self, columns: Mapping[str, Iterable[object]], *, title: str = "") -> None:
        """Print named columns of equal length, unless quiet; numbers stand to the right."""
        if self.quiet:
            return
        texts = {name: list(values) for name, values in columns.items()}
        if title:
            _print(self.out, title, "bold")
        for names in _split({n: _least_width(n, v) for n, v in texts.items()}, self.out.width):
            _lay_out(self.out, _grid({name: texts[name] for name in names}))

    def facts(self, facts: Mapping[str, object]) -> None:
        """Print names and values in two columns, unless quiet."""
        if self.quiet:
            return
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for name, value in facts.items():
            grid.add_row(Text(f"{name}:"), Text(cell(value)))
        _lay_out(self.out, grid)

    def list(self, sentences: Sequence[str]) -> None:
        """Print sentences as items, unless quiet."""
        if self.quiet:
            return
        grid = Table.grid(padding=(0, 1))
        for sentence in sentences:
            grid.add_row(Text("-"), Text(sentence))
        _lay_out(self.out, grid)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def _is_numeric(values: Sequence[object]) -> bool:
    return bool(values) and all(v is None or isinstance(v, int | float) for v in values)


def _least_width(name: str, values: Sequence[object]) -> int:
    """Return how narrow a column can be: headers break between words, numbers never."""
    longest = max((len(cell(value)) for value in values), default=0)
    words = max(map(len, name.split()), default=0)
    return max(words, longest if _is_numeric(values) else min(longest, _LEAST_TEXT))


def _split(widths: Mapping[str, int], limit: int) -> list[list[str]]:
    """Cut columns into tables that fit; the first column stands in each of them."""
    first, *others = widths
    tables, used = [[first]], widths[first]
    for name in others:
        if used + widths[name] + _GAP > limit and len(tables[-1]) > 1:
            tables.append([first])
            used = widths[first]
        tables[-1].append(name)
        used += widths[name] + _GAP
    return tables


def _grid(columns: Mapping[str, Sequence[object]]) -> Table:
    grid = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name, values in columns.items():
        numeric = _is_numeric(values)
        grid.add_column(
            Text(name),
            justify="right" if numeric else "left",
            overflow="fold",
            min_width=_least_width(name, values),
        )
    for row in zip(*columns.values(), strict=True):
        grid.add_row(*(Text(cell(value)) for value in row))
    return grid


def _lay_out(console: Console, grid: Table) -> None:
    """Print a table and an empty line; in a pipe without the spaces that fill its last column."""
    with console.capture() as captured:
        console.print(grid)
    text = captured.get()
    if not console.is_terminal:
        text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    console.file.write(f"{text}\n")


def _print(console: Console, text: str, style: str) -> None:
    # Sentences in a pipe stay whole, so that they can be searched.
    console.print(Text(text, style=style), soft_wrap=not console.is_terminal)


def cell(value: object) -> str:
    """Write a value for a table: four digits, a dash where there is none.

    Args:
        value: Anything.

    Returns:
        The text.

    Examples:
        >>> cell(None), cell(0.123456), cell(199210), cell("fc1"), cell(True)
        ('–', '0.1235', '199,210', 'fc1', 'yes')
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def duration(seconds: float | None) -> str:
    """Write a time span.

    Args:
        seconds: How long; None where nobody knows.

    Returns:
        The text.

    Examples:
        >>> duration(0.3), duration(42.0), duration(150.0), duration(7300.0), duration(None)
        ('under 1 s', '42 s', '2.5 min', '2 h 2 min', 'unknown')
    """
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    if seconds < 1:
        return "under 1 s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.2g} min"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"
