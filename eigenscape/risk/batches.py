"""From whatever holds a user's data to a plain sequence of batches.

Accepted: a tuple or dict of tensors (all data at once), a `Dataset`, a `DataLoader`, or any
iterable of batches that can be walked more than once. A batch is (inputs…, target), a dict with
`labels` (every other entry goes to the model by keyword), or inputs alone.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from eigenscape.errors import (
    EmptySelectionError,
    InvalidArgumentError,
    WrongTypeError,
    require_count,
)
from eigenscape.parallel import Ranks
from eigenscape.risk.batch import Batch, checksum, odd_shape, parse, sliced, split, tensors_in
from eigenscape.risk.borrowed import memory_of
from eigenscape.risk.changes import address_of

# Samples per batch where the data come without batches and the model does not say more: large
# enough for full GEMMs, small enough that activations stay in the hundreds of megabytes.
DEFAULT_BATCH_SIZE = 1024
# Memory for the activations of one batch; the fewest samples in a batch, as long as their
# activations fit `_FEWEST_BYTES`; and the most samples. Measured on two cores: LeNet5 is as fast
# with 250 as with 1000 samples, a ResNet with 128 takes 0.7 of its time with 32, and perceptrons
# are fastest with thousands.
_ACTIVATION_BYTES = {"cpu": 2**24, "cuda": 2**30}
_FEWEST_SAMPLES, _FEWEST_BYTES = {"cpu": 128, "cuda": 256}, {"cpu": 2**30, "cuda": 2**33}
_MOST_SAMPLES = {"cpu": 4096, "cuda": 65536}
_TRIAL_SAMPLES = 8
_UNSEEN = [0, 0]
# A stream of unknown length that is longer than this counts as endless.
_LONGEST_BYTES, _LONGEST_BATCHES, _LONGEST_SAMPLES = 2**33, 100_000, 1_000_000

# How many batches are evaluated together once, without a graph, to see that they add up.
_SEVERAL = 8


class BatchSource:
    """The batches of a data set, on one device in one dtype, the same at every pass.

    Several ranks are given the same data, and each takes its share: of tensors and of a `Dataset`
    a contiguous part of the samples, of loaders and lists every size-th batch.

    Attributes:
        is_whole: Whether all data came at once as plain tensors, so that two passes must agree.
        seen: Samples and checksum of all data at the last pass, which must be alike on all ranks.
    """

    def __init__(
        self,
        data: object,
        *,
        batch_size: int | None,
        device: torch.device,
        dtype: torch.dtype,
        keep_bytes: int,
        sample_dim: int | None = 0,
        ranks: Ranks | None = None,
    ) -> None:
        """Look at the data; nothing is read yet.

        Args:
            data: What the user gave.
            batch_size: Most samples to process at a time; larger batches are split.
            sample_dim: The dimension of the inputs that counts samples; None never to cut.
            device: Where batches go.
            dtype: What floating-point inputs and targets become.
            keep_bytes: Keep all batches in the device's memory if they need no more than this;
                otherwise they are read anew at every pass.
            ranks: The processes that share the data; one by default.
        """
        if batch_size is not None:
            require_count(batch_size, "EmpiricalRisk(batch_size=...)")
        self._ranks = ranks or Ranks()
        self._start, self.seen = 0, _UNSEEN
        self._deals = self._ranks.size > 1
        if self._deals and _is_numbered(data):
            data = self._part(data)
        self._data = data
        self._raw, self.is_whole = _as_iterable(data, batch_size)
        self._is_in_memory = self.is_whole or isinstance(data, tuple | list)
        self._must_split = batch_size is not None
        self._dim = _checked_dim(sample_dim, batch_size)
        self._target_dim: int | None = None
        self._limit = DEFAULT_BATCH_SIZE if self.may_resize else batch_size
        self._device, self._dtype, self._keep_bytes = device, dtype, keep_bytes
        self._kept: list[Batch] | None = None
        self._keyword: str | None = None

    @property
    def is_fixed(self) -> bool:
        """Whether every pass sees the same batches in the same order, so that work can be kept."""
        return self.is_whole or self._kept is not None

    def __iter__(self) -> Iterator[Batch]:
        """Walk the batches, from memory where they were kept."""
        return iter(self._kept) if self._kept is not None else self.fresh()

    @property
    def tensors_of_others(self) -> list[Tensor]:
        """The tensors that hold the data and that somebody else may write to."""
        owners = list(self._raw) if self._is_in_memory else [b.content for b in self._kept or ()]
        return [t for t in tensors_in(owners) if not t.is_inference()]

    @property
    def is_cut(self) -> bool:
        """Whether batches are smaller than what the user gave, or were made here."""
        if self._loader_is_ours:
            return True
        return self._limit is not None and any(
            self._parsed(raw).size > self._limit for raw in self._given()
        )

    def some(self, count: int) -> Iterator[Batch]:
        """Walk some batches: evenly spread ones of those that are kept, else the first."""
        kept = self._kept or ()
        if len(kept) <= count:
            yield from itertools.islice(self, count)
            return
        for number in range(count):
            yield kept[number * (len(kept) - 1) // (count - 1)]

    def regrouped(self) -> Iterator[tuple[Batch, list[Batch]]]:
        """Walk groups of samples with their parts.

        Where batches were cut here: groups of twice their size in chunks of unequal sizes, since
        batches of equal size may hide a difference, then some groups of several batches. Otherwise
        each batch with its two halves.

        Yields:
            The samples as one batch, and the same samples in chunks.
        """
        if self._limit is None:
            yield from ((batch, list(batch.halves())) for batch in self)
            return
        for group in self._grouped(2 * self._limit):
            for chunk in split(self._parsed(group), 2 * self._limit, must=False):
                pair = self._brought(chunk, 0)
                first, *others = split(pair, self._limit, must=False)
                halves = [half for batch in others or [first] for half in batch.halves()]
                yield pair, [first, *halves] if others else halves
        for group in itertools.islice(self._grouped(_SEVERAL * self._limit), _SEVERAL):
            several = self._brought(self._parsed(group).head(_SEVERAL * self._limit), 0)
            yield several, list(split(several, self._limit, must=False))

    def give_labels(self, keyword: str) -> None:
        """Hand out batches whose targets are inputs of the model too, from now on."""
        self._keyword = keyword
        if self._kept is not None:
            self._kept = [batch.labelled(keyword) for batch in self._kept]

    def uncut(self) -> None:
        """Take data that came at once as one batch, and do not cut it for other ends either."""
        self._limit = self._dim = None
        if self._kept is not None:
            self.keep()

    @property
    def _loader_is_ours(self) -> bool:
        """Whether the data are a set of samples, and the loader was made here."""
        return not self.is_whole and self._raw is not self._data

    def _grouped(self, size: int) -> Iterable[Any]:
        """Walk groups of a size where the loader is ours, else what the user gave."""
        return _loader(self._raw.dataset, size) if self._loader_is_ours else self._given()

    def _given(self) -> Iterable[Any]:
        """Walk what the user gave, where a second look costs no reading."""
        return self._raw if self._is_in_memory or self._must_split else ()

    def _brought(self, chunk: Batch, first: int) -> Batch:
        brought = chunk.to(self._dtype, self._device)
        return replace(brought, first=first).labelled(self._keyword)

    def sample(self, count: int) -> Batch:
        """Return the first batch; no more than `count` of it where cutting was left to us."""
        first = next(iter(self))
        return first.head(count) if self.may_resize else first

    def fresh(self) -> Iterator[Batch]:
        """Walk the user's data anew, whatever is kept; only this rank's share of them."""
        first, number, mark = self._start, 0, 0
        for raw in self._raw:
            batch = self._parsed(raw)
            if self._deals and self.is_whole:
                batch, first = self._cut(batch)
            elif self._deals:
                mark = checksum(batch, mark)
            for chunk in split(batch, self._limit, must=self._must_split):
                is_own = number % self._ranks.size == self._ranks.rank
                if not self._deals or self.is_whole or is_own:
                    yield self._brought(chunk, first)
                first += chunk.size
                number += 1
        if self._deals and not self.is_whole:
            self.seen = [first, mark]
            if number < self._ranks.size:
                raise InvalidArgumentError(
                    f"`EmpiricalRisk(data=...)` gave {number} batches for {self._ranks.size} "
                    "processes. Start fewer of them, or give smaller batches (`batch_size=...`)."
                )

    @property
    def may_resize(self) -> bool:
        """Whether all data came at once and nobody said how to cut them."""
        return self.is_whole and not self._must_split

    def samples_at_once(
        self, evaluate: Callable[[Batch], object], constants: Iterable[Tensor]
    ) -> int:
        """Choose a batch size from what a few samples leave for the backward pass.

        Args:
            evaluate: Builds the graph of a batch.
            constants: Tensors that are not activations.

        Returns:
            The number of samples. It depends on shapes alone, so the same model and data are always
            cut in the same way.
        """
        kind = self._device.type if self._device.type in _ACTIVATION_BYTES else "cpu"
        constant_memory = {memory_of(tensor)[0] for tensor in constants}
        saved: dict[int, int] = {}

        def count(tensor: Tensor) -> Tensor:
            if memory_of(tensor)[0] not in constant_memory:
                saved[address_of(tensor)] = tensor.numel() * tensor.element_size()
            return tensor

        batch = self.head(_TRIAL_SAMPLES)
        try:
            with saved_tensors_hooks(count, lambda t: t):
                _graph = evaluate(batch)
        except Exception:  # the probe that follows raises the same error, with a message
            return DEFAULT_BATCH_SIZE
        each = sum(saved.values()) / batch.size
        fit, bearable = (
            max(1, int(limit[kind] // max(each, 1.0)))
            for limit in (_ACTIVATION_BYTES, _FEWEST_BYTES)
        )
        return min(max(fit, min(_FEWEST_SAMPLES[kind], bearable)), _MOST_SAMPLES[kind])

    def count_targets_along(self, dim: int) -> None:
        """Take a dimension for that of the targets' samples, where shapes leave it open."""
        self._target_dim = dim
        if self._kept is not None:
            self.keep()

    def _parsed(self, raw: object) -> Batch:
        return parse(raw, self._dim, self._target_dim)

    def head(self, count: int) -> Batch:
        """Return the first samples; of data that cannot be cut, all."""
        return self._brought(self._parsed(next(iter(self._raw))).head(count), 0)

    def resize(self, limit: int) -> None:
        """Cut the data anew, into batches of equal size with about `limit` samples."""
        # Equal, since a short last batch runs slower and needs a trace of its own.
        batch = self._parsed(next(iter(self._raw)))
        num_local = len(self._ranks.share(batch.size)) if self._deals else batch.size
        self._limit = math.ceil(num_local / max(1, round(num_local / limit)))
        if self._kept is not None:
            self.keep()

    def keep(self) -> None:
        """Read all batches once and keep them, unless they are too large for one of the ranks."""
        with self._ranks.together():
            kept = self._fitting()
        fits = self._ranks.gather(kept is not None)
        self._kept = kept if all(fits) else None

    def _fitting(self) -> list[Batch] | None:
        kept: list[Batch] = []
        used, samples, has_end = 0, 0, _has_length(self._data)
        for number, batch in enumerate(self.fresh()):
            used, samples = used + batch.nbytes, samples + batch.size
            if used > self._keep_bytes and has_end:
                return None
            if used <= self._keep_bytes:
                kept.append(batch)
            is_long = number >= _LONGEST_BATCHES or samples > _LONGEST_SAMPLES
            if not has_end and (is_long or used > _LONGEST_BYTES):
                raise InvalidArgumentError(
                    f"`EmpiricalRisk(data=...)` gave {samples} samples and no end so far; a "
                    f"{type(self._data).__name__} does not say its length. Pass a part of it, e.g. "
                    "`list(itertools.islice(data, 100))`, or give it a `__len__`."
                )
        if used > self._keep_bytes:
            return None
        if not kept:
            raise EmptySelectionError(
                "`EmpiricalRisk(data=...)` gave no batch. Expected at least one; check the "
                "loader's data set, its sampler and `drop_last`."
            )
        return kept

    def _part(self, data: Any) -> Dataset[Any]:
        """Take this rank's samples of a data set; others are not even read."""
        share = self._ranks.share(len(data))
        first = next(iter(_loader(data, 1)))
        self._start, self._deals = share.start, False
        self.seen = [len(data), checksum(parse(first))]
        return Subset(data, share)

    def _cut(self, batch: Batch) -> tuple[Batch, int]:
        """Take this rank's samples of tensors that came at once."""
        if self.seen == _UNSEEN:
            self.seen = [batch.size, checksum(batch)]
        share = self._ranks.share(batch.size)
        if odd := odd_shape(batch):
            raise InvalidArgumentError(
                f"`EmpiricalRisk(data=...)` must share {batch.size} samples between "
                f"{self._ranks.size} processes, but one of the tensors has shape {odd} and does "
                "not say how. Give a list of batches."
            )
        return sliced(batch, share.start, share.stop), share.start


