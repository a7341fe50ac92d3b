"""A model's parameters and mode: what is differentiated, whether it can be, whether it moved."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from eigenscape.errors import (
    EmptySelectionError,
    InvalidArgumentError,
    SubstitutionWarning,
    UnsupportedModelError,
    WrongTypeError,
)
from eigenscape.space import ParamSpace

_SPREAD = (
    "spread over processes (`fully_shard`, `FullyShardedDataParallel`, tensor parallelism); whole "
    "tensors are needed. Gather them in a plain copy of the model: `plain.load_state_dict("
    "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)))`. Processes "
    "share the work on a whole model by `EmpiricalRisk(ranks=...)`."
)


def uncompiled(model: Any) -> Any:
    """Return the module inside `torch.compile(module)`, and say what happens to compiled parts."""
    inner = getattr(model, "_orig_mod", model)
    submodules = inner.modules() if isinstance(inner, nn.Module) else ()
    if inner is not model or any(is_compiled(submodule) for submodule in submodules):
        warnings.warn(
            "A compiled model has no second derivative; the modules that were compiled are used "
            "instead (exact, slower).",
            SubstitutionWarning,
            stacklevel=3,
        )
    return inner


def is_compiled(module: nn.Module) -> bool:
    """Say whether a module runs through `torch.compile`, by either of its two ways."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def _refuse_odd_tensors(named: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse tensors without values of their own, or from which nothing can be differentiated."""
    for name, tensor in named:
        if nn.parameter.is_lazy(tensor):
            raise WrongTypeError(
                f"'{name}' has no shape yet: its layer is lazy. Run one batch through the model "
                "first."
            )
        if any(kind.__name__ == "DTensor" for kind in type(tensor).__mro__):
            raise UnsupportedModelError(f"'{name}' is a DTensor, {_SPREAD}")
        if isinstance(tensor, Tensor) and tensor.is_inference():
            raise UnsupportedModelError(
                f"`{name}` was made in `torch.inference_mode()`, where PyTorch records nothing "
                "that could be differentiated. Make the model outside of it, or copy it there: "
                "`copy.deepcopy(model)`."
            )


def _refuse_odd_modules(model: nn.Module) -> None:
    """Refuse wrappers that hide parameters, and layers whose gradient is another function's."""
    for name, module in model.named_modules():
        if {"FullyShardedDataParallel", "FSDPModule"} & {k.__name__ for k in type(module).__mro__}:
            raise UnsupportedModelError(f"The parameters of '{name or 'the model'}' are {_SPREAD}")
        switches = (getattr(module, f"{half}_enabled", None) for half in ("fake_quant", "observer"))
        if any(isinstance(switch, Tensor) and bool(switch.any()) for switch in switches):
            raise UnsupportedModelError(
                f"`{name}` imitates quantisation: it rounds what passes through it and gives a "
                "gradient as if it did not, so that derivatives are those of no function, and it "
                "keeps statistics. Switch both off for the analysis, by `model.apply(...)` of "
                "`torch.ao.quantization.disable_fake_quant` and of its `disable_observer`."
            )


