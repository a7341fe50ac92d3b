"""Derivatives of the model's output at a layer, sample by sample.

Letters: N samples, P positions, x̃ (N, P, n) inputs of the layer, G = ∂z/∂(layer's output), r_j (C)
combinations of the outputs, b (N, J, P, m) = r_jᵀG.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from eigenscape.curvature import MOST_OUTPUTS, exact_roots, have_exact_roots
from eigenscape.errors import UnsupportedModelError
from eigenscape.risk import (
    Batch,
    EmpiricalRisk,
    Layer,
    SampleRows,
    capture_tail,
    input_vectors,
    layer_input,
    output_vectors,
)

# Outputs (N, C) and their batch ↦ the combinations r_j, each (N, C).
Combinations: TypeAlias = Callable[[Tensor, Batch], Sequence[Tensor]]


@dataclass(frozen=True)
class Slopes:
    """One batch seen from a layer.

    Attributes:
        inputs: x̃ (N, P, n), with a 1 last where the layer has a bias.
        slopes: b (N, J, P, m).
        output: The model's output (N, C).
        batch: The samples.
    """

    inputs: Tensor
    slopes: Tensor
    output: Tensor
    batch: Batch


def roots(risk: EmpiricalRisk) -> Combinations:
    """Return what gives r_j with Σ_j r_j r_jᵀ = ∇²_z ℓ, so that Σ_j b_j b_jᵀ = GᵀAG."""
    return lambda z, batch: exact_roots(risk, z, batch)


def batch_slopes(
    risk: EmpiricalRisk,
    layer: Layer,
    batch: Batch,
    combinations: Combinations,
    rows: SampleRows | None = None,
) -> Slopes:
    """Go back from the output to a layer. Cost: one forward pass, a backward one for each r_j.

    Args:
        risk: The risk.
        layer: One without `matrix_obstacle`.
        batch: The samples.
        combinations: Gives the r_j.
        rows: Refuses layers whose rows are not samples, if that is asked for.

    Returns:
        Inputs and slopes; no graph is kept.

    Raises:
        UnsupportedModelError: If the model's output is not (samples, up to 256 numbers).
    """
    with torch.enable_grad(), risk.evaluating(frozen=True):
        tail = capture_tail(risk, layer, batch)
        if not have_exact_roots(tail.prediction) or tail.prediction.ndim != 2:
            kind = tail.prediction
            got = tuple(kind.shape) if isinstance(kind, Tensor) else type(kind).__name__
            raise UnsupportedModelError(
                f"The logit gradients at '{layer.name}' need a model whose output is (samples, up "
                f"to {MOST_OUTPUTS} logits); got {got}."
            )
        if rows is not None:
            rows.require([layer], tail.prediction, [tail.output], [layer_input(tail)])
        z = tail.prediction.detach()
        slopes = [
            torch.autograd.grad(tail.prediction, tail.output, r, retain_graph=True)[0]
            for r in combinations(z, batch)
        ]
    b = torch.stack([output_vectors(layer, slope) for slope in slopes], dim=1)
    return Slopes(input_vectors(layer, tail), b, z, batch)


def all_slopes(
    risk: EmpiricalRisk, layer: Layer, combinations: Combinations, call: str
) -> Iterator[Slopes]:
    """Yield `batch_slopes` of every batch of this rank; `call` is the user's, for messages."""
    rows = SampleRows(call)
    for batch in risk.batches:
        yield batch_slopes(risk, layer, batch, combinations, rows)
