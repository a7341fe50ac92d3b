"""Partitions into blocks, checked against indexing the true tensors."""

import pickle

import pytest
import torch
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
from eigenscape_papers.networks import build
from tests.spaces import NET, marked, of_module, same


def test_partition_is_an_ordered_map() -> None:
    space = ParamSpace(NET)
    partition = Partition(space, [space.block("fc2"), space.block("fc1.bias")])
    assert partition.space == space
    assert partition.names == ("fc2", "fc1.bias")
    assert partition.sizes == (12, 5)
    assert not partition.covers
    assert len(partition) == 2
    assert list(partition) == list(partition.blocks)
    assert partition["fc2"] is partition[0] is partition[-2]
    expected = torch.full((33,), -1)
    expected[21:], expected[15:20] = 0, 1
    same(partition.labels(), expected)
    assert partition == Partition(space, iter(partition.blocks))
    assert hash(partition) == hash(pickle.loads(pickle.dumps(partition)))
    assert repr(partition).startswith("Partition(2 blocks of 33 entries: Block('fc2', size=12)")
    with pytest.raises(UnknownNameError, match=r"got 'fc1.bais'. Nearest: 'fc1.bias'"):
        partition["fc1.bais"]
    with pytest.raises(UnknownNameError, match="number below 2; got 2"):
        partition[2]


def test_partition_refuses() -> None:
    space = ParamSpace(NET)
    with pytest.raises(EmptySelectionError, match="at least one block; got none"):
        Partition(space, [])
    with pytest.raises(EmptySelectionError, match="needs entries"):
        Partition(space, [Block("a", ())])
    with pytest.raises(InvalidArgumentError, match="got 'a' twice"):
        Partition(space, [Block("a", (range(3),)), Block("a", (range(3, 4),))])
    with pytest.raises(InvalidArgumentError, match="got index 33"):
        Partition(space, [Block("a", (range(30, 34),))])
    strided = [Block("even", (range(0, 33, 2),)), Block("odd", (range(1, 33, 2),))]
    assert Partition(space, strided).covers
    with pytest.raises(OverlapError, match=r"'odd' and 'more' share 3 entries. Narrow"):
        Partition(space, [*strided, Block("more", (range(5, 10, 2),))])


def test_by_tensor_and_by_layer() -> None:
    space, tensors, flat = marked({**NET, "none.weight": (0, 3), "fc1.extra": (2, 2)})
    partition = Partition.by_tensor(space)
    assert partition.names == (*NET, "fc1.extra")
    assert partition.covers
    for block in partition:
        same(block.take(flat), tensors[block.name])
    partition = Partition.by_layer(space)
    assert partition.names == ("fc1", "scale", "fc2")
    assert partition.covers
    names = ("fc1.weight", "fc1.bias", "fc1.extra")
    same(partition["fc1"].take(flat), *[tensors[name] for name in names])
    assert Partition.by_layer(space, only=["fc2", "scale"]).names == ("scale", "fc2")
    assert Partition.by_tensor(space, only="fc2").names == ("fc2.weight", "fc2.bias")
    with pytest.raises(UnknownNameError, match=r"`Partition.by_layer\(only=...\)`"):
        Partition.by_layer(space, only="fc7")


@pytest.mark.parametrize("module", [nn.Linear(5, 3), nn.Conv2d(3, 4, (2, 3))])
def test_by_output_and_by_input_of_true_modules(module: nn.Module) -> None:
    space, tensors, flat = of_module(nn.ModuleDict({"fc": module}))
    W, b = tensors["fc.weight"], tensors["fc.bias"]
    for join, partition in (
        (True, Partition.by_output(space)),
        (False, Partition.by_output(space, join_bias=False)),
        (False, Partition.by_output(space, only="fc.weight")),
    ):
        assert partition.names == tuple(f"fc.out.{i}" for i in range(len(b)))
        assert partition.covers == join
        for i, block in enumerate(partition):
            same(block.take(flat), W[i], b[i : i + 1 if join else i])
    partition = Partition.by_input(space)
    assert partition.names == tuple(f"fc.in.{j}" for j in range(W.shape[1]))
    for j, block in enumerate(partition):
        same(block.take(flat), W[:, j])
    if W.ndim == 2:
        assert all(len(block.spans) == 1 for block in partition)


