import json
import linecache
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from eigenscape.records import Progress, Status
from eigenscape.runs import read_run
from eigenscape_papers.cli.study import _then_measuring
from eigenscape_papers.runner import StudyResult, read_result, workshop
from eigenscape_papers.studies import STUDIES
from tests.cli.conftest import Cli

OWN = ("--model", "net.py:build", "--data", "net.py:data", "--epochs", "2", "--batch-size", "8")
RANK = ("study", "wu-rank", *OWN, "--seeds", "0-1", "--networks", "shop")


REAL = """
import torch

x, y = torch.ones(4, 3), torch.arange(4) % 2
data = x, y.float()
yes = x, y > 0
one = (x,)
empty = x[:0], y[:0]
wide = torch.ones(4, 5), y
many = x, torch.arange(4) % 3
"""
# Two networks of the same shapes, a third that was edited, and one that fails in training.
LIKE = """
import torch
from torch import nn


def relu():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def tanh():
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.two(torch.relu(self.one(x)))


class Sulking(Mine):
    def forward(self, x):
        if self.training:
            raise ValueError("not now")
        return super().forward(x)
"""


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Count trainings."""
    calls: list[Any] = []
    real = workshop.fit

    def fit(*args: Any, **options: Any) -> Any:
        calls.append(options["seeds"])
        return real(*args, **options)

    monkeypatch.setattr(workshop, "fit", fit)
    return calls


def test_without_a_name_all_are_listed(cli: Cli) -> None:
    result = cli("study")
    assert result.exit_code == 0
    for study in STUDIES.values():
        own = "yes" if study.own else "no"
        assert re.search(rf"{study.name} +{study.paper} .* {own} ", result.stdout)
    assert "eigenscape claims" in result.stdout
    assert not Path("runs").exists()


def test_help_is_instant_and_has_examples(cli: Cli) -> None:
    code = """
import sys
from typer.testing import CliRunner
from eigenscape.cli.app import app
for verb in ("study", "claims"):
    assert CliRunner().invoke(app, [verb, "--help"]).exit_code == 0
heavy = {"torch", "numpy", "matplotlib", "plotly", "eigenscape_papers.studies"}
assert not heavy & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"Examples:\n    eigenscape study\n", cli("study", "--help").stdout)


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("wu-overlp",), "'wu-overlap'"),
        (("wu-rank", "--model", "net.py:build"), "give both"),
        (("wu-rank", "--data", "net.py:data"), "give both"),
        (("wu-rank", "--scale", "poster"), "laptop"),
        (("wu-rank", "--epochs", "3"), "`--epochs` is for a network of your own"),
        (("wu-rank", "--batch-size", "3"), "`--batch-size` is for a network of your own"),
        (("wu-rank", "--weight-decay", "0.1"), "`--weight-decay` is for a network of your own"),
        (("wu-rank", *OWN, "--weight-decay", "-1"), "--weight-decay"),
        (("wu-two-layer", *OWN), "is about networks of its own making"),
        (("wu-rank", *OWN, "--seeds", "x"), "--seeds"),
        (("wu-rank", "--model", "net.py:build", "--data", "net.py:loader"), "got DataLoader"),
        (("wu-rank", "--model", "net.py:build", "--data", "real.py:data"), "of torch.float32"),
        (("wu-rank", "--model", "net.py:build", "--data", "real.py:yes"), "of torch.bool"),
        (("wu-rank", "--model", "net.py:build", "--data", "real.py:one"), "a tuple of Tensor."),
        (("wu-rank", "--model", "net.py:build", "--data", "real.py:empty"), "shape (0, 3)"),
        (("wu-rank", "--model", "net.py:build", "--data", "real.py:wide"), "shapes cannot be"),
        (("wu-rank", "--model", "net.py:build", "--data", "real.py:many"), "got 0 to 2"),
        (("wu-rank", *OWN, "--test-data", "real.py:wide"), "studied on `--test-data`: The model"),
        (("wu-rank", "--model", "net.py:bild", "--data", "net.py:data"), "'build'"),
        (("wu-rank", *OWN, "--device", "tpu"), "--device"),
    ],
)
def test_what_means_nothing_is_refused_and_leaves_nothing(
    cli: Cli, words: tuple[str, ...], expected: str
) -> None:
    Path("real.py").write_text(REAL)
    result = cli("study", *words)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert "Traceback" not in result.output
    assert not Path("runs").exists()


