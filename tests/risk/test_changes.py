"""Whatever may change the function is noticed, and nothing else is."""

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eigenscape.risk import Snapshot
from eigenscape.risk.changes import Contents, Watch

CPU = torch.device("cpu")


# --- bits ---


def _by_numpy(t: Tensor) -> None:
    t.detach().numpy()[0] = 7.0


WRITES: dict[str, Callable[[Tensor], object]] = {
    "in place": lambda t: t.detach().mul_(2),
    "through data": lambda t: t.data.mul_(2),
    "by numpy": _by_numpy,
    "through a view": lambda t: t.data.view(2, -1)[1].zero_(),
    "negated": lambda t: t.data.neg_(),  # a sum of such bits may be what it was
    "reordered": lambda t: t.data.copy_(t.flip(0).clone()),  # any sum is what it was
    "the sign of zero": lambda t: t.data[3:].copy_(torch.tensor([-0.0])),
    "not a number": lambda t: t.data[3:].fill_(float("nan")),
    "the last bit": lambda t: t.data[:1].copy_(torch.nextafter(t[:1], 2 * t[:1])),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", WRITES)
def test_every_write_shows_in_the_bits(name: str, dtype: torch.dtype) -> None:
    tensor = torch.tensor([1.0, 2.0, 3.0, 0.0], dtype=dtype)
    contents = Contents([torch.ones(3), tensor])
    assert not contents.differ(CPU)
    WRITES[name](tensor)
    assert contents.differ(CPU)


def test_equal_bits_written_again_are_no_change() -> None:
    tensor = torch.tensor([1.0, float("nan"), -0.0])
    contents = Contents([tensor])
    tensor.copy_(tensor.clone())
    assert contents.have_moved()  # PyTorch counted a write
    assert not contents.differ(CPU)


def test_two_tensors_that_trade_their_numbers_are_seen() -> None:
    first, second = torch.ones(2), torch.zeros(2)
    contents = Contents([first, second])
    first.data, second.data = second.data.clone(), first.data.clone()
    assert contents.have_moved()


def test_counting_writes_looks_at_no_entries() -> None:
    tensor = torch.ones(3)
    contents = Contents([tensor])
    assert not contents.have_moved()
    tensor.data[0] = 2.0
    assert not contents.have_moved()  # PyTorch does not count these
    tensor[0] = 3.0
    assert contents.have_moved()


@pytest.mark.parametrize("made", [torch.ones(()), torch.ones(0), torch.ones(2, 0), torch.eye(3).T])
def test_tensors_of_any_shape_are_remembered(made: Tensor) -> None:
    contents = Contents([made])
    assert not contents.differ(CPU)
    made.data.mul_(2)
    assert bool(contents.differ(CPU)) is (made.numel() > 0)


def test_of_large_data_some_rows_are_compared() -> None:
    data = torch.zeros(1000, 8)
    contents = Contents([data], most_bytes=data.nbytes // 10)
    data.data[1] = 1.0  # not among them
    assert not contents.differ(CPU)
    data.data[:] = 1.0
    assert contents.differ(CPU)


def test_sparse_tensors_do_not_disturb() -> None:
    contents = Contents([torch.eye(3).to_sparse(), torch.ones(2, device="meta")])
    assert not contents.have_moved()
    assert not contents.differ(CPU)


# --- objects ---

SCALE = 2.0
SETTINGS = {"power": 2}


def helper(x: Tensor) -> Tensor:
    return x * SCALE


class Net(nn.Module):
    factor = 1.5

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        self.power, self.steps, self.options = 1, [1, 2], {"on": True}
        self.inner = SimpleNamespace(gain=1.0)

    def forward(self, x: Tensor) -> Tensor:
        return helper(self.layers(x)) ** self.power * self.factor


def _exchange(net: Net) -> None:
    net.layers[1] = nn.GELU()


OBJECTS: dict[str, Callable[[Net], object]] = {
    "a number": lambda net: setattr(net, "power", 2),
    "a new attribute": lambda net: setattr(net, "more", 2),
    "no attribute any more": lambda net: delattr(net, "inner"),
    "a module": _exchange,
    "a hook": lambda net: net.layers[0].register_forward_hook(lambda m, a, out: 2 * out),
    "a hook before": lambda net: net.register_forward_pre_hook(lambda m, a: None),
    "a list": lambda net: net.steps.append(3),
    "an item of a list": lambda net: net.steps.__setitem__(0, 9),
    "a dict": lambda net: net.options.update(on=False),
    "an object inside": lambda net: setattr(net.inner, "gain", 3.0),
    "a flag": lambda net: net.layers[1].train(False),
    "another forward": lambda net: setattr(net, "forward", lambda x: x),
    "a parameter": lambda net: setattr(net.layers[0], "bias", nn.Parameter(torch.ones(2))),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_changed_objects_are_noticed(name: str) -> None:
    net = Net()
    watch = Watch([net])
    net(torch.ones(1, 2))
    assert not watch.changes()
    OBJECTS[name](net)
    assert watch.changes()


def test_a_global_that_a_function_names_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch([Net()])
    monkeypatch.setitem(globals(), "SCALE", 3.0)  # named by a function that forward calls
    assert watch.changes()


def test_a_constant_of_the_class_and_its_code_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch([Net()])
    monkeypatch.setattr(Net, "factor", 2.5)
    assert watch.changes()
    watch = Watch([Net()])
    monkeypatch.setattr(Net, "forward", lambda self, x: x)
    assert watch.changes()


def test_what_functions_hold_is_watched() -> None:
    weight, state, gain = 1.0, {"power": 2}, [3.0]

    def loss(z: Tensor, y: Tensor, scale: list[float] = gain) -> Tensor:
        return weight * (z - y) ** state["power"] * scale[0]

    bound = functools.partial(loss, y=torch.ones(2))
    watch = Watch([bound])
    assert any(torch.equal(t, torch.ones(2)) for t in watch.tensors)
    state["power"] = 3
    assert watch.changes()
    watch = Watch([bound])
    weight = 2.0
    assert watch.changes()
    watch = Watch([bound])
    gain[0] = 4.0
    assert watch.changes()


def test_a_list_that_was_empty_is_watched() -> None:
    penalties: list[float] = []
    loss = lambda z: z.sum() + sum(penalties)
    watch = Watch([loss])
    penalties.append(1.0)
    assert watch.changes()


def test_an_equal_number_is_no_change() -> None:
    net = Net()
    watch = Watch([net])
    net.inner.gain, net.power = float("1.0"), int("1")
    assert not watch.changes()


def test_names_that_do_not_matter_are_left_out() -> None:
    net = Net()
    watch = Watch([net], ignored=("training",))
    net.eval()
    assert not watch.changes()


def test_circles_and_large_containers_end() -> None:
    net = Net()
    net.owner = [net]
    net.table = {number: [number] for number in range(10_000)}  # data, no settings
    watch = Watch([net])
    assert net in watch.modules
    net.table[5].append(1)
    assert not watch.changes()


def test_tensors_and_modules_are_found_wherever_they_are_held() -> None:
    net, penalty = Net(), torch.ones(3)
    loss = lambda z: (z * penalty).sum() + net.layers[0].weight.sum()
    watch = Watch([loss])
    assert any(t is penalty for t in watch.tensors)
    assert {id(m) for m in net.modules()} <= {id(m) for m in watch.modules}


# --- both ---


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.calls, self.scale = nn.Parameter(torch.ones(2)), 0, 1.0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.scale * x * self.weight


def snapshot(model: nn.Module, data: Tensor) -> Snapshot:
    return Snapshot(list(model.parameters()), [data], [model])


def test_what_evaluating_writes_to_is_settled_and_other_changes_are_not() -> None:
    model, data = Counting(), torch.ones(2)
    kept = snapshot(model, data)
    model(data)
    assert kept.is_counted_as_changed()
    kept.settle()
    for _ in range(3):
        model(data)
        assert not kept.is_counted_as_changed()
    model.scale = 2.0
    assert kept.is_counted_as_changed()
    assert kept.is_another_function()


def test_parameters_move_and_the_function_stays() -> None:
    model, data = Counting(), torch.ones(2)
    kept = snapshot(model, data)
    with torch.no_grad():
        model.weight.mul_(2)
    assert kept.is_counted_as_changed()
    assert kept.differs(CPU)
    assert not kept.is_another_function()


@pytest.mark.parametrize("write", [lambda t: t.mul_(2), lambda t: t.data.mul_(2)])
def test_data_and_captured_tensors_are_part_of_the_function(write: Callable[[Any], object]) -> None:
    for number in range(2):
        captured, data = torch.ones(2), torch.ones(2)
        function: Any = lambda p, x, captured=captured: p * x * captured
        kept = Snapshot([torch.ones(2)], [data], [function])
        assert not kept.is_another_function()
        write((captured, data)[number])
        assert kept.differs(CPU)
        assert kept.is_another_function()
