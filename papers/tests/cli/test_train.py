import re
import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from eigenscape.errors import InvalidArgumentError
from eigenscape.runs import read_run
from eigenscape_papers.cli.train import make_recipe, parse_numbers
from eigenscape_papers.ensemble import SGD, Adam, RMSprop, Step, Thirds
from tests.cli.conftest import Cli

pytestmark = pytest.mark.usefixtures("no_pictures")

DIGITS = ("train", "one-hidden-4", "--data", "digits", "--epochs", "3", "--samples", "100")
OPTIONS = {
    "optimizer": "sgd",
    "lr": None,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "schedule": "constant",
    "step_every": None,
    "drop": 0.1,
    "epochs": 6,
    "batch_size": 32,
    "loss": "cross-entropy",
}


def test_a_training_keeps_weights_and_says_what_next(cli: Cli) -> None:
    result = cli(*DIGITS, "--seeds", "0-1", "--keep-epochs", "0,2", "--out", "runs/t")
    assert result.exit_code == 0, result.output
    files = sorted(path.as_posix() for path in Path("runs/t/weights").rglob("*.safetensors"))
    assert files == [
        f"runs/t/weights/seed-{seed}/epoch-000{epoch}.safetensors"
        for seed in (0, 1)
        for epoch in (0, 2, 3)
    ]
    assert "After 3 epochs" in result.stdout
    assert "test accuracy" in result.stdout
    training = read_run("runs/t").record
    torch.testing.assert_close(load_file(files[2]), training.state_dict(0))
    assert not Path("runs/t/checkpoint").exists()
    advice = re.search(r"Next: eigenscape (.*)\n", result.stdout)
    assert advice is not None
    words = shlex.split(advice[1])
    analysis = cli(*words, "--budget", "quick", "--weights-seed", 1, "--out", "a")
    assert analysis.exit_code == 0, analysis.output
    assert "Weights of seed 1 of 2 after epoch 3." in analysis.stdout
    unknown = cli(*words, "--budget", "quick", "--weights-seed", 7)
    assert unknown.exit_code == 2
    assert "there are 0, 1" in unknown.stderr


def test_an_interrupted_training_is_resumed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from eigenscape_papers.ensemble.fit import _Session

    real = _Session._run_epoch

    def stop(self: _Session) -> None:
        if self._done == 2:
            raise KeyboardInterrupt
        real(self)

    monkeypatch.setattr(_Session, "_is_due", lambda self, seconds: True)
    with monkeypatch.context() as patch:
        patch.setattr(_Session, "_run_epoch", stop)
        result = cli(*DIGITS, "--out", "runs/t")
    assert result.exit_code == 130
    command = shlex.join(["eigenscape", *DIGITS, "--out", "runs/t"])
    assert f"  {command}\n" in result.stderr
    assert f"Resume runs/t with: {command}" in cli("ls").stdout
    again = cli(*DIGITS, "--out", "runs/t")
    assert "Resuming" in again.stdout
    assert cli(*DIGITS, "--out", "runs/s", "-q").stdout == "runs/s\n"
    resumed, straight = (read_run(folder).record for folder in ("runs/t", "runs/s"))
    assert torch.equal(resumed.weights["fc1.weight"], straight.weights["fc1.weight"])


def test_replacing_a_training_takes_its_old_weights_away(cli: Cli) -> None:
    words = (*DIGITS, "--epochs", "2", "--out", "runs/t", "-q")
    assert cli(*words, "--keep-epochs", "1").exit_code == 0
    assert cli(*words).exit_code == 2
    assert cli(*words, "--overwrite").exit_code == 0
    names = [path.name for path in Path("runs/t/weights/seed-0").iterdir()]
    assert names == ["epoch-0002.safetensors"]