def test_by_output_of_a_bare_module_and_of_lengths_that_differ() -> None:
    space, tensors, flat = of_module(nn.Linear(5, 3))
    for only in (None, "*"):
        partition = Partition.by_output(space, only=only)
        assert partition.names == ("weight.out.0", "weight.out.1", "weight.out.2")
        same(partition[1].take(flat), tensors["weight"][1], tensors["bias"][1])
    space, tensors, flat = marked({"a.bias": (3,), "a.kernel": (3, 2), "b.weight": (4, 2)})
    same(
        Partition.by_output(space)["a.out.2"].take(flat),
        tensors["a.bias"][2],
        tensors["a.kernel"][2],
    )
    space = ParamSpace({"t.weight": (3, 4, 2), "t.bias": (4,)})
    assert Partition.by_output(space).sizes == (8, 8, 8)


def test_by_output_of_layers_with_several_matrices() -> None:
    space, tensors, flat = of_module(nn.ModuleDict({"r": nn.LSTM(2, 3, num_layers=2)}))
    partition = Partition.by_output(space)
    assert partition.covers
    same(
        partition["r.weight_hh_l1.out.5"].take(flat),
        tensors["r.weight_hh_l1"][5],
        tensors["r.bias_hh_l1"][5],
    )
    same(
        Partition.by_input(space)["r.weight_ih_l0.in.1"].take(flat), tensors["r.weight_ih_l0"][:, 1]
    )


def test_by_output_skips_vectors_unless_named() -> None:
    shapes = {"fc.weight": (3, 2), "ln.weight": (3,), "ln.bias": (3,), "odd.a": (1,), "odd.b": (2,)}
    space, tensors, flat = marked({**shapes, "scale": ()})
    assert Partition.by_output(space).names == ("fc.out.0", "fc.out.1", "fc.out.2")
    partition = Partition.by_output(space, only=["fc", "ln"])
    assert partition.names[3:] == ("ln.out.0", "ln.out.1", "ln.out.2")
    same(partition["ln.out.1"].take(flat), tensors["ln.weight"][1], tensors["ln.bias"][1])
    names = Partition.by_output(space, only="odd").names
    assert names == ("odd.a.out.0", "odd.b.out.0", "odd.b.out.1")
    with pytest.raises(EmptySelectionError, match="needs tensors of two or more dimensions; found"):
        Partition.by_input(space, only="ln")
    with pytest.raises(EmptySelectionError, match=r"by_output\(space\)` needs"):
        Partition.by_output(space, only="scale")


def test_by_pattern() -> None:
    space, tensors, flat = marked(NET)
    partition = Partition.by_pattern(space, {"b": "*.bias", "w": ["fc1.weight", "fc2.w*"]})
    assert partition.names == ("b", "w")
    same(partition["w"].take(flat), tensors["fc1.weight"], tensors["fc2.weight"])
    with pytest.raises(OverlapError, match="'all' and 'fc' share 20 entries"):
        Partition.by_pattern(space, {"all": "*", "fc": "fc1"})
    with pytest.raises(EmptySelectionError, match=r"'conv\*' matches none"):
        Partition.by_pattern(space, {"a": "*.bias", "c": "conv*"})
    with pytest.raises(UnknownNameError, match="'conv' matches none"):
        Partition.by_pattern(space, {"c": ["conv"]})
    with pytest.raises(EmptySelectionError, match="no pattern"):
        Partition.by_pattern(space, {"c": []})
    with pytest.raises(EmptySelectionError, match="at least one block"):
        Partition.by_pattern(space, {})


# --- heads ---


