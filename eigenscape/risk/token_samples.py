"""Each token of a language model as a sample of its own.

Letters: N sequences of T positions, V words, K tokens that are kept.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from eigenscape.errors import (
    EmptySelectionError,
    InvalidArgumentError,
    ShapeError,
    UnsupportedModelError,
    WrongTypeError,
)
from eigenscape.risk.batch import Batch, explained, logits_of
from eigenscape.risk.parameters import eval_mode

_CALL = "token_samples(model, inputs, targets)"


class TokenLogits(nn.Module):
    """A language model that returns its logits at one position of each sequence.

    Attributes:
        model: The language model; its layer "fc1" is "model.fc1" here.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs_and_positions: Tensor) -> Tensor:
        """Return the logits (K, V) at the positions (K,), which come after the model's inputs."""
        *inputs, positions = inputs_and_positions
        logits: Tensor = logits_of(self.model(*inputs))
        return logits[torch.arange(len(positions), device=positions.device), positions]


def token_samples(
    model: nn.Module,
    inputs: Tensor | tuple[Tensor, ...],
    targets: Tensor,
    *,
    ignore_index: int = -100,
    classes: Sequence[int] | Tensor | None = None,
) -> tuple[TokenLogits, tuple[Tensor, ...]]:
    """Make each token of a language model a sample, for what needs samples of one class each.

    `ClassKronecker`, `KhatriRao`, `backpropagated_errors`, `class_span` and `kronecker_spectra`
    take outputs (samples, classes), a language model returns (N, T, V). Here a sample is a whole
    sequence with the number of one position, its output the logits there: attention and recurrence
    stay as they are, and so do risk, gradient, Hessian and Gauss-Newton matrix. A layer inside has
    T positions in every sample, treated as those of a convolution; so its inputs are averaged over
    all of them, also those that the token does not see.

    The model is not copied: its layer "fc1" is "model.fc1" of the module that is returned.

    Cost: one forward pass of the first sequence. Each sequence is then kept, and evaluated, once
    for each of its tokens: up to T times where it was once.

    Args:
        model: It returns logits (N, T, V), or an object or dict with `logits`.
        inputs: What it is called with, (N, …); a tuple where it takes several.
        targets: The label of each position (N, T), class indices. For a text `x` whose labels are
            not yet shifted pass `x[:, :-1]` and `x[:, 1:]`.
        ignore_index: The label of positions that are left out.
        classes: Keep only tokens with these labels, for example frequent ones. The softmax is still
            over all V words; the risk is then the mean over the tokens that are kept.

    Returns:
        A module, and data (inputs…, positions, targets) for it: `EmpiricalRisk(module,
        CrossEntropy(), data)`. Tokens are in the order of sequences and positions.

    Raises:
        WrongTypeError: If the model is no `nn.Module`, or something else is no tensor.
        ShapeError: If targets are not (N, T), or `classes` no list.
        UnsupportedModelError: If the model cannot run, or its output is not (N, T, V).
        InvalidArgumentError: If a label or class is out of range.
        EmptySelectionError: If no token is left.

    Examples:
        Four words with equal logits; the second position of the first sequence has no label.

        >>> from eigenscape.risk.losses import CrossEntropy
        >>> from eigenscape.risk.empirical_risk import EmpiricalRisk
        >>> model = torch.nn.Sequential(torch.nn.Embedding(4, 3), torch.nn.Linear(3, 4))
        >>> for p in model[1].parameters(): _ = torch.nn.init.zeros_(p)
        >>> x, y = torch.tensor([[0, 1], [2, 3]]), torch.tensor([[1, -100], [3, 0]])
        >>> module, data = token_samples(model, x, y)
        >>> [part.tolist() for part in data]
        [[[0, 1], [2, 3], [2, 3]], [0, 0, 1], [1, 3, 0]]
        >>> risk = EmpiricalRisk(module, CrossEntropy(), data)
        >>> round(risk.value(), 6), risk.space.names[1]  # log 4
        (1.386294, 'model.1.weight')

    References:
        Papyan §6 and §7, whose samples have one class each.
    """
    args = inputs if isinstance(inputs, tuple) else (inputs,)
    _require_tensors(model, args, targets)
    num_words = _num_words(model, args, targets.shape[1])
    labels = targets.long()
    kept = labels != ignore_index
    _require_range(labels[kept], num_words, "targets", f"or {ignore_index} where there is none")
    if classes is not None:
        wanted = _indices(classes).to(labels)
        _require_range(wanted, num_words, "classes=...", "words of the model")
        kept &= torch.isin(labels, wanted)
    if not bool(kept.any()):
        among = "" if classes is None else " among `classes`"
        raise EmptySelectionError(
            f"`{_CALL}` found no token with a label{among} in targets of shape "
            f"{tuple(labels.shape)}. Check `ignore_index` and `classes`."
        )
    rows, positions = kept.nonzero(as_tuple=True)
    copies = (tensor[rows.to(tensor.device)] for tensor in args)
    return TokenLogits(model), (*copies, positions, labels[kept])


