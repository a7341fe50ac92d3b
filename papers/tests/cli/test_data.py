from pathlib import Path
from typing import Any

import pytest

from eigenscape.records import Progress
from eigenscape_papers import datasets as data
from tests.cli.conftest import Cli


@pytest.fixture(autouse=True)
def _no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EIGENSCAPE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_all_sets_are_listed(cli: Cli) -> None:
    result = cli("data", "list")
    assert result.exit_code == 0
    for name in data.names():
        assert name in result.stdout
    assert "data fetch" in result.stdout


def test_verify_gives_1_for_a_named_set_that_is_missing_or_damaged(
    cli: Cli, tmp_path: Path
) -> None:
    assert cli("data", "verify").exit_code == 0  # nobody has all sets
    missing = cli("data", "verify", "characters", "--data-dir", tmp_path)
    assert missing.exit_code == 1
    assert "missing" in missing.stdout
    name = data.locate("characters", tmp_path)[0].name
    for folder in (tmp_path, tmp_path / "characters", tmp_path / "shakespeare"):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text("To be")
    damaged = cli("data", "verify", "--data-dir", tmp_path)
    assert damaged.exit_code == 1
    assert "damaged" in damaged.stdout
    assert "expected" in damaged.stderr


def test_a_set_without_files_needs_no_verification(cli: Cli) -> None:
    result = cli("data", "verify", "digits")
    assert result.exit_code == 0
    assert "needs no files" in result.stdout


def test_fetch_says_where_the_files_are(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def fetch(name: str, folder: Path | None, *, progress: Any) -> Path:
        progress(Progress("mnist", 1, 2, 0.0, None))
        seen.extend((name, folder))
        return Path("there")

    monkeypatch.setattr("eigenscape_papers.datasets.fetch", fetch)
    result = cli("data", "fetch", "mnist", "--data-dir", "here", "--quiet")
    assert result.exit_code == 0
    assert result.stdout == "mnist is in there\n"
    assert seen == ["mnist", Path("here")]


def test_fetch_of_a_set_without_files_is_refused(cli: Cli) -> None:
    result = cli("data", "fetch", "digits")
    assert result.exit_code == 2
    assert "needs no files" in result.stderr
