"""`eigenscape data`: which data sets there are, whether their files are sound, and getting them."""

from typing import Annotated

import typer

from eigenscape.cli.verbs import NOT_CONVERGED, DataDir, Debug, Quiet, Screen, Watch, verb

app = typer.Typer(
    help="Data sets: list, fetch and verify.\n\nExample: eigenscape data fetch mnist",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(help="A data set of `eigenscape data list`.")]


@app.command("list")
@verb
def list_sets(data_dir: DataDir = None, debug: Debug = False) -> None:
    """List the data sets, and say which are ready to use.

    Examples:
      eigenscape data list
    """
    from eigenscape_papers import datasets as sets

    screen = Screen()
    with Watch(screen, "checking files"):
        states = {name: sets.file_state(name, data_dir) for name in sets.names()}
    infos = [sets.describe(name) for name in states]
    screen.table(
        {
            "name": list(states),
            "train": [info.num_train for info in infos],
            "test": [info.num_test for info in infos],
            "input": ["×".join(map(str, info.input_shape)) for info in infos],
            "classes": [info.num_classes for info in infos],
            "files": list(states.values()),
            "what": [info.summary for info in infos],
        }
    )
    if "missing" in states.values():
        screen.say("Get missing files with `eigenscape data fetch NAME`.")


@app.command("fetch")
@verb
def fetch(name: Name, data_dir: DataDir = None, quiet: Quiet = False, debug: Debug = False) -> None:
    """Download the files of a data set; each is compared with its published checksum.

    Examples:
      eigenscape data fetch fashion-mnist --data-dir my-data

    Interrupted, the same command goes on with the files that are not there yet.
    """
    from eigenscape_papers import datasets as sets

    screen = Screen(quiet=quiet)
    with Watch(screen, f"fetching {name}", in_bytes=True) as watch:
        folder = sets.fetch(name, data_dir, progress=watch)
    screen.result(f"{name} is in {folder}")


@app.command("verify")
@verb
def verify(
    name: Annotated[str | None, typer.Argument(help="A data set; all by default.")] = None,
    data_dir: DataDir = None,
    debug: Debug = False,
) -> None:
    """Compare every file with its published checksum.

    Examples:
      eigenscape data verify mnist

    The exit code is 1 if a file is damaged, or one of the named set is missing.

    Raises:
        Exit: Then.
    """
    from eigenscape_papers import datasets as sets

    screen = Screen()
    with Watch(screen, "checking files"):
        names = sets.names() if name is None else (name,)
        rows = [(one, file) for one in names for file in sets.locate(one, data_dir)]
    if not rows:
        screen.say(f"{name} needs no files.")
        return
    screen.table(
        {
            "set": [one for one, _ in rows],
            "file": [file.name for _, file in rows],
            "state": [file.state for _, file in rows],
            "checksum": [_short(file.checksum) for _, file in rows],
            "path": [None if file.path is None else str(file.path) for _, file in rows],
        }
    )
    bad = [
        file
        for _, file in rows
        if file.state == "damaged" or (name is not None and file.state == "missing")
    ]
    for file in bad:
        screen.note(file.problem)
    if bad:
        raise typer.Exit(NOT_CONVERGED)


def _short(checksum: str) -> str:
    return checksum if len(checksum) < 24 else f"{checksum[:20]}…"
