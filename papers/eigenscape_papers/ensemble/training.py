"""What a training returns: the course of the losses, and the weights of every seed."""

from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor, nn

from eigenscape.errors import InvalidArgumentError, UnknownNameError
from eigenscape.records import Columns, Picture, Record
from eigenscape_papers.ensemble._pictures import training_picture

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True, eq=False, repr=False)
class Training(Record):
    """The course of a training and where it ended, for S seeds over E epochs.

    Attributes:
        seeds: The seeds, in the order of the columns and of the stacked weights.
        epochs_done: E, the epochs that were run; fewer than asked for if a loss stopped being
            finite.
        train_loss: (E, S) float64, the mean over the terms of the epoch, each taken right before
            the step it was used for. While weights move it is a running value, not the loss of the
            epoch's last weights.
        train_accuracy: (E, S) float64, the fraction of samples whose largest output was that of
            their class, taken in the same way; None where the targets are no classes.
        test_loss: (E, S) float64, with the weights at the end of the epoch and the model in eval
            mode; NaN in epochs that were not evaluated; None without test data.
        test_accuracy: (E, S) float64, likewise.
        learning_rates: (E,) float64.
        weights: What `state_dict` holds, by name, each with a leading dimension of size S; on the
            CPU.
        seconds: Wall time, that of interrupted earlier runs up to their checkpoint included.
        device: What it ran on.
        recipe: The recipe in words.
    """

    seeds: tuple[int, ...]
    epochs_done: int
    train_loss: Tensor
    train_accuracy: Tensor | None
    test_loss: Tensor | None
    test_accuracy: Tensor | None
    learning_rates: Tensor
    weights: dict[str, Tensor]
    seconds: float
    device: str
    recipe: str

    def state_dict(self, seed: int) -> dict[str, Tensor]:
        """Return the weights of one seed as `model.load_state_dict` takes them.

        Args:
            seed: One of `seeds`.

        Returns:
            Copies of the tensors by name.

        Raises:
            UnknownNameError: If that seed was not trained.
        """
        if seed not in self.seeds:
            raise UnknownNameError(
                f"`seed={seed}` was not trained; there are {', '.join(map(str, self.seeds))}."
            )
        index = self.seeds.index(seed)
        return {name: stacked[index].clone() for name, stacked in self.weights.items()}

    def load_into(self, model: Model, seed: int) -> Model:
        """Give a model the weights of one seed.

        Args:
            model: A model of the architecture that was trained, on any device.
            seed: One of `seeds`.

        Returns:
            The same model.

        Raises:
            UnknownNameError: If that seed was not trained.
            InvalidArgumentError: If the model is of another architecture.
        """
        state = self.state_dict(seed)
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            raise InvalidArgumentError(
                "`load_into(model)` must be a model of the architecture that was trained; got "
                f"another one ({error}). Build it with the function that `fit` was given."
            ) from error
        return model

    def columns(self) -> Columns:
        """Return one row per epoch and seed: epoch (from 1), seed, learning rate, losses."""
        epochs, count = range(self.epochs_done), len(self.seeds)
        columns: dict[str, list[int] | list[float]] = {
            "epoch": [epoch + 1 for epoch in epochs for _ in range(count)],
            "seed": [seed for _ in epochs for seed in self.seeds],
            "learning_rate": self.learning_rates.repeat_interleave(count).tolist(),
        }
        for name in ("train_loss", "train_accuracy", "test_loss", "test_accuracy"):
            values = getattr(self, name)
            if values is not None:
                columns[name] = values.flatten().tolist()
        return columns

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (training_picture(self),)
