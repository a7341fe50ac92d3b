"""A batch is read as it was meant, and cut where samples are."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eigenscape.errors import (
    EigenscapeError,
    InvalidArgumentError,
    ShapeError,
    UnsupportedModelError,
    WrongTypeError,
)
from eigenscape.risk import Batch, explained, logits_of
from eigenscape.risk.batch import checksum, inputs_kept, odd_shape, parse, split, tensors_in

X = torch.arange(14, dtype=torch.float64).view(7, 2)
Y, Z = torch.arange(7), torch.ones(7, 3, dtype=torch.float64)

FORMS: dict[str, tuple[Any, int, set[str], bool]] = {  # positional, by name, is there a target
    "pair": ((X, Y), 1, set(), True),
    "three": ((X, Z, Y), 2, set(), True),
    "inputs in a tuple": (((X, Z), Y), 2, set(), True),
    "mapping and target": (({"a": X, "b": Z}, Y), 0, {"a", "b"}, True),
    "mapping": ({"a": X, "labels": Y}, 0, {"a"}, True),
    "mapping without labels": ({"a": X, "b": Z}, 0, {"a", "b"}, False),
    "tensor": (X, 1, set(), False),
    "one of one": ((X,), 1, set(), False),
    "object": (SimpleNamespace(x=X, y=Y), 1, set(), True),
}


@pytest.mark.parametrize("form", FORMS)
def test_inputs_are_told_from_the_target(form: str) -> None:
    raw, positional, named, has_target = FORMS[form]
    batch = parse(raw)
    assert (len(batch.args), set(batch.kwargs)) == (positional, named)
    assert (batch.target is Y) is has_target
    assert batch.size == 7


@pytest.mark.parametrize(
    ("raw", "error"), [(3, WrongTypeError), ("text", WrongTypeError), ((1.0, 2.0), ShapeError)]
)
def test_what_is_no_batch_is_refused(raw: object, error: type[EigenscapeError]) -> None:
    with pytest.raises(error, match=r"Give inputs|must be"):
        parse(raw)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 9])
def test_parts_hold_all_samples_once_and_in_order(limit: int) -> None:
    parts = list(split(parse((X, Y)), limit, must=True))
    assert max(part.size for part in parts) <= limit
    assert torch.equal(torch.cat([part.args[0] for part in parts]), X)
    assert torch.equal(torch.cat([part.target for part in parts]), Y)


def test_nothing_has_no_parts() -> None:
    assert list(split(parse((X[:0], Y[:0])), 3, must=True)) == []


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7])
def test_halves_are_two_parts_of_any_batch_with_two_samples(size: int) -> None:
    halves = list(parse((X[:size], Y[:size])).halves())
    assert len(halves) == 2
    assert sum(half.size for half in halves) == size
    assert size < 3 or halves[0].size != halves[1].size or size == 4


def test_one_sample_has_no_halves() -> None:
    (only,) = parse((X[:1], Y[:1])).halves()
    assert only.size == 1


def test_samples_may_stand_in_the_second_dimension() -> None:
    batch = parse((X.T, Y), dim=1)
    assert batch.size == 7
    first, second = split(batch, 4, must=True)
    assert first.args[0].shape == (2, 4)
    assert torch.equal(second.target, Y[4:])  # targets may have samples first where inputs have not
    assert torch.equal(batch.take([6, 0]).args[0], X.T[:, [6, 0]])


def test_what_does_not_say_how_is_not_cut() -> None:
    batch = parse((X, torch.ones(3, 3), Y))  # a mask of positions, say
    assert odd_shape(batch) == "(3, 3)"
    assert list(split(batch, 2, must=False)) == [batch]
    assert batch.take([0]) is batch
    with pytest.raises(InvalidArgumentError, match=r"shape \(3, 3\)"):
        list(split(batch, 2, must=True))


def test_objects_are_not_cut() -> None:
    batch = parse(((X, object()), Y))
    assert odd_shape(batch) is not None
    assert batch.head(2) is batch


def test_samples_are_taken_by_number() -> None:
    some = parse(({"a": X, "flag": True}, Y)).take([5, 1])
    assert torch.equal(some.kwargs["a"], X[[5, 1]])
    assert some.kwargs["flag"] is True
    assert some.target.tolist() == [5, 1]
    assert some.size == 2


def test_floats_change_dtype_and_indices_do_not() -> None:
    batch = parse((X, Y)).to(torch.float32)
    assert batch.args[0].dtype == torch.float32
    assert batch.target.dtype == torch.int64


def test_an_input_by_which_a_model_differentiates_stays_one() -> None:
    x = X.clone().requires_grad_()
    assert parse((x, Y)).head(3).args[0].requires_grad
    brought = parse((x, Y)).to(torch.float64, torch.device("cpu"))
    assert brought.args[0].requires_grad
    assert brought.args[0].is_leaf


def test_models_may_ask_for_gradients_by_inputs_for_one_batch_only() -> None:
    x = X.clone()
    with inputs_kept((x,)):
        x.requires_grad_()
    assert not x.requires_grad
    with inputs_kept((x.requires_grad_(),)):
        pass
    assert x.requires_grad  # it was the user who asked


def test_checksums_tell_batches_and_their_order_apart() -> None:
    one, other = parse((X, Y)), parse((X, Y.flip(0)))
    assert checksum(one) == checksum(parse((X.clone(), Y.clone())))
    assert checksum(one) != checksum(other)
    assert checksum(one, checksum(other)) != checksum(other, checksum(one))


def test_logits_are_taken_out() -> None:
    z = torch.ones(2)
    assert logits_of({"logits": z}) is z
    assert logits_of(SimpleNamespace(logits=z)) is z
    assert logits_of(z) is z
    odd = {"logits": "none"}
    assert logits_of(odd) is odd


def test_a_model_that_fails_is_told_what_it_got() -> None:
    batch = parse((X, Y))

    def run() -> Tensor:
        with explained(batch):
            return nn.Linear(3, 1)(*batch.args)  # of another width

    with pytest.raises(UnsupportedModelError, match=r"\(7, 2\) torch.float64"):
        run()


def test_refusals_are_not_explained_again() -> None:
    def run() -> None:
        with explained(parse((X, Y))):
            raise ShapeError("as it was")

    with pytest.raises(ShapeError, match=r"^as it was$"):
        run()


def test_memory_and_content() -> None:
    batch = Batch((X,), {"more": [Z, {"inner": Y}]}, None, 7)
    assert [id(t) for t in tensors_in(batch.content)] == [id(X), id(Z), id(Y)]
    assert batch.nbytes == (14 + 21 + 7) * 8
