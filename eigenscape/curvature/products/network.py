"""How the matrices of a whole network are multiplied: kept graphs, a trace, or compiled code."""

import copy
import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from eigenscape.curvature.products.choice import Choice
from eigenscape.curvature.products.graphs import JacobianGraph
from eigenscape.curvature.products.linearised import has_only_tensors, signature
from eigenscape.curvature.products.plan import Candidate, Plan, budget_of
from eigenscape.curvature.products.representation import (
    BatchProduct,
    Maker,
    OverBatches,
    Representation,
)
from eigenscape.curvature.products.trust import KeptGraphs, TrustedTraces, probe_rows
from eigenscape.errors import (
    SubstitutionWarning,
    UnsupportedModelError,
    WrongTypeError,
    require_choice,
    require_count,
)
from eigenscape.parallel import machine_of
from eigenscape.risk import Batch, EmpiricalRisk, OutputProduct

# In the order of falling back: each falls back to the one before it.
REPRESENTATIONS = ("graph", "linearised", "compiled")

# Seconds that PyTorch takes to trace one node of a gradient's graph into the stages of a product,
# and to compile it; measured on perceptrons, LeNet5, a ResNet and transformers.
_TRACE_SECONDS, _COMPILE_SECONDS = 5e-3, 5e-2
# What the comparison of a trace with double backward takes, in products.
_CHECK_PRODUCTS = 2.0
# Share of the time beside starting operations that linearising saves, and compiling.
_GAINS = {
    # Compiled code was not quicker on a processor, one vector at a time (LeNet5, a GPT).
    "cpu": (0.2, 0.2),
    "cuda": (0.35, 0.45),
}
# What graphs of all data hold, below which a product takes less than a millisecond.
_TINY_BYTES = 2**18

AtOutput: TypeAlias = Callable[[EmpiricalRisk, Tensor, Batch], OutputProduct]


def loss_curvature(risk: EmpiricalRisk, output: Tensor, batch: Batch) -> OutputProduct:
    """Return the product with ∇²_z L."""
    with risk.inside({}):
        return risk.loss.hessian_at(output, batch.target)


@dataclass(frozen=True)
class Definition:
    """What tells the Hessian, Gauss-Newton, Fisher and H − G of a network apart.

    Attributes:
        name: What the matrix is called.
        kind: "hessian", "gauss-newton" or "residual": which terms a product has.
        build: Builds the autograd graph of a batch.
        at_output: Gives the matrix at the output.
        settings: What tells two matrices of this name apart.
    """

    name: str
    kind: str
    build: Callable[[EmpiricalRisk, Batch], BatchProduct]
    at_output: AtOutput = loss_curvature
    settings: tuple[object, ...] = ()


def jacobian_definition(
    name: str, at_output: AtOutput = loss_curvature, *settings: object
) -> Definition:
    """Return that of JᵀBJ, with a matrix B at the output."""

    def build(risk: EmpiricalRisk, batch: Batch) -> BatchProduct:
        return JacobianGraph(risk, batch, partial(at_output, risk), name)

    return Definition(name, "gauss-newton", build, at_output, settings)


@dataclass(frozen=True)
class Work:
    """What one pass over the data takes with kept autograd graphs.

    Attributes:
        flops: Multiplications and additions of a product.
        nbytes: What the graphs hold.
        num_nodes: Operations in the graph of one batch.
        num_batches: Batches.
        num_traces: How many kinds of batches there are; each needs a trace of its own.
    """

    flops: float
    nbytes: float
    num_nodes: int
    num_batches: int
    num_traces: int = 1


