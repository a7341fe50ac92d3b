"""Stacked networks on their way, and steps of a rule; letters as in `update_rule.py`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.parallel import has_kernels
from eigenscape_papers.stepsize import _stacked_mlp as mlp
from eigenscape_papers.stepsize.problems import Problems
from eigenscape_papers.stepsize.update_rule import (
    DECAYS,
    Parts,
    UpdateRule,
    step_features,
    weight_features,
)

MOST_HIDDEN = 64  # units of a rule that the kernels hold
# Weights of a span, and how many spans there may be before they are longer; for the kernels.
SPAN, MOST_SPANS = 256, 1024


@dataclass(frozen=True, eq=False)
class State:
    """Where stacked networks are: w (p, n), m and v (p, 5, n), and how many steps were taken."""

    weights: Tensor
    first: Tensor
    second: Tensor
    step: int = 0

    @classmethod
    def start(cls, weights: Tensor) -> "State":
        zero = weights.new_zeros(len(weights), len(DECAYS), weights.shape[1])
        return cls(weights, zero, zero)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """w, m and v."""
        return self.weights, self.first, self.second


def clocks(start: int, num_steps: int, like: Tensor) -> Tensor:
    """Return what steps from `start` on see of the time (t, 9)."""
    host = torch.empty((), dtype=torch.float64)
    return torch.stack([step_features(start + k, host) for k in range(num_steps)]).to(like)


@dataclass(frozen=True, eq=False)
class Layout:
    """What steps of networks need to know of them.

    Attributes:
        sizes: Of their layers, inputs first.
        groups: Which weights are of one tensor.
        taken: What moving averages take of a new value (5, 1).
        spans: For each span of weights its start, its stop and its tensor (s, 3).
        tensors: For each tensor its first span, the one after its last, and its length (T, 3).
    """

    sizes: Sequence[int]
    groups: Parts
    taken: Tensor
    spans: Tensor
    tensors: Tensor

    @classmethod
    def of(cls, sizes: Sequence[int], like: Tensor) -> "Layout":
        taken = 1 - torch.tensor(DECAYS, dtype=torch.float64)[:, None]
        lengths = mlp.lengths_of(sizes)
        tables = (
            torch.tensor(rows, dtype=torch.int32, device=like.device) for rows in _spans(lengths)
        )
        return cls(sizes, Parts.of(lengths, like), taken.to(like), *tables)


def _spans(lengths: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
    """Cut weights into spans of one tensor each; return those tables of `Layout`."""
    size = SPAN * -(-sum(lengths) // (SPAN * MOST_SPANS))
    spans: list[list[int]] = []
    tensors: list[list[int]] = []
    start = 0
    for tensor, length in enumerate(lengths):
        first, stop = len(spans), start + length
        spans += [[at, min(at + size, stop), tensor] for at in range(start, stop, size)]
        tensors.append([first, len(spans), length])
        start = stop
    return spans, tensors


def is_fused(rule: UpdateRule, like: Tensor) -> bool:
    """Tell whether steps on such weights have kernels of their own (`_fused.py`)."""
    is_small = len(rule.biases) == 2 and rule.biases[0].shape[-1] <= MOST_HIDDEN
    return is_small and has_kernels(like)


def joined(rule: UpdateRule, like: Tensor) -> Tensor | None:
    """Return parameters of a rule, or of p, as one tensor where `is_fused`, and None elsewhere.

    One tensor for many steps: there their slopes add up by one operation.
    """
    if not is_fused(rule, like):
        return None
    from eigenscape_papers.stepsize import _fused

    return _fused.join(rule, len(like))


def take_step(
    rule: UpdateRule,
    state: tuple[Tensor, Tensor, Tensor],
    layout: Layout,
    batch: tuple[Tensor, Tensor],
    clock: Tensor,
    rows: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return w, m and v after a step at the time `clock` (9,); `rows` are those of `joined`.

    Slopes pass through w alone and not through its gradient, so that there are no second
    derivatives; m and v have none.
    """
    w, m, v = state
    with torch.no_grad():
        g = mlp.gradients(w, layout.sizes, *batch)
    if rows is not None:
        from eigenscape_papers.stepsize import _fused

        return _fused.moved(rule, rows, state, g, layout, clock)
    with torch.no_grad():
        m = torch.lerp(m, g[:, None], layout.taken)
        v = torch.lerp(v, g.square()[:, None], layout.taken)
    return w - rule.updates(weight_features(w, g, m, v, layout.groups), clock), m, v


def new_weights(problems: Problems, hidden: Sequence[int], draw: torch.Generator) -> Tensor:
    return mlp.initial_weights(problems.num_problems, sizes_of(problems, hidden), draw).to(
        problems.inputs
    )


def sizes_of(problems: Problems, hidden: Sequence[int]) -> tuple[int, ...]:
    return (problems.inputs.shape[1], *hidden, problems.classes.shape[1])
