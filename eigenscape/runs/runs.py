"""Results on disk: save a record as a run folder, read it back with proof, list what is there."""

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from eigenscape.errors import FileError, RunError, WrongTypeError
from eigenscape.plugins import renderer
from eigenscape.records import (
    Record,
    pack,
    read_tensors,
    sha256,
    short,
    unpack,
    write_bytes,
    write_tensors,
)
from eigenscape.runs import _folder
from eigenscape.runs.provenance import provenance

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """A finished run, read back and proved.

    Attributes:
        folder: Where it lies.
        kind: What it is: "analysis", "training", or another record's class in kebab case.
        title: What was computed, in a few words.
        created: When, in UTC.
        record: The record itself.
        settings: What the caller noted, e.g. the command line.
        versions: Versions of eigenscape, python, torch and numpy.
        commit: Commit of the git repository that it was started in; None where there was none.
        device: Where it ran.
        seconds: Wall time; None where nobody measured.
        num_products: Products that were spent.
        seed: What fixed the random numbers.
        files: Size and SHA-256 of each file.
    """

    folder: Path
    kind: str
    title: str
    created: str
    record: Record
    settings: dict[str, Any]
    versions: dict[str, str]
    commit: str | None
    device: str
    seconds: float | None
    num_products: int
    seed: int
    files: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class RunSummary:
    """One line about a folder.

    Attributes:
        path: The folder.
        state: "finished", "unfinished" or "damaged".
        kind: As in `Run`; "" where it is not known.
        title: As in `Run`; "" where it is not known.
        created: As in `Run`; "" where it is not known.
        text: The result in a line, or what is wrong and what to do.
    """

    path: Path
    state: str
    kind: str
    title: str
    created: str
    text: str


def save_run(
    record: Record,
    folder: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    settings: Settings | None = None,
    seconds: float | None = None,
) -> Path:
    """Keep a record as a run: a folder with `run.json`, arrays, figures and a report.

    `run.json` is written last. A crash before leaves what was there, or a folder that reads as
    unfinished; never a mixture.

    Args:
        record: Any record.
        folder: A new or empty folder, or one with a `checkpoint/` of this computation, which is
            removed when the run is complete.
        overwrite: Replace an earlier run. Files of your own beside it stay.
        settings: Plain values to note, e.g. the command line.
        seconds: Wall time, where the record does not know it.

    Returns:
        The folder.

    Raises:
        WrongTypeError: If it is no record, or the settings are not plain.
        RunError: If the folder holds something else.

    Examples:
        >>> import torch
        >>> from eigenscape.linalg import trace
        >>> from eigenscape.operator import Dense
        >>> record = trace(Dense(torch.eye(3)), num_products=3)
        >>> read_run(save_run(record, "trace-of-one")).record.value
        3.0
    """
    if not isinstance(record, Record):
        raise WrongTypeError(f"`save_run(record)` must be a record; got {type(record).__name__}.")
    root = Path(folder)
    noted = _plain_settings(settings)
    _folder.require_free(root, overwrite=overwrite)
    made = not root.exists()
    marked = (root / _folder.SAVING).exists()
    root.mkdir(parents=True, exist_ok=True)
    try:
        names = _stage(record, root, noted, seconds)
    except BaseException:
        # What was there before is untouched; take away what was begun.
        if made:
            shutil.rmtree(root, ignore_errors=True)
        elif not marked:
            shutil.rmtree(root / _folder.SAVING, ignore_errors=True)
        raise
    _folder.clear_old(root)
    _folder.move_in(root, names)
    return root


