"""Random two-layer networks and their inputs, from a seed alone, and sums over those inputs.

Letters: W1 (n, d) and W2 (c, n) weights; u = W1 x; D = diag(u > 0); z = W2 relu(u); p = softmax(z);
A = diag(p) − ppᵀ = QᵀQ with Q = diag(√p)(I − 1pᵀ); R = Q W2 D, so that M_x = RᵀR.

Numbers are drawn on the host in float64, in pieces of fixed size: a seed gives the same network and
the same i-th input on every device and for any number of inputs.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eigenscape.errors import require_choice
from eigenscape.operator import LinearOperator
from eigenscape.records import storable
from eigenscape.space import ParamSpace

# Mean and second moment of one entry of the input.
MOMENTS = {"gaussian": (0.0, 1.0), "rectified": (1.0 / math.sqrt(2.0 * math.pi), 0.5)}
# Samples drawn together. Fixed: the draw must not depend on the memory at hand.
_PIECE = 256
_FIRST, _SECOND, _INPUTS = range(3)


@storable
@dataclass(frozen=True, eq=False)
class HiddenLaw:
    """Independent Gaussian pre-activations u_j ~ N(m_j, s_j²): what d → ∞ leaves of a first layer.

    Attributes:
        means: m (n,).
        deviations: s (n,), above 0.
    """

    means: Tensor
    deviations: Tensor

    def firing(self) -> Tensor:
        """Return the probabilities π_j = Φ(m_j / s_j) that the units are active (n,)."""
        return 0.5 * torch.erfc(-self.means / (math.sqrt(2.0) * self.deviations))

    def activations(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance of relu(u_j), each (n,)."""
        m, s, pi = self.means, self.deviations, self.firing()
        density = torch.exp(-0.5 * (m / s).square()) / math.sqrt(2.0 * math.pi)
        mean = m * pi + s * density
        return mean, (m.square() + s.square()) * pi + m * s * density - mean.square()


def moments(inputs: str, call: str) -> tuple[float, float]:
    """Return mean and variance of one entry of the input, or refuse an unknown kind."""
    mean, second = MOMENTS[require_choice(inputs, MOMENTS, f"{call}(inputs=...)")]
    return mean, second - mean * mean


def draw_network(
    width: int, num_classes: int, input_dimension: int | None, inputs: str, seed: int
) -> tuple[Tensor | HiddenLaw, Tensor]:
    """Draw W1 with entries N(0, 1/d), or its limit law, and W2 with entries N(0, 1/n).

    For d → ∞ the sum of a row of W1 stays N(0, 1) and its norm goes to 1: the means are E[x] times
    the one, the deviations those of x times the other.

    Args:
        width: n.
        num_classes: c.
        input_dimension: d, or None for d → ∞.
        inputs: Their kind.
        seed: Fixes both.

    Returns:
        W1 (n, d) or the law of the hidden units, and W2 (c, n).
    """
    second = _normal((num_classes, width), seed, _SECOND) / math.sqrt(width)
    if input_dimension is not None:
        first = _normal((width, input_dimension), seed, _FIRST)
        return first / math.sqrt(input_dimension), second
    mean, variance = moments(inputs, "draw_network")
    means = mean * _normal((width,), seed, _FIRST)
    return HiddenLaw(means, torch.full((width,), math.sqrt(variance), dtype=torch.float64)), second


def draw_inputs(dimension: int, num_samples: int, inputs: str, seed: int) -> Iterator[Tensor]:
    """Yield the inputs x in pieces (at most 256, dimension)."""
    for number, start in enumerate(range(0, num_samples, _PIECE)):
        rows = min(_PIECE, num_samples - start)
        x = _normal((rows, dimension), seed, _INPUTS, number)
        yield x.clamp_min(0.0) if inputs == "rectified" else x


def pre_activations(
    hidden: Tensor | HiddenLaw, num_samples: int, inputs: str, seed: int
) -> Iterator[Tensor]:
    """Yield u = W1 x, or draws of its limit law, in pieces (at most 256, n)."""
    if isinstance(hidden, HiddenLaw):
        for g in draw_inputs(len(hidden.means), num_samples, "gaussian", seed):
            yield hidden.means + hidden.deviations * g.to(hidden.means)
    else:
        for x in draw_inputs(hidden.shape[1], num_samples, inputs, seed):
            yield x.to(hidden) @ hidden.T


def softmax_roots(u: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return p (b, c), and R (b, c, n) with M_x = RᵀR, for pre-activations (b, n)."""
    p = (u.relu() @ second.T).softmax(1)
    centred = second - (p @ second)[:, None, :]
    return p, p.sqrt()[:, :, None] * centred * (u > 0)[:, None, :]


class FirstLayerHessian(LinearOperator):
    """H = mean of RᵀR ⊗ xxᵀ over rectified inputs, with respect to W1 row by row."""

    def __init__(self, first: Tensor, second: Tensor, num_samples: int, seed: int) -> None:
        """Draw the inputs and keep their factors."""
        drawn = draw_inputs(first.shape[1], num_samples, "rectified", seed)
        self._X = torch.cat(list(drawn)).to(first)
        self._R = softmax_roots(self._X @ first.T, second)[1]
        self._space = ParamSpace({"first": tuple(first.shape)})

    @property
    def space(self) -> ParamSpace:
        """The entries of W1."""
        return self._space

    @property
    def dtype(self) -> torch.dtype:
        """That of W1."""
        return self._X.dtype

    @property
    def device(self) -> torch.device:
        """That of W1."""
        return self._X.device

    @property
    def is_symmetric(self) -> bool:
        """It is a sum of squares."""
        return True

    def matmat(self, X: Tensor) -> Tensor:
        """Multiply columns one by one: RᵀR V x xᵀ for each sample."""
        return torch.stack([self._product(column) for column in X.T], dim=1)

    def _product(self, vector: Tensor) -> Tensor:
        V = vector.reshape(self._R.shape[2], -1)
        outer = self._R.mT @ (self._R @ (self._X @ V.T)[:, :, None])
        return (outer[:, :, 0].T @ self._X).flatten() / len(self._X)


def _normal(shape: tuple[int, ...], seed: int, *stream: int) -> Tensor:
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *stream])))
    return torch.from_numpy(generator.standard_normal(shape))
