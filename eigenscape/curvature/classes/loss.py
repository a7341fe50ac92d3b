"""Refuse losses whose labels are not classes, and targets that are not class indices."""

import functools

from torch import nn

from eigenscape.errors import UnsupportedModelError
from eigenscape.risk import BinaryCrossEntropy, CallableLoss, CrossEntropy, Loss


def require_class_loss(loss: Loss, call: str) -> CrossEntropy:
    """Return the loss if its labels are classes, else refuse.

    Args:
        loss: The risk's loss.
        call: The user's call, for the message.

    Returns:
        The same loss.

    Raises:
        UnsupportedModelError: If it is no `CrossEntropy`.
    """
    if isinstance(loss, CrossEntropy):
        return loss
    advice = "`GaussNewton` and `KroneckerHessian` know no classes, and take it."
    if isinstance(loss, BinaryCrossEntropy):
        advice = (
            "Of one logit z return logits (0, z) for the two classes and use `CrossEntropy()`: the "
            "same Gauss-Newton matrix."
        )
    elif isinstance(loss, CallableLoss):
        advice = (
            "Pass `CrossEntropy()` or `torch.nn.CrossEntropyLoss()`, and a model that returns "
            "logits."
        )
    raise UnsupportedModelError(
        f"`{call}` needs the loss `CrossEntropy`, whose labels are classes; got {_name(loss)}. "
        f"{advice}"
    )


def require_class_indices(is_index: bool, call: str) -> None:
    """Refuse targets that are probabilities, as `CrossEntropy.aligned` tells.

    Args:
        is_index: Whether they are class indices.
        call: The user's call, for the message.

    Raises:
        UnsupportedModelError: If they are not.
    """
    if not is_index:
        raise UnsupportedModelError(
            f"`{call}` needs class indices as targets; got probabilities, which give a sample no "
            "class. Pass `target.argmax(1)`."
        )


def _name(loss: Loss) -> str:
    """Name what the user passed, which may be inside a `CallableLoss`."""
    function = loss.function if isinstance(loss, CallableLoss) else loss
    if isinstance(function, functools.partial):  # the loss module is an argument
        function = next((arg for arg in function.args if isinstance(arg, nn.Module)), function.func)
    name = getattr(function, "__qualname__", None)
    return type(function).__name__ if name is None else f"the function `{name}`"
