"""What a user may bring as a loss: one of ours, one of PyTorch's, or a function."""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape.errors import InvalidArgumentError, WrongTypeError
from eigenscape.risk.losses import (
    BinaryCrossEntropy,
    CallableLoss,
    CrossEntropy,
    Loss,
    SquaredError,
)


def as_loss(loss: Any, reduction: str = "mean") -> Loss:
    """Return a `Loss` for anything a user may bring.

    Args:
        loss: One of ours, one of PyTorch's (four are translated, so that they are normalised over
            all data), or any callable of (output, target).
        reduction: That of the risk.

    Returns:
        The loss.

    Raises:
        WrongTypeError: If it is not callable, or is a class instead of an object.
        InvalidArgumentError: If a PyTorch loss is a sum and the risk is none, or has weights.

    Examples:
        >>> as_loss(nn.MSELoss())
        SquaredError(factor=1.0, average='elements')
    """
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, type):
        what = f"needs a loss object; got the class {loss.__name__}. Write `{loss.__name__}()`."
        raise WrongTypeError(f"`EmpiricalRisk(loss=...)` {what}")
    known = isinstance(loss, nn.CrossEntropyLoss | nn.MSELoss | nn.BCEWithLogitsLoss | nn.NLLLoss)
    is_sum = isinstance(loss, nn.Module) and getattr(loss, "reduction", None) == "sum"
    if is_sum and not (known and reduction == "sum"):
        raise InvalidArgumentError(
            f"`{type(loss).__name__}(reduction='sum')` is ambiguous over batches. Leave the mean "
            "here, and use `EmpiricalRisk(..., reduction='sum')` to sum over all data."
        )
    if known:
        return _translated(loss)
    if callable(loss):
        return CallableLoss(loss)
    raise WrongTypeError(
        "`EmpiricalRisk(loss=...)` needs a loss such as `CrossEntropy()` or a function of "
        f"(output, target); got {type(loss).__name__}."
    )


def _translated(loss: nn.Module) -> Loss:
    if isinstance(loss, nn.CrossEntropyLoss):
        # PyTorch's convention, so that (n, c, d) outputs are never read the other way round.
        return CrossEntropy(loss.weight, loss.ignore_index, loss.label_smoothing, 1, False)
    if isinstance(loss, nn.MSELoss):
        return SquaredError(factor=1.0, average="elements")
    if isinstance(loss, nn.NLLLoss):
        return CallableLoss(functools.partial(_log_likelihood, loss), takes_whole=False)
    if loss.weight is not None:
        raise InvalidArgumentError(
            "`BCEWithLogitsLoss(weight=...)` weighs elements by position. Use `positive_weight=` "
            "of `BinaryCrossEntropy`, or return the pair (sum of terms, number of terms)."
        )
    return BinaryCrossEntropy(loss.pos_weight)


def _log_likelihood(loss: nn.NLLLoss, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    weight = None if loss.weight is None else loss.weight.to(output)
    total = F.nll_loss(output, target, weight, ignore_index=loss.ignore_index, reduction="sum")
    kept = target[target != loss.ignore_index]
    return total, torch.tensor(
        float(kept.numel()), dtype=torch.float64
    ) if weight is None else weight[kept].double().sum()