def read_run(folder: str | os.PathLike[str]) -> Run:
    """Read a run, and prove that every file is what was written.

    Files that you have added to the folder are ignored.

    Args:
        folder: The run folder.

    Returns:
        The run with its record.

    Raises:
        RunError: If it is unfinished, damaged, none at all, or newer than this version.
    """
    root = Path(folder)
    manifest = _folder.read_manifest(root)
    _folder.check_files(root, manifest)
    try:
        tensors = read_tensors(root / _folder.ARRAYS)
        record = unpack(manifest["record"], tensors)
        if not isinstance(record, Record):
            raise RunError(f"'{root / _folder.MANIFEST}' holds no record.")
        noted = {field.name for field in fields(Run)} - {"folder", "record"}
        return Run(
            folder=root,
            record=record,
            **{name: manifest[name] for name in noted},
        )
    except FileError as error:
        raise RunError(str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(
            f"'{root / _folder.MANIFEST}' lacks something that a run has ({error!r}); it was "
            "written by another version of eigenscape. Run the computation again."
        ) from error


def list_runs(folder: str | os.PathLike[str], *, verify: bool = False) -> list[RunSummary]:
    """List the runs directly inside a folder, and the folder itself if it is one.

    Cost: by default one small file a run is read, and the other files are looked at for their size;
    `read_run` proves their content.

    Args:
        folder: Where to look.
        verify: Read every file and compare its SHA-256 too.

    Returns:
        One entry a run, by name; a bad run is an entry, and no error.

    Raises:
        RunError: If there is no such folder.
    """
    root = Path(folder)
    if not root.is_dir():
        raise RunError(f"`list_runs(folder)` must be a folder; there is none at '{root}'.")
    inside = [path for path in sorted(root.iterdir()) if path.is_dir()]
    hidden = (_folder.SAVING, _folder.CHECKPOINT)
    candidates = [root, *(path for path in inside if path.name not in hidden)]
    summaries = [_summary(path, verify) for path in candidates]
    return [summary for summary in summaries if summary is not None]


def kind_of(record: Record) -> str:
    """Return the kind of a record: its class in kebab case, e.g. "eigen-pairs"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", type(record).__name__).lower()


def _plain_settings(settings: Settings | None) -> dict[str, Any]:
    try:
        plain = json.loads(json.dumps(dict(settings or {}), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise WrongTypeError(
            "`save_run(settings=...)` must be a dict of text, finite numbers, lists and dicts; "
            f"{error}. Turn other values into text first."
        ) from error
    return dict(plain)


def _stage(
    record: Record, root: Path, settings: dict[str, Any], seconds: float | None
) -> list[str]:
    """Write the whole run into the folder `.saving`, and return the names of its files."""
    saving = _folder.empty_saving(root)
    plain, tensors = pack(record)
    write_tensors(saving / _folder.ARRAYS, tensors)
    renderer().write_files(record, saving, settings)
    paths = [path for path in sorted(saving.rglob("*")) if path.is_file()]
    files = {
        path.relative_to(saving).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in paths
    }
    origin = provenance(record)
    if seconds is not None:
        origin["seconds"] = float(seconds)
    manifest = {
        "format": _folder.FORMAT,
        "version": _folder.VERSION,
        "kind": kind_of(record),
        "title": str(getattr(record, "title", "") or kind_of(record).replace("-", " ")),
        **origin,
        "num_products": record.num_products,
        "seed": record.seed,
        "text": one_line(record),
        "settings": settings,
        "files": files,
        "record": plain,
    }
    write_bytes(saving / _folder.MANIFEST, _folder.manifest_bytes(manifest))
    return list(files)


def one_line(record: Record) -> str:
    """Return a record's result in one line."""
    hessian, point = getattr(record, "hessian", None), getattr(record, "point", None)
    if hessian is not None and point is not None:
        facts = [f"loss {short(point.loss)}"]
        if len(hessian.largest):
            facts.append(f"λ₁ {short(float(hessian.largest.values[0]))}")
        facts += [f"trace {short(hessian.trace)}", f"n {short(hessian.size)}"]
        return ", ".join(facts)
    value = getattr(record, "value", None)
    start = f"{short(value)}; " if isinstance(value, float) else ""
    return start + " ".join(record.status.text.split())


def _summary(folder: Path, verify: bool) -> RunSummary | None:
    """Return a line about a folder; None if it has nothing to do with runs."""
    if not (folder / _folder.MANIFEST).exists():
        if not _folder.is_unfinished(folder):
            return None
        text = "resume by running the same command again"
        return RunSummary(folder, "unfinished", "", "", "", text)
    facts = {"kind": "", "title": "", "created": ""}
    try:
        manifest = _folder.read_manifest(folder)
        facts = {name: str(manifest.get(name, "")) for name in facts}
        _folder.check_files(folder, manifest, content=verify)
    except (RunError, OSError) as error:
        return RunSummary(folder, "damaged", **facts, text=str(error))
    return RunSummary(folder, "finished", **facts, text=str(manifest.get("text", "")))