class NetworkChoice(Choice):
    """The choice for one matrix of a whole network."""

    def __init__(
        self,
        risk: EmpiricalRisk,
        definition: Definition,
        *,
        representation: str,
        num_products: int,
        memory_budget: int | None,
    ) -> None:
        """Check what was asked for; nothing is counted before it is needed.

        Args:
            risk: The risk.
            definition: The matrix.
            representation: "auto", or one of `REPRESENTATIONS`.
            num_products: Products to expect.
            memory_budget: As for `Hessian`.

        Raises:
            WrongTypeError: If the risk is none.
            UnsupportedModelError: If a trace is asked for where there is autocast.
        """
        name = definition.name
        if not isinstance(risk, EmpiricalRisk):
            raise WrongTypeError(
                f"`{name}(risk)` needs an EmpiricalRisk; got {type(risk).__name__}. Build one: "
                "`EmpiricalRisk(model, loss, data)`."
            )
        self.name, self.kind = name, definition.kind
        self.budget = budget_of(risk, memory_budget, name)
        self._definition = definition
        self._wanted = require_choice(
            representation, ("auto", *REPRESENTATIONS), f"{name}(representation=...)"
        )
        if risk.autocast is not None and self._wanted not in ("auto", "graph"):
            raise UnsupportedModelError(
                f"`{name}(risk, representation={representation!r})` cannot be had with "
                "`EmpiricalRisk(autocast=...)`. Leave the representation out, or use 'graph'."
            )
        self._num_products = require_count(num_products, f"{name}(num_products=...)")
        self._start(risk)

    def _start(self, risk: EmpiricalRisk) -> None:
        """Reset everything that depends on the risk."""
        self.risk = risk
        self._chosen: tuple[str, str] | None = None  # with its reason
        self._work: Work | None = None
        self._graphs = self._kept_graphs(None)
        self._running: OverBatches | None = None

    @property
    def settings(self) -> tuple[object, ...]:
        """Those of the definition."""
        return self._definition.settings

    @property
    def plan(self) -> Plan:
        """What each representation costs, and why this one is used."""
        with self.risk.evaluating():
            chosen, reason = self._decided()
            work, obstacle = self._counted(), self._obstacle()
        graph, *traced = network_candidates(work, self.risk.device.type)
        candidates = graph, *(dataclasses.replace(c, obstacle=obstacle) for c in traced)
        machine = machine_of(self.risk.device.type)
        seconds = {c.representation: c.seconds(self._num_products, machine) for c in candidates}
        return Plan(self.name, candidates, chosen, self._num_products, reason, seconds)

    def representation(self) -> Representation:
        """Return a sum over batches of what is the quickest."""
        # What was verified for another function says nothing about this one.
        self._graphs = self._kept_graphs(self._graphs.bytes_per_sample)
        with self.risk.evaluating():
            chosen, _ = self._decided()
        self._running = OverBatches(self.risk, self._maker(chosen), self.budget)
        return self._running

    def product_on(self, batch: Batch, row: Tensor) -> Tensor:
        """Multiply by double backward."""
        return self._graphs.build(batch).product(row, batched=False)

    def curvature_at(self, output: Tensor, batch: Batch) -> OutputProduct:
        """Return the product with the definition's matrix at the output."""
        return self._definition.at_output(self.risk, output, batch)

    def restricted(self, names: tuple[str, ...]) -> "NetworkChoice":
        """Differentiate by some tensors alone."""
        choice = copy.copy(self)
        choice._start(self.risk.restricted(names))
        return choice

    def _kept_graphs(self, bytes_per_sample: float | None) -> KeptGraphs:
        build = partial(self._definition.build, self.risk)
        return KeptGraphs(self.risk, self.name, build, bytes_per_sample=bytes_per_sample)

    def _maker(self, representation: str) -> Maker:
        if representation == "graph":
            return self._graphs
        return TrustedTraces(
            self.risk,
            self.kind,
            self.name,
            self._graphs,
            self.curvature_at,
            compiled=representation == "compiled",
            refused=partial(self._step_back, representation),
        )

    def _step_back(self, failed: str, problem: str, warn: bool) -> Maker:
        """Go from compiled to linearised, or from that to kept graphs, and say why."""
        if self._wanted == failed:
            raise UnsupportedModelError(
                f"`{self.name}(risk, representation={failed!r})` cannot be had: {problem}. Leave "
                "the representation out, or use 'graph'."
            )
        instead = REPRESENTATIONS[REPRESENTATIONS.index(failed) - 1]
        reason = f"{failed} products are not to be had: {problem}"
        self._chosen = instead, reason
        if self._running is not None:
            self._running.forget()
        if warn:
            warnings.warn(
                f"`{self.name}(risk)` uses the representation {instead!r} (exact, slower): "
                f"{reason}.",
                SubstitutionWarning,
                stacklevel=2,
            )
        return self._maker(instead)

    def _decided(self) -> tuple[str, str]:
        """Choose, counting no more than the choice needs."""
        if self._chosen is None:
            self._chosen = self._decide()
        return self._chosen

    def _decide(self) -> tuple[str, str]:
        if self._wanted != "auto":
            return self._wanted, "asked for"
        if (obstacle := self._obstacle()) is not None:
            return "graph", obstacle
        batch = next(iter(self.risk.batches))
        share = self.risk.num_own_samples / batch.size
        if self._graphs.nbytes(batch) * share < _TINY_BYTES:
            return "graph", "too small for a trace to pay"
        return quickest(self._counted(), self._num_products, self.risk.device.type), "the quickest"

    def _obstacle(self) -> str | None:
        """Say why nothing but kept graphs is tried, or None."""
        if self.risk.dtype.itemsize < 4 or self.risk.autocast is not None:
            return "half precision"
        if not self.risk.batches.is_fixed:
            return "data are read anew"
        if not all(map(has_only_tensors, self.risk.batches)):
            return "inputs that are no tensors"
        return None

    def _counted(self) -> Work:
        """Count what a product takes on the first batch."""
        if self._work is None:
            batches = self.risk.batches
            all_batches = list(batches) if batches.is_fixed else [next(iter(batches))]
            first = all_batches[0]
            share, graph = self.risk.num_own_samples / first.size, self._graphs.build(first)
            with FlopCounterMode(display=False) as counter:
                graph.product(probe_rows(self.risk)[:1], batched=False)
            self._work = Work(
                flops=float(counter.get_total_flops()) * share,
                nbytes=self._graphs.nbytes(first) * share,
                num_nodes=graph.num_nodes,
                num_batches=len(all_batches),
                num_traces=len(set(map(signature, all_batches))),
            )
        return self._work


