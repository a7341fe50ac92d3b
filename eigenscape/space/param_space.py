"""The flat parameter vector: names and shapes, blocks of entries, partitions into blocks.

All vectors are flat, `(n,)` or `(n, k)` for k columns, in PyTorch's parameter order and row-major.
A `ParamSpace` knows which entry belongs to which tensor, a `Block` is a named set of entries, a
`Partition` a list of disjoint blocks. Blocks hold Python ranges, not index tensors.
"""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from types import MappingProxyType
from typing import Self, TypeAlias

import torch
from torch import Tensor

from eigenscape import errors
from eigenscape.errors import EmptySelectionError, InvalidArgumentError, ShapeError, near_matches

Patterns: TypeAlias = str | Sequence[str]

# Up to this many spans are copied slice by slice; beyond, one gather by index is faster.
_FEW_SPANS = 32


@dataclass(frozen=True, repr=False)
class Block:
    """A named set of entries of the flat vector, kept as ranges.

    The order of the spans is the order of the block's entries. Touching spans are merged and empty
    ones dropped, so a whole layer of any size is one range.

    Args:
        name: Dotted name, such as "fc1" or "fc1.out.3".
        spans: Disjoint ranges of flat indices, with step 1 or more.

    Raises:
        InvalidArgumentError: If a span goes backwards or starts below 0.
        OverlapError: If two spans share entries.

    Examples:
        >>> Block("odd", (range(1, 6, 2),)).take(torch.arange(6) * 10).tolist()
        [10, 30, 50]
    """

    name: str
    spans: tuple[range, ...]
    _cache: dict[torch.device, Tensor] = field(default_factory=dict, init=False, compare=False)

    def __post_init__(self) -> None:
        spans: list[range] = []
        for span in self.spans:
            if span.step < 1 or span.start < 0:
                raise InvalidArgumentError(
                    f"`Block({self.name!r}, spans=...)` needs ranges that start at 0 or later and "
                    f"go up; got {span}. Write the same entries as an ascending range."
                )
            if span:  # One spelling per set of entries, so that equal blocks compare equal.
                span = range(span.start, span[-1] + 1, span.step if len(span) > 1 else 1)
                if spans and span.step == spans[-1].step == 1 and span.start == spans[-1].stop:
                    span = range(spans.pop().start, span.stop)
                spans.append(span)
        object.__setattr__(self, "spans", tuple(spans))
        ordered = sorted(spans, key=lambda span: span.start)
        # Strided spans may interleave without meeting; only then are single entries compared.
        if any(b.start < a.stop for a, b in pairwise(ordered)):
            repeated = self.size - len(self.index().unique())
            if repeated:
                raise errors.OverlapError(
                    f"`Block({self.name!r}, spans=...)` needs disjoint spans; {repeated} entries "
                    "come more than once. Remove the repeated ranges."
                )

    def __repr__(self) -> str:
        return f"Block({self.name!r}, size={self.size})"

    @property
    def size(self) -> int:
        """Number of entries."""
        return sum(map(len, self.spans))

    @property
    def _stop(self) -> int:
        return max((span.stop for span in self.spans), default=0)

    def index(self, device: torch.device | str = "cpu") -> Tensor:
        """Return the flat indices of the entries: int64 `(size,)` on `device`.

        It costs 8 bytes per entry and is kept for the next call: do not write into it.
        """
        key = torch.device(device)
        if key not in self._cache:
            # A tensor born in inference mode could not serve a later backward pass.
            with torch.inference_mode(False):
                ranges = [torch.arange(s.start, s.stop, s.step, device=key) for s in self.spans]
                self._cache[key] = torch.cat(ranges or [torch.arange(0, device=key)])
        return self._cache[key]

    def take(self, X: Tensor) -> Tensor:
        """Return the block's rows of `X` `(n,)` or `(n, k)`: a view if there is one span.

        Raises:
            ShapeError: If `X` has another number of dimensions or too few rows.
        """
        if X.ndim not in (1, 2) or X.shape[0] < self._stop:
            raise ShapeError(
                f"`{self!r}.take(X)` needs X of shape (n,) or (n, k) with n >= {self._stop}; got "
                f"{tuple(X.shape)}. Pass a vector of the space that the block belongs to."
            )
        if len(self.spans) > _FEW_SPANS:
            return X.index_select(0, self.index(X.device))
        rows = [X[span.start : span.stop : span.step] for span in self.spans] or [X[:0]]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def put(self, Y: Tensor, n: int) -> Tensor:
        """Return n rows of zeros with those of `Y` `(size,)` or `(size, k)` at the block's entries.

        This is the adjoint of `take`.

        Raises:
            ShapeError: If `Y` does not have `size` rows or `n` is too small.

        Examples:
            >>> Block("odd", (range(1, 4, 2),)).put(torch.tensor([5, 7]), 4).tolist()
            [0, 5, 0, 7]
        """
        if Y.ndim not in (1, 2) or Y.shape[0] != self.size or n < self._stop:
            raise ShapeError(
                f"`{self!r}.put(Y, n)` needs Y of shape ({self.size},) or ({self.size}, k) and n "
                f">= {self._stop}; got {tuple(Y.shape)}, n={n}. Pass the rows of this block and "
                "`space.size`."
            )
        out = Y.new_zeros((n, *Y.shape[1:]))
        if len(self.spans) > _FEW_SPANS:
            return out.index_copy(0, self.index(Y.device), Y)
        done = 0
        for span in self.spans:
            out[span.start : span.stop : span.step] = Y[done : done + len(span)]
            done += len(span)
        return out