def _as_iterable(data: Any, batch_size: int | None) -> tuple[Any, bool]:
    """Return an iterable of raw batches, and whether it is one batch that holds everything."""
    if isinstance(data, Tensor):
        return [(data,)], True
    if isinstance(data, Mapping) and data:
        return [data], True
    if isinstance(data, tuple | list) and data and all(isinstance(x, Tensor) for x in data):
        if isinstance(data, list):
            _require_inputs_and_target(data)
        return [tuple(data)], True
    if isinstance(data, tuple) and _is_pair(data):
        return [data], True
    if _is_tensors(data):
        return [tuple(data.tensors)], True  # its items are rows of the tensors: no loader is needed
    has_rows = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if isinstance(data, Dataset) or (has_rows and not isinstance(data, Iterable)):
        return _loader(data, batch_size), False
    if hasattr(data, "with_format") and hasattr(data, "__getitem__"):  # a Hugging Face data set
        return _loader(data.with_format("torch"), batch_size), False
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


def _loader(data: Dataset[Any], batch_size: int | None) -> DataLoader[Any]:
    """Read a data set in order, without drawing from the user's random numbers."""
    generator = torch.Generator()
    return DataLoader(data, batch_size=batch_size or DEFAULT_BATCH_SIZE, generator=generator)


