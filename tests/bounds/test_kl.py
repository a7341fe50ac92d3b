"""Divergences and inverses against sixty digits, root finding, closed forms and simulation."""

import math
from decimal import Decimal, localcontext

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from torch.distributions import Independent, Normal, kl_divergence

from eigenscape.bounds import binary_kl, gaussian_kl, kl_inverse
from eigenscape.errors import InvalidArgumentError, ShapeError, UnknownNameError

SIDES = ("upper", "lower")


def exact_kl(q: float, p: float | Decimal) -> Decimal:
    """Give kl(q‖p) for 0 < q, p < 1 with sixty digits more than floats have."""
    with localcontext() as context:
        context.prec = 80
        Q, P = Decimal(q), Decimal(p)
        return Q * (Q / P).ln() + (1 - Q) * ((1 - Q) / (1 - P)).ln()


def chances() -> st.SearchStrategy[float]:
    """Draw from (0, 1), often close to an end."""
    exponent = st.floats(-14.0, -0.302)
    low = exponent.map(lambda e: 10.0**e)
    return st.one_of(st.floats(0.01, 0.99), low, low.map(lambda x: 1.0 - x))


def bounds() -> st.SearchStrategy[float]:
    """Draw divergences over many orders of magnitude."""
    return st.floats(-24.0, 1.4).map(lambda e: 10.0**e)


def distance(q: float, c: float, side: str) -> float:
    """Find |p − q| with kl(q‖p) = c by scipy, on exact values: small ones have all their digits."""
    sign = 1 if side == "upper" else -1

    def excess(gap: float) -> float:
        with localcontext() as context:
            context.prec = 80
            p = Decimal(q) + sign * Decimal(gap)
            return float(exact_kl(q, p) - Decimal(c)) if 0 < p < 1 else 1e3

    return float(brentq(excess, 0.0, 1.0, xtol=1e-300, rtol=1e-15, maxiter=5000))


# --- the divergence of two coins -----------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(chances(), chances(), st.floats(-13.0, -0.1), st.booleans())
@example(0.3, 0.5, -9.0, True)
@example(0.5, 1e-12, -1.0, False)
@example(1.8683187385586712e-11, 0.9999, -11.595391855149813, True)  # p is 1.136 q
def test_divergence_has_all_its_digits(q: float, other: float, exponent: float, near: bool) -> None:
    p = q + 10.0**exponent * (other - q) if near else other
    assert float(binary_kl(q, p)) == pytest.approx(float(exact_kl(q, p)), rel=1e-14, abs=0.0)


def test_plain_formula_would_not_pass_that() -> None:
    q, p = 0.3, 0.3 + 1e-9
    plain = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    assert plain != pytest.approx(float(exact_kl(q, p)), rel=1e-3, abs=0.0)
    assert float(binary_kl(q, p)) == pytest.approx(float(exact_kl(q, p)), rel=1e-14, abs=0.0)


def test_divergence_at_the_ends() -> None:
    q = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.5, 0.5, 0.0, 1.0], dtype=torch.float64)
    p = torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.3, 0.3], dtype=torch.float64)
    inf = math.inf
    expected = [0.0, 0.0, inf, inf, inf, inf, -math.log(0.7), -math.log(0.3)]
    torch.testing.assert_close(
        binary_kl(q, p), torch.tensor(expected, dtype=torch.float64), rtol=1e-15, atol=0.0
    )


def test_smallest_numbers_do_not_overflow() -> None:
    assert float(binary_kl(5e-324, 0.5)) == pytest.approx(math.log(2.0), rel=1e-15)
    assert float(binary_kl(0.5, 1e-300)) == pytest.approx(-0.5 * math.log(4e-300), rel=1e-15)


@pytest.mark.parametrize("chance", [-1e-9, 1.0 + 1e-9, math.nan, math.inf])
def test_chances_outside_the_unit_interval_are_refused(chance: float) -> None:
    for call in (lambda: binary_kl(chance, 0.5), lambda: binary_kl(0.5, chance)):
        with pytest.raises(InvalidArgumentError, match=r"in \[0, 1\]"):
            call()
    with pytest.raises(InvalidArgumentError, match=r"`kl_inverse\(q\)`"):
        kl_inverse(chance, 0.1)


