"""One layer's own block of the Hessian, by differentiating only what follows the layer.

Letters: a inputs of the layer, W its parameters, z its output, J = ∂z/∂W (constant, since z is
linear in W), L the loss as a function of z.
"""

import warnings

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from eigenscape.batches import Batch
from eigenscape.errors import SubstitutionWarning, UnsupportedModelError
from eigenscape.layers import apply_layer, capture_tail, find_layer
from eigenscape.operators._graphs import (
    BatchGraph,
    HessianGraph,
    RiskOperator,
    gradients,
    join_rows,
    split_rows,
)
from eigenscape.risk import EmpiricalRisk, leaf_copies


class LayerHessian(RiskOperator):
    """The Hessian with respect to the parameters of one layer, exactly.

    For a layer that is linear in its parameters (linear, convolution, embedding, affine part of a
    normalisation) a product is Jᵀ (∇²_z L) J v: the layer itself forwards, the second derivative of
    the tail, the layer backwards. Nothing before the layer is evaluated again, and no weight
    gradient of the tail is formed. Layers that break the premise (tied or called twice, recurrent)
    fall back to the full product restricted to the block, with a `SubstitutionWarning`.

    Attributes:
        representation: "tail", or "full" where it fell back.

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
        memory_budget: int | None = None,
        check: bool = True,
    ) -> None:
        """Find the layer and confirm with one product that its tail is all that matters.

        Args:
            risk: The function to differentiate; its model must be an `nn.Module`.
            layer: "fc1" for all of the layer's parameters, "fc1.weight" for one of them.
            memory_budget: As for `Hessian`.
            check: Compare one product of the first batch with full double backward. It costs about
                four gradients of that batch and catches weights that the model uses elsewhere
                by other means than a shared `nn.Parameter`.
        """
        self._layer = find_layer(risk, layer)
        super().__init__(risk.restricted(self._layer.params), memory_budget)
        self.representation = "tail"
        obstacle = self._layer.obstacle
        if obstacle is None and check:
            obstacle = self._disagreement()
        if obstacle is not None:
            self.representation = "full"
            warnings.warn(
                f"`LayerHessian(risk, {layer!r})` uses the full product restricted to the block "
                f"(exact, slower): {obstacle}.",
                SubstitutionWarning,
                stacklevel=2,
            )

    def _graph(self, batch: Batch) -> BatchGraph:
        if self.representation == "full":
            return HessianGraph(self.risk, batch)
        return _TailGraph(self, batch)

    def _disagreement(self) -> str | None:
        batch = next(iter(self.risk.batches))
        probe = torch.ones(1, self.space.size, dtype=self.dtype, device=self.device)
        probe[0, 1::2] = -0.5  # any fixed direction that is not an eigenvector by symmetry
        with self.risk.evaluating():
            try:
                tail = _TailGraph(self, batch).product(probe, batched=False)
            except UnsupportedModelError as error:
                return str(error).split(";")[0]
            except CheckpointError:
                return f"activation checkpointing evaluates '{self._layer.name}' again"
            full = HessianGraph(self.risk, batch).product(probe, batched=False)
        # Two exact ways in floating point: rounding stays far below √eps, a missing term does not.
        slack = torch.finfo(self.dtype).eps ** 0.5
        if (tail - full).norm() <= slack * torch.maximum(tail.norm(), full.norm()):
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
