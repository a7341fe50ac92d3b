"""Squared norms of each sample's gradient at one layer, without forming the gradients.

For a layer that is linear in its parameters, a sample's gradient is a sum over positions: Σ_p δ_p
x_pᵀ for a matrix, Σ_p δ_p ∘ x̂_p for the scale of a normalisation, Σ_p δ_p for a bias.

Letters: N samples, P positions, x (N, P, n) inputs, δ (N, P, m) derivatives at the layer's output.
"""

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from eigenscape.errors import UnsupportedModelError, WrongTypeError
from eigenscape.risk import (
    EmpiricalRisk,
    Layer,
    Tail,
    apply_layer,
    find_layer,
    input_vectors,
    is_convolution,
    is_matrix,
    num_groups,
)

# δ in the shape of the layer's output ↦ Σ_n ‖gradient of sample n‖², float64, for one parameter.
SquaredNorm = Callable[[Tensor], Tensor]

_CHANNEL_NORMS = (nn.GroupNorm, nn.modules.batchnorm._NormBase)
_LAST_NORMS = (nn.LayerNorm, nn.RMSNorm)
# Numbers held at a time beside inputs and derivatives.
_MOST_NUMBERS = 2**23


def covered_layers(
    risk: EmpiricalRisk, call: str, instead: str, *, tables: bool = True
) -> list[Layer]:
    """Return the layers that own the risk's parameters, if their gradients are known here.

    Args:
        risk: The risk.
        call: The user's call, for messages.
        instead: What to do in place of it.
        tables: Whether embeddings will do.

    Returns:
        The layers.

    Raises:
        WrongTypeError: If the model is a pure function.
        UnsupportedModelError: If a layer will not do, or the forward pass is rounded.
    """
    if risk.module is None:
        raise WrongTypeError(
            f"`{call}` needs an nn.Module; the model is a pure function. {instead}"
        )
    if risk.autocast is not None:
        raise UnsupportedModelError(
            f"`{call}` is exact; a risk with `autocast=` rounds its forward pass. Make the risk "
            f"without it. {instead}"
        )
    owners = dict.fromkeys(name.rpartition(".")[0] for name in risk.space.names)
    layers = [find_layer(risk, name, call) for name in owners]
    with risk.evaluating():  # in the mode in which the model will run
        reasons = {layer: gradient_obstacle(layer) for layer in layers}
    if not tables:
        reasons |= {layer: "a table" for layer in layers if isinstance(layer.module, nn.Embedding)}
    bad = [f"{', '.join(layer.params)} ({why})" for layer, why in reasons.items() if why]
    if bad:
        raise UnsupportedModelError(
            f"`{call}` does not cover {'; '.join(bad)}. {instead} Or leave them out: "
            "`EmpiricalRisk(..., params=[...])`."
        )
    return layers


def gradient_obstacle(layer: Layer) -> str | None:
    """Say why a layer's gradients are not known here sample by sample, or None.

    Args:
        layer: The layer.

    Returns:
        The reason, or None.
    """
    module = layer.module
    if layer.obstacle is not None:
        return layer.obstacle
    if isinstance(module, nn.modules.batchnorm._NormBase):
        by_batch = module.training or module.running_mean is None
        if by_batch and not isinstance(module, nn.modules.instancenorm._InstanceNorm):
            return "it normalises by the statistics of its batch"
    kinds = (nn.Embedding, *_CHANNEL_NORMS, *_LAST_NORMS)
    if not isinstance(module, kinds) and not is_matrix(module):
        return f"{type(module).__name__} is not covered"
    return None


def squared_gradients(layer: Layer, tail: Tail, num_roots: int) -> dict[str, SquaredNorm]:
    """Prepare the sums for each of a layer's parameters; what δ does not change is done once.

    Args:
        layer: A layer without `gradient_obstacle`.
        tail: What holds its inputs.
        num_roots: How many δ will come, for the choice of the cheaper way.

    Returns:
        One function for each parameter, by its name inside the module.
    """
    norms: dict[str, SquaredNorm] = {}
    module = layer.module
    if "weight" in layer.fields:
        if isinstance(module, nn.Embedding):
            norms["weight"] = _table(module, tail)
        elif is_matrix(module):
            norms["weight"] = _matrix(layer, tail, num_roots)
        else:
            norms["weight"] = _scale(layer, tail)
    if "bias" in layer.fields:
        norms["bias"] = lambda slope: _square(by_position(module, slope).sum(1))
    return norms


