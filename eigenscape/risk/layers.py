"""Capture of a layer: what goes into it, and the loss as a function of what comes out.

For a layer z = f(a; W) that is linear in its parameters, the inputs a do not depend on W. What
follows the layer is its *tail*, L(z). Then the layer's Hessian is exactly Jᵀ (∇²_z L) J with
J = ∂z/∂W, for every network, with no second term. A module called twice, or a weight used
elsewhere, breaks the premise; `capture_tail` notices the first, `find_layer` the shared tensors
that PyTorch knows of.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eigenscape.errors import UnknownNameError, UnsupportedModelError, WrongTypeError, near_matches
from eigenscape.risk.batch import Batch
from eigenscape.risk.empirical_risk import EmpiricalRisk
from eigenscape.risk.parameters import warn_of_tied
from eigenscape.risk.unfolding import (
    has_inputs_first,
    is_convolution,
    is_matrix,
    is_transposed_linear,
    num_groups,
    windows,
)

# Layers whose output is linear in their own parameters, whatever their input.
_LINEAR_IN_PARAMETERS = (
    nn.Linear,
    nn.Bilinear,
    nn.modules.conv._ConvNd,
    nn.Embedding,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.modules.batchnorm._NormBase,
)


@dataclass(frozen=True)
class Layer:
    """A module and those of its parameters that are differentiated.

    Attributes:
        name: The module's dotted name.
        module: The module.
        params: Names in the risk's space, in its order.
        fields: The same parameters' names inside the module.
        obstacle: Why its block does not follow from the tail alone, or None.
    """

    name: str
    module: nn.Module
    params: tuple[str, ...]
    fields: tuple[str, ...]
    obstacle: str | None


@dataclass(frozen=True)
class Tail:
    """One batch seen from a layer.

    Attributes:
        args: The layer's positional inputs, detached.
        kwargs: The layer's keyword inputs, detached.
        output: The layer's output z, a leaf.
        prediction: The model's output as a function of z.
        total: The sum of the batch's loss terms as a function of z.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor
    prediction: Any
    total: Tensor


def find_layer(risk: EmpiricalRisk, name: str, call: str = "LayerHessian(risk, layer)") -> Layer:
    """Find a layer by its name, or by the name of one of its parameters.

    Args:
        risk: Its model must be an `nn.Module`.
        name: "fc1" for all of the layer's parameters, "fc1.weight" for one.
        call: The user's call, for messages.

    Returns:
        The layer.

    Raises:
        WrongTypeError: If the model is a pure function.
        UnknownNameError: If there is no such layer or it has no differentiated parameters.
    """
    root = risk.module
    if not isinstance(name, str):
        raise WrongTypeError(f"`{call}` needs the name of a layer; got {type(name).__name__}.")
    if root is None:
        raise WrongTypeError(
            f"`{call}` needs an nn.Module; the model is a pure function. Use "
            "`Hessian(risk)[block]` instead."
        )
    module_name = name.rpartition(".")[0] if name in risk.space else name
    names = [p for p in risk.space.names if name in (p, p.rpartition(".")[0])]
    modules = dict(root.named_modules())
    if module_name not in modules or not names:
        owners = dict.fromkeys(p.rpartition(".")[0] for p in risk.space.names)
        raise UnknownNameError(
            f"`{call}` found no layer of that name with parameters of its own: {name!r}. "
            + near_matches(name, [*owners, *risk.space.names])
        )
    fields = tuple(p.rpartition(".")[2] for p in names)
    module = modules[module_name]
    if name == module_name:
        live = risk.own_parameters()
        warn_of_tied(name, module, names, {p: live[p] for p in risk.space.names})
    return Layer(module_name, module, tuple(names), fields, _obstacle(root, module, names))


