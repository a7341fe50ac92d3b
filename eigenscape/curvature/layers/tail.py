"""A batch's contribution to a layer's block: the layer, the tail's second derivative, the layer."""

import torch
from torch import Tensor

from eigenscape.curvature.products.graphs import gradients
from eigenscape.curvature.products.representation import BatchProduct, join_rows, split_rows
from eigenscape.risk import Batch, EmpiricalRisk, Layer, apply_layer, capture_tail, leaf_copies


class TailGraph(BatchProduct):
    """Graphs of the tail's gradient at z and of the layer as a function of its parameters."""

    def __init__(self, risk: EmpiricalRisk, layer: Layer, batch: Batch) -> None:
        self._layer, self._casting = layer, risk.casting
        self._leaves = list(leaf_copies(risk.parameters()).values())
        with torch.enable_grad(), risk.evaluating():
            self._tail = capture_tail(risk, self._layer, batch)
            self._slope = gradients(self._tail.total, [self._tail.output], None, create_graph=True)
            self._outputs = self._push(self._leaves)

    def product(self, rows: Tensor, *, batched: bool) -> Tensor:
        """Multiply rows (k, n)."""
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
        pulled = gradients(self._outputs, self._leaves, bent, batched=batched)
        return join_rows(pulled, rows, self._leaves)

    def _push(self, values: list[Tensor]) -> Tensor:
        named = dict(zip(self._layer.fields, values, strict=True))
        with self._casting():
            return apply_layer(self._layer, named, self._tail)