def network_candidates(work: Work, device: str) -> tuple[Candidate, ...]:
    """Count what each representation costs: preparation before the first product, and products.

    Args:
        work: What a product takes with kept graphs.
        device: "cpu" or "cuda".

    Returns:
        The candidates, in the order of `REPRESENTATIONS`.
    """
    gain, compiled_gain = _GAINS.get(device, _GAINS["cpu"])
    graph = Candidate(
        "graph",
        product_flops=work.flops,
        traffic=2 * work.nbytes,
        nbytes=work.nbytes,
        calls=work.num_nodes * work.num_batches,
    )
    # Every batch is compared with double backward once: a graph is made, and multiplies a probe.
    checks = graph.seconds(_CHECK_PRODUCTS, machine_of(device))
    nodes = work.num_nodes * work.num_traces

    def traced(name: str, saved: float, seconds_per_node: float) -> Candidate:
        return dataclasses.replace(
            graph,
            representation=name,
            product_flops=(1 - saved) * graph.product_flops,
            traffic=(1 - saved) * graph.traffic,
            # On a GPU the product is replayed without starting operations one by one.
            calls=0.0 if device == "cuda" else graph.calls,
            build_seconds=checks + nodes * seconds_per_node,
        )

    return (
        graph,
        traced("linearised", gain, _TRACE_SECONDS),
        traced("compiled", compiled_gain, _TRACE_SECONDS + _COMPILE_SECONDS),
    )


def quickest(work: Work, num_products: int, device: str) -> str:
    """Name the representation that takes the least time.

    Args:
        work: What a product takes with kept graphs.
        num_products: Products to expect.
        device: "cpu" or "cuda".

    Returns:
        Its name.

    Examples:
        >>> quickest(Work(1e6, 1e5, 50, 1), 100, "cpu")   # a product takes microseconds
        'graph'
        >>> quickest(Work(1e10, 1e9, 50, 8), 100, "cpu")   # a product takes 0.3 s
        'linearised'
    """
    machine, candidates = machine_of(device), network_candidates(work, device)
    return min(candidates, key=lambda c: c.seconds(num_products, machine)).representation
