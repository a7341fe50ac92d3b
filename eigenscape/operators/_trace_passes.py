"""Rewriting a trace so that it computes the same with less.

Forward mode gives constant inputs a tangent of zeros and multiplies it all the same; forward and
backward passes repeat each other; and copies that protect against writing in place are not needed
where nothing is written in place. Values change by rounding at most.
"""

from typing import Any

import torch
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
# Zero where the argument of that number is; of the last group, where any argument is.
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
        elif node.target is _aten.addmm.default and {node.args[1], node.args[2]} & zeros:
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
    seen: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in _COPIES and _same_kind(node, source := _source(node)):
            _replace(node, source)
            continue
        key = (node.target, _frozen(node.args), _frozen(node.kwargs))
        if key in seen:
            _replace(node, seen[key])
        else:
            seen[key] = node


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


def _join_products(graph: fx.Graph) -> None:
    """Turn A B + C into one operation where the product is used for nothing else."""
    for node in list(graph.nodes):
        if node.target is not _ADD or node.kwargs:
            continue
        for product, other in (node.args, reversed(node.args)):
            if _is_single_product(product) and _is_addend(other, product):
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
    return node.target in _FRESH or node.target in _IN_PLACE.values()