def _refuse_odd_embeddings(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if not isinstance(module, nn.Embedding | nn.EmbeddingBag):
            continue
        odd = (
            (module.sparse, "cannot be differentiated twice", "sparse", False),
            (module.max_norm is not None, "moves its weights in use", "max_norm", None),
            (
                module.scale_grad_by_freq,
                "divides its gradient by counts of the batch",
                "scale_grad_by_freq",
                False,
            ),
        )
        for is_set, why, what, value in odd:
            if is_set:
                raise UnsupportedModelError(
                    f"`{name}` {why} (`{what}`). Set `model.{name}.{what} = {value}` for the "
                    "analysis."
                )


def select_parameters(model: object, params: object) -> dict[str, Tensor]:
    """Return the parameters to differentiate, by name.

    Args:
        model: An `nn.Module`, or a pure function of parameters and inputs.
        params: For a module, names or patterns, or None for all that are not frozen; for a
            function, its parameters.

    Returns:
        The live tensors by name; tied ones once.

    Raises:
        WrongTypeError: If model or params are of another kind.
        EmptySelectionError: If nothing is selected.
    """
    if isinstance(model, nn.Module):
        _refuse_odd_tensors((*model.named_parameters(), *model.named_buffers()))
        _refuse_odd_modules(model)
        _refuse_odd_embeddings(model)
        if isinstance(params, Mapping):
            raise WrongTypeError(
                "`EmpiricalRisk(params=...)` of a module takes names or patterns; got a mapping. "
                "Load values into the module, or pass a function `f(params, x)` as model."
            )
        named = dict(model.named_parameters())
        if not named:
            raise EmptySelectionError("The model has no parameters. Expected at least one.")
        if params is None:
            chosen: dict[str, Tensor] = {n: p for n, p in named.items() if p.requires_grad}
            if not chosen:
                raise EmptySelectionError(
                    f"All {len(named)} parameters are frozen (`requires_grad=False`). Unfreeze "
                    "some, or name them with `params=`."
                )
            return chosen
        patterns = [params] if isinstance(params, str) else params
        if not isinstance(patterns, Iterable) or not all(isinstance(p, str) for p in patterns):
            raise WrongTypeError(
                "`EmpiricalRisk(params=...)` of a module takes names or patterns of parameters; "
                f"got {params!r}."
            )
        space = ParamSpace.of(named)
        wanted = set(space.restrict(space.block(*patterns)).names)
        return {name: p for name, p in named.items() if name in wanted}
    if not callable(model):
        raise WrongTypeError(
            "`EmpiricalRisk(model=...)` must be an nn.Module or a function `f(params, x)`; got "
            f"{type(model).__name__}."
        )
    if not isinstance(params, Mapping) or not params:
        raise WrongTypeError(
            "`EmpiricalRisk(model=function)` needs `params=` as a dict of name to tensor; got "
            f"{type(params).__name__}."
        )
    _refuse_odd_tensors((str(name), tensor) for name, tensor in params.items())
    return {str(name): tensor for name, tensor in params.items()}


def without_padding(
    rows: Tensor, module: nn.Module, space: ParamSpace, live: Mapping[str, Tensor]
) -> Tensor:
    """Set to zero what belongs to padding rows of embeddings in rows (k, n) of parameters.

    PyTorch gives these rows of a weight no gradient, though the output holds them. They count as
    constants: no direction moves them.

    Args:
        rows: One row for each vector.
        module: The model.
        space: Where tensors stand in a row.
        live: The model's own parameters.

    Returns:
        The rows themselves where there is no padding, else a copy.
    """
    kinds = (nn.Embedding, nn.EmbeddingBag)
    lookups = [layer for layer in module.modules() if isinstance(layer, kinds)]
    padded = {id(e.weight): e.padding_idx for e in lookups if isinstance(e.padding_idx, int)}
    if not padded:
        return rows
    result = rows.clone()
    tensors = space.unflatten(result.T)  # views
    for name in space.names:
        if (number := padded.get(id(live[name]))) is not None:
            tensors[name][number] = 0
    return result


def common_kind(params: dict[str, Tensor]) -> tuple[torch.dtype, torch.device]:
    """Return the one dtype and device of all parameters.

    Args:
        params: The parameters by name.

    Returns:
        Both.

    Raises:
        WrongTypeError: If they are not real floating-point tensors of one kind with values.
        EmptySelectionError: If they have no entries.
    """
    for name, tensor in params.items():
        if not isinstance(tensor, Tensor) or not tensor.dtype.is_floating_point:
            kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise WrongTypeError(
                f"Parameter '{name}' must be a real floating-point tensor; got {kind}. "
                "Exclude it with `params=`, or store it as a buffer."
            )
    kinds = {(tensor.dtype, tensor.device) for tensor in params.values()}
    if len(kinds) > 1:
        shown = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise WrongTypeError(
            f"All parameters must share one dtype and device; got {shown}. Convert the model, e.g. "
            "`model.to('cpu', torch.float64)`, or choose some with `params=`."
        )
    if not sum(tensor.numel() for tensor in params.values()):
        raise EmptySelectionError(
            f"The {len(params)} selected parameters have no entries. Expected at least one."
        )
    dtype, device = kinds.pop()
    if device.type == "meta":
        raise WrongTypeError(
            "The parameters are on the device 'meta', which holds no values. Load them first, e.g. "
            "`model.to_empty(device='cpu')` and `model.load_state_dict(...)`."
        )
    return dtype, device


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put every part of a model in eval mode, and those that were not back afterwards."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


def checked_autocast(autocast: torch.dtype | None, dtype: torch.dtype) -> torch.dtype | None:
    """Return the dtype to evaluate a model in, or refuse one that gains nothing or overflows."""
    if autocast not in (None, torch.bfloat16):
        raise InvalidArgumentError(
            f"`EmpiricalRisk(autocast=...)` must be torch.bfloat16 or None; got {autocast}. "
            "float16 has no room for the range of second derivatives."
        )
    if autocast is not None and dtype != torch.float32:
        raise InvalidArgumentError(
            f"`EmpiricalRisk(autocast={autocast})` is for parameters in float32, which it rounds; "
            f"they are in {dtype}. Leave it out, or convert the model with `model.float()`."
        )
    return autocast


def warn_of_tied(
    layer: str, module: nn.Module, names: Iterable[str], selected: Mapping[str, Tensor]
) -> None:
    """Say that a layer's block lacks a tensor that counts under another layer's name.

    Args:
        layer: The layer's name.
        module: The layer.
        names: The tensors of the block.
        selected: The tensors that are differentiated, by name.
    """
    first = {id(tensor): name for name, tensor in selected.items()}
    selected_names = {first[id(p)] for p in module.parameters(recurse=False) if id(p) in first}
    if missing := sorted(selected_names.difference(names)):
        warnings.warn(
            f"Layer '{layer}' shares '{missing[0]}' with another layer, under whose name it "
            f"counts; the block is that of {', '.join(names)} alone.",
            SubstitutionWarning,
            stacklevel=4,
        )


class Spy(TorchFunctionMode):
    """Watches a forward pass for fused attention, and for results in less than its precision."""

    def __init__(self, dtype: torch.dtype) -> None:
        """Begin with nothing seen.

        Args:
            dtype: The dtype in which the model should compute.
        """
        super().__init__()
        self.saw_attention = False
        self.lowest = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at a call, and make it."""
        kwargs = kwargs or {}
        # `nn.MultiheadAttention` takes the fused kernel only where no weights are asked for.
        if func is F.scaled_dot_product_attention or (
            func is F.multi_head_attention_forward and not kwargs.get("need_weights", True)
        ):
            self.saw_attention = True
        result = func(*args, **kwargs)
        if _is_real(result) and result.numel() > 1:
            # A result without a more precise argument, such as a mask, was created, not rounded.
            arguments = [t for t in pytree.tree_leaves((args, kwargs)) if _is_real(t)]
            rounds = any(_eps(t) < _eps(result) for t in arguments)
            if rounds and _eps(result) > torch.finfo(self.lowest).eps:
                self.lowest = result.dtype
        return result


class Widened(TorchFunctionMode):
    """Computes in float64 what a forward pass would cast down: islands of float32 and the like."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make a call, with float64 for every narrower dtype that it names."""
        named = {name: _widened(value) for name, value in (kwargs or {}).items()}
        return _CASTS.get(func, func)(*map(_widened, args), **named)


_CASTS = dict.fromkeys((Tensor.float, Tensor.half, Tensor.bfloat16), Tensor.double)
_NARROW = (torch.float32, torch.float16, torch.bfloat16)


def _widened(value: object) -> object:
    is_narrow = isinstance(value, torch.dtype) and value in _NARROW
    return torch.float64 if is_narrow else value


def _is_real(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.is_floating_point()


def _eps(tensor: Tensor) -> float:
    return torch.finfo(tensor.dtype).eps
