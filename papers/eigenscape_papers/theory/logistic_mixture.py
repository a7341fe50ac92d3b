"""The Fisher matrix of logistic regression on a mixture of C Gaussians (Papyan §8, App. B).

Letters: D inputs, C ≤ D classes, x = t e_c + z with z ~ N(0, I) and every class as likely, s = t²;
p the predicted probabilities, U = diag(p) − ppᵀ; α = 1 − E[p_c] in the true class c; G = E[U ⊗ xxᵀ]
the Fisher matrix of the weights (C, D), without biases. Parameters are flattened row by row, so the
blocks are (class) ⊗ (input); Papyan has them the other way round, with the same spectrum.

Lemma 8.1 and Theorem 8.1 assume *symmetric* probabilities: 1 − α for the true class, α/(C−1) for
each other one, in every sample. They hold exactly as printed, levels and multiplicities (the proof
has slips). No trained model has such probabilities: those of the best one, with weights t e_c,
vary from sample to sample. Its spectrum is exact here too (`optimal_fisher_levels`). As it is
calibrated, E[p_j f(x)] = E[f(x); class j], and so its bulk is α/(C−1), where the theorem has
(2 − αC/(C−1)) times that, up to twice as much. The C outliers split into C − 1 and one, the
mini-bulk into three levels: the irreducible parts of ℝ^C ⊗ 1^⊥ under permutations of the classes.
For all C and t tried, only C − 1 outliers and the (C−1)(C−2)/2 of the skew part are above the bulk.
The last outlier too is below it, the scale of all weights: samples in doubt have small margins.

E[x_a x_b p_k; class j] is a single integral. As 1/Σe^z = ∫ exp(−τ Σe^z) dτ, the coordinates part:
it is ∫ Π_i E[x_i^r w^m e^−w] du with w = exp(u + t x_i), m = [i = k] and r = [i = a] + [i = b].

Reference: Papyan, "Traces of Class/Cross-Class Structure Pervade Deep Learning Spectra".
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from eigenscape.errors import (
    InvalidArgumentError,
    WrongTypeError,
    require_choice,
    require_count,
    require_positive,
)
from eigenscape.records import Columns, Record, Status

RATIOS = ("outliers/bulk", "outliers/mini-bulk", "mini-bulk/bulk")
# In a strip of half-width π/2 the integrands are analytic: the trapezoidal rule of step h errs by
# exp(−π²/h), below rounding. Gaussian tails are cut at 9 deviations, and left of all logits the
# integral stops where what is left out is e⁻⁴⁰.
_STEP, _TAIL, _LEFT_OUT = 0.25, 9.0, 40.0
# At the first, ratios differ from 1 by 1e-6; at the second, α is 1e-11 for ten classes.
_LEAST_SIGNAL, _MOST_SIGNAL = 1e-3, 10.0


@dataclass(frozen=True, eq=False)
class FisherLevels(Record):
    """The distinct eigenvalues of an expected Fisher matrix.

    Attributes:
        names: Which part of the spectrum a level belongs to: "outliers", "mini-bulk", "bulk",
            "below" the bulk, or "zero".
        values: The levels (L,), descending.
        multiplicities: How often each occurs; they add up to DC.
        num_inputs: D.
        num_classes: C.
        signal: t.
        error: α, one minus the mean probability of the true class.
    """

    names: tuple[str, ...]
    values: Tensor
    multiplicities: tuple[int, ...]
    num_inputs: int
    num_classes: int
    signal: float
    error: float

    def eigenvalues(self) -> Tensor:
        """Return all DC eigenvalues, descending."""
        return self.values.repeat_interleave(torch.tensor(self.multiplicities))

    def ratio(self, kind: str = "outliers/bulk") -> float:
        """Return the ratio of two parts of the spectrum.

        Args:
            kind: "outliers/bulk", "outliers/mini-bulk" or "mini-bulk/bulk".

        Returns:
            The ratio; NaN where a part is empty: the bulk for D = C, the mini-bulk for C = 2.

        Raises:
            UnknownNameError: If it is none of these.
        """
        require_choice(kind, RATIOS, "levels.ratio(kind=...)")
        upper, lower = (self._level(label) for label in kind.split("/"))
        return upper / lower

    def _level(self, label: str) -> float:
        rows = zip(self.names, self.values.tolist(), self.multiplicities, strict=True)
        return next((v for name, v, count in rows if name == label and count), math.nan)

    def columns(self) -> Columns:
        """Return one row for each level."""
        return {
            "part": self.names,
            "eigenvalue": self.values.tolist(),
            "multiplicity": self.multiplicities,
        }


def fisher_levels(
    num_inputs: int, num_classes: int, signal: float, *, error: float | None = None
) -> FisherLevels:
    """Return the spectrum of the expected Fisher matrix, symmetric probabilities: Theorem 8.1.

    Args:
        num_inputs: D.
        num_classes: C, from 2 to D.
        signal: t, above 0; at most 10 where α is not given.
        error: α, above 0 and at most 1 − 1/C; by default `mixture_uncertainty`, that of the best
            model.

    Returns:
        Four levels: C outliers, C(C−2) in the mini-bulk, (D−C)(C−1) in the bulk, D zeros.

    Raises:
        WrongTypeError: If an argument is not a number.
        InvalidArgumentError: If one is out of range.

    Examples:
        >>> levels = fisher_levels(5, 3, 2.0, error=0.5)
        >>> levels.multiplicities, [round(v, 6) for v in levels.values.tolist()]
        ((3, 3, 4, 5), [0.8125, 0.645833, 0.3125, 0.0])
    """
    D, C, t = _sizes(num_inputs, num_classes, signal, "fisher_levels")
    alpha = _error(error, C, t, "fisher_levels")
    unit, s = alpha / (C - 1), t * t
    bulk = unit * (2.0 - alpha * C / (C - 1))
    return FisherLevels(
        status=Status(True, "In closed form, for symmetric probabilities."),
        num_products=0,
        seed=0,
        names=("outliers", "mini-bulk", "bulk", "zero"),
        values=torch.tensor(
            [bulk + unit * s * (1.0 - alpha), bulk + unit * s / C, bulk, 0.0], dtype=torch.float64
        ),
        multiplicities=(C, C * (C - 2), (D - C) * (C - 1), D),
        num_inputs=D,
        num_classes=C,
        signal=t,
        error=alpha,
    )


def expected_fisher(
    num_inputs: int, num_classes: int, signal: float, *, error: float | None = None
) -> Tensor:
    """Return the expected Fisher matrix itself, symmetric probabilities: Lemma 8.1.

    It is (s/C) Σ_c U_c ⊗ e_c e_cᵀ + Ū ⊗ I, with Ū the mean of the U_c.

    Args:
        num_inputs: D.
        num_classes: C, from 2 to D.
        signal: As for `fisher_levels`.
        error: As for `fisher_levels`.

    Returns:
        The matrix (CD, CD), (class) ⊗ (input), float64.

    Raises:
        WrongTypeError: If an argument is not a number.
        InvalidArgumentError: If one is out of range.

    Examples:
        >>> G = expected_fisher(4, 3, 1.5, error=0.3)
        >>> levels = fisher_levels(4, 3, 1.5, error=0.3)
        >>> torch.allclose(torch.linalg.eigvalsh(G).flip(0), levels.eigenvalues(), atol=1e-12)
        True
    """
    D, C, t = _sizes(num_inputs, num_classes, signal, "expected_fisher")
    alpha = _error(error, C, t, "expected_fisher")
    p = torch.full((C, C), alpha / (C - 1), dtype=torch.float64)
    p.fill_diagonal_(1.0 - alpha)
    U = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    G = torch.kron(U.mean(0), torch.eye(D, dtype=torch.float64))
    for c in range(C):
        G[c % D :: D, c % D :: D] += t * t / C * U[c]
    return G


def optimal_fisher_levels(num_inputs: int, num_classes: int, signal: float) -> FisherLevels:
    """Return the spectrum of the expected Fisher matrix at the best weights, t e_c for class c.

    It is what logistic regression on many samples tends to, where Theorem 8.1 replaces every
    prediction by one of symmetric probabilities. Good to rounding. Cost: fifteen integrals.

    Args:
        num_inputs: D.
        num_classes: C, from 2 to D.
        signal: t, above 0 and at most 10.

    Returns:
        Seven levels for C > 3: C − 1 outliers; (C−1)(C−2)/2 in the mini-bulk; (D−C)(C−1) in the
        bulk; C(C−3)/2, C − 1 and 1 below it; D zeros.

    Raises:
        WrongTypeError: If an argument is not a number.
        InvalidArgumentError: If one is out of range.

    Examples:
        >>> levels = optimal_fisher_levels(12, 4, 2.0)
        >>> levels.multiplicities
        (3, 3, 24, 3, 2, 1, 12)
        >>> abs(levels.values[2].item() - levels.error / 3) < 1e-12
        True
    """
    D, C, t = _sizes(num_inputs, num_classes, signal, "optimal_fisher_levels")
    _require_integrable(t, "optimal_fisher_levels")
    alpha = mixture_uncertainty(C, t)
    levels = _optimal_parts(C, t)
    levels += [("bulk", alpha / (C - 1), (D - C) * (C - 1)), ("zero", 0.0, D)]
    levels.sort(key=lambda level: -level[1])
    return FisherLevels(
        status=Status(True, "By quadrature, at the best weights."),
        num_products=0,
        seed=0,
        names=tuple(name for name, _, _ in levels),
        values=torch.tensor([value for _, value, _ in levels], dtype=torch.float64),
        multiplicities=tuple(count for _, _, count in levels),
        num_inputs=D,
        num_classes=C,
        signal=t,
        error=alpha,
    )


def mixture_uncertainty(num_classes: int, signal: float) -> float:
    """Return α = 1 − E[p_c] of the best model: what it leaves to the wrong classes on average.

    Args:
        num_classes: C, 2 or more.
        signal: t, above 0 and at most 10.

    Returns:
        α, good to rounding.

    Raises:
        WrongTypeError: If an argument is not a number.
        InvalidArgumentError: If one is out of range.

    Examples:
        >>> round(mixture_uncertainty(2, 1e-9), 6)
        0.5
    """
    _, C, t = _sizes(None, num_classes, signal, "mixture_uncertainty")
    _require_integrable(t, "mixture_uncertainty")
    # The wrong classes' share is integrated itself: 1 − E[p_c] would lose its digits for large t.
    return (C - 1) * _moments(C, t)(None, None, 0, 1)


def mixture_error(num_classes: int, signal: float) -> float:
    """Return the misclassification rate of the best classifier, 1 − ∫ φ(z − t) Φ(z)^(C−1) dz.

    It is below `mixture_uncertainty`, since a calibrated model gives the class it names more than
    what the others get.

    Args:
        num_classes: C, 2 or more.
        signal: t, above 0 and at most 10.

    Returns:
        The rate, good to rounding.

    Raises:
        WrongTypeError: If an argument is not a number.
        InvalidArgumentError: If one is out of range.

    Examples:
        Two classes err where a Gaussian exceeds t/√2.

        >>> abs(mixture_error(2, 2.0) - 0.5 * math.erfc(1.0)) < 1e-14
        True
    """
    _, C, t = _sizes(None, num_classes, signal, "mixture_error")
    _require_integrable(t, "mixture_error")
    g = torch.arange(-2 * _TAIL, 2 * _TAIL, 0.0625, dtype=torch.float64)
    weights = torch.exp(-0.5 * g.square()) / math.sqrt(2.0 * math.pi) * 0.0625
    below = torch.special.log_ndtr(g + t)
    return float(weights @ -torch.expm1((C - 1) * below))


def error_from_ratio(
    ratio: float, num_classes: int, *, kind: str = "outliers/bulk", exact: bool = False
) -> float:
    """Predict the misclassification rate from a ratio of two parts of the spectrum (Papyan §8).

    All three ratios grow with t from 1 on, so each determines t, and t the rate. The theorem's
    ratios are taken at α = `mixture_uncertainty`.

    Args:
        ratio: What was measured, above 1.
        num_classes: C; 3 or more for ratios with a mini-bulk.
        kind: As for `FisherLevels.ratio`.
        exact: Invert the ratio of `optimal_fisher_levels` and not that of Theorem 8.1.

    Returns:
        The rate.

    Raises:
        WrongTypeError: If an argument is not a number.
        UnknownNameError: If there is no such ratio.
        InvalidArgumentError: If the ratio is out of reach.

    Examples:
        >>> measured = fisher_levels(9, 4, 2.5).ratio()
        >>> abs(error_from_ratio(measured, 4) - mixture_error(4, 2.5)) < 1e-9
        True
    """
    call = "error_from_ratio"
    C = require_count(num_classes, f"{call}(num_classes=...)", at_least=2)
    require_choice(kind, RATIOS, f"{call}(kind=...)")
    if C == 2 and "mini" in kind:
        raise InvalidArgumentError(f"`{call}(kind={kind!r})` needs 3 classes or more; got 2.")
    wanted = require_positive(ratio, f"{call}(ratio=...)")
    levels: Callable[..., FisherLevels] = optimal_fisher_levels if exact else fisher_levels

    def excess(t: float) -> float:
        return levels(C + 1, C, t).ratio(kind) - wanted

    low, high = excess(_LEAST_SIGNAL), excess(_MOST_SIGNAL)
    if low >= 0.0 or high <= 0.0:
        raise InvalidArgumentError(
            f"`{call}(ratio=...)` must lie between {low + wanted:.6g} and {high + wanted:.6g} for "
            f"{C} classes; got {wanted:.6g}."
        )
    return mixture_error(C, float(brentq(excess, _LEAST_SIGNAL, _MOST_SIGNAL, xtol=1e-12)))


def _sizes(
    num_inputs: int | None, num_classes: int, signal: float, call: str
) -> tuple[int, int, float]:
    """Check D (None where there is none), C and t."""
    C = require_count(num_classes, f"{call}(num_classes=...)", at_least=2)
    D = C
    if num_inputs is not None:
        D = require_count(num_inputs, f"{call}(num_inputs=...)", at_least=C)
    return D, C, require_positive(signal, f"{call}(signal=...)")


def _require_integrable(t: float, call: str, hint: str = "") -> None:
    """Refuse a signal beyond what the integrals were made for; closed forms have no limit."""
    if t > _MOST_SIGNAL:
        raise InvalidArgumentError(f"`{call}(signal=...)` must be at most 10; got {t:g}.{hint}")


def _error(error: float | None, C: int, t: float, call: str) -> float:
    if error is None:
        _require_integrable(t, call, " For more give `error`, which is computed up to there.")
        return mixture_uncertainty(C, t)
    if isinstance(error, bool) or not isinstance(error, int | float):
        raise WrongTypeError(f"`{call}(error=...)` must be a number; got {type(error).__name__}.")
    if not 0.0 < error <= 1.0 - 1.0 / C + 1e-12:
        raise InvalidArgumentError(
            f"`{call}(error=...)` must be above 0 and at most 1 − 1/C = {1.0 - 1.0 / C:.6g}; got "
            f"{error:g}."
        )
    return float(error)


def _moments(C: int, t: float) -> Callable[[int | None, int | None, int, int], float]:
    """Return the function (a, b, j, k) ↦ E[x_a x_b p_k | class j]; None leaves a factor out."""
    step = min(0.5, _STEP / max(t, 0.5))
    g = torch.arange(-_TAIL, _TAIL + 0.5 * step, step, dtype=torch.float64)
    weights = torch.exp(-0.5 * g.square())
    weights = weights / weights.sum()
    low, high = -t * t - _TAIL * t - _LEFT_OUT, 6.0 + _TAIL * t
    u = torch.arange(low, high, _STEP, dtype=torch.float64)

    @cache
    def factor(r: int, m: int, is_true: bool) -> Tensor:
        x = g + (t if is_true else 0.0)
        log_w = u[:, None] + t * x
        return torch.exp(m * log_w - torch.exp(log_w)) @ (weights * x**r)

    def moment(a: int | None, b: int | None, j: int, k: int) -> float:
        special = {i for i in (a, b, j, k) if i is not None}
        product = factor(0, 0, False) ** (C - len(special))
        for i in special:
            product = product * factor((i == a) + (i == b), int(i == k), i == j)
        return float(product.sum() * _STEP)

    return moment


def _optimal_parts(C: int, t: float) -> list[tuple[str, float, int]]:
    """Return name, level and multiplicity of each part that lives in the inputs 1 to C.

    Every V (input, class) of an irreducible part that occurs once is an eigenvector, so one entry
    of GV is enough; the standard part occurs twice (once for C = 2) and has a 2 × 2 matrix.
    """
    entry = _entries(C, t)

    def times(V: Tensor, a: int, j: int) -> float:
        """Return entry (a, j) of GV."""
        return math.fsum(entry(a, b, j, k) * float(V[b, k]) for b, k in V.nonzero().tolist())

    eye, ones = torch.eye(C, dtype=torch.float64), torch.ones(C, dtype=torch.float64)
    u = eye[0] - eye[1]
    first, second = torch.diag(u) - torch.outer(u, ones) / C, torch.outer(ones, u)
    invariant = ("below", times(eye - 1.0 / C, 0, 0) / (1.0 - 1.0 / C), 1)
    if C == 2:
        return [("outliers", times(second, 0, 0), 1), invariant]
    rows = []
    for V in (first, second):  # GV = x·first + y·second, and first has a 0 at (2, 0)
        y = times(V, 2, 0)
        rows.append([(times(V, 0, 0) - y) / (1.0 - 1.0 / C), y])
    low, high = np.sort(np.linalg.eigvals(np.array(rows)).real).tolist()
    cycle = eye[:, [2, 0, 1, *range(3, C)]] * (torch.arange(C) < 3)
    levels = [
        ("outliers", high, C - 1),
        ("mini-bulk", times(cycle - cycle.T, 0, 1), (C - 1) * (C - 2) // 2),
        ("below", low, C - 1),
        invariant,
    ]
    if C > 3:
        even = torch.outer(u, eye[2] - eye[3])
        levels.append(("below", times(even + even.T, 0, 2), C * (C - 3) // 2))
    return levels


def _entries(C: int, t: float) -> Callable[[int, int, int, int], float]:
    """Return the function (a, b, j, k) ↦ E[x_a x_b U_jk] = E[x_a x_b (δ_jk − p_k) | class j]/C."""
    moment = _moments(C, t)

    @cache
    def entry(a: int, b: int, j: int, k: int) -> float:
        if j != k:
            return -moment(a, b, j, k) / C
        # 1 − p_j is the sum of the others, which keeps its digits where it is small.
        named = {a, b, j}
        total = sum(moment(a, b, j, other) for other in named - {j})
        if len(named) < C:
            total += (C - len(named)) * moment(a, b, j, -1)
        return total / C

    return lambda *indices: entry(*_pattern(*indices))


def _pattern(*indices: int) -> tuple[int, int, int, int]:
    """Number four indices in order of appearance: classes differ by name only."""
    numbering: dict[int, int] = {}
    a, b, j, k = (numbering.setdefault(i, len(numbering)) for i in indices)
    return a, b, j, k
