"""What kept work depends on, remembered so that a change of it is noticed by its content.

PyTorch counts writes to a tensor, but not those through `.data`, NumPy or a view of its memory, so
the bits themselves are compared with a copy. Beside tensors a forward pass depends on whatever its
modules and functions hold: attributes, submodules, hooks, what a closure captured, globals that it
names. These are compared by identity, and by value where they are plain numbers and strings.
"""

import sys
import sysconfig
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import cache, partial
from operator import is_
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from eigenscape.risk.borrowed import as_integers, is_plain

_ATOMS = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size)
_SKIPPED = (types.ModuleType, torch.Generator, torch.jit.ScriptFunction, Enum)
# Larger containers are somebody's data, not settings; deeper ones and more objects are not looked
# at either, so that what is remembered stays small beside a product.
_MOST_ITEMS, _DEEPEST, _MOST_OBJECTS = 256, 8, 20_000
# Of more data than this only some entries are compared.
_MOST_DATA_BYTES = 2**28
_STDLIB = sysconfig.get_paths()["stdlib"]
_MISSING = object()

# Where something is held: the `id` of a container, function cell or class, and a name in it.
Place: TypeAlias = tuple[int, object]


def address_of(tensor: Tensor) -> int:
    """Return where a tensor's entries lie; of one without such a place, what tells it apart."""
    try:
        return tensor.data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse, or wrapped by a transform
        return id(tensor)


