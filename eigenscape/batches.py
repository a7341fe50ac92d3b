"""From whatever holds a user's data to a plain sequence of batches.

Accepted: a tuple or dict of tensors (all data at once), a `Dataset`, a `DataLoader`, or any
iterable of batches that can be walked more than once. A batch is (inputs…, target), a dict with
`labels` (every other entry goes to the model by keyword), or inputs alone.
"""

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from eigenscape.distributed import Ranks
from eigenscape.errors import (
    EigenscapeError,
    EmptySelectionError,
    InvalidArgumentError,
    ShapeError,
    UnsupportedModelError,
    WrongTypeError,
    require_count,
)
from eigenscape.files import crc

# Samples per batch where the data come without batches and the model does not say more: large
# enough for full GEMMs, small enough that activations stay in the hundreds of megabytes.
DEFAULT_BATCH_SIZE = 1024
# What the activations of one batch should take; the fewest samples in it, unless these would take
# more than so many bytes; and the most. Measured on two cores: LeNet5 runs alike with 250 to 1000
# samples at a time, a ResNet with 128 takes 0.7 of its time with 32, perceptrons want thousands.
_ACTIVATION_BYTES = {"cpu": 2**24, "cuda": 2**30}
_FEWEST_SAMPLES, _FEWEST_BYTES = {"cpu": 128, "cuda": 256}, {"cpu": 2**30, "cuda": 2**33}
_MOST_SAMPLES = {"cpu": 4096, "cuda": 65536}
_TRIAL_SAMPLES = 8
_UNSEEN = [0, 0]
_LABEL_KEYS = ("labels", "label", "targets", "target")


