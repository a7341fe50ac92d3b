"""A layer's block from stored inputs and Jacobian roots, without any pass through the network.

For a piecewise linear tail, H = (1/D) Σ_n Σ_j vec(R_nj) vec(R_nj)ᵀ with R_nj = Σ_t b_njt x̃_ntᵀ, the
gradient of the layer's matrix W̃ (m × ñ) when r_j goes backward from the output.

Letters: N samples, P positions, C roots; x̃ (N, P, ñ) the layer's inputs, with a 1 for the bias;
b (N, C, P, m) the roots brought back to the layer's output; V (k, m, ñ) the vectors.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from eigenscape.batches import Batch
from eigenscape.errors import UnsupportedModelError
from eigenscape.layers import (
    Layer,
    Tail,
    capture_tail,
    from_matrices,
    input_vectors,
    matrix_obstacle,
    output_vectors,
    to_matrices,
)
from eigenscape.losses import CallableLoss
from eigenscape.operators._piecewise import curved_operation
from eigenscape.operators._roots import exact_roots, have_exact_roots
from eigenscape.risk import EmpiricalRisk

# Intermediate results of a product stay in a processor's cache, and on a GPU within a small part of
# its memory.
_CACHE_BYTES, _GPU_BYTES = 4 * 2**20, 2**29
# Rows of a Gram matrix come in blocks large enough for the product to run at full speed.
_ROWS_BYTES = 2**26


class Factors:
    """Inputs and roots of some samples, and what can be made of them."""

    def __init__(self, layer: Layer, inputs: Tensor, roots: Tensor) -> None:
        """Take x̃ (N, P, ñ) and b (N, C, P, m) as they are."""
        self._layer, self.inputs, self.roots = layer, inputs, roots

    @property
    def nbytes(self) -> int:
        """Memory of what is stored."""
        return sum(t.numel() * t.element_size() for t in (self.inputs, self.roots))

    def product(self, rows: Tensor) -> Tensor:
        """Multiply rows (k, q), without 1/D: U = x̃Vᵀ, s = ⟨b, U⟩, then Σ (b s)ᵀ x̃.

        Args:
            rows: The vectors.

        Returns:
            The products (k, q), float64: sums over chunks of samples are long.
        """
        m, k = self.roots.shape[-1], rows.shape[0]
        V = to_matrices(self._layer, rows, m).reshape(k * m, -1)
        total = torch.zeros_like(V, dtype=torch.float64)
        for x, b in self._chunks(self.inputs.shape[1] * k * m, _CACHE_BYTES):
            N, P, n = x.shape
            flat = x.reshape(N * P, n)
            U = (flat @ V.T).view(N, P, k, m)
            b = b.reshape(N, -1, P * m)
            s = torch.bmm(b, U.transpose(2, 3).reshape(N, P * m, k))
            W = torch.bmm(b.transpose(1, 2), s).view(N, P, m, k).transpose(2, 3)
            total += W.reshape(N * P, k * m).T @ flat
        return from_matrices(self._layer, total.view(k, m, -1))

    def jacobian_rows(self) -> Iterator[Tensor]:
        """Yield vec(R_nj) (rows, q), a chunk of samples at a time."""
        C, m, n = self.roots.shape[1], self.roots.shape[-1], self.inputs.shape[-1]
        for x, b in self._chunks(C * m * n, _ROWS_BYTES):
            R = torch.einsum("ncpm,npi->ncmi", b, x)
            yield from_matrices(self._layer, R.flatten(0, 1))

    def _chunks(self, width: int, cpu_bytes: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Cut the samples so that `width` numbers for each of them stay small."""
        most = _GPU_BYTES if self.inputs.is_cuda else cpu_bytes
        size = max(1, most // (width * self.inputs.element_size()))
        yield from zip(self.inputs.split(size), self.roots.split(size), strict=True)


def factors_obstacle(risk: EmpiricalRisk, layer: Layer, tail: Tail) -> str | None:
    """Say why the block is not a sum of squares of gradients at this layer, or None.

    Args:
        risk: The risk.
        layer: The layer.
        tail: What follows it, for some batch.

    Returns:
        The reason, or None.
    """
    if (obstacle := matrix_obstacle(layer)) is not None:
        return obstacle
    if not have_exact_roots(tail.prediction):
        return "the model's output is not (samples, up to 256 numbers)"
    if isinstance(risk.loss, CallableLoss):
        return "a loss of your own may not be convex in the model's output"
    if (name := curved_operation(tail.prediction, tail.output)) is not None:
        return f"what follows is not known to be piecewise linear ({name})"
    if not risk.batches.is_fixed:
        return "the data are read anew at every pass"
    return None


def batch_factors(risk: EmpiricalRisk, layer: Layer, batch: Batch) -> Factors:
    """Go back from the output once for each root. Cost: C backward passes of the tail.

    Args:
        risk: The risk.
        layer: The layer; what follows it must be piecewise linear.
        batch: The samples.

    Returns:
        Their inputs and roots; no graph is kept.

    Raises:
        UnsupportedModelError: If the block is not made of such factors.
    """
    with torch.enable_grad(), risk.evaluating():
        tail = capture_tail(risk, layer, batch)
        inputs = input_vectors(layer, tail)
        # The plan looked at the first batch; a model may take another road with this one.
        if (reason := factors_obstacle(risk, layer, tail)) is not None:
            raise UnsupportedModelError(
                f"Layer '{layer.name}' cannot be stored as factors: {reason}. Use "
                "`LayerHessian(risk, layer, representation='tail')`."
            )
        roots = exact_roots(risk, tail.prediction.detach(), batch)
        slopes = [
            torch.autograd.grad(tail.prediction, tail.output, root, retain_graph=True)[0]
            for root in roots
        ]
    back = [output_vectors(layer, slope) for slope in slopes]
    return Factors(layer, inputs, torch.stack(back, dim=1))


def all_factors(risk: EmpiricalRisk, layer: Layer) -> Factors:
    """Store the factors of all data in one place, so that a product is a few large contractions.

    Args:
        risk: The risk.
        layer: The layer.

    Returns:
        The factors; at no time are there more than those and one batch's.
    """
    inputs = roots = torch.empty(0)
    first = 0
    for batch in risk.batches:
        part = batch_factors(risk, layer, batch)
        if first == 0:
            inputs = part.inputs.new_empty(risk.num_samples, *part.inputs.shape[1:])
            roots = part.roots.new_empty(risk.num_samples, *part.roots.shape[1:])
        last = first + len(part.inputs)
        inputs[first:last], roots[first:last] = part.inputs, part.roots
        first = last
    return Factors(layer, inputs, roots)
