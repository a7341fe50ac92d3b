from typing import Any

import pytest
import torch

from eigenscape.errors import EigenscapeError, InvalidArgumentError, UnknownNameError
from eigenscape_papers.datasets import load

SMALL: dict[str, dict[str, Any]] = {
    "gaussian": {"dimension": 6, "num_classes": 3, "per_class": 4},
    "clusters": {"dimension": 6, "num_classes": 2, "num_clusters": 4, "num_samples": 12},
    "class-mixture": {"dimension": 6, "num_classes": 3, "per_class": 4},
}


@pytest.mark.parametrize("name", SMALL)
def test_seed_fixes_everything(name: str) -> None:
    torch.manual_seed(1)
    one = load(name, seed=7, **SMALL[name])
    torch.manual_seed(2)
    same = load(name, seed=7, **SMALL[name])
    assert torch.equal(one.inputs, same.inputs)
    assert torch.equal(one.targets, same.targets)
    assert not torch.equal(one.inputs, load(name, seed=8, **SMALL[name]).inputs)
    assert one.inputs.dtype == torch.float32
    assert one.targets.dtype == torch.int64
    assert "seed 7" in one.history[0]


@pytest.mark.parametrize("name", SMALL)
def test_test_split_is_new_data(name: str) -> None:
    train, test = load(name, **SMALL[name]), load(name, split="test", **SMALL[name])
    assert test.inputs.shape == train.inputs.shape
    assert float((test.inputs - train.inputs).abs().min()) > 0


def test_gaussian_defaults_are_those_of_the_paper() -> None:
    data = load("gaussian")
    assert data.inputs.shape == (5000, 500)
    assert data.num_classes == 500


def test_gaussian_moments() -> None:
    X = load("gaussian", seed=3).inputs.double()
    n = X.numel()
    assert abs(float(X.mean())) < 5 * n**-0.5
    assert abs(float((X**2).mean()) - 1) < 5 * (2 / n) ** 0.5
    assert abs(float((X**4).mean()) - 3) < 5 * (96 / n) ** 0.5
    # Different entries of a sample are uncorrelated: 249500 covariances of 124750 pairs.
    C = X.T @ X / len(X)
    off = C[~torch.eye(500, dtype=torch.bool)]
    assert abs(float((off**2).mean()) * 5000 - 1) < 5 * (2 / 124_750) ** 0.5 + 1e-3


def test_gaussian_labels_are_random_or_balanced() -> None:
    random = load("gaussian", dimension=2, num_classes=10, per_class=1000)
    counts = torch.bincount(random.targets, minlength=10).double()
    chi_square = float(((counts - 1000) ** 2 / 1000).sum())
    assert 0.5 < chi_square < 40  # nine degrees of freedom; exactly 0 would be the balanced one
    test = load("gaussian", split="test", dimension=2, num_classes=10, per_class=1000)
    agree = float((test.targets == random.targets).double().mean())
    assert abs(agree - 0.1) < 5 * (0.09 / 10_000) ** 0.5
    balanced = load("gaussian", dimension=2, num_classes=10, per_class=1000, labels="balanced")
    assert torch.equal(balanced.targets, torch.arange(10).repeat_interleave(1000))
    assert torch.equal(balanced.inputs, random.inputs)


