"""Kullback–Leibler divergences: of two coins, its inverses, and of two Gaussians.

Letters: q, p the chances of two coins, kl(q‖p) = q log(q/p) + (1 − q) log((1 − q)/(1 − p)); c a
bound on it. Everything is float64, and every sum here is one of terms that are not negative, so
that nothing cancels where the two distributions are close.
"""

import torch
from torch import Tensor

from eigenscape.errors import InvalidArgumentError, ShapeError, require_choice

Numbers = float | Tensor

_TINY = torch.finfo(torch.float64).tiny
_ONE = int(torch.ones((), dtype=torch.float64).view(torch.int64))  # the bits of 1.0


def binary_kl(q: Numbers, p: Numbers) -> Tensor:
    """Return kl(q‖p), the divergence of a coin with chance q from one with chance p.

    It is accurate to rounding also where q ≈ p, and infinite where p excludes what q allows.

    Args:
        q: Chances in [0, 1].
        p: Chances in [0, 1], of a shape that broadcasts with that of q.

    Returns:
        The divergences in nats, float64.

    Raises:
        InvalidArgumentError: If a chance is outside [0, 1].

    Examples:
        >>> round(float(binary_kl(0.0, 0.5)), 6)  # log 2
        0.693147
    """
    return _kl(_chances(q, "binary_kl(q)"), _chances(p, "binary_kl(p)"))


@torch.no_grad()
def kl_inverse(q: Numbers, c: Numbers, *, side: str = "upper") -> Tensor:
    """Return the largest or the smallest p with kl(q‖p) ≤ c.

    Bisection over the floating-point numbers themselves, 63 halvings: the answer is in the set as
    `binary_kl` computes it, and its neighbour outwards is not. It never falls as c grows. A bound
    that must hold in spite of rounding takes a number further out, as `pac_bayes_bound` does.

    Args:
        q: Chances in [0, 1].
        c: Bounds on the divergence, 0 to infinity, of a shape that broadcasts with that of q.
        side: "upper" for the largest p, "lower" for the smallest.

    Returns:
        The chances p, float64. They have no gradient.

    Raises:
        InvalidArgumentError: If a chance is outside [0, 1] or a bound is negative.

    Examples:
        >>> round(float(kl_inverse(0.0, 0.6931471805599453)), 6)  # 1 − exp(−c)
        0.5
        >>> round(float(kl_inverse(1.0, 0.6931471805599453, side="lower")), 6)  # exp(−c)
        0.5
    """
    upper = require_choice(side, ("upper", "lower"), "kl_inverse(side=...)") == "upper"
    chance, bound = _chances(q, "kl_inverse(q)"), torch.as_tensor(c, dtype=torch.float64)
    if not bool((bound >= 0.0).all()):
        raise InvalidArgumentError("`kl_inverse(c)` must not be negative or NaN.")
    chance, bound = torch.broadcast_tensors(chance, bound.to(chance.device))
    # Numbers from 0 to 1 are ordered as their bits are, read as integers. The end of the range is
    # an answer too, so the search starts one step beyond it (below 0 that is a NaN: never inside).
    inside = chance.contiguous().view(torch.int64)
    outside = torch.full_like(inside, _ONE + 1 if upper else -1)
    for _ in range(63):
        middle = (inside + outside) >> 1
        holds = _kl(chance, middle.view(torch.float64)) <= bound
        inside, outside = torch.where(holds, middle, inside), torch.where(holds, outside, middle)
    answer: Tensor = inside.view(torch.float64)
    return answer


def gaussian_kl(
    means: Tensor, variances: Tensor, prior_mean: Numbers, prior_variance: Numbers
) -> Tensor:
    """Return KL(Q‖P) of Q = N(means, diag(variances)) from P = N(prior_mean, diag(prior_variance)).

    It is ½ Σ [s/λ − 1 − log(s/λ) + (w − w₀)²/λ], each term with its own 1 and logarithm: none of
    them is negative. Gradients flow to all four arguments.

    Args:
        means: w (n,).
        variances: s (n,), variances and not standard deviations.
        prior_mean: w₀, one number or (n,).
        prior_variance: λ, one number or (n,).

    Returns:
        The divergence in nats, a float64 scalar.

    Raises:
        ShapeError: If shapes do not fit.
        InvalidArgumentError: If a variance is not finite and above 0.

    Examples:
        >>> w = torch.tensor([1.0, 0.0])
        >>> float(gaussian_kl(w, torch.full((2,), 0.5), 0.0, 0.5))  # ½ ‖w‖²/λ
        1.0
    """
    w, s = means.double(), variances.double()
    origin = torch.as_tensor(prior_mean, dtype=torch.float64, device=w.device)
    spread = torch.as_tensor(prior_variance, dtype=torch.float64, device=w.device)
    if s.shape != w.shape or any(t.ndim and t.shape != w.shape for t in (origin, spread)):
        raise ShapeError(
            f"`gaussian_kl(means, ...)` has means {tuple(w.shape)} and needs variances of that "
            "shape, and a prior of that shape or of single numbers; got "
            f"{tuple(s.shape)}, {tuple(origin.shape)} and {tuple(spread.shape)}."
        )
    for name, values in (("variances", s), ("prior_variance", spread)):
        if not bool(((values > 0.0) & values.isfinite()).all()):
            raise InvalidArgumentError(f"`gaussian_kl({name})` must be finite and above 0.")
    return 0.5 * ((_gap(s - spread, s, spread) + (w - origin).square()) / spread).sum()


def _kl(q: Tensor, p: Tensor) -> Tensor:
    # q log(q/p) + (p − q) and the same for the other side of the coin, whose gap is the opposite.
    q, p = torch.broadcast_tensors(q, p)
    gap = p - q
    sides = torch.stack((gap, -gap)), torch.stack((p, 1.0 - p)), torch.stack((q, 1.0 - q))
    return _gap(*sides).sum(0)


def _gap(gap: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Return p − q − q log(p/q) ≥ 0, given p − q; for q = 0 it is p."""
    floor = q.clamp_min(_TINY)
    x = gap / floor
    # With r = x/(2 + x): log(1 + x) = 2 artanh r and x − 2r = xr.
    r = x / (2.0 + x)
    square, tail = r * r, torch.zeros_like(r)
    for odd in range(25, 1, -2):  # enough of them for |x| < 0.3, where r² < 0.032
        tail = (tail + 1.0 / odd) * square
    near = q * r * (x - 2.0 * tail)
    return torch.where(gap.abs() < 0.3 * q, near, gap - torch.xlogy(q, p / floor))


def _chances(values: Numbers, call: str) -> Tensor:
    chances = torch.as_tensor(values, dtype=torch.float64)
    if not bool(((chances >= 0.0) & (chances <= 1.0)).all()):
        raise InvalidArgumentError(f"`{call}` must be in [0, 1].")
    return chances + 0.0  # −0 becomes 0, whose bits are in order
