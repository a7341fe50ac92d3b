import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from eigenscape.cli.study import _then_measuring
from eigenscape.progress import Progress
from eigenscape.records import Status
from eigenscape.report import StudyResult, read_run
from eigenscape.studies import STUDIES, read_result, workshop
from tests.cli.conftest import Cli

OWN = ("--model", "net.py:build", "--data", "net.py:data", "--epochs", "2", "--batch-size", "8")
RANK = ("study", "wu-rank", *OWN, "--seeds", "0-1", "--networks", "shop")


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
from eigenscape.cli import app
for verb in ("study", "claims"):
    assert CliRunner().invoke(app, [verb, "--help"]).exit_code == 0
assert not {"torch", "numpy", "matplotlib", "plotly", "eigenscape.studies"} & sys.modules.keys()
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
        (("wu-rank", "--model", "net.py:build", "--data", "real.py:data"), "class indices"),
        (("wu-rank", "--model", "net.py:bild", "--data", "net.py:data"), "'build'"),
        (("wu-rank", *OWN, "--device", "tpu"), "--device"),
    ],
)
def test_what_means_nothing_is_refused_and_leaves_nothing(
    cli: Cli, words: tuple[str, ...], expected: str
) -> None:
    Path("real.py").write_text("import torch\ndata = torch.ones(4, 3), torch.ones(4)\n")
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
    assert "net.py (net.py:data), all samples, 2 seeds" in run.record.settings["networks 1"]
    assert read_result("records/wu-rank-own.json").findings == run.record.findings
    assert not Path("runs/r/checkpoint").exists()
    weights = sorted(p.as_posix() for p in Path("shop").rglob("*.safetensors"))
    assert [w.rpartition("/seed-")[2] for w in weights] == [
        "0/epoch-0002.safetensors",
        "1/epoch-0002.safetensors",
    ]
    again = cli(*RANK, "--out", "runs/s", "-q")
    assert again.stdout == "runs/s\n"
    assert trained == [(0, 1)]
    assert read_run("runs/s").record.findings == run.record.findings


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
    assert "Resuming the unfinished run in runs/r." in again.stdout
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

    one, two = (load_file(path)["0.weight"] for path in sorted(Path("shop").rglob("*.safetensors")))
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
