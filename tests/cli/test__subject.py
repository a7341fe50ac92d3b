"""The loss that an argument names, or that is guessed, and what is said of it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from eigenscape.cli._subject import LOSSES, choose_loss, describe_loss
from eigenscape.errors import EigenscapeError, InvalidArgumentError, UnknownNameError
from eigenscape.risk import CallableLoss, CrossEntropy, EmpiricalRisk, ModelLoss, SquaredError
from tests.cli.conftest import Cli
from tests.oracles.labelled import EncoderDecoder, TinyForCausalLM, TokenNet, text

CPU = torch.device("cpu")
PAIRS = (torch.randn(6, 3), torch.randint(0, 2, (6,)))
NET = nn.Linear(3, 2)  # in float32, the default when this file is imported

OWN = """
import torch
import torch.nn.functional as F


def mean(output, target):
    return F.cross_entropy(output, target)


def make():
    return torch.nn.CrossEntropyLoss(label_smoothing=0.1)


class Mine(torch.nn.Module):
    def __init__(self, weight=None, factor=2.0):
        super().__init__()
        self.factor = factor

    def forward(self, output, target):
        return self.factor * F.cross_entropy(output, target)


def three(output, target, more):
    return output.sum()


scale = 3.0
"""


def said(model: nn.Module, data: Any, name: str | None = None) -> str:
    """Choose a loss as the command line does, and return what it says."""
    loss, known = choose_loss(name, model, data, CPU)
    return describe_loss(known, EmpiricalRisk(model, loss, data), guessed=name is None)


@pytest.mark.parametrize("name", LOSSES)
def test_every_name_is_a_loss(name: str) -> None:
    assert choose_loss(name, NET, PAIRS, CPU)[1] == name


def test_an_unknown_name_is_refused_with_all_names() -> None:
    with pytest.raises(UnknownNameError, match="next-token"):
        choose_loss("next-tokn", NET, PAIRS, CPU)


def test_names_say_whether_labels_are_shifted() -> None:
    names = ("cross-entropy", "next-token", "same-token")
    losses = [choose_loss(name, NET, PAIRS, CPU)[0] for name in names]
    assert [loss.next_token for loss in losses] == [None, True, False]
    assert isinstance(choose_loss("model", NET, PAIRS, CPU)[0], ModelLoss)


def test_whole_numbers_are_classes_and_that_is_said() -> None:
    assert said(NET, PAIRS).startswith("cross-entropy (guessed: the targets are whole numbers")


def test_a_causal_model_is_guessed_with_its_own_loss_beside_ours() -> None:
    model, data = TinyForCausalLM(), text()
    found = said(model, data)
    assert "cross-entropy of the next token, as TinyForCausalLM's own loss" in found
    assert f"{model(**data).loss.item():.7g}" in found


def test_a_guess_that_the_model_disagrees_with_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"--loss model"):
        said(TinyForCausalLM(extra=0.01), text())
    assert "TinyForCausalLM's own" in said(TinyForCausalLM(), text(), "model")


def test_a_guessed_scale_that_the_model_disagrees_with_is_refused() -> None:
    class Regression(nn.Linear):
        def forward(self, x: Any, labels: Any = None) -> Any:
            z = super().forward(x)
            return {"logits": z, "loss": None if labels is None else (z - labels).square().mean()}

    data = {"x": torch.randn(6, 3), "labels": torch.randn(6, 4)}
    with pytest.raises(InvalidArgumentError, match="The loss was guessed"):
        said(Regression(3, 4), data)
    chosen = said(Regression(3, 4), data, "squared-error")
    assert "is not the loss that Regression returns" in chosen


def test_real_labels_of_another_shape_leave_it_to_the_model() -> None:
    class Scores(TokenNet):
        def forward(self, input_ids: Any, labels: Any = None) -> Any:
            z = self.logits(input_ids).sum((1, 2))[:, None]
            return {
                "logits": z,
                "loss": None if labels is None else (z[:, 0] - labels).abs().mean(),
            }

    data = text() | {"labels": torch.randn(6)}
    assert said(Scores(), data).startswith("model (guessed: the model takes labels")


def test_a_guess_runs_a_decoder_with_its_labels_and_leaves_modes_alone() -> None:
    model, data = EncoderDecoder(), text()
    model.train()
    model.head.eval()
    with pytest.raises(EigenscapeError):  # real labels are no tokens
        said(model, data | {"labels": torch.randn(6, 5)})
    assert (model.training, model.head.training) == (True, False)


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    return f"{tmp_path}/own.py"


def test_a_function_of_the_users_own_is_the_loss(own: str) -> None:
    loss, known = choose_loss(f"{own}:mean", NET, PAIRS, CPU)
    assert isinstance(loss, CallableLoss)
    assert known == f"{own}:mean"
    value = EmpiricalRisk(NET, loss, PAIRS).value()
    assert value == pytest.approx(EmpiricalRisk(NET, CrossEntropy(), PAIRS).value(), rel=1e-6)


def test_a_function_or_class_that_makes_the_loss_is_called(own: str) -> None:
    made, _ = choose_loss(f"{own}:make", NET, PAIRS, CPU)
    assert isinstance(made, CrossEntropy)
    assert made.label_smoothing == 0.1
    loss, _ = choose_loss(f"{own}:Mine", NET, PAIRS, CPU)
    plain = EmpiricalRisk(NET, CrossEntropy(), PAIRS).value()
    assert EmpiricalRisk(NET, loss, PAIRS).value() == pytest.approx(2 * plain, rel=1e-6)


@pytest.mark.parametrize(("name", "words"), [("three", "needs output, target"), ("scale", "float")])
def test_what_is_no_loss_is_refused(own: str, name: str, words: str) -> None:
    with pytest.raises(EigenscapeError, match=words):
        choose_loss(f"{own}:{name}", NET, PAIRS, CPU)


def test_a_loss_of_the_users_own_from_the_command_line(cli: Cli) -> None:
    Path("own.py").write_text(OWN)
    words = ("stepsize", "net.py:build", "--data", "net.py:data")
    plain, ours = (cli(*words, "--loss", name) for name in ("cross-entropy", "own.py:mean"))
    assert ours.exit_code == 0, ours.output
    lines = [[x for x in found.stdout.splitlines() if "step" in x] for found in (plain, ours)]
    assert lines[0] == lines[1]


def test_squared_error_keeps_its_name() -> None:
    assert isinstance(choose_loss("squared-error", NET, PAIRS, CPU)[0], SquaredError)
