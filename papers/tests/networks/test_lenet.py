"""LeNet5 against Wu's Tables 4 and 5."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from eigenscape.errors import InvalidArgumentError, ShapeError
from eigenscape_papers import networks as models

CIFAR = (3, 32, 32)


def outputs(net: nn.Module, x: torch.Tensor) -> dict[str, tuple[int, ...]]:
    """Shapes at the output of every child, without the batch, in the order of their calls."""
    seen: dict[str, tuple[int, ...]] = {}
    for name, child in net.named_children():
        child.register_forward_hook(
            lambda _, __, y, name=name: seen.update({name: tuple(y.shape[1:])})
        )
    net(x)
    return seen


def test_layers_of_wu_table_5_with_batchnorm_after_pooling() -> None:
    net = models.build("LeNet5-BN", input_shape=CIFAR, num_classes=10)
    seen = outputs(net, torch.randn(2, *CIFAR, dtype=torch.float32))
    assert list(seen.items()) == [
        ("conv1", (6, 28, 28)),
        ("maxpool1", (6, 14, 14)),
        ("bn-conv1", (6, 14, 14)),
        ("conv2", (16, 10, 10)),
        ("maxpool2", (16, 5, 5)),
        ("bn-conv2", (16, 5, 5)),
        ("fc1", (120,)),
        ("bn-fc1", (120,)),
        ("fc2", (84,)),
        ("bn-fc2", (84,)),
        ("fc3", (10,)),
    ]


@pytest.mark.parametrize(
    ("name", "channels", "side", "count"),
    [
        ("LeNet5", 3, 32, 456 + 2416 + 48_120 + 10_164 + 850),  # Wu Table 4
        ("LeNet5-BN", 3, 32, 62_006),
        ("LeNet5", 1, 28, 62_006 - 2 * 6 * 25),  # MNIST, padded: only conv1 is smaller
        ("LeNet5", 1, 32, 62_006 - 2 * 6 * 25),
        ("LeNet5-(fc1-80)", 3, 32, 456 + 2416 + 401 * 80 + 81 * 84 + 850),
        ("LeNet5-(conv2-25)", 3, 32, 456 + 151 * 25 + 626 * 120 + 10_164 + 850),
        ("LeNet5-(fc1-80)-(fc2-20)-BN", 3, 32, 456 + 2416 + 401 * 80 + 81 * 20 + 210),
    ],
)
def test_parameter_counts(name: str, channels: int, side: int, count: int) -> None:
    net = models.build(name, input_shape=(channels, side, side), num_classes=10)
    assert models.count_parameters(net) == count


def test_the_function_written_out() -> None:
    net = models.build("LeNet5", input_shape=CIFAR, num_classes=7).double()
    x = torch.randn(3, *CIFAR)
    a = F.max_pool2d(F.relu(F.conv2d(x, net.conv1.weight, net.conv1.bias)), 2)
    a = F.max_pool2d(F.relu(F.conv2d(a, net.conv2.weight, net.conv2.bias)), 2).reshape(3, 400)
    torch.testing.assert_close(net(x), net.fc3(F.relu(net.fc2(F.relu(net.fc1(a))))))


def test_small_mnist_images_are_padded_with_zeros() -> None:
    net = models.build("LeNet5", input_shape=(1, 28, 28), num_classes=7).double()
    x = torch.randn(3, 1, 28, 28)
    torch.testing.assert_close(net(x), net(F.pad(x, (2, 2, 2, 2))))


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 15, 32), (64,), (28, 28)])
def test_inputs_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"LeNet5 must be .* at least 16; got .* 'SmallConv'"):
        models.build("LeNet5", input_shape=shape, num_classes=10)


def test_a_layer_has_one_width() -> None:
    with pytest.raises(InvalidArgumentError, match="two widths"):
        models.build("LeNet5-(fc1-80)-(fc1-90)", input_shape=CIFAR, num_classes=10)
