"""The folder of a run while it is made: whose it is, how it is resumed, where checkpoints go."""

import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from eigenscape.cli._progress import Watch
from eigenscape.cli._screen import Screen
from eigenscape.cli._verb import INTERRUPTED, REFUSED
from eigenscape.errors import EigenscapeError, RankError, RunError

if TYPE_CHECKING:
    from eigenscape.records import Record

RUNS = Path("runs")
# `save_run` knows this folder as an unfinished run, and removes it when the run is complete.
_CHECKPOINT, _KEY, _MANIFEST = "checkpoint", "key.json", "run.json"
# A stage of an analysis that takes so little time that it alone is not worth keeping.
_TRIFLE = "loss-and-gradient"
# Arguments that name a run, and say how it is shown; the others decide its numbers.
_NO_SETTINGS = (
    *("out", "overwrite", "yes", "ignore_limits", "open_report", "as_json", "quiet", "debug"),
    *("networks", "record", "old"),
)


@dataclass(frozen=True)
class Place:
    """Where a run is made.

    Attributes:
        folder: Its folder.
        settings: What decides its numbers; a run is resumed only with the same.
        command: The command line that continues it.
        overwrite: Whether an earlier run there is to be replaced.
        resumed: Whether an unfinished run with these settings is there.
    """

    folder: Path
    settings: dict[str, Any]
    command: str
    overwrite: bool
    resumed: bool

    @property
    def checkpoint(self) -> Path:
        """The folder for finished parts."""
        return self.folder / _CHECKPOINT / "parts"

    def begin(self) -> None:
        """Make the folder, and write down whose it is."""
        # Not at the top: it imports torch, and help must be instant.
        from eigenscape.records import write_bytes

        checkpoint_folder = self.folder / _CHECKPOINT
        if not self.resumed and unfinished(self.folder) is not None:
            shutil.rmtree(checkpoint_folder)
        checkpoint_folder.mkdir(parents=True, exist_ok=True)
        content = {"settings": self.settings, "command": self.command}
        write_bytes(
            checkpoint_folder / _KEY, json.dumps(content, indent=1, sort_keys=True).encode()
        )

    def save(self, screen: Screen, record: "Record") -> None:
        """Keep the record as this run, with its settings and its command line."""
        settings = {**self.settings, "command": self.command}
        save(screen, record, self.folder, settings, overwrite=self.overwrite)

    def forget_if_empty(self) -> None:
        """Remove the folder of a run that has kept no more than the loss."""
        checkpoint_folder = self.folder / _CHECKPOINT
        files = [
            path for path in checkpoint_folder.rglob("*") if path.is_file() and path.name != _KEY
        ]
        if checkpoint_folder.exists() and all(path.stem == _TRIFLE for path in files):
            shutil.rmtree(checkpoint_folder, ignore_errors=True)
            if not any(self.folder.iterdir()):
                self.folder.rmdir()


def settings_of(ctx: typer.Context) -> dict[str, Any]:
    """Return the verb that runs and those of its arguments that decide numbers, as plain values."""
    return {"verb": ctx.info_name} | {
        name: str(value) if isinstance(value, Path) else value
        for name, value in ctx.params.items()
        if name not in _NO_SETTINGS
    }


def open_run(
    ctx: typer.Context, *names: str, out: Path | None, overwrite: bool, **more: object
) -> Place:
    """Look whether the run that a verb was called for may be made; touch nothing.

    Args:
        ctx: Of the verb.
        *names: What its folder is named after where the user named none.
        out: The folder that the user named.
        overwrite: Replace what an earlier run left there.
        **more: What decides its numbers beside the verb's arguments, or in place of some.

    Returns:
        The place.

    Raises:
        RunError: If the folder holds something else.
    """
    folder = out or default_folder(*names)
    command = command_line(ctx, out=folder)
    settings = {**settings_of(ctx), **more}
    return claim(folder, settings=settings, command=command, overwrite=overwrite)


def save(
    screen: Screen,
    record: "Record",
    folder: Path,
    settings: Mapping[str, Any],
    *,
    overwrite: bool,
    seconds: float | None = None,
) -> Path:
    """Write a run folder, showing that it takes its time."""
    from eigenscape.runs import save_run

    with Watch(screen, "writing figures and the report"):
        return save_run(record, folder, overwrite=overwrite, settings=settings, seconds=seconds)


def claim(folder: Path, *, settings: dict[str, Any], command: str, overwrite: bool) -> Place:
    """Look whether a run may be made in a folder; touch nothing.

    Args:
        folder: Where.
        settings: Plain values that decide the run's numbers.
        command: The command line that continues it.
        overwrite: Replace what an earlier run left there.

    Returns:
        The place.

    Raises:
        RunError: If the folder holds something else.
    """
    settings = json.loads(json.dumps(settings))
    before, is_run = unfinished(folder), (folder / _MANIFEST).exists()
    resumed = before is not None and before.get("settings") == settings
    if folder.exists() and not folder.is_dir():
        raise RunError(f"`--out {folder}` must be a folder; it is a file. Choose another.")
    _require_ours(folder, is_run, before)
    if overwrite and is_run:
        _require_same_verb(folder, settings["verb"])
    if before is not None and not (overwrite or resumed):
        raise RunError(
            f"`--out {folder}` holds an unfinished run with other settings "
            f"({_difference(before.get('settings'), settings)}). Continue it with\n\n"
            f"  {before.get('command')}\n\nor choose another `--out`, or add `--overwrite`."
        )
    if is_run and not (overwrite or resumed):
        raise RunError(
            f"`--out {folder}` holds a finished run. Choose another folder, or replace it with "
            "`--overwrite`."
        )
    # A run replaces a finished one only with `--overwrite`; resuming it does not need the option.
    return Place(folder, settings, command, overwrite or resumed, resumed)


def unfinished(folder: Path) -> dict[str, Any] | None:
    """Return settings and command of the unfinished run in a folder; None if there is none."""
    try:
        content = json.loads((folder / _CHECKPOINT / _KEY).read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and "command" in content else None


@contextmanager
def resumable(screen: Screen, run: Place) -> Iterator[None]:
    """Say that a run is resumed, and on Ctrl-C or a lost process how to go on.

    After a refusal it cleans up.

    Args:
        screen: Where to say it.
        run: The run.

    Yields:
        Nothing.

    Raises:
        Exit: With the exit code of an interruption, or of a refusal.
        EigenscapeError: As it came.
    """
    kept = run.folder / _CHECKPOINT

    def say_how() -> None:
        again = " --overwrite" if run.overwrite and not kept.exists() else ""
        if not screen.silent:
            screen.err.print(f"\n  {run.command}{again}\n", soft_wrap=True)

    if run.resumed:
        screen.say(f"Resuming the unfinished run in {run.folder}; its finished parts are kept.")
    try:
        yield
    except KeyboardInterrupt:
        screen.error(
            f"Interrupted. Finished parts are kept in '{kept}'. Continue with"
            if kept.exists()
            else "Interrupted before anything was computed. Start again with"
        )
        say_how()
        raise typer.Exit(INTERRUPTED) from None
    except RankError as error:
        screen.error(str(error), aloud=True)
        say_how()
        raise typer.Exit(REFUSED) from None
    except EigenscapeError:
        if not screen.silent:  # one process of many
            run.forget_if_empty()
        raise


def default_folder(*names: str) -> Path:
    """Return a folder under runs/ named after model, data and the time.

    Args:
        *names: What the user wrote for model and data.

    Returns:
        The folder; it need not exist.

    Examples:
        >>> default_folder("nets/my_net.py:build", "digits").name[:20]
        'my_net-build-digits-'
    """
    slugs = [re.sub(r"\.py\b|[^\w^.+-]+", "-", Path(name).name).strip("-") for name in names]
    stem = re.sub("-+", "-", "-".join(slugs))
    return RUNS / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def find_run(name: str) -> Path:
    """Return the folder that a user means: a path, or a name under runs/."""
    path = Path(name)
    return path if path.exists() or not (RUNS / name).is_dir() else RUNS / name


def command_line(ctx: typer.Context, **changed: object) -> str:
    """Write the command line again, with some options changed or added.

    `--overwrite` is left out: a line that is kept must not replace a run when it is used again.

    Args:
        ctx: Of the command that runs.
        **changed: Options by their Python names.

    Returns:
        A line for a shell.
    """
    changed = {"overwrite": None, **changed}
    words, chosen = ctx.command_path.split(), {}
    if (count := os.environ.get("LOCAL_WORLD_SIZE", "1")) != "1":
        words = ["torchrun", f"--nproc-per-node={count}", "-m", "eigenscape", *words[-1:]]
    for param in ctx.command.params:
        name = str(param.name)
        source = ctx.get_parameter_source(name)
        if name in changed or (source is not None and source.name == "COMMANDLINE"):
            chosen[name] = changed.get(name, ctx.params.get(name))
    for param in ctx.command.params:
        value = chosen.get(str(param.name))
        if value is None or (value is False and not param.secondary_opts):
            continue
        if param.param_type_name == "argument":
            words.append(str(value))
        elif isinstance(value, bool):
            words.append(max(param.opts if value else param.secondary_opts, key=len))
        else:
            for item in value if isinstance(value, list | tuple) else [value]:
                words += [max(param.opts, key=len), str(item)]
    return shlex.join(words)


def _require_ours(folder: Path, is_run: bool, before: dict[str, Any] | None) -> None:
    """Refuse a folder with files that no run of this command line wrote."""
    if not folder.is_dir() or before is not None:
        return
    # A folder called "checkpoint" may be the user's own, and is never ours to remove.
    foreign = [_CHECKPOINT] if (folder / _CHECKPOINT).exists() else []
    if not is_run:
        foreign = sorted(file.name for file in folder.iterdir())
    if foreign:
        shown = ", ".join(f"'{name}'" for name in foreign[:3]) + (", …" if len(foreign) > 3 else "")
        raise RunError(
            f"`--out {folder}` must be a new or empty folder; it holds other files ({shown}), "
            "which are left alone. Choose another folder."
        )


def _require_same_verb(folder: Path, verb: str) -> None:
    """Let an analysis replace an analysis, and not the training that it came from."""
    try:
        made_by = json.loads((folder / _MANIFEST).read_bytes())["settings"]["verb"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # damaged, or saved from Python: it was asked to be replaced
    if made_by != verb:
        raise RunError(
            f"`--out {folder} --overwrite` would replace a run of `eigenscape {made_by}`, which is "
            "left alone. Choose another folder."
        )


def _difference(before: object, now: dict[str, Any]) -> str:
    if not isinstance(before, dict):
        return "they cannot be read"
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return ", ".join(f"{n}: {before.get(n)!r}, now {now.get(n)!r}" for n in names)
