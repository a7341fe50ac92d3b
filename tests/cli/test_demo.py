from pathlib import Path

import pytest

from eigenscape.cli import demo
from eigenscape.runs import read_run
from tests.cli.conftest import Cli


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, no_pictures: None) -> None:
    """Make the demo a matter of seconds."""
    monkeypatch.setattr(demo, "MODEL", "F-2")
    monkeypatch.setattr(demo, "EPOCHS", 2)
    monkeypatch.setattr(demo, "BUDGET", "quick")


def test_the_demo_trains_and_says_what_it_found(cli: Cli, small: None) -> None:
    result = cli("demo")
    assert result.exit_code == 0, result.output
    assert "PyTorch" in result.stdout.splitlines()[0]
    for words in ("Trained F-2 on digits: 2 epochs", "test accuracy", "- The loss is"):
        assert words in result.stdout
    assert read_run("runs/demo").settings["verb"] == "demo"


def test_the_demo_replaces_only_itself(cli: Cli, small: None) -> None:
    assert cli("demo", "-q").stdout == f"{Path('runs/demo')}\n"
    assert cli("demo", "-q", "--seed", 1).exit_code == 0
    assert read_run("runs/demo").seed == 1
    words = ("analyze", "net.py:build", "--data", "net.py:data", "--budget", "quick")
    assert cli(*words, "--out", "mine", "-q").exit_code == 0
    refused = cli("demo", "--out", "mine")
    assert refused.exit_code == 2
    assert "`demo` did not make" in refused.stderr
    Path("other").mkdir()
    Path("other/file").touch()
    assert cli("demo", "--out", "other").exit_code == 2


@pytest.mark.slow
def test_the_demo_as_it_is(cli: Cli) -> None:
    result = cli("demo")
    assert result.exit_code == 0, result.output
    assert Path("runs/demo/report.html").is_file()
    record = read_run("runs/demo").record
    assert record.point.accuracy > 0.95
    assert record.outliers.num_outliers == 9  # the classes less one, as the comment in demo.py says
