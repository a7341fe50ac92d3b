"""Interleaved timing in units of one gradient, and the table of what came out."""

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

import torch

_SHORTEST = 0.05  # seconds: anything shorter is repeated within its round
_MOST_CALLS = 20


@dataclass
class Row:
    """One method on one problem.

    Attributes:
        section: "a" to "d".
        problem: What it was measured on.
        method: Whose code, and how it was called.
        seconds: Wall time of the job in each round; for several columns, per column.
        gradients: The same in units of the gradient that was timed right before it.
        products: Products spent in each round (eigenpairs, density).
        first: Setting up and the first call, in gradients.
        error: Against float64 double backward; what exactly, the section's heading says.
        wrong: Whether that error is more than rounding.
        note: What else there is to say; the reason, if it failed.
        failed: Whether there is no result at all.
    """

    section: str
    problem: str
    method: str
    seconds: list[float] = field(default_factory=list)
    gradients: list[float] = field(default_factory=list)
    products: list[int] = field(default_factory=list)
    first: float | None = None
    error: float | None = None
    wrong: bool = False
    note: str = ""
    failed: bool = False

    def fail(self, error: BaseException) -> None:
        """Record that a method gave no result, and why."""
        text = str(error).strip().splitlines() or [""]
        self.failed, self.note = True, f"{type(error).__name__}: {text[0][:100]}"


def seconds_of(function: Callable[[], Any], calls: int = 1) -> tuple[float, Any]:
    """Return the wall time of one call and its result, with the device's queue emptied."""
    _synchronise()
    start = time.perf_counter()
    for _ in range(calls):
        result = function()
    _synchronise()
    return (time.perf_counter() - start) / calls, result


def timed(
    jobs: Mapping[str, tuple[Row, Callable[[], Any]]],
    gradient: Callable[[], Any],
    rounds: int,
    columns: Mapping[str, int] | None = None,
) -> None:
    """Fill rows with the time of their jobs: each round takes all of them, in another order.

    Args:
        jobs: By name, a row and the function to time, whose first call sets up what it needs. A
            job that raises fails its row alone.
        gradient: The unit, timed right before each job.
        rounds: How many rounds.
        columns: How many columns a job multiplies, where it is not one.
    """
    for _ in range(2):
        unit, _result = seconds_of(gradient)
    unit_calls = _calls(unit)
    calls = {}
    for name, (row, job) in jobs.items():
        try:
            row.first = seconds_of(job)[0] / unit
            calls[name] = _calls(seconds_of(job)[0])
        except Exception as error:
            row.fail(error)
    for number in range(rounds):
        order = list(calls)
        random.Random(number).shuffle(order)
        for name in order:
            row, job = jobs[name]
            unit = seconds_of(gradient, unit_calls)[0]
            spent = seconds_of(job, calls[name])[0] / (columns or {}).get(name, 1)
            row.seconds.append(spent)
            row.gradients.append(spent / unit)


def _calls(seconds: float) -> int:
    return max(1, min(_MOST_CALLS, round(_SHORTEST / seconds)))


def _synchronise() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def spread(values: list[float]) -> str:
    """Write the median with its quartiles."""
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.3g}"
    low, _, high = quantiles(values, n=4, method="inclusive")
    return f"{median(values):.3g} ({low:.3g}-{high:.3g})"


def _milliseconds(seconds: list[float]) -> str:
    if not seconds:
        return "-"
    value = 1000 * median(seconds)
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def table(rows: list[Row]) -> str:
    """Lay rows out as a Markdown table that is also readable as it stands."""
    heads = ["", "problem", "method", "products", "gradients", "ms", "first", "error", "note"]
    lines = [heads]
    for row in rows:
        error = "-" if row.error is None else f"{row.error:.1e}" + (" WRONG" * row.wrong)
        first = "-" if row.first is None else f"{row.first:.1f}"
        lines.append(
            [
                row.section,
                row.problem,
                row.method,
                f"{median(row.products):g}" if row.products else "-",
                spread(row.gradients),
                _milliseconds(row.seconds),
                first,
                error,
                ("failed: " if row.failed else "") + row.note,
            ]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )
