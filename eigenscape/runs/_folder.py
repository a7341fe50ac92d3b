"""The inside of a run folder: its manifest, its files, and what may be touched in it.

    run.json              what it is, and size and SHA-256 of every file; written last
    arrays.safetensors    the record's tensors
    figures/*.png, *.pdf
    report.html           for records that have one
    checkpoint/           only while it is computed
    .saving/              only while it is written

A folder without `run.json` is no run. New files are made in `.saving` and moved into place, so that
a full disk or a kill leaves what was there before, or a folder that says it is unfinished.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from eigenscape.errors import RunError
from eigenscape.records import sha256, write_with

FORMAT, VERSION = "eigenscape-run", 1
MANIFEST, ARRAYS, REPORT, FIGURES = "run.json", "arrays.safetensors", "report.html", "figures"
CHECKPOINT, SAVING = "checkpoint", ".saving"

_AGAIN = "Run the computation again into a new folder, or bring the folder back from a copy."


def manifest_bytes(manifest: Mapping[str, Any]) -> bytes:
    """Return a manifest as JSON with a checksum of itself."""
    return json.dumps({**manifest, "checksum": _digest(manifest)}, indent=1).encode()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read `run.json`, and prove that it is what was written.

    Args:
        folder: The run folder.

    Returns:
        Its content.

    Raises:
        RunError: If the folder is no finished run, or the file is damaged or newer than we are.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise RunError(_why_no_run(folder))
    try:
        manifest = json.loads(path.read_bytes())
    except (ValueError, OSError) as error:
        raise RunError(f"'{path}' must be JSON; it cannot be read ({error}). {_AGAIN}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        got = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise RunError(
            f"'{path}' must have the format '{FORMAT}'; got {got!r}. It was written by another "
            "program: give a folder that `record.save(...)` made."
        )
    version = manifest.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise RunError(f"'{path}' must have a whole number as its version; got {version!r}. {_AGAIN}")
    if version > VERSION:
        raise RunError(
            f"'{path}' has version {version}, and this eigenscape reads up to {VERSION}. It was "
            "written by a newer eigenscape: update yours."
        )
    expected = manifest.pop("checksum", None)
    if expected != _digest(manifest):
        raise RunError(
            f"'{path}' is damaged or was edited: its checksum does not fit its content. {_AGAIN}"
        )
    return manifest


def check_files(folder: Path, manifest: Mapping[str, Any], *, content: bool = True) -> None:
    """Prove that the files are there as they were written.

    Args:
        folder: The run folder.
        manifest: Its manifest.
        content: Whether to read them all for their SHA-256; else their sizes are enough.

    Raises:
        RunError: If one is missing or differs.
    """
    for name, facts in listed(folder, manifest).items():
        path = folder / name
        if not path.is_file():
            raise RunError(f"'{path}' is part of the run and missing. {_AGAIN}")
        length = path.stat().st_size
        if length != facts["bytes"]:
            raise RunError(
                f"'{path}' must have {facts['bytes']} bytes; it has {length}, so it was cut short "
                f"or edited. {_AGAIN}"
            )
        if content and (digest := sha256(path)) != facts["sha256"]:
            raise RunError(
                f"'{path}' is damaged or was edited: its SHA-256 must be {facts['sha256'][:12]}…, "
                f"and is {digest[:12]}…. {_AGAIN}"
            )


def listed(folder: Path, manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the files that a manifest lists, none of them outside the folder."""
    files = manifest.get("files")
    known = isinstance(files, dict) and all(
        isinstance(facts, dict)
        and isinstance(facts.get("bytes"), int)
        and isinstance(facts.get("sha256"), str)
        for facts in files.values()
    )
    if not known or not isinstance(files, dict):
        raise RunError(f"'{folder / MANIFEST}' must list its files with size and SHA-256. {_AGAIN}")
    for name in files:
        segments = PurePosixPath(name).parts
        if not segments or PurePosixPath(name).is_absolute() or ".." in segments or "\\" in name:
            raise RunError(
                f"'{folder / MANIFEST}' lists the file '{name}', which is not inside the folder."
            )
    return files


def require_free(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that a run may not be written to; touch nothing.

    Args:
        folder: Where a run is to be written.
        overwrite: Whether an earlier run may be replaced.

    Raises:
        RunError: If it holds something that is not ours to replace.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise RunError(f"`save(folder)` must be a folder; '{folder}' is a file. Choose another.")
    path = folder / MANIFEST
    if path.exists():
        # Also a damaged run may be replaced, but never another program's run.json.
        if f'"{FORMAT}"' not in path.read_bytes()[:4096].decode(errors="replace"):
            raise RunError(
                f"`save(folder)` must be a new or empty folder; '{folder}' holds a 'run.json' of "
                "another program, which is left alone. Choose another folder."
            )
        if not overwrite:
            raise RunError(
                f"`save(folder)` must be a new or empty folder; '{folder}' holds a run. Choose "
                "another folder, or replace it with `overwrite=True`."
            )
        return
    names = sorted(file.name for file in folder.iterdir())
    if (folder / SAVING).is_dir() or not names:
        return
    if is_checkpoint(folder / CHECKPOINT):
        # Notes beside a long computation are no reason to refuse its result.
        names = [name for name in names if name in (ARRAYS, REPORT, FIGURES)]
        if not names:
            return
    shown = ", ".join(f"'{name}'" for name in names[:3]) + (", …" if len(names) > 3 else "")
    raise RunError(
        f"`save(folder)` must be a new or empty folder; '{folder}' holds other files ({shown}), "
        "which are left alone. Choose another folder."
    )


def is_unfinished(folder: Path) -> bool:
    """Say whether a folder without `run.json` is a run that was begun."""
    return (folder / SAVING).is_dir() or is_checkpoint(folder / CHECKPOINT)


def is_checkpoint(folder: Path) -> bool:
    """Say whether a folder holds nothing but checkpoints of ours; others have such a folder too."""
    if not folder.is_dir() or folder.is_symlink():
        return False
    files = [path for path in folder.rglob("*") if not path.is_dir()]
    ours = all(path.suffix in (".json", ".safetensors", ".unfinished") for path in files)
    return ours and (not files or any(path.name == "key.json" for path in files))


def clear_old(folder: Path) -> None:
    """Take an earlier run away, `run.json` first, so that no mixture ever reads as finished."""
    path = folder / MANIFEST
    if not path.exists():
        return
    try:
        names = list(listed(folder, json.loads(path.read_bytes())))
    except (ValueError, AttributeError, RunError):
        names = [ARRAYS, REPORT]  # a damaged list; these are ours by their name
    path.unlink()
    for name in names:
        (folder / name).unlink(missing_ok=True)


def empty_saving(folder: Path) -> Path:
    """Return `.saving`, emptied in place: that it is there marks the folder as ours."""
    saving = folder / SAVING
    saving.mkdir(exist_ok=True)
    for path in saving.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return saving


def move_in(folder: Path, names: list[str]) -> None:
    """Move finished files from `.saving` into place, each flushed, and `run.json` last."""
    for name in [*names, MANIFEST]:
        target, source = folder / name, folder / SAVING / name
        target.parent.mkdir(parents=True, exist_ok=True)
        write_with(target, source.replace)
    shutil.rmtree(folder / SAVING, ignore_errors=True)
    if is_checkpoint(folder / CHECKPOINT):
        shutil.rmtree(folder / CHECKPOINT, ignore_errors=True)


def _why_no_run(folder: Path) -> str:
    if not folder.exists():
        return f"There is no folder '{folder}'. Give one that `record.save(...)` made."
    if not folder.is_dir():
        return f"A run is a folder; '{folder}' is a file. Give the folder that it lies in."
    if is_checkpoint(folder / CHECKPOINT):
        return (
            f"The run '{folder}' is unfinished: it has a checkpoint and no '{MANIFEST}'. Resume by "
            "running the same command again."
        )
    if is_unfinished(folder):
        return (
            f"The run '{folder}' is unfinished: it was interrupted while it was being saved. "
            "Resume by running the same command again."
        )
    return f"'{folder}' is no run: it has no '{MANIFEST}'. Give a folder that `record.save` made."


def _digest(manifest: Mapping[str, Any]) -> str:
    plain = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()
