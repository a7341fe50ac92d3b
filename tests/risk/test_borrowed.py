"""Modules are given back as they came, object by object, whatever ran inside."""

from collections import OrderedDict, deque
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eigenscape.risk import memory_of
from eigenscape.risk.borrowed import (
    as_integers,
    borrowed,
    parts_of,
    same_bits,
    state_of,
    tensor_slots,
    written_among,
)
from eigenscape.risk.changes import address_of


class Busy(nn.Module):
    """It has one module under two names, and writes to everything that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.all = nn.ModuleList([self.a])
        self.register_buffer("mean", torch.zeros(3))
        self.plain = torch.ones(3)
        self.calls, self.log, self.seen = 0, [], {1}
        self.last, self.table = deque([0], maxlen=2), OrderedDict(first=1)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.log.append("called")
        self.seen.add(2)
        self.last.append(5)
        self.table["second"] = 2
        self.mean = x.mean(0)
        self.plain = None
        self.kept = h = torch.tanh(self.all[0](self.a(x)))
        self.a.register_forward_hook(lambda module, args, out: 2 * out)
        return h + (0 if self.plain is None else self.plain)


def shape_of(module: nn.Module) -> list[Any]:
    """Return all that a module and its parts hold, by identity and in order."""
    held: list[Any] = []
    for part in parts_of([module]):
        for key, value in vars(part).items():
            held.append((key, id(value)))
            if isinstance(value, dict):
                held += [(key, name, id(item)) for name, item in value.items()]
            elif isinstance(value, list | set | deque):
                held += [(key, item) for item in value]
    return held


# An interrupt is no Exception.
@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_everything_comes_back(error: type[BaseException] | None) -> None:
    model, x = Busy(), torch.randn(4, 3)
    before = shape_of(model)

    def run() -> None:
        with borrowed([model]):
            model(x)
            assert shape_of(model) != before
            if error is not None:
                raise error

    if error is None:
        run()
    else:
        with pytest.raises(error):
            run()
    assert shape_of(model) == before
    assert type(model.last) is deque
    assert model.last.maxlen == 2


def test_a_module_under_two_names_gets_one_value_in_both_and_keeps_its_parameters() -> None:
    model = Busy()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    weight, other = model.a.weight, torch.zeros(3, 3)
    with borrowed([model], {id(weight): other}):
        assert model.a.weight is other
        assert model.all[0].weight is other
    assert model.a.weight is weight
    assert model.all[0].weight is weight
    assert optimiser.param_groups[0]["params"][0] is weight
    assert isinstance(weight, nn.Parameter)


def test_tied_parameters_get_one_value_wherever_they_are() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    other = torch.ones(3, 3)
    with borrowed([model], {id(model[0].weight): other}):
        assert model[0].weight is model[1].weight is other
    assert model[0].weight is model[1].weight
    assert model[0].weight is not other


def test_every_place_is_walked_once() -> None:
    model = Busy()
    names = [name for _, name, _ in tensor_slots([model, model.a])]
    assert sorted(names) == ["bias", "mean", "plain", "weight"]


def test_state_leaves_out_what_has_no_bits_to_read() -> None:
    model = nn.Linear(2, 2)
    model.twin = model.weight
    model.sparse = torch.eye(2).to_sparse()
    model.nowhere = torch.ones(2, device="meta")
    assert {id(t) for t in state_of([model])} == {id(model.weight), id(model.bias)}


def test_bits_tell_what_numbers_do_not() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    assert same_bits(nan, nan.clone())
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(torch.ones(2), torch.ones(2).float())
    assert not same_bits(torch.ones(2), torch.ones(2, 1))
    assert not same_bits(torch.tensor([1, 2]), torch.tensor([1, 3]))
    assert same_bits(torch.tensor([1 + 2j]), torch.tensor([1 + 2j]))
    assert not same_bits(torch.tensor([1 + 2j]), torch.tensor([1 - 2j]))
    conjugate = torch.tensor([1 + 2j]).conj()
    assert same_bits(conjugate, torch.tensor([1 - 2j]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.bool])
def test_integers_follow_writes(dtype: torch.dtype) -> None:
    tensor = torch.zeros(3, dtype=dtype)
    seen = as_integers(tensor)
    tensor.data[1] = 1
    assert seen.count_nonzero() == 1


def test_what_was_written_is_found_by_its_copy() -> None:
    first, second, nan = torch.ones(2), torch.ones(2), torch.tensor([float("nan")])
    copies = {id(tensor): tensor.clone() for tensor in (first, second, nan)}
    copies[id(second)].mul_(-1)
    assert written_among([first, second, nan], copies) == [second]
    assert first.tolist() == second.tolist() == [1.0, 1.0]


def test_memory_is_known_by_its_place() -> None:
    whole = torch.zeros(4, 4)
    assert memory_of(whole[1:]) == memory_of(whole) == (whole.data_ptr(), 16 * 8)
    assert address_of(whole[1:]) == whole.data_ptr() + 4 * 8
    sparse = torch.eye(2).to_sparse()
    assert address_of(sparse) == id(sparse)
