"""Stages of an analysis: finished ones are kept in a folder, failed ones cost no other."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import torch

from eigenscape.errors import CheckpointError, FileError
from eigenscape.records import (
    Progress,
    ProgressCallback,
    Record,
    pack,
    read_tensors,
    unpack,
    write_bytes,
    write_tensors,
)

if TYPE_CHECKING:
    from eigenscape.analyses.whole.plan import Plan

# Errors that concern all parts: damaged files, a lost process, a full disk, warnings as errors.
_OF_ALL = (FileError, OSError, Warning)

_Record = TypeVar("_Record", bound=Record)
# A stage gets a folder for checkpoints of its own and somewhere to report its progress.
Compute = Callable[[Path | None, ProgressCallback | None], _Record]


class StageStore:
    """Runs stages, remembers the finished ones across interruptions, and why others failed."""

    def __init__(
        self, folder: Path | None, plan: "Plan", progress: ProgressCallback | None = None
    ) -> None:
        """Open the folder; None remembers nothing.

        Args:
            folder: That of a `Checkpoint`, which has made sure that it belongs to this analysis.
            plan: Which stages there are.
            progress: Called with progress over the whole plan.
        """
        self._folder, self._plan = folder, plan
        self._overall = Overall(progress, plan)
        self.seconds: dict[str, float] = {}
        self.failures: dict[str, str] = {}
        self._first_error: Exception | None = None

    def run(self, name: str, compute: Compute[_Record]) -> _Record | None:
        """Return a stage's record: the one kept, or a new one, which is then kept.

        Args:
            name: The stage.
            compute: Makes the record.

        Returns:
            The record; None where it is not planned, or where it failed, and `failures` says why.
            Nothing is kept then, so that the stage is tried again when the analysis is resumed.
        """
        if name not in self._plan.names:
            return None
        started = time.monotonic()
        try:
            return self._run(name, compute)
        except Exception as error:
            if not can_do_without(error):
                raise
            self.failures[name] = reason_of(error)
            # Without its traceback, which would keep the stage's tensors in memory.
            self._first_error = self._first_error or error.with_traceback(None)
        self.seconds[name] = time.monotonic() - started
        self._overall.finished(name, was_kept=False)
        return None

    def require_any(self, *records: Record | None) -> None:
        """Refuse an analysis of which nothing stands, as its first part was refused.

        Args:
            *records: What was computed.

        Raises:
            Exception: The first failure, if all parts failed.
        """
        if self._first_error is not None and all(record is None for record in records):
            raise self._first_error

    def _run(self, name: str, compute: Compute[_Record]) -> _Record:
        file = None if self._folder is None else self._folder / name.replace(" ", "-")
        was_kept = is_kept(file)

        def timed() -> Timed:
            started = time.monotonic()
            steps = None if file is None else file.with_suffix(".steps")
            record = compute(steps, self._overall.stage(name))
            seconds = time.monotonic() - started
            return Timed(record.status, record.num_products, record.seed, record, seconds)

        stage = kept(file, timed)
        self.seconds[name] = stage.seconds
        if file is not None:
            shutil.rmtree(file.with_suffix(".steps"), ignore_errors=True)
        self._overall.finished(name, was_kept=was_kept)
        return cast(_Record, stage.record)


@dataclass(frozen=True, eq=False)
class Timed(Record):
    """A stage's record with the time it took.

    Attributes:
        record: The record.
        seconds: Wall time.
    """

    record: Record
    seconds: float


class Overall:
    """Turns the progress of single stages into progress over the whole plan."""

    def __init__(self, callback: ProgressCallback | None, plan: "Plan") -> None:
        """Start the clock.

        Args:
            callback: Called with per mille of the predicted time; None is silent.
            plan: What is predicted.
        """
        self._callback, self._plan = callback, plan
        self._started = time.monotonic()
        self._skipped = self._share = 0.0

    def stage(self, name: str) -> ProgressCallback | None:
        """Return a callback for one stage."""
        if self._callback is None:
            return None
        before, share = self._before(name)

        def report(step: Progress) -> None:
            self._report(step.task, before + share * min(1.0, step.done / max(step.total, 1)))

        return report

    def finished(self, name: str, *, was_kept: bool) -> None:
        """Report that a stage is done; one that was kept from an earlier run took no time."""
        if self._callback is None:
            return
        before, share = self._before(name)
        if was_kept:
            self._skipped += share
        self._report(name, before + share)

    def _before(self, name: str) -> tuple[float, float]:
        total = sum(stage.seconds for stage in self._plan.stages)
        shares = [stage.seconds / max(total, 1e-9) for stage in self._plan.stages]
        index = [stage.name for stage in self._plan.stages].index(name)
        return sum(shares[:index]), shares[index]

    def _report(self, task: str, share: float) -> None:
        # The shares of the stages add up to 1 but for rounding.
        self._share = 1.0 if share > 1.0 - 1e-9 else max(self._share, share)
        seconds = time.monotonic() - self._started
        fresh = self._share - self._skipped
        left = seconds / fresh * (1.0 - self._share) if fresh > 0 else None
        if self._callback is not None:
            self._callback(Progress(task, round(1000 * self._share), 1000, seconds, left))


def is_kept(file: Path | None) -> bool:
    """Say whether a record is there; its JSON is written last."""
    return file is not None and file.with_suffix(".json").exists()


def kept(file: Path | None, compute: Callable[[], _Record]) -> _Record:
    """Return the record that is kept in a file, or compute it and keep it.

    Args:
        file: Where, without a suffix; in a folder that a `Checkpoint` guards. None keeps nothing.
        compute: Makes the record.

    Returns:
        The record, in host memory.

    Raises:
        CheckpointError: If the file is damaged.
    """
    if file is None:
        return compute().cpu()
    plain_file, tensor_file = file.with_suffix(".json"), file.with_suffix(".safetensors")
    if not plain_file.exists():
        record = compute().cpu()
        plain, tensors = pack(record)
        write_tensors(tensor_file, tensors)
        write_bytes(plain_file, json.dumps(plain).encode())
        return record
    try:
        stored = unpack(json.loads(plain_file.read_text()), read_tensors(tensor_file))
    except (ValueError, FileError) as error:
        raise CheckpointError(
            f"What is kept in '{file}' is damaged ({error}). Delete the folder '{file.parent}' to "
            "start again."
        ) from error
    return cast(_Record, stored)


def can_do_without(error: Exception) -> bool:
    """Say whether the other parts of an analysis may go on after this."""
    return not isinstance(error, _OF_ALL)


def reason_of(error: Exception) -> str:
    """Return what happened, in a sentence or two."""
    said = " ".join(str(error).split())
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "not enough memory" in said:
        return f"The memory was not enough ({said[:200] or type(error).__name__})."
    if type(error).__module__.startswith("eigenscape."):
        return said
    return f"{type(error).__name__}: {said[:500]}"
