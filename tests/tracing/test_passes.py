"""Passes over traces: small graphs written by hand go in, and what must come out is written, too.

Values before and after are those of PyTorch's interpreter, on inputs that no example has seen.
"""

import itertools
import operator
import random
from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from eigenscape.errors import UnsupportedModelError
from eigenscape.tracing.passes import reuse_memory, simplify, smallest_cut

aten = torch.ops.aten


class Hand:
    """A trace written by hand; every node has an example of its value."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.shapes: list[tuple[int, ...]] = []

    def inputs(self, *shapes: tuple[int, ...]) -> list[fx.Node]:
        nodes = [self.graph.placeholder(f"x{len(self.shapes) + i}") for i in range(len(shapes))]
        for node, shape in zip(nodes, shapes, strict=True):
            node.meta["val"] = torch.randn(shape)
        self.shapes += shapes
        return nodes

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        values = fx.node.map_arg((args, kwargs), lambda n: n.meta["val"].clone())
        node.meta["val"] = target(*values[0], **values[1])
        return node

    def compare(self, outputs: Collection[fx.Node], change: Callable[[fx.Graph], None]) -> str:
        """Change the graph; demand the same values of new inputs; return what is left of it."""
        self.graph.output(list(outputs))
        fresh = [torch.randn(shape) for shape in self.shapes]
        before = values_of(self.graph, fresh)
        change(self.graph)
        after = values_of(self.graph, fresh)
        for old, new in zip(before, after, strict=True):
            torch.testing.assert_close(new, old, rtol=1e-13, atol=1e-13)
        return text_of(self.graph)


def values_of(graph: fx.Graph, inputs: Collection[Tensor]) -> list[Tensor]:
    """Run a graph; what it is given must not be written over."""
    graph.lint()
    copies = [x.clone() for x in inputs]
    outputs = fx.Interpreter(fx.GraphModule({}, graph)).run(*copies)
    for x, copy in zip(inputs, copies, strict=True):
        assert torch.equal(x, copy)
    return outputs


def text_of(graph: fx.Graph) -> str:
    """Name the operations in their order, without overloads."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    return " ".join(node.target._schema.name.removeprefix("aten::") for node in calls)


@pytest.fixture
def hand() -> Hand:
    return Hand()


# --- simplify ------------------------------------------------------------------------------------


def test_what_writes_into_its_arguments_is_refused(hand: Hand) -> None:
    (x,) = hand.inputs((3,))
    hand.graph.output([hand.graph.call_function(aten.exp_.default, (x,))])
    with pytest.raises(UnsupportedModelError, match=r"'aten::exp_' writes into its arguments"):
        simplify(hand.graph)


def test_what_nobody_uses_is_not_computed(hand: Hand) -> None:
    (x,) = hand.inputs((3,))
    kept = hand(aten.sin.default, x)
    hand(aten.exp.default, hand(aten.cos.default, x))
    assert hand.compare([kept], simplify) == "sin"


@pytest.mark.parametrize(
    ("target", "zero_first"),
    [(aten.add.Tensor, False), (aten.add.Tensor, True), (aten.sub.Tensor, False)],
)
def test_adding_a_zero_is_left_out(hand: Hand, target: Any, zero_first: bool) -> None:
    (x,) = hand.inputs((3, 5))
    value, zero = hand(aten.sin.default, x), hand(aten.zeros_like.default, x)
    # What is linear in a zero is one, through products and views alike.
    zero = hand(aten.mul.Tensor, hand(aten.exp.default, x), hand(aten.neg.default, zero))
    zero = hand(aten.t.default, hand(aten.t.default, zero))
    summed = hand(target, *((zero, value) if zero_first else (value, zero)))
    assert hand.compare([summed], simplify) == "sin"


def test_a_zero_taken_from_the_left_is_not_left_out(hand: Hand) -> None:
    (x,) = hand.inputs((3, 5))
    zero = hand(aten.zeros_like.default, x)
    assert hand.compare([hand(aten.sub.Tensor, zero, x)], simplify) == "zeros sub"