def test_own_network_from_end_to_end(cli: Cli, trained: list[Any]) -> None:
    result = cli(*RANK, "--out", "runs/r", "--record", "records")
    assert result.exit_code == 0, result.output
    assert "wu.fig22.rank-one.top" in result.stdout
    assert "Report: runs/r/report.html" in result.stdout
    assert re.search(r"\d of \d claims that were measured hold for this network", result.stdout)
    assert not re.search(r"agree|differ|pass|fail", result.stdout)
    shown = cli("show", "runs/r")
    assert shown.exit_code == 0, shown.output
    assert "wu.fig22.rank-one.top" in shown.stdout
    html = Path("runs/r/report.html").read_text(encoding="utf-8")
    assert "wu.fig22.rank-one.top" in html
    assert list(Path("runs/r/figures").glob("*.png"))
    run = read_run("runs/r")
    assert isinstance(run.record, StudyResult)
    assert (run.record.scale, run.record.study) == ("own", "wu-rank")
    assert run.record.sheets[0].columns["layer"] == ("0", "2")
    assert run.settings["epochs"] == 2
    words = "net.py:build (net.py:data), all samples, 2 seeds"
    assert words in run.record.settings["networks 1"]
    assert "At the end of training: net.py:build (net.py:data): loss" in result.stdout
    assert read_result("records/wu-rank-own.json").findings == run.record.findings
    assert not Path("runs/r/checkpoint").exists()
    weights = sorted(p.as_posix() for p in Path("shop").rglob("*.safetensors"))
    assert [w.rpartition("/seed-")[2] for w in weights] == [
        f"{seed}/epoch-{epoch:04d}.safetensors" for seed in (0, 1) for epoch in (1, 2)
    ]
    again = cli(*RANK, "--out", "runs/s", "-q")
    assert again.stdout == "runs/s\n"
    assert trained == [(0, 1)]
    assert read_run("runs/s").record.findings == run.record.findings


@pytest.mark.usefixtures("no_pictures")
def test_no_network_is_measured_with_the_weights_of_another(cli: Cli, trained: list[Any]) -> None:
    """Of the same file, the same shapes and the same first weights."""
    words = ("--data", "net.py:data", "--epochs", "2", "--seeds", "0", "--networks", "shop", "-q")

    def run(name: str) -> tuple[float, ...]:
        done = cli("study", "wu-rank", "--model", f"like.py:{name}", *words, "--overwrite")
        assert done.exit_code == 0, done.output
        found = read_run(done.stdout.strip()).record.sheets[0].columns["mean of first m"]
        return tuple(found)

    Path("like.py").write_text(LIKE)
    relu, tanh = run("relu"), run("tanh")
    assert len(trained) == 2
    assert relu != tanh
    assert run("relu") == relu
    assert len(trained) == 2
    mine = run("Mine")
    Path("like.py").write_text(LIKE.replace("torch.relu", "torch.tanh"))
    forget_users_code()
    assert run("Mine") != mine  # it was edited since
    assert len(trained) == 4


def forget_users_code() -> None:
    """Let the user's files be read again, as a new process does."""
    linecache.clearcache()
    for name in [name for name in sys.modules if name.startswith("_eigenscape_user_")]:
        del sys.modules[name]


@pytest.mark.usefixtures("no_pictures")
def test_what_fails_in_training_is_told_before(cli: Cli) -> None:
    Path("like.py").write_text(LIKE)
    result = cli("study", "wu-rank", "--model", "like.py:Sulking", *OWN[2:])
    assert result.exit_code == 2
    assert "and said: ValueError: not now." in result.stderr
    assert result.stderr.count('  File "') == 1  # the user's own line
    assert not Path("runs").exists()


def test_own_data_may_be_in_a_folder(cli: Cli) -> None:
    """Names of figures hold the names of network and data."""
    Path("sub").mkdir()
    Path("net.py").rename("sub/net.py")
    words = ("--model", "sub/net.py:build", "--data", "sub/net.py:data", *OWN[4:])
    result = cli("study", "wu-autocorrelation", *words, "--seeds", "0", "--out", "runs/r")
    assert result.exit_code == 0, result.output
    figures = [path.stem for path in Path("runs/r/figures").iterdir()]
    assert figures
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in figures)


@pytest.mark.usefixtures("no_pictures")
def test_weight_decay_is_trained_with(cli: Cli) -> None:
    for decay in ("0", "0.5"):
        words = (*RANK, "--weight-decay", decay, "--lr", "0.1", "--out", f"runs/{decay}", "-q")
        assert cli(*words).exit_code == 0
    assert "weight decay 0.5" in read_run("runs/0.5").record.settings["networks 1"]
    from safetensors.torch import load_file

    norms = {
        folder.name: float(load_file(folder / "seed-0/epoch-0002.safetensors")["0.weight"].norm())
        for folder in Path("shop/networks").iterdir()
    }
    small, large = sorted(norms.values())
    assert small < 0.9 * large


