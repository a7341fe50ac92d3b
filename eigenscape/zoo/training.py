"""One short training loop for classifiers: SGD with momentum, in an order that the seed fixes."""

import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape.parallel import epoch_order
from eigenscape.records import (
    SERIES,
    Axis,
    Columns,
    Line,
    Panel,
    Picture,
    ProgressCallback,
    Record,
    Status,
    Ticker,
    numbers,
    table_of,
)
from eigenscape.zoo.digits import Digits


@dataclass(frozen=True, eq=False)
class Training(Record):
    """The course of a training.

    Attributes:
        recipe: What was done, in words.
        train_loss: Mean loss of each epoch's batches.
        train_accuracy: On the training data after the last epoch.
        test_accuracy: On the test data after the last epoch; NaN without test data.
        seconds: Wall time.
        device: Where it ran.
    """

    recipe: str
    train_loss: Tensor
    train_accuracy: float
    test_accuracy: float
    seconds: float
    device: str = "cpu"

    def columns(self) -> Columns:
        """Return one row an epoch."""
        epochs = range(1, len(self.train_loss) + 1)
        return {"epoch": list(epochs), "train loss": numbers(self.train_loss)}

    def pictures(self) -> tuple[Picture, ...]:
        """Return the loss over epochs."""
        table = table_of(self)
        line = Line(table["epoch"], table["train loss"], SERIES[0], "train")
        panel = Panel([line], Axis("epoch", whole=True), Axis("loss", log=True))
        return (Picture("training", "Course of the training", [panel], table),)


def train(
    model: nn.Module,
    data: Digits,
    *,
    test: Digits | None = None,
    epochs: int = 10,
    batch_size: int = 64,
    learning_rate: float = 0.05,
    momentum: float = 0.9,
    weight_decay: float = 1e-3,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Training:
    """Train a classifier in place.

    Args:
        model: Any module from inputs to logits.
        data: What it learns.
        test: What it is tested on.
        epochs: Passes over the data.
        batch_size: Samples of a step.
        learning_rate: Of SGD.
        momentum: Of SGD.
        weight_decay: Of SGD.
        seed: Fixes the order of the samples.
        progress: Told after each epoch.

    Returns:
        The course of the training.
    """
    start, losses = time.perf_counter(), []
    optimizer = torch.optim.SGD(
        model.parameters(), learning_rate, momentum=momentum, weight_decay=weight_decay
    )
    ticker = Ticker(progress, "training", epochs)
    model.train()
    for epoch in range(epochs):
        total = 0.0
        for rows in epoch_order(seed, epoch, data.num_samples).split(batch_size):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data.inputs[rows]), data.targets[rows])
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(rows)
        losses.append(total / data.num_samples)
        ticker.tick(epoch + 1)
    model.eval()
    return Training(
        status=Status(True, f"{epochs} epochs."),
        num_products=0,
        seed=seed,
        recipe=f"{epochs} epochs of SGD in batches of {batch_size}, rate {learning_rate:g}, "
        f"momentum {momentum:g}, weight decay {weight_decay:g}",
        train_loss=torch.tensor(losses, dtype=torch.float64),
        train_accuracy=_accuracy(model, data),
        test_accuracy=float("nan") if test is None else _accuracy(model, test),
        seconds=time.perf_counter() - start,
    )


def _accuracy(model: nn.Module, data: Digits) -> float:
    with torch.no_grad():
        return float((model(data.inputs).argmax(1) == data.targets).double().mean())
