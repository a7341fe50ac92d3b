"""Run studies at paper scale in a limited time, part by part, in several processes.

    python benchmarks/paper_scale.py wu-bounds --workers 8 --seconds 900

Every part is kept as it is finished: a training, a row of Table 9, a learned rule. Those of earlier
runs are found in the shop or in `--parts` and not done again; small new ones are copied there. When
time is over, workers stop by themselves, and results are written of what there is. Other studies
than `wu-bounds` and `thesis-stepsize-learned` have trainings for parts. They are run one after the
other, each when its networks are trained, or with those there are when `--parts-seconds` are over.
Those that keep what they measured of a cast need it trained but once, and measure it as soon as it
is; where time is over or something fails, their results are of what is measured.

Processes take turns on a GPU; under its multi-process service they share it
(`nvidia-cuda-mps-control -d`).
"""

import argparse
import contextlib
import dataclasses
import fcntl
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from eigenscape.errors import ConvergenceWarning
from eigenscape.records import write_bytes
from eigenscape_papers.runner import Cast, Study, Workshop, run_study, write_result
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.thesis import stepsize_learned_study as stepsize_learned
from eigenscape_papers.wu import bounds_study as bounds
from eigenscape_papers.wu._table_9 import TABLE_9

SMALL = ("bounds", "rules", "measured")  # folders of a shop whose finished parts are small files
KEPT = ("*/seed-*/*.json", "*/*.safetensors")
UNFINISHED = "rules/*/unfinished-*"  # folders of rules that are being learned, in a shop


class OverError(Exception):
    """Time is over."""


@dataclasses.dataclass
class Task:
    """One part.

    Attributes:
        name: Told apart by it; a file may have it.
        work: Does it; it returns at once where it is done already.
        is_ready: Whether what it needs is there.
    """

    name: str
    work: Callable[[], object]
    is_ready: Callable[[], bool] = lambda: True