# --- its inverses --------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(chances(), bounds(), st.sampled_from(SIDES))
@example(1e-12, 1e-20, "upper")
@example(0.5, 1e-24, "lower")
@example(1.0 - 1e-12, 20.0, "lower")
@example(0.02, 0.08, "upper")
def test_inverse_agrees_with_a_root_finder(q: float, c: float, side: str) -> None:
    # The last place of p, in which the answer is rounded inwards, and the rounding in kl.
    found, gap = float(kl_inverse(q, c, side=side)), distance(q, c, side)
    wanted = q + gap if side == "upper" else q - gap
    assert abs(found - wanted) <= 1.5 * math.ulp(wanted) + 1e-14 * gap


@settings(max_examples=100, deadline=None)
@given(st.one_of(chances(), st.sampled_from([0.0, 1.0])), bounds(), st.sampled_from(SIDES))
def test_answer_is_in_the_set_and_its_neighbour_is_not(q: float, c: float, side: str) -> None:
    p, end = float(kl_inverse(q, c, side=side)), 1.0 if side == "upper" else 0.0
    assert (q <= p <= 1.0) if side == "upper" else (0.0 <= p <= q)
    assert float(binary_kl(q, p)) <= c
    if p != end:
        assert float(binary_kl(q, math.nextafter(p, end))) > c


def test_closed_forms_where_nothing_or_everything_is_wrong() -> None:
    c = torch.logspace(-18, 1, 77, dtype=torch.float64)
    close = {"rtol": 1e-15, "atol": 2e-16}
    small = c < 1e-3  # where 1 − exp(−c) has digits beyond those of 1
    torch.testing.assert_close(kl_inverse(0.0, c), -torch.expm1(-c), **close)
    torch.testing.assert_close(
        kl_inverse(0.0, c)[small], -torch.expm1(-c[small]), rtol=1e-15, atol=0.0
    )
    torch.testing.assert_close(kl_inverse(1.0, c, side="lower"), torch.exp(-c), **close)
    assert kl_inverse(1.0, c).tolist() == [1.0] * 77
    assert kl_inverse(0.0, c, side="lower").tolist() == [0.0] * 77


def test_no_divergence_and_infinite_divergence() -> None:
    q = torch.tensor([-0.0, 1e-250, 0.3, 1.0], dtype=torch.float64)
    for side, end in zip(SIDES, (1.0, 0.0), strict=True):
        assert kl_inverse(q, 0.0, side=side).tolist() == q.tolist()
        assert kl_inverse(q, math.inf, side=side).tolist() == [end] * 4


def test_inverse_is_monotone() -> None:
    c = torch.logspace(-20, 2, 3001, dtype=torch.float64)
    for q in (0.0, 1e-9, 0.37, 1.0 - 1e-9):
        assert bool((kl_inverse(q, c).diff() >= 0.0).all())
        assert bool((kl_inverse(q, c, side="lower").diff() <= 0.0).all())
    q = torch.linspace(0.0, 1.0, 3001, dtype=torch.float64)
    for side in SIDES:
        assert bool((kl_inverse(q, 0.01, side=side).diff() > 0.0).all())


def test_sides_mirror_each_other() -> None:
    q = torch.arange(1, 64, dtype=torch.float64) / 64.0  # 1 − q is exact
    lower = kl_inverse(1.0 - q, 0.05, side="lower")
    torch.testing.assert_close(kl_inverse(q, 0.05), 1.0 - lower, rtol=1e-15, atol=1e-16)


def test_inverse_takes_arrays_of_any_shapes_that_broadcast() -> None:
    q, c = torch.tensor([[0.0], [0.25], [0.9]]), torch.tensor([1e-3, 0.5])
    together = kl_inverse(q, c)
    assert together.dtype == torch.float64
    alone = [[float(kl_inverse(float(a), float(b))) for b in c] for a in q[:, 0]]
    assert together.tolist() == alone


def test_inverse_refuses() -> None:
    for c in (-1e-300, math.nan):
        with pytest.raises(InvalidArgumentError, match=r"`kl_inverse\(c\)`"):
            kl_inverse(0.1, c)
    with pytest.raises(UnknownNameError, match="side"):
        kl_inverse(0.1, 0.1, side="both")


# --- Gaussians -----------------------------------------------------------------------------------

MEANS = torch.tensor([0.3, -1.0, 0.5], dtype=torch.float64)
VARIANCES = torch.tensor([0.02, 0.3, 1.7], dtype=torch.float64)
ORIGIN = torch.tensor([0.1, 0.0, 0.9], dtype=torch.float64)
SPREAD = torch.tensor([0.05, 0.2, 1.6], dtype=torch.float64)


