"""The product S = W^(L) ⋯ W^(p+1) of the weights above a layer, in a chain of linear layers."""

import torch
from torch import Tensor, nn

from eigenscape.analyses import batch_slopes
from eigenscape.errors import UnsupportedModelError
from eigenscape.risk import Batch, EmpiricalRisk, Layer, capture_tail


def unit_vectors(z: Tensor, batch: Batch) -> list[Tensor]:
    """Return r_j = e_j, so that b is G itself."""
    return [unit.expand_as(z) for unit in torch.eye(z.shape[1], dtype=z.dtype, device=z.device)]


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
