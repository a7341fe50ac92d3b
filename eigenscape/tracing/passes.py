"""Rewriting a trace so that it computes the same with less.

Forward mode gives constant inputs a tangent of zeros and multiplies it all the same; forward and
backward passes repeat each other; and copies that protect against writing in place are not needed
where nothing is written in place. Values change by rounding at most.

What is kept between two parts of a trace is a cut through it: see `smallest_cut`.
"""

import math
import operator
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_flow
from torch import Tensor, fx

from eigenscape.errors import UnsupportedModelError

_aten = torch.ops.aten
# Views demand strides that the columns of a batched product need not have.
_VIEWS = {_aten.view.default, _aten._unsafe_view.default}
# Nothing is written in place, so a copy is as good as what it was made from.
_COPIES = {
    _aten.alias.default,
    _aten.clone.default,
    _aten.copy.default,
    _aten.detach.default,
    _aten.lift_fresh_copy.default,
    _aten._to_copy.default,
    _aten.expand.default,
}
_ZEROS = {
    _aten.zeros.default,
    _aten.zeros_like.default,
    _aten.new_zeros.default,
    _aten._efficientzerotensor.default,
}
_FILLED = {_aten.full.default, _aten.full_like.default, _aten.new_full.default}
# By the number of an argument: operations whose result is zero where that argument is zero. Those
# of the last group are zero where any of their arguments is.
_LINEAR = {
    0: {
        _aten.alias.default,
        _aten.clone.default,
        _aten.detach.default,
        _aten.div.Scalar,
        _aten.div.Tensor,
        _aten._to_copy.default,
        _aten.expand.default,
        _aten.mean.dim,
        _aten.mul.Scalar,
        _aten.neg.default,
        _aten.permute.default,
        _aten.reshape.default,
        _aten.squeeze.dim,
        _aten.sum.dim_IntList,
        _aten.t.default,
        _aten.threshold_backward.default,
        _aten.transpose.int,
        _aten.unsqueeze.default,
    },
    1: {_aten.copy.default},
}
_PRODUCTS = {_aten.mul.Tensor, _aten.mm.default, _aten.bmm.default}
_ADD, _SUB = _aten.add.Tensor, _aten.sub.Tensor


def simplify(graph: fx.Graph) -> None:
    """Rewrite a graph in place.

    Args:
        graph: A trace of tensor operations, with an example of each node's value in `meta["val"]`.

    Raises:
        UnsupportedModelError: If an operation writes into its arguments.
    """
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            raise UnsupportedModelError(f"'{schema.name}' writes into its arguments")
    _fold_zeros(graph)
    _merge_equal(graph)
    _reuse_softmax(graph)
    _join_products(graph)
    graph.eliminate_dead_code()


def _replace(node: fx.Node, other: fx.Node) -> None:
    node.replace_all_uses_with(other)
    node.graph.erase_node(node)


def _fold_zeros(graph: fx.Graph) -> None:
    """Leave out what is added and is known to be zero."""
    zeros: set[fx.Node] = set()
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _VIEWS:
            node.target = _aten.reshape.default
        if _is_zero(node, zeros):
            zeros.add(node)
        elif node.target in (_ADD, _SUB) and node.args[1] in zeros:
            _replace_widened(node, node.args[0])
        elif node.target is _ADD and node.args[0] in zeros and not node.kwargs:
            _replace_widened(node, node.args[1])
        elif node.target is _aten.addmm.default and set(node.args[1:3]) & zeros and not node.kwargs:
            _replace_widened(node, node.args[0])
    for node in zeros:
        _make_constant(node)


def _is_zero(node: fx.Node, zeros: set[fx.Node]) -> bool:
    args = node.args
    if node.target in _ZEROS:
        return True
    if node.target in _FILLED:
        return isinstance(args[-1], int | float) and args[-1] == 0
    if node.target in (_ADD, _SUB):
        return args[0] in zeros and args[1] in zeros
    if node.target is _aten.convolution.default:
        return args[2] is None and bool({args[0], args[1]} & zeros)
    if node.target in _PRODUCTS:
        return bool({a for a in args if isinstance(a, fx.Node)} & zeros)
    return any(node.target in group and args[i] in zeros for i, group in _LINEAR.items())


def _replace_widened(node: fx.Node, other: Any) -> None:
    """Put a summand in the place of the sum, in the shape and dtype of the sum."""
    if not isinstance(other, fx.Node) or not _same_dtype(node, other):
        return
    if _same_kind(node, other):
        _replace(node, other)
        return
    shape = list(node.meta["val"].shape)
    with node.graph.inserting_before(node):
        widened = node.graph.call_function(_aten.expand.default, (other, shape))
    widened.meta.update(node.meta)
    _replace(node, widened)


