import dataclasses

import pytest
import torch
from torch import nn

from eigenscape.errors import EmptySelectionError
from eigenscape.studies import Networks, Workshop
from eigenscape.studies.papyan_casts import (
    DIGITS_MLP,
    MLP,
    RATES,
    SMALL,
    SMALL_SIZES,
    VGG,
    VGG_SIZES,
    best_of,
    grid,
)
from tests.studies.conftest import TINY, TINY_CONV


def test_a_grid_is_trained_as_in_the_paper() -> None:
    found = grid("VGG11_bn", "cifar10", epochs=350, samples=1360)
    assert [cast.recipe.optimizer.learning_rate for cast in found] == list(RATES)
    for cast in found:
        optimizer = cast.recipe.optimizer
        assert (optimizer.momentum, optimizer.weight_decay) == (0.9, 5e-4)
        assert (cast.recipe.batch_size, cast.samples) == (128, 1360)
        rates = cast.recipe.learning_rates()
        tenths = [rates[0], rates[117], rates[234]]  # 350/3 is 116.7, and 700/3 is 233.3
        assert tenths == pytest.approx([rates[0], 0.1 * rates[0], 0.01 * rates[0]])
        assert rates[116] == rates[0]


def test_networks_of_the_paper() -> None:
    assert len(VGG) == len(MLP) == 3 * len(RATES)
    assert {(cast.data, cast.recipe.epochs) for cast in VGG} == {
        ("mnist", 200),
        ("fashion-mnist", 200),
        ("cifar10", 350),
    }
    sizes = [cast.samples for cast in VGG_SIZES]
    assert (len(sizes), sizes[0], sizes[8], sizes[-1]) == (20, 100, 1360, 50000)


def test_the_best_is_kept_of_each_kind(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = dataclasses.replace(TINY, recipe=dataclasses.replace(TINY.recipe, epochs=3))
    accuracies = {TINY.key: (0.5, 0.7), slow.key: (0.9, 0.1), TINY_CONV.key: (0.2, 0.2)}
    whole = shop.networks(TINY)

    def networks(cast: object) -> Networks:
        return dataclasses.replace(whole, cast=cast, test_accuracy=accuracies[cast.key])

    monkeypatch.setattr(shop, "networks", networks)
    found = best_of(shop, (slow, TINY_CONV, TINY))
    assert [one.cast for one in found] == [TINY, TINY_CONV]  # 0.6 is more than 0.5


def test_without_test_data_the_loss_decides(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = dataclasses.replace(TINY, recipe=dataclasses.replace(TINY.recipe, epochs=3))
    losses = {TINY.key: (0.5, 0.7), slow.key: (0.1, 0.2)}
    whole = shop.networks(TINY)

    def networks(cast: object) -> Networks:
        loss = losses[cast.key]
        return dataclasses.replace(whole, cast=cast, test_accuracy=None, train_loss=loss)

    monkeypatch.setattr(shop, "networks", networks)
    assert [one.cast for one in best_of(shop, (TINY, slow))] == [slow]


def test_no_casts_are_refused(shop: Workshop) -> None:
    with pytest.raises(EmptySelectionError, match="a cast or more"):
        best_of(shop, ())


def test_batch_norm_stands_before_relu() -> None:
    """Footnote 4: what goes into the next layer has no negative entries, as it has after a norm."""
    for cast in (SMALL[0], SMALL_SIZES[0], DIGITS_MLP):
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
