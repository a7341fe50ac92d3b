import copy
import dataclasses
import pickle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from eigenscape.errors import InvalidArgumentError, ShapeError, UnknownNameError, WrongTypeError
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape_papers.datasets import DataSet, from_pixels, pixel_statistics


def numbered(counts: tuple[int, ...] = (5, 5, 5), **more: object) -> DataSet:
    """Make a set whose only input entry is the sample's number, classes taking turns."""
    targets = torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])
    targets = targets[torch.randperm(len(targets), generator=torch.Generator().manual_seed(3))]
    inputs = torch.arange(len(targets), dtype=torch.float32)[:, None]
    return DataSet("toy", inputs, targets, num_classes=len(counts), **more)


def numbers(data: DataSet) -> list[int]:
    return [int(x) for x in data.inputs.flatten().tolist()]


def test_is_a_dataset_for_a_loader() -> None:
    data = numbered()
    assert len(data) == data.num_samples == 15
    assert data.input_shape == (1,)
    batches = list(DataLoader(data, batch_size=4))
    torch.testing.assert_close(torch.cat([x for x, _ in batches]), data.inputs)
    assert torch.equal(torch.cat([y for _, y in batches]), data.targets)


def test_survives_pickling_and_copying_as_workers_need() -> None:
    data = numbered().take(3)
    for twin in (pickle.loads(pickle.dumps(data)), copy.deepcopy(data)):
        assert torch.equal(twin[2][0], data[2][0])
        assert twin.history == data.history


def test_risk_takes_it_as_it_is() -> None:
    data = numbered().to(dtype=torch.float64)
    model = nn.Linear(1, 3)
    direct = EmpiricalRisk(model, CrossEntropy(), (data.inputs, data.targets))
    torch.testing.assert_close(
        EmpiricalRisk(model, CrossEntropy(), data).gradient(), direct.gradient()
    )


def test_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        numbered().name = "other"


def test_parts_must_belong_together() -> None:
    with pytest.raises(ShapeError, match=r"got shapes \(4, 2\) and \(3,\)"):
        DataSet("bad", torch.zeros(4, 2), torch.zeros(3))
    with pytest.raises(InvalidArgumentError, match="each of 3 classes; got 2"):
        numbered(class_names=("a", "b"))


def test_take_the_first() -> None:
    assert numbers(numbered().take(4)) == [0, 1, 2, 3]
    assert numbered().take(4).history == ("the first 4 of 15 samples",)


def test_take_at_random_is_seeded_nested_and_ordered() -> None:
    data = numbered((20, 20, 20))
    small, large = numbers(data.take(7, seed=1)), numbers(data.take(30, seed=1))
    assert small == sorted(set(small))
    assert len(small) == 7
    assert set(small) < set(large)
    assert numbers(data.take(7, seed=1)) == small
    assert numbers(data.take(7, seed=2)) != small
    assert small != list(range(7))


def test_taken_targets_stay_with_their_inputs() -> None:
    data = numbered((20, 20, 20))
    part = data.take(9, seed=0)
    assert torch.equal(part.targets, data.targets[numbers(part)])