def _require_inputs_and_target(tensors: list[Tensor]) -> None:
    """Refuse a list that may as well hold batches without labels."""
    first = tensors[0]
    if len(tensors) > 1 and all(
        t.dtype == first.dtype and t.ndim == first.ndim and t.shape[1:] == first.shape[1:]
        for t in tensors
    ):
        raise InvalidArgumentError(
            f"`EmpiricalRisk(data=[...])` got a list of {len(tensors)} tensors alike, of shape "
            f"{tuple(first.shape)} and so on; they may be inputs and target, or batches of inputs. "
            "Pass a tuple `(inputs, target)` for the first, a list of tuples "
            "`[(batch,), (batch,), ...]` for the second."
        )


def _is_pair(data: tuple[Any, ...]) -> bool:
    """Say whether data are several inputs, in a mapping or a tuple, and a target."""
    inputs, target = data if len(data) == 2 else (None, None)
    return isinstance(inputs, Mapping | tuple) and isinstance(target, Tensor)


def _is_tensors(data: object) -> bool:
    """Say whether data are tensors in a `TensorDataset`, and no subclass that changes its items."""
    return isinstance(data, TensorDataset) and type(data).__getitem__ is TensorDataset.__getitem__


def _has_length(data: object) -> bool:
    """Say whether data know how many they are; a loader of a stream has `__len__` and does not."""
    try:
        len(data)  # type: ignore[arg-type]  # whether it has one is the question
    except TypeError:
        return False
    return True


def _is_numbered(data: object) -> bool:
    """Say whether data are a set from which samples are taken by their numbers."""
    has_numbers = isinstance(data, Dataset) and not isinstance(data, IterableDataset)
    return has_numbers and not _is_tensors(data)


def _checked_dim(sample_dim: object, batch_size: int | None) -> int | None:
    if sample_dim is None:
        if batch_size is not None:
            raise InvalidArgumentError(
                "`EmpiricalRisk(sample_dim=None)` says that samples cannot be told apart; got "
                f"batch_size={batch_size} with it. Leave one of them out."
            )
        return None
    return require_count(sample_dim, "EmpiricalRisk(sample_dim=...)", at_least=0)