def _make_constant(node: fx.Node) -> None:
    """Let a zero depend on nothing, so that it is made once."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return
    with node.graph.inserting_before(node):
        zero = node.graph.call_function(
            _aten.zeros.default,
            (list(value.shape),),
            {"dtype": value.dtype, "device": value.device},
        )
    zero.meta.update(node.meta)
    _replace(node, zero)


def _merge_equal(graph: fx.Graph) -> None:
    """Compute equal things once, and copies not at all."""
    computed: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or _is_random(node):
            continue
        if node.target in _COPIES and _same_kind(node, source := _source(node)):
            _replace(node, source)
            continue
        key = (node.target, _frozen(node.args), _frozen(node.kwargs))
        if key in computed:
            _replace(node, computed[key])
        else:
            computed[key] = node


def _is_random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _source(copy: fx.Node) -> Any:
    """Return what a copy was made from; `copy(a, b)` is b in the shape of a."""
    return copy.args[1 if copy.target is _aten.copy.default else 0]


def _same_kind(first: fx.Node, second: Any) -> bool:
    a, b = _value(first), _value(second)
    return _same_dtype(first, second) and a is not None and b is not None and a.shape == b.shape


def _same_dtype(first: Any, second: Any) -> bool:
    a, b = _value(first), _value(second)
    return a is not None and b is not None and (a.dtype, a.device) == (b.dtype, b.device)


def _value(node: Any) -> Tensor | None:
    """Return the example of a node's value, if it is a tensor."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None


def _frozen(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, _frozen(item)) for key, item in value.items())
    return value if isinstance(value, fx.Node) else (type(value), repr(value))


def _reuse_softmax(graph: fx.Graph) -> None:
    """Turn Σ(exp(x − max)·t) / Σexp(x − max), a derivative's softmax, into Σ(softmax(x)·t)."""
    softmax = {n.args[:2]: n for n in graph.nodes if n.target is _aten._softmax.default}
    for node in list(graph.nodes):
        if node.target is not _aten.div.Tensor:
            continue
        above, below = node.args
        if not (_is_sum(above) and _is_sum(below) and above.args[1:] == below.args[1:]):
            continue
        product, weights = above.args[0], below.args[0]
        shifted = weights.args[0] if weights.target is _aten.exp.default else None
        if product.target is not _aten.mul.Tensor or not isinstance(shifted, fx.Node):
            continue
        if shifted.target is not _aten.sub.Tensor or len(above.args[1]) != 1:
            continue
        known = softmax.get((shifted.args[0], above.args[1][0]))
        other = [a for a in product.args if a is not weights]
        if known is None or len(other) != 1 or not _is_maximum(shifted.args[1], known):
            continue
        with graph.inserting_before(node):
            weighted = graph.call_function(_aten.mul.Tensor, (known, other[0]))
            summed = graph.call_function(_aten.sum.dim_IntList, (weighted, *above.args[1:]))
        weighted.meta.update(product.meta)
        summed.meta.update(node.meta)
        _replace(node, summed)