class Contents:
    """The bits of some tensors at one time."""

    def __init__(self, tensors: Iterable[Tensor], *, most_bytes: int | None = None) -> None:
        """Copy them.

        Args:
            tensors: Tensors that live on somewhere else.
            most_bytes: Most memory for the copies; of larger tensors some rows are copied and
                compared, evenly spread.
        """
        self._tensors = list({id(t): t for t in tensors}.values())
        total = sum(t.numel() * t.element_size() for t in self._tensors)
        stride = 1 if most_bytes is None else max(1, -(-total // most_bytes))
        self._places = self._where()
        # Views share the memory and so follow every write; `have_moved` notices new memory.
        bits = [as_integers(t) for t in self._tensors if is_plain(t)]
        self._views = [t[::stride] if t.ndim and stride > 1 else t for t in bits]
        self._copies = [view.clone() for view in _joined(self._views)]

    def have_moved(self) -> bool:
        """Tell without looking at a device whether PyTorch counted a write or memory changed."""
        return self._where() != self._places

    def differ(self, device: torch.device) -> Tensor:
        """Compare the tensors with the copies, without waiting for a device.

        Args:
            device: Where the answer is wanted.

        Returns:
            A tensor without dimensions, true if a bit is another one.
        """
        pairs = list(zip(_joined(self._views), self._copies, strict=True))
        here = [torch.equal(a, b) for a, b in pairs if a.device.type == "cpu"]
        there = [
            (a != b).any().to(device, non_blocking=True) for a, b in pairs if a.device.type != "cpu"
        ]
        return torch.stack([torch.tensor(not all(here), device=device), *there]).any()

    def _where(self) -> list[tuple[int, int]]:
        return [(address_of(t), 0 if t.is_inference() else t._version) for t in self._tensors]


def _joined(flat: Sequence[Tensor]) -> list[Tensor]:
    """Join what is on a GPU, by kind: launches cost more there."""
    apart = [tensor for tensor in flat if tensor.device.type == "cpu"]
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in flat:
        if tensor.device.type != "cpu":
            kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return [*apart, *(torch.cat([p.reshape(-1) for p in tensors]) for tensors in kinds.values())]


class Watch:
    """The objects that some modules and functions depend on, as they were at one time."""

    def __init__(self, roots: Iterable[object], *, ignored: Iterable[str] = ()) -> None:
        """Walk from modules and functions to everything that they hold.

        Args:
            roots: Modules, functions, or objects that hold them.
            ignored: Names of attributes whose value does not matter.
        """
        self._ignored = frozenset(ignored)
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._sequences: list[tuple[Any, list[Any]]] = []
        self._values: list[tuple[Place, Callable[[], object], object]] = []
        self._empty: list[Any] = []
        self._seen: set[int] = set()
        self._classes: set[type] = set()
        self.tensors: list[Tensor] = []
        self.modules: list[nn.Module] = []
        for root in roots:
            self._visit(root, 0)

    def changes(self) -> set[Place]:
        """Find what was rebound, added, taken away or set to another value."""
        changed: set[Place] = {(id(container), None) for container in self._empty if container}
        for held, saved in self._dicts:
            if len(held) == len(saved) and all(map(is_, held.values(), saved.values())):
                continue
            for key in {**saved, **held}:
                if key not in self._ignored and not _is_alike(
                    held.get(key, _MISSING), saved.get(key, _MISSING)
                ):
                    changed.add((id(held), key))
        for sequence, items in self._sequences:
            if len(sequence) != len(items) or not (
                all(map(is_, sequence, items)) or all(map(_is_alike, sequence, items))
            ):
                changed.add((id(sequence), None))
        for location, now, before in self._values:
            if not _is_alike(now(), before):
                changed.add(location)
        return changed

    def _visit(self, value: object, depth: int) -> None:
        if isinstance(value, _ATOMS) or id(value) in self._seen:
            return
        if depth > _DEEPEST or len(self._seen) > _MOST_OBJECTS or isinstance(value, _SKIPPED):
            return
        self._seen.add(id(value))
        if isinstance(value, Tensor):
            self.tensors.append(value)
        elif isinstance(value, type):
            return
        elif isinstance(value, dict | OrderedDict):
            self._visit_dict(value, depth)
        elif isinstance(value, list | tuple | set | frozenset | deque):
            self._visit_sequence(value, depth)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value, depth)
        elif isinstance(value, types.MethodType):
            self._visit(value.__self__, depth)
            self._visit(value.__func__, depth)
        elif isinstance(value, partial):
            for inner in (value.func, value.args, value.keywords):
                self._visit(inner, depth)
        elif isinstance(getattr(value, "__dict__", None), dict):
            # A module is no deeper than what holds it: networks nest.
            if isinstance(value, nn.Module):
                self.modules.append(value)
            self._visit_class(type(value), depth)
            self._visit_dict(value.__dict__, depth if isinstance(value, nn.Module) else depth + 1)

    def _visit_dict(self, held: dict[Any, Any], depth: int) -> None:
        if len(held) > _MOST_ITEMS and not any(
            isinstance(item, nn.Module) for item in held.values()
        ):
            return
        if not held:
            self._empty.append(held)
            return
        self._dicts.append((held, dict(held)))
        for item in list(held.values()):
            self._visit(item, depth if isinstance(item, dict | nn.Module) else depth + 1)

    def _visit_sequence(self, items: Any, depth: int) -> None:
        if len(items) > _MOST_ITEMS:
            return
        if not isinstance(items, tuple | frozenset):
            if not items:
                self._empty.append(items)
                return
            self._sequences.append((items, list(items)))
        for item in list(items):
            self._visit(item, depth + 1)

    def _visit_function(self, function: types.FunctionType, depth: int) -> None:
        for cell in function.__closure__ or ():
            content = _content(cell)
            self._values.append(((id(cell), None), partial(_content, cell), content))
            self._visit(content, depth + 1)
        for defaults in (function.__defaults__, function.__kwdefaults__):
            self._visit(defaults, depth + 1)
        if _is_library(function.__module__):
            return
        for name in function.__code__.co_names:
            if name in function.__globals__:
                value = self._noted(function.__globals__, function.__globals__, name)
                if not isinstance(value, type):
                    self._visit(value, depth + 1)

    def _noted(self, owner: object, namespace: Any, name: str) -> object:
        """Remember what a name stands for, and return it."""
        value = namespace[name]
        self._values.append(((id(owner), name), partial(namespace.get, name, _MISSING), value))
        return value

    def _visit_class(self, kind: type, depth: int) -> None:
        """Note what a user's class holds: constants, and the functions that run."""
        for base in kind.__mro__:
            if base in self._classes or _is_library(base.__module__):
                continue
            self._classes.add(base)
            for name, value in list(vars(base).items()):
                if isinstance(value, (types.FunctionType, Tensor, list, dict, *_ATOMS)):
                    self._noted(base, vars(base), name)
                    if not name.startswith("__"):
                        self._visit(value, depth + 1)


@cache
def _is_library(module: str | None) -> bool:
    """Tell whether code was installed, or came with Python: nobody changes it on the way."""
    if (module or "").partition(".")[0] == __name__.partition(".")[0]:
        return True
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    if file is None:
        return module != "__main__"
    folders = Path(file).parts
    return "site-packages" in folders or "dist-packages" in folders or file.startswith(_STDLIB)


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # empty so far
        return None


def _is_alike(first: object, second: object) -> bool:
    if first is second:
        return True
    return type(first) is type(second) and isinstance(first, _ATOMS) and first == second


class Snapshot:
    """A model, its loss and its data at one time: what is kept holds as long as they stay so."""

    def __init__(
        self,
        state: Sequence[Tensor],
        data: Sequence[Tensor],
        roots: Iterable[object],
        *,
        ignored: Iterable[str] = (),
        volatile: set[Place] | None = None,
    ) -> None:
        """Remember them.

        Args:
            state: Parameters and buffers.
            data: Tensors of the data that somebody else may write to.
            roots: Modules and functions that are evaluated.
            ignored: Names of attributes whose value does not matter.
            volatile: Places that evaluating the function writes to, such as a log that a hook
                keeps; they tell nothing of the function. `settle` adds to them.
        """
        self._roots, self._ignored = list(roots), tuple(ignored)
        self._volatile = set() if volatile is None else volatile
        self._watch = Watch(self._roots, ignored=self._ignored)
        known = {id(tensor) for tensor in state}
        self._model = Contents(state)
        self._others = Contents(
            [*data, *(t for t in self._watch.tensors if id(t) not in known)],
            most_bytes=_MOST_DATA_BYTES,
        )

    def is_counted_as_changed(self) -> bool:
        """Tell, without waiting for a device, what PyTorch counted and what objects are others."""
        return self._model.have_moved() or self._others.have_moved() or self._has_other_objects()

    def differs(self, device: torch.device) -> Tensor:
        """Compare the bits of model and data, without waiting for a device.

        Args:
            device: Where the answer is wanted.

        Returns:
            A tensor without dimensions, true if a bit is another one.
        """
        return self._model.differ(device) | self._others.differ(device)

    def is_another_function(self) -> bool:
        """Tell whether something beside parameters and buffers is another: code, settings, data."""
        has_changed = self._has_other_objects() or self._others.have_moved()
        return has_changed or bool(self._others.differ(torch.device("cpu")))

    def settle(self) -> None:
        """Take objects as they are now, after the function was evaluated, which may write to some.

        Without this a function that counts its own calls would look new after each.
        """
        if changed := self._watch.changes():
            self._volatile |= changed
            self._watch = Watch(self._roots, ignored=self._ignored)

    def _has_other_objects(self) -> bool:
        return bool(self._watch.changes() - self._volatile)