def test_clusters_lie_around_the_unit_sphere() -> None:
    options = {"dimension": 16, "num_classes": 3, "num_clusters": 6, "num_samples": 6 * 4000}
    data = load("clusters", seed=2, **options)
    groups = data.inputs.double().reshape(6, 4000, 16)
    means = groups.mean(1)
    # A mean of 4000 has noise 0.05 / √4000 an entry, and 16 entries.
    assert float((means.norm(dim=1) - 1).abs().max()) < 5 * 0.05 * (16 / 4000) ** 0.5
    spread = float((groups - means[:, None]).square().mean() ** 0.5)
    assert abs(spread - 0.05) < 5 * 0.05 / (2 * groups.numel()) ** 0.5 + 1e-4
    assert data.targets.reshape(6, 4000)[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    # Other centres for other clusters, the same centres for the test split.
    assert float(torch.pdist(means).min()) > 0.3
    test = load("clusters", split="test", seed=2, **options).inputs.double()
    apart = (test.reshape(6, 4000, 16).mean(1) - means).norm(dim=1)
    assert float(apart.max()) < 5 * 0.05 * (2 * 16 / 4000) ** 0.5


def test_centres_are_spread_over_the_whole_sphere() -> None:
    data = load("clusters", dimension=8, num_classes=4000, num_clusters=4000, num_samples=4000)
    X = data.inputs.double()
    assert float(X.mean(0).abs().max()) < 5 * (1 / 8 / 4000) ** 0.5
    torch.testing.assert_close(X.T @ X / 4000, torch.eye(8) / 8, atol=0.02, rtol=0)


def test_clusters_in_the_plane_lie_on_a_circle_of_radius_five() -> None:
    data = load("clusters", dimension=2, num_classes=4, num_clusters=4, num_samples=40, noise=1e-6)
    expected = torch.tensor([[0.0, 5.0], [-5.0, 0.0], [0.0, -5.0], [5.0, 0.0]])
    centres = data.inputs.double().reshape(4, 10, 2).mean(1)
    torch.testing.assert_close(centres, expected, atol=1e-5, rtol=0)
    # Clusters that the cut-off leaves out keep their place on the circle.
    some = load("clusters", dimension=2, num_classes=3, num_clusters=4, num_samples=4, noise=1e-6)
    torch.testing.assert_close(some.inputs.double(), expected[:3], atol=1e-4, rtol=0)


def test_remainders_are_cut_off_as_in_the_papers_code() -> None:
    data = load("clusters", num_classes=500, num_clusters=750, num_samples=5000)
    assert data.num_samples == 500 * (5000 // 750)
    assert "around 500 centres, 6 each" in data.history[0]


def test_class_mixture_has_the_moments_of_the_definition() -> None:
    n, D, C, t = 4000, 5, 3, 2.5
    data = load("class-mixture", dimension=D, num_classes=C, per_class=n, signal=t, seed=4)
    groups = data.inputs.double().reshape(C, n, D)
    assert torch.equal(data.targets, torch.arange(C).repeat_interleave(n))
    means = groups.mean(1)
    assert float((means - t * torch.eye(D)[:C]).abs().max()) < 5 * n**-0.5
    Z = (groups - means[:, None]).reshape(-1, D)
    covariance = Z.T @ Z / (C * (n - 1))
    assert float((covariance - torch.eye(D)).abs().max()) < 5 * (2 / (C * n)) ** 0.5


def test_class_mixture_without_signal_is_noise() -> None:
    options = {"dimension": 4, "num_classes": 2, "per_class": 3}
    noise = load("class-mixture", signal=0, **options).inputs
    signal = load("class-mixture", signal=1.0, **options).inputs
    expected = torch.zeros(6, 4, dtype=torch.float32)
    expected[:3, 0] = expected[3:, 1] = 1.0
    torch.testing.assert_close(signal - noise, expected)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("gaussian", {"dimension": 0}, r"dimension=.*at least 1; got 0"),
        ("gaussian", {"per_class": 1.5}, r"per_class=.*integer; got float"),
        ("gaussian", {"num_classes": -1}, "num_classes"),
        ("gaussian", {"labels": "sorted"}, "'random', 'balanced'; got 'sorted'"),
        ("gaussian", {"seed": -1}, "seed"),
        ("clusters", {"num_clusters": 499}, r"num_clusters=.*at least 500; got 499"),
        ("clusters", {"num_samples": 499}, r"num_samples=.*at least 500; got 499"),
        ("clusters", {"dimension": 1}, r"dimension=.*at least 2"),
        ("clusters", {"noise": 0.0}, r"noise=.*above 0"),
        ("class-mixture", {"dimension": 9}, r"dimension=.*at least 10; got 9"),
        ("class-mixture", {"signal": -1.0}, r"signal=.*0 or more; got -1\.0"),
        ("class-mixture", {"signal": float("inf")}, "signal"),
        ("class-mixture", {"per_class": 0}, "per_class"),
    ],
)
def test_options_out_of_range_are_refused(name: str, options: Any, words: str) -> None:
    with pytest.raises(EigenscapeError, match=words) as caught:
        load(name, **options)
    assert isinstance(caught.value, InvalidArgumentError | TypeError)


@pytest.mark.parametrize("name", SMALL)
def test_unknown_split_is_refused(name: str) -> None:
    with pytest.raises(UnknownNameError, match="'train', 'test'; got 'validation'"):
        load(name, split="validation")
