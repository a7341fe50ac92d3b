"""What all matrices that are sums over a risk's batches share.

Which graphs are kept, which columns are multiplied together, and what is checked.
Letters: k columns, K of them at a time, n parameters.
"""

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from eigenscape.curvature.products.graphs import BatchGraph
from eigenscape.curvature.products.saved_bytes import saved_bytes
from eigenscape.curvature.self_test import self_test
from eigenscape.device import product_defects
from eigenscape.errors import (
    NonDeterministicRiskError,
    NonFiniteError,
    UnsupportedModelError,
    WrongTypeError,
    require_count,
)
from eigenscape.operator import LinearOperator
from eigenscape.records import SelfTest
from eigenscape.risk import Batch, EmpiricalRisk, OutputProduct, Snapshot, derivatives_explained
from eigenscape.space import ParamSpace

_CPU_BUDGET = 4 * 2**30
# Columns share one pass while what they hold is not much larger than a last-level cache; beyond
# that it is slower than one column after the other (measured: LeNet5, 200 MB, 1.3 times).
_CPU_SHARED_BYTES = 64 * 2**20
# On a GPU a wide network keeps it busy with one column: VGG11 of 28M parameters took 50 ms a column
# alone and 88 ms in blocks of 6, where LeNet5 took 53 and 36 (H200). A new number of columns costs
# more: 20 products, set-up and certificates of three pairs took 34 s. Our guess is that
# convolutions of new shapes are planned anew.
_CUDA_SHARED_PARAMETERS = 10**6
_MOST_COLUMNS = 64


