import pytest
import torch

from eigenscape_papers.dong.sweeps import (
    digit_tokens,
    inverse_widths,
    layer_ratio,
    random_network_ratio,
)
from eigenscape_papers.runner import Networks
from eigenscape_papers.theory import hidden_block_norms
from papers.tests.conftest import block

CPU = torch.device("cpu")


def test_ratio_of_a_layer_is_that_of_its_dense_hessian(tiny: Networks) -> None:
    H = block(tiny, 1, "fc2.weight")  # 12 units of 12 inputs
    squares = H.reshape(12, 12, 12, 12).square().sum((1, 3))
    inside = float(squares.trace())
    expected = (float(squares.sum()) - inside) / 11 / inside
    assert layer_ratio(tiny.risk(1), "fc2.weight", 144) == pytest.approx(expected, rel=1e-10)
    assert layer_ratio(tiny.risk(1), "fc2.weight", 120) == pytest.approx(expected, rel=0.3)


def test_ratio_of_a_random_network_is_that_of_the_closed_form() -> None:
    from eigenscape_papers.networks import build

    n1, C, d, N, seed = 5, 7, 4, 30, 3
    found = random_network_ratio((n1, C), dimension=d, num_samples=N, seed=seed, device=CPU)
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(N, d, generator=draw, dtype=torch.float64)
    y = torch.randint(C, (N,), generator=draw)
    net = build("F-5", input_shape=(d,), num_classes=C, seed=seed, init="lecun").double()
    squares = hidden_block_norms(x, net.fc1.weight, net.fc2.weight, y).square()
    inside = float(squares.trace())
    assert found == pytest.approx((float(squares.sum()) - inside) / (n1 - 1) / inside, rel=1e-10)


def test_wider_layers_behind_make_clearer_blocks() -> None:
    sizes = {"dimension": 4, "num_samples": 60, "seed": 0, "device": CPU}
    narrow, wide = (random_network_ratio((6, n, 40), **sizes) for n in (4, 64))
    assert wide < 0.5 * narrow


def test_inverse_widths_add_up() -> None:
    assert inverse_widths((2,)) == 0.5
    assert inverse_widths((2, 4, 4)) == 1.0


def test_tokens_are_grey_values_and_targets_the_next_ones() -> None:
    data = digit_tokens(17)
    assert (data.num_classes, data.input_shape) == (17, (63,))
    assert torch.equal(data.inputs[:, 1:], data.targets[:, :-1])
    assert (int(data.inputs.min()), int(data.inputs.max())) == (0, 16)
    coarse = digit_tokens(3)
    assert sorted(coarse.targets.unique().tolist()) == [0, 1, 2]
    pairs = digit_tokens(3, pairs=True)
    assert (pairs.num_classes, pairs.input_shape) == (9, (31,))
    whole = torch.cat([coarse.inputs[0], coarse.targets[0, -1:]])
    assert int(pairs.inputs[0, 5]) == 3 * int(whole[10]) + int(whole[11])