def test_a_multiple_of_a_value_added_to_zero_stays(hand: Hand) -> None:
    (x,) = hand.inputs((3, 5))
    zero = hand(aten.zeros_like.default, x)
    assert hand.compare([hand(aten.add.Tensor, zero, x, alpha=3)], simplify) == "zeros add"


@pytest.mark.parametrize("fill", [0, 0.0, 1, 0.5])
def test_a_filled_tensor_is_a_zero_only_where_it_is_filled_with_zeros(
    hand: Hand, fill: float
) -> None:
    (x,) = hand.inputs((3, 5))
    filled = hand(aten.full_like.default, x, fill)
    summed = hand(aten.add.Tensor, x, hand(aten.mul.Tensor, filled, x))
    assert hand.compare([summed], simplify) == ("" if fill == 0 else "full_like mul add")


def test_a_summand_takes_the_shape_of_the_sum(hand: Hand) -> None:
    (row,) = hand.inputs((5,))
    zero = hand(aten.zeros.default, [3, 5], dtype=torch.float64)
    summed = hand(aten.exp.default, hand(aten.add.Tensor, row, zero))
    assert hand.compare([summed], simplify) == "expand exp"


def test_a_zero_that_widens_the_dtype_is_added(hand: Hand) -> None:
    (x,) = hand.inputs((3,))
    narrow = hand(aten._to_copy.default, x, dtype=torch.float32)
    zero = hand(aten.zeros.default, [3], dtype=torch.float64)
    summed = hand(aten.add.Tensor, narrow, zero)
    assert hand.compare([summed], simplify) == "_to_copy zeros add"


def test_products_of_zeros_vanish_from_affine_maps_and_convolutions(hand: Hand) -> None:
    bias, factor, image = hand.inputs((4,), (5, 4), (2, 3, 6))
    zero = hand(aten.zeros.default, [3, 5], dtype=torch.float64)
    affine = hand(aten.addmm.default, bias, zero, factor)
    kernel = hand(aten.zeros.default, [4, 3, 2], dtype=torch.float64)
    settings = ([1], [0], [1], False, [0], 1)
    with_bias = hand(aten.convolution.default, image, kernel, bias, *settings)
    without = hand(aten.convolution.default, image, kernel, None, *settings)
    summed = hand(aten.add.Tensor, with_bias, without)
    # The convolution with a bias is no zero, and stays.
    assert hand.compare([affine, summed], simplify) == "expand zeros convolution"


def test_a_zero_that_is_returned_depends_on_no_input(hand: Hand) -> None:
    (x,) = hand.inputs((3, 5))
    zero = hand(aten.mul.Tensor, hand(aten.exp.default, x), hand(aten.zeros_like.default, x))
    assert hand.compare([hand(aten.sum.dim_IntList, zero, [1])], simplify) == "zeros"
    (placeholder,) = (node for node in hand.graph.nodes if node.op == "placeholder")
    assert not placeholder.users


def test_a_zero_of_unknown_shape_stays_as_it_is(hand: Hand) -> None:
    (x,) = hand.inputs((3, 5))
    zero = hand(aten.zeros_like.default, x)
    del zero.meta["val"]
    assert hand.compare([zero], simplify) == "zeros_like"


def test_equal_operations_are_done_once(hand: Hand) -> None:
    x, y = hand.inputs((3, 5), (3, 5))
    twice = [hand(aten.sum.dim_IntList, hand(aten.mul.Tensor, x, y), [1]) for _ in range(2)]
    other = hand(aten.sum.dim_IntList, hand(aten.mul.Tensor, x, x), [1])
    assert hand.compare([*twice, other], simplify) == "mul sum mul sum"


