"""One batch: how it is read from what a loader gives, and cut into samples.

A batch is (inputs…, target), a dict with `labels` (every other entry goes to the model by keyword),
inputs alone, or an object that holds a graph and its labels.
"""

import copy
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from eigenscape.errors import (
    EigenscapeError,
    InvalidArgumentError,
    ShapeError,
    UnsupportedModelError,
    WrongTypeError,
)
from eigenscape.records import crc

# What may be among a batch's inputs without belonging to single samples.
_CUTTABLE = (Tensor, int, float, bool, str, bytes, type(None), torch.dtype, torch.device)
_OBJECT_LABELS = ("y", "labels", "targets")
LABEL_KEYS = ("labels", "label", "targets", "target")


@dataclass(frozen=True)
class Batch:
    """One call of the model and what its output is compared with.

    Attributes:
        args: Positional inputs of the model.
        kwargs: Keyword inputs of the model.
        target: The loss's second argument (None where there is no target).
        size: Number of samples.
        first: Index of this batch's first sample in all data, over all ranks.
        dim: Which dimension of the inputs counts samples; None where they cannot be told apart.
        label: The key of the target, where the batch was a dict.
        target_dim: Which dimension of the target counts samples, where its shape leaves that open.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any
    size: int
    first: int = 0
    dim: int | None = 0
    label: str | None = None
    target_dim: int | None = None

    @property
    def nbytes(self) -> int:
        """Memory of its tensors."""
        return sum(t.numel() * t.element_size() for t in tensors_in(self.content))

    def head(self, count: int) -> "Batch":
        """Return the first samples; all where the batch is no larger, or cannot be cut."""
        return next(iter(split(self, count, must=False)))

    def halves(self) -> Iterator["Batch"]:
        """Return two parts of unequal size, or the batch itself where it cannot be cut."""
        return split(self, max(1, min(self.size - 1, (2 * self.size + 2) // 3)), must=False)

    def take(self, rows: list[int]) -> "Batch":
        """Return some samples by their numbers; all where the batch cannot be cut."""
        if odd_shape(self):
            return self

        def rows_of(tensor: Tensor, dim: int) -> Tensor:
            return tensor.index_select(dim, torch.tensor(rows, device=tensor.device))

        return _picked(self, len(rows), rows_of)

    def to(self, dtype: torch.dtype, device: torch.device | None = None) -> "Batch":
        """Return the batch with its floating-point numbers in another dtype, and on one device."""
        here = device or next((t.device for t in tensors_in(self.content)), torch.device("cpu"))

        def move(tensor: Tensor) -> Tensor:
            # A tensor made in inference mode cannot be saved for a backward pass; its copy can.
            copy = tensor.clone() if tensor.is_inference() else tensor.detach()
            copy = copy.to(here, dtype) if copy.is_floating_point() else copy.to(here)
            # The model itself may differentiate with respect to an input.
            return copy.requires_grad_() if tensor.requires_grad else copy

        with torch.inference_mode(False):
            return self.mapped(move)

    def mapped(self, function: Callable[[Tensor], Tensor], **changes: Any) -> "Batch":
        """Return the batch with a function of each tensor in its place, and other changes."""
        args, kwargs, target = (_mapped(value, function) for value in self.content)
        return replace(self, args=args, kwargs=kwargs, target=target, **changes)

    def labelled(self, keyword: str | None) -> "Batch":
        """Return the batch with its target among the inputs, under a keyword if there is one."""
        return replace(self, kwargs={**self.kwargs, keyword: self.target}) if keyword else self

    @property
    def content(self) -> tuple[Any, ...]:
        """All that it holds."""
        return self.args, self.kwargs, self.target


def parse(raw: object, dim: int | None = 0, target_dim: int | None = None) -> Batch:
    """Tell inputs from target, and count the samples."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    target: Any = None
    label_key: str | None = None
    if isinstance(raw, Mapping):
        kwargs = {str(key): value for key, value in raw.items()}
        label_key = next((key for key in LABEL_KEYS if key in kwargs), None)
        target = kwargs.pop(label_key) if label_key else None
    elif isinstance(raw, tuple | list) and len(raw) > 1:
        *inputs, target = raw
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):
            kwargs = {str(key): value for key, value in inputs[0].items()}
        elif len(inputs) == 1 and isinstance(inputs[0], tuple | list) and not _is_named(inputs[0]):
            args = tuple(inputs[0])
        else:
            args = tuple(inputs)
    elif isinstance(raw, tuple | list) and len(raw) == 1:
        args = tuple(raw)
    elif isinstance(raw, Tensor):
        args = (raw,)
    elif (key := next((k for k in _OBJECT_LABELS if hasattr(raw, k)), None)) is not None:
        args, target = (raw,), getattr(raw, key)  # an object that holds a graph, or several
    else:
        raise WrongTypeError(
            "A batch must be (inputs…, target), a dict with 'labels', or a tensor; got "
            f"{type(raw).__name__}. Arrays become tensors by `torch.as_tensor`."
        )
    content = (args, kwargs, target)
    if dim:
        sizes = [t.shape[dim] for t in tensors_in((args, kwargs)) if t.ndim > dim]
    else:
        sizes = [t.shape[0] for t in tensors_in((target, args, kwargs)) if t.ndim > 0]
    if not sizes:
        raise ShapeError(
            "A batch must hold at least one tensor with a sample dimension; got none. "
            "Give inputs as (samples, …)."
        )
    return Batch(*content, size=sizes[0], dim=dim, label=label_key, target_dim=target_dim)


