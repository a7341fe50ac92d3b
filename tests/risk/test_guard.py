"""A model and its loss may write to themselves as they like: nothing of it stays."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from eigenscape.risk.guard import Guard


class Busy(nn.Module):
    """It counts its calls in a number, a buffer in place and a buffer exchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(2, 2), 0
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        with torch.no_grad():
            self.count += 1
        self.mean = x.mean(0)
        return self.layer(x) + self.count.detach()


X = torch.ones(3, 2, dtype=torch.float64)


def learned(
    *roots: Callable[..., object], run: Callable[[], object], given: Sequence[Tensor] = ()
) -> Guard:
    guard = Guard(roots)
    with guard.learning(list), guard.inside({id(t): t.detach() for t in given}):
        run()
    return guard


def test_what_is_written_in_place_is_learned() -> None:
    model = Busy()
    guard = learned(model, run=lambda: model(X))
    assert [t is model.count for t in guard.written] == [True]
    assert model.calls == 0
    assert model.count.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_each_evaluation_starts_from_the_same_state(error: type[BaseException] | None) -> None:
    model = Busy()
    guard = learned(model, run=lambda: model(X))
    before = {name: id(b) for name, b in model.named_buffers()}

    def evaluate() -> Tensor:
        with guard.inside({}):
            out = model(X)
            if error is not None:
                raise error
        return out

    if error is None:
        assert torch.equal(evaluate(), evaluate())
    else:
        with pytest.raises(error):
            evaluate()
    assert {name: id(b) for name, b in model.named_buffers()} == before
    assert model.count.tolist() == model.mean.tolist() == [0.0, 0.0]
    assert model.calls == 0


def test_tensors_stand_in_for_the_modules_own() -> None:
    model = nn.Linear(2, 2, bias=False)
    guard, other = Guard([model]), torch.zeros(2, 2, requires_grad=True)
    with guard.inside({id(model.weight): other}):
        out = model(X)
    assert not out.any()
    (slope,) = torch.autograd.grad(out.sum(), other)
    assert torch.equal(slope, torch.full((2, 2), 3.0))


def test_modules_that_a_loss_holds_are_guarded_too() -> None:
    model, penalised = nn.Linear(2, 2), Busy()

    def loss(z: Tensor) -> Tensor:
        return z.sum() + penalised(X).sum()

    guard = learned(model, loss, run=lambda: loss(model(X)))
    assert any(t is penalised.count for t in guard.written)
    with guard.inside({id(penalised.layer.weight): torch.zeros(2, 2)}):
        assert not penalised.layer.weight.any()
        loss(model(X))
    assert penalised.calls == 0
    assert penalised.count.tolist() == [0.0, 0.0]


def test_a_first_look_protects_parameters_from_the_model() -> None:
    class Rude(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            self.weight.data.mul_(2)
            return x * self.weight

    model = Rude()
    learned(model, run=lambda: model(X), given=[model.weight])  # a leaf shares its memory
    assert model.weight.tolist() == [1.0, 1.0]


def test_modules_are_found_anew_after_an_exchange() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    guard, new = Guard([model]), nn.Linear(2, 2)
    model[0] = new
    guard.find_modules()
    with guard.inside({id(new.weight): torch.zeros(2, 2)}):
        assert not model[0].weight.any()
    assert model[0].weight is new.weight


def test_float64_stands_in_for_all_of_a_float32_model() -> None:
    model = Busy().float()
    guard = learned(model, run=lambda: model(X.float()))
    with guard.in_float64():
        assert guard.stand_ins
        with guard.inside({}):
            assert model(X).dtype == torch.float64
            assert model.count.tolist() == [1.0, 1.0]  # of a copy: nothing adds up
    assert not guard.stand_ins
    assert model.layer.weight.dtype == model.count.dtype == torch.float32
    assert model.count.tolist() == [0.0, 0.0]
