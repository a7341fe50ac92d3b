"""A few samples that stand for all: from batches that differ, and different ones of each batch."""

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from eigenscape.risk.batch import Batch, tensors_in
from eigenscape.risk.batches import BatchSource

# A sum over more samples has more kinks, and its finite differences are less accurate.
_MOST_AT_A_TIME, _MOST_GROUPS = 32, 5
# Never one sample: PyTorch 2.13's gradient of BatchNorm2d is wrong for a single channels-last image
# on a CPU.
_FEWEST = 2
# How many batches are chosen for their lengths: the fullest, the longest and the shortest.
_MOST_LENGTHS = 3


def telling_samples(batches: BatchSource, most: int, *, together: bool = False) -> list[Batch]:
    """Choose groups of samples: of the first and last batch, with most and fewest targets, padded.

    A problem may show only in the last batch, or only where few targets count.

    Args:
        batches: All batches; they are walked once.
        most: About how many samples to choose in all; at least two are, where there are two.
        together: Whether samples influence each other, so that a few alone are not representative:
            then there are fewer groups, as large as possible.

    Returns:
        The groups, each of one batch; a batch that cannot be cut is taken whole.
    """
    chosen = telling_batches(batches)
    # A single batch whose samples have unlike numbers of targets gives two groups: one with its
    # fullest samples, one with its emptiest.
    if len(chosen) == 1 and len(set(_targets_per_sample(chosen[0]))) > 1:
        chosen = chosen * 2
    least = _MOST_AT_A_TIME if together else _FEWEST
    # Batches of other lengths are always included: a model may take another branch for them.
    lengths = len({_length(batch) for batch in chosen[:_MOST_LENGTHS]})
    chosen = chosen[: max(lengths, min(_MOST_GROUPS, most // least))]
    each = max(least, min(_MOST_AT_A_TIME, most // len(chosen)))
    groups = []
    for number, batch in enumerate(chosen):
        is_second = any(batch is other for other in chosen[:number])
        rows = _rows(batch, each, fullest_first=not is_second)
        groups.append(batch if batch.size <= each else batch.take(rows))
    return groups[:1] if len(groups) == 2 and groups[0] is groups[1] else groups


def telling_batches(batches: BatchSource) -> list[Batch]:
    """Choose up to seven batches that differ, most targets first, then lengths; walks them once."""
    best: dict[str, tuple[int, Batch]] = {}
    for batch in batches:
        count, length = sum(_targets_per_sample(batch)), _length(batch)
        scores = {
            "fullest": count,
            "longest": length,
            "shortest": -length,
            "padded": _num_repeated(batch),
            "emptiest": -count,
        }
        best.setdefault("first", (0, batch))
        best["last"] = 0, batch
        for name, score in scores.items():
            if name not in best or score > best[name][0]:
                best[name] = score, batch
    if not best:
        return []
    # That first which contributes most, then those of other lengths.
    length = _length(best["fullest"][1])
    unlike = [name for name in ("longest", "shortest") if _length(best[name][1]) != length]
    ordered = [
        best[name][1] for name in ("fullest", *unlike, "last", "padded", "first", "emptiest")
    ]
    return list({id(batch): batch for batch in ordered}.values())


def other_samples(batches: BatchSource, most: int) -> Iterator[Batch]:
    """Walk all samples in groups of at most so many; of several batches, a few groups of each."""
    several = sum(1 for _ in islice(batches, 2)) > 1
    for batch in batches:
        starts = range(0, batch.size, max(most, 1))
        for start in starts[:2] if several else starts:
            rows = list(range(start, min(start + most, batch.size)))
            yield batch if len(rows) == batch.size else batch.take(rows)


def few_of_each(batches: BatchSource, most: int, *, together: bool) -> list[Batch]:
    """Return samples with most targets of batches that differ; all where samples see each other."""
    chosen = telling_batches(batches)
    each = max(_FEWEST, most // len(chosen))
    return [
        batch
        if together or batch.size <= each
        else batch.take(_rows(batch, each, fullest_first=True))
        for batch in chosen
    ]


def _rows(batch: Batch, most: int, *, fullest_first: bool) -> list[int]:
    """Choose samples: half those with most, or fewest, targets, the others evenly spread."""
    counts, numbers = _targets_per_sample(batch), range(batch.size)
    order = sorted(numbers, key=lambda i: -counts[i]) if fullest_first else None
    # Among ties the emptiest half takes the last samples, so that the two halves differ.
    order = order or sorted(reversed(numbers), key=lambda i: counts[i])
    spread = [i * (batch.size - 1) // max(most - 1, 1) for i in reversed(range(most))]
    chosen = dict.fromkeys([*order[: (most + 1) // 2], *spread, *order])
    return sorted(list(chosen)[:most])


def _length(batch: Batch) -> int:
    """Count the numbers in a sample's inputs."""
    inputs = tensors_in((batch.args, batch.kwargs))
    return sum(t.numel() for t in inputs) // max(batch.size, 1)


def _targets_per_sample(batch: Batch) -> list[int]:
    """Count what each sample is compared with: ignored classes are negative numbers."""
    target = batch.target
    if not isinstance(target, Tensor) or target.shape[:1] != (batch.size,):
        return [1] * batch.size
    is_class = not target.dtype.is_floating_point and target.dtype != torch.bool
    kept = target >= 0 if is_class else torch.ones_like(target, dtype=torch.bool)
    counts: list[int] = kept.reshape(batch.size, -1).sum(1).tolist()
    return counts


def _num_repeated(batch: Batch) -> int:
    """Count entries of integer inputs that are equal to the most common one: padding, as a rule."""
    inputs = [*batch.args, *batch.kwargs.values()]
    tokens = [t for t in inputs if isinstance(t, Tensor) and t.dtype == torch.int64 and t.numel()]
    return sum(int((t == t.flatten().mode().values).sum()) for t in tokens)
