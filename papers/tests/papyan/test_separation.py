"""Eigenvalues of class means and accuracies, against definitions and cases made by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from eigenscape.errors import (
    EmptySelectionError,
    InvalidArgumentError,
    NonFiniteError,
    ShapeError,
    WrongTypeError,
)
from eigenscape.records import pack, unpack
from eigenscape_papers.papyan import separation


def clouds(signal: float, d: int = 9, C: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draw classes of unequal size with means signal·e_c."""
    labels = torch.cat([torch.full((40 + 10 * c,), c) for c in range(C)])
    generator = torch.Generator().manual_seed(seed)
    h = torch.randn(len(labels), d, generator=generator, dtype=torch.float64)
    h[torch.arange(len(labels)), labels] += signal
    return h, labels


@pytest.mark.parametrize("d", [9, 400])
def test_eigenvalues_are_those_of_the_definitions(d: int) -> None:
    h, labels = clouds(3.0, d)
    found = separation({"a": h}, labels)
    means = torch.stack([h[labels == c].mean(0) for c in range(4)])
    H_class = means[labels].T @ means[labels] / len(h)
    H_within = (h - means[labels]).T @ (h - means[labels]) / len(h)
    torch.testing.assert_close(H_class + H_within, h.T @ h / len(h), atol=1e-12, rtol=0.0)
    wanted = torch.linalg.eigvalsh(H_class).flip(0)[:4]
    torch.testing.assert_close(found.class_values[0], wanted)
    bulk = torch.linalg.eigvalsh(H_within)[-1]
    torch.testing.assert_close(found.bulk[0], bulk)
    torch.testing.assert_close(found.ratios[0], wanted / bulk)
    assert found.whiskers[0].item() == pytest.approx(float(wanted[1] / wanted[3]))


def test_more_signal_separates_and_other_lengths_stretch_the_whiskers() -> None:
    (weak, labels), (strong, _) = clouds(1.0), clouds(6.0)
    stretched = strong.clone()
    stretched[:, :2] *= 3.0  # one alone would move λ₁ only
    found = separation({"weak": weak, "strong": strong, "stretched": stretched}, labels)
    assert found.layers == ("weak", "strong", "stretched")
    assert float(found.ratios[1, -1]) > 10 * float(found.ratios[0, -1])
    assert float(found.whiskers[2]) > float(found.whiskers[1])
    assert float(found.centre_accuracy[1]) > 0.99 > 0.8 > float(found.centre_accuracy[0])
    assert float(found.linear_accuracy[1]) > 0.99 > 0.8 > float(found.linear_accuracy[0])
    assert list(found.to_frame()["layer"]) == ["weak", "strong", "stretched"]


def test_accuracies_by_hand() -> None:
    # Means −2 and 2; one sample of the second class lies nearer to the first.
    h = torch.tensor([[-2.0], [-2.0], [-2.0], [-1.0], [4.0], [3.0]], dtype=torch.float64)
    labels = torch.tensor([5, 5, 5, 8, 8, 8])  # numbers need not begin at 0
    found = separation({"a": h}, labels)
    assert found.num_classes == 2
    assert found.centre_accuracy[0].item() == pytest.approx(5 / 6)
    assert found.linear_accuracy[0].item() == pytest.approx(5 / 6)
    assert not found.is_held_out


def test_least_squares_sees_what_nearest_centres_miss() -> None:
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(200) % 2
    h = torch.randn(200, 2, generator=generator, dtype=torch.float64)
    h[:, 1] *= 30.0  # a wide direction without classes; small means of it mislead the centres
    h[:, 0] = 0.1 * h[:, 0] + labels
    found = separation({"a": h}, labels)
    assert float(found.linear_accuracy[0]) == 1.0
    assert float(found.centre_accuracy[0]) < 0.7


