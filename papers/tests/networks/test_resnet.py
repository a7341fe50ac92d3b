"""ResNet18 as in Wu and as in Papyan."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape.errors import ShapeError
from eigenscape_papers import networks as models
from eigenscape_papers.networks import ResNet18
from eigenscape_papers.networks._layered import Norm

CIFAR = (3, 32, 32)


def convolutions(net: nn.Module) -> dict[str, nn.Conv2d]:
    return {name: m for name, m in net.named_children() if isinstance(m, nn.Conv2d)}


def test_layers_of_wu() -> None:
    """Wu App. D.2: conv1 to conv17, three 1×1 shortcuts, fc1; Table 7 counts 19 after conv1."""
    net = models.build("ResNet18-W5", input_shape=CIFAR, num_classes=7)
    found = convolutions(net)
    expected = {f"conv{i}" for i in range(1, 18)} | {f"sc-conv{i}" for i in (1, 2, 3)}
    assert found.keys() == expected
    assert len(found) == 1 + 19
    assert {conv.out_channels for conv in found.values()} == {5}
    strided = {name for name, conv in found.items() if conv.stride == (2, 2)}
    assert strided == {"conv6", "conv10", "conv14", "sc-conv1", "sc-conv2", "sc-conv3"}
    assert all(conv.bias is None for conv in found.values())
    assert (net.fc1.in_features, net.fc1.out_features) == (5, 7)


def test_parameter_counts() -> None:
    wu = models.build("ResNet18-W64", input_shape=CIFAR, num_classes=100)
    assert models.count_parameters(wu) == 1728 + 16 * 36_864 + 3 * 4096 + 6500
    with torch.device("meta"):
        papyan = ResNet18(CIFAR, 10, norm=Norm.BEFORE_RELU)
    # The CIFAR adaptation that Wu App. D.2 cites has this number exactly.
    assert models.count_parameters(papyan) == 11_173_962


def written_out(net: nn.Module, x: Tensor, before: bool, after: bool) -> Tensor:
    """The network as a chain of calls, with batch statistics where it is normalised."""

    def norm(z: Tensor, name: str, wanted: bool) -> Tensor:
        if not wanted:
            return z
        bn = net.get_submodule(f"bn-{name}")
        return F.batch_norm(z, None, None, bn.weight, bn.bias, training=True)

    def conv(name: str, a: Tensor) -> Tensor:
        return norm(net.get_submodule(name)(a), name, before)

    def relu(z: Tensor, name: str) -> Tensor:
        return norm(F.relu(z), name, after)

    a = relu(conv("conv1", x), "conv1")
    pairs = ["conv2 conv3", "conv4 conv5", "conv6 conv7 sc-conv1", "conv8 conv9"]
    pairs += ["conv10 conv11 sc-conv2", "conv12 conv13", "conv14 conv15 sc-conv3", "conv16 conv17"]
    for block in pairs:
        first, second, *short = block.split()
        z = conv(second, relu(conv(first, a), first))
        a = relu(z + (conv(short[0], a) if short else a), second)
    return net.fc1(F.adaptive_avg_pool2d(a, 1)[:, :, 0, 0])


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("ResNet18-W3", False, False),
        ("ResNet18-W3-BN", False, True),
        ("ResNet18-W3_bn", True, False),
    ],
)
def test_the_function_written_out(name: str, before: bool, after: bool) -> None:
    net = models.build(name, input_shape=(2, 16, 24), num_classes=7, init="kaiming").double()
    x = torch.randn(4, 2, 16, 24)
    torch.testing.assert_close(net(x), written_out(net, x, before, after))
    assert sum(1 for _ in net.named_buffers()) == 3 * (20 * before + 17 * after)


def test_without_batch_norm_the_signal_neither_dies_nor_explodes() -> None:
    """The shortcuts carry it, under every rule for the weights."""
    x = torch.randn(6, *CIFAR, dtype=torch.float32)
    for init in ("pytorch", "xavier", "kaiming"):
        net = models.build("ResNet18-W16", input_shape=CIFAR, num_classes=10, init=init)
        spread = float(net(x).detach().std(0).mean())
        assert 1e-3 < spread < 1e2, init


def test_sizes_of_images() -> None:
    net = models.build("ResNet18-W2", input_shape=(1, 28, 28), num_classes=7)
    assert net(torch.zeros(3, 1, 28, 28, dtype=torch.float32)).shape == (3, 7)
    with pytest.raises(ShapeError, match=r"ResNet18 must be .* at least 8; got \(1, 7, 8\)"):
        models.build("ResNet18-W2", input_shape=(1, 7, 8), num_classes=7)