@dataclass(frozen=True, init=False, repr=False)
class ParamSpace:
    """An ordered map from tensor names to shapes, and the flat vector that holds them all.

    Immutable and hashable; two spaces are equal when names, order and shapes are.

    Args:
        shapes: Shape of each tensor, in order. Scalars `()` and sizes of 0 are allowed.

    Raises:
        WrongTypeError: If `shapes` does not map to sequences of integers.
        InvalidArgumentError: If a name is empty or a size negative.
        EmptySelectionError: If there is no tensor.

    Examples:
        >>> space = ParamSpace({"fc.weight": (2, 3), "fc.bias": (2,)})
        >>> space.size, space.offset("fc.bias"), space.block("fc").spans
        (8, 6, (range(0, 8),))
    """

    _items: tuple[tuple[str, tuple[int, ...]], ...]
    _shape: dict[str, tuple[int, ...]] = field(compare=False)
    _where: dict[str, range] = field(compare=False)
    size: int = field(compare=False)

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        where, size = {}, 0
        try:
            items = tuple((n, tuple(map(operator.index, shape))) for n, shape in shapes.items())
        except (TypeError, AttributeError):
            raise errors.WrongTypeError(
                "`ParamSpace(shapes=...)` must map names to sequences of integers; got "
                f"{type(shapes).__name__}. Use `ParamSpace.of(dict(model.named_parameters()))`."
            ) from None
        for name, shape in items:
            if not isinstance(name, str) or not name or min(shape, default=0) < 0:
                raise InvalidArgumentError(
                    "`ParamSpace(shapes=...)` needs non-empty string names and sizes of 0 or more; "
                    f"got {name!r}: {shape}. Correct this item."
                )
            where[name] = range(size, size + math.prod(shape))
            size = where[name].stop
        if not items:
            raise EmptySelectionError(
                "`ParamSpace(shapes=...)` needs at least one tensor; got none. Check that the "
                "model has parameters and that some were selected."
            )
        object.__setattr__(self, "_items", items)
        object.__setattr__(self, "_shape", dict(items))
        object.__setattr__(self, "_where", where)
        object.__setattr__(self, "size", size)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Return the space of named tensors, such as `dict(model.named_parameters())`."""
        if not isinstance(tensors, Mapping):
            raise errors.WrongTypeError(
                f"`ParamSpace.of(tensors)` must map names to tensors; got "
                f"{type(tensors).__name__}. Write `dict(model.named_parameters())`."
            )
        return cls({name: tensor.shape for name, tensor in tensors.items()})

    @classmethod
    def flat(cls, n: int, name: str = "x") -> Self:
        """Return a space of one vector of `n` entries, for a matrix that never saw a network."""
        return cls({name: (n,)})

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}: {shape}" for name, shape in self._items[:2])
        return f"ParamSpace(size={self.size}, {{{shown}{', …' if len(self) > 2 else ''}}})"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors, in order."""
        return tuple(self._where)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of each tensor, in order; read-only."""
        return MappingProxyType(self._shape)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, name: object) -> bool:
        return name in self._where

    def offset(self, name: str) -> int:
        """Return the flat index of a tensor's first entry; `UnknownNameError` if there is none."""
        if name not in self._where:
            raise errors.UnknownNameError(
                f"`ParamSpace.offset(name=...)` needs the name of a tensor; got {name!r}. "
                + near_matches(name, self.names)
            )
        return self._where[name].start

    def flatten(self, named: Mapping[str, Tensor]) -> Tensor:
        """Return one new vector `(n,)` with all tensors row-major, in this space's order.

        Args:
            named: A tensor for each name, in any order. Mixed dtypes are promoted.

        Raises:
            UnknownNameError: If names are missing or unknown.
            ShapeError: If a tensor has another shape, or the devices differ.

        Examples:
            >>> space = ParamSpace({"W": (1, 2), "b": ()})
            >>> space.flatten({"b": torch.tensor(3.0), "W": torch.tensor([[1.0, 2.0]])}).tolist()
            [1.0, 2.0, 3.0]
        """
        call = "`ParamSpace.flatten(named)` needs"
        for wrong, word, known in (
            ([name for name in self.names if name not in named], "without", [*named]),
            ([name for name in named if name not in self], "with unknown", [*self.names]),
        ):
            if wrong:
                listed = ", ".join(map(repr, wrong[:3])) + (", …" if len(wrong) > 3 else "")
                raise errors.UnknownNameError(
                    f"{call} exactly the {len(self)} tensors of the space; got {len(named)}, "
                    f"{word} {listed}. Rename or select them. {near_matches(wrong[0], known)}"
                )
        for name, shape in self._items:
            if named[name].shape != shape:
                raise ShapeError(
                    f"{call} shape {shape} for {name!r}; got {tuple(named[name].shape)}. Build the "
                    "space from the same model."
                )
        devices = sorted({str(tensor.device) for tensor in named.values()})
        if len(devices) > 1:
            raise ShapeError(
                f"{call} one device; got {', '.join(devices)}. Move the tensors first."
            )
        return torch.cat([named[name].reshape(-1) for name in self.names])

    def unflatten(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the named tensors in a flat vector `(n,)`, as views of it.

        For `(n, k)` each tensor has one more dimension, k, at its end.

        Raises:
            ShapeError: If the vector does not have `size` rows.
        """
        if vector.ndim not in (1, 2) or vector.shape[0] != self.size:
            raise ShapeError(
                f"`ParamSpace.unflatten(vector)` needs shape ({self.size},) or ({self.size}, k); "
                f"got {tuple(vector.shape)}. Pass a vector of this space."
            )
        pieces = torch.split(vector, [len(where) for where in self._where.values()])
        columns = vector.shape[1:]
        return {n: p.view((*s, *columns)) for (n, s), p in zip(self._items, pieces, strict=True)}

    def _select(self, patterns: Patterns | None, call: str) -> list[str]:
        """Names of the tensors that any pattern selects, in order; all of them for None."""
        chosen = set(self.names if patterns is None else ())
        for pattern in [patterns] if isinstance(patterns, str) else patterns or ():
            matching = {n for n in self.names if n == pattern or n.startswith(f"{pattern}.")}
            # A literal name wins over its reading as a glob: names may hold brackets.
            for glob in () if matching else (pattern, f"{pattern}.*"):
                matching |= {name for name in self.names if fnmatchcase(name, glob)}
            if not matching:
                paths = [name.split(".") for name in self.names]
                known = [".".join(p[: i + 1]) for p in paths for i in range(len(p))]
                is_glob = bool(set(pattern) & set("*?["))
                raise (EmptySelectionError if is_glob else errors.UnknownNameError)(
                    f"`{call}` needs names of tensors or layers, or globs that match some; "
                    f"{pattern!r} matches none. {near_matches(pattern, dict.fromkeys(known))}"
                )
            chosen |= matching
        return [name for name in self.names if name in chosen]

    def block(self, *patterns: str) -> Block:
        """Return the block of all tensors that match any pattern, in the space's order.

        Args:
            *patterns: A tensor ("fc1.weight"), a layer ("fc1": all of "fc1.*"), or a glob of either
                ("blocks.*.attn"), in which * also spans dots. They name the block, joined by "+".

        Raises:
            UnknownNameError: If a name is unknown.
            EmptySelectionError: If a glob matches nothing, or only tensors of size 0.
        """
        names = self._select(patterns, "ParamSpace.block(*patterns)")
        block = Block("+".join(patterns), tuple(self._where[name] for name in names))
        if not block.size:
            raise EmptySelectionError(
                "`ParamSpace.block(*patterns)` needs at least one entry; got "
                + (f"{', '.join(map(repr, names))} of size 0. " if names else "no pattern. ")
                + near_matches(block.name, [n for n, where in self._where.items() if where])
            )
        return block

    def restrict(self, block: Block) -> "ParamSpace":
        """Return the space of the block's entries, in the block's order.

        It has the block's tensors where these are whole (those of size 0 left out), else one flat
        vector named after the block.

        Raises:
            EmptySelectionError: If the block is empty.
            InvalidArgumentError: If it reaches beyond this space.
        """
        self._require_inside(block)
        starts = {where.start: name for name, where in self._where.items() if where}
        complete: dict[str, tuple[int, ...]] = {}
        for span in block.spans:
            here = span.start
            while here < span.stop:
                name = starts.get(here, "")
                if span.step > 1 or not name or self._where[name].stop > span.stop:
                    return ParamSpace.flat(block.size, block.name)
                complete[name], here = (), self._where[name].stop
        return ParamSpace({name: self._shape[name] for name in complete})

    def _require_inside(self, block: Block) -> None:
        if not block.size:
            raise EmptySelectionError(f"{block!r} needs entries; it has none. Leave it out.")
        if block._stop > self.size:
            raise InvalidArgumentError(
                f"{block!r} must lie within the {self.size} entries of its space; got index "
                f"{block._stop - 1}. Build it from the same space."
            )