@pytest.mark.parametrize("origin", [ORIGIN, 0.25])
@pytest.mark.parametrize("spread", [SPREAD, 0.07])
def test_gaussians_agree_with_torch(origin: float | torch.Tensor, spread: torch.Tensor) -> None:
    Q = Independent(Normal(MEANS, VARIANCES.sqrt()), 1)
    mean, variance = (torch.as_tensor(t).double().expand(3) for t in (origin, spread))
    wanted = kl_divergence(Q, Independent(Normal(mean, variance.sqrt()), 1))
    torch.testing.assert_close(
        gaussian_kl(MEANS, VARIANCES, origin, spread), wanted, rtol=1e-13, atol=0.0
    )


def test_gaussians_agree_with_simulation() -> None:
    # Draws as a network takes them: the deviation is the root of the variance. An implementation
    # that draws with one and certifies the other has a bound for a network that it does not use.
    N = 200_000
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(N, 3, generator=generator, dtype=torch.float64)
    w = MEANS + VARIANCES.sqrt() * z
    Q, P = (Normal(m, v.sqrt()) for m, v in ((MEANS, VARIANCES), (ORIGIN, SPREAD)))
    each = (Q.log_prob(w) - P.log_prob(w)).sum(1)
    error = float(each.std()) / math.sqrt(N)
    assert abs(float(gaussian_kl(MEANS, VARIANCES, ORIGIN, SPREAD) - each.mean())) < 4 * error
    confused = gaussian_kl(MEANS, VARIANCES.sqrt(), ORIGIN, SPREAD)
    assert abs(float(confused - each.mean())) > 40 * error
    swapped = gaussian_kl(ORIGIN, SPREAD, MEANS, VARIANCES)
    assert abs(float(swapped - each.mean())) > 10 * error


def test_gaussians_that_are_close_keep_their_digits() -> None:
    # s/λ − 1 − log(s/λ) = x²/2 − x³/3 + …; the usual sum of logarithms gives about 1e-13 here.
    x, n = 2.0**-30, 1000
    found = gaussian_kl(torch.zeros(n), torch.full((n,), 1.0 + x, dtype=torch.float64), 0.0, 1.0)
    assert float(found) == pytest.approx(0.5 * n * (x**2 / 2 - x**3 / 3), rel=1e-14, abs=0.0)
    assert float(gaussian_kl(MEANS, VARIANCES, MEANS, VARIANCES)) == 0.0


def test_gaussians_far_apart() -> None:
    found = gaussian_kl(torch.zeros(1), torch.full((1,), 1e-40, dtype=torch.float64), 0.0, 0.1)
    assert float(found) == pytest.approx(0.5 * (39 * math.log(10) - 1), rel=1e-14)
    found = gaussian_kl(torch.zeros(1), torch.full((1,), 1e6), 0.0, 1.0)
    assert float(found) == pytest.approx(0.5 * (1e6 - 1 - math.log(1e6)), rel=1e-14)


def test_gradients_reach_means_and_variances() -> None:
    # A public implementation takes the means of the start as a constant here: no gradient.
    tensors = [t.clone().requires_grad_() for t in (MEANS, VARIANCES, ORIGIN, SPREAD)]
    w, s, _, _ = tensors
    gaussian_kl(*tensors).backward()
    torch.testing.assert_close(w.grad, (MEANS - ORIGIN) / SPREAD)
    torch.testing.assert_close(s.grad, 0.5 * (1.0 / SPREAD - 1.0 / VARIANCES))
    assert torch.autograd.gradcheck(gaussian_kl, tensors)


def test_gaussians_refuse() -> None:
    for wrong in (0.0, -1.0, math.nan, math.inf):
        values = torch.tensor([0.1, wrong, 0.2])
        with pytest.raises(InvalidArgumentError, match=r"`gaussian_kl\(variances\)`"):
            gaussian_kl(MEANS, values, 0.0, 0.1)
        with pytest.raises(InvalidArgumentError, match=r"`gaussian_kl\(prior_variance\)`"):
            gaussian_kl(MEANS, VARIANCES, 0.0, wrong)
    with pytest.raises(ShapeError, match=r"\(3, 1\)"):
        gaussian_kl(MEANS, VARIANCES[:, None], 0.0, 0.1)
    with pytest.raises(ShapeError, match=r"\(2,\)"):
        gaussian_kl(MEANS, VARIANCES, ORIGIN[:2], 0.1)
