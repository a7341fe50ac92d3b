import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


@pytest.fixture
def two(finished: Path) -> Path:
    shutil.copytree(finished, finished.with_name("two<b>"))
    return finished.parent


def test_runs_stand_side_by_side(cli: Cli, two: Path) -> None:
    result = cli("compare", "one", "runs/two<b>")
    assert result.exit_code == 0
    head, *rows = result.stdout.splitlines()
    assert head.split()[0] == "quantity"
    assert "two<b>" in head
    assert any("largest eigenvalue" in row for row in rows)


def test_figure_is_drawn(cli: Cli, two: Path, tmp_path: Path) -> None:
    result = cli("compare", "one", "two<b>", "--out", "figures/change.png")
    assert result.exit_code == 0
    assert (tmp_path / "figures" / "change.png").read_bytes().startswith(b"\x89PNG")
    assert "change.png" in result.stdout


def test_page_holds_table_and_figure_and_escapes_names(cli: Cli, two: Path, tmp_path: Path) -> None:
    assert cli("compare", "one", "two<b>", "--out", "change.html").exit_code == 0
    page = (tmp_path / "change.html").read_text(encoding="utf-8")
    assert "Hessian spectra" in page
    assert "two&lt;b&gt;" in page
    assert "two<b>" not in page


def test_one_run_and_other_endings_are_refused(cli: Cli, two: Path) -> None:
    alone = cli("compare", "one")
    assert alone.exit_code == 2
    assert "at least 2" in alone.stderr
    odd = cli("compare", "one", "two<b>", "--out", "change.gif")
    assert odd.exit_code == 2
    assert ".png" in odd.stderr
