"""Standard errors that hold for two probes as for a thousand.

Letters: M a symmetric matrix (n × n); v a probe; y = Mv; m probes, each giving one sample vᵀMv.

The spread of few samples is a bad error: two of them may agree by chance. So wherever products
show more than samples do, the variance comes from the products. It is then a sum over n entries,
which m probes know far better than m samples know their spread:

    Var(vᵀMv) = 2 Σ_i Var(v_i y_i)       entries ±1
              = 2 E‖y‖²                  Gaussian v
              = 2 E‖y − (vᵀy/n) v‖²      v uniform on the sphere of radius √n

(an upper bound where M is not symmetric). The standard error is uncertain itself, so
it is widened by Student's factor: ±2 of it cover 95 % where samples are near normal.
"""

import math
from dataclasses import dataclass

import torch
from scipy.special import gammaincinv, stdtrit
from torch import Tensor

from eigenscape.records import Status

# Before this many probes a standard error is itself too uncertain to end a run on.
MIN_PROBES = 10

# What lies above two standard errors of a normal variable.
_ABOVE = 0.5 * math.erfc(math.sqrt(2.0))


def widening(freedom: float | Tensor) -> Tensor:
    """Return Student's factor for a standard error from so many degrees of freedom.

    It is 7.0 for 1, 2.3 for 2, 1.4 for 4, 1.14 for 10, 1.01 for 100.
    """
    degrees = torch.as_tensor(freedom, dtype=torch.float64)
    return torch.as_tensor(stdtrit(degrees.cpu().numpy(), 1.0 - _ABOVE) / 2.0)


@dataclass(frozen=True)
class Goal:
    """When a run may end before its budget: a relative standard error, or None for never."""

    tolerance: float | None

    def reached(self, value: float, stderr: float, num_probes: int) -> bool:
        """Say whether the standard error is small enough and rests on enough probes."""
        if self.tolerance is None or num_probes < MIN_PROBES:
            return False
        return stderr <= self.tolerance * abs(value)

    def met(self, value: float, stderr: float, num_probes: int, num_products: int) -> Status | None:
        """Return the status of a run that did what was asked, or None for one that did not."""
        if self.tolerance is None:
            return Status(True, f"Spent the budget of {num_products} products.")
        if self.reached(value, stderr, num_probes):
            return Status(True, f"Reached the tolerance with {num_products} products.")
        return None


class Moments:
    """Running mean and variance of samples in the last dimension, in float64."""

    def __init__(self) -> None:
        self.count = 0
        self._mean = torch.zeros((), dtype=torch.float64)
        self._M2 = torch.zeros((), dtype=torch.float64)

    def add(self, samples: Tensor) -> None:
        """Take in samples (..., k).

        Portions are merged by the pairwise update of Chan, Golub and LeVeque (1983): the textbook
        E[s²] − E[s]² loses all digits where the spread is small beside the mean.
        """
        k = samples.shape[-1]
        mean = samples.mean(-1)
        M2 = (samples - mean[..., None]).square().sum(-1)
        if self.count == 0:
            self.count, self._mean, self._M2 = k, mean, M2
            return
        total = self.count + k
        delta = mean - self._mean
        self._M2 = self._M2 + M2 + delta.square() * (self.count * k / total)
        self._mean = self._mean + delta * (k / total)
        self.count = total

    @property
    def mean(self) -> Tensor:
        """The mean of the samples so far."""
        return self._mean

    @property
    def variance(self) -> Tensor:
        """The variance of a sample; infinite before the second one."""
        if self.count < 2:
            return torch.full_like(self._mean, math.inf)
        return self._M2 / (self.count - 1)

    @property
    def stderr(self) -> Tensor:
        """The standard error of the mean, from the spread of the samples; see `widening`."""
        if self.count < 2:
            return self.variance
        return widening(self.count - 1) * (self.variance / self.count).sqrt()


def root_of(squares: Moments) -> tuple[Tensor, Tensor]:
    """Return the root of the mean of squared norms ‖Av‖², and its standard error.

    Such a sample is spread like χ², at most as that of one degree of freedom: samples that are too
    small are likelier than those too large, and seem to be more alike. So what is known of the mean
    is taken for a χ² of as many degrees of freedom as give it its relative error, and the standard
    error is half of the way from the root to the largest that goes with the samples in 95 %.
    """
    mean = squares.mean
    if squares.count < 2:
        return mean.sqrt(), torch.full_like(mean, math.inf)
    relative = torch.where(mean > 0, squares.stderr / mean, 0.0).cpu()
    relative = relative.clamp(1e-6, math.sqrt(2.0 / squares.count))
    freedom = 2.0 / relative.square()
    least = torch.as_tensor(2.0 * gammaincinv((freedom / 2.0).numpy(), _ABOVE))
    above = (freedom / least).sqrt() - 1.0
    error = torch.where(relative > 1e-6, above / 2.0, 0.0).to(mean)
    return mean.sqrt(), torch.where(mean > 0, mean.sqrt() * error, 0.0)


class QuadraticSamples:
    """Mean of vᵀMv over probes, with a standard error from the products Mv."""

    def __init__(self, kind: str) -> None:
        """Start without probes.

        Args:
            kind: Of the probes, as in `draw_probes`.
        """
        self._kind = kind
        self._entries, self._sums, self._variances = Moments(), Moments(), Moments()

    def add(self, V: Tensor, Y: Tensor) -> None:
        """Take in probes V (n, k) and products MV."""
        V, Y = V.to(torch.float64), Y.to(torch.float64)
        entries = V * Y
        samples = entries.sum(0)
        self._sums.add(samples)
        if self._kind == "rademacher":
            self._entries.add(entries)
        elif self._kind == "gaussian":
            self._variances.add(2.0 * Y.square().sum(0))
        else:
            orthogonal = Y - V * (samples / V.square().sum(0))
            self._variances.add(2.0 * orthogonal.square().sum(0))

    @property
    def count(self) -> int:
        """Probes so far."""
        return self._sums.count

    @property
    def value(self) -> float:
        """The mean of the samples."""
        return float(self._sums.mean)

    @property
    def stderr(self) -> float:
        """Its standard error; infinite before the second probe."""
        m = self.count
        if m < 2:
            return math.inf
        if self._kind == "rademacher":
            variance = 2.0 * float(self._entries.variance.sum())
        else:
            variance = float(self._variances.mean)
        return float(widening(m)) * math.sqrt(variance / m)