def split(batch: Batch, limit: int | None, *, must: bool) -> Iterator[Batch]:
    """Cut a batch into parts of at most `limit` samples."""
    if batch.size == 0:
        return
    if limit is None or batch.size <= limit:
        yield batch
        return
    if odd := odd_shape(batch):
        if not must:  # the default split of data that came at once is our idea, not the user's
            yield batch
            return
        raise InvalidArgumentError(
            f"`EmpiricalRisk(batch_size={limit})` must split a batch of {batch.size} samples, but "
            f"one of its tensors has shape {odd} and does not say how. "
            "Give smaller batches instead of `batch_size`."
        )
    for start in range(0, batch.size, limit):
        stop = min(start + limit, batch.size)
        yield sliced(batch, start, stop)


def odd_shape(batch: Batch) -> str | None:
    """Return the shape of a tensor that cannot be cut into samples, if there is one."""
    if not all(isinstance(leaf, _CUTTABLE) for leaf in _leaves(batch.content)):
        return "no tensor"
    tensors = tensors_in(batch.content)
    return next((str(tuple(t.shape)) for t in tensors if _dim_of(batch, t) is None), None)


def _dim_of(batch: Batch, tensor: Tensor) -> int | None:
    """Return the dimension of a tensor that counts the batch's samples, or None."""
    if batch.dim is None or tensor.is_nested:
        return None
    # Targets, and inputs such as lengths, may hold samples first where others do not.
    dims: tuple[int, ...] = (batch.dim, 0)
    if batch.target_dim is not None and any(tensor is t for t in tensors_in(batch.target)):
        dims = (batch.target_dim, *dims)
    fits = [d for d in dict.fromkeys(dims) if tensor.shape[d : d + 1] == (batch.size,)]
    return fits[0] if fits else None


def sliced(batch: Batch, start: int, stop: int) -> Batch:
    """Return the samples from one number up to another."""
    return _picked(batch, stop - start, lambda t, dim: t.narrow(dim, start, stop - start))


def _picked(batch: Batch, size: int, pick: Callable[[Tensor, int], Tensor]) -> Batch:
    """Take so many samples out of every tensor of a batch."""

    def some_of(tensor: Tensor) -> Tensor:
        some = pick(tensor, _dim_of(batch, tensor) or 0)
        # An input that requires gradients still does in the result.
        return some.detach().requires_grad_() if tensor.requires_grad else some

    return batch.mapped(some_of, size=size)


def checksum(batch: Batch, before: int = 0) -> int:
    """Return a checksum of a batch and of what came before it."""
    marks = [before, *(crc(tensor) for tensor in tensors_in(batch.content))]
    return zlib.crc32(repr(marks).encode())


def _mapped(value: Any, function: Any) -> Any:
    """Apply a function to every tensor in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return function(value)
    if not isinstance(value, type) and callable(getattr(value, "apply", None)):
        # A batch of graphs: an object that hands each of its tensors to a function.
        return copy.copy(value).apply(function)
    if isinstance(value, Mapping):
        return {key: _mapped(item, function) for key, item in value.items()}
    if _is_named(value):
        return type(value)(*(_mapped(item, function) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(_mapped(item, function) for item in value)
    return value


def _is_named(value: object) -> bool:
    """Tell whether a value is a named tuple, which is one argument and not several."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors among what nested tuples, lists and dicts hold."""
    return [leaf for leaf in _leaves(value) if isinstance(leaf, Tensor)]


def _leaves(value: Any) -> list[Any]:
    """Return what nested tuples, lists and dicts hold."""
    if isinstance(value, Mapping):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    if isinstance(value, tuple | list):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


@contextmanager
def explained(batch: Batch, *output: Any) -> Iterator[None]:
    """Say what a model, or a loss, was called with, where it fails for reasons of its own.

    Args:
        batch: What the model is called with.
        *output: What the model returned, if it is the loss that is called, with the batch's target.

    Yields:
        Nothing.

    Raises:
        UnsupportedModelError: In place of what the model or the loss raised.
        EigenscapeError: As it was, if it is a refusal already.
        OutOfMemoryError: As it was.
    """
    try:
        yield
    except (EigenscapeError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        said = f"and said: {type(error).__name__}: {error}."
        if output:
            args = ", ".join(map(_shown, (*output, batch.target)))
            raise UnsupportedModelError(
                f"The loss cannot be had of a batch; it was called with {args} {said} Expected a "
                "function of what the model returns and of the targets; if their first dimension "
                "does not count samples, pass `EmpiricalRisk(sample_dim=...)`."
            ) from error
        named = [f"{name}: {_shown(value)}" for name, value in batch.kwargs.items()]
        args = ", ".join([*map(_shown, batch.args), *named]) or "nothing"
        raise UnsupportedModelError(
            f"The model cannot run a batch; it was called with {args} {said} Expected batches "
            "(inputs…, target) whose inputs the model takes, in the dtype of its parameters."
        ) from error


def _shown(value: object) -> str:
    """Describe an input: its kind, and its shape."""
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {value.dtype}"
    return type(value).__name__


def logits_of(output: Any) -> Any:
    """Take the logits out of an object, a dict, or a pair (logits, loss) that holds them."""
    if type(output) is tuple and len(output) == 2:
        first, loss = output
        is_loss = loss is None or (isinstance(loss, Tensor) and loss.ndim == 0)
        return first if is_loss and isinstance(first, Tensor) and first.ndim > 1 else output
    is_mapping = isinstance(output, Mapping)
    logits = output.get("logits") if is_mapping else getattr(output, "logits", None)
    return logits if isinstance(logits, Tensor) else output


@contextmanager
def inputs_kept(inputs: Any) -> Iterator[None]:
    """Take back that a model asked for gradients by its inputs: the next batch is not its own."""
    free = [t for t in tensors_in(inputs) if not t.requires_grad]
    yield
    for tensor in free:
        if tensor.requires_grad and tensor.is_leaf:
            tensor.requires_grad_(False)
