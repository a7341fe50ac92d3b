"""VGG11 as in Wu and as in Papyan."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from eigenscape.errors import ShapeError
from eigenscape_papers import networks as models
from eigenscape_papers.networks import VGG11
from eigenscape_papers.networks._layered import Norm

CIFAR = (3, 32, 32)
CONVOLUTIONS = [f"conv{i}" for i in range(1, 9)]


def test_layers_of_wu() -> None:
    """Wu App. D.2: conv1 to conv8, and fc1 for the classes; n channels everywhere."""
    net = models.build("VGG11-W5", input_shape=CIFAR, num_classes=7)
    assert [name for name, _ in net.named_children()] == [*CONVOLUTIONS, "fc1"]
    assert [net.get_submodule(name).out_channels for name in CONVOLUTIONS] == [5] * 8
    assert (net.fc1.in_features, net.fc1.out_features) == (5, 7)


def test_parameter_counts() -> None:
    wu = models.build("VGG11-W64", input_shape=CIFAR, num_classes=10)
    assert models.count_parameters(wu) == 1792 + 7 * (64 * 64 * 9 + 64) + 650
    with torch.device("meta"):  # shapes without numbers
        full = VGG11(CIFAR, 10)
        papyan = VGG11(CIFAR, 10, classifier=4096, norm=Norm.BEFORE_RELU)
    # Wu-2020 App. B.2: the original convolutions, 64 to 512 channels, and 512 inputs of fc1.
    assert models.count_parameters(full) == 9_220_480 + 5130
    # Papyan §4.1: "28 million parameters"; his public code has this number exactly.
    assert models.count_parameters(papyan) == 28_157_706


def test_the_function_written_out() -> None:
    net, x = (
        models.build("VGG11-W3", input_shape=CIFAR, num_classes=7).double(),
        torch.randn(2, 3, 32, 32),
    )
    a, plan = x, "1 M 2 M 3 4 M 5 6 M 7 8 M"
    for step in plan.split():
        a = F.max_pool2d(a, 2) if step == "M" else F.relu(net.get_submodule(f"conv{step}")(a))
    assert a.shape == (2, 3, 1, 1)
    torch.testing.assert_close(net(x), net.fc1(a[:, :, 0, 0]))


def test_papyan_has_three_linear_layers_and_learnable_batch_norm_before_relu() -> None:
    net = models.build("VGG11-W2_bn", input_shape=CIFAR, num_classes=7).double()
    linear = [m for _, m in net.named_children() if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [(2, 16), (16, 16), (16, 7)]
    assert [m.bias is None for m in linear] == [True, True, False]
    norms = [name for name, _ in net.named_children() if name.startswith("bn-")]
    assert norms == [f"bn-{name}" for name in [*CONVOLUTIONS, "fc1", "fc2"]]
    x, seen = torch.randn(4, *CIFAR), []
    net.conv2.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    net(x)
    norm = net.get_submodule("bn-conv1")
    z = F.batch_norm(net.conv1(x), None, None, norm.weight, norm.bias, training=True)
    torch.testing.assert_close(seen[0], F.max_pool2d(F.relu(z), 2))


def test_wu_normalises_after_the_relu_and_its_pooling() -> None:
    net = models.build("VGG11-W2-BN", input_shape=CIFAR, num_classes=7).double()
    plain = models.build("VGG11-W2", input_shape=CIFAR, num_classes=7)
    assert models.count_parameters(net) == models.count_parameters(plain)
    x, seen = torch.randn(4, *CIFAR), []
    net.conv2.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    net(x)
    z = F.max_pool2d(F.relu(net.conv1(x)), 2)
    torch.testing.assert_close(seen[0], F.batch_norm(z, None, None, training=True))


def test_sizes_of_images() -> None:
    mnist = models.build("VGG11-W2", input_shape=(1, 28, 28), num_classes=7).double()
    x = torch.randn(3, 1, 28, 28)
    torch.testing.assert_close(mnist(x), mnist(F.pad(x, (2, 2, 2, 2))))
    wide = models.build("VGG11-W2", input_shape=(1, 33, 70), num_classes=7)
    assert wide.fc1.in_features == 2 * 1 * 2
    for shape in ((1, 8, 8), (3, 31, 32), (1024,)):
        with pytest.raises(ShapeError, match=r"VGG11 must be .* at least 32, or both 28; got"):
            models.build("VGG11-W2", input_shape=shape, num_classes=7)
