"""What the matrices of a whole network share: a choice between kept graphs and linearisation."""

import copy
import dataclasses
import warnings

import torch
from torch import Tensor

from eigenscape.curvature.products.graphs import BatchGraph
from eigenscape.curvature.products.linearised import (
    LinearisedGraph,
    Program,
    has_only_tensors,
    signature,
)
from eigenscape.curvature.products.plan import REPRESENTATIONS, ProductPlan, Work, plan_products
from eigenscape.curvature.products.replay import Replay
from eigenscape.curvature.risk_operator import RiskOperator
from eigenscape.errors import (
    SubstitutionWarning,
    UnsupportedModelError,
    require_choice,
    require_count,
)
from eigenscape.operator import LinearOperator, Restricted, Selection
from eigenscape.risk import Batch, CallableLoss, EmpiricalRisk

# What graphs of all data hold, below which a product takes less than a millisecond.
_TINY_BYTES = 2**18
_MOST_REPLAYS = 3  # shapes of products whose memory is held at the same time


class NetworkOperator(RiskOperator):
    """A matrix that may be multiplied by kept autograd graphs, or by a linearised model."""

    def __init__(
        self,
        risk: EmpiricalRisk,
        memory_budget: int | None,
        *,
        representation: str,
        num_products: int,
    ) -> None:
        super().__init__(risk, memory_budget)
        name = type(self).__name__
        self._wanted = require_choice(
            representation, ("auto", *REPRESENTATIONS), f"{name}(representation=...)"
        )
        if risk.autocast is not None and self._wanted not in ("auto", "graph"):
            raise UnsupportedModelError(
                f"`{name}(risk, representation={representation!r})` cannot be had with "
                "`EmpiricalRisk(autocast=...)`. Leave the representation out, or use 'graph'."
            )
        self._num_products = require_count(num_products, f"{name}(num_products=...)")

    def _start_anew(self) -> None:
        super()._start_anew()
        self._plan: ProductPlan | None = None
        self._programs: dict[object, Program] = {}
        self._places: tuple[int, ...] = ()
        self._verified: set[object] = set()
        self._is_verified_here = False
        self._trusted: set[object] = set()
        self._replays: dict[torch.Size, Replay | None] = {}

    def __getitem__(self, key: Selection | tuple[Selection, Selection]) -> LinearOperator:
        """Restrict to blocks; a diagonal block of whole tensors differentiates nothing else.

        Args:
            key: As for `LinearOperator`.

        Returns:
            The restricted operator.
        """
        restricted = super().__getitem__(key)
        names = restricted.space.names
        if not set(names) < set(self.space.names) or not isinstance(restricted, Restricted):
            return restricted
        # Other entries may go by a tensor's name.
        spans = self.space.block(*names).spans
        if restricted.rows.spans != spans or restricted.columns.spans != spans:
            return restricted
        risk = self.risk.restricted(names)
        block = copy.copy(self)
        block.risk = risk
        block._start_anew()
        return block

    @property
    def plan(self) -> ProductPlan:
        """How products are computed, and why; `print(H.plan.explain())`."""
        if self._plan is None:
            with self.risk.evaluating():
                self._plan = self._make_plan(next(iter(self.risk.batches)))
        return self._plan

    def _made(self, batch: Batch) -> BatchGraph:
        """Build what one batch contributes, linearised where the plan says so.

        A trace holds whatever was true of the batch that it was made on, so a product of each
        batch is compared with double backward before it counts; and again, for one batch that
        contributes, where the parameters moved.

        Returns:
            The graph.
        """
        while self.plan.chosen != "graph":
            self._num_made += 1
            key = signature(batch), batch.first
            is_known = key in self._verified and self._is_verified_here
            try:
                # First, so that not both are in memory at a time.
                expected = None if is_known else self._expected(batch)
                graph = self._linearised(batch)
                if expected is None or self._agrees(graph, expected):
                    self._verified.add(key)
                    self._is_verified_here |= expected is not None and bool(expected.any())
                    return graph
            except Exception as error:  # tracing and compiling meet whatever a model may do
                problem = str(error).strip().splitlines() or [""]
                self._step_back(f"{type(error).__name__}: {problem[0]}")
            else:
                self._step_back("a product disagrees with double backward", warn=True)
        return super()._made(batch)

    def _forget(self) -> None:
        super()._forget()
        self._is_verified_here = False
        self._trusted.clear()
        self._replays.clear()

    def _forget_function(self) -> None:
        """Drop what was learnt of another function, too."""
        super()._forget_function()
        self._programs.clear()
        self._verified.clear()

    def _summed(self, rows: Tensor) -> Tensor:
        """Multiply rows; on a GPU, those of a known shape without starting single operations."""
        if (replay := self._replays.get(rows.shape)) is not None:
            return replay(rows)
        alone = len(rows) > 1 and not self._shares_passes()
        if alone and self._may_replay():
            # One recording does for any number of columns; its result is overwritten each time.
            return torch.cat([self._summed(row[None]).clone() for row in rows])
        total = super()._summed(rows)
        if alone or not self._may_replay():
            return total
        if rows.shape not in self._replays:  # recorded if it comes again
            self._replays = dict(list(self._replays.items())[1 - _MOST_REPLAYS :]) | {
                rows.shape: None
            }
            return total
        with self.risk.evaluating():
            self._replays[rows.shape] = Replay(self._sum, rows)
        return total

    def _may_replay(self) -> bool:
        if self.device.type != "cuda" or isinstance(self.risk.loss, CallableLoss):
            return False
        return self.plan.chosen != "graph" and len(self._kept) == self._num_batches()

    def _make_plan(self, batch: Batch) -> ProductPlan:
        """Count what a product takes on the first batch, and choose."""
        if self._wanted != "auto":
            return ProductPlan(self._wanted, "asked for", {}, self._num_products)
        is_half = self.dtype.itemsize < 4 or self.risk.autocast is not None
        if is_half or not self.risk.batches.is_fixed:
            reason = "half precision" if is_half else "data are read anew"
            return ProductPlan("graph", reason, {}, self._num_products)
        self._measure(batch)
        share = self.risk.num_own_samples / batch.size
        if self._graph_bytes(batch) * share < _TINY_BYTES:
            return ProductPlan("graph", "too small for a trace to pay", {}, self._num_products)
        batches = list(self.risk.batches)
        if not all(map(has_only_tensors, batches)):
            reason = "inputs that are no tensors"
            return ProductPlan("graph", reason, {}, self._num_products)
        graph = self._graph(batch)
        work = Work(
            flops=self._flops(graph) * share,
            nbytes=self._graph_bytes(batch) * share,
            num_nodes=graph.num_nodes,
            num_batches=len(batches),
            num_traces=len(set(map(signature, batches))),
        )
        return plan_products(work, self._num_products, self.device.type)

    def _linearised(self, batch: Batch) -> LinearisedGraph:
        # A tensor that took another's place is not seen by a program that holds the old one.
        if (places := self.risk.places()) != self._places:
            self._programs.clear()
            self._places = places
        key = signature(batch)
        if key not in self._programs:
            name, compiled = type(self).__name__, self.plan.chosen == "compiled"
            self._programs[key] = Program(self.risk, batch, self.kind, name, compiled=compiled)
        graph = LinearisedGraph(self._programs[key], self.risk, batch, self.curvature_at)
        self._bytes_per_sample = graph.nbytes / batch.size
        return graph

    def _expected(self, batch: Batch) -> Tensor:
        """Multiply probes by double backward: two at the first batch, one at each other."""
        oracle = self._graph(batch)
        probes = self._probes()[: 1 if self._verified else 2]
        return torch.cat([oracle.product(row[None], batched=False) for row in probes])

    def _agrees(self, graph: BatchGraph, expected: Tensor) -> bool:
        """Compare products with single columns; several at once take more memory."""
        pairs = zip(self._probes(), expected, strict=False)
        return all(self._agree(graph.product(v[None], batched=False)[0], Av) for v, Av in pairs)

    def _multiply(self, graph: BatchGraph, rows: Tensor) -> Tensor:
        """Multiply rows; the first that share a pass are compared with a single product."""
        found = super()._multiply(graph, rows)
        key = (getattr(graph, "program", None), rows.shape[0])
        if rows.shape[0] == 1 or not self._can_batch or key[0] is None or key in self._trusted:
            return found
        generator = torch.Generator().manual_seed(0)
        weights = torch.randn(1, rows.shape[0], generator=generator).to(rows)
        if self._agree(weights @ found, graph.product(weights @ rows, batched=False)):
            self._trusted.add(key)
            return found
        self._can_batch = False
        return super()._multiply(graph, rows)

    def _step_back(self, problem: str, *, warn: bool = False) -> None:
        """Go from compiled to linearised, or from that to kept graphs, and say why."""
        name, failed = type(self).__name__, self.plan.chosen
        if self._wanted == failed:
            raise UnsupportedModelError(
                f"`{name}(risk, representation={failed!r})` cannot be had: {problem}. Leave the "
                "representation out, or use 'graph'."
            )
        instead = REPRESENTATIONS[REPRESENTATIONS.index(failed) - 1]
        self._programs.clear()
        self._forget()
        self._bytes_per_sample = None
        reason = f"{failed} products are not to be had: {problem}"
        self._plan = dataclasses.replace(self.plan, chosen=instead, reason=reason)
        if warn:
            warnings.warn(
                f"`{name}(risk)` uses the representation {instead!r} (exact, slower): {reason}.",
                SubstitutionWarning,
                stacklevel=2,
            )
