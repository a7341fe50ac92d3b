"""Stages of one function: what they give is what the function gives, with what is fixed run once.

The function itself, called without a trace, is the truth throughout.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from eigenscape.tracing import Staged

aten = torch.ops.aten


class Operations(TorchDispatchMode):
    """Write down what PyTorch is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.names.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


def layer(base: Sequence[Tensor], vectors: Sequence[Tensor]) -> list[Tensor]:
    """z of one layer, its derivative along v, and a constant."""
    x, weight = base
    z, dz = torch.func.jvp(lambda w: torch.tanh(x @ w), (weight,), (vectors[0],))
    return [z, dz, x.sum(0)]


def drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape) for shape in shapes]


def results(staged: Staged, stages: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Run all stages on inputs of the same shapes, and return what the function returns."""
    known: dict[str, Tensor] = {}
    for number, inputs in enumerate(stages):
        known |= staged.run(number, inputs, known)
    return [known[name] for name in staged.outputs]


def check(function: Any, staged: Staged, stages: Sequence[Sequence[Tensor]]) -> None:
    """Compare with the function, and see to it that inputs stay as they are."""
    before = [[t.clone() for t in inputs] for inputs in stages]
    for value, truth in zip(results(staged, stages), function(*before), strict=True):
        torch.testing.assert_close(value, truth, rtol=1e-12, atol=1e-12)
    for inputs, copies in zip(stages, before, strict=True):
        assert all(torch.equal(t, copy) for t, copy in zip(inputs, copies, strict=True))


SHAPES = [(7, 3), (3, 5)], [(3, 5)]


def test_stages_give_what_the_function_gives_for_other_values() -> None:
    staged = Staged(layer, [drawn(*shapes) for shapes in SHAPES])
    for _ in range(2):
        check(layer, staged, [drawn(*shapes) for shapes in SHAPES])


def test_the_comparison_notices_another_function() -> None:
    staged = Staged(layer, [drawn(*shapes) for shapes in SHAPES])

    def other(*stages: Sequence[Tensor]) -> list[Tensor]:
        return [1.001 * t for t in layer(*stages)]

    with pytest.raises(AssertionError, match="not close"):
        check(other, staged, [drawn(*shapes) for shapes in SHAPES])


def test_what_does_not_depend_on_a_late_input_is_done_in_the_first_stage() -> None:
    base, vectors = (drawn(*shapes) for shapes in SHAPES)
    staged = Staged(layer, [base, vectors])
    with Operations() as first:
        known = staged.run(0, base, {})
    with Operations() as second:
        late = staged.run(1, vectors, known)
    assert sorted(first.names) == ["mm", "sum", "tanh"]
    assert second.names.count("mm") == 1  # X V, and not X W
    assert "tanh" not in second.names
    assert staged.outputs[1] in late
    assert {staged.outputs[0], staged.outputs[2]} <= known.keys()


def test_a_stage_keeps_products_and_computes_single_entries_again() -> None:
    def function(base: Sequence[Tensor], vectors: Sequence[Tensor]) -> list[Tensor]:
        hidden = base[0] @ base[1]
        return [hidden.sin() * vectors[0] + hidden.cos() * vectors[0].exp()]

    base, vectors = drawn((7, 3), (3, 5)), drawn((7, 5))
    staged = Staged(function, [base, vectors])
    (name,) = staged.needs(1)
    known = staged.run(0, base, {})
    torch.testing.assert_close(known[name], base[0] @ base[1])
    check(function, staged, [base, vectors])


def test_values_that_were_kept_serve_again_and_are_not_written_over() -> None:
    base, vectors = (drawn(*shapes) for shapes in SHAPES)
    staged = Staged(layer, [base, vectors])
    known = staged.run(0, base, {})
    before = {name: value.clone() for name, value in known.items()}
    for vector in (*vectors, *drawn((3, 5))):
        late = staged.run(1, [vector], known)[staged.outputs[1]]
        torch.testing.assert_close(late, layer(base, [vector])[1], rtol=1e-12, atol=1e-12)
    assert all(torch.equal(known[name], before[name]) for name in before)


def test_columns_run_all_at_once() -> None:
    base, _ = (drawn(*shapes) for shapes in SHAPES)
    staged = Staged(layer, [base, drawn((3, 5))])
    known = staged.run(0, base, {})
    (columns,) = drawn((4, 3, 5))
    together = staged.run(1, [columns], known, columns=frozenset())[staged.outputs[1]]
    each = torch.stack([layer(base, [column])[1] for column in columns])
    torch.testing.assert_close(together, each, rtol=1e-12, atol=1e-12)


def quotient(
    base: Sequence[Tensor], vectors: Sequence[Tensor], others: Sequence[Tensor]
) -> list[Tensor]:
    """Two outputs of the second stage, and one of the third."""
    moved = base[0] @ vectors[0]
    return [moved, moved.exp() @ base[1], (moved.sin() @ base[1]) * others[0]]


THREE = [(7, 3), (5, 4)], [(3, 5)], [(7, 4)]


def test_outputs_that_are_not_due_early_wait_for_the_last_stage() -> None:
    stages = [drawn(*shapes) for shapes in THREE]
    staged = Staged(quotient, stages, num_early=1)
    known = staged.run(0, stages[0], {})
    with Operations() as second:
        pushed = staged.run(1, stages[1], known)
    assert second.names == ["mm"]
    assert staged.outputs[0] in pushed
    assert staged.outputs[1] not in pushed
    with Operations() as third:
        late = staged.run(2, stages[2], known | pushed)
    assert third.names.count("mm") == 2
    assert set(staged.outputs[1:]) <= late.keys()
    check(quotient, staged, [drawn(*shapes) for shapes in THREE])


def test_all_outputs_are_due_early_unless_said_otherwise() -> None:
    stages = [drawn(*shapes) for shapes in THREE]
    staged = Staged(quotient, stages)
    pushed = staged.run(1, stages[1], staged.run(0, stages[0], {}))
    assert set(staged.outputs[:2]) <= pushed.keys()
    check(quotient, staged, [drawn(*shapes) for shapes in THREE])


def test_stacks_of_columns_pass_from_stage_to_stage() -> None:
    base, vectors, others = (drawn(*shapes) for shapes in THREE)
    staged = Staged(quotient, [base, vectors, others], num_early=1)
    known = staged.run(0, base, {})
    columns, more = drawn((6, 3, 5), (6, 7, 4))
    pushed = staged.run(1, [columns], known, columns=frozenset())
    late = staged.run(2, [more], known | pushed, columns=frozenset(pushed))
    for i, name in enumerate(staged.outputs):
        each = [quotient(base, [v], [u])[i] for v, u in zip(columns, more, strict=True)]
        torch.testing.assert_close((pushed | late)[name], torch.stack(each))


def test_what_is_spent_is_taken_out_and_freed() -> None:
    base, vectors, others = (drawn(*shapes) for shapes in THREE)
    staged = Staged(quotient, [base, vectors, others], num_early=1)
    known = staged.run(0, base, {})
    pushed = staged.run(1, vectors, known)
    gone = weakref.ref(pushed[staged.outputs[0]])
    truth = quotient(base, vectors, others)[1:]
    late = staged.run(2, others, known, spent=pushed)
    assert gone() is None
    assert staged.outputs[0] not in pushed
    for name, value in zip(staged.outputs[1:], truth, strict=True):
        torch.testing.assert_close(late[name], value)


def test_what_is_spent_is_freed_before_the_end() -> None:
    class Watching(Operations):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            alive.append(gone() is not None)
            return super().__torch_dispatch__(func, types, args, kwargs)

    base, vectors, others = (drawn(*shapes) for shapes in THREE)
    staged = Staged(quotient, [base, vectors, others], num_early=1)
    known = staged.run(0, base, {})
    pushed = staged.run(1, vectors, known)
    gone, alive = weakref.ref(pushed[staged.outputs[0]]), list[bool]()
    with Watching():
        staged.run(2, others, known, spent=pushed)
    assert alive[0]
    assert not alive[-1]


def test_results_are_written_over_what_nobody_needs() -> None:
    def function(base: Sequence[Tensor], vectors: Sequence[Tensor]) -> list[Tensor]:
        return [(base[0] @ vectors[0] + base[1]) * base[1]]

    stages = [drawn((7, 3), (7, 4)), drawn((3, 4))]
    staged = Staged(function, stages)
    with Operations() as second:
        staged.run(1, stages[1], staged.run(0, stages[0], {}))
    assert second.names == ["addmm", "mul_"]


def test_the_smallest_values_are_handed_to_the_last_stage() -> None:
    def function(
        base: Sequence[Tensor], vectors: Sequence[Tensor], others: Sequence[Tensor]
    ) -> list[Tensor]:
        moved = base[0] @ vectors[0]
        return [moved.sum(0), moved.sum(1).exp() * others[0]]

    stages = [drawn((7, 3)), drawn((3, 5)), drawn((7,))]
    staged = Staged(function, stages, num_early=1)
    pushed = staged.run(1, stages[1], staged.run(0, stages[0], {}))
    assert [pushed[name].shape for name in staged.needs(2)] == [(7,)]
    check(function, staged, [drawn((7, 3)), drawn((3, 5)), drawn((7,))])


def test_several_stages_may_be_fixed() -> None:
    stages = [drawn(*shapes) for shapes in THREE]
    staged = Staged(quotient, stages, num_fixed=2)
    known = staged.run(0, stages[0], {})
    known |= staged.run(1, stages[1], known)
    with Operations() as last:
        late = staged.run(2, stages[2], known)
    assert last.names == ["mul"]
    torch.testing.assert_close(late[staged.outputs[2]], quotient(*stages)[2])


def test_a_stage_with_nothing_to_do_hands_on_its_inputs() -> None:
    def function(base: Sequence[Tensor], vectors: Sequence[Tensor]) -> list[Tensor]:
        return [base[0].sin(), vectors[0]]

    stages = [drawn((3, 5)), drawn((4,))]
    staged = Staged(function, stages)
    known = staged.run(0, stages[0], {})
    with Operations() as second:
        assert staged.run(1, stages[1], known)[staged.outputs[1]] is stages[1][0]
    assert second.names == []


def test_writing_in_place_inside_the_function_is_no_obstacle() -> None:
    def function(base: Sequence[Tensor], vectors: Sequence[Tensor]) -> list[Tensor]:
        value = base[0] * 2
        value[:, 1] += vectors[0]
        return [value.relu_()]

    staged = Staged(function, [drawn((3, 5)), drawn((3,))])
    check(function, staged, [drawn((3, 5)), drawn((3,))])


@pytest.mark.parametrize("leave_off", [False, True])
def test_gradients_survive_a_function_that_cannot_be_traced(leave_off: bool) -> None:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)
    guards: list[Any] = []

    def function(base: Sequence[Tensor], vectors: Sequence[Tensor]) -> list[Tensor]:
        if leave_off:  # some of PyTorch's tracers do so where they fail
            guards.append(torch._C._ExcludeDispatchKeyGuard(keys))
        return [vectors[0] if base[0].sum() > 0 else -vectors[0]]

    with pytest.raises(Exception, match=r"data-dependent"):
        Staged(function, [drawn((3,)), drawn((3,))])
    x = torch.randn(3, requires_grad=True)
    (slope,) = torch.autograd.grad(x.sin().sum(), [x], create_graph=True)
    (again,) = torch.autograd.grad(slope.sum(), [x])
    torch.testing.assert_close(slope, x.cos())
    torch.testing.assert_close(again, -x.sin())
