"""The networks of Papyan: App. D.1 at paper scale, a narrow one on digits at laptop scale.

As in Papyan, BatchNorm stands before ReLU (footnote 4).

Papyan picks the learning rate with the best test error at the end among 100 from 0.25 to 0.0001,
evenly spaced along the logarithm (25 for the MLP). Here there are three, a factor of five apart:
0.1, 0.02 and 0.004, each tried for a tenth of the epochs. Where training is shorter than his, the
notes of the studies say so.
"""

from collections.abc import Sequence
from typing import Any

from eigenscape_papers.datasets import sample_sizes
from eigenscape_papers.ensemble import SGD, Recipe, Thirds
from eigenscape_papers.runner import Cast

RATES = (0.1, 0.02, 0.004)


def network(
    model: str,
    data: str,
    *,
    epochs: int,
    batch_size: int = 128,
    rates: tuple[float, ...] = RATES,
    seeds: tuple[int, ...] = (0,),
    samples: int | None = None,
    keep_epochs: tuple[int, ...] = (),
) -> Cast:
    """Return networks that are trained as in App. D.1.

    Args:
        model: Name for `models.build`.
        data: Name for `data.load`.
        epochs: Passes over the data; the rate falls to a tenth at one and at two thirds.
        batch_size: Samples a step.
        rates: Initial learning rates to choose from, or the one.
        seeds: One network each.
        samples: Take so many samples; all by default.
        keep_epochs: Epochs after which weights are kept beside the last.

    Returns:
        The cast.
    """
    recipe = Recipe(
        epochs=epochs,
        batch_size=batch_size,
        optimizer=SGD(rates[0], momentum=0.9, weight_decay=5e-4),
        schedule=Thirds(),
        tf32=data != "digits",  # as GPUs do it by default: trainings are noisy anyway
    )
    return Cast(
        model,
        data,
        recipe,
        seeds,
        samples=samples,
        keep_epochs=keep_epochs,
        rates=rates if len(rates) > 1 else (),
    )


_TWO = (0, 1)
# All studies share it; epochs are kept for the dynamics. Its 1514 parameters make a small matrix.
SMALL = network(
    "MLP-2x16-BN", "digits", epochs=60, batch_size=32, seeds=_TWO, keep_epochs=(1, 5, 20)
)


def _sizes(model: str, data: str, sizes: Sequence[int], **options: Any) -> tuple[Cast, ...]:
    """Return one cast for each number of samples a class, of ten, all with one learning rate."""
    return tuple(network(model, data, samples=10 * n, **options) for n in sizes)


# Fig. 6. The rate is one, so that sizes differ in nothing else. Of the paper's 20 every other one
# up to 506 a class: the seven largest take nine times as long to train as all others together.
SMALL_SIZES = _sizes(
    "MLP-2x16-BN",
    "digits",
    (10, 37, 136),
    epochs=60,
    batch_size=32,
    rates=(0.1,),
    seeds=_TWO,
    keep_epochs=(1, 5, 20),
)
VGG_SIZES = _sizes(
    "VGG11_bn",
    "cifar10",
    sample_sizes()[:13:2],
    epochs=150,
    rates=(0.02,),
    keep_epochs=(1, 10, 50),
)

# Figs 3, 4, 14: VGG11 on all data but CIFAR-100.
VGG = (
    network("VGG11_bn", "mnist", epochs=24),
    network("VGG11_bn", "fashion-mnist", epochs=30),
    network("VGG11_bn", "cifar10", epochs=60),
)
# Fig. 5: 136 samples of each class of CIFAR-10. Fig. 17: ResNet18, 136 of each class of MNIST.
VGG_FEW = network("VGG11_bn", "cifar10", epochs=350, samples=1360)
RESNET_FEW = network("ResNet18_bn", "mnist", epochs=200, samples=1360)
# Fig. 16: 1351 samples of each class of MNIST.
VGG_TAIL = network("VGG11_bn", "mnist", epochs=200, samples=13510)
# §7: eight layers of 2048 units, and a narrow stand-in.
DIGITS_MLP = network("MLP-6x32-BN", "digits", epochs=60, batch_size=32, rates=(0.1,), seeds=_TWO)
MLP = tuple(
    network("MLP-8x2048-BN", data, epochs=60) for data in ("mnist", "fashion-mnist", "cifar10")
)
