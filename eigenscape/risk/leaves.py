"""What to differentiate by: leaves by the names of parameters, and flat gradients by them."""

from typing import Any, TypeAlias

import torch
from torch import Tensor

from eigenscape.errors import SelfTestError

Params: TypeAlias = dict[str, Tensor]


def leaf_copies(params: Params) -> Params:
    """Return new leaves that share the parameters' memory, so that `.grad` is never touched."""
    return {name: tensor.detach().requires_grad_() for name, tensor in params.items()}


def is_leaf(tensor: Tensor) -> bool:
    """Tell whether a user's tensor can be differentiated by as it is."""
    if tensor.is_inference() or not (tensor.is_leaf and tensor.requires_grad):
        return False
    return not tensor._backward_hooks


def flat_gradient(loss: Tensor, leaves: Params) -> Tensor:
    """Return the flat float64 gradient of a scalar; leaves that it does not use give zeros.

    Args:
        loss: The scalar.
        leaves: What to differentiate by.

    Returns:
        The gradient.

    Raises:
        SelfTestError: If an operation has no derivative, where PyTorch would take zero and warn.
    """
    _refuse_underived(loss)
    if not loss.requires_grad:
        return torch.cat([torch.zeros_like(leaf).flatten() for leaf in leaves.values()]).double()
    gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return torch.cat([gradient.flatten() for gradient in gradients]).double()


def _refuse_underived(loss: Tensor) -> None:
    """Refuse operations of extensions, or quantised ones, that came without a derivative."""
    visited: set[Any] = set()
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if str(node.name()).endswith("NotImplemented"):
            raise SelfTestError(
                "An operation in the model or the loss has no derivative: it is quantised, or of "
                "an extension that gave PyTorch none, and PyTorch would take zero for it. Use the "
                "model before it was quantised, or give the operation a derivative; if its result "
                "is meant to be constant, `detach` it in the model."
            )
        waiting += [following for following, _ in node.next_functions]
