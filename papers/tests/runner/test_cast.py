import dataclasses
from collections import OrderedDict
from itertools import count

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape.errors import InvalidArgumentError, UnsupportedModelError
from eigenscape_papers.datasets import DataSet
from eigenscape_papers.ensemble import SGD, Adam, Recipe
from eigenscape_papers.runner import Cast, Own
from eigenscape_papers.runner.cast import _outputs
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.wu import networks as wu_casts
from papers.tests.conftest import TINY

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


def hidden(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), activation, nn.Linear(4, 3))


def by_name() -> nn.Module:
    parts = {"first": nn.Linear(2, 4), "act": nn.Tanh(), "last": nn.Linear(4, 3)}
    return nn.Sequential(OrderedDict(parts))


def frozen() -> nn.Module:
    network = hidden(nn.Tanh())
    network[0].requires_grad_(False)
    return network


def written(forward: object) -> nn.Module:
    """Return a network of one name whose code is in no file."""

    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(2, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(forward(self, self.first(x)))

    return Written()


def test_the_key_differs_with_what_the_network_does() -> None:
    """All have the same shapes and the same first weights."""
    builds = [
        lambda seed: hidden(nn.ReLU()),
        lambda seed: hidden(nn.Tanh()),
        lambda seed: hidden(nn.Dropout(0.1)),
        lambda seed: hidden(nn.Dropout(0.2)),
        lambda seed: by_name(),
        lambda seed: frozen(),
        lambda seed: written(lambda _, x: x.relu()),
        lambda seed: written(lambda _, x: x.tanh()),
        lambda seed: written(lambda self, x: F.dropout(x, 0.1, self.training)),
        lambda seed: written(lambda self, x: F.dropout(x, 0.2, self.training)),
    ]
    weights = [[*own_cast(b).build(0, toy()).state_dict().values()] for b in builds]
    assert all(
        torch.equal(a, b) for other in weights for a, b in zip(weights[0], other, strict=True)
    )
    keys = [own_cast(build).key for build in builds]
    assert len(set(keys)) == len(keys)
    assert [own_cast(build).key for build in builds] == keys


class Bare(nn.Module):
    """A network whose weight has a name that it does not show."""

    def __init__(self, name: str) -> None:
        super().__init__()
        setattr(self, name, nn.Parameter(torch.ones(2, 3)))

    def forward(self, x: Tensor) -> Tensor:
        return x @ next(self.parameters())


def test_the_key_differs_with_the_names_of_weights() -> None:
    one, two = (own_cast(lambda seed, name=name: Bare(name)) for name in "ab")
    assert repr(one.build(0, toy())) == repr(two.build(0, toy()))
    assert one.key != two.key


class Clamped(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).clamp(max=1e6)


def test_the_key_differs_with_the_code_of_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a few samples do not show it."""
    key = own_cast(lambda seed: Clamped(2, 3)).key
    assert own_cast(lambda seed: Clamped(2, 3)).key == key
    source = "class Clamped(nn.Linear): ..."
    monkeypatch.setattr("eigenscape_papers.runner.cast.inspect.getsource", lambda kind: source)
    assert own_cast(lambda seed: Clamped(2, 3)).key != key
    plain = own_cast().key
    monkeypatch.undo()
    assert own_cast().key == plain  # PyTorch's own code is not looked at


class Odd(nn.Linear):
    """Shows another place in memory every time, and draws numbers in its forward pass."""

    places = count()

    def extra_repr(self) -> str:
        return f"<function act at {next(self.places):#x}>"

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.rand(())


def test_the_key_does_not_change_by_itself() -> None:
    assert repr(Odd(2, 3)) != repr(Odd(2, 3))
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    assert own_cast(lambda seed: Odd(2, 3)).key == own_cast(lambda seed: Odd(2, 3)).key
    assert torch.equal(torch.rand(1), expected)


def test_rounding_does_not_tell_networks_apart() -> None:
    """Other processors and numbers of threads add up in another order."""
    network = nn.Linear(2, 3)
    found = []
    for factor in (1.0, 1 + 1e-14, 1 + 1e-4):
        again = nn.Linear(2, 3)
        again.load_state_dict({name: factor * t for name, t in network.state_dict().items()})
        found.append(_outputs(again, toy().inputs))
    assert found[0] == found[1] != found[2]


def test_a_network_that_does_not_fit_its_data_has_no_key() -> None:
    with pytest.raises(UnsupportedModelError, match=r"called with \(6, 2\) torch.float64 and said"):
        _ = own_cast(lambda seed: nn.Linear(5, 3)).key


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
