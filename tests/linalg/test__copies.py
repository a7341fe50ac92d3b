"""What a random start says about copies, and a look about pairs that were missed."""

import math

import pytest
import torch

from eigenscape.linalg._copies import chances_to_miss, copies_seen

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