@pytest.mark.parametrize("n", [0, 16])
def test_take_refuses(n: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{n}"):
        numbered().take(n)


def test_per_class_is_balanced_nested_and_seeded() -> None:
    data = numbered((9, 5, 7))
    part = data.per_class(4)
    assert torch.bincount(part.targets).tolist() == [4, 4, 4]
    assert torch.equal(part.targets, data.targets[numbers(part)])
    assert set(numbers(data.per_class(2))) < set(numbers(part))
    assert numbers(data.per_class(4)) == numbers(part)
    assert numbers(data.per_class(4, seed=1)) != numbers(part)
    assert part.history == ("4 samples of each class (seed 0)",)


def test_per_class_refuses_with_the_counts() -> None:
    with pytest.raises(InvalidArgumentError, match=r"these: class 1: 5\. Take at most 5"):
        numbered((9, 5, 7)).per_class(6)
    named = numbered((9, 5, 0), class_names=("cat", "dog", "ship"))
    with pytest.raises(InvalidArgumentError, match=r"'dog': 5, 'ship': 0\. Take at most 0"):
        named.per_class(6)


def test_random_labels_are_uniform_and_ignore_the_truth() -> None:
    data = numbered((4000, 4000, 4000))
    new = data.random_labels(seed=5)
    counts = torch.bincount(new.targets, minlength=3).double()
    # Multinomial: a count has standard deviation √(12000 · 2/9) ≈ 52; five of them.
    assert float((counts - 4000).abs().max()) < 260
    kept = float((new.targets == data.targets).double().mean())
    assert abs(kept - 1 / 3) < 5 * (2 / 9 / 12_000) ** 0.5
    assert new.name == "toy-random"
    assert torch.equal(new.inputs, data.inputs)
    assert torch.equal(new.targets, data.random_labels(seed=5).targets)
    assert not torch.equal(new.targets, data.random_labels(seed=6).targets)


def test_a_fraction_of_labels_is_random() -> None:
    data = numbered((4000, 4000, 4000))
    before = data.targets.clone()
    new = data.random_labels(fraction=0.25)
    changed = int((new.targets != data.targets).sum())
    # 3000 are drawn anew, two thirds of them differ.
    assert abs(changed - 2000) < 5 * (3000 * 2 / 9) ** 0.5
    assert torch.equal(data.targets, before)
    assert torch.equal(data.random_labels(0.0).targets, before)
    assert "3000 of 12000 samples" in new.history[-1]


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_fraction_out_of_range_is_refused(fraction: float) -> None:
    with pytest.raises(InvalidArgumentError, match="from 0 to 1"):
        numbered().random_labels(fraction)


def test_fraction_must_be_a_number() -> None:
    with pytest.raises(WrongTypeError, match="got str"):
        numbered().random_labels("half")


def test_two_classes() -> None:
    ten = numbered((2,) * 10, class_names=tuple("0123456789"))
    two = ten.two_classes()
    assert torch.equal(two.targets, (ten.targets > 4).long())
    assert (two.num_classes, two.class_names, two.name) == (2, ("0-4", "5-9"), "toy-2")
    with pytest.raises(InvalidArgumentError, match="'toy' has 3"):
        numbered().two_classes()


@pytest.mark.parametrize("method", ["two_classes", "random_labels"])
def test_methods_on_classes_refuse_other_targets(method: str) -> None:
    regression = DataSet("line", torch.zeros(4, 1), torch.zeros(4))
    with pytest.raises(InvalidArgumentError, match="one class label for each sample"):
        getattr(regression, method)()
    windows = DataSet("text", torch.zeros(4, 2), torch.zeros(4, 2).long(), num_classes=10)
    with pytest.raises(InvalidArgumentError, match=r"shape \(4, 2\)"):
        getattr(windows, method)()


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seeds_that_would_repeat_are_refused(seed: int) -> None:
    with pytest.raises(InvalidArgumentError, match="seed"):
        numbered().per_class(1, seed=seed)


def images() -> DataSet:
    pixels = torch.randint(256, (6, 3, 4, 4)).to(torch.uint8)
    scale = pixel_statistics(pixels)
    targets = torch.tensor([0, 1, 0, 1, 0, 1])
    return DataSet("images", from_pixels(pixels, scale), targets, num_classes=2, pixels=scale)


def test_normalised_uses_the_statistics_that_came_with_the_set() -> None:
    data = images()
    # The statistics are of all six images, whatever part is left.
    part = data.take(2).normalised("standard")
    whole = data.normalised("standard")
    torch.testing.assert_close(part.inputs, whole.inputs[:2])
    flat = data.flattened().normalised("standard")
    torch.testing.assert_close(flat.inputs, whole.inputs.flatten(1))
    back = whole.normalised("unit")
    torch.testing.assert_close(back.inputs, data.inputs, rtol=1e-5, atol=1e-6)
    assert whole.pixels is not None
    assert whole.pixels.how == "standard"
    assert whole.history[-1].startswith("normalised 'standard'")


def test_normalised_refuses() -> None:
    with pytest.raises(InvalidArgumentError, match="'toy' has none"):
        numbered().normalised("unit")
    with pytest.raises(UnknownNameError, match="'papyan'"):
        images().normalised("zero")


def test_flattened_keeps_the_order() -> None:
    data = images()
    assert data.flattened().input_shape == (48,)
    assert torch.equal(data.flattened().inputs[0], data.inputs[0].reshape(-1))
    assert data.flattened().history[-1] == "inputs of shape (3, 4, 4) flattened to (48,)"


def test_to_changes_floating_point_tensors_only() -> None:
    moved = numbered().to(device="cpu", dtype=torch.float64)
    assert moved.inputs.dtype == torch.float64
    assert moved.targets.dtype == torch.int64
    assert moved.history == ("inputs to torch.float64 on cpu",)
    text = DataSet("text", torch.zeros(3, 2).long(), torch.zeros(3, 2).long())
    assert text.to(dtype=torch.float64).inputs.dtype == torch.int64
    with pytest.raises(WrongTypeError, match=r"got torch\.int64"):
        numbered().to(dtype=torch.int64)


def test_repr_says_what_it_holds() -> None:
    assert repr(numbered()) == (
        "DataSet 'toy' (train): 15 samples of shape (1,), 3 classes, torch.float32"
    )
    assert "no classes" in repr(DataSet("line", torch.zeros(4, 1), torch.zeros(4)))
