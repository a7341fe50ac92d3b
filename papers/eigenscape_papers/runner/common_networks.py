"""Two networks of Wu that other papers' studies look at, too."""

from typing import Any

from eigenscape_papers.ensemble import SGD, Recipe
from eigenscape_papers.runner.cast import Cast


# App. D.3: SGD with batches of 128 for 1000 epochs, and its two alternatives of App. E.2.1.
# TF32 as GPUs do it by default in convolutions: trainings are noisy by themselves.
def sgd_recipe(optimizer: SGD) -> Recipe:
    """Return App. D.3's training with an optimiser."""
    return Recipe(epochs=1000, batch_size=128, optimizer=optimizer, tf32=True)


DEFAULT = sgd_recipe(SGD(0.01))

FIVE_SEEDS = (0, 1, 2, 3, 4)

ALONG = (1, 10, 100)  # epochs kept for figures along training

# Neither version says how pixels were scaled. The study wu-inputs finds it from the first rows of
# Wu-2020's Tables 6 and 7: MNIST in −1…1, CIFAR-10 in 0…1 for LeNet5, standardised for LeNet5-BN.
# VGG11 has LeNet5's number there, though its windows are others, so its pixels were hardly others.
# Theirs of LeNet5-BN were scaled by numbers of common scripts, ours by the pixels' deviations: the
# cast stays as it is, since what was measured of it is kept under its key.
MNIST_PIXELS = "half"

CIFAR_PIXELS = "unit"


# App. D.3 names two rules at once: PyTorch's default, and Xavier's with biases 0. LeNet5 has the
# numbers of Tables 6 and 7 with PyTorch's, and not with Xavier's (docs/errata.md).
def cast(model: str, data: str, recipe: Recipe, seeds: tuple[int, ...], **more: Any) -> Cast:
    """Return a network of Wu with PyTorch's start."""
    return Cast(model, data, recipe, seeds, init="pytorch", **more)


LENET = cast(
    "LeNet5", "cifar10", DEFAULT, (0, 1, 2, 3, 4, 5), keep_epochs=ALONG, normalise=CIFAR_PIXELS
)

MLP = cast("F-200^2", "mnist", DEFAULT, FIVE_SEEDS, keep_epochs=ALONG, normalise=MNIST_PIXELS)
