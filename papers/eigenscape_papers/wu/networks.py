"""The networks of Wu: App. D at paper scale, narrow ones on the bundled digits at laptop scale."""

import dataclasses

from eigenscape_papers.ensemble import SGD, Recipe
from eigenscape_papers.runner import Cast
from eigenscape_papers.runner.common_networks import (
    CIFAR_PIXELS,
    DEFAULT,
    FIVE_SEEDS,
    MNIST_PIXELS,
    cast,
    sgd_recipe,
)
from eigenscape_papers.runner.common_networks import LENET as LENET
from eigenscape_papers.runner.common_networks import MLP as MLP

SMALL_STEP = sgd_recipe(SGD(0.001))
TRICKS = sgd_recipe(SGD(0.01, momentum=0.9, weight_decay=5e-4))
THREE = FIVE_SEEDS[:3]  # where five, as in the tables, would take too long


LENET_SMALL_STEP = cast("LeNet5", "cifar10", SMALL_STEP, (6, 7, 8, 9, 10), normalise=CIFAR_PIXELS)
LENET_TRICKS = cast("LeNet5", "cifar10", TRICKS, (11, 12, 13, 14, 15), normalise=CIFAR_PIXELS)
LENET_WIDTHS = tuple(
    cast(f"LeNet5-(fc1-{width})", "cifar10", DEFAULT, (0, 1), normalise=CIFAR_PIXELS)
    for width in (80, 100, 150)
)
LENET_BN = cast("LeNet5-BN", "cifar10", DEFAULT, THREE)
LENET_MNIST = cast("LeNet5", "mnist", DEFAULT, (0,), normalise=MNIST_PIXELS)
MLP_RANDOM = cast("F-200^2", "mnist", DEFAULT, (0,), labels="random", normalise=MNIST_PIXELS)
MLP_BN = tuple(
    cast(f"{name}-BN", "mnist", DEFAULT, THREE, normalise=MNIST_PIXELS)
    for name in ("F-200^2", "F-600^2", "F-600^4")
)
MLPS = tuple(
    cast(name, "mnist", DEFAULT, seeds, normalise=MNIST_PIXELS)
    for name, seeds in (("F-600^2", FIVE_SEEDS), ("F-600^4", THREE), ("F-600^8", THREE))
)
CIFAR_MLPS = (
    cast("F-600^2", "cifar10", DEFAULT, THREE, normalise=CIFAR_PIXELS),
    cast("F-1500^3", "cifar10", DEFAULT, (0,), normalise=CIFAR_PIXELS),
)
# The rest of Table 10.
ROWS = (
    cast("F-1500^3", "mnist", DEFAULT, (0,), normalise=MNIST_PIXELS),
    cast("F-1500^3", "mnist", DEFAULT, (0,), labels="random", normalise=MNIST_PIXELS),
    cast("F-1500^3", "cifar10", DEFAULT, (0,), labels="random", normalise=CIFAR_PIXELS),
    cast("LeNet5", "mnist", DEFAULT, (0,), labels="random", normalise=MNIST_PIXELS),
    cast("LeNet5", "cifar10", DEFAULT, (0,), labels="random", normalise=CIFAR_PIXELS),
)
# Whole Hessians are of the first seed; the deepest takes longest to train, so it has no other.
DEEP = (
    cast("F-200^4", "mnist", DEFAULT, (0,), normalise=MNIST_PIXELS),
    MLPS[1],
    cast("F-600^8", "mnist", DEFAULT, (0,), normalise=MNIST_PIXELS),
)

# Deeper networks, on CIFAR-10: momentum of 0.9 moves them as far in a tenth of the epochs.
_SHORT = Recipe(epochs=100, batch_size=128, optimizer=SGD(0.01, momentum=0.9), tf32=True)
VGG = cast("VGG11-W32", "cifar10", _SHORT, THREE, normalise=CIFAR_PIXELS)
VGG_WIDE = cast("VGG11-W64", "cifar10", _SHORT, (0,), normalise=CIFAR_PIXELS)
RESNET = cast(
    "ResNet18-W16",
    "cifar10",
    dataclasses.replace(_SHORT, epochs=60),
    (0, 1),
    normalise=CIFAR_PIXELS,
)

_DIGITS = Recipe(epochs=100, batch_size=32, optimizer=SGD(0.05))
SMALL_MLP = Cast("F-48^2", "digits", _DIGITS, (0, 1, 2, 3), keep_epochs=(1, 10, 30))
SMALL_MLP_BN = Cast("F-48^2-BN", "digits", _DIGITS, (0, 1, 2))
SMALL_MLP_RANDOM = Cast("F-48^2", "digits", _DIGITS, (0,), labels="random")
SMALL_MLP_NARROW = Cast("F-24^2", "digits", _DIGITS, (0, 1, 2, 3))
_MOMENTUM = Recipe(epochs=100, batch_size=32, optimizer=SGD(0.01, momentum=0.9, weight_decay=5e-4))
SMALL_MLP_MOMENTUM = Cast("F-48^2", "digits", _MOMENTUM, (4, 5, 6, 7))
SMALL_CONV = Cast("SmallConv-4-6", "digits", _DIGITS, (0, 1, 2))
