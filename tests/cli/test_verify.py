from pathlib import Path

import pytest

from eigenscape.records import Record
from eigenscape.report import read_run, save_run
from tests.cli.conftest import Cli

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture
def kept(cli: Cli, files: tuple[Path, Path]) -> Path:
    """The folder of a bound of net.py."""
    words = ("bound", "net.py:build", "--data", "net.py:data", "-c", files[1])
    fast = ("--prior-source", "other-data", "--epochs", "4", "--draws", "20", "--out", "b")
    result = cli(*words, "--prior", files[0], *fast)
    assert result.exit_code == 0, result.output
    return Path("b")


def test_a_kept_certificate_is_confirmed(cli: Cli, kept: Path) -> None:
    result = cli("verify", kept, "--draws", "30")
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert "Confirmed." in said
    assert "30, with an error of" in said
    assert f"at most {read_run(kept).record.certificate.error_bound:.4g}" in said


def test_its_own_draws_are_no_check(cli: Cli, kept: Path) -> None:
    result = cli("verify", kept, "--seed", "0")
    assert result.exit_code == 2
    assert "the certificate's own networks" in " ".join(result.stderr.split())


def test_other_data_are_noticed(cli: Cli, kept: Path) -> None:
    run = read_run(kept)
    save_run(run.record, "fewer", settings={**run.settings, "samples": 20})
    result = cli("verify", "fewer")
    assert result.exit_code == 2
    assert "number of examples is 24, here it is 20" in " ".join(result.stderr.split())


def test_a_run_without_a_certificate_is_refused(cli: Cli, kept: Path) -> None:
    found: Record = read_run(kept).record
    save_run(found, "other", settings={})
    result = cli("verify", "other")
    assert result.exit_code == 2
    assert "holds no certificate made by `eigenscape bound`" in " ".join(result.stderr.split())
