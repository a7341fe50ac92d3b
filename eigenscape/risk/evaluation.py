"""The settings under which a user's model is evaluated, whatever is set around the call.

What would change the function, or its derivatives, without being part of it is switched off: train
mode, autocast, caches of parametrisations, inference mode, kernels that have no second derivative
or crash, reduced precision. All is put back at last, gradients that the user holds among it.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrize
from torch.utils import checkpoint as checkpointing

from eigenscape.device import full_precision
from eigenscape.errors import EigenscapeError, UnsupportedModelError
from eigenscape.risk.borrowed import parts_of
from eigenscape.risk.parameters import eval_mode, is_compiled


@contextmanager
def full_arithmetic(device: torch.device) -> Iterator[None]:
    """Compute in full precision, whatever is set around the call: no autocast, no TF32.

    Args:
        device: Where.

    Yields:
        Nothing.
    """
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        for kind in {device.type, "cpu"}:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(full_precision())
        yield


@contextmanager
def evaluation(
    module: nn.Module | None,
    parameters: Sequence[Tensor],
    live: Collection[int],
    *,
    mode: str,
    device: torch.device,
) -> Iterator[None]:
    """Put a model in its mode and route around kernels without a second derivative.

    Fused attention has no double backward, so the math kernel is used; cuDNN's recurrent kernels
    have none either. Only the parameters to differentiate require gradients meanwhile: activation
    checkpointing runs the module again in a backward pass, and must save what was saved at first.

    Args:
        module: The model, or None for a pure function.
        parameters: All of its parameters; of a function, those that it is given.
        live: The `id`s of the parameters that are differentiated.
        mode: "eval" or "keep".
        device: Where it runs.

    Yields:
        Nothing.
    """
    submodules = list(parts_of([module])) if module is not None else []
    flipped = [
        p
        for p in parameters
        if p.requires_grad != (id(p) in live) and p.is_leaf and not p.is_inference()
    ]
    fastpath = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(full_arithmetic(device))
        if module is not None and mode == "eval":
            stack.enter_context(eval_mode(module))
        if parametrize._cache_enabled:
            # What a user's `parametrize.cached()` holds belongs to other parameters.
            stack.enter_context(_replaced(parametrize, {"_cache_enabled": 0, "_cache": {}}))
        stack.enter_context(_replaced(F, _RIGHT))
        stack.enter_context(_replaced(checkpointing, {"CheckpointFunction": _Recomputed}))
        stack.enter_context(sdpa_kernel([SDPBackend.MATH]))
        if any(is_compiled(submodule) for submodule in submodules):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if any(isinstance(submodule, nn.RNNBase) for submodule in submodules):
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        stack.enter_context(_gradients_kept(parameters))
        try:
            torch.backends.mha.set_fastpath_enabled(False)
            for parameter in flipped:
                parameter.requires_grad = id(parameter) in live
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fastpath)
            for parameter in flipped:
                parameter.requires_grad = id(parameter) not in live


@contextmanager
def _gradients_kept(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Put `.grad` aside: a model that calls `backward` within itself would add to it."""
    kept = [(p, p.grad) for p in parameters if p.is_leaf]
    try:
        for parameter, _ in kept:
            parameter.grad = None
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient


def _hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """Compute `F.hardsigmoid`, whose kernel has no second derivative, by one that has."""
    result = F.relu6(input + 3) / 6
    return input.copy_(result) if inplace else result


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Compute `F.group_norm` so that its backward pass does not crash the process."""
    # PyTorch 2.13 crashes on a CPU if the memory format is channels-last and the input needs no
    # gradient. `F.group_norm` refuses one value per group in a batch of one sample alone, though
    # each sample is normalised by itself: a model that runs on all data would not run on one.
    plain = input.contiguous() if input.device.type == "cpu" else input
    return torch.group_norm(plain, num_groups, weight, bias, eps, torch.backends.cudnn.enabled)


def _of_one_image(normalise: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Make a norm whose backward pass is right for a single sample."""
    # PyTorch 2.13 gets it wrong on a CPU if the incoming gradient is channels-last. Flattening the
    # output makes the backward pass lay the gradient out anew.

    def normalised(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        result = normalise(input, *args, **kwargs)
        is_one = input.device.type == "cpu" and input.ndim > 2 and len(input) == 1
        return result.flatten().view(result.shape) if is_one else result

    return normalised


class _Recomputed:
    """Stands in for reentrant activation checkpointing, whose gradient cannot be differentiated.

    It has no gradient at all where no input of the recomputed segment requires one.
    """

    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return checkpointing.checkpoint(
            function, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state
        )


# Functions that PyTorch differentiates wrongly, or not twice, and right ones for them.
_RIGHT: dict[str, Callable[..., Tensor]] = {
    "hardsigmoid": _hardsigmoid,
    "group_norm": _group_norm,
    "batch_norm": _of_one_image(F.batch_norm),
    "instance_norm": _of_one_image(F.instance_norm),
}


@contextmanager
def _replaced(module: ModuleType, values: Mapping[str, Any]) -> Iterator[None]:
    """Give names of a module other values, such as functions that are called by these names."""
    kept = {name: getattr(module, name) for name in values}
    try:
        vars(module).update(values)
        yield
    finally:
        vars(module).update(kept)


@contextmanager
def derivatives_explained(name: str) -> Iterator[None]:
    """Refuse in plain words what PyTorch cannot differentiate.

    Args:
        name: What is being computed.

    Yields:
        Nothing.

    Raises:
        UnsupportedModelError: In place of what PyTorch or the model raised.
        EigenscapeError: As it was, if it is a refusal already.
        Warning: As it was, where warnings are errors.
        OutOfMemoryError: As it was.
        MemoryError: As it was.
    """
    try:
        yield
    except (EigenscapeError, Warning, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        raise UnsupportedModelError(f"{name} cannot be computed. {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Say what PyTorch lacks, and what to do."""
    said = str(error)
    missing = re.search(r"derivative for '?(?:aten::)?_?(\w+?)(?:_backward)?'? is not", said)
    if missing is not None:
        return (
            f"PyTorch has no second derivative of `{missing[1]}`, which the model or the loss "
            "uses. Write it out in simpler operations."
        )
    if "checkpoint" in said.lower() and "reentrant" in said:
        return (
            "The model uses reentrant activation checkpointing, which cannot be differentiated "
            "twice. Pass `use_reentrant=False` to `checkpoint`; for a model of transformers, "
            "`gradient_checkpointing_enable(gradient_checkpointing_kwargs={'use_reentrant': "
            "False})`."
        )
    first = (said.strip().splitlines() or [""])[0]
    return (
        f"Differentiating the model or the loss raised {type(error).__name__}: {first} If this is "
        "an operation without a second derivative, write it out in simpler ones."
    )
