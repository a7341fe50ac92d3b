"""A function traced once and cut into stages, so that what does not change is computed once.

A trace is a straight list of tensor operations. Each input of the function belongs to a stage; an
operation belongs to the last stage among its inputs. Stage 0 runs when its inputs are known, and
later stages start from the values that it left for them. With parameters and data in stage 0 and a
vector in stage 1, stage 1 is the function's linearisation.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from eigenscape.operators._trace_passes import reuse_memory, simplify


class Staged:
    """The stages of one function, each a module from named values to named values."""

    def __init__(self, function: Callable[..., Any], inputs: Sequence[Sequence[Tensor]]) -> None:
        """Trace the function and cut it.

        Args:
            function: Takes one list of tensors per stage, and returns tensors. It may do nothing
                that depends on the values of its inputs other than tensor operations.
            inputs: Examples of its arguments; shapes, dtypes and devices are fixed by them.

        Raises:
            Exception: Whatever PyTorch says where the function cannot be traced.
        """
        # Without writing in place: a value that is kept for the next run must stay as it is.
        pure = torch.func.functionalize(_with_gradients(function))
        trace = make_fx(pure, tracing_mode="fake", _allow_non_fake_inputs=True)
        # What is not traced is computed; autograd has no business here.
        with torch.no_grad(), _deprecations_ignored():
            traced = trace(*[list(stage) for stage in inputs])
        graph = traced.graph
        simplify(graph)
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        self._own: list[list[fx.Node]] = []
        for stage in inputs:
            self._own.append(placeholders[: len(stage)])
            placeholders = placeholders[len(stage) :]
        levels = _levels(graph, self._own)
        (returned,) = next(node for node in graph.nodes if node.op == "output").args
        self.outputs = [node.name for node in returned]
        self._needs: list[list[str]] = []
        self._gives: list[list[str]] = []
        self._modules: list[fx.GraphModule] = []
        self._functions: dict[object, Callable[..., Any]] = {}
        self._compiled: set[int] = set()
        for number in range(len(inputs)):
            self._cut(traced, levels, number, set(self.outputs))

    def _cut(
        self, traced: fx.GraphModule, levels: dict[fx.Node, int], stage: int, wanted: set[str]
    ) -> None:
        """Make the module of one stage."""
        mine = [n for n, level in levels.items() if level == stage and n.op != "placeholder"]
        inputs = {a: None for n in mine for a in n.all_input_nodes if levels[a] < stage}
        later = {a for n, level in levels.items() if level > stage for a in n.all_input_nodes}
        own = self._own[stage]
        outputs = [n for n in mine if n in later or n.name in wanted]
        graph, copies = fx.Graph(), {}
        for node in (*own, *inputs):
            copies[node] = graph.placeholder(node.name)
        for node in mine:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
        graph.output([copies[node] for node in outputs])
        graph.lint()
        self._needs.append([node.name for node in inputs])
        self._gives.append([node.name for node in outputs])
        self._modules.append(fx.GraphModule(traced, graph))

    def compile(self, *stages: int) -> None:
        """Let PyTorch write its own code for some stages; it does so when they first run."""
        self._compiled.update(stages)

    def needs(self, stage: int) -> set[str]:
        """Return the names of values that a stage takes from earlier ones."""
        return set(self._needs[stage])

    def run(
        self,
        stage: int,
        own: Sequence[Tensor],
        known: Mapping[str, Tensor],
        *,
        columns: frozenset[str] | None = None,
    ) -> dict[str, Tensor]:
        """Run a stage.

        Args:
            stage: Which one.
            own: Its inputs.
            known: Values of earlier stages, by name.
            columns: Where own inputs are stacks of columns (first dimension): the names of known
                values that are stacks too.

        Returns:
            The values that it leaves for later stages and for the caller.
        """
        needed = self._needs[stage]
        if not self._gives[stage]:  # nothing is left to do in it
            return {}
        stacked = None if columns is None else tuple(name in columns for name in needed)
        inputs = (*own, *(known[name] for name in needed))
        with _deprecations_ignored():
            found = self._function(stage, stacked, inputs)(*inputs)
        return {
            **{node.name: value for node, value in zip(self._own[stage], own, strict=True)},
            **dict(zip(self._gives[stage], found, strict=True)),
        }

    def _function(
        self, stage: int, stacked: tuple[bool, ...] | None, inputs: Sequence[Tensor]
    ) -> Callable[..., Any]:
        """Return a stage as a function of its own inputs and of what it needs."""
        num_columns = None if stacked is None else inputs[0].shape[0]
        key = (stage, stacked, num_columns if stage in self._compiled else None)
        if key not in self._functions:
            function: Callable[..., Any] = self._modules[stage]
            if stacked is None and stage not in self._compiled:
                function = _reusing_memory(self._modules[stage])
            elif stacked is not None:
                where = [0 if is_stack else None for is_stack in stacked]
                function = torch.vmap(function, in_dims=(*[0] * len(self._own[stage]), *where))
            if stage in self._compiled:
                # A trace of its own: the compiler counts versions of a function that it met before.
                traced = make_fx(function, tracing_mode="fake")(*inputs)
                function = torch.compile(traced, fullgraph=True, dynamic=False)
            self._functions[key] = function
        return self._functions[key]


@contextmanager
def _deprecations_ignored() -> Iterator[None]:
    """Do not hand on what PyTorch's tracer and compiler say about their own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _reusing_memory(module: fx.GraphModule) -> fx.GraphModule:
    """Copy a module, writing results over values that are needed no more."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    reuse_memory(graph)
    return fx.GraphModule(module, graph)


def _with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*stages: Any) -> Any:
        with torch.enable_grad():
            return function(*stages)

    return call


def _levels(graph: fx.Graph, own: Sequence[Sequence[fx.Node]]) -> dict[fx.Node, int]:
    """Return the stage of every node but the output."""
    levels = {node: stage for stage, nodes in enumerate(own) for node in nodes}
    for node in graph.nodes:
        if node.op not in ("placeholder", "output"):
            levels[node] = max((levels[a] for a in node.all_input_nodes), default=0)
    return levels
