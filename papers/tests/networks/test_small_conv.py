"""The small convolutional network."""

import pytest
import torch
import torch.nn.functional as F

from eigenscape.errors import ShapeError
from eigenscape_papers import networks as models


def test_layers_and_counts_on_the_digits() -> None:
    net = models.build("SmallConv", input_shape=(1, 8, 8), num_classes=10)
    assert [name for name, _ in net.named_children()] == ["conv1", "conv2", "fc1"]
    assert models.count_parameters(net) == 10 * 8 + (8 * 9 + 1) * 16 + (16 * 4 + 1) * 10


def test_widths_are_read_from_the_name_and_images_need_not_be_square() -> None:
    net = models.build("SmallConv-2-3", input_shape=(2, 9, 12), num_classes=7)
    assert net.conv2.weight.shape == (3, 2, 3, 3)
    assert net.fc1.in_features == 3 * 2 * 3
    assert net(torch.zeros(5, 2, 9, 12, dtype=torch.float32)).shape == (5, 7)


def test_the_function_written_out() -> None:
    net, x = (
        models.build("SmallConv", input_shape=(1, 8, 8), num_classes=7),
        torch.randn(3, 1, 8, 8),
    )
    net = net.double()
    a = F.max_pool2d(F.relu(net.conv2(F.max_pool2d(F.relu(net.conv1(x)), 2))), 2)
    torch.testing.assert_close(net(x), net.fc1(a.reshape(3, 64)))


def test_inputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"SmallConv must be .* at least 4; got \(1, 3, 8\)"):
        models.build("SmallConv", input_shape=(1, 3, 8), num_classes=10)