@pytest.mark.parametrize(
    ("settings", "others"),
    [
        (([1], True), ([1], False)),
        (([0],), ([1],)),
        (([1],), ([True],)),  # 1 == True in Python
    ],
)
def test_other_settings_make_another_operation(hand: Hand, settings: Any, others: Any) -> None:
    (x,) = hand.inputs((3, 5))
    both = [hand(aten.sum.dim_IntList, x, *choice) for choice in (settings, others)]
    assert hand.compare(both, simplify) == "sum sum"


def test_copies_are_not_made(hand: Hand) -> None:
    (x,) = hand.inputs((3, 5))
    copied = hand(aten.clone.default, hand(aten.detach.default, hand(aten.alias.default, x)))
    copied = hand(aten._to_copy.default, copied, dtype=torch.float64)
    copied = hand(aten.expand.default, copied, [3, 5])
    copied = hand(aten.copy.default, hand(aten.exp.default, x), copied)
    assert hand.compare([hand(aten.sin.default, copied)], simplify) == "sin"


def test_copies_of_another_shape_or_dtype_are_made(hand: Hand) -> None:
    (row,) = hand.inputs((5,))
    wide = hand(aten.expand.default, row, [3, 5])
    narrow = hand(aten._to_copy.default, wide, dtype=torch.float32)
    assert hand.compare([hand(aten.sin.default, narrow)], simplify) == "expand _to_copy sin"


def test_views_accept_any_strides_afterwards(hand: Hand) -> None:
    (x,) = hand.inputs((3, 4))
    viewed = hand(aten.view.default, hand(aten.exp.default, x), [2, 6])
    assert hand.compare([viewed], simplify) == "exp reshape"
    transposed = torch.randn(4, 3).T
    (after,) = values_of(hand.graph, [transposed])
    assert torch.equal(after, transposed.exp().reshape(2, 6))


def softmax_derivative(
    hand: Hand, *, shift: Any = aten.amax.default, along: int = 1, known: int = 1
) -> list[fx.Node]:
    """Σ(exp(x − shift)·t) / Σexp(x − shift) over rows, beside a softmax along `known`."""
    x, t = hand.inputs((3, 5), (3, 5))
    softmax = hand(aten._softmax.default, x, known, False)
    low = hand(shift, x, [along], True)
    weights = hand(aten.exp.default, hand(aten.sub.Tensor, x, low))
    above = hand(aten.sum.dim_IntList, hand(aten.mul.Tensor, weights, t), [1], True)
    below = hand(aten.sum.dim_IntList, weights, [1], True)
    return [softmax, hand(aten.div.Tensor, above, below)]


def test_the_derivative_of_a_softmax_uses_the_softmax_that_is_there(hand: Hand) -> None:
    assert hand.compare(softmax_derivative(hand), simplify) == "_softmax mul sum"


@pytest.mark.parametrize(
    "options",
    [{"known": 0}, {"along": 0}, {"along": 0, "known": 0}, {"shift": aten.mean.dim}],
)
def test_another_softmax_or_another_shift_is_not_taken_for_it(
    hand: Hand, options: dict[str, Any]
) -> None:
    left = hand.compare(softmax_derivative(hand, **options), simplify)
    assert left.split().count("exp") == 1
    assert left.split().count("div") == 1


def test_other_quotients_are_not_taken_for_the_derivative_of_a_softmax(hand: Hand) -> None:
    x, t = hand.inputs((3, 5), (3, 5))
    softmax = hand(aten._softmax.default, x, 1, False)
    shifted = hand(aten.sub.Tensor, x, hand(aten.amax.default, x, [1], True))

    def summed(value: fx.Node) -> fx.Node:
        return hand(aten.sum.dim_IntList, value, [1], True)

    weights, others = hand(aten.exp.default, shifted), hand(aten.exp.default, x)
    quotients = [
        hand(aten.div.Tensor, hand(aten.mul.Tensor, weights, t), summed(weights)),  # no sum
        hand(aten.div.Tensor, summed(hand(aten.add.Tensor, weights, t)), summed(weights)),
        hand(aten.div.Tensor, summed(hand(aten.mul.Tensor, others, t)), summed(others)),
        hand(aten.div.Tensor, summed(hand(aten.mul.Tensor, t, x)), summed(weights)),
    ]
    left = hand.compare([softmax, *quotients], simplify)
    assert left.split().count("div") == len(quotients)