def test_the_linear_classifier_is_that_of_normal_equations() -> None:
    h, labels = clouds(1.5)
    X = torch.cat([h, torch.ones(len(h), 1, dtype=torch.float64)], dim=1)
    Y = torch.eye(4, dtype=torch.float64)[labels]
    predicted = (X @ torch.linalg.solve(X.T @ X, X.T @ Y)).argmax(1)
    found = separation({"a": h}, labels)
    assert found.linear_accuracy[0].item() == pytest.approx(
        float((predicted == labels).double().mean())
    )


def test_held_out_samples_judge_what_was_fitted() -> None:
    h, labels = clouds(0.0, d=300)  # more features than samples, and nothing to be learnt
    other, truth = clouds(0.0, d=300, seed=7)
    fitted = separation({"a": h}, labels)
    judged = separation({"a": h}, labels, held_out=({"a": other}, truth))
    assert float(fitted.linear_accuracy[0]) == 1.0
    assert float(judged.linear_accuracy[0]) < 0.45
    assert judged.is_held_out
    assert torch.equal(judged.class_values, fitted.class_values)


def test_feature_maps_are_flattened_and_means_in_few_directions_have_no_whisker() -> None:
    h, labels = clouds(2.0, d=12)
    maps = separation({"a": h.reshape(-1, 3, 2, 2)}, labels)
    torch.testing.assert_close(maps.ratios, separation({"a": h}, labels).ratios)
    assert math.isinf(separation({"a": h[:, :2]}, labels).whiskers[0])
    assert torch.equal(unpack(*pack(maps)).ratios, maps.ratios)


