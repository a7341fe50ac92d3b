from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from eigenscape.records import Record
from eigenscape.report import read_run, save_run
from tests.cli.conftest import Cli

pytestmark = pytest.mark.usefixtures("no_pictures")


@pytest.fixture
def kept(cli: Cli) -> Path:
    """The folder of a bound of net.py."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).float()
    save_file(model.state_dict(), "init.safetensors")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    save_file(model.state_dict(), "net.safetensors")
    words = ("bound", "net.py:build", "--data", "net.py:data", "-c", "net.safetensors")
    fast = ("--prior-source", "other-data", "--epochs", "4", "--draws", "20", "--out", "b")
    result = cli(*words, "--prior", "init.safetensors", *fast)
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
