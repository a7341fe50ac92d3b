"""Eigenpairs as a record: slices, intervals, text."""

import json

import pytest
import torch

from eigenscape.errors import WrongTypeError
from eigenscape.linalg import certify
from eigenscape.operator import Dense
from eigenscape.records import EigenPairs, Status
from tests.linalg.matrices import with_spectrum


def test_text_and_dict() -> None:
    matrix = with_spectrum(torch.arange(1.0, 25.0))
    text = str(certify(Dense(matrix), torch.eye(24)))
    assert "2.400000e+01" in text
    assert "4 more" in text
    assert len(text.splitlines()) == 23
    assert json.dumps(certify(Dense(matrix), torch.eye(24)[:, :2]).to_dict())


def test_pairs_can_be_sliced() -> None:
    matrix = with_spectrum([5.0, 4.0, 3.0, 2.0])
    pairs = certify(Dense(matrix), torch.linalg.eigh(matrix).eigenvectors)
    some = pairs[1:3]
    assert len(some) == 2
    with pytest.raises(WrongTypeError, match=r"`pairs\.values\[i\]`"):
        pairs[0]
    torch.testing.assert_close(some.values, torch.tensor([4.0, 3.0]))
    torch.testing.assert_close(matrix @ some.vectors, some.vectors * some.values)


def test_intervals_and_frame() -> None:
    pairs = EigenPairs(
        status=Status(True, ""),
        num_products=2,
        seed=0,
        values=torch.tensor([3.0, -1.0]),
        vectors=torch.eye(2),
        residuals=torch.tensor([0.5, 0.25]),
        which="both",
        tolerance=1e-6,
    )
    assert pairs.intervals().tolist() == [[2.5, 3.5], [-1.25, -0.75]]
    frame = pairs.to_frame()
    assert frame.to_dict("list") == {
        "rank": [1, 2],
        "eigenvalue": [3.0, -1.0],
        "residual": [0.5, 0.25],
    }