def capture_tail(
    risk: EmpiricalRisk, layer: Layer, batch: Batch, *, must_matter: bool = True
) -> Tail:
    """Run a batch and cut the graph at the layer's output. Cost: one forward pass.

    Args:
        risk: The risk.
        layer: Where to cut.
        batch: What to run.
        must_matter: Whether to refuse a layer from which no derivative leads to the loss.

    Returns:
        The layer's inputs and the loss as a function of its output; no other graph is kept.

    Raises:
        UnsupportedModelError: If the layer ran more than once, or not at all, or would run again on
            the way back; or if it must matter and does not.
    """
    calls: list[tuple[Any, Any, Tensor]] = []
    counted = _has_saving_hooks()  # hooks that measure what a graph saves

    def cut(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Tensor:
        if not isinstance(output, Tensor):
            raise UnsupportedModelError(
                f"Layer '{layer.name}' returns a {type(output).__name__}; its block is not a "
                "function of one tensor. Use `Hessian(risk)[block]`."
            )
        if not counted:
            refuse_recomputed(layer.name)
        leaf: Tensor = output.detach().requires_grad_()
        calls.append((args, kwargs, leaf))
        return leaf.clone()  # what follows may write into it, as `nn.ReLU(inplace=True)` does

    handle = layer.module.register_forward_hook(cut, with_kwargs=True)
    try:
        with torch.enable_grad(), risk.evaluating(frozen=True):
            prediction, total, _ = risk.output_and_total(risk.parameters(), batch)
    finally:
        handle.remove()
    if len(calls) != 1:
        raise UnsupportedModelError(
            f"Layer '{layer.name}' ran {len(calls)} times in one forward pass; its block is not a "
            "function of one output. Use `Hessian(risk)[block]`."
        )
    if must_matter:
        require_path(total, layer.name)
    args, kwargs, output = calls[0]
    return Tail(args, kwargs, output, prediction, total)


class SampleRows:
    """Refuses layers whose inputs and outputs do not begin with the samples.

    For all that takes rows of a layer by the numbers of samples. A model that puts positions first,
    or folds them into the samples, has layers with other rows.
    """

    def __init__(self, call: str, instead: str = "Or name another layer.") -> None:
        """Begin with no batch looked at.

        Args:
            call: The user's call, for messages.
            instead: What to do in place of it.
        """
        self._call, self._instead = call, instead
        self._has_looked = False

    def require(
        self,
        layers: Sequence[Layer],
        prediction: Tensor,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor] = (),
    ) -> None:
        """Compare shapes of every batch, and derivatives of the first that has several samples.

        Cost: two backward passes from the model's output to the layers', of that one batch.

        Args:
            layers: The layers, the same at every batch.
            prediction: The model's output (samples, …), with its graph.
            outputs: The layers' outputs, on which the graph depends.
            inputs: The layers' inputs, where these matter.

        Raises:
            UnsupportedModelError: If a layer's rows are not samples, or samples mix behind it.
        """
        layer_tensors = [*zip(layers, outputs, strict=True), *zip(layers, inputs, strict=False)]
        for layer, tensor in layer_tensors:
            self.require_shape(layer, tensor, len(prediction))
        for layer, first, others in self._looked_at(layers, prediction, outputs):
            # There may be as many positions as samples.
            if bool(first[1:].any()) or bool(others[0].any()):
                raise UnsupportedModelError(
                    f"`{self._call}` needs layers with one sample in each row; at '{layer.name}' a "
                    "sample's output depends on other rows, too: the first dimension is not that "
                    "of the samples (`batch_first=False`), or samples change each other's outputs "
                    f"(batch statistics). Let layers see (samples, …). {self._instead}"
                )

    def require_shape(self, layer: Layer, tensor: object, num_samples: int) -> None:
        """Refuse a layer if what goes in or comes out has another number of rows than samples.

        Args:
            layer: The layer.
            tensor: The layer's input or output.
            num_samples: How many samples there are.

        Raises:
            UnsupportedModelError: If it has other rows, or is no tensor.
        """
        if not isinstance(tensor, Tensor) or tensor.shape[:1] != (num_samples,):
            got = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise UnsupportedModelError(
                f"`{self._call}` needs layers whose inputs and outputs begin with the "
                f"{num_samples} rows of the model's output, its samples; '{layer.name}' has {got}. "
                "Let layers see (samples, …): `batch_first=True`, and no positions folded into "
                f"samples. {self._instead}"
            )

    def require_unmixed(self, layer: Layer, prediction: Tensor, output: Tensor) -> None:
        """Refuse a layer behind which samples mix, whatever the order of its rows.

        Args:
            layer: The layer.
            prediction: As for `require`.
            output: As for `require`.

        Raises:
            UnsupportedModelError: If two samples' outputs depend on one entry of the layer's.
        """
        for _, first, others in self._looked_at([layer], prediction, [output]):
            if bool(((first != 0) & (others != 0)).any()):
                raise UnsupportedModelError(
                    f"`{self._call}` needs samples that do not change each other's outputs; behind "
                    f"'{layer.name}' they do (batch statistics, or an output whose rows are no "
                    f"samples). {self._instead}"
                )

    def _looked_at(
        self, layers: Sequence[Layer], prediction: Tensor, outputs: Sequence[Tensor]
    ) -> Iterator[tuple[Layer, Tensor, Tensor]]:
        """Yield slopes of the first sample's outputs and of all others', of one batch alone."""
        if self._has_looked or len(prediction) < 2 or not prediction.requires_grad:
            return
        self._has_looked = True
        # Not the plain sum of a sample's outputs: after a normalisation that sum is constant.
        generator = torch.Generator().manual_seed(0)
        weights = torch.randn(prediction.shape[1:], generator=generator, dtype=torch.float64)
        seed = torch.zeros_like(prediction)
        seed[0] = weights
        settings: Any = dict(retain_graph=True, materialize_grads=True)
        first = torch.autograd.grad(prediction, outputs, seed, **settings)
        others = torch.autograd.grad(prediction, outputs, weights.to(seed) - seed, **settings)
        for layer, one, other in zip(layers, first, others, strict=True):
            # NaN says nothing about which sample depends on which, and is refused elsewhere.
            yield layer, one.nan_to_num(0.0, 0.0, 0.0), other.nan_to_num(0.0, 0.0, 0.0)


