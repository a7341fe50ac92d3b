"""How one layer's block is multiplied: which representations can be used, and which one is."""

import dataclasses
import math
import warnings

import torch
from torch import Tensor

from eigenscape.curvature.layers.costs import REPRESENTATIONS, Limits, plan_layer
from eigenscape.curvature.layers.factors import batch_factors
from eigenscape.curvature.layers.stored import DenseBlock, StoredFactors
from eigenscape.curvature.layers.tail import TailGraph
from eigenscape.curvature.products.choice import Choice
from eigenscape.curvature.products.graphs import HessianGraph, reached_by_loss
from eigenscape.curvature.products.network import loss_curvature
from eigenscape.curvature.products.plan import Plan, budget_of, strictest
from eigenscape.curvature.products.representation import (
    BatchProduct,
    OverBatches,
    Representation,
    agree,
)
from eigenscape.curvature.products.trust import KeptGraphs, probe_rows
from eigenscape.errors import (
    InvalidArgumentError,
    NonFiniteError,
    SubstitutionWarning,
    UnsupportedModelError,
    require_choice,
    require_count,
)
from eigenscape.risk import (
    Batch,
    CallableLoss,
    EmpiricalRisk,
    OutputProduct,
    derivatives_explained,
    few_of_each,
    find_layer,
)

_STORAGES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# Samples on which two representations must agree: formulas are right or wrong for all alike.
_CHECKED = 512


