"""A folder with a small network of the user's own, a runner, and one finished run to look at."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner, Result

from eigenscape.cli.app import app

NET = """
import torch
from torch import nn


def build():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def data():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(24, 3, generator=draw)
    return x, (x[:, 0] > 0).long()


def loader():
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=8)
"""
QUICK = ("analyze", "net.py:build", "--data", "net.py:data", "--budget", "quick")

Cli = Callable[..., Result]


def invoke(*args: object, **options: Any) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], prog_name="eigenscape", **options)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Call the command line in a new folder that holds net.py."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    return invoke


@pytest.fixture(scope="session")
def _finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Analyse net.py once, for all tests that only look at a finished run."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "net.py").write_text(NET)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = invoke(*QUICK, "--out", "runs/one", "--seed", 3)
    torch.set_default_dtype(before)
    assert result.exit_code == 0, result.output
    (folder / "printed.txt").write_text(result.stdout)
    return folder


@pytest.fixture
def finished(cli: Cli, tmp_path: Path, _finished: Path) -> Path:
    """Give a test its own copy of the finished run, as runs/one."""
    shutil.copytree(_finished / "runs", tmp_path / "runs")
    return tmp_path / "runs" / "one"


@pytest.fixture
def printed(_finished: Path) -> str:
    """What the analysis of the finished run printed."""
    return (_finished / "printed.txt").read_text()


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save runs without figures and report, which take most of the time."""
    monkeypatch.setattr("eigenscape.report.write_files", lambda record, folder, settings: None)


@pytest.fixture
def files(cli: Cli) -> tuple[Path, Path]:
    """Weights of net.py before and after something like a training."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).float()
    save_file(model.state_dict(), "init.safetensors")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    save_file(model.state_dict(), "net.safetensors")
    return Path("init.safetensors"), Path("net.safetensors")
