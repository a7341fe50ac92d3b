"""`eigenscape ls`: the runs in a folder."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from eigenscape.cli import _runs
from eigenscape.cli._progress import Watch
from eigenscape.cli._screen import Screen
from eigenscape.cli._verb import AsJson, Debug


def ls(
    folder: Annotated[Path, typer.Argument(help="Where the runs are.")] = _runs.RUNS,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file and compare its checksum.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the runs in a folder, and their results in a line.

    Examples:
      eigenscape ls runs
    """
    from eigenscape.runs import list_runs

    screen = Screen()
    if folder == _runs.RUNS and not folder.exists():
        summaries = []
    else:
        with Watch(screen, "reading runs"):
            summaries = list_runs(folder, verify=verify)
    if as_json:
        rows = [{**dataclasses.asdict(run), "path": str(run.path)} for run in summaries]
        typer.echo(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    if not summaries:
        screen.say(f"No runs in '{folder}'. `eigenscape demo` makes one.")
        return
    begun = {run.path: _runs.unfinished(run.path) for run in summaries if run.state == "unfinished"}
    screen.table(
        {
            "run": [str(run.path) for run in summaries],
            "kind": [run.kind or None for run in summaries],
            "state": [run.state for run in summaries],
            "created": [run.created[:16].replace("T", " ") for run in summaries],
            "result": [run.text for run in summaries],
        }
    )
    for path, noted in begun.items():
        if noted is not None:
            screen.say(f"Resume {path} with: {noted['command']}")
