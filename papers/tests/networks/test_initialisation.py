"""The rules for initial weights, against their formulas."""

import math

import pytest
import torch
from torch import Tensor, nn

from eigenscape_papers.networks import EMBEDDING_STD, initialise


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(8, 16, 5), nn.Linear(300, 100)).float()


def test_pytorch_rule_gives_the_numbers_of_plain_construction() -> None:
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float32)
    plain = layers()
    net = layers()
    initialise(net, "pytorch", seed=3)
    for found, expected in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(found, expected)


# Variance of a weight with n inputs and m outputs of a unit.
VARIANCES = {
    "pytorch": lambda n, m: 1 / (3 * n),
    "xavier": lambda n, m: 2 / (n + m),
    "kaiming": lambda n, m: 2 / n,
    "lecun": lambda n, m: 1 / n,
}


@pytest.mark.parametrize("init", VARIANCES)
def test_weights_have_the_variance_of_the_rule(init: str) -> None:
    net = layers()
    initialise(net, init, seed=0)
    for layer, n, m in ((net[0], 200, 400), (net[1], 300, 100)):
        weight: Tensor = layer.weight.detach().double()
        expected = VARIANCES[init](n, m)
        # At least 3200 weights; the squares of normal ones have variance 2.
        tolerance = 4 * math.sqrt(2 / weight.numel())
        assert abs(float(weight.square().mean()) / expected - 1) < tolerance
        assert abs(float(weight.mean())) < 4 * math.sqrt(expected / weight.numel())


@pytest.mark.parametrize("init", ["xavier", "kaiming", "lecun"])
def test_biases_are_zero_but_under_the_pytorch_rule(init: str) -> None:
    net = layers()
    initialise(net, "pytorch", seed=0)
    assert 0 < net[1].bias.abs().max() <= 1 / math.sqrt(300)
    initialise(net, init, seed=0)
    assert net[0].bias.abs().max() == net[1].bias.abs().max() == 0


def test_xavier_is_uniform_and_kaiming_is_not() -> None:
    net = layers()
    initialise(net, "xavier", seed=0)
    assert net[1].weight.abs().max() <= math.sqrt(6 / 400)
    initialise(net, "kaiming", seed=0)
    assert net[1].weight.abs().max() > 3 * math.sqrt(2 / 300)


def test_embeddings_are_small_and_layers_without_bias_are_taken() -> None:
    net = nn.Sequential(nn.Embedding(100, 50), nn.Linear(50, 4, bias=False), nn.LayerNorm(4))
    for init in VARIANCES:
        initialise(net, init, seed=0)
        assert abs(float(net[0].weight.detach().std()) / EMBEDDING_STD - 1) < 0.05
        assert net[2].weight.tolist() == [1.0] * 4
