"""The record of a training: weights of a seed, columns, and its way to plain values and back."""

import pytest
import torch
from torch import nn

from eigenscape.errors import InvalidArgumentError, UnknownNameError
from eigenscape.records import pack, unpack
from eigenscape_papers.ensemble import Recipe, Training, fit


@pytest.fixture
def result() -> Training:
    x, y = torch.randn(9, 3), torch.randint(0, 2, (9,))
    return fit(
        lambda seed: nn.Linear(3, 2),
        (x, y),
        Recipe(epochs=2, batch_size=4),
        seeds=(5, 2),
        test=(x, y),
        device="cpu",
    )


def test_weights_of_a_seed(result: Training) -> None:
    model = nn.Linear(3, 2)
    assert result.load_into(model, seed=2) is model
    torch.testing.assert_close(model.weight.detach(), result.weights["weight"][1])
    assert not torch.equal(result.weights["weight"][0], result.weights["weight"][1])
    model.weight.data.zero_()  # the record keeps its own
    assert result.weights["weight"][1].any()


def test_refusals(result: Training) -> None:
    with pytest.raises(UnknownNameError, match="`seed=3` was not trained; there are 5, 2"):
        result.state_dict(3)
    with pytest.raises(InvalidArgumentError, match="of the architecture that was trained"):
        result.load_into(nn.Linear(4, 2), seed=5)


def test_columns(result: Training) -> None:
    columns = {name: list(values) for name, values in result.columns().items()}
    assert columns["epoch"] == [1, 1, 2, 2]
    assert columns["seed"] == [5, 2, 5, 2]
    assert columns["learning_rate"] == [0.01] * 4
    assert columns["train_loss"] == result.train_loss.flatten().tolist()
    assert {"train_accuracy", "test_loss", "test_accuracy"} < columns.keys()
    assert str(result).endswith("in the last one.")


def test_record_survives_packing(result: Training) -> None:
    again = unpack(*pack(result))
    assert isinstance(again, Training)
    assert again.seeds == (5, 2)
    assert again.status == result.status
    assert torch.equal(again.weights["bias"], result.weights["bias"])
    assert torch.equal(again.train_loss, result.train_loss)
    assert "Tensor(2, 2)" in repr(result)
