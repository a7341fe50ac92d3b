"""Flat vectors and blocks, checked against indexing the true tensors."""

import copy
import pickle
import re
from dataclasses import FrozenInstanceError

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from eigenscape.errors import (
    EmptySelectionError,
    InvalidArgumentError,
    OverlapError,
    ShapeError,
    UnknownNameError,
    WrongTypeError,
)
from eigenscape.space import Block, ParamSpace, Partition
from tests.spaces import NET, marked, same


def test_the_helper_sees_a_difference() -> None:
    with pytest.raises(AssertionError):
        same(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0]))


# --- ParamSpace ---


def test_space_knows_names_shapes_and_offsets() -> None:
    space = ParamSpace(NET)
    assert space.names == tuple(NET)
    assert dict(space.shapes) == NET
    assert space.size == 33
    assert [space.offset(name) for name in NET] == [0, 15, 20, 21, 31]
    assert len(space) == 5
    assert "fc1.bias" in space
    assert "fc1" not in space
    assert repr(space) == "ParamSpace(size=33, {fc1.weight: (5, 3), fc1.bias: (5,), …})"


def test_space_is_a_frozen_value() -> None:
    space = ParamSpace(NET)
    assert space == ParamSpace({name: torch.Size(shape) for name, shape in NET.items()})
    assert hash(space) == hash(ParamSpace(NET))
    assert space != ParamSpace(dict(reversed(NET.items())))
    assert space != ParamSpace({**NET, "scale": (1,)})
    assert pickle.loads(pickle.dumps(space)) == copy.deepcopy(space) == space
    with pytest.raises(FrozenInstanceError):
        space.size = 3
    with pytest.raises(TypeError):
        space.shapes["scale"] = (3,)


def test_flat_space() -> None:
    assert ParamSpace.flat(7) == ParamSpace({"x": (7,)})
    assert ParamSpace.flat(7, name="y").names == ("y",)


def test_flatten_is_pytorchs_order() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, (2, 3)), nn.Linear(5, 3))
    space = ParamSpace.of(dict(module.named_parameters()))
    expected = nn.utils.parameters_to_vector(module.parameters())
    torch.testing.assert_close(space.flatten(dict(module.named_parameters())), expected)


def test_unflatten_gives_views_also_of_columns_in_any_layout() -> None:
    space = ParamSpace(NET)
    for X in (torch.randn(33, 4), torch.randn(4, 33).T):
        named = space.unflatten(X)
        for name, shape in NET.items():
            assert named[name].shape == (*shape, 4)
            torch.testing.assert_close(named[name][..., 2], space.unflatten(X[:, 2])[name])
        named["scale"].zero_()
        assert not X[20].any()


shapes = st.dictionaries(
    st.sampled_from(["a", "b.weight", "b.bias", "c.d.weight", "c.d.bias", "e"]),
    st.lists(st.integers(0, 4), max_size=4).map(tuple),
    min_size=1,
)


