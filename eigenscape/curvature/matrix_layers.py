"""Find layers that are one matrix applied to vectors, and check them against autograd."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from eigenscape.errors import InvalidArgumentError, UnsupportedModelError
from eigenscape.risk import (
    Batch,
    EmpiricalRisk,
    Layer,
    Tail,
    find_layer,
    from_matrices,
    input_vectors,
    leaf_copies,
    matrix_obstacle,
    output_vectors,
    refuse_recomputed,
    require_path,
    telling_batches,
)


def matrix_layers(risk: EmpiricalRisk, names: Sequence[str], call: str) -> list[Layer]:
    """Find layers that are one matrix applied to vectors, or refuse.

    Cost: two forward and two backward passes of up to five batches, to see that they are.

    Args:
        risk: Its model must be an `nn.Module`.
        names: As for `LayerHessian`.
        call: The user's call, for the message.

    Returns:
        The layers.

    Raises:
        UnknownNameError: If there is none of that name.
        InvalidArgumentError: If one is named twice.
        UnsupportedModelError: If one of them is another kind of layer.
    """
    layers = [find_layer(risk, name, call) for name in names]
    if len({layer.name for layer in layers}) < len(layers):
        raise InvalidArgumentError(f"`{call}` needs different layers; got {names}. Name each once.")
    for layer in layers:
        if (obstacle := matrix_obstacle(layer, outputs_first=False)) is not None:
            raise UnsupportedModelError(
                f"`{call}` needs linear layers or convolutions that run once; '{layer.name}' will "
                f"not do: {obstacle}. Name another layer, or use `LayerHessian`."
            )
    with risk.ranks.together():
        for batch in telling_batches(risk.batches) if layers else ():
            _require_matrix_gradients(risk, layers, batch, call)
    return layers


def capture_shifts(risk: EmpiricalRisk, layers: Sequence[Layer], batch: Batch) -> list[Tail]:
    """Run a batch with a zero added to each layer's output, to differentiate by all at once.

    Cost: one forward pass. Go back inside `risk.evaluating(frozen=True)`.

    Args:
        risk: The risk.
        layers: Different layers.
        batch: What to run.

    Returns:
        A tail for each, with that zero for its output.

    Raises:
        UnsupportedModelError: If a layer ran more than once, or not at all, or would run again on
            the way back.
    """
    calls: dict[str, list[tuple[Any, Any, Tensor]]] = {layer.name: [] for layer in layers}

    def listen(layer: Layer) -> Any:
        def shift(module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
            refuse_recomputed(layer.name)
            zero = torch.zeros_like(output, requires_grad=True)
            calls[layer.name].append((args, kwargs, zero))
            return output + zero

        return layer.module.register_forward_hook(shift, with_kwargs=True)

    with ExitStack() as stack:
        for layer in layers:
            stack.callback(listen(layer).remove)
        with torch.enable_grad(), risk.evaluating(frozen=True):
            prediction, total, _ = risk.output_and_total(risk.parameters(), batch)
    for name, layer_calls in calls.items():
        if len(layer_calls) != 1:
            raise UnsupportedModelError(
                f"Layer '{name}' ran {len(layer_calls)} times in one forward pass; it has not one "
                "output. Name layers that run once."
            )
    return [Tail(*calls[layer.name][0], prediction, total) for layer in layers]


def _require_matrix_gradients(
    risk: EmpiricalRisk, layers: Sequence[Layer], batch: Batch, call: str
) -> None:
    """Refuse layers whose gradient is not Σ s x̃ᵀ, s the output gradients and x̃ the inputs.

    A subclass may change its weight before use, a hook its output, and the model may use the
    weight elsewhere; PyTorch records none of these.

    Raises:
        UnsupportedModelError: If there is one.
    """
    with torch.enable_grad(), risk.evaluating(frozen=True):
        tails = capture_shifts(risk, layers, batch)
        prediction = tails[0].prediction
        if not isinstance(prediction, Tensor):
            return  # the caller refuses such a model, with its own message
        require_path(tails[0].total, layers[0].name)
        generator = torch.Generator().manual_seed(0)
        seed = torch.randn(prediction.shape, generator=generator, dtype=torch.float64)
        zeros = [tail.output for tail in tails]
        slopes = torch.autograd.grad(prediction, zeros, seed.to(prediction), materialize_grads=True)
    layer_risk = risk.restricted([name for layer in layers for name in layer.params])
    with torch.enable_grad(), layer_risk.evaluating():
        leaves = leaf_copies(layer_risk.parameters())
        gradients = torch.autograd.grad(
            layer_risk.output(leaves, batch),
            list(leaves.values()),
            seed.to(prediction),
            materialize_grads=True,
        )
    by_name = dict(zip(leaves, gradients, strict=True))
    for layer, tail, slope in zip(layers, tails, slopes, strict=True):
        expected = torch.cat([by_name[name].flatten() for name in layer.params])
        s, x = output_vectors(layer, slope), input_vectors(layer, tail)
        product = s.flatten(0, -2).T @ x.flatten(0, -2).to(s)
        gap = (from_matrices(layer, product[None])[0] - expected).norm()
        if gap > risk.slack * expected.norm():
            raise UnsupportedModelError(
                f"`{call}` finds another gradient of '{layer.name}' than autograd: the layer is no "
                "plain matrix (a subclass that changes its weight, a hook that changes its "
                "output), or the model uses its weight elsewhere, too. Use `LayerHessian`, which "
                "takes it as it is."
            )
