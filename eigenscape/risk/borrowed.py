"""A user's modules, borrowed: run with other tensors in their places, given back as they came.

A forward pass may write into buffers, count its calls in an attribute, or keep an activation; a
trace would leave tensors behind that belong to PyTorch's tracer. None of that may stay.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import is_
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

Slot: TypeAlias = tuple[dict[str, Any], str, Tensor]
_CONTAINERS = (dict, OrderedDict, list, set, deque)


def tensor_slots(modules: Iterable[nn.Module]) -> Iterator[Slot]:
    """Walk every place of the modules that holds a tensor, each once, shared modules too.

    Args:
        modules: The outermost modules.

    Yields:
        The dict that holds the tensor, its key there, and the tensor: parameters, buffers, and
        tensors that are plain attributes.
    """
    for module in parts_of(modules):
        for held in (module._parameters, module._buffers, module.__dict__):
            for name, value in held.items():
                if isinstance(value, Tensor):
                    yield held, name, value


def parts_of(modules: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """Walk all modules inside some modules, each once."""
    visited: set[int] = set()
    for module in modules:
        for submodule in module.modules():
            if id(submodule) not in visited:
                visited.add(id(submodule))
                yield submodule


def state_of(modules: Iterable[nn.Module]) -> list[Tensor]:
    """Return what tensors the modules hold, each once: parameters, buffers, attributes."""
    held = {id(tensor): tensor for _, _, tensor in tensor_slots(modules)}
    return [tensor for tensor in held.values() if is_plain(tensor)]


def is_plain(tensor: Tensor) -> bool:
    """Tell whether a tensor's entries lie in memory, so that its bits can be read."""
    has_entries = tensor.layout is torch.strided and tensor.device.type != "meta"
    return has_entries and type(tensor) in (Tensor, nn.Parameter, nn.Buffer)


def memory_of(tensor: Tensor) -> tuple[int, int]:
    """Return where the memory that a tensor looks at begins, and its size in bytes."""
    try:
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError):  # sparse, or wrapped by a transform
        return id(tensor), tensor.numel() * tensor.element_size()


@contextmanager
def borrowed(
    modules: Sequence[nn.Module], values: Mapping[int, Tensor] | None = None
) -> Iterator[None]:
    """Run modules with other tensors in the places of some of theirs, and put all back.

    `torch.func.functional_call` of PyTorch 2.13 leaves a model in pieces where one module stands
    under two names; here every place is visited once.

    Args:
        modules: The outermost modules.
        values: What stands in for a tensor, by the tensor's `id`, wherever it is held.

    Yields:
        Nothing.
    """
    contents = _remembered(modules)
    slots = list(tensor_slots(modules))
    try:
        for held, name, tensor in slots:
            if values and id(tensor) in values:
                held[name] = values[id(tensor)]
        yield
    finally:
        for held, name, tensor in slots:
            if not isinstance(held, dict):  # a module of TorchScript holds its tensors elsewhere
                held[name] = tensor
        for container, saved in contents:
            _put_back(container, saved)


def _remembered(modules: Sequence[nn.Module]) -> list[tuple[Any, Any]]:
    """Copy the attributes of all modules, and what their lists, dicts and sets hold."""
    containers: list[Any] = []
    for module in parts_of(modules):
        containers.append(module.__dict__)
        containers += [v for v in module.__dict__.values() if type(v) in _CONTAINERS]
    return [(held, held.copy() if isinstance(held, dict) else list(held)) for held in containers]


def _put_back(held: Any, saved: Any) -> None:
    """Let a container hold what it held before, if it does not."""
    pair = (held.values(), saved.values()) if isinstance(held, dict) else (held, saved)
    if len(held) == len(saved) and all(map(is_, *pair)):
        return
    held.clear()
    if isinstance(held, list | deque):
        held.extend(saved)
    else:
        held.update(saved)


def written_among(tensors: Iterable[Tensor], copies: Mapping[int, Tensor]) -> list[Tensor]:
    """Return the tensors whose stand-ins were written to.

    Args:
        tensors: The tensors.
        copies: Clones that stood in for them, by the `id` of each, after they were used.

    Returns:
        Those whose copy differs from them, NaN counting as equal to itself; and buffers that were
        written to without a change, for the next batch may bring one.
    """
    written = []
    for tensor in tensors:
        stand_in = copies[id(tensor)]
        is_written = stand_in._version > 0 and not isinstance(tensor, nn.Parameter)
        if is_written or not same_bits(tensor, stand_in):
            written.append(tensor)
    return written


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Tell whether two tensors hold the same bits.

    Args:
        first: One.
        second: The other.

    Returns:
        False also where shapes or dtypes differ.
    """
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if not first.dtype.is_floating_point and not first.dtype.is_complex:
        return torch.equal(first, second)
    return torch.equal(as_integers(first), as_integers(second))


def as_integers(tensor: Tensor) -> Tensor:
    """Look at a tensor's memory as integers of the same size; writes to it are seen."""
    plain = tensor.detach()
    plain = torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain
    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return plain.view(sizes[plain.element_size()])
