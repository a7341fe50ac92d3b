from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from eigenscape.records import Record
from eigenscape.runs import read_run, save_run
from tests.cli.conftest import Cli

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture
def kept(cli: Cli, files: tuple[Path, Path]) -> Path:
    """The folder of a bound of net.py."""
    words = ("bound", "net.py:build", "--data", "net.py:data", "-c", files[1])
    Path("fast.toml").write_text("prior_source = 'other-data'")
    fast = ("--recipe", "fast.toml", "--epochs", "4", "--draws", "20", "--out", "b")
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


@pytest.mark.parametrize("given", [False, True])
def test_a_prior_that_is_not_the_first_weights_is_refused(
    cli: Cli, kept: Path, given: bool
) -> None:
    other = {name: 2.0 * tensor for name, tensor in load_file("init.safetensors").items()}
    save_file(other, "other.safetensors" if given else "init.safetensors")
    result = cli("verify", kept, *(("--prior", "other.safetensors") if given else ()))
    assert result.exit_code == 2
    assert "must be the weights that the certificate's prior" in " ".join(result.stderr.split())


def test_first_weights_that_are_gone_are_asked_for(cli: Cli, kept: Path) -> None:
    Path("init.safetensors").rename("elsewhere.safetensors")
    result = cli("verify", kept)
    assert result.exit_code == 2
    assert "Name the file with `--prior`" in " ".join(result.stderr.split())
    assert cli("verify", kept, "--prior", "elsewhere.safetensors").exit_code == 0


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
