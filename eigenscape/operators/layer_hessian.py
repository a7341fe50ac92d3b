"""One layer's own block of the Hessian, by differentiating only what follows the layer.

Letters: a inputs of the layer, W its parameters, z its output, J = ∂z/∂W (constant, since z is
linear in W), L the loss as a function of z.
"""

import dataclasses
import math
import warnings

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from eigenscape.batches import Batch
from eigenscape.errors import (
    SubstitutionWarning,
    UnsupportedModelError,
    require_choice,
    require_count,
)
from eigenscape.layers import (
    Tail,
    apply_layer,
    capture_tail,
    find_layer,
    input_vectors,
    output_vectors,
)
from eigenscape.operators._batch_graphs import (
    BatchGraph,
    HessianGraph,
    gradients,
    join_rows,
    split_rows,
)
from eigenscape.operators._layer_factors import (
    Factors,
    all_factors,
    batch_factors,
    factors_obstacle,
)
from eigenscape.operators._layer_plan import (
    MACHINES,
    REPRESENTATIONS,
    Candidate,
    LayerPlan,
    choose,
    strictest,
)
from eigenscape.operators._risk_operator import RiskOperator, agree
from eigenscape.precision import full_precision
from eigenscape.risk import EmpiricalRisk, leaf_copies


class LayerHessian(RiskOperator):
    """The Hessian with respect to the parameters of one layer, exactly.

    For a layer that is linear in its parameters (linear, convolution, embedding, affine part of a
    normalisation) a product is Jᵀ (∇²_z L) J v: the layer itself forwards, the second derivative of
    the tail, the layer backwards. Nothing before the layer is evaluated again, and no weight
    gradient of the tail is formed. Layers that break the premise (tied or called twice, recurrent)
    fall back to the full product restricted to the block, with a `SubstitutionWarning`.

    Four representations give the same matrix. "factors": the layer's inputs and the roots of the
    loss's curvature brought back to its output, multiplied without any pass through the network;
    "dense": the block itself, formed from those; both only where what follows the layer is
    piecewise linear (ReLU, pooling, affine layers, BatchNorm in eval mode), which is read off the
    autograd graph, confirmed by a product, and makes the block its own Gauss-Newton matrix.
    "tail" and "full" are as above. A plan compares what they cost.

    Attributes:
        representation: The one in use.
        plan: What was compared; `print(H.plan.explain())`.

    Examples:
        The block of a linear model under ½·mean ‖z − y‖² is I ⊗ mean(a aᵀ).

        >>> from eigenscape.losses import SquaredError
        >>> a = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False))
        >>> risk = EmpiricalRisk(model, SquaredError(), (a, torch.zeros(2, 1)))
        >>> LayerHessian(risk, "0").to_dense()
        tensor([[1., 1.],
                [1., 2.]])
    """

    def __init__(
        self,
        risk: EmpiricalRisk,
        layer: str,
        *,
        representation: str = "auto",
        num_products: int = 100,
        memory_budget: int | None = None,
        check: bool = True,
    ) -> None:
        """Find the layer, compare its representations, and confirm one product.

        Args:
            risk: The function to differentiate; its model must be an `nn.Module`.
            layer: "fc1" for all of the layer's parameters, "fc1.weight" for one of them.
            representation: "auto" for the cheapest, or one of "factors", "dense", "tail", "full".
            num_products: Products to expect, for the choice.
            memory_budget: As for `Hessian`.
            check: Compare one product of the first batch with full double backward. It costs about
                four gradients of that batch and catches weights that the model uses elsewhere
                by other means than a shared `nn.Parameter`.

        Raises:
            UnsupportedModelError: If the representation asked for cannot be used here.
        """
        self._layer = find_layer(risk, layer)
        super().__init__(risk.restricted(self._layer.params), memory_budget)
        require_choice(
            representation, ("auto", *REPRESENTATIONS), "LayerHessian(representation=...)"
        )
        require_count(num_products, "LayerHessian(num_products=...)")
        self._stored: Factors | Tensor | None = None
        self._num_rows: int | None = None
        self.representation = "tail"
        obstacle = self._layer.obstacle
        if obstacle is None and check:
            with risk.ranks.together():
                found = self._disagreement()
            # What one rank found wrong is wrong for all.
            obstacle = next((what for what in risk.ranks.gather(found) if what is not None), None)
        if obstacle is not None:
            self.representation = "full"
            warnings.warn(
                f"`LayerHessian(risk, {layer!r})` uses the full product restricted to the block "
                f"(exact, slower): {obstacle}.",
                SubstitutionWarning,
                stacklevel=2,
            )
        with risk.ranks.together():
            own = self._make_plan(obstacle, num_products)
        self.plan = strictest(risk.ranks.gather(dataclasses.asdict(own)))
        wanted = self.plan.chosen if representation == "auto" else representation
        blocked = self.plan.candidate(wanted).obstacle if wanted != "full" else None
        if blocked is not None:
            raise UnsupportedModelError(
                f"`LayerHessian(risk, {layer!r}, representation={wanted!r})` cannot be had: "
                f"{blocked}."
            )
        if wanted != self.plan.chosen:
            self.plan = dataclasses.replace(self.plan, chosen=wanted, reason="asked for")
        self.representation, self._bytes_per_sample = wanted, None
        if wanted in ("factors", "dense") and check:
            self._require_agreement()

    def _graph(self, batch: Batch) -> BatchGraph:
        if self.representation == "full":
            return HessianGraph(self.risk, batch)
        return _TailGraph(self, batch)

    @property
    def kept_bytes(self) -> int:
        """Memory of what products keep; known after the first product, 0 before."""
        if isinstance(self._stored, Factors):
            return self._stored.nbytes
        if self._stored is not None:
            return self._stored.numel() * self._stored.element_size()
        return super().kept_bytes

    @property
    def memory_budget(self) -> int:
        """Bytes that products may keep."""
        return self._budget

    @property
    def num_rows(self) -> int | None:
        """N·C rows R with block = RᵀR, where what follows is piecewise linear; else None."""
        return self._num_rows

    def row_gram(self) -> Tensor:
        """Return RRᵀ (N·C, N·C) in float64, R the rows of which the block is RᵀR.

        The two matrices have the same non-zero eigenvalues, and this one is the smaller where
        samples are few. Cost: C backward passes of the tail, then (N·C)² inner products.

        Raises:
            UnsupportedModelError: If the representation is not "factors".
        """
        return self._require_factors().gram() / self.risk.divisor

    def combined_rows(self, weights: Tensor) -> Tensor:
        """Return Rᵀu (q, k) for weights u (N·C, k): an eigenvector of RRᵀ becomes the block's.

        Args:
            weights: One row for each row of R, float64.

        Returns:
            The sums, float64.

        Raises:
            UnsupportedModelError: If the representation is not "factors".
        """
        return self._require_factors().combinations(weights).T / math.sqrt(self.risk.divisor)

    def to_dense(self, **limits: int) -> Tensor:
        """Return the block as `LinearOperator.to_dense` does; one that is formed already, at once.

        Args:
            limits: `max_bytes`, as there.

        Returns:
            The block (q, q).
        """
        if self.representation != "dense":
            return super().to_dense(**limits)
        stored = self._current()
        return stored.clone() if isinstance(stored, Tensor) else super().to_dense(**limits)

    def _require_factors(self) -> Factors:
        if self.risk.ranks.size > 1:
            raise UnsupportedModelError(
                f"The rows of `LayerHessian(risk, {self._layer.name!r})` are spread over "
                f"{self.risk.ranks.size} processes. Use `eigsh`, or one process."
            )
        stored = self._current() if self.representation == "factors" else None
        if isinstance(stored, Factors):
            return stored
        raise UnsupportedModelError(
            f"The rows of `LayerHessian(risk, {self._layer.name!r})` are had from its factors; its "
            f"representation is {self.representation!r}. Pass `representation='factors'`."
        )

    def _product(self, X: Tensor) -> Tensor:
        if self.representation in ("tail", "full"):
            return super()._product(X)
        return self._finite(self._multiplied(self._current(), X))

    def _current(self) -> Factors | Tensor:
        """Return what is stored for the parameters as they are now."""
        version = self.risk.version()
        if self._stored is None or version != self._version:
            self._stored = None  # before the new one takes its memory
            is_dense = self.representation == "dense"
            with self.risk.ranks.together():
                own = self._formed() if is_dense else all_factors(self.risk, self._layer)
            self._stored = self._normalised(own) if isinstance(own, Tensor) else own
            self._version = version
        return self._stored

    @full_precision()
    def _multiplied(self, stored: Factors | Tensor, X: Tensor) -> Tensor:
        if isinstance(stored, Tensor):
            return stored @ X
        with self.risk.ranks.together():
            own = stored.product(X.T)
        return (self.risk.ranks.sum(own) / self.risk.divisor).to(self.dtype).T

    @full_precision()
    def _formed(self) -> Tensor:
        """Form this rank's part of the block as a sum of Gram matrices; long sums in float64."""
        n = self.space.size
        total = torch.zeros(n, n, dtype=torch.float64, device=self.device)
        for batch in self.risk.batches:
            for rows in batch_factors(self.risk, self._layer, batch).jacobian_rows():
                total += rows.T @ rows
        return total

    def _normalised(self, own: Tensor) -> Tensor:
        total = self.risk.ranks.sum(own)
        return ((total + total.T) / (2 * self.risk.divisor)).to(self.dtype)

    def _make_plan(self, obstacle: str | None, num_products: int) -> LayerPlan:
        """Count what each representation would cost, on the first batch."""
        machine = MACHINES.get(self.device.type, MACHINES["cpu"])

        def plan(*candidates: Candidate) -> LayerPlan:
            return choose(
                self._layer.name,
                candidates,
                num_products=num_products,
                memory_budget=self._budget,
                machine=machine,
            )

        if obstacle is not None:
            names = ("factors", "dense", "tail")
            return plan(*(Candidate(n, obstacle=obstacle) for n in names), Candidate("full"))
        batch = next(iter(self.risk.batches))
        with torch.enable_grad(), self.risk.evaluating():
            tail = capture_tail(self.risk, self._layer, batch)
            reason = factors_obstacle(self.risk, self._layer, tail)
            graph = _TailGraph(self, batch)
            flops = self._flops(graph) * self.risk.num_own_samples / batch.size
        self._measure(batch)
        held = (self._bytes_per_sample or 0.0) * self.risk.num_own_samples
        passes = Candidate(
            "tail",
            product_flops=flops,
            traffic=2 * held,
            nbytes=held,
            passes=2 * (self._num_batches() or 1),
        )
        full = Candidate("full", obstacle="never cheaper than the tail")
        if reason is not None:
            return plan(
                *(Candidate(n, obstacle=reason) for n in ("factors", "dense")), full, passes
            )
        return plan(*self._stored_costs(tail, flops), full, passes)

    def _stored_costs(self, tail: Tail, flops: float) -> tuple[Candidate, Candidate]:
        """Count for factors and for the dense block, given what a product of the tail takes."""
        x = input_vectors(self._layer, tail)
        m = output_vectors(self._layer, tail.output).shape[-1]
        N, P, n = self.risk.num_own_samples, x.shape[1], x.shape[2]
        C, q, size = tail.prediction.shape[1], self.space.size, x.element_size()
        # Rows of other ranks are not here, so inner products with them cannot be had.
        self._num_rows = N * C if self.risk.ranks.size == 1 else None
        # A pass back from the output is about half of a product: that has one more for the slope.
        roots = C * flops / 2
        held = float(N * P * (n + C * m) * size)
        return (
            Candidate(
                "factors",
                build_flops=roots,
                build_passes=C * (self._num_batches() or 1),
                product_flops=4.0 * N * P * m * (n + C),
                traffic=2 * held,
                nbytes=held,
            ),
            Candidate(
                "dense",
                build_flops=roots + 2.0 * N * C * (P * m * n + q * q),
                build_passes=C * (self._num_batches() or 1),
                product_flops=2.0 * q * q,
                traffic=float(q * q * size),
                nbytes=float(q * q * (size + 16)),  # it is summed in float64
            ),
        )

    def _require_agreement(self) -> None:
        """Compare factors and tail on the first batch."""
        batch = next(iter(self.risk.batches))
        probe = self._probes()[:1]
        with self.risk.ranks.together(), self.risk.evaluating():
            tail = _TailGraph(self, batch).product(probe, batched=False)
            stored = batch_factors(self.risk, self._layer, batch).product(probe)
            own = agree(tail, stored)
        if all(self.risk.ranks.gather(own)):
            return
        self.representation = "tail"
        self.plan = dataclasses.replace(
            self.plan, chosen="tail", reason="a product of the factors disagrees with the tail's"
        )
        warnings.warn(
            f"`LayerHessian(risk, {self._layer.name!r})` uses the tail (exact, slower): a product "
            "of stored factors disagrees with it.",
            SubstitutionWarning,
            stacklevel=3,
        )

    def _disagreement(self) -> str | None:
        batch = next(iter(self.risk.batches))
        probe = self._probes()[:1]
        with self.risk.evaluating():
            try:
                tail = _TailGraph(self, batch).product(probe, batched=False)
            except UnsupportedModelError as error:
                return str(error).split(";")[0]
            except CheckpointError:
                return f"activation checkpointing evaluates '{self._layer.name}' again"
            full = HessianGraph(self.risk, batch).product(probe, batched=False)
        if agree(tail, full):
            return None
        return f"a product of '{self._layer.name}' disagrees with double backward"


