"""The samples that are looked at: different ones, and those in which something may hide."""

from typing import Any

import pytest
import torch

from eigenscape.risk import Batch, BatchSource
from eigenscape.risk.telling_samples import telling_samples


def source(data: Any, batch_size: int | None = None) -> BatchSource:
    made = BatchSource(
        data,
        batch_size=batch_size,
        keep_bytes=10**9,
        device=torch.device("cpu"),
        dtype=torch.float64,
    )
    made.keep()
    return made


def numbers(groups: list[Batch]) -> list[set[int]]:
    """Return which samples each group holds; each sample is its number."""
    return [
        {int(x) for x in group.args[0].flatten()[:: group.args[0][0].numel()]} for group in groups
    ]


def numbered(n: int) -> torch.Tensor:
    return torch.arange(n, dtype=torch.float64).view(n, 1)


def test_first_and_last_batch_are_looked_at() -> None:
    batches = [(numbered(40)[i : i + 4], torch.zeros(4)) for i in range(0, 40, 4)]
    seen = set().union(*numbers(telling_samples(source(batches), 100)))
    assert {0, 1, 2, 3} <= seen
    assert {36, 37, 38, 39} <= seen


def test_a_first_batch_that_adds_nothing_is_not_the_only_one() -> None:
    y = torch.arange(40) % 3
    y[:4] = -100  # nothing is compared in the first batch
    batches = [(numbered(40)[i : i + 4], y[i : i + 4]) for i in range(0, 40, 4)]
    groups = telling_samples(source(batches), 4)  # few samples: those that tell most come first
    assert not numbers(groups)[0] & {0, 1, 2, 3}


def test_the_fullest_and_the_emptiest_batch_are_looked_at() -> None:
    y = torch.full((40, 3), -100)
    y[:, 0] = 1
    y[16:20] = 1  # three targets a sample
    y[25:28] = -100  # one in all
    batches = [(numbered(40)[i : i + 4], y[i : i + 4]) for i in range(0, 40, 4)]
    seen = numbers(telling_samples(source(batches), 200))
    assert any({16, 17, 18, 19} <= group for group in seen)
    assert any({24, 25, 26, 27} <= group for group in seen)


def test_the_most_padded_batch_is_looked_at() -> None:
    ids = torch.arange(1, 201).view(40, 5)
    ids[12:16, 1:] = 0
    batches = [(ids[i : i + 4], torch.zeros(4)) for i in range(0, 40, 4)]
    groups = telling_samples(source(batches), 200)
    assert any(bool((group.args[0] == 0).any()) for group in groups)


def test_one_batch_of_unlike_samples_gives_two_groups_of_different_samples() -> None:
    y = torch.zeros(200, 3, dtype=torch.long)
    y[::4, 1:] = -100
    groups = telling_samples(source((numbered(200), y)), 64)
    assert len(groups) == 2
    assert all(group.size <= 32 for group in groups)
    first, second = numbers(groups)
    assert first != second


def test_one_batch_of_samples_alike_gives_one_group() -> None:
    (group,) = telling_samples(source((numbered(200), torch.zeros(200))), 64)
    assert group.size == 32


def test_one_group_has_the_fullest_samples_and_one_the_emptiest() -> None:
    y = torch.full((200, 3), -100)
    y[100:110], y[:, 0] = 1, 1  # ten samples have all targets, the others one
    groups = telling_samples(source((numbered(200), y)), 16)
    full = [len(group & set(range(100, 110))) for group in numbers(groups)]
    assert full[0] >= 4 > full[1]


@pytest.mark.parametrize("most", [1, 2, 7, 30, 100])
def test_about_as_many_as_were_asked_for_are_chosen(most: int) -> None:
    for data, size in (((numbered(300), torch.zeros(300)), None), ((numbered(300), None), 20)):
        given = data if data[1] is not None else data[0]
        groups = telling_samples(source(given, size), most)
        assert 2 <= sum(group.size for group in groups) <= max(most, 2)
        assert all(group.size <= 32 for group in groups)


@pytest.mark.parametrize("most", [0, 1, 3, 5])
def test_a_batch_of_several_samples_is_not_looked_at_one_by_one(most: int) -> None:
    batches = [(numbered(9)[i : i + 3], torch.zeros(3)) for i in (0, 3, 6)]
    assert min(group.size for group in telling_samples(source(batches), most)) >= 2


def test_no_sample_is_twice_in_a_group() -> None:
    for group in telling_samples(source((numbered(50), torch.zeros(50))), 40):
        values = group.args[0].flatten().tolist()
        assert len(set(values)) == len(values)


def test_what_cannot_be_cut_is_taken_whole() -> None:
    graph = (numbered(50), torch.ones(3, 3), torch.zeros(50))  # a table that belongs to no sample
    groups = telling_samples(source([graph]), 5)
    assert [group.size for group in groups] == [50]