@pytest.mark.usefixtures("no_pictures")
def test_test_data_are_evaluated_on(cli: Cli) -> None:
    Path("more.py").write_text(
        "from net import data\n\ndef other():\n    x, y = data()\n    return x, 1 - y\n"
    )
    words = (
        *RANK[:-4],
        "--seeds",
        "0",
        "--networks",
        "shop",
        "--lr",
        "0.5",
        "--epochs",
        "40",
        "-q",
    )
    for name in ("net.py:data", "more.py:other"):
        result = cli(*words, "--test-data", name, "--out", f"runs/{name[:4]}")
        assert result.exit_code == 0, result.output
    found = [json.loads(path.read_text()) for path in Path("shop/networks").glob("*/cast.json")]
    first, second = sorted(found, key=lambda facts: -facts["test_accuracy"][0])
    assert first["test_accuracy"] == pytest.approx(first["train_accuracy"])
    assert second["test_accuracy"][0] == pytest.approx(1 - second["train_accuracy"][0])
    bad = cli(*words, "--test-data", "net.py:loader", "--out", "runs/bad")
    assert bad.exit_code == 2
    assert "`--test-data` of a study must give" in bad.stderr


def test_what_follows_a_finished_step_is_measuring() -> None:
    seen: list[Progress] = []
    tell = _then_measuring(seen.append)
    for done in (1, 2):
        tell(Progress("training", done, 2, 0.5 * done, 0.0))
    assert [(step.task, step.done, step.total) for step in seen] == [
        ("training", 1, 2),
        ("training", 2, 2),
        ("measuring", 0, 0),
    ]


@pytest.mark.usefixtures("no_pictures")
def test_a_finished_run_is_replaced_only_on_demand(cli: Cli) -> None:
    words = (*RANK, "--out", "runs/r", "-q")
    assert cli(*words).exit_code == 0
    refused = cli(*words)
    assert refused.exit_code == 2
    assert "--overwrite" in refused.stderr
    assert cli(*words, "--seeds", "0-2", "--overwrite").exit_code == 0
    assert "3 seeds" in read_run("runs/r").record.settings["networks 1"]


@pytest.mark.usefixtures("no_pictures")
def test_an_interrupted_study_is_resumed(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, trained: list[Any]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(workshop, "take_portrait", stop)
        result = cli(*RANK, "--out", "runs/r")
    assert result.exit_code == 130
    assert "eigenscape study wu-rank --model net.py:build" in result.stderr
    other = cli(*RANK, "--epochs", "3", "--out", "runs/r")
    assert other.exit_code == 2
    assert "unfinished run with other settings" in other.stderr
    again = cli(*RANK, "--out", "runs/r")
    assert again.exit_code == 0, again.output
    assert "Resuming the unfinished run in runs/r;" in again.stdout
    assert trained == [(0, 1)]  # the networks were there


@pytest.mark.usefixtures("no_pictures")
def test_a_ready_network_is_copied_for_every_seed(cli: Cli) -> None:
    Path("ready.py").write_text(
        "import torch\nfrom torch import nn\n\ntorch.manual_seed(1)\n"
        "net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))\n"
    )
    words = ("study", "wu-rank", "--model", "ready.py:net", *OWN[2:], "--networks", "shop")
    assert cli(*words, "--seeds", "0,1", "--out", "runs/r").exit_code == 0
    from safetensors.torch import load_file

    ends = sorted(Path("shop").rglob("epoch-0002.safetensors"))
    one, two = (load_file(path)["0.weight"] for path in ends)
    assert not torch.equal(one, two)  # one start, two orders of the data
    assert cli(*words, "--seeds", "0,1", "--out", "runs/s").exit_code == 0
    assert len(list(Path("shop/networks").iterdir())) == 1  # found again


@pytest.mark.usefixtures("no_pictures")
def test_built_in_networks_and_data_may_be_ones_own_too(cli: Cli) -> None:
    words = ("study", "wu-rank", "--model", "F-4", "--data", "digits", "--epochs", "1")
    result = cli(*words, "--seeds", "5", "--networks", "shop", "--out", "runs/r")
    assert result.exit_code == 0, result.output
    assert "F-4 (digits), all samples, 1 seed" in json.dumps(
        read_run("runs/r").record.settings, ensure_ascii=False
    )


@pytest.mark.usefixtures("no_pictures")
def test_a_study_that_needs_two_networks_says_so(cli: Cli) -> None:
    result = cli("study", "wu-overlap", *OWN, "--seeds", "0", "--networks", "shop")
    assert result.exit_code == 2
    assert "--seeds 0-2" in result.stderr


@pytest.mark.usefixtures("no_pictures")
def test_what_did_not_converge_gives_1(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    real = workshop.take_portrait

    def take(*args: Any) -> Any:
        Status(False, "2 residuals are above the tolerance.").warn()
        return real(*args)

    monkeypatch.setattr(workshop, "take_portrait", take)
    result = cli(*RANK, "--out", "runs/r")
    assert result.exit_code == 1
    assert result.stderr.count("2 residuals are above the tolerance.") == 1
    assert not read_run("runs/r").record.status
