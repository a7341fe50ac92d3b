"""The arithmetic of PAC-Bayes certificates (Wu (60) to (62), Dziugaite & Roy 2017).

Letters: Q the posterior, P = N(w₀, λI) the prior, KL = KL(Q‖P); n examples; e(Q) the error of a
network drawn from Q on new data, ê(Q) on the n examples. With probability 1 − δ over the examples,
for every Q and every λ = c exp(−j/b), j = 1, 2, …, at once,

    kl(ê(Q)‖e(Q)) ≤ B = (KL + 2 log j + log(π² n/6δ))/(n − 1),

the union over j with weights 6/(π² j²). ê(Q) is itself known from m draws only; with probability
1 − δ' over them it is at most the largest p with kl(mean‖p) ≤ log(2/δ')/m.

What no arithmetic can check is up to you: that w₀, b and c were chosen without the n examples, that
the draws were independent draws from the very Q whose KL is given, and that the error of a draw
counted every one of the n examples, or as many as you like of them that were drawn for it alone,
uniformly and with replacement. The second is a noisier number with the same mean, and draws stay
independent; the step from the mean to ê(Q) asks for no more.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.bounds.kl import Numbers, kl_inverse
from eigenscape.errors import (
    EigenscapeError,
    InvalidArgumentError,
    NonFiniteError,
    ShapeError,
    require_choice,
    require_count,
    require_positive,
)
from eigenscape.records import Record, Status

METHODS = ("langford-seeger", "mcallester")

# Room for the rounding of kl and of sums, some hundred units in the last place.
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Certificate(Record):
    """An upper bound on the error of a stochastic network, with all that it was computed from.

    Attributes:
        bound: e(Q) is at most this with probability at least 1 − δ − δ'. 1 says nothing.
        method: "langford-seeger" (inverse kl) or "mcallester" (square root).
        kl: KL(Q‖P) in nats, for the prior variance on the grid.
        error: Mean error of the draws on the n examples.
        error_bound: ê(Q) is at most this with probability 1 − δ'.
        num_samples: Networks that were drawn from Q, m.
        num_examples: Examples that the error is a mean over and the prior did not see, n.
        delta: δ, the chance that the n examples mislead.
        delta_samples: δ', the chance that the m draws mislead.
        index: j ≥ 1, the place of the prior variance on the grid.
        precision: b, how fine the grid is.
        ceiling: c, which every prior variance on the grid is below.
        prior_variance: λ = c exp(−j/b).
    """

    bound: float
    method: str
    kl: float
    error: float
    error_bound: float
    num_samples: int
    num_examples: int
    delta: float
    delta_samples: float
    index: int
    precision: float
    ceiling: float
    prior_variance: float

    def verify_arithmetic(self) -> None:
        """Compute λ, the bound on ê(Q) and the bound on e(Q) again, from the other fields alone.

        Raises:
            EigenscapeError: If one of them is not what the record says, or a field is out of range.
        """
        b, c = self.precision, self.ceiling
        error_bound = sampled_error_bound(
            self.error, num_samples=self.num_samples, delta=self.delta_samples
        )
        again = {
            "prior_variance": grid_variance(self.index, precision=b, ceiling=c),
            "error_bound": error_bound,
            "bound": pac_bayes_bound(
                error_bound,
                self.kl,
                index=self.index,
                num_examples=self.num_examples,
                delta=self.delta,
                method=self.method,
            ),
        }
        for name, value in again.items():
            # Another machine's logarithm may differ in the last place.
            if not math.isclose(getattr(self, name), value, rel_tol=1e-9):
                raise EigenscapeError(
                    f"The certificate's {name} is {getattr(self, name)!r}, but its other fields "
                    f"give {value!r}. It was changed after it was computed; compute it again."
                )


def grid_variance(index: int, *, precision: float = 100.0, ceiling: float = 0.1) -> float:
    """Return λ = c exp(−j/b).

    Args:
        index: j, at least 1.
        precision: b.
        ceiling: c.

    Returns:
        The prior variance.

    Raises:
        InvalidArgumentError: If an argument is out of range.

    Examples:
        >>> round(grid_variance(100) / 0.1, 6)  # 1/e
        0.367879
    """
    j = require_count(index, "grid_variance(index)")
    b = require_positive(precision, "grid_variance(precision=...)")
    c = require_positive(ceiling, "grid_variance(ceiling=...)")
    return require_positive(c * math.exp(-j / b), "grid_variance(index)'s variance")


def grid_indices(
    prior_variance: float, *, precision: float = 100.0, ceiling: float = 0.1
) -> tuple[int, ...]:
    """Return the one or two j whose λ = c exp(−j/b) stand next to a prior variance.

    Args:
        prior_variance: Any variance above 0 and below c.
        precision: b.
        ceiling: c.

    Returns:
        The neighbours, each at least 1: there is no λ on the grid at c itself.

    Raises:
        InvalidArgumentError: If the variance is not below c, or an argument is out of range.

    Examples:
        >>> grid_indices(0.05)  # 100 log 2 = 69.3
        (69, 70)
    """
    variance = require_positive(prior_variance, "grid_indices(prior_variance)")
    b = require_positive(precision, "grid_indices(precision=...)")
    c = require_positive(ceiling, "grid_indices(ceiling=...)")
    if variance >= c:
        raise InvalidArgumentError(
            f"`grid_indices(prior_variance)` must be below the ceiling {c}; got {variance}. Keep "
            "λ below c while it is optimised, or choose a larger c before you see the data."
        )
    j = b * (math.log(c) - math.log(variance))
    if j > 2**53:  # beyond it, floats and integers no longer agree
        raise InvalidArgumentError(
            f"`grid_indices(precision=...)` of {b} puts the variance at place {j:.3g} of the "
            "grid; choose a coarser one."
        )
    return tuple(sorted({max(math.floor(j), 1), max(math.ceil(j), 1)}))


def pac_bayes_bound(
    error: float,
    kl: float,
    *,
    index: int,
    num_examples: int,
    delta: float = 0.025,
    method: str = "langford-seeger",
) -> float:
    """Return the bound on e(Q) that holds with probability 1 − δ, for a prior on the grid.

    "langford-seeger" is the largest p with kl(ê‖p) ≤ B. "mcallester" is ê + √(B/2), which is never
    smaller. Neither exceeds 1, and both are rounded up.

    Args:
        error: ê(Q), or an upper bound on it.
        kl: KL(Q‖P) in nats, for λ = c exp(−j/b).
        index: j, at least 1.
        num_examples: n, at least 2: those the error is a mean over, and no part of what the prior
            was made from.
        delta: δ.
        method: "langford-seeger" or "mcallester".

    Returns:
        The bound.

    Raises:
        InvalidArgumentError: If an argument is out of range.
        NonFiniteError: If the divergence is not finite.

    References:
        Langford & Seeger, "Bounds for averaging classifiers", 2001; McAllester, "PAC-Bayesian model
        averaging", 1999. Maurer, "A note on the PAC Bayesian theorem", 2004, has log(2√n/δ)/n for
        all errors in [0, 1], which is less than the log(n/δ)/(n − 1) here.

    Examples:
        >>> pac_bayes_bound(0.03373, 4612.6, index=36, num_examples=60_000)  # Wu, T-600, BASE
        0.1540...
    """
    call = "pac_bayes_bound"
    require_choice(method, METHODS, f"{call}(method=...)")
    error = _fraction(error, f"{call}(error)", closed=True)
    j = require_count(index, f"{call}(index=...)")
    n = require_count(num_examples, f"{call}(num_examples=...)", at_least=2)
    delta = _fraction(delta, f"{call}(delta=...)")
    if not math.isfinite(kl):
        raise NonFiniteError(
            f"`{call}(kl)` is {kl}. Look for variances of zero, or a prior variance that vanished."
        )
    if kl < 0.0:
        raise InvalidArgumentError(
            f"`{call}(kl)` must not be negative; got {kl}. A divergence never is: sum its terms "
            "one by one in float64, as `gaussian_kl` does."
        )
    budget = (kl + 2.0 * math.log(j) + math.log(math.pi**2 * n / (6.0 * delta))) / (n - 1)
    if method == "langford-seeger":
        return _inverse(error, budget)
    return _up(error + math.sqrt(0.5 * budget))


def sampled_error_bound(error: float, *, num_samples: int, delta: float = 0.01) -> float:
    """Return what ê(Q) is at most with probability 1 − δ', given the mean error of m draws.

    It is the largest p with kl(mean‖p) ≤ log(2/δ')/m, rounded up.

    Args:
        error: Mean error of independent draws from Q, on all examples or on random ones.
        num_samples: m.
        delta: δ'.

    Returns:
        The bound.

    Raises:
        InvalidArgumentError: If an argument is out of range.

    Examples:
        >>> round(sampled_error_bound(0.0, num_samples=1, delta=0.5), 6)  # 1 − δ'/2
        0.75
    """
    call = "sampled_error_bound"
    m = require_count(num_samples, f"{call}(num_samples=...)")
    delta = _fraction(delta, f"{call}(delta=...)")
    return _inverse(_fraction(error, f"{call}(error)", closed=True), math.log(2.0 / delta) / m)


def pac_bayes_certificate(
    sample_errors: Tensor,
    kl: Callable[[float], Numbers],
    *,
    prior_variance: float,
    num_examples: int,
    delta: float = 0.025,
    delta_samples: float = 0.01,
    precision: float = 100.0,
    ceiling: float = 0.1,
    method: str = "langford-seeger",
    seed: int,
) -> Certificate:
    """Return the certificate of a stochastic network from the errors of its draws.

    The prior variance goes to the grid, to the neighbour with the smaller bound; the union over the
    grid allows the choice. Each network drawn costs you a pass over the data, this call nothing.

    Args:
        sample_errors: The error of each of m independent draws from Q, (m,): on the n examples, or
            on some drawn from them for this network alone, uniformly and with replacement.
        kl: KL(Q‖P) as a function of λ, e.g. `lambda v: gaussian_kl(means, variances, origin, v)`.
        prior_variance: λ before rounding, below `ceiling`.
        num_examples: n, at least 2: those the error is a mean over, and no part of what the prior
            was made from.
        delta: δ, the chance that the examples mislead.
        delta_samples: δ', the chance that the draws mislead.
        precision: b, chosen before the data were seen.
        ceiling: c, chosen before the data were seen.
        method: "langford-seeger" or "mcallester".
        seed: What fixed the draws.

    Returns:
        The certificate, which holds with probability at least 1 − δ − δ'.

    Raises:
        ShapeError: If the errors are not a vector with one entry or more.
        InvalidArgumentError: If an argument is out of range.
        NonFiniteError: If the divergence is not finite.

    References:
        Dziugaite & Roy, "Computing nonvacuous generalization bounds for deep (stochastic) neural
        networks with many more parameters than training data", 2017.

    Examples:
        >>> errors = torch.full((1000,), 0.03)
        >>> record = pac_bayes_certificate(
        ...     errors, lambda v: 50.0 / v, prior_variance=0.05, num_examples=60_000, seed=0
        ... )
        >>> record.index, round(record.error_bound, 4), round(record.bound, 3)
        (69, 0.051, 0.102)
    """
    call = "pac_bayes_certificate"
    if sample_errors.ndim != 1 or not len(sample_errors):
        raise ShapeError(
            f"`{call}(sample_errors)` needs the error of each draw, (m,); got "
            f"{tuple(sample_errors.shape)}."
        )
    errors = sample_errors.detach().double()
    if not bool(((errors >= 0.0) & (errors <= 1.0)).all()):
        raise InvalidArgumentError(f"`{call}(sample_errors)` must all be in [0, 1].")
    error, m = float(errors.mean().clamp(0.0, 1.0)), len(errors)
    _fraction(delta + delta_samples, f"{call}(delta=..., delta_samples=...)'s sum")
    error_bound = sampled_error_bound(error, num_samples=m, delta=delta_samples)
    choices = []
    for j in grid_indices(prior_variance, precision=precision, ceiling=ceiling):
        variance = grid_variance(j, precision=precision, ceiling=ceiling)
        divergence = float(torch.as_tensor(kl(variance), dtype=torch.float64).detach())
        bound = pac_bayes_bound(
            error_bound, divergence, index=j, num_examples=num_examples, delta=delta, method=method
        )
        # Vacuous bounds tie at 1; the divergence decides between them.
        choices.append((bound, divergence, j, variance))
    bound, divergence, j, variance = min(choices)
    return Certificate(
        status=Status(True, _sentence(bound, 1.0 - delta - delta_samples)),
        num_products=0,
        seed=seed,
        bound=bound,
        method=method,
        kl=divergence,
        error=error,
        error_bound=error_bound,
        num_samples=m,
        num_examples=num_examples,
        delta=delta,
        delta_samples=delta_samples,
        index=j,
        precision=float(precision),
        ceiling=float(ceiling),
        prior_variance=variance,
    )


def _sentence(bound: float, confidence: float) -> str:
    if bound >= 1.0:
        return (
            "The bound is vacuous: it needs a smaller divergence from the prior, a smaller error, "
            "more examples or more draws."
        )
    return f"With probability {confidence:.4g} the error on new data is at most {bound:.4g}."


def _inverse(error: float, budget: float) -> float:
    return _up(float(kl_inverse(error, budget * (1.0 + _ROUNDING))))


def _up(value: float) -> float:
    return min(math.nextafter(value, math.inf), 1.0)


def _fraction(value: float, call: str, *, closed: bool = False) -> float:
    """Return `value` if it is between 0 and 1, the ends included if `closed`; else refuse."""
    if not (0.0 <= value <= 1.0 if closed else 0.0 < value < 1.0):
        ends = "in [0, 1]" if closed else "above 0 and below 1"
        raise InvalidArgumentError(f"`{call}` must be {ends}; got {value}.")
    return float(value)