def require_path(total: Tensor, name: str) -> None:
    """Refuse a layer on which nothing depends.

    Args:
        total: The loss as a function of the layer's output.
        name: The layer's name.

    Raises:
        UnsupportedModelError: If it is a constant.
    """
    if not total.requires_grad:
        raise UnsupportedModelError(
            f"Nothing that can be differentiated leads from layer '{name}' to the loss; its block "
            "is zero. Leave it out with `params=`."
        )


def refuse_recomputed(name: str) -> None:
    """Refuse a layer that is running and would run again on the way back; call it in a hook.

    The second time it would run without the hook, and PyTorch would take what it saves then for
    what was saved at first wherever shapes allow it.

    Args:
        name: The layer's name.

    Raises:
        UnsupportedModelError: If it would.
    """
    if _has_saving_hooks():
        raise UnsupportedModelError(
            f"Layer '{name}' is evaluated again by activation checkpointing; its block is not a "
            "function of one output. Use `Hessian(risk)[block]`, or switch it off."
        )


def _has_saving_hooks() -> bool:
    """Tell whether something else than the graph holds what the next operation saves."""
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks("there are none"):
            return False
    except RuntimeError:
        return True


def apply_layer(layer: Layer, values: dict[str, Tensor], tail: Tail) -> Tensor:
    """Evaluate the layer on captured inputs with other parameters; those not given are zero.

    Args:
        layer: The layer.
        values: Parameters by their names inside the module.
        tail: What holds the inputs.

    Returns:
        The layer's output; for a layer that is linear in its parameters, J applied to `values`.
    """
    state = {name: torch.zeros_like(p) for name, p in layer.module.named_parameters(recurse=False)}
    if layer.module.training:  # it would write into its buffers
        state.update({name: b.clone() for name, b in layer.module.named_buffers(recurse=False)})
    state.update(values)
    padding = getattr(layer.module, "padding_idx", None)
    if padding is not None and isinstance(layer.module, nn.Embedding):
        # PyTorch gives this row no gradient, so it is no direction of the block either.
        weight = state["weight"]
        keep = torch.ones(weight.shape[0], 1, dtype=weight.dtype, device=weight.device)
        keep[padding] = 0.0
        state["weight"] = weight * keep
    result: Tensor = torch.func.functional_call(layer.module, state, tail.args, tail.kwargs)
    return result


def matrix_obstacle(layer: Layer, *, outputs_first: bool = True) -> str | None:
    """Say why a layer is not one matrix W̃ applied to vectors x̃ at some positions, or None.

    Linear layers and convolutions without groups are, transposed ones too; W̃ is the weight, or
    weight and bias joined.

    Args:
        layer: The layer.
        outputs_first: Whether the weight must hold its entries in the order of W̃: that of
            transposed convolutions and of GPT-2's `Conv1D` begins with the inputs. `to_matrices`
            and `from_matrices` know both orders.

    Returns:
        The reason, or None where it is.
    """
    module = layer.module
    if layer.obstacle is not None:
        return layer.obstacle
    if not is_matrix(module):
        return f"{type(module).__name__} is no linear layer or convolution"
    if (groups := num_groups(module)) != 1:
        return f"the convolution has {groups} groups"
    if layer.fields not in (("weight",), ("weight", "bias")):
        return f"the weight is not among the parameters {layer.fields}"
    if outputs_first and has_inputs_first(module):
        return f"the weight of {type(module).__name__} begins with its inputs"
    return None