def test_a_replaced_training_is_there_until_the_new_one_is_complete(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    assert cli(*DIGITS, "--out", "runs/t", "-q").exit_code == 0
    before = load_file("runs/t/weights/seed-0/epoch-0003.safetensors")
    with monkeypatch.context() as patch:
        patch.setattr("eigenscape.runs.save_run", stop)
        patch.setattr("eigenscape_papers.cli.train._move_in", stop)
        words = (*DIGITS, "--lr", "0.5", "--out", "runs/t", "--overwrite")
        assert cli(*words).exit_code == 130
    after = load_file("runs/t/weights/seed-0/epoch-0003.safetensors")
    torch.testing.assert_close(after, before)
    assert read_run("runs/t").settings["lr"] is None
    assert cli(*words).exit_code == 0
    assert read_run("runs/t").settings["lr"] == 0.5


def test_a_ready_network_is_copied_for_every_seed(cli: Cli) -> None:
    Path("ready.py").write_text("from torch import nn\n\nnet = nn.Linear(3, 2)\n")
    words = ("train", "ready.py:net", "--data", "net.py:data", "--epochs", "2", "--out", "r")
    assert cli(*words, "--seeds", "0,1", "--batch-size", "4").exit_code == 0
    weights = read_run("r").record.weights["weight"]
    assert not torch.equal(weights[0], weights[1])  # one start, two orders of the data


def test_a_diverging_training_gives_1(cli: Cli) -> None:
    words = ("train", "linear", "--data", "digits", "--loss", "squared-error", "--lr", "1e9")
    result = cli(*words, "--out", "runs/t")
    assert result.exit_code == 1
    assert "Lower the learning rate" in result.stderr
    assert "Next:" not in result.stdout


def test_users_own_network_and_data(cli: Cli) -> None:
    words = ("train", "net.py:build", "--data", "net.py:data", "--epochs", "2", "--out", "r")
    result = cli(*words, "--seeds", "0,3", "--test-data", "net.py:data")
    assert result.exit_code == 0, result.output
    training = read_run("r").record
    assert training.seeds == (0, 3)
    assert not torch.equal(training.weights["0.weight"][0], training.weights["0.weight"][1])
    assert training.test_loss is not None
    refused = cli("train", "net.py:build", "--data", "net.py:loader", "--out", "s")
    assert refused.exit_code == 2
    assert "read a loader into tensors" in refused.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--seeds", "a"), "--seeds"),
        (("--keep-epochs", "1,x"), "--keep-epochs"),
        (("--schedule", "step"), "--step-every"),
        (("--optimizer", "adam", "--momentum", "0.9"), "adam has its own"),
        (("--lr", "-1"), "above 0"),
        (("--init", "xaver"), "xavier"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    cli: Cli, words: tuple[str, ...], expected: str
) -> None:
    result = cli(*DIGITS, *words, "--out", "runs/t")
    assert result.exit_code == 2
    assert expected in result.stderr
    assert not Path("runs").exists()


def test_options_become_a_recipe() -> None:
    assert make_recipe(OPTIONS).optimizer == SGD(0.01)
    adam = make_recipe(OPTIONS | {"optimizer": "adam", "weight_decay": 0.1})
    assert adam.optimizer == Adam(0.001, weight_decay=0.1)
    rms = make_recipe(OPTIONS | {"optimizer": "rmsprop", "lr": 0.2, "momentum": 0.5})
    assert rms.optimizer == RMSprop(0.2, momentum=0.5)
    step = make_recipe(OPTIONS | {"schedule": "step", "step_every": 2, "drop": 0.5})
    assert step.schedule == Step(2, 0.5)
    assert make_recipe(OPTIONS | {"schedule": "thirds"}).schedule == Thirds(0.1)
    with pytest.raises(InvalidArgumentError, match="go together"):
        make_recipe(OPTIONS | {"step_every": 2})


def test_numbers_are_read() -> None:
    assert parse_numbers(" 3, 0-2", "--seeds") == (3, 0, 1, 2)
    for wrong in ("-1", "1-", "1.5", "a-b"):
        with pytest.raises(InvalidArgumentError, match="--seeds"):
            parse_numbers(wrong, "--seeds")