@pytest.mark.parametrize("shape", [(3, 4), (4,)])
@pytest.mark.parametrize("product_first", [True, False])
def test_a_product_and_a_summand_become_one_operation(
    hand: Hand, shape: tuple[int, ...], product_first: bool
) -> None:
    a, b, c = hand.inputs((3, 5), (5, 4), shape)
    product = hand(aten.mm.default, a, b)
    summed = hand(aten.add.Tensor, *((product, c) if product_first else (c, product)))
    assert hand.compare([summed], simplify) == "addmm"


def test_a_product_that_is_used_elsewhere_stays_by_itself(hand: Hand) -> None:
    a, b, c = hand.inputs((3, 5), (5, 4), (3, 4))
    product = hand(aten.mm.default, a, b)
    outputs = [hand(aten.add.Tensor, product, c), hand(aten.exp.default, product)]
    assert hand.compare(outputs, simplify) == "mm add exp"


def test_a_product_that_is_added_to_itself_stays(hand: Hand) -> None:
    a, b = hand.inputs((3, 5), (5, 4))
    product = hand(aten.mm.default, a, b)
    assert hand.compare([hand(aten.add.Tensor, product, product)], simplify) == "mm add"


def test_a_multiple_of_the_summand_of_an_affine_map_stays(hand: Hand) -> None:
    b, c = hand.inputs((5, 4), (3, 4))
    zero = hand(aten.zeros.default, [3, 5])
    summed = hand(aten.addmm.default, c, zero, b, beta=2)
    assert "addmm" in hand.compare([summed], simplify)


def test_two_random_draws_are_not_one(hand: Hand) -> None:
    (a,) = hand.inputs((3, 5))
    draws = [hand(aten.rand_like.default, a) for _ in range(2)]
    hand.graph.output(draws)
    simplify(hand.graph)
    assert text_of(hand.graph) == "rand_like rand_like"


@pytest.mark.parametrize(
    ("shape", "kwargs"), [((3, 1), {}), ((2, 3, 4), {}), ((3, 4), {"alpha": 2})]
)
def test_summands_that_the_joint_operation_does_not_take_stay(
    hand: Hand, shape: tuple[int, ...], kwargs: dict[str, Any]
) -> None:
    a, b, c = hand.inputs((3, 5), (5, 4), shape)
    summed = hand(aten.add.Tensor, hand(aten.mm.default, a, b), c, **kwargs)
    assert hand.compare([summed], simplify) == "mm add"


def test_a_summand_of_another_dtype_is_not_joined_with_a_product(hand: Hand) -> None:
    a, b, c = hand.inputs((3, 5), (5, 4), (3, 4))
    narrow = hand(aten._to_copy.default, c, dtype=torch.float32)
    summed = hand(aten.add.Tensor, hand(aten.mm.default, a, b), narrow)
    assert hand.compare([summed], simplify) == "_to_copy mm add"


def test_the_comparison_notices_a_pass_that_changes_values(hand: Hand) -> None:
    (x,) = hand.inputs((3,))
    sine = hand(aten.sin.default, x)

    def spoil(graph: fx.Graph) -> None:
        sine.target = aten.cos.default

    with pytest.raises(AssertionError, match="not close"):
        hand.compare([sine], spoil)


# --- reuse_memory --------------------------------------------------------------------------------


def test_results_are_written_over_what_nobody_needs(hand: Hand) -> None:
    x, y = hand.inputs((3, 5), (3, 5))
    value = hand(aten.mul.Tensor, x, y)
    value = hand(aten.div.Tensor, value, y)
    value = hand(aten.add.Tensor, y, hand(aten.exp.default, value))  # the second one is free
    assert hand.compare([hand(aten.sub.Tensor, value, x)], reuse_memory) == "mul div_ exp add_ sub_"


