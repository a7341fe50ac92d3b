"""Seeds and orders: the same at every call, with nothing in common with their neighbours."""

import hashlib
import itertools

import pytest
import torch

from eigenscape.parallel import epoch_order, mixed_seed


def test_a_seed_is_a_hash_of_its_words() -> None:
    # Orders of runs that were kept depend on it: it must never change.
    digest = hashlib.blake2b(b"order/0/1", digest_size=8).digest()
    assert mixed_seed("order", 0, 1) == int.from_bytes(digest, "little") // 2
    assert mixed_seed("order", 0, 1) != mixed_seed("order", 1, 0)


def test_seeds_fit_a_generator_and_none_comes_twice() -> None:
    uses = itertools.product(("order", "noise", "order/1"), range(12), range(12))
    seeds = [mixed_seed(what, *numbers) for what, *numbers in uses]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    torch.Generator().manual_seed(max(seeds))


def test_neighbours_have_half_of_their_bits_in_common() -> None:
    pairs = [(mixed_seed("x", n), mixed_seed("x", n + 1)) for n in range(500)]
    differing = sum((a ^ b).bit_count() for a, b in pairs) / len(pairs)
    # 63 fair bits each: the mean of 500 has a standard deviation of 0.18.
    assert differing == pytest.approx(31.5, abs=0.8)
    same = sum((n ^ (n + 1)).bit_count() for n in range(500)) / 500
    assert same != pytest.approx(31.5, abs=0.8)


@pytest.mark.parametrize("count", [0, 1, 17])
def test_an_order_has_every_sample_once(count: int) -> None:
    assert sorted(epoch_order(3, 2, count).tolist()) == list(range(count))
    assert epoch_order(3, 2, count).dtype == torch.int64


def test_an_order_depends_on_seed_and_epoch_alone() -> None:
    order = epoch_order(3, 2, 40)
    torch.manual_seed(7)
    torch.rand(5)
    assert torch.equal(epoch_order(3, 2, 40), order)
    state = torch.random.get_rng_state()
    for seed, epoch in ((2, 3), (3, 3), (4, 2)):
        assert not torch.equal(epoch_order(seed, epoch, 40), order)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_an_order_is_written_where_it_is_wanted() -> None:
    orders = torch.zeros(3, 40, dtype=torch.int64)
    for epoch, row in enumerate(orders):
        epoch_order(5, epoch, 40, out=row)
    assert torch.equal(orders, torch.stack([epoch_order(5, epoch, 40) for epoch in range(3)]))


def test_every_place_is_as_likely() -> None:
    runs = torch.stack([epoch_order(seed, 0, 5) for seed in range(2000)])
    counts = torch.stack([row.bincount(minlength=5) for row in runs.T])
    # Each of 25 counts is binomial with standard deviation 18 around 400; 5 of them are 90.
    assert int((counts - 400).abs().max()) < 90
