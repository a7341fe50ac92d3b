"""How a whole matrix is multiplied, and what one batch adds to it.

`NetworkMatrix` guards products: is the function still the one that was tested, are the numbers
finite. How they are computed is a `Representation`, and a `Choice` knows which one is the cheapest.
To add a way to multiply, derive from `Representation`, give its three methods, let a `Choice`
return it, and call `eigenscape.testing.check_representation` on it. If it is a sum over batches,
derive from `BatchProduct` instead, and hand its maker to `OverBatches`, which says which products
are kept, and how many rows share a pass.

Letters: k rows, K of them at a time, n parameters.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.curvature.products.replay import Replay
from eigenscape.errors import NonDeterministicRiskError
from eigenscape.risk import Batch, CallableLoss, EmpiricalRisk, full_arithmetic

# Columns share one pass while what they hold is not much larger than a last-level cache; beyond
# that it is slower than one column after the other (measured: LeNet5, 200 MB, 1.3 times).
_CPU_SHARED_BYTES = 64 * 2**20
# On a GPU a wide network keeps it busy with one column: VGG11 of 28M parameters took 50 ms a column
# alone and 88 ms in blocks of 6, where LeNet5 took 53 and 36 (H200). A new number of columns costs
# more: 20 products, set-up and certificates of three pairs took 34 s. Our guess is that
# convolutions of new shapes are planned anew.
_CUDA_SHARED_PARAMETERS = 10**6
_MOST_COLUMNS = 64
_MOST_REPLAYS = 3  # shapes of products whose memory is held at the same time


@dataclass(frozen=True)
class Memory:
    """Bytes on the device of the products.

    Attributes:
        kept: What is held between products; 0 before the first.
        working: The most that a product takes beside it.
    """

    kept: int
    working: int


class Representation(ABC):
    """One way to multiply with a matrix at parameters that do not move.

    Attributes:
        num_evaluations: How often it has evaluated the model. A model may write to itself while it
            is evaluated, so the driver looks at it again when this has grown.
    """

    num_evaluations = 0

    @abstractmethod
    def multiply(self, rows: Tensor) -> Tensor:
        """Multiply rows (k, n) with the matrix; of several ranks, all have the same result."""

    @abstractmethod
    def memory(self, num_columns: int) -> Memory:
        """Say what it holds, and predict what products with so many columns take."""

    @abstractmethod
    def forget(self) -> None:
        """The parameters have moved: drop what belongs to them."""


class BatchProduct(ABC):
    """What one batch adds to a matrix: a sum over its samples, not divided.

    Attributes:
        nbytes: What it holds between products.
        evaluates_model: Whether a product may evaluate the model, as a backward pass through
            checkpointed segments does.
        program: What it shares with other batches, if its products of several rows at a time are
            yet to be compared with those of one; else None.
        num_nodes: Operations that a product starts one by one, where they were counted.
    """

    nbytes = 0.0
    evaluates_model = True
    program: object | None = None
    num_nodes = 0

    @abstractmethod
    def product(self, rows: Tensor, *, batched: bool) -> Tensor:
        """Multiply rows (K, n): one row, or all of them in one pass if `batched`."""


class Maker(ABC):
    """Makes what each batch adds."""

    @abstractmethod
    def make(self, batch: Batch) -> BatchProduct:
        """Return what a batch adds, ready to be multiplied; inside `risk.evaluating()`."""

    @abstractmethod
    def forget(self) -> None:
        """The parameters have moved: trust nothing that was compared before."""


class OverBatches(Representation):
    """The sum of what batches add; as many of them are kept as the budget allows."""

    def __init__(self, risk: EmpiricalRisk, maker: Maker, budget: int) -> None:
        """Make nothing yet.

        Args:
            risk: The risk.
            maker: Makes what a batch adds.
            budget: Bytes for what is kept.
        """
        self._risk, self._maker, self._budget = risk, maker, budget
        self._divisor = risk.divisor
        self._kept: dict[int, tuple[int, BatchProduct]] = {}  # with the size of the batch
        self._num_batches: int | None = None
        self._bytes_per_sample = 0.0
        self._can_batch = True
        self._trusted: set[object] = set()
        self._replays: dict[torch.Size, Replay | None] = {}

    def multiply(self, rows: Tensor) -> Tensor:
        """Multiply rows (k, n); sums over batches are accumulated in float64."""
        rows, ranks = rows.contiguous(), self._risk.ranks
        if ranks.size == 1:
            total = self._summed(rows)
        else:
            with ranks.together():
                total = self._summed(rows)
            total = ranks.sum(total)
        return (total / self._divisor).to(self._risk.dtype)

    def memory(self, num_columns: int) -> Memory:
        """Say what is held; a product holds as much again for each row of a pass."""
        kept = int(sum(product.nbytes for _, product in self._kept.values()))
        batches = self._risk.batches
        sizes = [batch.size for batch in batches] if batches.is_fixed else []
        largest = self._bytes_per_sample * max(sizes, default=0)
        return Memory(kept, int(min(num_columns, self._width(largest)) * largest))

    def forget(self) -> None:
        """Drop what was kept for other parameters."""
        self._kept.clear()
        self._trusted.clear()
        self._replays.clear()
        self._maker.forget()

    def _summed(self, rows: Tensor) -> Tensor:
        """Multiply rows; on a GPU, those of a known shape without starting single operations."""
        if (replay := self._replays.get(rows.shape)) is not None:
            return replay(rows)
        alone = len(rows) > 1 and not self._shares_passes()
        if alone and self._may_replay():
            # One recording does for any number of columns; its result is overwritten each time.
            return torch.cat([self._summed(row[None]).clone() for row in rows])
        with self._context():
            total = self._sum(rows)
        if alone or not self._may_replay():
            return total
        if rows.shape not in self._replays:  # recorded if it comes again
            self._replays = dict(list(self._replays.items())[1 - _MOST_REPLAYS :]) | {
                rows.shape: None
            }
            return total
        with self._context():
            self._replays[rows.shape] = Replay(self._sum, rows)
        return total

    def _may_replay(self) -> bool:
        if self._risk.device.type != "cuda" or isinstance(self._risk.loss, CallableLoss):
            return False
        return self._is_complete() and not self._evaluates_model()

    def _is_complete(self) -> bool:
        """Tell whether what all batches add is kept."""
        return len(self._kept) == self._num_batches

    def _evaluates_model(self) -> bool:
        return any(product.evaluates_model for _, product in self._kept.values())

    def _context(self) -> AbstractContextManager[None]:
        # Backward passes must be in full precision too, and evaluate checkpointed segments again.
        if self._is_complete() and not self._evaluates_model():
            return full_arithmetic(self._risk.device)
        return self._risk.evaluating()

    def _sum(self, rows: Tensor) -> Tensor:
        """Multiply rows, summed over this rank's batches and not divided."""
        total, samples = rows, 0
        for size, product in self._products():
            groups = rows.split(self._width(product.nbytes))
            products = [self._multiplied(product, group) for group in groups]
            added = products[0] if len(products) == 1 else torch.cat(products)
            # A single batch is no sum: it needs no float64.
            total = total.double().add_(added) if samples else added
            samples += size
        if samples != (expected := self._risk.num_own_samples):
            raise NonDeterministicRiskError(
                f"This pass over the data gave {samples} samples; the risk was made for "
                f"{expected}. Pass `list(loader)`, or make a new `EmpiricalRisk`."
            )
        return total

    def _products(self) -> Iterator[tuple[int, BatchProduct]]:
        """Walk what the batches add, with their sizes, keeping as many as the budget allows."""
        if self._is_complete():
            yield from self._kept.values()
            return
        batches, number = self._risk.batches, -1
        for number, batch in enumerate(batches):
            if number not in self._kept:
                product = self._made(batch)
                # Batches are kept from the first on, so `number + 1` of them would be held.
                if not batches.is_fixed or (number + 1) * product.nbytes > self._budget:
                    yield batch.size, product
                    continue
                self._kept[number] = batch.size, product
            yield self._kept[number]
        self._num_batches = number + 1 if batches.is_fixed else None

    def _made(self, batch: Batch) -> BatchProduct:
        self.num_evaluations += 1
        product = self._maker.make(batch)
        self._bytes_per_sample = product.nbytes / batch.size
        return product

    def _width(self, nbytes: float) -> int:
        """Return how many rows share a pass through what holds so many bytes."""
        if not self._shares_passes():
            return 1
        on_cpu = self._risk.device.type == "cpu"
        shared = _CPU_SHARED_BYTES if on_cpu else self._budget // 4
        return max(1, min(_MOST_COLUMNS, int(shared // max(nbytes, 1.0))))

    def _shares_passes(self) -> bool:
        """Say whether columns are multiplied together."""
        risk = self._risk
        is_wide = risk.device.type == "cuda" and risk.space.size > _CUDA_SHARED_PARAMETERS
        return self._can_batch and not is_wide

    def _multiplied(self, product: BatchProduct, rows: Tensor) -> Tensor:
        """Multiply rows; the first that share a pass are compared with a single product."""
        if len(rows) == 1 or not self._can_batch:
            return _one_by_one(product, rows)
        try:
            with warnings.catch_warnings():
                # An operation without a batching rule is looped inside; looping here is leaner.
                warnings.filterwarnings("error", message="There is a performance drop")
                result = product.product(rows, batched=True)
        except (RuntimeError, UserWarning):
            self._can_batch = False
            return _one_by_one(product, rows)
        key = product.program, len(rows)
        if product.program is None or key in self._trusted:
            return result
        weights = torch.randn(1, len(rows), generator=torch.Generator().manual_seed(0)).to(rows)
        if agree(self._risk, weights @ result, product.product(weights @ rows, batched=False)):
            self._trusted.add(key)
            return result
        self._can_batch = False
        return _one_by_one(product, rows)


def _one_by_one(product: BatchProduct, rows: Tensor) -> Tensor:
    return torch.stack([product.product(row[None], batched=False)[0] for row in rows])


def agree(risk: EmpiricalRisk, first: Tensor, second: Tensor) -> bool:
    """Compare two exact ways to multiply."""
    most = risk.slack * torch.maximum(first.norm(), second.norm())
    return bool((first - second).norm() <= most)


def split_rows(rows: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """Cut rows (K, n) into one tensor per leaf, (K, *shape), or (*shape) where K is 1."""
    lead = rows.shape[:1] if rows.shape[0] > 1 else ()
    columns = rows.split([leaf.numel() for leaf in leaves], dim=1)
    return [c.reshape((*lead, *leaf.shape)) for c, leaf in zip(columns, leaves, strict=True)]


def join_rows(tensors: Sequence[Tensor | None], rows: Tensor, leaves: Sequence[Tensor]) -> Tensor:
    """Undo `split_rows`; a leaf that nothing depends on gives zeros."""
    count = rows.shape[0]
    flat = [
        rows.new_zeros(count, leaf.numel()) if tensor is None else tensor.reshape(count, -1)
        for tensor, leaf in zip(tensors, leaves, strict=True)
    ]
    return torch.cat(flat, dim=1)
