"""How verbs end: with words and an exit code, whatever happens inside them."""

import os
import warnings
import webbrowser
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from eigenscape.cli import _verb
from eigenscape.cli._screen import Screen
from eigenscape.cli._verb import is_follower, is_launched, open_file, verb
from eigenscape.errors import EigenscapeError, EigenscapeWarning, RankError

NAMES = "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_verb, "_SPEAKING_SECONDS", 0.0)


def launch(monkeypatch: pytest.MonkeyPatch, rank: int, size: int = 3) -> None:
    """What torchrun tells a process."""
    values = (rank, size, "localhost", 29500, "none")
    for name, value in zip(NAMES, values, strict=True):
        monkeypatch.setenv(name, str(value))


def ending(raised: BaseException | None, *, in_parallel: bool = False, **options: bool) -> int:
    """Run a verb that raises, and return its exit code."""

    def command(*, quiet: bool = False, debug: bool = False) -> str:
        if raised is not None:
            raise raised
        return "done"

    run: Callable[..., str] = verb(command, in_parallel=in_parallel)
    try:
        assert run(**options) == "done"
    except typer.Exit as error:
        return error.exit_code
    return 0


@pytest.mark.parametrize(
    ("raised", "code", "words"),
    [
        (None, 0, ""),
        (EigenscapeError("Not so."), 2, "Not so."),
        (KeyboardInterrupt(), 130, "Interrupted."),
        (ValueError("odd"), 3, "Unexpected ValueError: odd. Add `--debug`"),
        (MemoryError(), 3, "The memory is not enough (MemoryError). Lower `--batch-size`"),
        (
            RuntimeError("CUDA: not enough memory\nmore"),
            3,
            "(RuntimeError: CUDA: not enough mem",
        ),
        (OSError(28, "No space left on device"), 3, "The disk is full (OSError:"),
        (ValueError("No space left"), 3, "Unexpected ValueError"),
        (typer.Exit(1), 1, ""),
    ],
)
def test_every_end_has_its_code_and_words(
    raised: BaseException | None, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ending(raised) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert "Traceback" not in err
    assert bool(err) is bool(words)


def test_the_traceback_is_shown_to_those_who_ask(capsys: pytest.CaptureFixture[str]) -> None:
    for raised in (EigenscapeError("Not so."), ValueError("odd")):
        ending(raised, debug=True)
        err = capsys.readouterr().err
        assert err.startswith("Traceback")
        assert "in command" in err
        assert "Add `--debug`" not in err


def test_a_reader_that_has_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(os, "dup2", lambda *descriptors: calls.append(descriptors))
    monkeypatch.setattr("sys.stdout", type("Gone", (), {"fileno": lambda self: 1})())
    assert ending(BrokenPipeError()) == 0
    ((nowhere, stdout),) = calls
    assert stdout == 1
    os.close(nowhere)


def test_our_warnings_are_notes_and_others_stay(capsys: pytest.CaptureFixture[str]) -> None:
    def command(quiet: bool = False) -> None:
        warnings.warn("Look here.", EigenscapeWarning, stacklevel=1)
        warnings.warn("not ours", UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="not ours"):
        verb(command)()
    assert capsys.readouterr().err == "Note: Look here.\n"
    with pytest.warns(UserWarning, match="not ours"):
        verb(command)(quiet=True)
    assert capsys.readouterr().err == ""


def test_help_leaves_out_what_callers_need() -> None:
    def command() -> None:
        """Do it.

        More.

        Examples:
            eigenscape do it

        Args:
            nothing: At all.

        Returns:
            Nothing.
        """

    text = str(verb(command).__doc__)
    assert text.startswith("Do it.\n\nMore.")
    assert "\n\b\nExamples:\n    eigenscape do it" in text
    assert "Args" not in text
    assert "Returns" not in text


def test_only_the_first_process_speaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, words in ((0, "Not so.\n"), (1, "")):
        launch(monkeypatch, rank)
        assert is_launched()
        assert is_follower() is (rank == 1)
        assert ending(EigenscapeError("Not so."), in_parallel=True) == 2
        assert capsys.readouterr().err == words
    # What one process alone may meet, it says itself.
    for raised, code in ((RankError("Rank 2 is lost."), 2), (ValueError("odd"), 3)):
        assert ending(raised, in_parallel=True) == code
        assert str(raised) in capsys.readouterr().err


def test_other_verbs_refuse_several_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch(monkeypatch, 0)
    assert ending(None) == 2
    error = capsys.readouterr().err
    assert "`eigenscape command` works in one process; torchrun started 3" in error
    launch(monkeypatch, 0, size=1)
    assert ending(None) == 0


def test_a_cluster_is_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    launch(monkeypatch, 2)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    assert ending(None) == 0  # its variables are there for every command
    monkeypatch.delenv("MASTER_PORT")
    assert not is_launched()
    assert not is_follower()


@pytest.mark.parametrize("there_is_one", [True, False])
def test_a_report_is_opened_or_named(
    there_is_one: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda uri: opened.append(uri) or there_is_one)
    path = tmp_path / "a b.html"
    open_file(Screen(), path)
    assert opened == [path.as_uri()]
    assert (str(path) in capsys.readouterr().err) is not there_is_one