class LayerChoice(Choice):
    """The choice for the block of one layer; made, and compared with others, at once.

    Attributes:
        layer: The layer.
        chosen: The representation in use.
        num_rows: N·C rows R with block = RᵀR, where what follows is piecewise linear and all data
            are on this rank; else None.
        storage_error: How far products of rounded factors are from the exact ones.
    """

    kind = "hessian"
    name = "LayerHessian"
    num_rows: int | None

    def __init__(
        self,
        risk: EmpiricalRisk,
        layer: str,
        *,
        representation: str,
        num_products: int,
        memory_budget: int | None,
        storage: torch.dtype | None,
        check: bool,
    ) -> None:
        """Find the layer, compare its representations, and confirm one product; see `LayerHessian`.

        Args:
            risk: The risk.
            layer: The layer's name.
            representation: The one asked for, or "auto".
            num_products: Products to expect.
            memory_budget: Bytes for what is kept.
            storage: The dtype in which factors are kept.
            check: Whether one product is compared with double backward.
        """
        self._call = f"LayerHessian(risk, {layer!r})"
        self.layer = find_layer(risk, layer, self._call)
        self.risk = risk.restricted(self.layer.params)
        self.budget = budget_of(self.risk, memory_budget, self.name)
        require_choice(
            representation, ("auto", *REPRESENTATIONS), "LayerHessian(representation=...)"
        )
        require_count(num_products, "LayerHessian(num_products=...)")
        self._storage = _checked_storage(storage, self.risk.dtype)
        self.storage_error = 0.0
        self._probe = probe_rows(self.risk)[:1]
        self._limits = Limits(self.risk.device.type, self.budget, self.risk.dtype.itemsize)
        obstacle = self._checked_obstacle(check)
        with risk.ranks.together(), derivatives_explained(f"`{self._call}`"):
            plan, work = plan_layer(
                self.risk,
                self.layer,
                self._limits,
                self._probe,
                obstacle=obstacle,
                num_products=num_products,
                storage=self._storage.itemsize,
                asked=representation,
            )
        self.num_rows = self._tail_bytes = None
        if work is not None:
            self._tail_bytes = work.graph / work.batch_share / risk.num_own_samples
            # Rows of other ranks are not here, so inner products with them cannot be had.
            if risk.ranks.size == 1 and work.num_roots is not None:
                self.num_rows = risk.num_samples * work.num_roots
        plans = risk.ranks.gather(dataclasses.asdict(plan))
        self._plan = self._asked(strictest(plans), representation)
        if self.is_stored and check:
            self._require_agreement()

    @property
    def chosen(self) -> str:
        """The name of the representation in use."""
        return self._plan.chosen

    @property
    def settings(self) -> tuple[object, ...]:
        """The representation: each is tested by itself."""
        return (self.chosen,)

    @property
    def plan(self) -> Plan:
        """What was compared."""
        return self._plan

    @property
    def is_stored(self) -> bool:
        """Whether products make no pass through the network."""
        return self.chosen in ("factors", "streamed", "dense")

    @property
    def is_rounded(self) -> bool:
        """Whether factors are kept in less than the parameters' dtype."""
        return self.chosen in ("factors", "streamed") and self._storage != self.risk.dtype

    def representation(self) -> Representation:
        """Return the chosen one."""
        if self.chosen == "dense":
            return DenseBlock(self.risk, self.layer, self._limits)
        if self.is_stored:
            return StoredFactors(
                self.risk,
                self.layer,
                self._limits,
                storage=self._storage,
                on_host=self.chosen == "streamed",
                look_at=self._measure_rounding if self.is_rounded else None,
            )
        known = self._tail_bytes if self.chosen == "tail" else None
        graphs = KeptGraphs(self.risk, self.name, self._graph, bytes_per_sample=known)
        return OverBatches(self.risk, graphs, self.budget)

    def product_on(self, batch: Batch, row: Tensor) -> Tensor:
        """Multiply as the chosen representation does."""
        if self.is_stored:
            return batch_factors(self.risk, self.layer, batch).product(row)
        return self._graph(batch).product(row, batched=False)

    def curvature_at(self, output: Tensor, batch: Batch) -> OutputProduct:
        """Return the product with ∇²_z L."""
        return loss_curvature(self.risk, output, batch)

    def restricted(self, names: tuple[str, ...]) -> None:
        """Return None: products with a sub-block are as expensive as with the layer's block."""
        return None

    def _graph(self, batch: Batch) -> BatchProduct:
        if self.chosen == "full":
            return HessianGraph(self.risk, batch)
        return TailGraph(self.risk, self.layer, batch)

    def _checked_obstacle(self, check: bool) -> str | None:
        """Say why the layer alone cannot be differentiated, or None; warn of it."""
        risk = self.risk
        obstacle = self.layer.obstacle or self._direct_obstacle()
        if obstacle is None and check:
            with risk.ranks.together(), derivatives_explained(f"`{self._call}`"):
                reason = self._disagreement()
            # What one rank found wrong is wrong for all.
            obstacle = next((what for what in risk.ranks.gather(reason) if what is not None), None)
        if obstacle is not None:
            warnings.warn(
                f"`{self._call}` uses the full product restricted to the block (exact, slower): "
                f"{obstacle}.",
                SubstitutionWarning,
                stacklevel=4,
            )
        return obstacle

    def _direct_obstacle(self) -> str | None:
        """Say if a loss of the user's own depends directly on the layer's parameters."""
        risk = self.risk
        if not isinstance(risk.loss, CallableLoss):
            return None
        with torch.enable_grad(), risk.evaluating(), derivatives_explained(f"`{self._call}`"):
            leaves = risk.leaves()
            batch = next(iter(risk.batches))
            _, total, _ = risk.output_and_total(leaves, batch, detached=True)
            reached = reached_by_loss(total, leaves)
        return None if reached is None else f"the loss depends on '{reached}' directly"

    def _asked(self, plan: Plan, representation: str) -> Plan:
        """Return the plan with what the user asked for, or refuse it."""
        wanted = plan.chosen if representation == "auto" else representation
        obstacle = plan.candidate(wanted).obstacle if wanted != "full" else None
        if obstacle is not None:
            raise UnsupportedModelError(
                f"`LayerHessian(risk, {self.layer.name!r}, representation={wanted!r})` cannot be "
                f"had: {obstacle}."
            )
        if wanted == plan.chosen:
            return plan
        return dataclasses.replace(plan, chosen=wanted, reason="asked for")

    def _checked_batches(self) -> list[Batch]:
        batches, together = self.risk.batches, self.risk.samples_interact
        return few_of_each(batches, _CHECKED, together=together)

    def _disagreement(self) -> str | None:
        reasons = map(self._disagreement_on, self._checked_batches())
        return next((reason for reason in reasons if reason is not None), None)

    def _disagreement_on(self, batch: Batch) -> str | None:
        """Compare the tail with double backward."""
        with self.risk.evaluating():
            try:
                tail = TailGraph(self.risk, self.layer, batch).product(self._probe, batched=False)
            except UnsupportedModelError as error:
                return str(error).split(";")[0]
            except RuntimeError:  # a model that differentiates within itself, by the layer's input
                return f"what follows '{self.layer.name}' is no function of its output alone"
            full = HessianGraph(self.risk, batch).product(self._probe, batched=False)
        if agree(self.risk, tail, full):
            return None
        return f"a product of '{self.layer.name}' disagrees with double backward"

    def _require_agreement(self) -> None:
        """Compare factors and tail on a few samples."""
        risk, do_agree = self.risk, True
        with risk.ranks.together(), derivatives_explained(f"`{self._call}`"), risk.evaluating():
            for batch in self._checked_batches():
                tail = TailGraph(risk, self.layer, batch).product(self._probe, batched=False)
                stored = batch_factors(risk, self.layer, batch).product(self._probe)
                do_agree = do_agree and agree(risk, tail, stored)
        if all(risk.ranks.gather(do_agree)):
            return
        self._plan = dataclasses.replace(
            self._plan, chosen="tail", reason="a product of the factors disagrees with the tail's"
        )
        warnings.warn(
            f"`LayerHessian(risk, {self.layer.name!r})` uses the tail (exact, slower): a product "
            "of stored factors disagrees with it.",
            SubstitutionWarning,
            stacklevel=4,
        )

    def _measure_rounding(self, stored: StoredFactors) -> None:
        """Compare one product of rounded factors with the tail's, over all data."""
        risk = self.risk
        rounded = stored.multiply(self._probe).double()
        with risk.ranks.together(), risk.evaluating():
            total = torch.zeros_like(self._probe, dtype=torch.float64)
            for batch in risk.batches:
                total += TailGraph(risk, self.layer, batch).product(self._probe, batched=False)
        exact = risk.ranks.sum(total) / risk.divisor
        size = float(exact.norm())
        self.storage_error = float((rounded - exact).norm()) / size if size > 0 else 0.0
        name = str(self._storage).removeprefix("torch.")
        if not math.isfinite(self.storage_error):
            raise NonFiniteError(
                f"`LayerHessian(risk, {self.layer.name!r}, storage=torch.{name})`: a factor is "
                "too large for that dtype. Use torch.bfloat16, which has the range of float32."
            )
        note = f"stored in {name}: a product is {self.storage_error:.2g} of itself off"
        self._plan = dataclasses.replace(self._plan, note=note)


def _checked_storage(storage: torch.dtype | None, dtype: torch.dtype) -> torch.dtype:
    if storage is None:
        return dtype
    fitting = [kind for kind in _STORAGES if kind.itemsize <= dtype.itemsize]
    if storage not in fitting:
        raise InvalidArgumentError(
            f"`LayerHessian(storage=...)` must be one of {', '.join(map(str, fitting))} for "
            f"parameters in {dtype}; got {storage}."
        )
    return storage