@pytest.mark.parametrize("prefix", ["", "blocks.0.attn"])
@pytest.mark.parametrize("kdim", [None, 5])
def test_by_head_of_multihead_attention(prefix: str, kdim: int | None) -> None:
    attention = nn.MultiheadAttention(12, 3, kdim=kdim, vdim=kdim)
    dot = prefix and prefix + "."
    shapes = {dot + name: tuple(p.shape) for name, p in attention.named_parameters()}
    space, tensors, flat = marked({"first": (7,), **shapes, "last.weight": (2, 3)})
    partition = Partition.by_head(space, 3)
    assert partition.names == tuple(f"{dot}head.{h}" for h in range(3))
    own = {name.removeprefix(dot): t for name, t in tensors.items()}
    bias, out = own["in_proj_bias"].view(3, 3, 4), own["out_proj.weight"].view(12, 3, 4)
    for h, block in enumerate(partition):
        if kdim:
            parts = [own[f"{x}_proj_weight"][4 * h : 4 * h + 4] for x in "qkv"]
        else:
            parts = [own["in_proj_weight"].view(3, 3, 4, 12)[:, h]]
        same(block.take(flat), *parts, bias[:, h], out[:, h])
    assert not partition.covers
    assert Partition.by_head(space, 3, num_kv_heads=3) == partition


def test_a_head_block_is_what_silences_the_head() -> None:
    # The block holds all that the head reads and writes: without it the module is one head poorer.
    attention = nn.MultiheadAttention(12, 3, batch_first=True)
    named = {name: p.detach() for name, p in attention.named_parameters()}
    space = ParamSpace.of(named)
    theta, x = space.flatten(named), torch.randn(2, 5, 12)
    block = Partition.by_head(space, 3)["head.1"]
    silenced = space.unflatten(theta - block.put(block.take(theta), space.size))
    actual, _ = torch.func.functional_call(attention, silenced, (x, x, x))
    q, k, v = (x @ named["in_proj_weight"].T + named["in_proj_bias"]).view(2, 5, 3, 3, 4).unbind(2)
    weights = torch.softmax(torch.einsum("bihd,bjhd->bhij", q, k) / 2, -1)
    heads = torch.einsum("bhij,bjhd->bihd", weights, v)
    heads[:, :, 1] = 0
    expected = heads.reshape(2, 5, 12) @ named["out_proj.weight"].T + named["out_proj.bias"]
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(("fused", "out"), [("qkv", "proj"), ("c_attn", "c_proj"), ("Wqkv", "Wo")])
def test_by_head_of_fused_projections(fused: str, out: str) -> None:
    shapes = {f"h.0.attn.{fused}.weight": (18, 6), f"h.0.attn.{fused}.bias": (18,)}
    shapes |= {f"h.0.attn.{out}.weight": (6, 6), f"h.0.attn.{out}.bias": (6,)}
    space, tensors, flat = marked({**shapes, "h.0.mlp.c_proj.weight": (6, 6)})
    W, b, P, _, _ = tensors.values()
    partition = Partition.by_head(space, 2)
    assert partition.names == ("h.0.attn.head.0", "h.0.attn.head.1")
    for h, block in enumerate(partition):
        parts = W.view(3, 2, 3, 6)[:, h], b.view(3, 2, 3)[:, h], P.view(6, 2, 3)[:, h]
        same(block.take(flat), *parts)


def test_by_head_of_transposed_projections() -> None:
    shapes = {"attn.c_attn.weight": (6, 18), "attn.c_attn.bias": (18,)}
    shapes |= {"attn.c_proj.weight": (6, 6), "attn.c_proj.bias": (6,)}
    space, tensors, flat = marked(shapes)
    W, b, P, _ = tensors.values()
    for h, block in enumerate(Partition.by_head(space, 2)):
        parts = W.view(6, 3, 2, 3)[:, :, h], b.view(3, 2, 3)[:, h], P.view(2, 3, 6)[h]
        same(block.take(flat), *parts)
    # Heads of width 1 leave single columns.
    for h, block in enumerate(Partition.by_head(space, 6)):
        same(block.take(flat), W.view(6, 3, 6)[:, :, h], b.view(3, 6)[:, h], P[h])


