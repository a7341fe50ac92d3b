"""One layer's own block of the Hessian, by differentiating only what follows the layer.

Letters: a inputs of the layer, W its parameters, z its output, J = ∂z/∂W (constant, since z is
linear in W), L the loss as a function of z.
"""

import dataclasses
import math
import warnings

import torch
from torch import Tensor

from eigenscape.curvature.layers.costs import Place, plan_layer
from eigenscape.curvature.layers.factors import (
    ROWS_BYTES,
    Factors,
    all_factors,
    batch_factors,
    symmetrise,
)
from eigenscape.curvature.layers.plan import REPRESENTATIONS, strictest
from eigenscape.curvature.layers.tail import TailGraph
from eigenscape.curvature.products.graphs import BatchGraph, HessianGraph, reached_by_loss
from eigenscape.curvature.risk_operator import RiskOperator
from eigenscape.device import full_precision
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
    derivatives_explained,
    few_of_each,
    find_layer,
)

_STORAGES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# Samples on which two representations must agree: formulas are right or wrong for all alike.
_CHECKED = 512


class LayerHessian(RiskOperator):
    """The Hessian with respect to the parameters of one layer, exactly.

    For a layer that is linear in its parameters (linear, convolution, embedding, affine part of a
    normalisation) a product is Jᵀ (∇²_z L) J v: the layer itself forwards, the second derivative of
    the tail, the layer backwards. Nothing before the layer is evaluated again, and no weight
    gradient of the tail is formed. Layers that break the premise (tied or called twice, recurrent)
    fall back to the full product restricted to the block, with a `SubstitutionWarning`.

    Five representations give the same matrix. "factors": the layer's inputs and the roots of the
    loss's curvature brought back to its output, multiplied without any pass through the network;
    "streamed": the same, kept in the host's memory and brought to a GPU for each product;
    "dense": the block itself, formed from those; all three only where what follows the layer is
    piecewise linear (ReLU, pooling, affine layers, BatchNorm in eval mode), which is read off the
    autograd graph, confirmed by a product, and makes the block its own Gauss-Newton matrix.
    "tail" and "full" are as above. A plan compares what they cost.

    With `storage=torch.bfloat16` factors are kept rounded, in half the memory. Products are then
    those of another matrix, exactly symmetric, without negative eigenvalues, and `storage_error`
    away. Certify what was found with it by the exact one:
    `certify(LayerHessian(risk, layer), pairs.vectors)`.

    Where the risk has `autocast`, what is stored is one symmetric matrix without `noise`, but made
    of numbers rounded to bfloat16; products of the tail round anew each time.

    Attributes:
        representation: The one in use.
        plan: What was compared; `print(H.plan.explain())`.
        storage_error: ‖H̃v − Hv‖ / ‖Hv‖ for a random v and all data, with H̃ the matrix that is
            multiplied: about ‖H̃ − H‖ / ‖H‖ in the Frobenius norm. 0 where nothing is rounded.

    Examples:
        The block of a linear model under ½·mean ‖z − y‖² is I ⊗ mean(a aᵀ).

        >>> from eigenscape.risk.losses import SquaredError
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
        storage: torch.dtype | None = None,
        check: bool = True,
    ) -> None:
        """Find the layer, compare its representations, and confirm one product.

        Args:
            risk: The function to differentiate; its model must be an `nn.Module`.
            layer: "fc1" for all of the layer's parameters, "fc1.weight" for one of them.
            representation: "auto" for the cheapest, or one of "factors", "streamed", "dense",
                "tail", "full".
            num_products: Products to expect, for the choice.
            memory_budget: As for `Hessian`.
            storage: The dtype in which "factors" and "streamed" are kept; the parameters' by
                default, which is exact. Sums are in float32 at least. Rounded factors are made
                at once, since their error is measured against one product of the tail.
            check: Compare one product of the batch with most targets with full double backward. It
                costs about four gradients of that batch and catches weights that the model uses
                elsewhere by other means than a shared `nn.Parameter`.

        Raises:
            UnsupportedModelError: If the representation asked for cannot be used here.
            InvalidArgumentError: If the parameters would not be rounded to that dtype.
            NonFiniteError: If a factor is too large for it.
        """
        self._call = f"`LayerHessian(risk, {layer!r})`"
        self._layer = find_layer(risk, layer, self._call.strip("`"))
        super().__init__(risk.restricted(self._layer.params), memory_budget)
        require_choice(
            representation, ("auto", *REPRESENTATIONS), "LayerHessian(representation=...)"
        )
        require_count(num_products, "LayerHessian(num_products=...)")
        self._storage = _checked_storage(storage, self.dtype)
        self.storage_error = 0.0
        self._stored: Factors | Tensor | None = None
        self._num_rows: int | None = None
        self.representation = "tail"
        obstacle = self._layer.obstacle or self._direct_obstacle()
        if obstacle is None and check:
            with risk.ranks.together(), derivatives_explained(self._call):
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
        self._place = Place(self.device.type, self._budget, self.dtype.itemsize)
        with risk.ranks.together(), derivatives_explained(self._call):
            own, work = plan_layer(
                self.risk,
                self._layer,
                self._place,
                self._probes()[:1],
                obstacle=obstacle,
                num_products=num_products,
                storage=self._storage.itemsize,
                asked=representation,
            )
        # Rows of other ranks are not here, so inner products with them cannot be had.
        if risk.ranks.size == 1 and work is not None and work.num_roots is not None:
            self._num_rows = risk.num_samples * work.num_roots
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
        self.representation = wanted
        if wanted == "tail" and work is not None:
            self._bytes_per_sample = work.graph / work.batch_share / risk.num_own_samples
        if wanted in ("factors", "streamed", "dense") and check:
            self._require_agreement()
        if self._is_rounded:
            self._current()

    def _graph(self, batch: Batch) -> BatchGraph:
        if self.representation == "full":
            return HessianGraph(self.risk, batch)
        return TailGraph(self.risk, self._layer, batch)

    def _direct_obstacle(self) -> str | None:
        """Say if a loss of the user's own reaches the layer's parameters beside the output."""
        if not isinstance(self.risk.loss, CallableLoss):
            return None
        with torch.enable_grad(), self.risk.evaluating(), derivatives_explained(self._call):
            leaves = self.risk.leaves()
            batch = next(iter(self.risk.batches))
            _, total, _ = self.risk.output_and_total(leaves, batch, detached=True)
            reached = reached_by_loss(total, leaves)
        return None if reached is None else f"the loss depends on '{reached}' directly"

    def _settings(self) -> tuple[object, ...]:
        return (self.representation,)

    def product_on(self, batch: Batch, row: Tensor) -> Tensor:
        """Multiply a row (1, n) with what a batch adds to the block, as the representation does."""
        if self.representation in ("tail", "full"):
            return super().product_on(batch, row)
        return batch_factors(self.risk, self._layer, batch).product(row)

    @property
    def kept_bytes(self) -> int:
        """Memory on the device that products keep; known after the first product, 0 before."""
        if isinstance(self._stored, Factors):
            return self._stored.nbytes if self._stored.roots.device == self.device else 0
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
            UnsupportedModelError: If the representation has no factors.
        """
        return self._require_factors().gram() / self.risk.divisor

    def combined_rows(self, weights: Tensor) -> Tensor:
        """Return Rᵀu (q, k) for weights u (N·C, k): an eigenvector of RRᵀ becomes the block's.

        Args:
            weights: One row for each row of R, float64.

        Returns:
            The sums, float64.

        Raises:
            UnsupportedModelError: If the representation has no factors.
        """
        return self._require_factors().combinations(weights).T / math.sqrt(self.risk.divisor)

    def _to_dense(self) -> Tensor:
        stored = self._current() if self.representation == "dense" else None
        return stored.clone() if isinstance(stored, Tensor) else super()._to_dense()

    def _require_factors(self) -> Factors:
        if self.risk.ranks.size > 1:
            raise UnsupportedModelError(
                f"The rows of `LayerHessian(risk, {self._layer.name!r})` are spread over "
                f"{self.risk.ranks.size} processes. Use `eigsh`, or one process."
            )
        stored = self._current() if self.representation in ("factors", "streamed") else None
        if isinstance(stored, Factors):
            return stored
        raise UnsupportedModelError(
            f"The rows of `LayerHessian(risk, {self._layer.name!r})` are had from its factors; its "
            f"representation is {self.representation!r}. Pass `representation='factors'`."
        )

    def _product(self, X: Tensor) -> Tensor:
        if self.representation in ("tail", "full"):
            return super()._product(X)
        return self._guarded(lambda: self._multiplied(self._kept_or_made(), X))

    @property
    def _is_rounded(self) -> bool:
        return self.representation in ("factors", "streamed") and self._storage != self.dtype

    def _current(self) -> Factors | Tensor:
        """Return what is stored for the parameters as they are now."""
        with derivatives_explained(self._call):
            self._ready(wait=True)
            return self._kept_or_made()

    def _forget(self) -> None:
        super()._forget()
        self._stored = None

    def _kept_or_made(self) -> Factors | Tensor:
        if self._stored is None:
            self._stored = (
                self._formed() if self.representation == "dense" else self._kept_factors()
            )
            if self._is_rounded:
                self._measure_rounding(self._stored)
        return self._stored

    def _kept_factors(self) -> Factors:
        with self.risk.ranks.together():
            return all_factors(
                self.risk,
                self._layer,
                storage=self._storage,
                on_host=self.representation == "streamed",
                gpu_bytes=self._place.gpu_bytes,
            )

    def _measure_rounding(self, stored: Factors | Tensor) -> None:
        """Compare one product of rounded factors with the tail's, over all data."""
        probe = self._probes()[:1]
        rounded = self._multiplied(stored, probe.T).double()
        with self.risk.ranks.together(), self.risk.evaluating():
            total = torch.zeros_like(probe, dtype=torch.float64)
            for batch in self.risk.batches:
                total += TailGraph(self.risk, self._layer, batch).product(probe, batched=False)
        exact = self.risk.ranks.sum(total).T / self.risk.divisor
        size = float(exact.norm())
        self.storage_error = float((rounded - exact).norm()) / size if size > 0 else 0.0
        name = str(self._storage).removeprefix("torch.")
        if not math.isfinite(self.storage_error):
            raise NonFiniteError(
                f"`LayerHessian(risk, {self._layer.name!r}, storage=torch.{name})`: a factor is "
                "too large for that dtype. Use torch.bfloat16, which has the range of float32."
            )
        note = f"stored in {name}: a product is {self.storage_error:.2g} of itself off"
        self.plan = dataclasses.replace(self.plan, note=note)

    @full_precision()
    def _multiplied(self, stored: Factors | Tensor, X: Tensor) -> Tensor:
        if isinstance(stored, Tensor):
            return stored @ X
        with self.risk.ranks.together():
            own = stored.product(X.T)
        return (self.risk.ranks.sum(own) / self.risk.divisor).to(self.dtype).T

    @full_precision()
    def _formed(self) -> Tensor:
        """Form the block as a sum of Gram matrices; long sums in float64."""
        n = self.space.size
        with self.risk.ranks.together():
            own = torch.zeros(n, n, dtype=torch.float64, device=self.device)
            for batch in self.risk.batches:
                batch_factors(
                    self.risk, self._layer, batch, gpu_bytes=self._place.gpu_bytes
                ).add_to(own)
        total = self.risk.ranks.sum(own)
        symmetrise(total, self._place.limit(ROWS_BYTES))
        return total.div_(self.risk.divisor).to(self.dtype)

    def _require_agreement(self) -> None:
        """Compare factors and tail on a few samples."""
        probe, own = self._probes()[:1], True
        with (
            self.risk.ranks.together(),
            derivatives_explained(self._call),
            self.risk.evaluating(),
        ):
            for batch in self._checked():
                tail = TailGraph(self.risk, self._layer, batch).product(probe, batched=False)
                stored = batch_factors(self.risk, self._layer, batch).product(probe)
                own = own and self._agree(tail, stored)
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

    def _checked(self) -> list[Batch]:
        batches, together = self.risk.batches, self.risk.samples_interact
        return few_of_each(batches, _CHECKED, together=together)

    def _disagreement(self) -> str | None:
        reasons = (self._disagreement_on(batch) for batch in self._checked())
        return next((reason for reason in reasons if reason is not None), None)

    def _disagreement_on(self, batch: Batch) -> str | None:
        probe = self._probes()[:1]
        with self.risk.evaluating():
            try:
                tail = TailGraph(self.risk, self._layer, batch).product(probe, batched=False)
            except UnsupportedModelError as error:
                return str(error).split(";")[0]
            except RuntimeError:  # a model that differentiates within itself, by the layer's input
                return f"what follows '{self._layer.name}' is no function of its output alone"
            full = HessianGraph(self.risk, batch).product(probe, batched=False)
        if self._agree(tail, full):
            return None
        return f"a product of '{self._layer.name}' disagrees with double backward"


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