def _is_sum(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is _aten.sum.dim_IntList and not node.kwargs


def _is_maximum(node: Any, softmax: fx.Node) -> bool:
    """Tell whether a value is the maximum along the dimension of a softmax, of its argument."""
    return (
        isinstance(node, fx.Node)
        and node.target is _aten.amax.default
        and node.args[0] is softmax.args[0]
        and node.args[1] == [softmax.args[1]]
    )


def _join_products(graph: fx.Graph) -> None:
    """Turn A B + C into one operation where the product is used for nothing else."""
    for node in list(graph.nodes):
        if node.target is not _ADD or node.kwargs:
            continue
        for product, other in (node.args, reversed(node.args)):
            is_twice = product is other
            if not is_twice and _is_single_product(product) and _is_addend(other, product):
                with graph.inserting_before(node):
                    joined = graph.call_function(_aten.addmm.default, (other, *product.args))
                joined.meta.update(node.meta)
                _replace(node, joined)
                graph.erase_node(product)
                break


def _is_addend(node: Any, product: fx.Node) -> bool:
    """Tell whether a value has the product's shape, or is one row of it."""
    a, b = _value(node), _value(product)
    if a is None or b is None or a.dtype != b.dtype:
        return False
    return a.shape in (b.shape, b.shape[1:])


def _is_single_product(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is _aten.mm.default and len(node.users) == 1


# Operations that put their result in new memory, and can put it in place of their first argument.
_IN_PLACE: dict[Any, Any] = {
    _aten.add.Tensor: _aten.add_.Tensor,
    _aten.sub.Tensor: _aten.sub_.Tensor,
    _aten.mul.Tensor: _aten.mul_.Tensor,
    _aten.mul.Scalar: _aten.mul_.Scalar,
    _aten.div.Tensor: _aten.div_.Tensor,
    _aten.div.Scalar: _aten.div_.Scalar,
    _aten.addmm.default: _aten.addmm_.default,
}
_FRESH = {*_IN_PLACE, *_PRODUCTS, _aten.convolution.default, _aten.threshold_backward.default}
_COMMUTE = {_aten.add.Tensor, _aten.mul.Tensor}


def reuse_memory(graph: fx.Graph) -> None:
    """Write a result over an argument that was made in this graph and is used for nothing else.

    Args:
        graph: A simplified trace, with examples of values; changed in place.
    """
    for node in list(graph.nodes):
        if node.target not in _IN_PLACE or node.kwargs:
            continue
        if node.target in _COMMUTE and not _is_free(node.args[0], node):
            node.args = (node.args[1], node.args[0])
        if _is_free(node.args[0], node) and node.args[0] not in node.args[1:]:
            node.target = _IN_PLACE[node.target]


def _is_free(node: Any, user: fx.Node) -> bool:
    if not isinstance(node, fx.Node) or set(node.users) != {user} or not _same_kind(node, user):
        return False
    return node.target in _IN_PLACE.values() or node.target in _FRESH or _is_pointwise(node)


_MADE_FROM_NOTHING = {*_ZEROS, *_FILLED, _aten.arange.start_step, _aten.arange.default}
_MANY_VIEWS: set[Any] = {_aten.unbind.int, _aten.split.Tensor, _aten.split_with_sizes.default}
_PARTS = 2**28  # of all bytes; capacities are 32-bit integers, and so is their sum
_ENDLESS = 2**30


def smallest_cut(
    nodes: Sequence[fx.Node],
    wanted: Iterable[fx.Node],
    *,
    again: float,
    free: Collection[fx.Node] = (),
    movable: Collection[fx.Node] = (),
) -> set[fx.Node]:
    """Choose the values to keep, so that with little memory the wanted ones can be had from them.

    What is not kept is computed again: views and operations on single entries, never a product, a
    sum or a random number. Keeping a value costs its bytes, and computing one again a part of them;
    the choice is a minimum cut, the latest one where there are several.

    Args:
        nodes: The trace up to where it is cut, in order. What it takes from elsewhere is at hand.
        wanted: Nodes among them whose values are needed beyond the cut.
        again: What computing a value again counts for, as a share of keeping it.
        free: Nodes among them that are kept in any case, at no cost.
        movable: Nodes among them that nobody needs before the cut: they may run beyond it.

    Returns:
        The nodes whose values are to be kept.
    """
    number = {node: i for i, node in enumerate(nodes)}
    source, sink = 2 * len(nodes), 2 * len(nodes) + 1  # node i is the edge from 2i to 2i + 1
    unit = max(1.0, sum(_nbytes(node) for node in nodes) / _PARTS)
    edges: list[tuple[int, int, int]] = []
    for node, i in number.items():
        size = 0 if node in free else math.ceil(_nbytes(node) / unit)
        kept = _ENDLESS if _value(node) is None else size
        cost = 0 if node in movable else _cost_again(node, math.ceil(again * size))
        edges += [(2 * i, 2 * i + 1, kept), (source, 2 * i, cost)]
        if cost < _ENDLESS:
            inputs = {number[a] for a in node.all_input_nodes if a in number}
            edges += [(2 * j + 1, 2 * i, _ENDLESS) for j in sorted(inputs)]
    edges += [(2 * number[node] + 1, sink, _ENDLESS) for node in dict.fromkeys(wanted)]
    beyond = _beyond(edges, source, sink)
    return {node for node, i in number.items() if beyond[2 * i + 1] and not beyond[2 * i]}


def _beyond(edges: Sequence[tuple[int, int, int]], source: int, sink: int) -> list[bool]:
    """Return which points lie beyond the minimum cut that is nearest to the sink."""
    starts, ends, capacities = np.array(edges, dtype=np.int32).T
    capacity = csr_matrix((capacities, (starts, ends)), shape=(sink + 1, sink + 1))
    flow = maximum_flow(capacity, source, sink).flow
    left = (capacity - flow).tocoo()
    before: dict[int, list[int]] = {}
    for start, end, residual in zip(left.row.tolist(), left.col.tolist(), left.data, strict=True):
        if residual > 0:
            before.setdefault(end, []).append(start)
    beyond, waiting = [False] * (sink + 1), [sink]
    while waiting:
        point = waiting.pop()
        if not beyond[point]:
            beyond[point] = True
            waiting += before.get(point, [])
    return beyond


def _nbytes(node: fx.Node) -> int:
    value = _value(node)
    return 0 if value is None else value.numel() * value.element_size()


def _cost_again(node: fx.Node, cost: int) -> int:
    """Return the cost of doing it again: none for a view, endless for what is not cheap."""
    if node.op == "get_attr" or _is_view(node):
        return 0
    if _is_pointwise(node) or node.target in _MADE_FROM_NOTHING:
        return cost
    return _ENDLESS


def _is_view(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        (many,) = node.all_input_nodes
        return many.target in _MANY_VIEWS
    if node.target is _aten.reshape.default or node.target in _MANY_VIEWS:
        return True
    return isinstance(node.target, torch._ops.OpOverload) and node.target.is_view


def _is_pointwise(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags and torch.Tag.nondeterministic_seeded not in tags
