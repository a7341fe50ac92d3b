"""A small network that moves every weight of another network: the learned optimiser itself.

Letters as in `problems.py`, and: w weights (p, n) of p stacked networks, g their gradients, m and v
moving averages (p, 5, n) of g and g², one for each decay. For each weight a perceptron sees 22
numbers of its own and 9 of the step, and says how it moves:

    w ← w − scale · direction · exp(exponent · magnitude).

The thesis says how features are made in general and leaves details to its public code, which this
follows: features are divided by their root mean square over a tensor (a matrix or a bias), where
the text has "mean 0 and standard deviation 1 across all the parameters"; a normalised gradient is
m/√v; the step is seen as tanh(step/scale − 1); and a rule starts with weights N(0, 1).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from eigenscape.errors import require_count, require_seed

DECAYS = (0.5, 0.9, 0.99, 0.999, 0.9999)
STEP_SCALES = (3, 10, 30, 100, 300, 1000, 3000, 10_000, 300_000)
NUM_FEATURES = 2 + 4 * len(DECAYS) + len(STEP_SCALES)
UNDER_ROOT, UNDER_MEAN = 1e-6, 1e-5  # added to v, and to a feature's mean square


@dataclass(frozen=True, eq=False)
class UpdateRule:
    """The perceptron that moves weights; or p of them, one for each of p networks.

    Attributes:
        weights: Of its layers (out, in), or (p, out, in); the first has 31 inputs, the last 2
            outputs.
        biases: Of its layers (out,), or (p, out).
        scale: Size of an update whose direction is 1 and magnitude 0.
        exponent: What the magnitude is multiplied by.
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    scale: float = 0.001
    exponent: float = 0.001

    @classmethod
    def random(cls, widths: Sequence[int] = (32,), *, seed: int = 0) -> "UpdateRule":
        """Return a rule to start with, which knows nothing: weights N(0, 1), biases 0.1.

        Args:
            widths: Of its hidden layers.
            seed: Fixes it.

        Returns:
            The rule.

        Raises:
            InvalidArgumentError: If there is no hidden layer, or an empty one.
        """
        call = "UpdateRule.random(widths)"
        require_count(len(widths), call)
        require_seed(seed, "UpdateRule.random")
        draw = torch.Generator().manual_seed(seed)
        sizes = [NUM_FEATURES, *(require_count(width, call) for width in widths), 2]
        weights = tuple(torch.randn(n, m, generator=draw) for m, n in pairwise(sizes))
        return cls(weights, tuple(torch.full((len(matrix),), 0.1) for matrix in weights))

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """Weights, then biases."""
        return self.weights + self.biases

    def with_parameters(self, parameters: Sequence[Tensor]) -> "UpdateRule":
        """Return the same rule with other parameters, in the order of `parameters`."""
        half = len(self.weights)
        return UpdateRule(
            tuple(parameters[:half]), tuple(parameters[half:]), self.scale, self.exponent
        )

    def to(self, like: Tensor) -> "UpdateRule":
        """Return the rule with the dtype and on the device of a tensor."""
        return self.with_parameters([parameter.to(like) for parameter in self.parameters])

    def to_learn(self) -> "UpdateRule":
        """Return a copy whose parameters take gradients."""
        return self.with_parameters([p.detach().clone().requires_grad_() for p in self.parameters])

    def repeated(self, count: int) -> "UpdateRule":
        """Return the rule p times over, one for each of p networks."""
        return self.with_parameters(
            [parameter.expand(count, *parameter.shape) for parameter in self.parameters]
        )

    def __getitem__(self, index: int) -> "UpdateRule":
        """Return one of p rules."""
        return self.with_parameters([parameter[index] for parameter in self.parameters])

    def updates(self, features: Tensor, steps: Tensor) -> Tensor:
        """Return what is taken off the weights.

        Args:
            features: Those of `weight_features` (p, 22, n).
            steps: Those of `step_features` (9,).

        Returns:
            The updates (p, n).
        """
        p, num_features = features.shape[:2]
        first, timed = self.weights[0].split([num_features, len(steps)], -1)
        biases = (timed @ steps + self.biases[0], *self.biases[1:])
        h = features
        for index, matrix in enumerate((first, *self.weights[1:])):
            inward = h.relu() if index else h
            h = torch.baddbmm(biases[index][..., None], matrix.expand(p, -1, -1), inward)
        direction, magnitude = h.unbind(1)
        return self.scale * direction * torch.exp(self.exponent * magnitude)


@dataclass(frozen=True, eq=False)
class Parts:
    """Which weights of a network are of one tensor; T tensors.

    Attributes:
        shares: Products with it are means over a tensor's weights (n, T).
        members: 1 where a weight is of a tensor (T, n): products with it are what its weights get.
    """

    shares: Tensor
    members: Tensor

    @classmethod
    def of(cls, lengths: Sequence[int], like: Tensor) -> "Parts":
        """Return the parts of a network whose tensors have so many weights, one after the other.

        Args:
            lengths: T numbers.
            like: Whose dtype and device they have.

        Returns:
            The parts.
        """
        count = torch.tensor(lengths, dtype=torch.float64)
        members = torch.block_diag(*(torch.ones(1, n, dtype=torch.float64) for n in lengths))
        return cls((members.T / count).to(like), members.to(like))


def weight_features(
    weights: Tensor, gradients: Tensor, first: Tensor, second: Tensor, groups: Parts
) -> Tensor:
    """Return what a rule sees of every weight, in units of its tensor.

    Args:
        weights: w (p, n).
        gradients: g (p, n).
        first: m (p, 5, n), this gradient included.
        second: v (p, 5, n), likewise.
        groups: Which weights are of one tensor.

    Returns:
        w, g, m, v, m/√v and 1/√v (p, 22, n), each of mean square 1 over a tensor unless tiny.
        Slopes pass through w alone.

    Examples:
        >>> w = torch.tensor([[3.0, 4.0, 2.0]])
        >>> m = w[:, None].expand(1, 5, 3)
        >>> weight_features(w, -w, m, m, Parts.of([2, 1], w))[0, :2].round(decimals=2)
        tensor([[ 0.8500,  1.1300,  1.0000],
                [-0.8500, -1.1300, -1.0000]])
    """
    with torch.no_grad():
        inverse = torch.rsqrt(second + UNDER_ROOT)
        x = torch.cat([gradients[:, None], first, second, first * inverse, inverse], 1)
        others = _in_units(x, groups)
    return torch.cat([_in_units(weights[:, None], groups), others], 1)


def _in_units(x: Tensor, groups: Parts) -> Tensor:
    """Divide by root mean squares over tensors."""
    return x * (torch.rsqrt(UNDER_MEAN + x.square() @ groups.shares) @ groups.members)


def step_features(step: int, like: Tensor) -> Tensor:
    """Return tanh(step/scale − 1) for the nine scales, with steps counted from 1.

    Args:
        step: Steps taken before.
        like: Whose dtype and device they have.

    Returns:
        The numbers (9,).

    Examples:
        >>> step_features(5, torch.ones(1, dtype=torch.float64))[0].item() == math.tanh(1)
        True
    """
    values = [math.tanh((step + 1) / scale - 1) for scale in STEP_SCALES]
    return torch.tensor(values, dtype=torch.float64).to(like)
