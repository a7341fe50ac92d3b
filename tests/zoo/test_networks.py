"""The small networks: built by name, fixed by their seed, and what they are said to be."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape.errors import InvalidArgumentError, UnknownNameError
from eigenscape.zoo import EXAMPLES, build

IMAGE, CLASSES = (1, 9, 6), 7


def made(name: str, seed: int = 0) -> nn.Module:
    shape = (11,) if name == "SmallGPT" else IMAGE
    return build(name, input_shape=shape, num_classes=CLASSES, seed=seed)


def inputs(name: str) -> Tensor:
    return torch.randint(0, CLASSES, (5, 11)) if name == "SmallGPT" else torch.randn(5, *IMAGE)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_maps_inputs_to_logits(name: str) -> None:
    net = made(name).double()
    expected = (5, 11, CLASSES) if name == "SmallGPT" else (5, CLASSES)
    assert net(inputs(name)).shape == expected


@pytest.mark.parametrize("name", EXAMPLES)
def test_weights_are_fixed_by_the_seed_alone(name: str) -> None:
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    one = made(name, seed=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.rand(3)
    same, other = made(name, seed=1), made(name, seed=2)
    first, second, third = (list(net.parameters()) for net in (one, same, other))
    assert all(torch.equal(p, q) for p, q in zip(first, second, strict=True))
    assert not all(torch.equal(p, q) for p, q in zip(first, third, strict=True))
    assert {p.dtype for p in one.parameters()} == {torch.float32}
    assert {p.device.type for p in one.parameters()} == {"cpu"}


@pytest.mark.parametrize(
    ("name", "widths"),
    [("F-5", [5]), ("F-5^3", [5, 5, 5]), ("F-6-4", [6, 4]), ("F-6^2-3", [6, 6, 3])],
)
def test_a_perceptron_is_its_formula(name: str, widths: list[int]) -> None:
    net = made(name).double()
    sizes = [9 * 6, *widths, CLASSES]
    layers = [getattr(net, f"fc{i}") for i in range(1, len(sizes))]
    shapes = [(fc.in_features, fc.out_features) for fc in layers]
    assert shapes == list(itertools.pairwise(sizes))
    h = x = inputs(name)
    for i, fc in enumerate(layers):
        h = h.flatten(1) if i == 0 else F.relu(h)
        h = h @ fc.weight.T + fc.bias
    torch.testing.assert_close(net(x), h)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(net(x), 1.001 * h)


def test_the_convolutions_halve_the_image_twice() -> None:
    net = made("SmallConv").double()
    x = inputs("SmallConv")
    h = F.max_pool2d(F.relu(F.conv2d(x, net.conv1.weight, net.conv1.bias, padding=1)), 2)
    h = F.max_pool2d(F.relu(F.conv2d(h, net.conv2.weight, net.conv2.bias, padding=1)), 2)
    assert h.shape == (5, 16, 2, 1)
    torch.testing.assert_close(net(x), F.linear(h.flatten(1), net.fc1.weight, net.fc1.bias))


def test_a_decoder_sees_nothing_of_what_follows() -> None:
    net = made("SmallGPT").double()
    ids = inputs("SmallGPT")
    changed = ids.clone()
    changed[:, 6] = (changed[:, 6] + 1) % CLASSES
    with torch.no_grad():
        before, after = net(ids), net(changed)
        shorter = net(ids[:, :6])
    torch.testing.assert_close(before[:, :6], after[:, :6], rtol=0, atol=1e-12)
    torch.testing.assert_close(before[:, :6], shorter, rtol=0, atol=1e-12)
    assert bool(((before - after)[:, 6:].abs().amax(2) > 1e-6).all())


def test_a_decoder_tells_places_apart() -> None:
    net = made("SmallGPT").double()
    with torch.no_grad():
        out = net(torch.zeros(1, 11, dtype=torch.int64))
    assert float((out[0, 0] - out[0, 1]).abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["F-", "F-0x", "f-5", "SmallGTP", "F-5^", "F-5--3", ""])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(UnknownNameError, match="F-n\\^m, SmallConv or SmallGPT"):
        made(name)


def test_a_near_name_is_offered_and_no_class_is_too_few() -> None:
    with pytest.raises(UnknownNameError, match=r"'SmallConv'"):
        made("SmalConv")
    with pytest.raises(InvalidArgumentError, match="num_classes"):
        build("F-5", input_shape=IMAGE, num_classes=0)
