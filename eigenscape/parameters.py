"""A model's parameters and mode: what is differentiated, whether it can be, whether it moved."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from eigenscape.errors import (
    EmptySelectionError,
    InvalidArgumentError,
    SubstitutionWarning,
    UnsupportedModelError,
    WrongTypeError,
)
from eigenscape.space import ParamSpace


def uncompiled(model: Any) -> Any:
    """Return the module inside `torch.compile(module)`, and say what happens to compiled parts."""
    inner = getattr(model, "_orig_mod", model)
    parts = inner.modules() if isinstance(inner, nn.Module) else ()
    if inner is not model or any(is_compiled(part) for part in parts):
        warnings.warn(
            "A compiled model has no second derivative; the modules that were compiled are used "
            "instead (exact, slower).",
            SubstitutionWarning,
            stacklevel=3,
        )
    return inner


def is_compiled(part: nn.Module) -> bool:
    """Say whether a module runs through `torch.compile`, by either of its two ways."""
    return hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) is not None


def _refuse_odd_embeddings(model: nn.Module) -> None:
    for name, part in model.named_modules():
        embeds = isinstance(part, nn.Embedding | nn.EmbeddingBag)
        if embeds and (part.sparse or part.max_norm is not None):
            what, value = ("sparse", "False") if part.sparse else ("max_norm", "None")
            why = "cannot be differentiated twice" if part.sparse else "moves its weights in use"
            raise UnsupportedModelError(
                f"`{name}` {why} (`{what}`). Set `model.{name}.{what} = {value}` for the analysis."
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
            chosen = {name: p for name, p in named.items() if p.requires_grad}
            if not chosen:
                raise EmptySelectionError(
                    f"All {len(named)} parameters are frozen (`requires_grad=False`). Unfreeze "
                    "some, or name them with `params=`."
                )
            return dict(chosen)
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
    return {str(name): tensor for name, tensor in params.items()}


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
        if nn.parameter.is_lazy(tensor):
            raise WrongTypeError(
                f"Parameter '{name}' has no shape yet: its layer is lazy. Run one batch through "
                "the model first."
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
    training = [part for part in model.modules() if part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True


# Entries whose bits are added up at a time: they stay in a processor's cache; of a GPU they take
# little memory.
_PIECES = {"cpu": 2**19, "cuda": 2**22}


def bit_sums(tensors: Iterable[Tensor], device: torch.device) -> Tensor:
    """Add up the bits of tensors as integers that wrap around, without waiting for a device.

    Bits are multiplied with those above them first: of many entries that are doubled or negated,
    the changes of exponents and signs alone add up to a multiple of what wraps around. And with odd
    numbers by their place, so that a change of their order shows.

    Args:
        tensors: Of any dtypes, on any devices.
        device: Where the sums are wanted.

    Returns:
        The sums, int64.
    """
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        kinds.setdefault((plain.dtype, plain.device), []).append(plain.detach().reshape(-1))
    sums = []
    for (_, place), flat in kinds.items():
        size, most = flat[0].element_size(), _PIECES.get(place.type, _PIECES["cpu"])
        integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
        wide = torch.int64 if size == 8 else torch.int32
        # Joined where few launches cost less than some for each tensor.
        is_joined = place.type == "cuda" or sum(map(len, flat)) <= most // 8
        for part in [torch.cat(flat)] if is_joined else flat:
            for piece in part.view(integer).split(most):
                mixed = (piece >> (4 * size - 1)).bitwise_or_(1).mul_(piece)
                sums.append(mixed.mul_(_odd(most, integer, place)[: len(piece)]).sum(dtype=wide))
    return torch.stack([part.to(device, torch.int64, non_blocking=True) for part in sums])


@cache
def _odd(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return 1, 3, 5, …, which wrap around."""
    return (2 * torch.arange(count, device=device) + 1).to(dtype)


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


class AttentionSpy(TorchFunctionMode):
    """Notices calls of fused attention."""

    def __init__(self) -> None:
        """Nothing was found yet."""
        super().__init__()
        self.found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at a call, and make it."""
        kwargs = kwargs or {}
        # `nn.MultiheadAttention` takes the fused kernel only where no weights are asked for.
        if func is F.scaled_dot_product_attention or (
            func is F.multi_head_attention_forward and not kwargs.get("need_weights", True)
        ):
            self.found = True
        return func(*args, **kwargs)
