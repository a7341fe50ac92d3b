"""Stacked networks on their way, and steps of a rule; letters as in `update_rule.py`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.stepsize import _stacked_mlp as mlp
from eigenscape.stepsize.problems import Problems
from eigenscape.stepsize.update_rule import DECAYS, UpdateRule, step_features, weight_features
from eigenscape.train import has_kernels

MOST_HIDDEN = 64  # units of a rule that the kernels hold


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


def decays(like: Tensor) -> Tensor:
    """Return what moving averages take of a new value (5, 1)."""
    return 1 - torch.tensor(DECAYS, dtype=torch.float64)[:, None].to(like)


def take_step(
    rule: UpdateRule,
    state: tuple[Tensor, Tensor, Tensor],
    sizes: Sequence[int],
    batch: tuple[Tensor, Tensor],
    clock: Tensor,
    taken: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return w, m and v after a step; `clock` (9,) is its time and `taken` those of `decays`."""
    g = mlp.gradients(state[0], sizes, *batch)
    if is_fused(rule, g):
        from eigenscape.stepsize import _fused

        return _fused.moved(rule, state, g, clock, taken)
    return moved(rule, state, g, clock, taken)


def is_fused(rule: UpdateRule, like: Tensor) -> bool:
    """Tell whether steps on such weights have kernels of their own (`_fused.py`)."""
    is_small = len(rule.biases) == 2 and len(rule.biases[0]) <= MOST_HIDDEN
    return is_small and has_kernels(like)


def moved(
    rule: UpdateRule,
    state: tuple[Tensor, Tensor, Tensor],
    g: Tensor,
    clock: Tensor,
    taken: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return w, m and v after a step with gradients g, one operation at a time."""
    w, m, v = state
    m = torch.lerp(m, g[:, None], taken)
    v = torch.lerp(v, g.square()[:, None], taken)
    return w - rule.updates(weight_features(w, g, m, v), clock), m, v


def new_weights(problems: Problems, hidden: Sequence[int], draw: torch.Generator) -> Tensor:
    return mlp.initial_weights(problems.num_problems, sizes_of(problems, hidden), draw).to(
        problems.inputs
    )


def sizes_of(problems: Problems, hidden: Sequence[int]) -> tuple[int, ...]:
    return (problems.inputs.shape[1], *hidden, problems.classes.shape[1])