@dataclasses.dataclass
class Run:
    """What all processes of a run know.

    Attributes:
        studies: Names.
        scale: "paper", or "laptop" to try it out.
        seconds: How long it may take.
        begun: When, by the system's clock.
        shop: Folder of the workshop.
        claims: Folder with a file for every part that some process has taken.
        parts: Where small parts are copied to when they are finished; None for nowhere.
        device: Where.
        data_dir: Where files of data sets are.
    """

    studies: list[str]
    scale: str
    seconds: float
    begun: float
    shop: Path
    claims: Path
    parts: Path | None
    device: str
    data_dir: str | None

    def workshop(self) -> Workshop:
        """Return where parts are made."""
        place = torch.device(self.device)
        return Workshop(
            self.shop,
            place,
            data_dir=self.data_dir,
            progress=self.check,
            parts=self.shop / "measured",
        )

    def check(self, _: object = None) -> None:
        """Raise when time is over."""
        if time.time() > self.begun + self.seconds:
            raise OverError

    def keep(self) -> None:
        """Copy small parts that are new; one process at a time, as all see the same ones."""
        if self.parts:
            self.shop.mkdir(parents=True, exist_ok=True)
            with (self.shop / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                copy_parts(self.shop, self.parts)
                for folder in self.parts.glob(UNFINISHED):
                    if not (self.shop / folder.relative_to(self.parts)).exists():
                        shutil.rmtree(folder)  # it was there at first, so it is finished

    def say(self, text: str) -> None:
        """Print, with the time."""
        print(f"{time.time() - self.begun:7.1f} s  {text}", flush=True)

    def tasks(self, workshop: Workshop) -> Iterator[Task]:
        """Return the parts of all studies, the more urgent ones first."""
        for name in self.studies:
            study = STUDIES[name]
            options = study.settings[self.scale].options
            if name == bounds.STUDY.name:
                yield from _bounds(options, workshop, self.claims)
            elif name == stepsize_learned.STUDY.name:
                yield from _rules(options, workshop)
            else:
                for cast in study.settings[self.scale].casts:
                    if not _is_measured(cast, study, self.scale, workshop):
                        yield Task(f"train {cast.key}", lambda cast=cast: workshop.networks(cast))

    def claim(self, task: Task) -> bool:
        """Take a part, unless another process has it."""
        try:
            (self.claims / task.name).open("x").close()
        except FileExistsError:
            return False
        return True


def _bounds(options: Any, workshop: Workshop, claims: Path) -> Iterator[Task]:
    known: dict[str, dict[int, Any]] = {}

    def nets(name: str) -> dict[int, Any]:
        if name not in known:
            # One process trains, or reads while no other writes.
            with (claims / f"lock {name}").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                known[name] = {net.seed: net for net in bounds.train(name, options, workshop)}
                trained(name).touch()
        return known[name]

    def trained(name: str) -> Path:
        return claims / f"trained {name}"

    def row(name: str, seed: int, method: str) -> None:
        bounds.certified(nets(name)[seed], method, options, workshop)

    rows = [(name, *pair) for name in options["networks"] for pair in bounds.plan(name, options)]
    missing = [key for key in rows if bounds.read_row(*key, options, workshop) is None]
    for name in dict.fromkeys(key[0] for key in missing):
        yield Task(f"train {name}", lambda name=name: nets(name))

    def urgency(key: tuple[str, int, str]) -> tuple[int, bool]:
        name, seed, method = key
        return options["seeds"].index(seed), (name, method) not in TABLE_9

    for key in sorted(missing, key=urgency):
        words = " ".join(map(str, key))
        yield Task(words, lambda key=key: row(*key), lambda key=key: trained(key[0]).exists())


def _rules(options: Any, workshop: Workshop) -> Iterator[Task]:
    data, test = stepsize_learned.samples(options, workshop)
    parts = stepsize_learned.parts(options, data)
    # Rules take longest, and of them those with few samples.
    groups = stepsize_learned.together(parts, options)
    for group in sorted(groups, key=lambda g: (g[0].name == "SGD", g[0].case[0])):
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        yield Task(
            f"rule {group[0].file}{more}",
            lambda group=group: stepsize_learned.finish(group, options, data, test, workshop),
        )


def work(run: Run) -> bool:
    """Do parts until none is left or time is over; tell whether none failed, which is left then."""
    tasks, is_well = list(run.tasks(run.workshop())), True
    try:
        while tasks:
            run.check()
            tasks = [task for task in tasks if not (run.claims / task.name).exists()]
            ready = [task for task in tasks if task.is_ready()]
            task = next((task for task in ready if run.claim(task)), None)
            if task is None:
                time.sleep(0.5)
                continue
            begun = time.time()
            try:
                task.work()
            except OverError:
                raise
            except Exception:
                run.say(f"{task.name} failed: {traceback.format_exc()}")
                is_well = False
                continue
            run.keep()
            leave_memory()
            run.say(f"{task.name}: {time.time() - begun:.1f} s")
    except OverError:
        run.keep()
        run.say("time is over")
    return is_well


def record(run: Run, study: Study, folder: Path, workshop: Workshop) -> bool:
    """Write the result of what there is, and tell whether nothing failed.

    Layers that the workshop knows are not measured again.
    """
    finished = {
        bounds.STUDY.name: bounds.measure_finished,
        stepsize_learned.STUDY.name: stepsize_learned.measure_finished,
    }
    if study.name in finished or not study.settings[run.scale].casts:
        study = dataclasses.replace(study, measure=finished.get(study.name, study.measure))
        return _write(run, study, folder, workshop) is not False
    there = _there(run, study, workshop)
    if not there:
        run.say(f"{study.name}: no networks are trained")
        return True
    is_written = _write(run, _of_these(there, study, run.scale), folder, workshop)
    kept = [cast for cast in there if _is_measured(cast, study, run.scale, workshop)]
    if not is_written and kept:  # what is kept needs neither networks nor time
        _write(run, _of_these(kept, study, run.scale), folder, workshop)
    return is_written is not False


def _of_these(casts: list[Cast], study: Study, scale: str) -> Study:
    """Return a study of some of its networks, which says of which not."""
    setting = study.settings[scale]
    # Casts that differ in their samples have one label.
    missing = [each.label_among(setting.casts) for each in setting.casts if each not in casts]
    note = f"{setting.note} Not run: {', '.join(missing)}.".strip() if missing else setting.note
    setting = dataclasses.replace(setting, casts=tuple(casts), note=note)
    return dataclasses.replace(study, settings={scale: setting})


def _write(run: Run, study: Study, folder: Path, workshop: Workshop) -> bool | None:
    """Run a study and write its result; return None where time was over, False where it failed."""
    begun = time.time()
    try:
        path = write_result(run_study(study, workshop, scale=run.scale), folder)
        run.say(f"{path}: {time.time() - begun:.1f} s")
    except OverError:
        run.say(f"{study.name}: time was over")
        return None
    except Exception:
        run.say(f"{study.name} failed: {traceback.format_exc()}")
        return False
    finally:
        run.keep()
    return True


def measure_next(run: Run, study: Study, workshop: Workshop, tried: set[str]) -> bool:
    """Measure what is trained of a study that keeps it: one cast, or those of one label.

    Args:
        run: The run.
        study: Which study.
        workshop: Where its networks are.
        tried: Keys of the casts that were measured here, or failed; more are added.

    Returns:
        Whether there was one.
    """
    setting = study.settings[run.scale]
    for cast in setting.casts:
        casts = study.measured_with(cast, run.scale)
        is_ready = bool(casts) and all(_is_trained(run, each) for each in casts)
        if cast.key in tried or not is_ready or _is_measured(cast, study, run.scale, workshop):
            continue
        tried.update(each.key for each in casts)
        begun, shop = time.time(), dataclasses.replace(workshop, asked={}, dtype=setting.dtype)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # the result will say it
                study.measure(dataclasses.replace(setting, casts=tuple(casts)), shop)
            run.say(f"{study.name}, {cast.key}: {time.time() - begun:.1f} s")
        except OverError:
            run.say(f"{study.name}, {cast.key}: time was over")
        except Exception:  # for want of memory perhaps, of which there is more in the end
            run.say(
                f"{study.name}, {cast.key} failed, and is tried again: {traceback.format_exc()}"
            )
        run.keep()
        leave_memory()
        return True
    return False


def _there(run: Run, study: Study, workshop: Workshop) -> list[Cast]:
    """Return the casts that are trained, or measured."""
    return [
        cast
        for cast in study.settings[run.scale].casts
        if _is_trained(run, cast) or _is_measured(cast, study, run.scale, workshop)
    ]


def _is_trained(run: Run, cast: Cast) -> bool:
    """Tell whether the networks of a cast are there."""
    return (run.shop / "networks" / cast.key / "cast.json").is_file()


def _is_measured(cast: Cast, study: Study, scale: str, workshop: Workshop) -> bool:
    """Tell whether what the study measures of a cast is kept."""
    path = study.keeps_file(cast, scale, workshop)
    return path is not None and path.is_file()


def copy_parts(source: Path, target: Path) -> None:
    """Copy finished parts that are not there yet, and rules that have learned less there."""
    for folder in source.glob(UNFINISHED):
        place = target / folder.relative_to(source)
        if _last_piece(place) < _last_piece(folder):
            shutil.rmtree(place, ignore_errors=True)
            # Another process may be replacing a piece; it copies its own when its time is over.
            with contextlib.suppress(shutil.Error, FileNotFoundError):
                shutil.copytree(folder, place)
    for pattern in (f"{room}/{kept}" for room in SMALL for kept in KEPT):
        for path in source.glob(pattern):
            place = target / path.relative_to(source)
            if not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(place, path.read_bytes())


def _last_piece(folder: Path) -> str:
    return max((path.name for path in folder.glob("piece-*")), default="")


def leave_memory() -> None:
    """Give memory that is no longer used back to the device, for other processes."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def record_all(run: Run, folder: Path, is_working: Callable[[], bool]) -> list[bool]:
    """Record studies in their order, each when its networks are trained or no worker is left."""
    workshop, are_well = run.workshop(), []
    for study in (STUDIES[name] for name in run.studies):
        casts, tried = study.settings[run.scale].casts, set[str]()
        while is_working():
            if casts and len(_there(run, study, workshop)) == len(casts):
                break
            if not measure_next(run, study, workshop, tried):
                time.sleep(0.5)
        are_well.append(record(run, study, folder, workshop))
        leave_memory()
    return are_well


def main() -> None:
    """Start the workers, wait for them, and write results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("studies", nargs="+", choices=sorted(STUDIES), metavar="STUDY")
    parser.add_argument("--scale", default="paper", choices=("paper", "laptop"))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--parts-seconds", type=float, help="of these, for parts; all by default")
    parser.add_argument("--shop", type=Path, default=Path("runs/paper"))
    parser.add_argument("--parts", type=Path, help="where small finished parts are kept")
    parser.add_argument("--results", type=Path, default=Path("runs/paper/results"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data-dir")
    parser.add_argument("--begun", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--claims", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    begun = given.begun or time.time()
    given.shop.mkdir(parents=True, exist_ok=True)
    claims = given.claims or Path(tempfile.mkdtemp(prefix="claims-", dir=given.shop))
    shared = (given.studies, given.scale, given.seconds, begun, given.shop, claims)
    run = Run(*shared, given.parts, given.device, given.data_dir)
    if given.claims:
        is_well = work(dataclasses.replace(run, seconds=given.parts_seconds or given.seconds))
        sys.exit(not is_well)
    if given.parts:
        copy_parts(given.parts, given.shop)
        run.keep()  # what a run that was killed has left
    command = [sys.executable, *sys.argv, "--begun", str(begun), "--claims", str(claims)]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    workers = [subprocess.Popen(command, env=environment) for _ in range(given.workers)]
    are_well = record_all(
        run, given.results, lambda: any(worker.poll() is None for worker in workers)
    )
    are_well += [worker.wait() == 0 for worker in workers]
    shutil.rmtree(claims)
    run.say("end")
    sys.exit(not all(are_well))


if __name__ == "__main__":
    main()