@dataclass(frozen=True)
class Batch:
    """One call of the model and what its output is compared with.

    Attributes:
        args: Positional inputs of the model.
        kwargs: Keyword inputs of the model.
        target: What the loss gets beside the output (None where there is no target).
        size: Number of samples.
        first: Number of samples before this batch's first one in all data, other ranks' too.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Any
    size: int
    first: int = 0

    @property
    def nbytes(self) -> int:
        """Memory of its tensors."""
        return sum(t.numel() * t.element_size() for t in _tensors(self._content))

    def head(self, count: int) -> "Batch":
        """Return the first samples; all where the batch is no larger, or cannot be cut."""
        return next(iter(_split(self, count, must=False)))

    @property
    def _content(self) -> tuple[Any, ...]:
        return self.args, self.kwargs, self.target


class BatchSource:
    """The batches of a data set, on one device in one dtype, the same at every pass.

    Several ranks are given the same data, and each takes its share: of tensors and of a `Dataset`
    a contiguous part of the samples, of loaders and lists every size-th batch.
    """

    def __init__(
        self,
        data: object,
        *,
        batch_size: int | None,
        device: torch.device,
        dtype: torch.dtype,
        keep_bytes: int,
        ranks: Ranks | None = None,
    ) -> None:
        """Look at the data; nothing is read yet.

        Args:
            data: What the user gave.
            batch_size: Most samples to process at a time; larger batches are split.
            device: Where batches go.
            dtype: What floating-point inputs and targets become.
            keep_bytes: Keep all batches in the device's memory if they need no more than this;
                otherwise they are read anew at every pass.
            ranks: The processes that share the data; one by default.
        """
        if batch_size is not None:
            require_count(batch_size, "EmpiricalRisk(batch_size=...)")
        self._ranks = ranks or Ranks()
        self._start, self._seen = 0, _UNSEEN
        self._deals = self._ranks.size > 1
        if self._deals and _is_numbered(data):
            data = self._part(data)
        self._raw, self._is_whole = _as_iterable(data, batch_size)
        self._must_split = batch_size is not None
        self._limit = DEFAULT_BATCH_SIZE if self._is_whole and batch_size is None else batch_size
        self._device, self._dtype, self._keep_bytes = device, dtype, keep_bytes
        self._kept: list[Batch] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all data came at once as plain tensors, so that two passes must agree."""
        return self._is_whole

    @property
    def is_fixed(self) -> bool:
        """Whether every pass sees the same batches in the same order, so that work can be kept."""
        return self._is_whole or self._kept is not None

    def __iter__(self) -> Iterator[Batch]:
        """Walk the batches, from memory where they were kept."""
        return iter(self._kept) if self._kept is not None else self.fresh()

    @property
    def versions(self) -> tuple[int, ...]:
        """How often data that stay were written to, as PyTorch counts it."""
        owners = self._raw if self._is_whole else [b._content for b in self._kept or ()]
        return tuple(0 if t.is_inference() else t._version for t in _tensors(list(owners)))

    def sample(self, count: int) -> Batch:
        """Return the first batch; no more than `count` of it where cutting was left to us."""
        first = next(iter(self))
        return first.head(count) if self.may_resize else first

    @property
    def seen(self) -> list[int]:
        """Samples and checksum of all data at the last pass, which must be alike on all ranks."""
        return self._seen

    def fresh(self) -> Iterator[Batch]:
        """Walk the user's data anew, whatever is kept; only this rank's share of them."""
        first, number, mark = self._start, 0, 0
        for raw in self._raw:
            whole = _parse(raw)
            if self._deals and self._is_whole:
                whole, first = self._cut(whole)
            elif self._deals:
                mark = _mark(whole, mark)
            for part in _split(whole, self._limit, must=self._must_split):
                if not self._deals or self._is_whole or self._is_own(number):
                    args, kwargs, target = _moved(part._content, self._device, self._dtype)
                    yield Batch(args, kwargs, target, part.size, first)
                first += part.size
                number += 1
        if self._deals and not self._is_whole:
            self._seen = [first, mark]
            self._require_enough(number)

    @property
    def may_resize(self) -> bool:
        """Whether all data came at once and nobody said how to cut them."""
        return self._is_whole and not self._must_split

    def samples_at_once(
        self, evaluate: Callable[[Batch], object], constants: Iterable[Tensor]
    ) -> int:
        """Choose a batch size from what a few samples leave for the backward pass.

        Args:
            evaluate: Builds the graph of a batch.
            constants: What is no activation.

        Returns:
            The number of samples. It depends on shapes alone, so the same model and data are always
            cut in the same way.
        """
        kind = self._device.type if self._device.type in _ACTIVATION_BYTES else "cpu"
        own = {tensor.untyped_storage().data_ptr() for tensor in constants}
        saved: dict[int, int] = {}

        def count(tensor: Tensor) -> Tensor:
            if tensor.untyped_storage().data_ptr() not in own:
                saved[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
            return tensor

        batch = self._head(_TRIAL_SAMPLES)
        try:
            with saved_tensors_hooks(count, lambda t: t):
                _graph = evaluate(batch)
        except Exception:  # whatever it is, the probe that follows meets it too, and says it
            return DEFAULT_BATCH_SIZE
        each = sum(saved.values()) / batch.size
        fit, bearable = (
            max(1, int(limit[kind] // max(each, 1.0)))
            for limit in (_ACTIVATION_BYTES, _FEWEST_BYTES)
        )
        return min(max(fit, min(_FEWEST_SAMPLES[kind], bearable)), _MOST_SAMPLES[kind])

    def _head(self, count: int) -> Batch:
        """Return the first samples; of data that cannot be cut, all."""
        part = _parse(next(iter(self._raw))).head(count)
        args, kwargs, target = _moved(part._content, self._device, self._dtype)
        return Batch(args, kwargs, target, part.size)

    def resize(self, limit: int) -> None:
        """Cut the data anew, into batches of equal size with about `limit` samples."""
        # Equal, since a short last batch runs slower and needs a trace of its own.
        whole = _parse(next(iter(self._raw)))
        own = len(self._ranks.share(whole.size)) if self._deals else whole.size
        self._limit = math.ceil(own / max(1, round(own / limit)))
        if self._kept is not None:
            self.keep()

    def keep(self) -> None:
        """Read all batches once and keep them, unless they are too large for one of the ranks."""
        with self._ranks.together():
            kept = self._fitting()
        fits = self._ranks.gather(kept is not None)
        self._kept = kept if all(fits) else None

    def _fitting(self) -> list[Batch] | None:
        kept, used = [], 0
        for batch in self.fresh():
            used += batch.nbytes
            if used > self._keep_bytes:
                return None
            kept.append(batch)
        if not kept:
            raise EmptySelectionError(
                "`EmpiricalRisk(data=...)` gave no batch. Expected at least one; check the "
                "loader's data set, its sampler and `drop_last`."
            )
        return kept

    def _part(self, data: Any) -> Dataset[Any]:
        """Take this rank's samples of a data set; others are not even read."""
        share = self._ranks.share(len(data))
        first = next(iter(DataLoader(data, batch_size=1)))
        self._start, self._seen, self._deals = share.start, [len(data), _mark(_parse(first))], False
        return Subset(data, share)

    def _cut(self, whole: Batch) -> tuple[Batch, int]:
        """Take this rank's samples of tensors that came at once."""
        if self._seen == _UNSEEN:
            self._seen = [whole.size, _mark(whole)]
        share = self._ranks.share(whole.size)
        if odd := _odd(whole):
            raise InvalidArgumentError(
                f"`EmpiricalRisk(data=...)` must share {whole.size} samples between "
                f"{self._ranks.size} processes, but one of the tensors has shape {odd} and does "
                "not say how. Give a list of batches."
            )
        return _sliced(whole, share.start, share.stop), share.start

    def _is_own(self, number: int) -> bool:
        return number % self._ranks.size == self._ranks.rank

    def _require_enough(self, number: int) -> None:
        if number < self._ranks.size:
            raise InvalidArgumentError(
                f"`EmpiricalRisk(data=...)` gave {number} batches for {self._ranks.size} "
                "processes. Start fewer of them, or give smaller batches (`batch_size=...`)."
            )


def _as_iterable(data: object, batch_size: int | None) -> tuple[Iterable[Any], bool]:
    """Return an iterable of raw batches, and whether it is one batch that holds everything."""
    if isinstance(data, Tensor):
        return [(data,)], True
    if isinstance(data, Mapping) and data:
        return [data], True
    if isinstance(data, tuple | list) and data and all(isinstance(x, Tensor) for x in data):
        return [tuple(data)], True
    if isinstance(data, TensorDataset) and type(data).__getitem__ is TensorDataset.__getitem__:
        return [tuple(data.tensors)], True  # nothing of its own happens to a sample: no loader
    if isinstance(data, Dataset) and not isinstance(data, DataLoader):
        return DataLoader(data, batch_size=batch_size or DEFAULT_BATCH_SIZE), False
    if isinstance(data, Iterator):
        raise WrongTypeError(
            f"`EmpiricalRisk(data=...)` walks the data many times; a {type(data).__name__} can be "
            "walked only once. Pass `list(data)`, a Dataset or a DataLoader."
        )
    if isinstance(data, Iterable) and not isinstance(data, str | bytes):
        return data, False
    raise WrongTypeError(
        "`EmpiricalRisk(data=...)` needs tensors (inputs, target), a Dataset, a DataLoader or a "
        f"list of batches; got {type(data).__name__}."
    )


def _parse(raw: object) -> Batch:
    """Tell inputs from target."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    target: Any = None
    if isinstance(raw, Mapping):
        kwargs = {str(key): value for key, value in raw.items()}
        label_key = next((key for key in _LABEL_KEYS if key in kwargs), None)
        target = kwargs.pop(label_key) if label_key else None
    elif isinstance(raw, tuple | list) and len(raw) > 1:
        *inputs, target = raw
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):
            kwargs = {str(key): value for key, value in inputs[0].items()}
        elif len(inputs) == 1 and isinstance(inputs[0], tuple | list):
            args = tuple(inputs[0])
        else:
            args = tuple(inputs)
    elif isinstance(raw, tuple | list) and len(raw) == 1:
        args = tuple(raw)
    elif isinstance(raw, Tensor):
        args = (raw,)
    else:
        raise WrongTypeError(
            "A batch must be (inputs…, target), a dict with 'labels', or a tensor; got "
            f"{type(raw).__name__}. Arrays become tensors by `torch.as_tensor`."
        )
    content = (args, kwargs, target)
    sizes = [t.shape[0] for t in _tensors((target, args, kwargs)) if t.ndim > 0]
    if not sizes:
        raise ShapeError(
            "A batch must hold at least one tensor with a sample dimension; got none. "
            "Give inputs as (samples, …)."
        )
    return Batch(*content, size=sizes[0])


def _split(batch: Batch, limit: int | None, *, must: bool) -> Iterator[Batch]:
    """Cut a batch into parts of at most `limit` samples."""
    if batch.size == 0:
        return
    if limit is None or batch.size <= limit:
        yield batch
        return
    if odd := _odd(batch):
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
        yield _sliced(batch, start, stop)


def _odd(batch: Batch) -> str | None:
    """Return the shape of a tensor that cannot be cut into samples, if there is one."""
    shapes = [tuple(t.shape) for t in _tensors(batch._content)]
    return next((str(shape) for shape in shapes if shape[:1] != (batch.size,)), None)


def _sliced(batch: Batch, start: int, stop: int) -> Batch:
    args, kwargs, target = _mapped(batch._content, lambda t: t[start:stop])
    return Batch(args, kwargs, target, stop - start)


def _mark(batch: Batch, before: int = 0) -> int:
    """Return a checksum of a batch and of what came before it."""
    marks = [before, *(crc(tensor) for tensor in _tensors(batch._content))]
    return zlib.crc32(repr(marks).encode())


def _is_numbered(data: object) -> bool:
    """Say whether data are a set from which samples are taken by their numbers."""
    plain = isinstance(data, TensorDataset) and type(data).__getitem__ is TensorDataset.__getitem__
    return isinstance(data, Dataset) and not plain and not isinstance(data, IterableDataset)


def _moved(content: tuple[Any, ...], device: torch.device, dtype: torch.dtype) -> tuple[Any, ...]:
    def move(tensor: Tensor) -> Tensor:
        # What was made in inference mode cannot be saved for a backward pass; a copy can.
        tensor = tensor.clone() if tensor.is_inference() else tensor.detach()
        return tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)

    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False):
            return tuple(_mapped(content, move))
    return tuple(_mapped(content, move))


def _mapped(value: Any, function: Any) -> Any:
    """Apply a function to every tensor in nested tuples, lists and dicts."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, function) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(item, function) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(_mapped(item, function) for item in value)
    return value


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [t for item in value.values() for t in _tensors(item)]
    if isinstance(value, tuple | list):
        return [t for item in value for t in _tensors(item)]
    return []


@contextmanager
def explained(batch: Batch) -> Iterator[None]:
    """Say what a model was called with, where it fails for reasons of its own.

    Args:
        batch: What it is called with.

    Yields:
        Nothing.

    Raises:
        UnsupportedModelError: In place of what the model raised.
        EigenscapeError: As it was, if it is a refusal already.
        OutOfMemoryError: As it was.
    """
    try:
        yield
    except (EigenscapeError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"The model cannot run a batch; it was called with {_shown(batch)} and said: "
            f"{type(error).__name__}: {error}. Expected batches (inputs…, target) whose inputs the "
            "model takes, in the dtype of its parameters."
        ) from error


def _shown(batch: Batch) -> str:
    """Describe the inputs of a batch: kinds and shapes."""

    def one(value: object) -> str:
        if isinstance(value, Tensor):
            return f"{tuple(value.shape)} {value.dtype}"
        return type(value).__name__

    named = [f"{name}: {one(value)}" for name, value in batch.kwargs.items()]
    return ", ".join([*map(one, batch.args), *named]) or "nothing"


def logits_of(output: Any) -> Any:
    """Take the logits out of an output object, a dict or a tuple that holds them."""
    is_mapping = isinstance(output, Mapping)
    found = output.get("logits") if is_mapping else getattr(output, "logits", None)
    return found if isinstance(found, Tensor) else output
