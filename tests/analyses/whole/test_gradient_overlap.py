"""The gradient's share in growing eigenspaces."""

import pytest
import torch

from eigenscape.analyses import gradient_overlap
from eigenscape.errors import ShapeError
from eigenscape.linalg import eigsh
from eigenscape.operator import Dense

A = Dense(torch.diag(torch.tensor([5.0, 4.0, 3.0, 0.2, 0.1])))


def test_shares_are_squared_projections() -> None:
    pairs = eigsh(A, num_pairs=3)
    record = gradient_overlap(torch.tensor([3.0, 0.0, 4.0, 0.0, 12.0]), pairs)
    assert record.shares.tolist() == pytest.approx([9 / 169, 9 / 169, 25 / 169])
    assert record.chance.tolist() == pytest.approx([0.2, 0.4, 0.6])
    assert record.gradient_norm == pytest.approx(13.0)


def test_everything_lies_in_the_whole_space() -> None:
    record = gradient_overlap(torch.randn(5), eigsh(A, num_pairs=5))
    assert float(record.shares[-1]) == pytest.approx(1.0)


def test_no_gradient_has_no_share() -> None:
    assert gradient_overlap(torch.zeros(5), eigsh(A, num_pairs=2)).shares.tolist() == [0.0, 0.0]


def test_refusals() -> None:
    pairs = eigsh(A, num_pairs=2)
    with pytest.raises(ShapeError, match=r"\(5,\)"):
        gradient_overlap(torch.randn(4), pairs)
    with pytest.raises(ShapeError, match="k ≥ 1"):
        gradient_overlap(torch.randn(5), pairs[:0])