def is_lookup(layer: Layer) -> bool:
    """Say whether the layer picks rows of its weight by number.

    Its input vectors are one-hot, W̃ is the weight transposed, and nobody should write them out.

    Args:
        layer: The layer.

    Returns:
        True for an embedding whose block follows from the tail.
    """
    is_plain = layer.obstacle is None and layer.fields == ("weight",)
    return is_plain and isinstance(layer.module, nn.Embedding)


def input_numbers(tail: Tail) -> Tensor:
    """Return the numbers (N, P) of the rows that a layer with `is_lookup` picks."""
    x = layer_input(tail)
    return x.reshape(x.shape[0], -1)


def input_vectors(layer: Layer, tail: Tail) -> Tensor:
    """Return what the layer's matrix multiplies: x̃ (N, P, n), with a 1 last if it has a bias.

    A convolution is unfolded into patches, in the order of its weight (Wu App. A.4, (31)).

    Args:
        layer: A layer without `matrix_obstacle`.
        tail: What holds the inputs.

    Returns:
        The vectors at all P positions; P = 1 for plain vectors.
    """
    x = layer_input(tail)
    if is_convolution(layer.module):
        x = windows(layer.module, x, tail.output.shape[2:])
    else:
        x = x.reshape(x.shape[0], -1, x.shape[-1])
    if "bias" in layer.fields:
        x = torch.cat([x, x.new_ones(*x.shape[:-1], 1)], dim=-1)
    return x


def output_vectors(layer: Layer, z: Tensor) -> Tensor:
    """Return something shaped like the layer's output as vectors (N, P, m)."""
    if is_convolution(layer.module):
        return z.flatten(2).transpose(1, 2)
    return z.reshape(z.shape[0], -1, z.shape[-1])


def to_matrices(layer: Layer, rows: Tensor, num_outputs: int) -> Tensor:
    """Reshape rows of the layer's parameters (k, q) to W̃ (k, m, n), the bias as last column."""
    if "bias" not in layer.fields:
        return _weights_as_matrices(layer, rows, num_outputs)
    weight, bias = rows[:, :-num_outputs], rows[:, -num_outputs:]
    return torch.cat([_weights_as_matrices(layer, weight, num_outputs), bias[:, :, None]], dim=2)


def from_matrices(layer: Layer, matrices: Tensor) -> Tensor:
    """Undo `to_matrices`."""
    if "bias" not in layer.fields:
        return _in_order(layer, matrices).flatten(1)
    k, m, n = matrices.shape
    rows = matrices.new_empty(k, m * n)  # filled in place: joining parts would copy them twice
    weight = _in_order(layer, matrices[:, :, :-1])
    rows[:, :-m].view(weight.shape).copy_(weight)
    rows[:, -m:] = matrices[:, :, -1]
    return rows


def _weights_as_matrices(layer: Layer, rows: Tensor, num_outputs: int) -> Tensor:
    if (lead := _num_leading(layer)) == 1:
        return rows.reshape(rows.shape[0], num_outputs, -1)
    return rows.reshape(rows.shape[0], lead, num_outputs, -1).transpose(1, 2).flatten(2)


def _in_order(layer: Layer, matrices: Tensor) -> Tensor:
    """View matrices (k, m, n) as the weight holds them."""
    if (lead := _num_leading(layer)) == 1:
        return matrices
    k, m, _ = matrices.shape
    return matrices.reshape(k, m, lead, -1).transpose(1, 2)


def _num_leading(layer: Layer) -> int:
    """Return how many inputs the weight counts before its outputs, 1 where outputs come first."""
    if is_lookup(layer) or has_inputs_first(layer.module):
        return int(layer.module.get_parameter("weight").shape[0])
    return 1


def layer_input(tail: Tail) -> Tensor:
    """Return what a layer took, the first of its inputs."""
    x: Tensor = tail.args[0] if tail.args else next(iter(tail.kwargs.values()))
    return x.detach()


def _obstacle(root: nn.Module, module: nn.Module, names: list[str]) -> str | None:
    """Say what keeps the layer's block from being a function of its output alone."""
    if not isinstance(module, _LINEAR_IN_PARAMETERS) and not is_transposed_linear(module):
        return f"{type(module).__name__} is not known to be linear in its parameters"
    tensors = dict(root.named_parameters(remove_duplicate=False))
    for name in names:
        twins = [other for other, p in tensors.items() if p is tensors[name] and other != name]
        if twins:
            return f"'{name}' is tied to '{twins[0]}'"
    return None