@pytest.mark.parametrize(
    "aliases",
    [
        ("q_proj", "k_proj", "v_proj", "o_proj"),
        ("query", "key", "value", "out_proj"),
        ("Wq", "Wk", "Wv", "Wo"),
    ],
)
@pytest.mark.parametrize("num_kv", [4, 2])
def test_by_head_of_separate_projections(aliases: tuple[str, ...], num_kv: int) -> None:
    q, k, v, o = aliases
    kv = 3 * num_kv
    shapes = {f"a.{q}.weight": (12, 7), f"a.{q}.bias": (12,), f"a.{k}.weight": (kv, 7)}
    shapes |= {f"a.{v}.weight": (kv, 7), f"a.{v}.bias": (kv,), f"a.{o}.weight": (7, 12)}
    space, tensors, flat = marked(shapes)
    Q, bq, K, V, bv, P = tensors.values()
    partition = Partition.by_head(space, 4, num_kv_heads=num_kv)
    assert partition.covers
    for h in range(4):
        i = slice(3 * h, 3 * h + 3)
        middle = (K[i], V[i], bv[i]) if num_kv == 4 else ()
        same(partition[f"a.head.{h}"].take(flat), Q[i], bq[i], *middle, P[:, i])
    if num_kv == 4:
        assert len(partition) == 4
        return
    for j in range(2):
        i = slice(3 * j, 3 * j + 3)
        same(partition[f"a.kv_head.{j}"].take(flat), K[i], V[i], bv[i])
    with pytest.raises(InvalidArgumentError, match=r"multiple of 4 along dimension 0 of 'a\.\w*k"):
        Partition.by_head(space, 4)


@pytest.mark.parametrize("fused", ["qkv_proj", "c_attn"])
@pytest.mark.parametrize("transposed", [False, True])
def test_by_head_of_fused_grouped_queries(fused: str, transposed: bool) -> None:
    if transposed and fused != "c_attn":
        return
    # Four query heads and two key-value heads of width 3, in 12 features.
    shape, out = ((12, 24), "c_proj") if transposed else ((24, 12), "o_proj")
    space, tensors, flat = marked({f"a.{fused}.weight": shape, f"a.{out}.weight": (12, 12)})
    W, P = tensors.values()
    partition = Partition.by_head(space, 4, num_kv_heads=2)
    assert partition.covers
    for h in range(4):
        i = slice(3 * h, 3 * h + 3)
        parts = (W[:, i], P[i]) if transposed else (W[i], P[:, i])
        same(partition[f"a.head.{h}"].take(flat), *parts)
    for j in range(2):
        rows = (
            W.view(12, 8, 3)[:, [4 + j, 6 + j]] if transposed else W.view(8, 3, 12)[[4 + j, 6 + j]]
        )
        same(partition[f"a.kv_head.{j}"].take(flat), rows)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("num_kv", [4, 2])
def test_by_head_splits_a_head_into_its_parts(fused: bool, num_kv: int) -> None:
    kv = 3 * num_kv
    shapes = {"b1-qkv.weight": (12 + 2 * kv, 12)} if fused else {}
    if not fused:
        shapes = {f"b1-{part}.weight": (12 if part == "q" else kv, 12) for part in "qkv"}
    space, tensors, flat = marked({**shapes, "b1-proj.weight": (12, 12), "b1-proj.bias": (12,)})
    *stacked, P, _ = tensors.values()
    Q, K, V = torch.cat(stacked).split([12, kv, kv])
    partition = Partition.by_head(space, 4, num_kv_heads=num_kv, split=True)
    assert len(partition) == 2 * 4 + 2 * num_kv
    kind = "head" if num_kv == 4 else "kv_head"
    for h in range(4):
        i = slice(3 * h, 3 * h + 3)
        same(partition[f"b1.head.{h}.q"].take(flat), Q[i])
        same(partition[f"b1.head.{h}.o"].take(flat), P[:, i])
        if h < num_kv:
            same(partition[f"b1.{kind}.{h}.k"].take(flat), K[i])
            same(partition[f"b1.{kind}.{h}.v"].take(flat), V[i])
    # The parts make up the heads.
    whole = Partition.by_head(space, 4, num_kv_heads=num_kv)
    assert sum(whole.sizes) == sum(partition.sizes)
    assert whole.names[0] == "b1.head.0"


