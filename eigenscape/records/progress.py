"""Tell a caller how far a long computation has come, without printing anything."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far a long computation has come.

    Attributes:
        task: What is being done.
        done: Steps finished.
        total: Steps planned (an upper bound where the work may end early).
        seconds: Time spent so far in this process.
        seconds_left: Estimate of the time left, or None before there is one.
    """

    task: str
    done: int
    total: int
    seconds: float
    seconds_left: float | None


ProgressCallback = Callable[[Progress], None]


class Ticker:
    """Calls a progress callback after each step with an estimate of the time left."""

    def __init__(
        self, callback: ProgressCallback | None, task: str, total: int, *, first: int = 0
    ) -> None:
        """Start the clock.

        Args:
            callback: Called with a `Progress`; None is silent.
            task: What is being done.
            total: Steps planned.
            first: Steps that an earlier, interrupted run had finished.
        """
        self._callback, self._task, self._total = callback, task, total
        self._first = first
        self._start = time.monotonic()

    def tick(self, done: int) -> None:
        """Report that `done` steps are finished in all."""
        if self._callback is None:
            return
        seconds = time.monotonic() - self._start
        fresh = done - self._first
        left = seconds / fresh * max(self._total - done, 0) if fresh > 0 else None
        self._callback(Progress(self._task, done, self._total, seconds, left))