def test_a_product_is_added_to_a_value_in_its_place(hand: Hand) -> None:
    a, b, c = hand.inputs((3, 5), (5, 4), (3, 4))
    value = hand(aten.mul.Scalar, c, 2.0)
    value = hand(aten.addmm.default, value, a, b)
    assert hand.compare([value], reuse_memory) == "mul addmm_"


def test_inputs_outputs_and_what_is_used_again_are_not_written_over(hand: Hand) -> None:
    x, y = hand.inputs((3, 5), (3, 5))
    returned = hand(aten.mul.Tensor, x, y)
    first = hand(aten.sub.Tensor, returned, y)
    again = hand(aten.mul.Tensor, y, y)
    second, third = hand(aten.sub.Tensor, again, y), hand(aten.sub.Tensor, again, x)
    outputs = [returned, first, second, third]
    assert hand.compare(outputs, reuse_memory) == "mul sub mul sub sub"


def test_memory_that_a_view_shares_is_not_written_over(hand: Hand) -> None:
    (x,) = hand.inputs((3, 5))
    value = hand(aten.exp.default, x)
    turned = hand(aten.t.default, value)
    summed = hand(aten.add.Tensor, hand(aten.t.default, turned), x)  # adds to a view
    outputs = [summed, hand(aten.sum.dim_IntList, turned, [0])]
    assert hand.compare(outputs, reuse_memory) == "exp t t add sum"


def test_memory_of_another_shape_or_dtype_is_not_written_over(hand: Hand) -> None:
    x, row = hand.inputs((3, 5), (5,))
    small = hand(aten.exp.default, row)
    wide = hand(aten.sub.Tensor, small, x)
    narrow = hand(aten._to_copy.default, hand(aten.exp.default, x), dtype=torch.float32)
    mixed = hand(aten.mul.Tensor, hand(aten.neg.default, narrow), wide)
    # The last result is as wide as its second argument, and that is free.
    assert hand.compare([mixed], reuse_memory) == "exp sub exp _to_copy neg mul_"


def test_a_value_that_meets_itself_is_not_written_over(hand: Hand) -> None:
    x, square = hand.inputs((3, 5), (4, 4))
    value = hand(aten.exp.default, x)
    wide = hand(aten.exp.default, square)
    outputs = [hand(aten.mul.Tensor, value, value), hand(aten.addmm.default, wide, wide, wide)]
    assert hand.compare(outputs, reuse_memory) == "exp exp mul addmm"


# --- smallest_cut --------------------------------------------------------------------------------

CHEAP, VIEWS, DEAR = aten.exp.default, aten.t.default, aten.mm.default
AGAIN = 0.25


def grid(hand: Hand, number: int) -> list[fx.Node]:
    """A trace of square values whose sizes differ by what they are cut from, drawn at random."""
    draw = random.Random(number)
    nodes = hand.inputs((4, 4), (8, 8))
    while len(nodes) < 9:
        node = draw.choice(nodes)
        partners = [n for n in nodes if n.meta["val"].shape == node.meta["val"].shape]
        choice = draw.choice(["exp", "t", "mm", "add", "slice"])
        if choice == "exp":
            nodes.append(hand(CHEAP, node))
        elif choice == "t":
            nodes.append(hand(VIEWS, node))
        elif choice == "slice" and node.meta["val"].shape == (8, 8):
            columns = hand(aten.slice.Tensor, node, 1, 0, 4)
            nodes += [columns, hand(aten.slice.Tensor, columns, 0, 4, 8)]
        elif choice in ("mm", "add"):
            target = DEAR if choice == "mm" else aten.add.Tensor
            shape = node.meta["val"].shape
            if choice == "add" or shape[0] == shape[1]:
                nodes.append(hand(target, node, draw.choice(partners)))
    return nodes


