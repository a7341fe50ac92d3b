"""A function traced once and cut into stages, so that what does not change is computed once.

A trace is a straight list of tensor operations. Each input of the function belongs to a stage; an
operation belongs to the last stage among its inputs. Stage 0 runs when its inputs are known, and
later stages start from the values that it left for them. With parameters and data in stage 0 and a
vector in stage 1, stage 1 is the function's linearisation.

What stages leave for later ones takes memory, so that is made small: views and operations on single
entries are computed again where they are used, and what a stage need not do is left to the next.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from eigenscape.tracing.passes import reuse_memory, simplify, smallest_cut

# What computing a value again counts for, as a share of keeping it. With these, products of a GPT
# and of a ResNet took as long as before. Compiled code has such values in registers.
_AGAIN, _AGAIN_COMPILED = 1 / 4, 1 / 16


class Staged:
    """The stages of one function, each a module from named values to named values."""

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Sequence[Tensor]],
        *,
        num_fixed: int = 1,
        num_early: int | None = None,
        compiled: bool = False,
    ) -> None:
        """Trace the function and cut it.

        Args:
            function: Takes one list of tensors per stage, and returns tensors. It may do nothing
                that depends on the values of its inputs other than tensor operations.
            inputs: Examples of its arguments; shapes, dtypes and devices are fixed by them.
            num_fixed: How many stages are run once, for all runs of the one or two others.
            num_early: How many outputs, the first ones, are due in the stage of their last input;
                all by default. The others are due in the last stage.
            compiled: Let PyTorch write its own code for the stages that are run often; it does so
                when they first run.

        Raises:
            Exception: Whatever PyTorch says where the function cannot be traced.
        """
        # No in-place operations: a value that is kept for the next run must not change.
        pure = torch.func.functionalize(_with_gradients(function))
        trace = make_fx(pure, tracing_mode="fake", _allow_non_fake_inputs=True)
        # Real tensors that the function captured are computed with, not traced: without autograd.
        with torch.no_grad(), _deprecations_ignored(), _autograd_unharmed():
            traced = trace(*[list(stage) for stage in inputs])
        graph = traced.graph
        simplify(graph)
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self._own: list[list[fx.Node]] = []
        for stage in inputs:
            self._own.append(placeholders[: len(stage)])
            placeholders = placeholders[len(stage) :]
        (returned,) = next(node for node in graph.nodes if node.op == "output").args
        self.outputs = [node.name for node in returned]
        self._needs: list[list[str]] = []
        self._gives: list[list[str]] = []
        self._modules: list[fx.GraphModule] = []
        self._functions: dict[object, Callable[..., Any]] = {}
        self._compiled = set(range(num_fixed, len(inputs))) if compiled else set()
        levels = _levels(graph, self._own)
        kept = self._choose(levels, num_fixed, returned[:num_early])
        bodies = [
            self._body(levels, number, kept if number >= num_fixed else None)
            for number in range(len(inputs))
        ]
        needed = {node for taken, _ in bodies for node in taken}
        for number, (taken, body) in enumerate(bodies):
            stage_nodes = [node for node in body if levels[node] == number]
            handed_on = [
                node for node in stage_nodes if node in needed or node.name in self.outputs
            ]
            self._add_module(traced, (*self._own[number], *taken), body, handed_on)
            self._needs.append([node.name for node in taken])

    def _choose(
        self, levels: dict[fx.Node, int], num_fixed: int, early: Sequence[fx.Node]
    ) -> set[fx.Node]:
        """Choose what is kept for stages that run often; move what can wait to the last stage."""
        before = [node for node, level in levels.items() if level < num_fixed]
        wanted = [
            a
            for node, level in levels.items()
            if level >= num_fixed
            for a in node.all_input_nodes
            if levels[a] < num_fixed
        ]
        again = _AGAIN_COMPILED if self._compiled else _AGAIN
        kept = smallest_cut(before, wanted, again=again, free=self._own[0])
        last = len(self._own) - 1
        if last == num_fixed:
            return kept
        pushed = [node for node, level in levels.items() if level == num_fixed]
        due = _ancestors(early)
        wanted = [
            node
            for node in pushed
            if node.name in self.outputs or any(levels.get(user) == last for user in node.users)
        ]
        movable = [node for node in pushed if node not in due and node.op != "placeholder"]
        stage_inputs = self._own[num_fixed]
        handed = smallest_cut(pushed, wanted, again=again, free=stage_inputs, movable=movable)
        due |= _ancestors(handed)
        for node in movable:
            if node not in due:
                levels[node] = last
        return kept | handed

    def _body(
        self, levels: dict[fx.Node, int], stage: int, kept: set[fx.Node] | None
    ) -> tuple[list[fx.Node], list[fx.Node]]:
        """Return what a stage takes from earlier ones, and what it computes, in order.

        With `kept`, it takes nothing else, and computes again what it wants beside.
        """
        taken: dict[fx.Node, None] = {}
        placed = dict.fromkeys(self._own[stage])

        def place(node: fx.Node) -> None:
            if node in placed or node in taken:
                return
            if levels[node] < stage and (kept is None or node in kept):
                taken[node] = None
                return
            for argument in node.all_input_nodes:
                place(argument)
            placed[node] = None

        for node, level in levels.items():
            if level == stage and node.op != "placeholder":
                place(node)
        return list(taken), list(placed)[len(self._own[stage]) :]

    def _add_module(
        self,
        traced: fx.GraphModule,
        inputs: Sequence[fx.Node],
        body: Sequence[fx.Node],
        handed_on: Sequence[fx.Node],
    ) -> None:
        """Make the module of one stage."""
        graph, copies = fx.Graph(), {}
        for node in inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta.update(node.meta)
        for node in body:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
        graph.output([copies[node] for node in handed_on])
        graph.lint()
        self._gives.append([node.name for node in handed_on])
        self._modules.append(fx.GraphModule(traced, graph))

    def needs(self, stage: int) -> set[str]:
        """Return the names of values that a stage takes from earlier ones."""
        return set(self._needs[stage])

    def run(
        self,
        stage: int,
        stage_inputs: Sequence[Tensor],
        known: Mapping[str, Tensor],
        *,
        columns: frozenset[str] | None = None,
        spent: dict[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Run a stage.

        Args:
            stage: Which one.
            stage_inputs: Its inputs.
            known: Values of earlier stages, by name.
            spent: More of them, that nobody needs afterwards: taken out, and freed once used.
            columns: Where own inputs are stacks of columns (first dimension): the names of known
                values that are stacks too.

        Returns:
            The values that it leaves for later stages and for the caller.
        """
        needed, spent = self._needs[stage], {} if spent is None else spent
        passed = dict(zip((node.name for node in self._own[stage]), stage_inputs, strict=True))
        if not self._gives[stage]:  # nothing is left to do in it
            return passed
        stacked = None if columns is None else tuple(name in columns for name in needed)
        inputs = [
            *stage_inputs,
            *(spent.pop(name) if name in spent else known[name] for name in needed),
        ]
        function = self._function(stage, stacked, inputs)
        with _deprecations_ignored():
            outputs = function(inputs)
        return passed | dict(zip(self._gives[stage], outputs, strict=True))

    def _function(
        self, stage: int, stacked: tuple[bool, ...] | None, inputs: Sequence[Tensor]
    ) -> Callable[..., Any]:
        """Return a stage as a function of the list of its inputs, own first, that it empties."""
        where = None
        if stacked is not None:
            where = [0] * len(self._own[stage]) + [0 if is_stack else None for is_stack in stacked]
        num_columns = None  # compiled code is for one number of them
        if where is not None and stage in self._compiled:
            num_columns = inputs[where.index(0)].shape[0]
        key = (stage, stacked, num_columns)
        if key not in self._functions:
            self._functions[key] = self._prepared(stage, where, inputs)
        return self._functions[key]

    def _prepared(
        self, stage: int, where: Sequence[int | None] | None, inputs: Sequence[Tensor]
    ) -> Callable[..., Any]:
        function: Callable[..., Any] = self._modules[stage]
        if where is None and stage not in self._compiled:
            return _reusing_memory(self._modules[stage])
        if where is not None:
            function = torch.vmap(function, in_dims=tuple(where))
        if stage in self._compiled:
            # A trace of its own: the compiler counts versions of a function that it met before.
            traced = make_fx(function, tracing_mode="fake")(*inputs)
            function = torch.compile(traced, fullgraph=True, dynamic=False)
        return lambda values: function(*values)


