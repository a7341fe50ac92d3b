"""Somebody's own tensors, moved in place and given back bit by bit."""

import copy

import pytest
import torch
from torch import Tensor, nn

from eigenscape.selftest import displaced


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().contiguous().view(torch.int64)


def test_tensors_move_where_they_are() -> None:
    model = nn.Linear(2, 1)
    weight = model.weight.detach().clone()
    x, way = torch.tensor([[1.0, 2.0]]), torch.tensor([[10.0, 100.0]])
    before = model(x)
    with displaced([model.weight]) as move:
        move([way], 0.5)
        assert (model(x) - before).item() == pytest.approx(105.0)  # whoever holds it sees it
        move([way.flatten()], -0.5)  # from where it was, not from where it is
        torch.testing.assert_close(model.weight.data, weight - 0.5 * way)
    assert torch.equal(model.weight, weight)


# KeyboardInterrupt is no Exception: an `except Exception` would not have put anything back.
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_every_bit_comes_back_after(error: type[BaseException]) -> None:
    odd = [0.1, -0.0, float("nan"), float("inf"), 5e-324, 1e300, 1 / 3]
    p = nn.Parameter(torch.tensor(odd))
    before = bits(p)

    def fail() -> None:
        with displaced([p]) as move:
            for step in (0.1, -0.1, 1e-7):
                move([torch.full((7,), 0.7)], step)
            assert not torch.equal(bits(p), before)
            raise error

    with pytest.raises(error):
        fail()
    assert torch.equal(bits(p), before)


def test_a_direction_that_does_not_fit_leaves_nothing_moved() -> None:
    first, second = torch.ones(2), torch.ones(3)
    with pytest.raises((RuntimeError, ValueError)), displaced([first, second]) as move:
        move([torch.ones(2), torch.ones(5)], 1.0)  # the first has moved when the second fails
    assert torch.equal(first, torch.ones(2))
    assert torch.equal(second, torch.ones(3))


def test_graphs_that_were_kept_hold_again() -> None:
    p = nn.Parameter(torch.tensor([1.0, 2.0]))
    loss, version = p.pow(3).sum(), p._version
    with displaced([p]) as move:
        move([torch.ones(2)], 0.1)
    assert p._version == version
    (slope,) = torch.autograd.grad(loss, p)  # PyTorch refuses a graph whose tensors were written
    torch.testing.assert_close(slope, 3 * p.detach() ** 2)


def test_flags_gradients_and_storage_stay() -> None:
    p = nn.Parameter(torch.randn(3, 2).T)  # not contiguous
    p.grad = torch.ones(2, 3)
    state = (p.requires_grad, p.is_leaf, p.data_ptr(), p.stride(), copy.deepcopy(p.grad))
    with displaced([p]) as move:
        move([torch.ones(2, 3)], 1.0)
    now = (p.requires_grad, p.is_leaf, p.data_ptr(), p.stride(), p.grad)
    assert now[:4] == state[:4]
    assert torch.equal(now[4], state[4])


def test_float32_moves_by_a_float64_direction() -> None:
    p = torch.ones(2, dtype=torch.float32)
    with displaced([p]) as move:
        move([torch.tensor([1.0, -1.0], dtype=torch.float64)], 0.25)
        assert p.tolist() == [1.25, 0.75]
    assert p.dtype == torch.float32
