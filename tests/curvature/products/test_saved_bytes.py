"""The memory of a graph is what it saves for the way back."""

import pytest
import torch
from torch import Tensor

from eigenscape.curvature.products.saved_bytes import saved_bytes

X = torch.randn(100, dtype=torch.float64)
W = torch.randn(100, dtype=torch.float64).requires_grad_()


def test_what_one_product_saves_is_counted() -> None:
    assert saved_bytes(lambda: W * X) == 800  # the slope by W is X; X needs none


def test_memory_that_is_saved_twice_counts_once() -> None:
    h = W.detach().clone().requires_grad_()
    assert saved_bytes(lambda: h * h) == 800
    assert saved_bytes(lambda: (h * X) + (X[:50].repeat(2) * h)) == 1600  # X, and the repeated half


def test_a_deeper_graph_saves_more() -> None:
    def deep() -> Tensor:
        h = W
        for _ in range(5):
            h = torch.tanh(h)
        return h

    assert saved_bytes(deep) == 5 * 800


def test_nothing_is_saved_without_a_graph() -> None:
    with torch.no_grad():
        assert saved_bytes(lambda: torch.tanh(W) * W) == 0
    assert saved_bytes(lambda: X * X) == 0


def test_under_transforms_all_results_are_counted_instead() -> None:
    def transformed() -> object:
        return torch.func.grad(lambda w: torch.tanh(w).sum())(W.detach())

    assert 800 <= saved_bytes(transformed) <= 20 * 800


def test_failures_of_the_computation_are_its_own() -> None:
    def fail() -> None:
        raise RuntimeError("out of something")

    with pytest.raises(RuntimeError, match="out of something"):
        saved_bytes(fail)


def test_it_leaves_no_hooks_behind() -> None:
    saved_bytes(lambda: W * X)
    changed = W.detach().clone().requires_grad_() * 1.0
    loss = (changed * changed).sum()
    changed.data.mul_(2)
    with torch.no_grad():
        changed.mul_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
