"""What is printed: whole rows in a pipe, whole numbers on a terminal, and nothing when quiet."""

import os
import re

import pytest

from eigenscape.cli import _screen
from eigenscape.cli._screen import Screen, cell, duration

NARROW = 40


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rich think that it writes to a terminal of so many columns."""
    for name, value in {"FORCE_COLOR": "1", "COLUMNS": str(NARROW), "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def plain(text: str) -> str:
    """Take off what makes text bold or coloured."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


TABLE = {
    "layer": ["encoder.layers.11.attention.output.dense", "fc"],
    "largest eigenvalue": [0.123456, None],
    "parameters": [199210, 7],
    "converged": [True, False],
}


def test_results_go_to_one_stream_and_remarks_to_the_other(capsys: pytest.CaptureFixture) -> None:
    screen = Screen()
    screen.say("a sentence")
    screen.result("[bold]42[/bold] :smile:")
    screen.note("a note")
    screen.error("an error")
    out, err = capsys.readouterr()
    assert out.splitlines() == ["a sentence", "[bold]42[/bold] :smile:"]
    assert err.splitlines() == ["a note", "an error"]


def test_a_quiet_screen_prints_results_and_errors_alone(capsys: pytest.CaptureFixture) -> None:
    screen = Screen(quiet=True)
    for show in (screen.say, screen.result, screen.note, screen.error):
        show(show.__name__)
    screen.table(TABLE)
    screen.facts({"a": 1})
    screen.list(["a"])
    assert capsys.readouterr() == ("result\n", "error\n")


def test_a_silent_screen_prints_nothing_but_what_is_aloud(capsys: pytest.CaptureFixture) -> None:
    screen = Screen(silent=True)
    for show in (screen.say, screen.result, screen.note, screen.error):
        show(show.__name__)
    screen.error("aloud", aloud=True)
    assert capsys.readouterr() == ("", "aloud\n")


def test_rows_stay_whole_in_a_pipe(capsys: pytest.CaptureFixture) -> None:
    Screen().table({**TABLE, "why": ["word " * 60, ""]}, title="Layers")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Layers"
    (row,) = (line for line in lines if line.startswith("encoder."))
    assert row.split()[:4] == [TABLE["layer"][0], "0.1235", "199,210", "yes"]
    assert row.count("word") == 60
    assert not any(line != line.rstrip() for line in lines)


def test_numbers_stand_to_the_right_and_names_to_the_left(capsys: pytest.CaptureFixture) -> None:
    Screen().table({"name": ["a", "long"], "count": [7, 1234567]})
    lines = capsys.readouterr().out.splitlines()
    short, long = (line for line in lines if line.startswith(("a", "long")))
    assert (short.split(), long.split()) == (["a", "7"], ["long", "1,234,567"])
    assert len(short) == len(long)
    assert short.endswith(" 7")


@pytest.mark.usefixtures("terminal")
def test_a_narrow_terminal_breaks_names_and_no_numbers(capsys: pytest.CaptureFixture) -> None:
    Screen().table(TABLE)
    lines = plain(capsys.readouterr().out).splitlines()
    assert all(len(line) <= NARROW for line in lines)
    text = "\n".join(lines)
    for number in ("0.1235", "199,210"):
        assert number in text
    # Too wide for one table: the first column stands in each.
    assert sum(line.split()[:1] == ["layer"] for line in lines) == 3
    assert sum(line.split()[:1] == ["fc"] for line in lines) == 3


def test_facts_and_lists_are_read_line_by_line(capsys: pytest.CaptureFixture) -> None:
    screen = Screen()
    screen.facts({"parameters": 199210, "device": None})
    screen.list(["First.", "Second " + "and more " * 40])
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert [line.split() for line in lines[:2]] == [["parameters:", "199,210"], ["device:", "–"]]
    assert lines[2] == "- First."
    assert lines[3].count("and more") == 40


def test_a_screen_knows_how_long_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 12.5])
    monkeypatch.setattr(_screen.time, "monotonic", lambda: next(times))
    assert Screen().seconds == 2.5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (True, "yes"), (False, "no"), (0, "0"), (-1234567, "-1,234,567"),
        (0.0, "0"), (1e-9, "1e-09"), (123456.0, "1.235e+05"), ("fc1", "fc1"), ((1, 2), "(1, 2)"),
    ],
)  # fmt: skip
def test_values_are_written_shortly(value: object, text: str) -> None:
    assert cell(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "unknown"), (float("inf"), "unknown"), (float("nan"), "unknown"), (0, "under 1 s"),
        (1, "1 s"), (99.4, "99 s"), (100, "1.7 min"), (3599, "60 min"), (3600, "1 h 0 min"),
        (7199, "2 h 0 min"), (90061, "25 h 1 min"),
    ],
)  # fmt: skip
def test_times_are_written_in_units_that_fit(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_the_width_of_a_pipe_is_not_that_of_the_terminal_around_it(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert os.environ["COLUMNS"] == "20"
    Screen().say("a sentence that is longer than twenty columns")
    assert len(capsys.readouterr().out.splitlines()) == 1
