"""Stacked networks on their way, and one step of a rule; letters as in `update_rule.py`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.stepsize import _stacked_mlp as mlp
from eigenscape.stepsize.problems import Problems
from eigenscape.stepsize.update_rule import DECAYS, UpdateRule, step_features, weight_features


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

    def detached(self) -> "State":
        return State(self.weights.detach(), self.first.detach(), self.second.detach(), self.step)


def take_step(
    rule: UpdateRule, state: State, sizes: Sequence[int], batch: tuple[Tensor, Tensor]
) -> State:
    g = mlp.gradients(state.weights, sizes, *batch)
    decay = g.new_tensor(DECAYS)[:, None]
    first = decay * state.first + (1 - decay) * g[:, None]
    second = decay * state.second + (1 - decay) * g.square()[:, None]
    seen = weight_features(state.weights, g, first, second)
    moved = state.weights - rule.updates(seen, step_features(state.step, g))
    return State(moved, first, second, state.step + 1)


def new_weights(problems: Problems, hidden: Sequence[int], draw: torch.Generator) -> Tensor:
    return mlp.initial_weights(problems.num_problems, sizes_of(problems, hidden), draw).to(
        problems.inputs
    )


def sizes_of(problems: Problems, hidden: Sequence[int]) -> tuple[int, ...]:
    return (problems.inputs.shape[1], *hidden, problems.classes.shape[1])
