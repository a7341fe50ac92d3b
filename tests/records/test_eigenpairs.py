"""Eigenpairs as a record: slices, intervals, text."""

import dataclasses
import json

import pytest
import torch

from eigenscape.errors import InvalidArgumentError, WrongTypeError
from eigenscape.linalg import certify, eigsh, power_iteration, subspace_iteration
from eigenscape.operator import Dense
from eigenscape.records import EigenPairs, Status, pack, unpack
from eigenscape.space import ParamSpace
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


SPACE = ParamSpace({"fc2.weight": (2, 3), "fc1.weight": (1, 2), "fc1.bias": ()})


def test_pairs_know_the_space_of_their_operator() -> None:
    A = Dense(with_spectrum(torch.arange(1.0, 10.0)), space=SPACE)
    made = (
        certify(A, torch.eye(9)[:, :2]),
        eigsh(A, num_pairs=2),
        eigsh(A, num_pairs=2, search=2 * A),
        power_iteration(A),
        subspace_iteration(A, num_pairs=2, degree=4, which="largest"),
    )
    for pairs in made:
        assert pairs.space == SPACE
        assert pairs[:1].space == SPACE
        assert torch.equal(pairs.entries("fc1"), pairs.vectors[6:])
        assert torch.equal(pairs.entries("fc2.weight", "fc1.bias"), pairs.vectors[[*range(6), 8]])
        assert "shapes=dict of 3" in repr(pairs)
    block = eigsh(A["fc1"], num_pairs=1)
    assert block.space == SPACE.restrict(SPACE.block("fc1"))
    assert torch.equal(block.entries("fc1"), block.vectors)


def test_the_space_is_stored_as_json_and_old_pairs_are_read() -> None:
    A = Dense(with_spectrum(torch.arange(1.0, 10.0)), space=SPACE)
    pairs = eigsh(A, num_pairs=2)
    plain, tensors = pack(pairs)
    text = json.dumps(plain)
    assert json.loads(text)["fields"]["shapes"] == {
        "fc2.weight": [2, 3],
        "fc1.weight": [1, 2],
        "fc1.bias": [],
    }
    assert unpack(json.loads(text), tensors).space == SPACE  # in the same order
    del plain["fields"]["shapes"]
    old = unpack(plain, tensors)
    assert torch.equal(old.vectors, pairs.vectors)
    for ask in (lambda: old.space, lambda: old.entries("fc1")):
        with pytest.raises(
            InvalidArgumentError, match=r"`pairs\.space` must be known; got .*A\.space"
        ):
            ask()
    assert dataclasses.replace(old, shapes=dict(SPACE.shapes)).entries("fc2").shape == (6, 2)