def _require_tensors(model: nn.Module, args: tuple[Tensor, ...], targets: Tensor) -> None:
    if not isinstance(model, nn.Module):
        raise WrongTypeError(f"`{_CALL}` needs an nn.Module; got {type(model).__name__}.")
    for name, value in (*(("inputs", tensor) for tensor in args), ("targets", targets)):
        if not isinstance(value, Tensor):
            raise WrongTypeError(
                f"`{_CALL}` needs tensors; got {type(value).__name__} as {name}. Pass "
                f"`torch.as_tensor({name})`."
            )
    if targets.ndim != 2 or not _is_integer(targets):
        raise ShapeError(
            f"`{_CALL}` needs targets (N, T), a class index for each position; got "
            f"{tuple(targets.shape)} of {targets.dtype}."
        )
    sizes = [tensor.shape[0] if tensor.ndim else 0 for tensor in (*args, targets)]
    if len(set(sizes)) > 1 or not sizes[-1]:
        raise ShapeError(
            f"`{_CALL}` needs one sequence of inputs for each row of targets, and one or more; got "
            f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]}."
        )


def _num_words(model: nn.Module, args: tuple[Tensor, ...], length: int) -> int:
    """Return V, by running the first sequence with the model in eval mode."""
    like = next(model.parameters(), torch.zeros(()))
    first = tuple(
        tensor[:1].to(like.device, like.dtype if tensor.is_floating_point() else tensor.dtype)
        for tensor in args
    )
    with eval_mode(model), torch.no_grad(), explained(Batch(first, {}, None, 1)):
        logits = logits_of(model(*first))
    if isinstance(logits, Tensor) and logits.ndim == 3 and logits.shape[:2] == (1, length):
        return logits.shape[2]
    got = type(logits).__name__
    if isinstance(logits, Tensor):
        got = f"{tuple(logits.shape)} for one sequence with {length} targets"
    raise UnsupportedModelError(
        f"`{_CALL}` needs a model with an output (N, T, V), logits of each position; got {got}. "
        f"{_advice(logits, length)}"
    )


def _advice(logits: Any, length: int) -> str:
    if isinstance(logits, Tensor) and logits.ndim == 3:
        if logits.shape[2] == length:
            return "Wrap the model so that it returns `logits.mT`, with the words last."
        return "Give a target for each position, `ignore_index` where there is no label."
    if isinstance(logits, Tensor) and logits.ndim == 2 and len(logits) == 1:
        return "With one output for each sequence, a sequence is a sample as it is."
    return "Wrap the model so that it returns the logits of every position, and them alone."


def _require_range(labels: Tensor, num_words: int, name: str, more: str) -> None:
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < num_words:
        raise InvalidArgumentError(
            f"`token_samples({name})` needs class indices from 0 to {num_words - 1}, {more}; got "
            f"{int(labels.min())} to {int(labels.max())}."
        )


def _indices(classes: Sequence[int] | Tensor) -> Tensor:
    try:
        indices = torch.as_tensor(classes)
    except (TypeError, ValueError, RuntimeError):
        indices = None
    if indices is None or (indices.numel() and not _is_integer(indices)):
        got = type(classes).__name__ if indices is None else f"numbers of {indices.dtype}"
        raise WrongTypeError(
            "`token_samples(classes=...)` needs class indices, a list or a tensor of integers; got "
            f"{got}."
        )
    if indices.ndim != 1:
        raise ShapeError(
            "`token_samples(classes=...)` needs class indices in one list; got shape "
            f"{tuple(indices.shape)}. Of pairs (class, count) pass `[c for c, _ in pairs]`."
        )
    return indices


def _is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
