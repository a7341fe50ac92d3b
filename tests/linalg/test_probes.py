"""Probes: fixed by the seed alone, and of unit covariance."""

import math

import pytest
import torch

from eigenscape.errors import UnknownNameError
from eigenscape.linalg import draw_probes
from eigenscape.linalg.probes import KINDS, chances_to_miss, copies_seen
from eigenscape.operator import Dense


def operator(n: int, dtype: torch.dtype = torch.float64) -> Dense:
    return Dense(torch.eye(n, dtype=dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_does_not_depend_on_its_company(kind: str) -> None:
    many = draw_probes(operator(13), 5, seed=4, kind=kind)
    for j in range(5):
        alone = draw_probes(operator(13), 1, seed=4, kind=kind, first=j)
        torch.testing.assert_close(alone[:, 0], many[:, j], rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_dtypes_share_their_probes(kind: str) -> None:
    wide = draw_probes(operator(13), 2, seed=4, kind=kind)
    narrow = draw_probes(operator(13, torch.float32), 2, seed=4, kind=kind)
    torch.testing.assert_close(narrow, wide.float(), rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_covariance_is_the_identity(kind: str) -> None:
    n, k = 5, 4000
    V = draw_probes(operator(n), k, seed=0, kind=kind)
    # Entries of the sample covariance have standard deviation at most √(2/k) here; 15 of them.
    assert (V @ V.T / k - torch.eye(n)).abs().max() < 4.5 * (2 / k) ** 0.5


def test_neighbouring_seeds_and_columns_differ() -> None:
    V = torch.cat([draw_probes(operator(64), 4, seed=s, kind="sphere") for s in range(4)], dim=1)
    cosines = V.T @ V / 64 - torch.eye(16)
    # 120 cosines of independent directions in 64 dimensions have deviation 1/8 each.
    assert cosines.abs().max() < 4 / 8


def test_unknown_kind() -> None:
    with pytest.raises(UnknownNameError, match="'rademacher', 'gaussian', 'sphere'"):
        draw_probes(operator(3), 1, seed=0, kind="cauchy")


WANTED = torch.tensor([10.0, 9.0, 2.0], dtype=torch.float64)
KNOWN = {"met": (0.0, 1.9), "spread": (0.0, 10.0), "size": 10_000}


def test_one_vector_on_a_space_of_ten_dimensions_sees_ten() -> None:
    seen, chance = copies_seen(100.0, 10, 1)
    assert seen == 100.0
    assert chance < 1e-15
    assert copies_seen(10.0, 10, 1)[1] == pytest.approx(0.44, abs=0.01)  # χ² of 10 degrees
    assert copies_seen(40.0, 10, 4) == (10.0, pytest.approx(0.47, abs=0.01))


def test_far_pairs_are_sure_before_near_ones() -> None:
    chances = chances_to_miss(WANTED, "largest", num_steps=10, **KNOWN)
    bound = 1.648 * 100 * math.exp(-19 * math.sqrt(8.1 / 10))
    assert float(chances[0]) == pytest.approx(bound)
    assert float(chances[0]) < float(chances[1]) < 0.01
    assert float(chances[2]) == 1.0
    more = chances_to_miss(WANTED, "largest", num_steps=20, **KNOWN)
    assert bool((more[:2] < chances[:2]).all())


def test_a_pair_that_was_met_beyond_leaves_nothing_sure() -> None:
    known = {**KNOWN, "met": (0.0, 10.5)}
    assert chances_to_miss(WANTED, "largest", num_steps=50, **known).tolist() == [1.0] * 3


def test_ends_are_alike() -> None:
    top = chances_to_miss(WANTED, "largest", num_steps=10, **KNOWN)
    turned = {"met": (-1.9, 0.0), "spread": (-10.0, 0.0), "size": 10_000}
    assert torch.equal(chances_to_miss(-WANTED, "smallest", num_steps=10, **turned), top)
    both = {"met": (-1.9, 1.9), "spread": (-10.0, 10.0), "size": 10_000}
    ends = chances_to_miss(torch.cat([WANTED, -WANTED]), "both", num_steps=10, **both)
    torch.testing.assert_close(ends[:3], ends[3:])
    sizes = chances_to_miss(WANTED, "magnitude", num_steps=10, **both)
    torch.testing.assert_close(sizes, (2 * ends[:3]).clamp_max(1.0))
