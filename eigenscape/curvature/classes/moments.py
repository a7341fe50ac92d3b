"""Second moments of a layer's inputs and backpropagated roots, one of each for every class.

Letters: x̃ (n) input of a layer with a 1 for its bias, m outputs, P positions, b (m) a root of the
loss's curvature brought back to the layer's output, so that Σ b bᵀ is the Gauss-Newton matrix
there, π_c the share of samples of class c, D the risk's divisor. With cross-entropy the roots are
−√p_c' δ_c', δ_c' the derivative of the loss if the label were c' (Papyan §7.2).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eigenscape.curvature.classes.loss import require_class_loss
from eigenscape.curvature.matrix_layers import capture_shifts
from eigenscape.curvature.output_hessian import draws_needed, gram, output_roots
from eigenscape.curvature.products.graphs import require_tensor_output
from eigenscape.errors import UnsupportedModelError
from eigenscape.risk import (
    Batch,
    EmpiricalRisk,
    Layer,
    SampleRows,
    input_vectors,
    layer_input,
    output_vectors,
)

_INSTEAD = "`ClassGradients` takes every layout, and so does `GaussNewton`."


@dataclass(frozen=True)
class ClassMoments:
    """Moments of the K classes that occur, float64.

    Attributes:
        classes: Their numbers (K,).
        weights: π_c (K,).
        outputs: Δ_c (K, m, m), with π_c Δ_c = (1/D) Σ b bᵀ over the samples of the class.
        inputs: H_c (K, n, n), the mean of x̃x̃ᵀ over the class.
        num_samples: Targets drawn for each sample; None where roots are exact.
    """

    classes: Tensor
    weights: Tensor
    outputs: Tensor
    inputs: Tensor
    num_samples: int | None


def class_moments(
    risk: EmpiricalRisk,
    layers: Sequence[Layer],
    call: str,
    *,
    shared: bool,
    per_class: bool = True,
    num_samples: int | None = None,
    seed: int = 0,
) -> ClassMoments:
    """Pass over the data once. Cost: C backward passes; K·(m² + n²) numbers for K classes.

    Args:
        risk: It must pass `labels_of`.
        layers: Their vectors are joined, one after the other.
        call: The user's call, for messages.
        shared: Sum roots and average inputs over positions, so that each sample has one vector of
            both; needed for several layers. Else every position of a single layer counts by itself.
        per_class: Whether classes are kept apart; else all samples form one class.
        num_samples: As for `KroneckerHessian`.
        seed: Fixes the drawn targets.

    Returns:
        The moments.

    Raises:
        UnsupportedModelError: If a layer's rows are not samples.
    """
    sums = _Sums(layers, shared, num_samples, SampleRows(call, _INSTEAD))
    with risk.ranks.together():
        for batch in risk.batches:
            with torch.enable_grad(), risk.evaluating(frozen=True):
                sums.add(risk, batch, call, seed, per_class)
    samples, vectors = risk.ranks.sum(sums.samples), risk.ranks.sum(sums.vectors)
    present = (samples > 0).nonzero()[:, 0]
    weights = samples[present] / samples.sum()
    outputs, inputs = (risk.ranks.sum(local_sum) for local_sum in sums.stacked(present.tolist()))
    return ClassMoments(
        classes=present,
        weights=weights,
        outputs=_symmetric(outputs / (risk.divisor * weights)[:, None, None]),
        inputs=_symmetric(inputs / vectors[present, None, None]),
        num_samples=sums.num_samples,
    )


def labels_of(risk: EmpiricalRisk, prediction: Tensor, batch: Batch, call: str) -> Tensor:
    """Return the class (N,) of each sample, −1 where it is ignored.

    Args:
        risk: Its loss must be `CrossEntropy`.
        prediction: The model's output, (samples, classes).
        batch: It has the targets: class indices, or distributions, whose mode is taken.
        call: The user's call, for the message.

    Returns:
        The classes.

    Raises:
        UnsupportedModelError: If a sample has no one class.
    """
    require_tensor_output(prediction, call.partition("(")[0])
    loss = require_class_loss(risk.loss, call)
    if prediction.ndim != 2:
        advice = "`ClassGradients` takes positions as they are."
        if prediction.ndim == 3:
            advice = f"Make each token a sample: `token_samples(model, x, y)`. Or: {advice}"
        raise UnsupportedModelError(
            f"`{call}` needs samples with one class each, an output (samples, classes); got an "
            f"output {tuple(prediction.shape)}. {advice}"
        )
    _, target, is_index = loss.aligned(prediction.detach(), batch.target)
    return target.masked_fill(target == loss.ignore_index, -1) if is_index else target.argmax(1)


class _Sums:
    """Sums over samples of each class: b bᵀ, x̃x̃ᵀ, and the numbers of samples and of x̃."""

    samples: Tensor
    vectors: Tensor

    def __init__(
        self, layers: Sequence[Layer], shared: bool, num_samples: int | None, rows: SampleRows
    ) -> None:
        self._layers, self._shared, self._sizes, self._rows = layers, shared, (0, 0), rows
        self.num_samples = num_samples
        # Only for classes that occur: of a thousand, most may not.
        self._outputs: dict[int, Tensor] = {}
        self._inputs: dict[int, Tensor] = {}

    def add(self, risk: EmpiricalRisk, batch: Batch, call: str, seed: int, per_class: bool) -> None:
        tails = capture_shifts(risk, self._layers, batch)
        prediction, leaves = tails[0].prediction, [tail.output for tail in tails]
        y = labels_of(risk, prediction, batch, call)
        self._rows.require(self._layers, prediction, leaves, [layer_input(tail) for tail in tails])
        y = y if per_class else y.clamp(max=0)
        # Samples in the order of their classes, so that a class is a slice.
        index = y.argsort(stable=True)[int((y < 0).sum()) :]
        sizes = y[index].bincount(minlength=prediction.shape[1] if per_class else 1)
        pairs = zip(self._layers, tails, strict=True)
        x = self._joined([input_vectors(layer, tail) for layer, tail in pairs], torch.mean)
        if not self._sizes[0]:
            self._sizes = self._joined_slopes(leaves).shape[-1], x.shape[-1]
            self.samples, self.vectors = sizes.new_zeros(2, len(sizes), dtype=torch.float64)
        self.samples += sizes
        self.vectors += sizes * x.shape[1]
        class_sizes = sizes.tolist()
        _add_grams(self._inputs, x[index], class_sizes)
        self.num_samples = draws_needed(prediction, self.num_samples)
        for root in output_roots(risk, prediction, batch, self.num_samples, seed):
            slopes = torch.autograd.grad(
                prediction, leaves, root, retain_graph=True, materialize_grads=True
            )
            _add_grams(self._outputs, self._joined_slopes(slopes)[index], class_sizes)

    def _joined_slopes(self, slopes: Sequence[Tensor]) -> Tensor:
        pairs = zip(self._layers, slopes, strict=True)
        return self._joined([output_vectors(layer, slope) for layer, slope in pairs], torch.sum)

    def _joined(self, vectors: list[Tensor], reduce: Any) -> Tensor:
        """Join the vectors of all layers: (N, P, m), or (N, 1, Σm)."""
        if not self._shared:
            return vectors[0]
        return torch.cat([reduce(v, dim=1, keepdim=True) for v in vectors], dim=2)

    def stacked(self, classes: list[int]) -> Iterator[Tensor]:
        """Yield Σ b bᵀ (K, m, m) and Σ x̃x̃ᵀ (K, n, n); zero for classes of other ranks alone."""
        for sums, size in zip((self._outputs, self._inputs), self._sizes, strict=True):
            none = self.samples.new_zeros(size, size)
            yield torch.stack([sums.pop(c, none) for c in classes])


def _add_grams(sums: dict[int, Tensor], vectors: Tensor, sizes: list[int]) -> None:
    for number, class_vectors in enumerate(vectors.split(sizes)):
        if len(class_vectors):
            class_gram = gram(class_vectors)
            sums[number] = sums[number].add_(class_gram) if number in sums else class_gram


def _symmetric(matrices: Tensor) -> Tensor:
    return (matrices + matrices.mT) / 2
