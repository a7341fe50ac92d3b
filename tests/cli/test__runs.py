"""Where a run is made: whose folder it is, how it goes on, and what is left behind."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from eigenscape.cli._runs import (
    Place,
    claim,
    command_line,
    default_folder,
    find_run,
    resumable,
    unfinished,
)
from eigenscape.cli._screen import Screen
from eigenscape.errors import EigenscapeError, RankError, RunError

SETTINGS = {"verb": "analyze", "seed": 3, "layers": ["a", "b"]}


def claimed(folder: Path, *, overwrite: bool = False, **changes: Any) -> Place:
    return claim(
        folder, settings={**SETTINGS, **changes}, command="eigenscape again", overwrite=overwrite
    )


def begun(folder: Path, *files: str, **changes: Any) -> Path:
    run = claimed(folder, **changes)
    run.begin()
    run.checkpoint.mkdir(exist_ok=True)
    for name in files:
        (run.checkpoint / name).write_text("kept")
    return folder


def finish(folder: Path, verb: str = "analyze") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"settings": {"verb": verb}}))
    return folder


# --- claiming a folder ---------------------------------------------------------------------------


def test_claiming_touches_nothing(tmp_path: Path) -> None:
    run = claimed(tmp_path / "new")
    assert not run.resumed
    assert list(tmp_path.iterdir()) == []
    assert run.checkpoint == tmp_path / "new" / "checkpoint" / "parts"


def test_an_unfinished_run_goes_on_with_the_same_settings(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", "basis.safetensors")
    run = claimed(folder, layers=("a", "b"))  # a tuple is a list in JSON
    assert run.resumed
    assert run.overwrite
    run.begin()
    assert (run.checkpoint / "basis.safetensors").read_text() == "kept"


def test_other_settings_are_told_and_refused(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    with pytest.raises(RunError, match=r"seed: 3, now 4.*\n\n  eigenscape again\n\n.*--overwrite"):
        claimed(folder, seed=4)
    assert unfinished(folder)["settings"]["seed"] == 3


def test_to_overwrite_begins_anew(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", "basis.safetensors")
    run = claimed(folder, seed=4, overwrite=True)
    assert not run.resumed
    assert (run.checkpoint / "basis.safetensors").exists()  # until it begins
    run.begin()
    assert not run.checkpoint.exists()
    assert unfinished(folder)["settings"]["seed"] == 4


def test_a_finished_run_is_replaced_by_its_own_verb_alone(tmp_path: Path) -> None:
    folder = finish(tmp_path / "run")
    with pytest.raises(RunError, match="holds a finished run"):
        claimed(folder)
    assert claimed(folder, overwrite=True).overwrite
    with pytest.raises(RunError, match="would replace a run of `eigenscape train`"):
        claimed(finish(tmp_path / "trained", "train"), overwrite=True)
    (folder / "run.json").write_text("damaged")
    assert claimed(folder, overwrite=True).overwrite


@pytest.mark.parametrize("overwrite", [True, False])
def test_what_is_not_ours_is_left_alone(tmp_path: Path, overwrite: bool) -> None:
    folder = tmp_path / "thesis"
    folder.mkdir()
    for name in ("a", "b", "c", "d"):
        (folder / name).touch()
    with pytest.raises(RunError, match=r"other files \('a', 'b', 'c', …\)"):
        claimed(folder, overwrite=overwrite)
    with pytest.raises(RunError, match="must be a folder; it is a file"):
        claimed(folder / "a", overwrite=overwrite)
    replaced = finish(tmp_path / "run")
    (replaced / "checkpoint").mkdir()  # theirs: ours has a key
    with pytest.raises(RunError, match=r"\('checkpoint'\)"):
        claimed(replaced, overwrite=True)


@pytest.mark.parametrize("text", ["", "[1]", '{"settings": {}}', "{"])
def test_a_key_that_is_none_of_ours_is_no_run(tmp_path: Path, text: str) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "key.json").write_text(text)
    assert unfinished(tmp_path) is None


# --- leaving it ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "stays"), [((), False), (("loss-and-gradient.json",), False), (("H.json",), True)]
)
def test_a_run_that_kept_nothing_leaves_nothing(
    tmp_path: Path, files: tuple[str, ...], stays: bool
) -> None:
    folder = begun(tmp_path / "run", *files)
    claimed(folder).forget_if_empty()
    assert folder.exists() is stays
    beside = begun(tmp_path / "other", *files)
    (beside / "notes.txt").touch()
    claimed(beside).forget_if_empty()
    assert (beside / "notes.txt").exists()
    assert (beside / "checkpoint").exists() is stays


def test_an_interruption_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = claimed(begun(tmp_path / "run", "H.json"))
    with pytest.raises(typer.Exit) as caught, resumable(Screen(), run):
        raise KeyboardInterrupt
    assert caught.value.exit_code == 130
    error = capsys.readouterr().err
    assert f"Finished parts are kept in '{run.folder / 'checkpoint'}'" in error
    assert error.rstrip().endswith("  eigenscape again")
    fresh = claimed(tmp_path / "new", overwrite=True)
    with pytest.raises(typer.Exit), resumable(Screen(), fresh):
        raise KeyboardInterrupt
    assert capsys.readouterr().err.rstrip().endswith("eigenscape again --overwrite")


def test_a_refusal_cleans_up_and_a_lost_process_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = claimed(begun(tmp_path / "run"))
    with pytest.raises(typer.Exit) as caught, resumable(Screen(), run):
        raise RankError("Rank 2 is lost.")
    assert caught.value.exit_code == 2
    assert run.folder.exists()
    error = capsys.readouterr().err
    assert error.index("Rank 2 is lost.") < error.index("eigenscape again")
    with pytest.raises(EigenscapeError, match="no"), resumable(Screen(silent=True), run):
        raise EigenscapeError("no")
    assert run.folder.exists()  # another process's to clean up
    with pytest.raises(EigenscapeError, match="no"), resumable(Screen(), run):
        raise EigenscapeError("no")
    assert not run.folder.exists()


# --- names and command lines ---------------------------------------------------------------------


def test_folders_are_named_after_model_and_data() -> None:
    name = default_folder("my nets/a b.py:build", "F-200^2").name
    assert name.startswith("a-b-build-F-200^2-2")
    assert default_folder("x").parent == Path("runs")


def test_a_run_is_found_by_path_or_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    assert find_run("one") == Path("runs/one")
    (tmp_path / "one").mkdir()
    assert find_run("one") == Path("one")
    assert find_run("nowhere") == Path("nowhere")


def written(*words: str, **changed: object) -> list[str]:
    """The command line that a small command writes of itself."""
    app, lines = typer.Typer(), []

    @app.command()
    def probe(
        ctx: typer.Context,
        model: str,
        layer: Annotated[list[str], typer.Option("--layer", "-l")] = [],  # noqa: B006
        seed: int = 0,
        out: str = "",
        quiet: Annotated[bool, typer.Option("--quiet/--loud", "-q")] = False,
        overwrite: bool = False,
    ) -> None:
        lines.append(command_line(ctx, **changed))

    result = CliRunner().invoke(app, list(words), prog_name="eigenscape")
    assert result.exit_code == 0, result.output
    return shlex.split(lines[0])


def test_what_was_said_is_written_again() -> None:
    words = ["a b.py:net", "-l", "fc 1", "--layer", "fc2", "--overwrite", "--seed", "0", "--loud"]
    assert written(*words) == [
        "eigenscape", "a b.py:net", "--layer", "fc 1", "--layer", "fc2", "--seed", "0", "--loud",
    ]  # fmt: skip
    assert written("net") == ["eigenscape", "net"]
    assert written("net", "-q") == ["eigenscape", "net", "--quiet"]


def test_options_are_changed_and_added() -> None:
    assert written("net", "--seed", "5", out="runs/x y", seed=None) == [
        "eigenscape", "net", "--out", "runs/x y",
    ]  # fmt: skip
    assert written("net", seed=7) == ["eigenscape", "net", "--seed", "7"]


def test_several_processes_are_started_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert written("net")[:4] == ["torchrun", "--nproc-per-node=3", "-m", "eigenscape"]
