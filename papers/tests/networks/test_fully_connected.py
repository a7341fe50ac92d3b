"""Fully connected networks: sizes from the papers, order of operations, BatchNorm."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from eigenscape_papers import networks as models

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


def shapes(net: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in net.named_parameters()}


def test_layers_of_wu_table_3() -> None:
    net = models.build("F-200^2", input_shape=MNIST, num_classes=10)
    assert shapes(net) == {
        "fc1.weight": (200, 784),
        "fc1.bias": (200,),
        "fc2.weight": (200, 200),
        "fc2.bias": (200,),
        "fc3.weight": (10, 200),
        "fc3.bias": (10,),
    }


@pytest.mark.parametrize(
    ("name", "widths"),
    [
        ("F-6", [6]),
        ("F-6^1", [6]),
        ("F-6^2-4", [6, 6, 4]),
        ("F-5-6^2-4", [5, 6, 6, 4]),
        ("F-6^3-BN", [6, 6, 6]),
        ("MLP-3x6-BN", [6, 6, 6]),
        ("linear", []),
        ("one-hidden", [8]),
        ("one-hidden-5", [5]),
    ],
)
def test_widths_are_read_from_the_name(name: str, widths: list[int]) -> None:
    net = models.build(name, input_shape=(2, 3), num_classes=7)
    linear = {path: m for path, m in net.named_children() if isinstance(m, nn.Linear)}
    assert list(linear) == [f"fc{i + 1}" for i in range(len(widths) + 1)]
    sizes = [6, *widths, 7]
    assert [(m.in_features, m.out_features) for m in linear.values()] == list(pairwise(sizes))


@pytest.mark.parametrize(
    ("name", "input_shape", "num_classes", "count"),
    [
        ("F-200^2", MNIST, 10, 784 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10),
        ("F-600", MNIST, 1, 784 * 600 + 600 + 601),  # the binary network of PAC-Bayes bounds
        ("F-200^2-BN", MNIST, 10, 199_210),  # BatchNorm adds nothing to learn
        ("linear", CIFAR, 10, 3073 * 10),
        ("linear-nobias", CIFAR, 100, 307_200),
        ("one-hidden-8", CIFAR, 100, 3072 * 8 + 8 * 100),  # 25,376 in Dong's public code
        ("MLP-8x64", MNIST, 10, 785 * 64 + 7 * 65 * 64 + 650),
        # Without hidden biases, with two parameters a unit of BatchNorm.
        ("MLP-8x64-BN", MNIST, 10, 784 * 64 + 7 * 64 * 64 + 8 * 2 * 64 + 650),
    ],
)
def test_parameter_counts(
    name: str, input_shape: tuple[int, ...], num_classes: int, count: int
) -> None:
    net = models.build(name, input_shape=input_shape, num_classes=num_classes)
    assert models.count_parameters(net) == count


def test_the_function_is_relu_between_linear_layers() -> None:
    net, x = models.build("F-5^2", input_shape=(2, 3), num_classes=4).double(), torch.randn(7, 2, 3)
    a = F.relu(net.fc1(x.reshape(7, 6)))
    torch.testing.assert_close(net(x), net.fc3(F.relu(net.fc2(a))))


def test_wu_normalises_after_the_relu_without_parameters() -> None:
    """Wu App. D.2: every hidden output, after ReLU, θ and β turned off."""
    net = models.build("F-5^2-BN", input_shape=(6,), num_classes=4).double()
    x, seen = torch.randn(20, 6), []
    net.fc2.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    net(x)
    torch.testing.assert_close(seen[0].mean(0), torch.zeros(5), atol=1e-12, rtol=0)
    expected = F.batch_norm(F.relu(net.fc1(x)), None, None, training=True)
    torch.testing.assert_close(seen[0], expected)
    assert list(net.get_submodule("bn-fc1").parameters()) == []
    assert "bn-fc3" not in dict(net.named_children())  # not the logits


def test_papyan_normalises_before_the_relu_with_parameters() -> None:
    """Papyan footnote 4."""
    net = models.build("MLP-2x5-BN", input_shape=(6,), num_classes=4).double()
    x, seen = torch.randn(20, 6), []
    net.fc2.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    net(x)
    norm = net.get_submodule("bn-fc1")
    expected = F.batch_norm(net.fc1(x), None, None, norm.weight, norm.bias, training=True)
    torch.testing.assert_close(seen[0], F.relu(expected))
    assert net.fc1.bias is net.fc2.bias is None
    assert net.fc3.bias is not None


@pytest.mark.parametrize("name", ["F-5^2-BN", "MLP-2x5-BN"])
def test_statistics_move_in_train_mode_and_are_frozen_in_eval_mode(name: str) -> None:
    net, x = models.build(name, input_shape=(6,), num_classes=4).double(), torch.randn(20, 6)
    before = {key: buffer.clone() for key, buffer in net.named_buffers()}
    assert len(before) == 6  # mean, variance and count of two layers
    net.eval()(x)
    assert all(torch.equal(before[key], buffer) for key, buffer in net.named_buffers())
    net.train()(x)
    assert not any(torch.equal(before[key], buffer) for key, buffer in net.named_buffers())
    net.eval()  # frozen, it treats every sample by itself
    torch.testing.assert_close(net(x)[:3], net(x[:3]))