def _autograd_unharmed() -> AbstractContextManager[None]:
    """Put back which parts of PyTorch are switched on: where tracing fails, it leaves most off.

    Without it all gradients of the process would be gone after that.

    Returns:
        The context that does so.
    """
    included = torch._C._dispatch_tls_local_include_set()
    excluded = torch._C._dispatch_tls_local_exclude_set()
    guard: AbstractContextManager[None] = torch._C._ForceDispatchKeyGuard(included, excluded)
    return guard


@contextmanager
def _deprecations_ignored() -> Iterator[None]:
    """Do not hand on what PyTorch's tracer and compiler say about their own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _reusing_memory(module: fx.GraphModule) -> fx.GraphModule:
    """Make a module that empties a list of inputs, and writes over values that nobody needs."""
    graph, copies = fx.Graph(), {}
    values = graph.placeholder("values")
    for node in module.graph.nodes:
        if node.op == "placeholder":
            copies[node] = graph.call_method("pop", (values, 0))
    result = graph.graph_copy(module.graph, copies)
    graph.output(result)
    reuse_memory(graph)
    return fx.GraphModule(module, graph)


def _with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*stages: Any) -> Any:
        with torch.enable_grad():
            return function(*stages)

    return call


def _ancestors(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Return some nodes and all that they are computed from."""
    ancestors: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        if (node := waiting.pop()) not in ancestors:
            ancestors.add(node)
            waiting += node.all_input_nodes
    return ancestors


def _levels(graph: fx.Graph, stage_inputs: Sequence[Sequence[fx.Node]]) -> dict[fx.Node, int]:
    """Return the stage of every node but the output."""
    levels = {node: stage for stage, nodes in enumerate(stage_inputs) for node in nodes}
    for node in graph.nodes:
        if node.op not in ("placeholder", "output"):
            levels[node] = max((levels[a] for a in node.all_input_nodes), default=0)
    return levels
