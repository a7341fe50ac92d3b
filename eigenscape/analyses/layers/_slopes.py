"""Derivatives of the model's output at a layer, sample by sample, and the weights above a layer.

Letters: N samples, P positions, x̃ (N, P, n) inputs of the layer, G = ∂z/∂(layer's output), r_j (C)
combinations of the outputs, b (N, J, P, m) = r_jᵀG; S = W^(L) ⋯ W^(p+1) the weights above.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

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


def unit_vectors(z: Tensor, batch: Batch) -> list[Tensor]:
    """Return r_j = e_j, so that b is G itself."""
    return [unit.expand_as(z) for unit in torch.eye(z.shape[1], dtype=z.dtype, device=z.device)]


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


def weights_above(risk: EmpiricalRisk, layer: Layer) -> Tensor:
    """Return S (C, m), the product of the weight matrices that follow a layer; I for the last.

    Args:
        risk: The risk.
        layer: The layer.

    Returns:
        The product, float64.

    Raises:
        UnsupportedModelError: If what follows is not a chain of linear layers.
    """
    batch = next(iter(risk.batches))
    order, (m, C) = _order(risk, layer, batch)
    S = torch.eye(m, dtype=torch.float64, device=risk.device)
    above = order[order.index(layer.module) + 1 :]
    for module in above:
        what = type(module).__name__
        if not isinstance(module, nn.Linear) or order.count(module) != 1:
            raise UnsupportedModelError(_no_chain(layer, f"{what} follows it"))
        if module.in_features != S.shape[0]:
            raise UnsupportedModelError(
                _no_chain(layer, f"a {what} of {module.in_features} inputs follows {len(S)}")
            )
        if _passes_by(risk, layer, batch, module):
            raise UnsupportedModelError(
                _no_chain(layer, f"the output depends on it also by a way round a {what}")
            )
        S = module.weight.detach().double() @ S
    if S.shape[0] != C:
        raise UnsupportedModelError(
            _no_chain(layer, f"the last matrix has {S.shape[0]} outputs, the model {C}")
        )
    return S


def _no_chain(layer: Layer, why: str) -> str:
    return (
        f"The product of the weights above '{layer.name}' is for a chain of linear layers: {why}. "
        "Use `space='gradients'`, the mean of the logit gradients, where that is offered."
    )


def _order(
    risk: EmpiricalRisk, layer: Layer, batch: Batch
) -> tuple[list[nn.Module], tuple[int, int]]:
    """Return the modules with parameters of their own as they run, and the sizes m and C."""
    order: list[nn.Module] = []

    def note(module: nn.Module, args: object, output: object) -> None:
        order.append(module)

    modules = [] if risk.module is None else list(risk.module.modules())
    owners = [owner for owner in modules if next(owner.parameters(recurse=False), None) is not None]
    handles = [owner.register_forward_hook(note) for owner in owners]
    try:
        trial = batch_slopes(risk, layer, batch, lambda z, _: [torch.zeros_like(z)])
    finally:
        for handle in handles:
            handle.remove()
    return order, (trial.slopes.shape[-1], trial.output.shape[1])


def _passes_by(risk: EmpiricalRisk, layer: Layer, batch: Batch, module: nn.Module) -> bool:
    """Say whether the output still depends on the layer when a later module is cut out."""

    def cut(_module: nn.Module, args: object, output: Tensor) -> Tensor:
        return output.detach()

    handle = module.register_forward_hook(cut)
    try:
        with torch.enable_grad(), risk.evaluating(frozen=True):
            tail = capture_tail(risk, layer, batch, must_matter=False)
            if not tail.prediction.requires_grad:
                return False
            (slope,) = torch.autograd.grad(tail.prediction.sum(), tail.output, allow_unused=True)
    finally:
        handle.remove()
    return slope is not None
