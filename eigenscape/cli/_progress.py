"""How far a long computation has come: a bar on a terminal, now and then a line in a pipe."""

import threading
import time
from typing import TYPE_CHECKING

from eigenscape.cli._screen import Screen, duration

if TYPE_CHECKING:
    from eigenscape.records import Progress

# Tasks that end sooner show no progress line.
_SHOWN_AFTER = 2.0
_LINE_EVERY = 10.0
_DRAWN_EVERY = 0.1


class Watch:
    """Shows the progress of what runs inside it; call it with a `Progress`.

    Nothing is shown in the first two seconds. A thread does the showing, so that work which never
    reports is shown too.
    """

    def __init__(self, screen: Screen, task: str, *, in_bytes: bool = False) -> None:
        """Say what is about to run.

        Args:
            screen: Where to show it, on stderr; a quiet screen shows nothing.
            task: What to call it before the first report.
            in_bytes: Whether the steps of the reports are bytes.
        """
        self._screen, self._in_bytes = screen, in_bytes
        from eigenscape.records import Progress  # here, so that help need not wait for PyTorch

        self._last = Progress(task, 0, 0, 0.0, None)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Watch":
        """Start the clock."""
        self._started = time.monotonic()
        if not self._screen.quiet:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def __call__(self, step: "Progress") -> None:
        """Take a report."""
        self._last = step

    def _watch(self) -> None:
        if self._stop.wait(_SHOWN_AFTER):
            return
        if self._screen.err.is_terminal:
            self._draw()
            return
        while True:
            self._screen.err.print(self._line(), soft_wrap=True)
            if self._stop.wait(_LINE_EVERY):
                return

    def _draw(self) -> None:
        """Show a bar until the work ends."""
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            TimeElapsedColumn(),
        )
        with Bar(*columns, console=self._screen.err, transient=True) as bar:
            task = bar.add_task(self._last.task, total=None, left="")
            while True:
                step = self._last
                bar.update(
                    task,
                    description=step.task,
                    total=step.total or None,
                    completed=step.done,
                    left=self._left(),
                )
                if self._stop.wait(_DRAWN_EVERY):
                    return

    def _line(self) -> str:
        from eigenscape.records import size

        step = self._last
        phrases = [step.task or "working"]
        if step.total and self._in_bytes:
            phrases.append(f"{size(step.done)} of {size(step.total)}")
        elif step.total:
            phrases.append(f"{100 * step.done / step.total:.0f} %")
        left = self._left()
        spent = duration(time.monotonic() - self._started)
        return ", ".join([*phrases, f"{spent} so far", *([left] if left else [])])

    def _left(self) -> str:
        left = self._last.seconds_left
        return "" if left is None else f"{duration(left)} left"