def test_by_head_of_our_own_transformer() -> None:
    space, tensors, flat = of_module(build("GPT-2x6x3", input_shape=(5,), num_classes=7))
    partition = Partition.by_head(space, 3)
    assert partition.names == tuple(f"b{i}.head.{h}" for i in (1, 2) for h in range(3))
    rows = [2, 3, 8, 9, 14, 15]
    parts = tensors["b2-qkv.weight"][rows], tensors["b2-qkv.bias"][rows]
    same(partition["b2.head.1"].take(flat), *parts, tensors["b2-proj.weight"][:, 2:4])


def test_partitions_add_up() -> None:
    space = ParamSpace(NET)
    rows, columns = Partition.by_output(space, "fc1"), Partition.by_input(space, "fc2.weight")
    both = rows + columns
    assert both.blocks == rows.blocks + columns.blocks
    assert both.space == space
    with pytest.raises(InvalidArgumentError, match="twice"):
        rows + rows
    with pytest.raises(OverlapError, match="share"):
        rows + Partition.by_layer(space, "fc1")
    with pytest.raises(ShapeError, match="of one space"):
        rows + Partition.by_tensor(ParamSpace({"x": (3,)}))
    with pytest.raises(WrongTypeError, match="got Block"):
        rows + columns[0]


def test_by_head_takes_the_modules_that_only_selects() -> None:
    shapes = {
        f"blocks.{i}.attn.{n}": s
        for i in range(2)
        for n, s in {"qkv.weight": (12, 4), "proj.weight": (4, 4)}.items()
    }
    space = ParamSpace(shapes)
    assert len(Partition.by_head(space, 2)) == 4
    assert Partition.by_head(space, 2, "blocks.1").names == (
        "blocks.1.attn.head.0",
        "blocks.1.attn.head.1",
    )
    assert Partition.by_head(space, 2, only="*.qkv").sizes == (24,) * 4


def test_by_head_refuses() -> None:
    space, _, _ = of_module(nn.MultiheadAttention(12, 3))
    with pytest.raises(
        InvalidArgumentError, match="multiple of 15 along dimension 0 of 'in_proj_we"
    ):
        Partition.by_head(space, 5)
    # 36 rows could be four query heads and one of keys and values, of width 6; 12 columns say no.
    with pytest.raises(
        InvalidArgumentError, match=r"num_kv_heads=1\)` needs .* got shape \(36, 12\)"
    ):
        Partition.by_head(space, 4, num_kv_heads=1)
    with pytest.raises(InvalidArgumentError, match=r"num_kv_heads=...\)` must be from 1 to 3"):
        Partition.by_head(space, 3, num_kv_heads=6)
    with pytest.raises(InvalidArgumentError, match="must divide num_heads; got 2 for 3"):
        Partition.by_head(space, 3, num_kv_heads=2)
    with pytest.raises(InvalidArgumentError, match=r"num_heads=...\)` must be at least 1"):
        Partition.by_head(space, 0)
    with pytest.raises(WrongTypeError, match=r"num_heads=...\)` must be an integer"):
        Partition.by_head(space, 3.0)
    wrong = ParamSpace({"qkv.weight": (12, 4), "proj.weight": (4, 8)})
    with pytest.raises(InvalidArgumentError, match=r"'proj.weight', .* got shape \(4, 8\)"):
        Partition.by_head(wrong, 2)
    # Look-alikes: a critic's `value`, a state space model's `in_proj.weight`.
    other = {"value.weight": (3, 4), "m.in_proj.weight": (12, 4), "m.out_proj.weight": (4, 4)}
    with pytest.raises(
        EmptySelectionError, match=r"needs an attention module .* among 'value.w.*by_p"
    ):
        Partition.by_head(ParamSpace(other), 2)
