"""`eigenscape show`: a run in words, numbers, tables or JSON."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eigenscape.cli import _runs
from eigenscape.cli._progress import Watch
from eigenscape.cli._screen import Screen, duration
from eigenscape.cli._verb import AsJson, Debug, open_file
from eigenscape.errors import RunError, UnknownNameError, near_matches

if TYPE_CHECKING:
    from eigenscape.records import Columns, Record
    from eigenscape.runs import Run

# Longer tensors are vectors for programs, not numbers for people.
_LARGEST_SHOWN = 256
_ROWS = 20


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or a name under runs/.")],
    section: Annotated[
        str | None,
        typer.Option(help="One part: hessian, gauss-newton, residual, outliers, layers, blocks, …"),
    ] = None,
    as_json: AsJson = False,
    report: Annotated[bool, typer.Option("--report", help="Write the report again.")] = False,
    open_report: Annotated[bool, typer.Option("--open", help="Open the report.")] = False,
    debug: Debug = False,
) -> None:
    """Show what a run found, in words, tables or JSON.

    Examples:
      eigenscape show runs/demo
      eigenscape show demo --section layers
      eigenscape show demo --json > demo.json
    """
    screen, folder = Screen(), _runs.find_run(run)
    with Watch(screen, "reading the run"):
        stored = _read(folder)
    record = stored.record if section is None else _section(stored.record, section)
    if as_json:
        typer.echo(json.dumps(_as_dict(stored, record), indent=1, ensure_ascii=False))
        return
    if report:
        _rebuild(screen, stored)
    if section is not None:
        _show_part(screen, record, section)
    else:
        _show_run(screen, stored)
    page = folder / "report.html"
    if page.is_file():
        screen.say(f"Report: {page}")
        if open_report:
            open_file(screen, page)


def _read(folder: Path) -> "Run":
    from eigenscape.runs import list_runs, read_run

    if not folder.exists() and _runs.RUNS.is_dir():
        names = [summary.path.name for summary in list_runs(_runs.RUNS)]
        near = f" {near_matches(folder.name, names)}" if names else ""
        raise RunError(f"There is no run '{folder}', here or in '{_runs.RUNS}'.{near}")
    return read_run(folder)


def _show_run(screen: Screen, run: "Run") -> None:
    record = run.record
    screen.say(run.title, bold=True)
    described: Mapping[str, object] = getattr(record, "description", {})
    screen.facts(
        {
            "kind": run.kind,
            "created": run.created,
            **described,
            "wall time": duration(run.seconds),
            "products": run.num_products,
            "seed": run.seed,
            "status": record.status,
        }
    )
    # Those of a study are claims, which its table lists.
    if sentences := [s for s in getattr(record, "findings", ()) if isinstance(s, str)]:
        screen.say("Findings", bold=True)
        screen.list(sentences)
    _show_table(screen, record.columns(), "Key numbers" if sentences else "Result")
    if sections := _parts(record):
        screen.say(f"Sections: {', '.join(sections)} (`--section NAME` shows one).")


def _show_part(screen: Screen, record: "Record", name: str) -> None:
    screen.facts({"section": name, "products": record.num_products, "status": record.status.text})
    _show_table(screen, record.columns(), "")


def _show_table(screen: Screen, columns: "Columns", title: str) -> None:
    """Print the last rows where there are many: a training ends there."""
    lists = {name: list(values) for name, values in columns.items()}
    count = max(map(len, lists.values()), default=0)
    if count > _ROWS and "epoch" in lists:
        title = f"{title}, the last {_ROWS} of {count} rows"
        lists = {name: values[-_ROWS:] for name, values in lists.items()}
    screen.table(lists, title=title)


def _parts(record: "Record") -> dict[str, "Record"]:
    from eigenscape.records import Record

    values = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    return {n.replace("_", "-"): v for n, v in values.items() if isinstance(v, Record)}


def _section(record: "Record", name: str) -> "Record":
    sections = _parts(record)
    if name not in sections:
        raise UnknownNameError(
            f"`--section {name}`: this run has no such part. {near_matches(name, sections)}"
            if sections
            else f"`--section {name}`: this run has one part only. Leave the option out."
        )
    return sections[name]


def _rebuild(screen: Screen, run: "Run") -> None:
    """Save the run again with a new report; where it came from is kept beside the settings."""
    first = {"created": run.created, "versions": run.versions, "commit": run.commit}
    settings = {"first made": first, **run.settings}
    _runs.save(screen, run.record, run.folder, settings, overwrite=True, seconds=run.seconds)


def _as_dict(run: "Run", record: "Record") -> dict[str, Any]:
    left_out: list[str] = []
    content = _plain(record, "", left_out)
    return {
        "folder": str(run.folder),
        "kind": run.kind,
        "title": run.title,
        "created": run.created,
        "versions": run.versions,
        "settings": run.settings,
        "left out": [f"{name} (in arrays.safetensors)" for name in left_out],
        "record": content,
    }


def _plain(value: Any, path: str, left_out: list[str]) -> Any:
    """Return plain values; a large tensor becomes its shape, and is noted in `left_out`."""
    from torch import Tensor

    if isinstance(value, Tensor):
        if value.numel() > _LARGEST_SHOWN:
            left_out.append(path)
            return {"left out": list(value.shape)}
        return _plain(value.tolist(), path, left_out)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {n: _plain(getattr(value, n), f"{path}.{n}".strip("."), left_out) for n in names}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}.{i}", left_out) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {str(k): _plain(item, f"{path}.{k}", left_out) for k, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no NaN
    return value