def _matrix(layer: Layer, tail: Tail, num_roots: int) -> SquaredNorm:
    """‖Σ_p δ_p x_pᵀ‖², by the matrix itself or by Σ_pp' (δ_p·δ_p')(x_p·x_p')."""
    module = layer.module
    groups = num_groups(module)
    x = _grouped(input_vectors(dataclasses.replace(layer, fields=("weight",)), tail), groups)
    (_, P, n), m = x.shape, by_position(module, tail.output).shape[-1] // groups
    if P * (n + num_roots * m) < num_roots * m * n:
        gram = torch.cat([chunk @ chunk.mT for chunk in _parts(x, P * P)])
        return lambda slope: _by_pairs(gram, _grouped(by_position(module, slope), groups))

    def norm(slope: Tensor) -> Tensor:
        d = _grouped(by_position(module, slope), groups)
        pairs = zip(_parts(d, m * n), _parts(x, m * n), strict=True)
        return torch.stack([_square(slopes.mT @ inputs) for slopes, inputs in pairs]).sum()

    return norm


def _table(module: nn.Embedding, tail: Tail) -> SquaredNorm:
    """Treat an embedding as a matrix applied to unit vectors: x_p·x_p' is 1 for equal entries."""
    ids: Tensor = tail.args[0] if tail.args else next(iter(tail.kwargs.values()))
    ids = ids.reshape(ids.shape[0], -1)
    same = ids[:, :, None] == ids[:, None, :]
    if module.padding_idx is not None:  # PyTorch gives this row no gradient
        same &= (ids != module.padding_idx)[:, :, None]
    gram = same.to(tail.output.dtype)
    return lambda slope: _by_pairs(gram, by_position(module, slope))


def _scale(layer: Layer, tail: Tail) -> SquaredNorm:
    """‖Σ_p δ_p ∘ x̂_p‖²."""
    x = by_position(layer.module, normalised(layer, tail))
    return lambda slope: _square((by_position(layer.module, slope) * x).sum(1))


def normalised(layer: Layer, tail: Tail) -> Tensor:
    """Return x̂ of a normalisation: what it gives with a scale of one and no bias."""
    ones = {"weight": torch.ones_like(layer.module.get_parameter("weight"))}
    with torch.no_grad():
        return apply_layer(layer, ones, tail)


def by_position(module: nn.Module, z: Tensor) -> Tensor:
    """Return something shaped like the layer's output as vectors (N, P, m)."""
    if is_convolution(module) or isinstance(module, _CHANNEL_NORMS):
        return z.reshape(*z.shape[:2], -1).transpose(1, 2)
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return z.reshape(z.shape[0], -1, math.prod(module.normalized_shape))
    return z.reshape(z.shape[0], -1, z.shape[-1])


def _grouped(x: Tensor, groups: int) -> Tensor:
    """Give every group of a convolution its own place among the samples: (N·g, P, n/g)."""
    if groups == 1:
        return x
    split: Tensor = x.unflatten(2, (groups, -1))
    return split.transpose(1, 2).flatten(0, 1)


def _by_pairs(gram: Tensor, d: Tensor) -> Tensor:
    P = d.shape[1]
    pairs = zip(_parts(d, P * P), _parts(gram, P * P), strict=True)
    sums = [(grams * (slopes @ slopes.mT)).sum(dtype=torch.float64) for slopes, grams in pairs]
    return torch.stack(sums).sum()


def _parts(x: Tensor, width: int) -> tuple[Tensor, ...]:
    """Cut the samples so that `width` numbers for each of them stay few."""
    chunks: tuple[Tensor, ...] = x.split(max(1, _MOST_NUMBERS // width))
    return chunks


def _square(x: Tensor) -> Tensor:
    return x.double().square().sum()
