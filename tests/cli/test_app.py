import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from eigenscape.cli._progress import Watch
from eigenscape.cli._screen import Screen
from eigenscape.cli.app import add_verbs
from eigenscape.records import Progress
from tests.cli.conftest import QUICK, Cli

VERBS = (
    "demo",
    "analyze",
    "train",
    "bound",
    "verify",
    "stepsize",
    "study",
    "claims",
    "ls",
    "show",
    "compare",
    "models",
    "env",
)
SUBVERBS = ("list", "fetch", "verify")
COMMANDS = [(verb,) for verb in VERBS] + [("data", verb) for verb in SUBVERBS]
HEAVY = ("torch", "numpy", "matplotlib", "sklearn", "plotly", "pandas", "scipy")


def test_help_of_all_verbs_imports_nothing_heavy() -> None:
    code = f"""
import sys
from typer.testing import CliRunner
from eigenscape.cli.app import app
for words in {[(), *COMMANDS]!r}:
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0, words
found = [name for name in {HEAVY!r} if name in sys.modules]
assert not found, found
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def with_verbs(*points: EntryPoint) -> typer.Typer:
    command_line = typer.Typer()
    command_line.command()(lambda: None)
    add_verbs(command_line, points)
    return command_line


def test_verbs_of_a_package_that_is_not_installed_say_how_to_get_it() -> None:
    result = CliRunner().invoke(with_verbs(), ["study", "wu-rank", "--scale", "paper"])
    assert result.exit_code == 2
    assert "`eigenscape study` comes with `pip install eigenscape-papers`." in result.stderr
    assert "study" not in CliRunner().invoke(with_verbs(), ["--help"]).stdout


def test_a_verb_that_cannot_be_loaded_is_listed_and_breaks_nothing() -> None:
    broken = EntryPoint("surprise", "no_such_module:verb", "eigenscape.verbs")
    group = EntryPoint("data", "eigenscape_papers.cli.data:app", "eigenscape.verbs")
    command_line = with_verbs(broken, group)
    assert "surprise" in CliRunner().invoke(command_line, ["--help"]).stdout
    result = CliRunner().invoke(command_line, ["surprise"])
    assert result.exit_code == 2
    assert "is not available: ModuleNotFoundError" in result.stderr
    assert CliRunner().invoke(command_line, ["data", "list", "--help"]).exit_code == 0


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_has_an_example(cli: Cli, words: tuple[str, ...]) -> None:
    result = cli(*words, "--help")
    example = rf"Examples:\n(    eigenscape .*\n)*    eigenscape {' '.join(words)}"
    assert re.search(example, result.stdout), result.stdout


def test_python_m_eigenscape_works() -> None:
    words = [sys.executable, "-m", "eigenscape", "--version"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0
    assert re.fullmatch(r"eigenscape \d+\.\d+\.\d+\n", done.stdout)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("analize",), "analyze"),
        (("train", "study", "claims", "F-2", "--data", "digits", "--epoch", "3"), "--epochs"),
        (("analyze", "F-2", "--data", "digits", "--budget", "huge"), "standard"),
        (("analyze", "F-2"), "--data"),
        (("analyze", "F-32^", "--data", "digits"), "'F-200^2'"),
        (("analyze", "F-32^2", "--data", "digit"), "'digits'"),
        (("data", "fetch", "mnst"), "'mnist'"),
        (("show", "nothing"), "no folder"),
    ],
)
def test_bad_usage_gives_2_and_says_what_is_near(
    cli: Cli, words: tuple[str, ...], expected: str
) -> None:
    result = cli(*words)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert "Traceback" not in result.output


def test_unexpected_errors_give_3_and_advice(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("eigenscape_papers.datasets.names", fail)
    result = cli("data", "list")
    assert result.exit_code == 3
    assert "Unexpected KeyError: 'surprise'" in result.stderr
    assert "--debug" in result.stderr
    assert "Traceback" not in result.stderr
    shown = cli("data", "list", "--debug")
    assert shown.exit_code == 3
    assert "Traceback" in shown.stderr
    assert "def" not in shown.stdout


def test_refusals_show_their_traceback_only_with_debug(cli: Cli) -> None:
    words = ("data", "fetch", "digits")
    assert "Traceback" not in cli(*words).stderr
    assert "InvalidArgumentError" in cli(*words, "--debug").stderr


def test_interruption_gives_130(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("eigenscape_papers.datasets.names", interrupt)
    assert cli("data", "list").exit_code == 130


def test_a_pipe_gets_no_control_characters(cli: Cli, printed: str, finished: Path) -> None:
    texts = [printed, cli("show", "one").output, cli("ls").output, cli("models").output]
    texts.append(cli(*QUICK, "--loss", "squared-error").output)  # a refusal
    for text in texts:
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
        assert not [line for line in text.splitlines() if line != line.rstrip()]


# --- progress ------------------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eigenscape.cli._progress._SHOWN_AFTER", 0.02)
    monkeypatch.setattr("eigenscape.cli._progress._LINE_EVERY", 0.05)


def wait(watch: Watch) -> None:
    assert watch._thread is not None
    watch._thread.join(0.2)


def test_progress_in_a_pipe_is_plain_lines(soon: None, capsys: pytest.CaptureFixture[str]) -> None:
    with Watch(Screen(), "counting") as watch:
        wait(watch)
        watch(Progress("counting sheep", 30, 120, 5.0, 15.0))
        wait(watch)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0] == "counting, under 1 s so far"
    assert lines[-1] == "counting sheep, 25 %, under 1 s so far, 15 s left"


def test_progress_of_downloads_is_in_bytes(soon: None, capsys: pytest.CaptureFixture[str]) -> None:
    with Watch(Screen(), "fetching", in_bytes=True) as watch:
        watch(Progress("mnist", 2_000_000, 10_000_000, 5.0, None))
        wait(watch)
    assert "mnist, 2 MB of 10 MB" in capsys.readouterr().err


def test_short_work_and_quiet_screens_show_no_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Watch(Screen(), "short") as watch:
        watch(Progress("short", 1, 2, 0.1, 0.1))
    monkeypatch.setattr("eigenscape.cli._progress._SHOWN_AFTER", 0.0)
    with Watch(Screen(quiet=True), "quiet") as watch:
        watch(Progress("quiet", 1, 2, 0.1, 0.1))
    assert capsys.readouterr() == ("", "")


def test_progress_on_a_terminal_is_a_bar_that_goes_away(
    soon: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Watch(Screen(), "counting") as watch:
        wait(watch)
        watch(Progress("counting sheep", 30, 120, 5.0, 15.0))
        wait(watch)
    out, err = capsys.readouterr()
    assert out == ""
    assert "counting sheep" in err
    assert "15 s left" in err
    assert err.endswith("\x1b[2K")  # the line is empty again


# --- tables --------------------------------------------------------------------------------------


def test_wide_tables_are_cut_between_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    columns = {"layer": ["fc1", "fc2"], **{f"number {i}": [1.5, 2.5] for i in range(8)}}
    Screen().table(columns)
    text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, text.splitlines())) <= 40
    assert text.count("fc1") == 3  # three tables, each with the names
    assert text.count("1.5") == 8


def test_tables_in_a_pipe_keep_a_row_on_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().table({"what": ["word " * 60], "number": [3]}, title="Long")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Long"
    assert lines[3].split()[-1] == "3"
