"""A small network that moves every weight of another network: the learned optimiser itself.

Letters as in `problems.py`, and: w weights (p, n) of p stacked networks, g their gradients, m and v
moving averages (p, 5, n) of g and g², one for each decay. For each weight a perceptron sees 22
numbers of its own and 9 of the step, and says how it moves:

    w ← w − scale · direction · exp(exponent · magnitude).

The thesis gives neither widths nor scale nor exponent nor how a rule starts, and names the public
code of Metz et al. (2019), all of whose defaults it takes: those are the defaults here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from eigenscape.errors import require_count

DECAYS = (0.5, 0.9, 0.99, 0.999, 0.9999)
STEP_SCALES = (3, 10, 30, 100, 300, 1000, 3000, 10_000, 300_000)
NUM_FEATURES = 2 + 4 * len(DECAYS) + len(STEP_SCALES)
EPSILON = 1e-8  # under the root of v, and of a variance whose feature is at most 1


@dataclass(frozen=True, eq=False)
class UpdateRule:
    """The perceptron that moves weights.

    Attributes:
        weights: Of its layers (out, in); the first has 31 inputs, the last 2 outputs.
        biases: Of its layers.
        scale: Size of an update whose direction is 1 and magnitude 0.
        exponent: What the magnitude is multiplied by.
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    scale: float = 0.001
    exponent: float = 0.001

    @classmethod
    def random(cls, widths: Sequence[int] = (32,), *, seed: int = 0) -> "UpdateRule":
        """Return a rule to start with, which knows nothing: weights N(0, 1/inputs), no biases.

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
        draw = torch.Generator().manual_seed(seed)
        sizes = [NUM_FEATURES, *(require_count(width, call) for width in widths), 2]
        weights = tuple(
            torch.randn(n, m, generator=draw) / math.sqrt(m) for m, n in pairwise(sizes)
        )
        return cls(weights, tuple(torch.zeros(len(matrix)) for matrix in weights))

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
        return self.with_parameters([part.to(like) for part in self.parameters])

    def to_learn(self) -> "UpdateRule":
        """Return a copy whose parameters take gradients."""
        return self.with_parameters([p.detach().clone().requires_grad_() for p in self.parameters])

    def updates(self, features: Tensor, steps: Tensor) -> Tensor:
        """Return what is taken off the weights.

        Args:
            features: Those of `weight_features` (p, 22, n).
            steps: Those of `step_features` (9,).

        Returns:
            The updates (p, n).
        """
        p, own = features.shape[:2]
        first, timed = self.weights[0].split([own, len(steps)], 1)
        biases = (timed @ steps + self.biases[0], *self.biases[1:])
        h = features
        for place, matrix in enumerate((first, *self.weights[1:])):
            inward = h.relu() if place else h
            h = torch.baddbmm(biases[place][:, None], matrix.expand(p, -1, -1), inward)
        direction, magnitude = h.unbind(1)
        return self.scale * direction * torch.exp(self.exponent * magnitude)


def weight_features(weights: Tensor, gradients: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return what a rule sees of every weight, standardised over the weights of a network.

    Args:
        weights: w (p, n).
        gradients: g (p, n).
        first: m (p, 5, n), this gradient included.
        second: v (p, 5, n), likewise.

    Returns:
        g, w, m, v, g/√v and 1/√v (p, 22, n), each of mean 0 and standard deviation 1; 0 where a
        feature is the same for all weights.

    Examples:
        >>> w = torch.tensor([[1.0, 3.0]])
        >>> m = w[:, None].expand(1, 5, 2)
        >>> weight_features(w, -w, m, m)[0, :3].round(decimals=2)
        tensor([[ 1., -1.],
                [-1.,  1.],
                [-1.,  1.]])
    """
    inverse = torch.rsqrt(second + EPSILON)
    g = gradients[:, None]
    x = torch.cat([g, weights[:, None], first, second, g * inverse, inverse], 1)
    # A feature's unit is of no consequence, and without one its square does not underflow.
    largest = torch.linalg.vector_norm(x.detach(), math.inf, 2, keepdim=True)
    x = x / largest.clamp_min(torch.finfo(x.dtype).tiny)
    return torch.nn.functional.layer_norm(x, x.shape[2:], eps=EPSILON)


def step_features(step: int, like: Tensor) -> Tensor:
    """Return tanh(step/scale) for the nine scales.

    Args:
        step: Steps taken before.
        like: Whose dtype and device they have.

    Returns:
        The numbers (9,).

    Examples:
        >>> step_features(3, torch.ones(1, dtype=torch.float64))[0].item() == math.tanh(1)
        True
    """
    values = [math.tanh(step / scale) for scale in STEP_SCALES]
    return torch.tensor(values, dtype=torch.float64).to(like)