class RiskOperator(LinearOperator):
    """A symmetric matrix that is a sum over batches of a risk; each matrix gives its graph."""

    # The Hessian of the loss, JᵀBJ with a matrix B at the output, or their difference.
    kind = "hessian"

    def __init__(self, risk: EmpiricalRisk, memory_budget: int | None) -> None:
        if not isinstance(risk, EmpiricalRisk):
            raise WrongTypeError(
                f"`{type(self).__name__}(risk)` needs an EmpiricalRisk; got "
                f"{type(risk).__name__}. Build one: `EmpiricalRisk(model, loss, data)`."
            )
        self.risk = risk
        if memory_budget is not None:
            require_count(memory_budget, f"{type(self).__name__}(memory_budget=...)", at_least=0)
        own = _default_budget(risk.device) if memory_budget is None else memory_budget
        self._budget = int(min(risk.ranks.gather(own)))  # it decides how products are cut
        self._start_anew()

    def _start_anew(self) -> None:
        """Know nothing of the risk yet."""
        self._kept: dict[int, BatchGraph] = {}
        self._snapshot: Snapshot | None = None
        self._verdict: SelfTest | None = None
        self._noise: float | None = None
        self._bytes_per_sample: float | None = None
        self._num_made = 0
        self._can_batch = True
        self._is_confirmed = False

    @abstractmethod
    def _graph(self, batch: Batch) -> BatchGraph:
        """Build the graph of one batch."""

    @property
    def space(self) -> ParamSpace:
        """The risk's parameters."""
        return self.risk.space

    @property
    def dtype(self) -> torch.dtype:
        """The parameters' dtype."""
        return self.risk.dtype

    @property
    def device(self) -> torch.device:
        """The parameters' device."""
        return self.risk.device

    @property
    def is_symmetric(self) -> bool:
        """Always: it is a matrix of second derivatives or a sum of squares."""
        return True

    @property
    def noise(self) -> float:
        """As `noise_floor` measures it, once, where a part of the model rounds more than the rest.

        So it does with `autocast`, and in layers that compute in float32 whatever their input; 0
        where all is in the parameters' dtype.
        """
        if self.risk.precision == self.dtype:
            return 0.0
        if self._noise is None:
            self._noise = product_defects(
                self.matmat,
                self.space.size,
                dtype=self.dtype,
                device=self.device,
                num_probes=2,
                seed=0,
            ).relative
        return self._noise

    @property
    def self_test(self) -> SelfTest:
        """Whether this is the matrix of the user's own function, as differences of it show.

        Cost: at most about three gradients, once for each kind of matrix of a risk.

        Raises:
            SelfTestError: If it is not.
        """
        if self._verdict is None:
            key = (type(self).__name__, self.space.names, *self._settings())
            known = self.risk.whole.verdicts
            if key not in known:
                with derivatives_explained(f"`{type(self).__name__}`"):
                    known[key] = self_test(self)
            self._verdict = known[key]
        return self._verdict

    def _settings(self) -> tuple[object, ...]:
        """Return what tells two matrices of one class apart."""
        return ()

    def product_on(self, batch: Batch, row: Tensor) -> Tensor:
        """Multiply a row (1, n) with what a batch adds to the matrix; inside `evaluating()`."""
        return self._graph(batch).product(row, batched=False)

    def curvature_at(self, output: Tensor, batch: Batch) -> OutputProduct:
        """Return the product with the matrix at the output."""
        with self.risk.inside({}):
            return self.risk.loss.hessian_at(output, batch.target)

    @property
    def kept_bytes(self) -> int:
        """Memory of the graphs that products keep; known after the first product, 0 before."""
        sizes = {number: batch.size for number, batch in enumerate(self.risk.batches)}
        return int(sum((self._bytes_per_sample or 0.0) * sizes[number] for number in self._kept))

    def working_bytes(self, num_columns: int) -> int:
        """Predict the memory of temporaries while columns are multiplied; after a first product."""
        batches = list(self.risk.batches) if self.risk.batches.is_fixed else []
        largest = max(batches, key=lambda batch: batch.size, default=None)
        if largest is None:
            return 0
        return int(min(num_columns, self._width(largest)) * self._graph_bytes(largest))

    def matmat(self, X: Tensor) -> Tensor:
        """Multiply columns (n, k); sums over batches are accumulated in float64.

        Args:
            X: The columns.

        Returns:
            The products (n, k).

        Raises:
            NonFiniteError: If a product is NaN or infinite.
            NonDeterministicRiskError: If a loader gave another number of samples than before.
            UnsupportedModelError: If PyTorch cannot differentiate the model or the loss twice.
        """
        # One column needs its row, its float64 sum and its product at the same time.
        columns = max(1, int(self._budget // (X.shape[0] * (8 + 3 * X.element_size()))))
        with derivatives_explained(f"A product with {type(self).__name__}"):
            parts = [self._product(part) for part in X.split(columns, dim=1)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def _product(self, X: Tensor) -> Tensor:
        rows = X.T.contiguous()

        def multiply() -> Tensor:
            with self.risk.ranks.together():
                total = self._summed(rows)
            return (self.risk.ranks.sum(total) / self.risk.divisor).to(self.dtype)

        return self._guarded(multiply).T

    def _guarded(self, multiply: Callable[[], Tensor]) -> Tensor:
        """Multiply with what is kept for the parameters as they are now, and refuse NaN.

        Whether a write that PyTorch does not count moved them is asked together with the result,
        so that a product waits for the device once; if one did, it is computed again. Ranks must
        not go different ways, so several of them ask first.

        Args:
            multiply: Gives the product.

        Returns:
            The product.

        Raises:
            NonFiniteError: If it is NaN or infinite.
        """
        alone = self.risk.ranks.size == 1
        snapshot = self._ready(wait=not alone)
        self._num_made = 0
        result = multiply()
        is_finite, has_moved = self._looked_at(result, snapshot if alone else None)
        if has_moved:
            snapshot = self._ready(wait=True)
            result = multiply()
            is_finite, _ = self._looked_at(result, None)
        if self._num_made:
            snapshot.settle()
        if not is_finite:
            raise NonFiniteError(
                f"A product with {type(self).__name__} is NaN or infinite. Check the vector, the "
                "parameters and the data; second derivatives can overflow where the loss does not."
            )
        return result

    def _ready(self, *, wait: bool) -> Snapshot:
        """Forget what was kept for another function, and test the matrix of a new one."""
        with self.risk.ranks.together():
            snapshot = self._refresh(wait=wait)
        if self._verdict is None and self.self_test:
            snapshot.settle()
        return snapshot

    def _refresh(self, *, wait: bool) -> Snapshot:
        """Forget what was kept for another function; compare contents at once if `wait`."""
        last = self._snapshot
        is_same = last is not None and not last.is_counted_as_changed()
        if last is not None and is_same and not (wait and bool(last.differs(self.device))):
            return last
        if last is None or last.is_another_function():
            self._forget_function()
        self._forget()
        self._snapshot = self.risk.snapshot()
        return self._snapshot

    def _looked_at(self, result: Tensor, snapshot: Snapshot | None) -> tuple[bool, bool]:
        """Return whether a product is finite, and whether model and data differ from a snapshot."""
        # Two extremes find NaN and infinity alike.
        extremes = result.aminmax() if result.numel() else ()
        differ = torch.zeros((), device=result.device, dtype=torch.bool)
        if snapshot is not None:
            differ = snapshot.differs(result.device)
        *ends, moved = torch.stack([*extremes, differ.to(self.dtype)]).tolist()
        return all(map(math.isfinite, ends)), bool(moved)

    def _summed(self, rows: Tensor) -> Tensor:
        """Multiply rows (k, n), summed over this rank's batches and not divided."""
        # Backward passes must be in full precision too, and evaluate checkpointed parts again.
        with self.risk.evaluating():
            return self._sum(rows)

    def _sum(self, rows: Tensor) -> Tensor:
        total, samples = rows, 0
        for batch, graph in self._graphs():
            width = self._width(batch)
            parts = [self._multiply(graph, part) for part in rows.split(width)]
            added = parts[0] if len(parts) == 1 else torch.cat(parts)
            # A single batch is no sum: it needs no float64.
            total = total.double().add_(added) if samples else added
            samples += batch.size
        if samples != (expected := self.risk.num_own_samples):
            raise NonDeterministicRiskError(
                f"This pass over the data gave {samples} samples; the risk was made for "
                f"{expected}. Pass `list(loader)`, or make a new `EmpiricalRisk`."
            )
        return total

    def _graphs(self) -> Iterator[tuple[Batch, BatchGraph]]:
        """Walk the batches with their graphs, keeping as many as the budget allows."""
        for number, batch in enumerate(self.risk.batches):
            graph = self._kept.get(number)
            if graph is None:
                graph = self._made(batch)
                self._confirm(graph, batch)
                if self.risk.batches.is_fixed and self._fits(number, batch):
                    self._kept[number] = graph
            yield batch, graph

    def _forget(self) -> None:
        """Drop what was kept for other parameters."""
        self._kept.clear()

    def _forget_function(self) -> None:
        """Drop what was learnt of another function: something beside the weights changed."""
        self._is_confirmed = False
        self._verdict = None

    def _made(self, batch: Batch) -> BatchGraph:
        """Build what one batch contributes, and know its size."""
        self._num_made += 1
        self._measure(batch)
        return self._graph(batch)

    def _confirm(self, graph: BatchGraph, batch: Batch) -> None:
        """Refuse, once, a matrix that is not symmetric: some layers of PyTorch have such a bug."""
        if self._is_confirmed or self.dtype.itemsize < 4:  # half precision is noise of this size
            return
        rows = self._probes()
        Hu, Hv = (graph.product(row[None], batched=False)[0].double() for row in rows)
        u, v = rows.double()
        # One number, but for rounding, about eps·√n of the products: at n = 1e8 that is 2e-12 in
        # float64 and 1e-3 in float32.
        slack, size = 1e-8 if self.dtype == torch.float64 else 1e-2, Hu.norm() + Hv.norm()
        slack = max(slack, self.risk.slack) if self.risk.precision != self.dtype else slack
        is_zero = size <= batch.size * torch.finfo(self.dtype).eps ** 0.5  # but for rounding
        if is_zero:  # it says nothing about the other batches
            return
        if (u @ Hv - v @ Hu).abs() > slack * size:
            raise UnsupportedModelError(
                f"{type(self).__name__} is not symmetric: uᵀAv = {u @ Hv:.4g}, vᵀAu = {v @ Hu:.4g}."
                " An operation in the model has a wrong second derivative (in PyTorch 2.13 "
                "`weight_norm` has). Replace it, e.g. with `parametrize.remove_parametrizations`."
            )
        self._is_confirmed = True

    def _probes(self) -> Tensor:
        """Return two random rows, always the same: one with a pattern may be multiplied to zero."""
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(2, self.space.size, generator=generator)
        return rows.to(self.device, self.dtype)

    def _agree(self, first: Tensor, second: Tensor) -> bool:
        """Compare two exact ways to multiply."""
        most = self.risk.slack * torch.maximum(first.norm(), second.norm())
        return bool((first - second).norm() <= most)

    def _flops(self, graph: BatchGraph) -> float:
        """Count the multiplications and additions of one product with a batch."""
        with FlopCounterMode(display=False) as counter:
            graph.product(self._probes()[:1], batched=False)
        return float(counter.get_total_flops())

    def _num_batches(self) -> int | None:
        """Count the batches, where they are the same at every pass."""
        return sum(1 for _ in self.risk.batches) if self.risk.batches.is_fixed else None

    def _measure(self, batch: Batch) -> None:
        """Build one graph only to count what it saves."""
        if self._bytes_per_sample is not None:
            return
        self._bytes_per_sample = saved_bytes(lambda: self._graph(batch)) / batch.size

    def _graph_bytes(self, batch: Batch) -> float:
        return (self._bytes_per_sample or 0.0) * batch.size

    def _fits(self, number: int, batch: Batch) -> bool:
        # Batches are kept from the first on, so `number + 1` of them would be held.
        return (number + 1) * self._graph_bytes(batch) <= self._budget

    def _width(self, batch: Batch) -> int:
        """Return how many columns share a backward pass."""
        if not self._shares_passes():
            return 1
        on_cpu = self.device.type == "cpu"
        shared = _CPU_SHARED_BYTES if on_cpu else self._budget // 4
        return max(1, min(_MOST_COLUMNS, int(shared // max(self._graph_bytes(batch), 1.0))))

    def _shares_passes(self) -> bool:
        """Say whether columns are multiplied together."""
        is_wide = self.device.type == "cuda" and self.space.size > _CUDA_SHARED_PARAMETERS
        return self._can_batch and not is_wide

    def _multiply(self, graph: BatchGraph, rows: Tensor) -> Tensor:
        if rows.shape[0] > 1 and self._can_batch:
            try:
                with warnings.catch_warnings():
                    # An operation without a batching rule is looped inside; looping here is leaner.
                    warnings.filterwarnings("error", message="There is a performance drop")
                    return graph.product(rows, batched=True)
            except (RuntimeError, UserWarning):
                self._can_batch = False
        return torch.stack([graph.product(row[None], batched=False)[0] for row in rows])


def _default_budget(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) // 2
    return _CPU_BUDGET
