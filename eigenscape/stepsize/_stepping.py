"""Stacked networks on their way, and steps of a rule; letters as in `update_rule.py`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.stepsize import _stacked_mlp as mlp
from eigenscape.stepsize.problems import Problems
from eigenscape.stepsize.update_rule import (
    DECAYS,
    Parts,
    UpdateRule,
    step_features,
    weight_features,
)


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
        parts: Which weights are of one tensor.
        taken: What moving averages take of a new value (5, 1).
    """

    sizes: Sequence[int]
    parts: Parts
    taken: Tensor

    @classmethod
    def of(cls, sizes: Sequence[int], like: Tensor) -> "Layout":
        taken = 1 - torch.tensor(DECAYS, dtype=torch.float64)[:, None]
        return cls(sizes, Parts.of(mlp.lengths_of(sizes), like), taken.to(like))


def take_step(
    rule: UpdateRule,
    state: tuple[Tensor, Tensor, Tensor],
    layout: Layout,
    batch: tuple[Tensor, Tensor],
    clock: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return w, m and v after a step at the time `clock` (9,).

    Slopes pass through w alone and not through its gradient, so that there are no second
    derivatives; m and v have none.
    """
    w, m, v = state
    with torch.no_grad():
        g = mlp.gradients(w, layout.sizes, *batch)
        m = torch.lerp(m, g[:, None], layout.taken)
        v = torch.lerp(v, g.square()[:, None], layout.taken)
    return w - rule.updates(weight_features(w, g, m, v, layout.parts), clock), m, v


def new_weights(problems: Problems, hidden: Sequence[int], draw: torch.Generator) -> Tensor:
    return mlp.initial_weights(problems.num_problems, sizes_of(problems, hidden), draw).to(
        problems.inputs
    )


def sizes_of(problems: Problems, hidden: Sequence[int]) -> tuple[int, ...]:
    return (problems.inputs.shape[1], *hidden, problems.classes.shape[1])