def test_two_means_in_one_direction_have_no_whisker() -> None:
    h = torch.tensor([[1.0, 0.5], [1.0, -0.5], [-1.0, 0.5], [-1.0, -0.5]])
    labels = torch.tensor([0, 0, 1, 1])
    found = separation({"opposite": h, "dead": 0 * h, "both": h + 1.0}, labels)
    assert found.whiskers.tolist() == [math.inf, math.inf, 1.0]
    assert found.class_values[1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_spread_in_classes_ratios_are_infinite(dtype: torch.dtype) -> None:
    # Thirds are rounded, and a long sum of them rounds the same way each time.
    means = torch.tensor([[1 / 3, 0.1, 0.7], [0.7, 1 / 3, 0.1], [0.4, 0.9, 1 / 3]], dtype=dtype)
    labels = torch.arange(30_000) % 3
    found = separation({"a": means[labels], "b": 5.0 * means[0].expand(30_000, 3)}, labels)
    assert found.bulk.tolist() == [0.0, 0.0]
    assert found.ratios.tolist() == [[math.inf] * 3, [math.inf, 0.0, 0.0]]
    assert float(found.class_values[1, 0]) == pytest.approx(25 * float(means[0].square().sum()))


@pytest.mark.parametrize("offset", [1e6, 1e8])
def test_a_common_offset_hides_nothing(offset: float) -> None:
    C, d = 4, 9
    labels = torch.arange(200) % C
    generator = torch.Generator().manual_seed(2)
    h = 0.01 * torch.randn(200, d, generator=generator, dtype=torch.float64)
    h[torch.arange(200), labels] += 1.0
    h += offset  # rounds to 1.5e-8 at most
    found = separation({"a": h}, labels)
    # λ₁ is the global mean's, and the rest are those of the other means across it, to 1/offset².
    means = torch.stack([(h[labels == c] - offset).mean(0) for c in range(C)])
    mean = means.mean(0) + offset
    across = (means - means.mean(0)) @ (
        torch.eye(d) - torch.outer(mean, mean) / mean.square().sum()
    )
    wanted = torch.linalg.eigvalsh(across @ across.T / C).flip(0)
    wanted = torch.cat([mean.square().sum()[None], wanted[: C - 1]])
    # Singular values are good to eps of the largest: 1e-7 of the others at the larger offset.
    torch.testing.assert_close(found.class_values[0], wanted, rtol=1e-6, atol=0.0)
    centred = separation({"a": h - offset}, labels)  # exact: near numbers
    torch.testing.assert_close(found.bulk, centred.bulk, rtol=1e-9, atol=0.0)
    assert float(found.centre_accuracy[0]) == float(found.linear_accuracy[0]) == 1.0


def test_classes_far_from_all_others_leave_near_ones_their_centres() -> None:
    labels = torch.arange(300) % 3
    generator = torch.Generator().manual_seed(3)
    h = 0.01 * torch.randn(300, 5, generator=generator, dtype=torch.float64)
    h[labels == 1, 0] += 1.0
    h[labels == 2] += 1e9
    assert float(separation({"a": h}, labels).centre_accuracy[0]) == 1.0


def test_refusals() -> None:
    h, labels = clouds(1.0)
    with pytest.raises(EmptySelectionError, match="one layer"):
        separation({}, labels)
    with pytest.raises(ShapeError, match="'a'"):
        separation({"a": h[:-1]}, labels)
    with pytest.raises(ShapeError, match="integers"):
        separation({"a": h}, labels.double())
    with pytest.raises(InvalidArgumentError, match="two classes"):
        separation({"a": h}, torch.zeros(len(h), dtype=torch.long))
    with pytest.raises(NonFiniteError, match="'a'"):
        separation({"a": torch.full_like(h, math.nan)}, labels)
    with pytest.raises(InvalidArgumentError, match="missing"):
        separation({"a": h}, labels, held_out=({"b": h}, labels))
    with pytest.raises(InvalidArgumentError, match="missing"):
        separation({"a": h}, labels, held_out=({"a": h}, labels + 9))
    with pytest.raises(ShapeError, match="needs 9 features"):
        separation({"a": h}, labels, held_out=({"a": h[:, :4]}, labels))


def test_refusals_of_other_kinds() -> None:
    h, labels = clouds(1.0)
    numbers: Any = labels.tolist()
    bare: Any = h
    rows: Any = {"a": h.tolist()}
    with pytest.raises(WrongTypeError, match=r"got list. Give `torch.as_tensor\(labels\)`"):
        separation({"a": h}, numbers)
    with pytest.raises(WrongTypeError, match="mapping from layers to tensors; got Tensor"):
        separation(bare, labels)
    with pytest.raises(WrongTypeError, match="of 'a'; got list"):
        separation(rows, labels)
    ignored = labels.clone()
    ignored[3] = -100
    with pytest.raises(InvalidArgumentError, match=r"from 0 on; got -100\. Leave"):
        separation({"a": h}, ignored)


def test_refusals_of_held_out_samples() -> None:
    h, labels = clouds(1.0)
    none: Any = ()
    for held_out, error, words in (
        (none, WrongTypeError, "needs a pair; got tuple"),
        (({"a": h[:0]}, labels[:0]), EmptySelectionError, "one sample or more; got 0"),
        ((h, labels), WrongTypeError, "mapping"),
        (({"a": h}, labels.tolist()), WrongTypeError, "as_tensor"),
        (({"a": h}, labels.double()), ShapeError, "integers"),
        (({"a": h}, labels - 1), InvalidArgumentError, "from 0 on; got -1"),
        (({"aa": h}, labels), InvalidArgumentError, "'a' is missing. Nearest: 'aa'"),
        (({"a": h[:-1]}, labels), ShapeError, "of 'a'"),
    ):
        with pytest.raises(error, match=words):
            separation({"a": h}, labels, held_out=held_out)


def test_labels_of_any_kind_of_integer_are_the_same_classes() -> None:
    h, labels = clouds(3.0, C=2)
    wanted = separation({"a": h}, labels, held_out=({"a": h}, labels)).centre_accuracy
    for dtype in (torch.uint8, torch.int32, torch.bool):
        other = labels.to(dtype)
        found = separation({"a": h}, other, held_out=({"a": h}, other))
        assert torch.equal(found.centre_accuracy, wanted)
