import dataclasses

import pytest
import torch
from torch import nn

from eigenscape.data import DataSet
from eigenscape.errors import InvalidArgumentError
from eigenscape.studies import STUDIES, Cast, Own, wu_casts
from eigenscape.train import SGD, Adam, Recipe
from tests.studies.conftest import TINY

OTHER = {
    "model": "F-12^3",
    "data": "mnist",
    "recipe": Recipe(epochs=3),
    "seeds": (0, 2),
    "samples": 99,
    "labels": "random",
    "init": "pytorch",
    "normalise": "unit",
    "rates": (0.1, 0.2),
    "keep_epochs": (2,),
}


def toy(scale: float = 1.0) -> DataSet:
    x = scale * torch.arange(12.0).reshape(6, 2)
    return DataSet("toy", x, torch.tensor([0, 1, 2, 0, 1, 2]), num_classes=3)


def own_cast(build: object = lambda seed: nn.Linear(2, 3), data: DataSet | None = None) -> Cast:
    own = Own(build, toy() if data is None else data)
    return dataclasses.replace(TINY, model="mine", samples=None, own=own)


def test_the_key_differs_with_every_field() -> None:
    assert OTHER.keys() == {f.name for f in dataclasses.fields(Cast)} - {"own"}
    casts = [TINY, *(dataclasses.replace(TINY, **{name: v}) for name, v in OTHER.items())]
    assert len({cast.key for cast in casts}) == len(casts)
    assert dataclasses.replace(TINY).key == TINY.key
    assert TINY.key.startswith("f-12-2-digits-")


def test_the_key_of_a_recipe_holds_all_its_numbers() -> None:
    recipes = [
        Recipe(optimizer=SGD(0.1)),
        Recipe(optimizer=SGD(0.1, momentum=0.5)),
        Recipe(optimizer=SGD(0.1, weight_decay=1e-4)),
        Recipe(optimizer=SGD(0.1), batch_size=64),
        Recipe(optimizer=SGD(0.1), loss="squared-error"),
    ]
    assert len({dataclasses.replace(TINY, recipe=r).key for r in recipes}) == len(recipes)


def test_the_key_differs_with_own_data_and_weights() -> None:
    casts = [
        dataclasses.replace(own_cast(), own=None),
        own_cast(),
        own_cast(data=toy(2.0)),
        own_cast(lambda seed: nn.Linear(2, 3, bias=False)),
        own_cast(lambda seed: nn.utils.skip_init(nn.Linear, 2, 3).requires_grad_().apply(zero)),
    ]
    assert len({cast.key for cast in casts}) == len(casts)
    assert own_cast().key == casts[1].key  # although its weights are drawn anew each time


def zero(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.zeros_(parameter)


def test_own_networks_are_fixed_by_the_seed_and_are_copies() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    cast = own_cast()
    one, again, other = (cast.build(seed, toy()) for seed in (3, 3, 4))
    assert torch.equal(one.weight, again.weight)
    assert not torch.equal(one.weight, other.weight)
    assert torch.equal(torch.rand(1), expected)  # nobody else's random numbers were touched
    ready = nn.Linear(2, 3)
    cast = own_cast(lambda seed: ready)
    assert cast.build(0, toy()) is not ready
    assert torch.equal(cast.build(0, toy()).weight, ready.weight)


def test_samples_and_splits() -> None:
    data = TINY.load()
    assert (data.num_samples, data.num_classes, data.split) == (100, 10, "train")
    whole = dataclasses.replace(TINY, samples=10**6).load()
    assert torch.equal(whole.inputs[:100], data.inputs)
    test = TINY.load(split="test")
    assert test.split == "test"
    assert test.num_samples > 100
    plain = dataclasses.replace(TINY, normalise="unit").load()
    assert not torch.equal(plain.inputs, data.inputs)


def test_random_labels() -> None:
    true, random = TINY.load(), dataclasses.replace(TINY, labels="random").load()
    assert torch.equal(true.inputs, random.inputs)
    assert 0 < (true.targets == random.targets).double().mean() < 0.4
    assert torch.equal(random.targets, dataclasses.replace(TINY, labels="random").load().targets)
    assert TINY.label == "F-12^2 (digits)"
    assert dataclasses.replace(TINY, labels="random").label == "F-12^2 (digits, random labels)"
    with pytest.raises(InvalidArgumentError, match="labels"):
        dataclasses.replace(TINY, labels="Random")


def test_own_data_obey_the_cast_and_have_no_test_part() -> None:
    cast = dataclasses.replace(own_cast(), samples=4)
    assert cast.load().num_samples == 4
    mixed = dataclasses.replace(own_cast(), labels="random").load()
    assert mixed.name == "toy-random"
    with pytest.raises(InvalidArgumentError, match="--test-data"):
        cast.load(split="test")
    assert cast.own is not None
    other = DataSet("toy", toy().inputs[:3] + 1, toy().targets[:3], 3)
    tested = dataclasses.replace(cast, own=dataclasses.replace(cast.own, test=other))
    assert torch.equal(tested.load(split="test").inputs, other.inputs)
    assert tested.load().num_samples == 4
    assert tested.key != cast.key


def test_networks_of_a_name_are_built_to_fit() -> None:
    network = TINY.build(0, TINY.load())
    shapes = [tuple(p.shape) for name, p in network.named_parameters() if "weight" in name]
    assert shapes == [(12, 64), (12, 12), (10, 12)]
    again = TINY.build(0, TINY.load())
    assert torch.equal(network.fc1.weight, again.fc1.weight)


def test_keys_stay_what_they_are() -> None:  # networks that were trained are found by them
    assert wu_casts.LENET.key == "lenet5-cifar10-4c707170c1"
    assert wu_casts.SMALL_MLP.key == "f-48-2-digits-6af8ac7e32"


def test_labels_among_casts_of_one_label_say_what_differs() -> None:
    casts = (wu_casts.LENET, wu_casts.LENET_SMALL_STEP, wu_casts.LENET_TRICKS, wu_casts.MLP)
    assert [cast.label_among(casts) for cast in casts] == [
        "LeNet5 (cifar10, unit, learning rate 0.01)",
        "LeNet5 (cifar10, unit, learning rate 0.001)",
        "LeNet5 (cifar10, unit, learning rate 0.01, momentum 0.9, weight decay 0.0005)",
        "F-200^2 (mnist, half)",
    ]
    more = dataclasses.replace(TINY, samples=None)
    assert TINY.label_among([more]) == "F-12^2 (digits, samples 100)"
    assert more.label_among([TINY]) == "F-12^2 (digits)"
    adam = dataclasses.replace(TINY, recipe=dataclasses.replace(TINY.recipe, optimizer=Adam(0.1)))
    assert TINY.label_among([adam]) == "F-12^2 (digits, by SGD)"


@pytest.mark.parametrize("name", STUDIES)
def test_no_two_casts_of_a_study_have_one_label(name: str) -> None:
    for setting in STUDIES[name].settings.values():
        labels = [cast.label_among(setting.casts) for cast in setting.casts]
        assert len(set(labels)) == len(labels)
