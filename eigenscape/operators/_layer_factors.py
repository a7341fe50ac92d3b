"""A layer's block from stored inputs and Jacobian roots, without any pass through the network.

For a piecewise linear tail, H = (1/D) Σ_n Σ_j vec(R_nj) vec(R_nj)ᵀ with R_nj = Σ_t b_njt x̃_ntᵀ, the
gradient of the layer's matrix W̃ (m × ñ) when r_j goes backward from the output.

Letters: N samples, P positions, C roots; x̃ (N, P, ñ) the layer's inputs, with a 1 for the bias;
b (N, C, P, m) the roots brought back to the layer's output; V (k, m, ñ) the vectors.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

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

_Part = TypeVar("_Part")


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
            s = torch.bmm(b.reshape(N, -1, P * m), U.transpose(2, 3).reshape(N, P * m, k))
            total += _weighted(x, b, s)
        return from_matrices(self._layer, total.view(k, m, -1))

    def combinations(self, weights: Tensor) -> Tensor:
        """Add the rows vec(R_nj), each with its weight, without forming them.

        Args:
            weights: Weights (N·C, k), float64, in the order of `gram`.

        Returns:
            The sums (k, q), float64.
        """
        (N, C, P, m), k = self.roots.shape, weights.shape[1]
        total = weights.new_zeros(k * m, self.inputs.shape[-1])
        parts = iter(weights.reshape(N, C, k).split(self._size(P * k * m, _CACHE_BYTES)))
        for x, b in self._chunks(P * k * m, _CACHE_BYTES):
            total += _weighted(x.double(), b.double(), next(parts))
        return from_matrices(self._layer, total.view(k, m, -1))

    def gram(self) -> Tensor:
        """Return ⟨R_nj, R_n'j'⟩ (N·C, N·C), without 1/D, all in float64.

        Two ways, by what they cost: Σ_pp' (b_p·b'_p')(x̃_p·x̃'_p'), in which no row is formed (one
        position), or the rows themselves (many positions).
        """
        N, C, P, m = self.roots.shape
        n = self.inputs.shape[-1]
        if P * P * (n + C * C * m) <= C * (C + P / N) * m * n:
            # Pairs of parts hold (C·P)² numbers for each pair of samples.
            side = int((self._limit(_ROWS_BYTES) / 16) ** 0.5) // (C * P)
            return self._by_pairs(lambda x, b: (x, b), _contracted, max(1, side))
        # Rows may take as much memory as the matrix: small parts would be formed too often.
        most = max(self._limit(_ROWS_BYTES), 8 * (N * C) ** 2)
        return self._by_pairs(_rows, lambda R, S: R @ S.T, max(1, most // (8 * C * m * n)))

    def _by_pairs(
        self,
        prepare: Callable[[Tensor, Tensor], _Part],
        multiply: Callable[[_Part, _Part], Tensor],
        size: int,
    ) -> Tensor:
        """Fill a symmetric matrix from pairs of parts of so many samples."""
        N, C = self.roots.shape[:2]
        K = torch.empty(N * C, N * C, dtype=torch.float64, device=self.inputs.device)

        def part(start: int) -> _Part:
            picked = slice(start, start + size)
            return prepare(self.inputs[picked].double(), self.roots[picked].double())

        for i in range(0, N, size):
            first = part(i)
            for j in range(i, N, size):
                block = multiply(first, first if i == j else part(j))
                rows = slice(i * C, i * C + block.shape[0])
                columns = slice(j * C, j * C + block.shape[1])
                K[rows, columns], K[columns, rows] = block, block.T
        return K

    def jacobian_rows(self) -> Iterator[Tensor]:
        """Yield vec(R_nj) (rows, q), a chunk of samples at a time."""
        C, m, n = self.roots.shape[1], self.roots.shape[-1], self.inputs.shape[-1]
        for x, b in self._chunks(C * m * n, _ROWS_BYTES):
            R = torch.einsum("ncpm,npi->ncmi", b, x)
            yield from_matrices(self._layer, R.flatten(0, 1))

    def _chunks(self, width: int, cpu_bytes: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Cut the samples so that `width` numbers for each of them stay small."""
        size = self._size(width, cpu_bytes)
        yield from zip(self.inputs.split(size), self.roots.split(size), strict=True)

    def _size(self, width: int, cpu_bytes: int) -> int:
        return max(1, self._limit(cpu_bytes) // (width * self.inputs.element_size()))

    def _limit(self, cpu_bytes: int) -> int:
        return _GPU_BYTES if self.inputs.is_cuda else cpu_bytes


def _weighted(x: Tensor, b: Tensor, s: Tensor) -> Tensor:
    """Return Σ_nj s_njk R_nj as (k·m, ñ)."""
    (N, P, n), (m, k) = x.shape, (b.shape[-1], s.shape[-1])
    W = torch.bmm(b.reshape(N, -1, P * m).transpose(1, 2), s).view(N, P, m, k).transpose(2, 3)
    return W.reshape(N * P, k * m).T @ x.reshape(N * P, n)


def _rows(x: Tensor, b: Tensor) -> Tensor:
    """Return R_nj as rows (N·C, m·ñ)."""
    return torch.einsum("ncpm,npi->ncmi", b, x).flatten(2).flatten(0, 1)


def _contracted(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """Return ⟨R_nj, R_n'j'⟩ = Σ_pp' (b_p·b'_p')(x̃_p·x̃'_p') for two parts."""
    (x, b), (y, d) = first, second
    (N, P, n), (M, _, _), C, m = x.shape, y.shape, b.shape[1], b.shape[-1]
    X = (x.reshape(N * P, n) @ y.reshape(M * P, n).T).view(N, 1, P, M, 1, P)
    B = (b.reshape(N * C * P, m) @ d.reshape(M * C * P, m).T).view(N, C, P, M, C, P)
    return (B * X).sum(dim=(2, 5)).view(N * C, M * C)


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
    """Store the factors of this rank's data in one place: a product is a few contractions.

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
            inputs = part.inputs.new_empty(risk.num_own_samples, *part.inputs.shape[1:])
            roots = part.roots.new_empty(risk.num_own_samples, *part.roots.shape[1:])
        last = first + len(part.inputs)
        inputs[first:last], roots[first:last] = part.inputs, part.roots
        first = last
    return Factors(layer, inputs, roots)
