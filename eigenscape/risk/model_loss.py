"""The loss that a model returns itself, and how models that do so are called.

Models of Hugging Face, and many others, take labels by keyword and return their loss, in an object,
a dict or a tuple.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eigenscape.errors import ShapeError, UnsupportedModelError, WrongTypeError, require_choice
from eigenscape.risk.batch import LABEL_KEYS, Batch, logits_of, tensors_in
from eigenscape.risk.losses import CallableLoss, Loss, Noise, OutputProduct

COUNTS = ("labels", "next labels", "samples")
IGNORED = -100
_CAUSAL = ("ForCausalLM", "LMHeadModel")


def _no_curvature(what: str) -> str:
    return (
        f"{what} need a loss that is a known function of the model's output; the loss that the "
        "model returns itself is not the cross-entropy of its logits alone. Use `Hessian(risk)`, "
        "or choose `CrossEntropy(next_token=...)` (`--loss next-token` or `same-token`), which "
        "leaves out what the model adds."
    )


@dataclass(frozen=True, eq=False)
class ModelLoss(Loss):
    """The loss that the model returns, as `.loss`, as `["loss"]`, or as the one number.

    Labels are given back to the model by keyword. Where its loss turns out to be the mean of
    cross-entropies, on all data, the risk uses `CrossEntropy` in its place, and all matrices are
    available. Otherwise only `Hessian` and the Hessians of layers are, which need no more than the
    loss; `GaussNewton` and `Fisher` need to know which function of the output it is.

    Attributes:
        count: What the mean of a batch was divided by: "labels" (all that are not -100), "next
            labels" (all but the first of each sequence) or "samples". By default all are
            tried, and one is taken for which a batch is the sum of its parts.
    """

    count: str | None = None
    obstacle = _no_curvature("Parts of the Hessian")

    def __post_init__(self) -> None:
        """Refuse a count that has no meaning."""
        if self.count is not None:
            require_choice(self.count, COUNTS, "ModelLoss(count=...)")

    def total(self, output: Tensor, target: Any) -> tuple[Tensor, Tensor]:
        """Return the mean times the number of terms, and that number."""
        if not isinstance(output, Tensor) or output.ndim > 0:
            raise WrongTypeError(
                "`ModelLoss()` works within `EmpiricalRisk(model, ModelLoss(), data)`, which reads "
                f"the loss of the model's output; got a {type(output).__name__} as the loss."
            )
        number = number_of(target, self.count or "labels")
        count = torch.tensor(float(number), dtype=torch.float64, device=output.device)
        # A mean of nothing is NaN.
        return (output * number if number else output.new_zeros(())), count

    def hessian_at(self, output: Tensor, target: Tensor) -> OutputProduct:
        """Refuse: what the model returns is its loss, and no output from which the loss is made."""
        raise UnsupportedModelError(_no_curvature("Gauss-Newton and Fisher matrices"))

    def drawn_output_gradient(self, output: Tensor, target: Tensor, noise: Noise) -> Tensor:
        """Refuse, as `hessian_at`."""
        raise UnsupportedModelError(_no_curvature("Fisher matrices"))

    def term_dims(self, output: Tensor, target: Tensor) -> tuple[int, ...]:
        """Refuse, as `hessian_at`."""
        raise UnsupportedModelError(_no_curvature("Single terms"))


def number_of(target: Any, count: str) -> int:
    """Count the terms of a loss by its labels.

    Args:
        target: The labels.
        count: One of the ways of `ModelLoss`.

    Returns:
        The number.

    Raises:
        ShapeError: If there is no tensor among them.
    """
    tensors = [t for t in tensors_in(target) if t.ndim > 0]
    if not tensors:
        raise ShapeError(
            "`ModelLoss()` counts terms by the labels; there is no tensor with samples among them."
        )
    labels = tensors[0]
    if count == "samples":
        return labels.shape[0]
    if count == "next labels" and labels.ndim > 1:
        labels = labels[:, 1:]
    if labels.is_floating_point():
        return labels.numel()
    return int((labels != IGNORED).sum())


def read(loss: Loss, output: Any) -> Any:
    """Take out of what a model returned what a loss compares with the target.

    Args:
        loss: The loss.
        output: What the model returned.

    Returns:
        The model's own loss for `ModelLoss`; everything for a function of the user's own that takes
        it; else the logits, where the output is an object that has them.

    Raises:
        UnsupportedModelError: If the model returned no loss, and its own is wanted.
    """
    if isinstance(loss, CallableLoss) and loss.takes_whole:
        return output
    if not isinstance(loss, ModelLoss):
        return logits_of(output)
    model_loss = loss_in(output)
    if model_loss is None:
        raise UnsupportedModelError(
            f"`ModelLoss()` (`--loss model`) needs a model that returns its loss, as `.loss` or "
            f"`['loss']`, where it is given labels; this one returned a {type(output).__name__} "
            f"without. Batches need labels under the keyword that the model takes, such as "
            "'labels'; or choose a loss such as `CrossEntropy()`."
        )
    return model_loss


def loss_in(output: Any) -> Tensor | None:
    """Find the loss in what a model returned.

    Args:
        output: An object, a mapping, a tuple, or the loss alone.

    Returns:
        One real number that may be it, or None.
    """
    loss: Any = output
    if isinstance(output, Mapping):
        loss = output.get("loss")
    elif isinstance(output, Tensor):
        loss = output if output.ndim == 0 else None
    elif isinstance(output, tuple | list) and not hasattr(output, "loss"):
        numbers = [t for t in output if isinstance(t, Tensor) and t.numel() == 1 and t.ndim < 2]
        loss = numbers[0] if len(numbers) == 1 else None
    else:
        loss = getattr(output, "loss", None)
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        return None
    return loss.reshape(())


# --- what kind of model it is ---------------------------------------------------------------------


def is_causal(model: object) -> bool:
    """Tell whether a model is known to predict the next token, by the names that libraries use.

    Args:
        model: The model, or a module that wraps it.

    Returns:
        Whether it is.
    """
    for module in _unwrapped(model):
        named = type(module).__name__.endswith(_CAUSAL)
        if named or getattr(module, "loss_type", None) == "ForCausalLM":
            return not getattr(getattr(module, "config", None), "is_encoder_decoder", False)
    return False


def _unwrapped(model: object) -> Iterator[object]:
    """Walk from a module to those that it hands all arguments to: in parallel, or with adapters."""
    module: Any = model
    for _ in range(4):
        yield module
        kinds = {p.kind for p in _taken_by(module).values()}
        base = getattr(module, "get_base_model", None)
        inner = base() if callable(base) else getattr(module, "module", None)
        hands_on = inspect.Parameter.VAR_KEYWORD in kinds
        if not isinstance(inner, nn.Module) or inner is module or not hands_on:
            return
        module = inner


def _taken_by(module: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(module.forward).parameters
    except (AttributeError, TypeError, ValueError):
        return {}


def label_keyword(model: object, batch: Batch) -> str | None:
    """Find the keyword by which a model takes labels.

    Args:
        model: The model.
        batch: A batch; its labels go back under the key that they came with.

    Returns:
        The keyword, or None if it takes none.
    """
    if not isinstance(model, nn.Module) or batch.target is None:
        return None
    names = [batch.label] if batch.label else list(LABEL_KEYS)
    for module in _unwrapped(model):
        taken = _taken_by(module)
        if keyword := next((name for name in names if name in taken), None):
            return keyword
    kinds = {p.kind for p in _taken_by(model).values()}
    return batch.label if inspect.Parameter.VAR_KEYWORD in kinds else None


def makes_decoder_inputs(model: object, batch: Batch) -> bool:
    """Tell whether a model needs labels to run: its decoder's inputs are the labels, moved by one.

    Without them some models fail, and others feed the encoder's inputs to the decoder.

    Args:
        model: The model.
        batch: What it is called with.

    Returns:
        Whether it is an encoder-decoder model, and the batch has no inputs for its decoder.
    """
    inputs = {"decoder_input_ids", "decoder_inputs_embeds", "encoder_outputs"} & set(batch.kwargs)
    configs = (getattr(module, "config", None) for module in _unwrapped(model))
    return not inputs and any(getattr(c, "is_encoder_decoder", False) for c in configs)