class _TailGraph(BatchGraph):
    """Graphs of the tail's gradient at z and of the layer as a function of its parameters."""

    def __init__(self, operator: LayerHessian, batch: Batch) -> None:
        risk, self._layer = operator.risk, operator._layer
        self._leaves = list(leaf_copies(risk.parameters()).values())
        with torch.enable_grad(), risk.evaluating():
            self._tail = capture_tail(risk, self._layer, batch)
            self._slope = gradients(self._tail.total, [self._tail.output], None, create_graph=True)
            self._own = apply_layer(self._layer, self._named(self._leaves), self._tail)

    def product(self, rows: Tensor, *, batched: bool) -> Tensor:
        columns = split_rows(rows, self._leaves)
        with torch.no_grad():
            if batched:
                moves = [self._push([c[i] for c in columns]) for i in range(rows.shape[0])]
                moved = torch.stack(moves)
            else:
                moved = self._push(columns)
        (bent,) = gradients(self._slope, [self._tail.output], [moved], batched=batched)
        if bent is None:
            return torch.zeros_like(rows)
        pulled = gradients(self._own, self._leaves, bent, batched=batched)
        return join_rows(pulled, rows, self._leaves)

    def _push(self, values: list[Tensor]) -> Tensor:
        return apply_layer(self._layer, self._named(values), self._tail)

    def _named(self, values: list[Tensor]) -> dict[str, Tensor]:
        return dict(zip(self._layer.fields, values, strict=True))