def cost_of(
    kept: set[fx.Node],
    wanted: Collection[fx.Node],
    free: Collection[fx.Node],
    movable: Collection[fx.Node],
) -> float:
    """What a choice costs by the rules in words; infinite where it does not lead to the wanted."""
    cost = sum(node.meta["val"].nbytes for node in kept if node not in free)
    ahead, met = list(wanted), set(kept)
    while ahead:
        node = ahead.pop()
        if node in met:
            continue
        met.add(node)
        if node.op == "placeholder":
            return float("inf")
        if node not in movable and node.target is DEAR:
            return float("inf")
        if node not in movable and node.target in (CHEAP, aten.add.Tensor):
            cost += AGAIN * node.meta["val"].nbytes
        ahead += node.all_input_nodes
    return cost


@pytest.mark.parametrize("number", range(12))
def test_no_other_choice_costs_less(hand: Hand, number: int) -> None:
    nodes, draw = grid(hand, number), random.Random(number + 100)
    wanted = [nodes[-1], *draw.sample(nodes[2:], 2)]
    free = draw.sample(nodes[:2], number % 2)
    movable = [n for n in nodes[-3:] if n not in wanted and number % 3 == 0]
    kept = smallest_cut(nodes, wanted, again=AGAIN, free=free, movable=movable)
    every = itertools.chain.from_iterable(
        itertools.combinations(nodes, size) for size in range(len(nodes) + 1)
    )
    least = min(cost_of(set(choice), wanted, free, movable) for choice in every)
    assert cost_of(kept, wanted, free, movable) == least < float("inf")


def test_costs_see_a_value_too_many_and_one_too_few(hand: Hand) -> None:
    (x,) = hand.inputs((4, 4))
    product = hand(DEAR, x, x)
    last = hand(CHEAP, product)
    assert smallest_cut([x, product, last], [last], again=AGAIN) == {last}
    assert cost_of({last}, [last], [], []) < cost_of({last, x}, [last], [], []) < float("inf")
    assert cost_of(set(), [last], [], []) == float("inf")


def test_few_bytes_are_kept_and_cheap_operations_done_again(hand: Hand) -> None:
    (row,) = hand.inputs((5,))
    wide = hand(aten.expand.default, row, [30, 5])
    values = [hand(target, wide) for target in (aten.sin.default, aten.cos.default)]
    assert smallest_cut([row, wide, *values], values, again=1e-3) == {row}
    # Where computing again counts as much as keeping, the latest of the equal choices is taken.
    assert smallest_cut([row, wide, *values], values, again=1.0) == set(values)


def test_random_numbers_and_sums_are_never_done_again(hand: Hand) -> None:
    (x,) = hand.inputs((4, 3))
    drawn = hand(aten.bernoulli.default, hand(aten.sigmoid.default, x))
    wide = hand(aten.expand.default, hand(aten.sum.dim_IntList, x, [0, 1]), [7, 3])
    nodes = list(hand.graph.nodes)
    kept = smallest_cut(nodes, [drawn, wide], again=0.0, free=[x])
    assert {node.target for node in kept} == {aten.bernoulli.default, aten.sum.dim_IntList}


def test_what_was_split_is_kept_in_one_piece(hand: Hand) -> None:
    (x,) = hand.inputs((8, 8))
    product = hand(DEAR, x, x)
    split = hand(aten.split.Tensor, product, 2)
    pieces = [hand.graph.call_function(operator.getitem, (split, i)) for i in range(4)]
    for i, piece in enumerate(pieces):
        piece.meta["val"] = split.meta["val"][i]
    wanted = [hand(VIEWS, piece) for piece in (*pieces, product)]
    assert smallest_cut([x, product, split, *pieces, *wanted], wanted, again=AGAIN) == {product}


def test_what_can_wait_is_not_kept(hand: Hand) -> None:
    small, large = hand.inputs((1, 3), (30, 1))
    product = hand(DEAR, large, small)
    nodes = [small, large, product]
    assert smallest_cut(nodes, [product], again=AGAIN) == {product}
    assert smallest_cut(nodes, [product], again=AGAIN, movable=[product]) == {small, large}
