import pytest
import torch
from torch import nn

from eigenscape.studies.papyan_casts import (
    DIGITS_MLP,
    MLP,
    RATES,
    SMALL,
    SMALL_SIZES,
    VGG,
    VGG_SIZES,
    network,
)


def test_networks_are_trained_as_in_the_paper() -> None:
    cast = network("VGG11_bn", "cifar10", epochs=350, samples=1360)
    assert cast.rates == RATES
    assert (cast.recipe.batch_size, cast.samples) == (128, 1360)
    for rate in RATES:
        recipe = cast.with_rate(rate)
        assert (recipe.optimizer.momentum, recipe.optimizer.weight_decay) == (0.9, 5e-4)
        rates = recipe.learning_rates()
        tenths = [rates[0], rates[117], rates[234]]  # 350/3 is 116.7, and 700/3 is 233.3
        assert tenths == pytest.approx([rate, 0.1 * rate, 0.01 * rate])
        assert rates[116] == rates[0]


def test_one_rate_is_no_choice() -> None:
    cast = network("F-8", "digits", epochs=3, rates=(0.3,))
    assert cast.rates == ()
    assert cast.recipe.optimizer.learning_rate == 0.3


def test_networks_of_the_paper() -> None:
    assert len(VGG) == len(MLP) == 3
    assert {(cast.data, cast.recipe.epochs) for cast in VGG} == {
        ("mnist", 200),
        ("fashion-mnist", 200),
        ("cifar10", 350),
    }
    sizes = [cast.samples for cast in VGG_SIZES]
    assert (len(sizes), sizes[0], sizes[8], sizes[-1]) == (13, 100, 1360, 5060)


def test_batch_norm_stands_before_relu() -> None:
    """Footnote 4: what goes into the next layer has no negative entries, as it has after a norm."""
    for cast in (SMALL, SMALL_SIZES[0], DIGITS_MLP):
        data = cast.load()
        network = cast.build(0, data)
        names = dict(network.named_modules())
        assert isinstance(names["bn-fc1"], nn.BatchNorm1d)
        seen: list[torch.Tensor] = []
        names["fc2"].register_forward_pre_hook(
            lambda _, inputs, seen=seen: seen.append(inputs[0].detach())
        )
        network(data.inputs)
        assert float(seen[0].min()) == 0.0 < float(seen[0].max())
