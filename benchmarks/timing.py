"""Interleaved timing in units of one gradient, and the table of what came out."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
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
        section: "a" to "g", "o" or "s".
        problem: What it was measured on.
        job: What is asked of it; rows of one job can be compared.
        method: Whose code, and how it was called.
        role: Whose row it is; see `bars`.
        seconds: Wall time of the job in each round; for several columns, per column.
        gradients: The same in units of the gradient that was timed right before it.
        products: Products spent in each round (eigenpairs, density).
        first: Setting up and the first call, in gradients.
        error: Against a float64 reference; what exactly, the section's heading says.
        wrong: Whether that error is more than rounding.
        counts: Whether it can be compared: as exact as was asked, and the same job.
        note: What else there is to say; the reason, if it failed.
        failed: Whether there is no result at all.
        extra: Further numbers: memory, an exponent with its points.
    """

    section: str
    problem: str
    job: str
    method: str
    role: str
    seconds: list[float] = field(default_factory=list)
    gradients: list[float] = field(default_factory=list)
    products: list[int] = field(default_factory=list)
    first: float | None = None
    error: float | None = None
    wrong: bool = False
    counts: bool = True
    note: str = ""
    failed: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

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
) -> dict[str, Any]:
    """Fill rows with the time of their jobs: each round takes all of them, in another order.

    Args:
        jobs: By name, a row and the function to time, whose first call sets up what it needs. A
            job that raises fails its row alone.
        gradient: The unit, timed right before each job.
        rounds: How many rounds; in a single one nothing is repeated, however short.
        columns: How many columns a job multiplies, where it is not one.

    Returns:
        By name, what the job returned.
    """
    for _ in range(2):
        unit, _result = seconds_of(gradient)
    unit_calls = _calls(unit, rounds)
    calls, results = {}, {}
    for name, (row, job) in jobs.items():
        try:
            row.first = seconds_of(job)[0] / unit
            spent, results[name] = seconds_of(job)
            calls[name] = _calls(spent, rounds)
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
    return results


def in_turn(
    jobs: Mapping[str, tuple[Row, Callable[[int], Any]]],
    gradient: Callable[[], Any],
    rounds: int,
    look: Callable[[Row, Any], None],
) -> None:
    """Time long jobs, once a round each, and look at every answer with the clock stopped.

    Args:
        jobs: By name, a row and a function of the round's number.
        gradient: The unit, timed right before each job.
        rounds: How many rounds; a job that raised is not tried again.
        look: Writes into a row what its answer is worth.
    """
    seconds_of(gradient)
    for number in range(rounds):
        for row, job in jobs.values():
            if row.failed:
                continue
            unit, _ = seconds_of(gradient, 3)
            try:
                spent, answer = seconds_of(lambda job=job, number=number: job(number))
            except Exception as error:
                row.fail(error)
                continue
            row.seconds.append(spent)
            row.gradients.append(spent / unit)
            look(row, answer)


def best_time(function: Callable[[], Any], rounds: int = 5) -> float:
    """Return the shortest of some rounds: what the machine can do, others' work left out."""
    spent, _ = seconds_of(function)
    calls = _calls(spent, rounds)
    return min(seconds_of(function, calls)[0] for _ in range(rounds))


def _calls(seconds: float, rounds: int) -> int:
    if rounds == 1:
        return 1
    return max(1, min(_MOST_CALLS, round(_SHORTEST / max(seconds, 1e-7))))


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


def rows_table(rows: Sequence[Row]) -> list[list[str]]:
    """Lay rows out as lines of cells, the heading first."""
    heads = ["", "on", "job", "method", "products", "gradients", "ms", "first", "error", "note"]
    lines = [heads]
    for row in rows:
        error = "-" if row.error is None else f"{row.error:.1e}" + (" WRONG" * row.wrong)
        first = "-" if row.first is None else f"{row.first:.1f}"
        lines.append(
            [
                row.section,
                row.problem,
                row.job,
                row.method,
                f"{median(row.products):g}" if row.products else "-",
                spread(row.gradients),
                _milliseconds(row.seconds),
                first,
                error,
                ("failed: " if row.failed else "") + row.note,
            ]
        )
    return lines


def markdown(lines: list[list[str]]) -> str:
    """Write lines of cells as a Markdown table that is also readable as it stands."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    rule = ["-" * max(width, 1) for width in widths]
    return "\n".join(
        "| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |"
        for line in [lines[0], rule, *lines[1:]]
    )
