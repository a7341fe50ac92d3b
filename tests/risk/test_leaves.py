"""What is differentiated by, and gradients that forget no parameter."""

import pytest
import torch
from torch import nn

from eigenscape.risk import flat_gradient, leaf_copies
from eigenscape.risk.leaves import is_leaf


def test_copies_are_new_leaves_on_the_same_memory() -> None:
    own = nn.Parameter(torch.randn(2, 3))
    own.grad = torch.ones(2, 3)
    copy = leaf_copies({"weight": own})["weight"]
    assert copy is not own
    assert copy.is_leaf
    assert copy.requires_grad
    assert copy.data_ptr() == own.data_ptr()
    copy.sum().backward()
    assert torch.equal(own.grad, torch.ones(2, 3))  # the user's own gradient is not touched


def test_a_frozen_parameter_has_a_copy_that_is_not() -> None:
    own = nn.Parameter(torch.ones(2), requires_grad=False)
    assert leaf_copies({"p": own})["p"].requires_grad
    assert not own.requires_grad


def test_what_can_be_differentiated_by_as_it_is() -> None:
    p = nn.Parameter(torch.ones(2))
    assert is_leaf(p)
    assert not is_leaf(2 * p)
    assert not is_leaf(torch.ones(2))
    with torch.inference_mode():
        made = torch.ones(2)
    assert not is_leaf(made)
    handle = p.register_hook(lambda grad: 0 * grad)  # it would change what comes back
    assert not is_leaf(p)
    handle.remove()
    assert is_leaf(p)


def test_gradients_are_flat_float64_in_the_order_of_the_leaves() -> None:
    leaves = leaf_copies({"b": torch.ones(2).float(), "a": torch.full((1, 2), 3.0).float()})
    found = flat_gradient((leaves["a"] ** 2).sum() + 5 * leaves["b"].sum(), leaves)
    assert found.dtype == torch.float64
    assert found.tolist() == [5.0, 5.0, 6.0, 6.0]


@pytest.mark.parametrize("is_connected", [True, False])
def test_what_a_loss_does_not_use_gives_zeros(is_connected: bool) -> None:
    leaves = leaf_copies({"used": torch.ones(2), "unused": torch.ones(3)})
    loss = leaves["used"].sum() if is_connected else torch.tensor(4.0)
    expected = [1.0, 1.0, 0, 0, 0] if is_connected else [0.0] * 5
    assert flat_gradient(loss, leaves).tolist() == expected
