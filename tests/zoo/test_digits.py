"""The digits that come with scikit-learn: whole, split once and for all, and scaled as said."""

import sys

import pytest
import torch
from sklearn.datasets import load_digits as bundled
from torch import Tensor
from torch.utils.data import DataLoader

from eigenscape.errors import InvalidArgumentError, MissingPackageError, UnknownNameError
from eigenscape.zoo import load_digits, raw_digits


def rows(images: Tensor, labels: Tensor) -> list[tuple[float, ...]]:
    pairs = zip(images.flatten(1).tolist(), labels.tolist(), strict=True)
    return sorted((*image, float(label)) for image, label in pairs)


def check(images: Tensor, labels: Tensor) -> None:
    """Demand every one of the 1797 digits, once, with its label."""
    source = bundled()
    # Not compared inside `assert`: pytest would print how 1797 rows differ, for minutes.
    is_same = rows(images, labels) == rows(torch.tensor(source.images), torch.tensor(source.target))
    assert is_same


def test_both_splits_together_are_the_whole_set() -> None:
    (x, y), (u, v) = raw_digits("train"), raw_digits("test")
    assert x.dtype == torch.float64
    check(torch.cat([x, u]), torch.cat([y, v]))
    with pytest.raises(AssertionError):
        check(torch.cat([x, u]), torch.cat([y, v]).roll(1))


def test_the_test_split_has_as_many_of_each_class() -> None:
    test = load_digits("test")
    assert test.targets.bincount().tolist() == [36] * 10
    assert load_digits().num_samples == 1797 - 360


def test_splits_do_not_depend_on_what_was_drawn_before() -> None:
    before = load_digits("test").inputs
    torch.manual_seed(99)
    torch.rand(7)
    assert torch.equal(load_digits("test").inputs, before)


def test_pixels_are_scaled_as_said() -> None:
    raw, _ = raw_digits("test")
    unit = load_digits("test")
    assert unit.inputs.dtype == torch.float32
    torch.testing.assert_close(unit.inputs[:, 0], (raw / 16).float())
    assert float(unit.inputs.max()) == 1.0
    train = load_digits(pixels="standard").inputs.double()
    assert float(train.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(train.std(correction=0)) == pytest.approx(1.0, abs=1e-6)
    # The test split has the scale of the training split, not its own.
    test = load_digits("test", pixels="standard").inputs.double()
    assert abs(float(test.mean())) > 1e-4
    slope = (test[0] - test[1]).norm() / (unit.inputs[0] - unit.inputs[1]).norm().double()
    first = (train[0] - train[1]).norm() / (load_digits().inputs[:2].diff(dim=0)).norm().double()
    assert float(slope) == pytest.approx(float(first), rel=1e-5)


def test_a_set_says_what_it_holds_and_can_be_loaded() -> None:
    data = load_digits("test")
    assert (data.input_shape, data.num_classes) == ((1, 8, 8), 10)
    assert (data.split, data.name) == ("test", "digits")
    x, y = data[5]
    assert torch.equal(x, data.inputs[5])
    assert y == data.targets[5]
    batches = list(DataLoader(data, batch_size=100))
    assert [len(x) for x, _ in batches] == [100, 100, 100, 60]
    assert torch.equal(torch.cat([x for x, _ in batches]), data.inputs)


def test_samples_are_taken_in_their_order() -> None:
    data = load_digits("test")
    first = data.take(7)
    assert torch.equal(first.inputs, data.inputs[:7])
    some, same, other = (data.take(7, seed=s) for s in (1, 1, 2))
    assert torch.equal(some.inputs, same.inputs)
    assert not torch.equal(some.inputs, other.inputs)
    places = [(data.inputs == x).flatten(1).all(1).nonzero()[0].item() for x in some.inputs]
    assert places == sorted(set(places))
    assert [int(data.targets[i]) for i in places] == some.targets.tolist()
    assert len(first.tensors[0]) == 7  # what a loader reads


@pytest.mark.parametrize("count", [0, 361])
def test_more_samples_than_there_are_cannot_be_taken(count: int) -> None:
    with pytest.raises(InvalidArgumentError, match="take"):
        load_digits("test").take(count)


def test_what_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match="'train', 'test'"):
        load_digits("validation")
    with pytest.raises(UnknownNameError, match="'unit', 'standard'"):
        load_digits(pixels="raw")
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'eigenscape\[digits\]'"):
        load_digits()
