"""Partitions of a parameter space into named, disjoint blocks.

By tensor, by layer, by output neuron or channel, by input column, by attention head, by pattern.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Self

import torch
from torch import Tensor

from eigenscape import errors
from eigenscape.errors import EmptySelectionError, InvalidArgumentError, near_matches
from eigenscape.space.param_space import Block, ParamSpace, Patterns

# How attention modules call their projections; "in_proj" only as in `in_proj_weight`, since state
# space models have an `in_proj.weight` of another meaning.
_ROLES = {
    alias: role
    for role, aliases in {
        "qkv": "in_proj qkv qkv_proj wqkv to_qkv c_attn",
        "q": "q q_proj q_lin query wq w_q to_q",
        "k": "k k_proj k_lin key wk w_k to_k",
        "v": "v v_proj v_lin value wv w_v to_v",
        "o": "o o_proj out_proj out_lin wo w_o proj c_proj",
    }.items()
    for alias in aliases.split()
}


@dataclass(frozen=True, init=False, repr=False)
class Partition:
    """Named, disjoint blocks of one space; they need not cover it.

    Checking costs a sort of the spans, and one byte per entry only where strided spans interleave.
    The constructors `by_...` let those tensors take part that `only` selects (patterns as in
    `ParamSpace.block`); tensors of size 0 never do. A *layer* is a name without its last part, or
    the name itself if it has no dot.

    Args:
        space: The space that the blocks divide.
        blocks: The blocks, in order.

    Raises:
        EmptySelectionError: If there is no block, or an empty one.
        OverlapError: If two blocks share entries.
        InvalidArgumentError: If names repeat or a block reaches beyond the space.

    Examples:
        >>> space = ParamSpace({"fc.weight": (2, 3), "fc.bias": (2,)})
        >>> rows = Partition.by_output(space)
        >>> rows.names, rows["fc.out.1"].spans
        (('fc.out.0', 'fc.out.1'), (range(3, 6), range(7, 8)))
    """

    space: ParamSpace
    blocks: tuple[Block, ...]
    _number: dict[str, int] = field(compare=False)

    def __init__(self, space: ParamSpace, blocks: Iterable[Block]) -> None:
        blocks = tuple(blocks)
        number = {block.name: i for i, block in enumerate(blocks)}
        if not blocks:
            raise EmptySelectionError(
                "`Partition(space, blocks)` needs at least one block; got none. Make one with "
                "`space.block(...)`, or all with `Partition.by_layer(space)`."
            )
        for i, block in enumerate(blocks):
            space._require_inside(block)
            if number[block.name] != i:
                raise InvalidArgumentError(
                    "`Partition(space, blocks)` needs a different name for each block; got "
                    f"{block.name!r} twice. Rename one."
                )
        _refuse_overlap(blocks, space.size)
        for key, value in {"space": space, "blocks": blocks, "_number": number}.items():
            object.__setattr__(self, key, value)

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self.blocks[:2])) + (", …" if len(self) > 2 else "")
        return f"Partition({len(self)} blocks of {self.space.size} entries: {shown})"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the blocks, in order."""
        return tuple(self._number)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of entries of each block."""
        return tuple(block.size for block in self.blocks)

    @property
    def covers(self) -> bool:
        """Whether every entry of the space is in some block."""
        return sum(self.sizes) == self.space.size

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self.blocks)

    def __getitem__(self, key: str | int) -> Block:
        """Return a block by name or number; `UnknownNameError` names near matches."""
        number = self._number.get(key, len(self)) if isinstance(key, str) else key
        if not -len(self) <= number < len(self):
            raise errors.UnknownNameError(
                f"`Partition[key]` needs the name of a block, or its number below {len(self)}; got "
                f"{key!r}. {near_matches(str(key), self.names)}"
            )
        return self.blocks[number]

    def __add__(self, other: "Partition") -> "Partition":
        """Return the blocks of both, which must divide one space and not overlap.

        Raises:
            WrongTypeError: If `other` is no partition.
            ShapeError: If it divides another space.

        Examples:
            >>> space = ParamSpace({"fc1.weight": (2, 3), "fc2.weight": (1, 2)})
            >>> units = Partition.by_output(space, "fc1") + Partition.by_input(space, "fc2")
            >>> units.names
            ('fc1.out.0', 'fc1.out.1', 'fc2.in.0', 'fc2.in.1')
        """
        if not isinstance(other, Partition):
            raise errors.WrongTypeError(
                f"`partition + other` needs another Partition; got {type(other).__name__}. Make "
                "one, e.g. `Partition.by_input(space)`."
            )
        if other.space != self.space:
            raise errors.ShapeError(
                f"`partition + other` needs partitions of one space; got blocks of {self.space!r} "
                f"and of {other.space!r}. Build both from the same space."
            )
        return Partition(self.space, self.blocks + other.blocks)

    def labels(self) -> Tensor:
        """Return the number of the block that each entry is in, -1 for none: int64 `(n,)`."""
        labels = torch.full((self.space.size,), -1, dtype=torch.int64)
        for number, block in enumerate(self.blocks):
            for span in block.spans:
                labels[span.start : span.stop : span.step] = number
        return labels

    @classmethod
    def by_tensor(cls, space: ParamSpace, only: Patterns | None = None) -> Self:
        """Return one block per tensor, named like it."""
        names = _taking_part(space, only, "by_tensor")
        return cls(space, [Block(name, (space._where[name],)) for name in names])

    @classmethod
    def by_layer(cls, space: ParamSpace, only: Patterns | None = None) -> Self:
        """Return one block per layer: all tensors whose names differ in the last part only."""
        layers = _layers(_taking_part(space, only, "by_layer"))
        where = space._where
        return cls(space, [Block(k, tuple(where[n] for n in v)) for k, v in layers.items()])

    @classmethod
    def by_pattern(cls, space: ParamSpace, patterns: Mapping[str, Patterns]) -> Self:
        """Return one block per item: its name, and what its patterns select in `space.block`.

        Raises:
            UnknownNameError: If a pattern without wildcards matches nothing.
            EmptySelectionError: If a glob matches nothing.
            OverlapError: If two items select the same tensor.
        """
        chosen = {k: (p,) if isinstance(p, str) else tuple(p) for k, p in patterns.items()}
        return cls(space, [Block(k, space.block(*p).spans) for k, p in chosen.items()])

    @classmethod
    def by_output(
        cls, space: ParamSpace, only: Patterns | None = None, join_bias: bool = True
    ) -> Self:
        """Return one block per output: `weight[i]` with `bias[i]`, named "<layer>.out.<i>".

        Each tensor of two or more dimensions gives its rows, with the entries of a bias of as many
        entries in the same layer if `join_bias`. Where a layer has several such tensors, their
        full names replace the layer's. Layers with only vectors give single entries, if `only`
        selects them. Layers that keep outputs last (transposed convolutions) give inputs here.
        The outputs of a classifier's last layer are its classes: `by_output(space, "fc2")`.
        """
        names = _taking_part(space, only, "by_output")
        groups: dict[str, list[str]] = {}
        joined: set[str] = set()
        layers = {k: _matrices(space, members) for k, members in _layers(names).items()}
        for layer, matrices in layers.items():
            for name in matrices:
                # `weight_ih_l0` has `bias_ih_l0`; a lone matrix of any name has its layer's `bias`.
                stem, _, last = name.rpartition("weight")
                biases = [f"{stem}bias{last}"] + [f"{layer}.bias"] * (len(matrices) == 1)
                own_bias = [
                    n for n in biases if n in names and space._shape[n] == space._shape[name][:1]
                ]
                own_bias = own_bias[:1] if join_bias else []
                joined.update(own_bias)
                groups[name if len(matrices) > 1 else layer] = [name, *own_bias]
        for layer, members in _layers([n for n in names if n not in joined]).items():
            if only is not None and not layers[layer]:
                vectors = [name for name in members if len(space._shape[name]) == 1]
                alike = len({space._shape[name] for name in vectors}) == 1
                for name in vectors:
                    groups.setdefault(layer if alike else name, []).append(name)
        blocks = []
        for key, group in groups.items():
            group.sort(key=space.offset)
            for i in range(space._shape[group[0]][0]):
                spans = [span for name in group for span in _slab(space, name, 0, [i], 1)]
                blocks.append(Block(f"{key}.out.{i}", tuple(spans)))
        _require_found(blocks, space, "by_output", "tensors of two or more dimensions")
        return cls(space, blocks)

    @classmethod
    def by_input(cls, space: ParamSpace, only: Patterns | None = None) -> Self:
        """Return one block per input: `weight[:, j]`, named "<layer>.in.<j>"; no bias is in any.

        Each tensor of two or more dimensions gives its columns; names are as in `by_output`. In a
        grouped convolution j counts the inputs within a group.
        """
        blocks = []
        for layer, members in _layers(_taking_part(space, only, "by_input")).items():
            matrices = _matrices(space, members)
            for name in matrices:
                key = name if len(matrices) > 1 else layer
                for j in range(space._shape[name][1]):
                    blocks.append(Block(f"{key}.in.{j}", tuple(_slab(space, name, 1, [j], 1))))
        _require_found(blocks, space, "by_input", "tensors of two or more dimensions")
        return cls(space, blocks)

    @classmethod
    def by_head(
        cls,
        space: ParamSpace,
        num_heads: int,
        only: Patterns | None = None,
        *,
        num_kv_heads: int | None = None,
        split: bool = False,
    ) -> Self:
        """Return one block per attention head, named "<module>.head.<h>".

        A head has its rows of the query, key and value projections with their biases, and its
        columns of the output projection, whose bias belongs to no head. Modules are found by the
        names of their tensors: `in_proj_weight` (`nn.MultiheadAttention`), a fused `qkv` or
        `c_attn` with all queries first, or separate projections such as `q_proj`, `query`, `Wq`. A
        `c_attn` of shape (d, 3d) is read as transposed, with the output projection next to it. A
        hyphen separates a module from its projection as a dot does: "b1-qkv" belongs to "b1".

        Args:
            space: The space of the network's parameters.
            num_heads: Number of query heads in each module.
            only: Which tensors take part.
            num_kv_heads: Number of key and value heads, where fewer: they are then blocks of their
                own, "<module>.kv_head.<j>".
            split: Make blocks of a head's parts: "<module>.head.<h>.q", and so on for k, v and o.

        Returns:
            The partition; only attention is covered.

        Raises:
            EmptySelectionError: If no attention module is found.
            InvalidArgumentError: If a width does not fit the numbers of heads.

        Examples:
            >>> space = ParamSpace({"qkv.weight": (6, 2), "proj.weight": (2, 2)})
            >>> Partition.by_head(space, 2)["head.1"].index().tolist()
            [2, 3, 6, 7, 10, 11, 13, 15]
        """
        num_heads = errors.require_count(num_heads, "Partition.by_head(num_heads=...)")
        num_kv = num_heads if num_kv_heads is None else num_kv_heads
        errors.require_count(num_kv, "Partition.by_head(num_kv_heads=...)", at_most=num_heads)
        if num_heads % num_kv:
            raise InvalidArgumentError(
                "`Partition.by_head(num_kv_heads=...)` must divide num_heads; got "
                f"{num_kv} for {num_heads}. Pass the numbers that the model was built with."
            )
        modules: dict[str, dict[str, tuple[str, str]]] = {}
        for name in _taking_part(space, only, "by_head"):
            module, role, alias = _attention_role(name)
            if role:
                modules.setdefault(module, {})[name] = (role, alias)
        blocks: list[Block] = []
        for module, members in modules.items():
            weights = {members[name][0] for name in _matrices(space, members)}
            if "qkv" in weights or weights >= {"q", "k", "v"}:
                blocks += _head_blocks(space, module, members, num_heads, num_kv, split)
        wanted = "an attention module (in_proj_weight, qkv, c_attn, or q_proj, k_proj, v_proj, …)"
        _require_found(blocks, space, "by_head", wanted)
        return cls(space, blocks)


def _refuse_overlap(blocks: tuple[Block, ...], size: int) -> None:
    """Raise if two blocks share entries; disjoint bounds are enough and need no memory."""
    spans = sorted((span for block in blocks for span in block.spans), key=lambda s: s.start)
    if all(a.stop <= b.start for a, b in pairwise(spans)):
        return
    taken = torch.zeros(size, dtype=torch.bool)
    for number, block in enumerate(blocks):
        if any(taken[s.start : s.stop : s.step].any() for s in block.spans):
            mine = block.put(torch.ones(block.size, dtype=torch.bool), size)
            shared = [int(other.take(mine).sum()) for other in blocks[:number]]
            first = next(i for i, count in enumerate(shared) if count)
            raise errors.OverlapError(
                f"`Partition(space, blocks)` needs disjoint blocks; {blocks[first].name!r} and "
                f"{block.name!r} share {shared[first]} entries. Narrow one of them."
            )
        for s in block.spans:
            taken[s.start : s.stop : s.step] = True


def _taking_part(space: ParamSpace, only: Patterns | None, kind: str) -> list[str]:
    names = space._select(only, f"Partition.{kind}(only=...)")
    return [name for name in names if space._where[name]]


def _layers(names: list[str]) -> dict[str, list[str]]:
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(name.rpartition(".")[0] or name, []).append(name)
    return layers


def _matrices(space: ParamSpace, names: Iterable[str]) -> list[str]:
    return [name for name in names if len(space._shape[name]) > 1]


def _require_found(blocks: list[Block], space: ParamSpace, kind: str, wanted: str) -> None:
    if not blocks:
        got = ", ".join(map(repr, space.names[:3])) + (", …" if len(space) > 3 else "")
        raise EmptySelectionError(
            f"`Partition.{kind}(space)` needs {wanted}; found none among {got}. Change "
            "`only`, or choose blocks yourself with `Partition.by_pattern`."
        )


def _slab(
    space: ParamSpace, name: str, axis: int, starts: Iterable[int], width: int
) -> list[range]:
    """Ascending spans of `tensor[s : s + width]` along axis 0 or 1, for all starts s."""
    where, shape = space._where[name], space._shape[name]
    inner = math.prod(shape[axis + 1 :])
    period, starts = shape[axis] * inner, list(starts)
    if width * inner == len(starts) == 1:
        return [range(where.start + starts[0], where.stop, period)]
    begins = [o + s * inner for o in range(where.start, where.stop, period) for s in starts]
    return [range(begin, begin + width * inner) for begin in begins]


def _attention_role(name: str) -> tuple[str, str, str]:
    """Module, role and alias of a tensor: "a.qkv.bias" gives "a", "qkv", "qkv"; else no role."""
    module, _, last = name.rpartition(".")
    if last in ("weight", "bias"):
        dotted, _, alias = module.rpartition(".")
        prefix, _, alias = alias.rpartition("-")
        module = ".".join(segment for segment in (dotted, prefix) if segment)
        return module, "" if alias == "in_proj" else _ROLES.get(alias.lower(), ""), alias.lower()
    alias = last.removesuffix("_weight").removesuffix("_bias")
    return module, _ROLES.get(alias.lower(), "") if alias != last else "", alias.lower()


def _head_blocks(
    space: ParamSpace,
    module: str,
    members: dict[str, tuple[str, str]],
    num_heads: int,
    num_kv: int,
    split: bool,
) -> list[Block]:
    """Blocks of one attention module; `members` maps tensor names to role and alias."""
    # All widths are counted in heads: a fused projection stacks queries, keys and values.
    units = {"qkv": num_heads + 2 * num_kv} | dict.fromkeys("qo", num_heads)
    units |= dict.fromkeys("kv", num_kv)
    lead = next(n for n in _matrices(space, members) if members[n][0] in ("qkv", "q"))
    rows, columns = space._shape[lead][:2]
    role, alias = members[lead]
    transposed = alias == "c_attn" and columns * num_heads == rows * units["qkv"]
    width = (columns if transposed else rows) // units[role]
    pieces: dict[str, list[range]] = {}
    for name, (role, alias) in members.items():
        shape = space._shape[name]
        if role == "o" and len(shape) == 1:
            continue
        axis = int(len(shape) > 1 and transposed != (role == "o"))
        fits = shape[axis] == units[role] * width
        if alias in ("in_proj", "c_attn") and len(shape) > 1:
            fits = fits and shape[1 - axis] == num_heads * width
        if not fits:
            raise InvalidArgumentError(
                f"`Partition.by_head(num_heads={num_heads}, num_kv_heads={num_kv})` needs a "
                f"multiple of {units[role]} along dimension {axis} of {name!r}, and one "
                f"width per head in {module!r}; got shape {shape}. Pass the numbers of heads that "
                "the model was built with."
            )
        for key, picks in _picks(role, num_heads, num_kv, split).items():
            spans = _slab(space, name, axis, [p * width for p in picks], width)
            pieces.setdefault(key, []).extend(spans)
    prefix = f"{module}." if module else ""
    return [Block(prefix + key, tuple(spans)) for key, spans in pieces.items()]


def _picks(role: str, num_heads: int, num_kv: int, split: bool) -> dict[str, list[int]]:
    """Map the blocks of a module to their places in a tensor of this role, counted in heads."""
    shared = num_kv < num_heads
    places: dict[str, list[int]] = {}
    first = 0
    for letter in role:
        count, kind = num_heads, "head"
        if letter in "kv":
            count, kind = num_kv, "kv_head" if shared else "head"
        for number in range(count):
            key = f"{kind}.{number}.{letter}" if split else f"{kind}.{number}"
            places.setdefault(key, []).append(first + number)
        first += count
    return places
