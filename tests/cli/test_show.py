import json
from pathlib import Path

import pytest

from eigenscape.runs import read_run
from tests.cli.conftest import Cli


def test_findings_and_key_numbers_are_shown(cli: Cli, finished: Path) -> None:
    result = cli("show", "one")  # a name under runs/
    assert result.exit_code == 0
    assert "The loss is" in result.stdout
    assert "largest eigenvalue" in result.stdout
    assert f"Report: {Path('runs/one/report.html')}" in result.stdout
    assert "Sections: point, hessian, gauss-newton" in result.stdout


def test_one_section_is_shown(cli: Cli, finished: Path) -> None:
    result = cli("show", finished, "--section", "layers")
    assert result.exit_code == 0
    assert "Linear" in result.stdout
    assert "The loss is" not in result.stdout


def test_unknown_names_are_refused_with_near_ones(cli: Cli, finished: Path) -> None:
    wrong = cli("show", "one", "--section", "hesian")
    assert wrong.exit_code == 2
    assert "'hessian'" in wrong.stderr
    missing = cli("show", "on")
    assert missing.exit_code == 2
    assert "'one'" in missing.stderr


def test_json_leaves_large_vectors_out_and_says_so(
    cli: Cli, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eigenscape.cli.show._LARGEST_SHOWN", 20)
    result = cli("show", "one", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert "point.gradient (in arrays.safetensors)" in found["left out"]
    assert found["record"]["point"]["gradient"] == {"left out": [26]}
    assert found["record"]["point"]["loss"] == read_run(finished).record.point.loss
    assert found["settings"]["seed"] == 3
    part = json.loads(cli("show", "one", "--json", "--section", "outliers").stdout)
    assert part["record"]["num_classes"] == 2


def test_damaged_runs_are_refused(cli: Cli, finished: Path) -> None:
    (finished / "report.html").write_text("spoilt")
    result = cli("show", "one")
    assert result.exit_code == 2
    assert "report.html" in result.stderr


def test_report_is_written_anew_and_keeps_where_it_came_from(cli: Cli, finished: Path) -> None:
    before = read_run(finished)
    assert cli("show", "one", "--report").exit_code == 0
    after = read_run(finished)
    assert after.settings["first made"]["created"] == before.created
    assert after.seconds == before.seconds
    assert after.record.findings == before.record.findings


def test_report_is_opened(cli: Cli, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: bool(opened.append(url)))
    result = cli("show", "one", "--open")
    assert opened == [(finished / "report.html").resolve().as_uri()]
    assert "No browser was found" in result.stderr