@settings(max_examples=60, deadline=None)
@given(shapes=shapes, seed=st.integers(0, 99))
def test_round_trips_of_any_shapes(shapes: dict[str, tuple[int, ...]], seed: int) -> None:
    torch.manual_seed(seed)
    space, tensors, flat = marked(shapes)
    assert flat.shape == (space.size,) == (sum(t.numel() for t in tensors.values()),)
    for name, tensor in space.unflatten(flat).items():
        torch.testing.assert_close(tensor, tensors[name], rtol=0, atol=0)
    same(space.flatten(space.unflatten(flat)), flat)
    if not space.size:
        with pytest.raises(EmptySelectionError):
            Partition.by_tensor(space)
        return
    partitions = [Partition.by_tensor(space), Partition.by_layer(space)]
    assert all(p.covers for p in partitions)
    for kind in (Partition.by_output, Partition.by_input):
        try:
            partitions.append(kind(space))
        except EmptySelectionError:
            assert all(t.ndim < 2 or not t.numel() for t in tensors.values())
    for partition in partitions:
        labels = partition.labels()
        assert partition.covers == bool((labels >= 0).all())
        for number, block in enumerate(partition):
            same(block.index(), (labels == number).nonzero())
            same(block.take(flat), flat[block.index()])
            restricted = space.restrict(block)
            assert restricted.size == block.size
            same(restricted.flatten(restricted.unflatten(block.take(flat))), flat[block.index()])


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: ParamSpace({}), EmptySelectionError, "at least one tensor; got none"),
        (lambda: ParamSpace({"a": (2, -1)}), InvalidArgumentError, "got 'a': (2, -1)"),
        (lambda: ParamSpace({"": (2,)}), InvalidArgumentError, "non-empty string names"),
        (lambda: ParamSpace({3: (2,)}), InvalidArgumentError, "non-empty string names"),
        (lambda: ParamSpace({"a": 3}), WrongTypeError, "sequences of integers"),
        (lambda: ParamSpace({"a": (2.5,)}), WrongTypeError, "sequences of integers"),
        (lambda: ParamSpace([("a", (2,))]), WrongTypeError, "got list"),
        (lambda: ParamSpace.of(nn.Linear(2, 2)), WrongTypeError, "got Linear. Write `dict("),
        (lambda: ParamSpace(NET).offset("fc1.wieght"), UnknownNameError, "Nearest: 'fc1.weight'"),
        (
            lambda: ParamSpace(NET).unflatten(torch.ones(32)),
            ShapeError,
            "(33,) or (33, k); got (32",
        ),
        (lambda: ParamSpace(NET).unflatten(torch.ones(33, 1, 1)), ShapeError, "got (33, 1, 1)"),
    ],
)
def test_space_refuses(make: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        make()


def test_flatten_refuses_what_does_not_fit() -> None:
    space, tensors, _ = marked(NET)
    without = {name: t for name, t in tensors.items() if name != "fc2.bias"}
    with pytest.raises(UnknownNameError, match=r"the 5 tensors .* got 4, without 'fc2.bias'\."):
        space.flatten(without)
    with pytest.raises(UnknownNameError, match=r"got 6, with unknown 'fc1.bais'.*Nearest: 'fc1.b"):
        space.flatten({**tensors, "fc1.bais": torch.ones(5)})
    with pytest.raises(ShapeError, match=r"shape \(5, 3\) for 'fc1.weight'; got \(3, 5\)\. Build"):
        space.flatten({**tensors, "fc1.weight": torch.ones(3, 5)})
    with pytest.raises(ShapeError, match=r"one device; got cpu, meta. Move"):
        space.flatten({**tensors, "scale": torch.empty((), device="meta")})


def test_block_by_name_layer_and_glob() -> None:
    space, tensors, flat = marked(NET)
    same(space.block("fc1.bias").take(flat), tensors["fc1.bias"])
    assert space.block("fc1").spans == (range(0, 20),)
    assert space.block("*").spans == (range(0, 33),)
    assert space.block("fc2", "fc1.weight", "fc1").name == "fc2+fc1.weight+fc1"
    # In the space's order and once each, whatever the order of the patterns.
    assert space.block("fc2", "fc1.weight", "fc1").spans == (range(0, 20), range(21, 33))
    same(space.block("*.bias").take(flat), tensors["fc1.bias"], tensors["fc2.bias"])
    assert space.block("fc?") == Block("fc?", (range(0, 20), range(21, 33)))
    assert ParamSpace({"a[0]": (2,), "a0": (3,)}).block("a[0]").spans == (range(0, 2),)
    assert ParamSpace({"fc1.weight": (2,), "fc10.weight": (3,)}).block("fc1").size == 2


def test_block_refuses_with_near_matches() -> None:
    space = ParamSpace({**NET, "none.weight": (0, 3)})
    with pytest.raises(UnknownNameError, match=r"'fc3' matches none. Nearest: 'fc"):
        space.block("fc1", "fc3")
    with pytest.raises(EmptySelectionError, match=r"'fc1\.\*eigth' matches none. Nearest: 'fc1\.w"):
        space.block("fc1.*eigth")
    with pytest.raises(EmptySelectionError, match=r"got 'none.weight' of size 0"):
        space.block("none")
    with pytest.raises(EmptySelectionError, match="no pattern"):
        space.block()


def test_restrict_keeps_whole_tensors_else_is_flat() -> None:
    space = ParamSpace({**NET, "none.weight": (0, 3)})
    assert space.restrict(space.block("fc1")) == ParamSpace(
        {"fc1.weight": (5, 3), "fc1.bias": (5,)}
    )
    assert space.restrict(space.block("scale")) == ParamSpace({"scale": ()})
    assert space.restrict(space.block("none", "fc2.bias")).names == ("fc2.bias",)
    # The block's own order decides, so that `take` and `flatten` agree.
    turned = Block("turned", (range(31, 33), range(15, 20)))
    assert space.restrict(turned).names == ("fc2.bias", "fc1.bias")
    for part in (range(0, 4), range(1, 15), range(0, 15, 3), range(15, 21, 2)):
        assert space.restrict(Block("part", (part,))) == ParamSpace.flat(len(part), "part")
    with pytest.raises(EmptySelectionError, match=r"Block\('none', size=0\) needs entries"):
        space.restrict(Block("none", ()))
    with pytest.raises(InvalidArgumentError, match=r"within the 33 entries .* got index 33"):
        space.restrict(Block("far", (range(30, 34),)))


# --- Block ---


def test_block_has_one_spelling() -> None:
    block = Block("a", (range(2, 5), range(3, 3), range(5, 6, 9), range(7, 12, 3)))
    assert block.spans == (range(2, 6), range(7, 11, 3))
    assert block.size == 6
    assert block == Block("a", (range(2, 6), range(7, 11, 3)))
    assert hash(block) == hash(Block("a", (range(2, 6), range(7, 13, 3))))
    assert repr(block) == "Block('a', size=6)"
    assert block.index().tolist() == [2, 3, 4, 5, 7, 10]
    assert block.index().dtype == torch.int64
    assert block.index() is block.index("cpu")
    assert block.index("meta").device.type == "meta"


def test_block_refuses_bad_spans() -> None:
    with pytest.raises(InvalidArgumentError, match=r"go up; got range\(5, 0, -1\)"):
        Block("a", (range(5, 0, -1),))
    with pytest.raises(InvalidArgumentError, match="start at 0 or later"):
        Block("a", (range(-2, 3),))
    with pytest.raises(OverlapError, match="disjoint spans; 2 entries"):
        Block("a", (range(0, 10, 2), range(3, 7)))
    assert Block("a", (range(0, 10, 2), range(1, 10, 2))).size == 10


def test_huge_blocks_are_small_objects() -> None:
    space = ParamSpace({"fc.weight": (50_000, 40_000), "fc.bias": (50_000,)})
    assert Partition.by_layer(space)["fc"].spans == (range(0, space.size),)
    assert Partition.by_layer(space).covers
    with pytest.raises(OverlapError, match="share 7 entries"):
        Partition(ParamSpace.flat(10), [Block("a", (range(7),)), Block("b", (range(10),))])


MANY = tuple(range(7 * i, 7 * i + 1 + i % 3) for i in range(40))


@pytest.mark.parametrize(
    "spans",
    [(range(3, 9),), (range(1, 20, 4),), (range(20, 25), range(2, 11, 3)), MANY, ()],
    ids=["contiguous", "strided", "two", "many", "none"],
)
@pytest.mark.parametrize("columns", [(), (3,), (1,)])
def test_take_and_put_are_adjoint(spans: tuple[range, ...], columns: tuple[int, ...]) -> None:
    block, n = Block("b", spans), 300
    X, Y = torch.randn(n, *columns), torch.randn(block.size, *columns)
    torch.testing.assert_close(block.take(X), X[block.index()], rtol=0, atol=0)
    torch.testing.assert_close((block.take(X) * Y).sum(), (X * block.put(Y, n)).sum())
    torch.testing.assert_close(block.take(block.put(Y, n)), Y, rtol=0, atol=0)
    outside = torch.ones(n, dtype=torch.bool)
    outside[block.index()] = False
    assert not block.put(Y, n)[outside].any()
    assert block.put(Y.float(), n).dtype == torch.float32


def test_take_is_a_view_of_one_span() -> None:
    X = torch.zeros(10, 2)
    Block("b", (range(2, 4),)).take(X).fill_(1)
    Block("b", (range(5, 10, 3),)).take(X).fill_(1)
    assert X[:, 0].tolist() == [0, 0, 1, 1, 0, 1, 0, 0, 1, 0]


@pytest.mark.parametrize("spans", [(range(1, 4), range(5, 9, 2)), MANY], ids=["few", "many"])
def test_take_and_put_differentiate_and_batch(spans: tuple[range, ...]) -> None:
    block = Block("b", spans)
    with torch.inference_mode():
        block.take(torch.randn(300))  # must not poison the cached index
    Y = torch.randn(block.size, 4)
    batched = torch.func.vmap(lambda y: block.put(y, 300), in_dims=1, out_dims=1)(Y)
    torch.testing.assert_close(batched, block.put(Y, 300))
    back = torch.func.vmap(block.take, in_dims=1, out_dims=1)(batched)
    torch.testing.assert_close(back, Y)
    x = torch.randn(300, requires_grad=True)
    (gradient,) = torch.autograd.grad((block.put(block.take(x), 300) ** 2).sum(), x)
    torch.testing.assert_close(gradient, 2 * block.put(block.take(x.detach()), 300))


def test_take_and_put_refuse_wrong_shapes() -> None:
    block = Block("b", (range(2, 6),))
    with pytest.raises(ShapeError, match=r"with n >= 6; got \(5,\)"):
        block.take(torch.ones(5))
    with pytest.raises(ShapeError, match=r"got \(6, 1, 1\)"):
        block.take(torch.ones(6, 1, 1))
    with pytest.raises(ShapeError, match=r"Y of shape \(4,\) or \(4, k\) .* got \(3,\), n=9"):
        block.put(torch.ones(3), 9)
    with pytest.raises(ShapeError, match="n=5"):
        block.put(torch.ones(4), 5)
