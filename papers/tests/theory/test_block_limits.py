"""Dong's limits: quadrature against closed forms, and all of them against finite networks.

Simulations have fixed seeds; what they are compared with lies within four standard errors, and what
Dong prints beyond many.
"""

import math
from collections.abc import Callable

import pytest
import torch
from scipy.integrate import dblquad, quad
from torch import Tensor

from eigenscape import errors
from eigenscape_papers.theory import (
    block_law,
    block_limits,
    expected_softmax_hessian,
    hidden_block_limits,
    hidden_block_norms,
    hidden_class_limits,
    linear_block_limits,
    linear_block_norms,
    linear_class_limits,
    linear_hessian,
    one_hidden_layer_hessian,
    output_block_limits,
    output_class_limits,
)

F64 = torch.float64


class Draws:
    """Gaussian matrices, one after the other."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int, variance: float = 1.0) -> Tensor:
        drawn = torch.randn(*shape, generator=self.generator, dtype=F64)
        return drawn * math.sqrt(variance)


def of_blocks(values: Tensor) -> Tensor:
    """Return the means over diagonal and off-diagonal entries."""
    n, trace = len(values), values.diagonal().sum()
    return torch.stack([trace / n, (values.sum() - trace) / (n * (n - 1))])


def mean_and_error(values: list[Tensor]) -> tuple[Tensor, Tensor]:
    stacked = torch.stack(values)
    return stacked.mean(0), stacked.std(0) / math.sqrt(len(values))


# --- linear models -------------------------------------------------------------------------------


@pytest.mark.parametrize("C", [2, 5, 200])
def test_first_moments_are_those_of_the_mean_softmax_hessian(C: int) -> None:
    A = expected_softmax_hessian(torch.zeros(C), torch.ones(C))
    # Without samples' fluctuations only the squared means are left.
    limits = linear_block_limits(1e-12, C)
    assert limits.diagonal == pytest.approx(float(A[0, 0]) ** 2, rel=1e-9)
    assert limits.off_diagonal == pytest.approx(float(A[0, 1]) ** 2, rel=1e-9)


def test_two_classes_are_one_integral() -> None:
    def integrand(g: float) -> float:
        q = 1.0 / (1.0 + math.exp(-math.sqrt(2.0) * g))
        return (q * (1.0 - q)) ** 2 * math.exp(-0.5 * g * g) / math.sqrt(2.0 * math.pi)

    second, _ = quad(integrand, -12.0, 12.0, epsabs=1e-14)
    slope = linear_block_limits(2.0, 2).diagonal - linear_block_limits(1.0, 2).diagonal
    assert slope == pytest.approx(second, rel=1e-11)


def test_second_moments_of_many_classes_agree_with_simulation() -> None:
    p = Draws(0)(200_000, 6).softmax(1)
    slopes = [linear_block_limits(gamma, 6) for gamma in (2.0, 1.0)]
    for name, eta in (("diagonal", p * (1.0 - p)), ("off_diagonal", p * p.roll(1, 1))):
        each = eta.square().mean(1)
        slope = getattr(slopes[0], name) - getattr(slopes[1], name)
        assert abs(slope - float(each.mean())) < 4 * float(each.std()) / math.sqrt(len(p))


@pytest.mark.parametrize("gamma", [0.3, 2.0])
def test_many_classes_reach_the_limits(gamma: float) -> None:
    limit = linear_class_limits(gamma)
    gaps = []
    for C in (10**4, 10**6):
        found = linear_block_limits(gamma, C)
        gaps.append(
            (
                found.diagonal * C**limit.diagonal_power / limit.diagonal - 1.0,
                found.off_diagonal * C**limit.off_diagonal_power / limit.off_diagonal - 1.0,
            )
        )
    for first, second in zip(*gaps, strict=True):
        # Corrections are of order 1/C.
        assert second == pytest.approx(first / 100, rel=0.02)
        assert abs(second) < 1e-4


def test_squared_norms_of_linear_models_over_d() -> None:
    C, draw = 5, Draws(1)
    norms = {}
    for d, N, repeats in ((100, 200, 40), (200, 400, 20)):
        squares, plain = [], []
        for _ in range(repeats):
            labels = torch.zeros(N, dtype=torch.long)
            found = linear_block_norms(draw(N, d), draw(C, d, variance=1 / d), labels)
            squares.append(of_blocks(found.square()) / d)
            plain.append(of_blocks(found) / d)
        mean, error = mean_and_error(squares)
        limits = linear_block_limits(d / N, C)
        expected = torch.tensor([limits.diagonal, limits.off_diagonal], dtype=F64)
        assert bool(((mean - expected).abs() < 4 * error + 0.004 * expected).all())
        norms[d] = mean_and_error(plain)[0]
    # Norms over d, as (22) and (23) print them, have no limit but zero: they fall as 1/√d.
    torch.testing.assert_close(
        norms[200] / norms[100], torch.full((2,), math.sqrt(0.5), dtype=F64), rtol=0.01, atol=0.0
    )


# --- hidden layers -------------------------------------------------------------------------------


@pytest.mark.parametrize("c", [0.1, 0.5, 0.8])
def test_integrals_over_the_quadrant(c: float) -> None:
    for power, found in enumerate(block_limits._quadrant(c)):

        def integrand(y: float, x: float, power: int = power) -> float:
            return (x * y) ** power * math.exp(c * x * y - 0.5 * (x * x + y * y)) / (2 * math.pi)

        expected, _ = dblquad(integrand, 0.0, 25.0, 0.0, 25.0, epsabs=1e-9)
        assert found == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize(("d", "N"), [(150, 300), (200, 100)])
def test_squared_errors(d: int, N: int) -> None:
    C, m, draw = 4, 3, Draws(2)
    found = []
    for _ in range(30):
        V = draw(C, m, variance=1 / m)
        W, targets = draw(m, d, variance=1 / d), torch.zeros(N, C, dtype=F64)
        norms = hidden_block_norms(draw(N, d), W, V, targets, loss="squared-error")
        # Divided by what V does, whose moments are known: E (v·v)² = C(C + 2)/m², E (v·v')² = C/m².
        found.append(of_blocks((norms / (V.T @ V)).square()) / d)
    mean, error = mean_and_error(found)
    limits = hidden_block_limits(d / N, C, m, loss="squared-error")
    expected = torch.tensor(
        [limits.diagonal / (C * (C + 2)) * m**2, limits.off_diagonal / C * m**2], dtype=F64
    )
    assert bool(((mean - expected).abs() < 4 * error + 0.01 * expected).all())
    # With the factor 2 of Dong's loss ‖z − y‖² they would be four times as large.
    assert bool((mean + 10 * error < 2 * expected).all())


def test_many_classes_of_squared_errors() -> None:
    C, limit = 10**6, hidden_class_limits(0.7, 5, loss="squared-error")
    found = hidden_block_limits(0.7, C, 5, loss="squared-error")
    assert found.diagonal * float(C) ** limit.diagonal_power == pytest.approx(
        limit.diagonal, rel=1e-5
    )
    assert found.off_diagonal * float(C) ** limit.off_diagonal_power == pytest.approx(
        limit.off_diagonal
    )


def test_pairs_of_samples_leave_no_bias() -> None:
    few, many = (
        hidden_block_limits(0.1, 7, 4, num_draws=draws, num_samples=samples, seed=seed)
        for draws, samples, seed in ((8000, 2, 0), (600, 100, 1))
    )
    for name in ("diagonal", "off_diagonal"):
        error = math.hypot(getattr(few, f"{name}_stderr"), getattr(many, f"{name}_stderr"))
        assert abs(getattr(few, name) - getattr(many, name)) < 4 * error


def printed_slope(m: int) -> float:
    """Dong (30), right, over γ."""
    return (m - 1) ** 2 / (2**m * (m - 2) ** 3 * m) * (math.sqrt(m / (m - 2)) + 1) ** (m - 2)


def test_the_mean_given_v_does_not_vanish() -> None:
    C, m = 600, 16
    limit = hidden_class_limits(1e-9, m).off_diagonal
    found = hidden_block_limits(1e-9, C, m, num_draws=300, seed=1)
    value, error = C * found.off_diagonal, C * found.off_diagonal_stderr
    assert abs(value - limit) < 4 * error + 0.03 * limit
    # (92) and (30) say that it is zero.
    assert value > 30 * error
    # What (30) has is right for the other term.
    slope = hidden_class_limits(2.0, m).off_diagonal - hidden_class_limits(1.0, m).off_diagonal
    assert slope == pytest.approx(printed_slope(m), rel=1e-12)
    more = hidden_block_limits(1.0, C, m, num_draws=300, seed=1)
    assert C * (more.off_diagonal - found.off_diagonal) == pytest.approx(slope, rel=0.08)


@pytest.mark.parametrize(("d", "N"), [(40, 800), (200, 400)])
def test_hidden_blocks_of_networks(d: int, N: int) -> None:
    C, m, gamma, draw = 40, 8, d / N, Draws(3)
    found = []
    for _ in range(60):
        W, V = draw(m, d, variance=1 / d), draw(C, m, variance=1 / m)
        norms = hidden_block_norms(draw(N, d), W, V, torch.zeros(N, dtype=torch.long))
        found.append(of_blocks(norms.square()) / d)
    mean, error = mean_and_error(found)
    limits = hidden_block_limits(gamma, C, m, num_draws=600)
    assert abs(limits.diagonal - float(mean[0])) < 4 * float(error[0]) + 0.02 * limits.diagonal
    off = math.hypot(float(error[1]), limits.off_diagonal_stderr)
    assert abs(limits.off_diagonal - float(mean[1])) < 4 * off + 0.02 * limits.off_diagonal
    # What is left of (92) without the variance over V is too small.
    slope = hidden_block_limits(2.0 * gamma, C, m, num_draws=600).off_diagonal
    assert float(mean[1]) - (slope - limits.off_diagonal) > 3 * off


def test_many_classes_reach_the_diagonal_limit() -> None:
    limit, found = hidden_class_limits(0.5, 8), hidden_block_limits(0.5, 800, 8, num_draws=100)
    assert limit.diagonal_power == 0
    assert found.diagonal == pytest.approx(limit.diagonal, rel=0.01, abs=4 * found.diagonal_stderr)


# --- output layers -------------------------------------------------------------------------------


def test_output_blocks_of_networks() -> None:
    d, N, C, m, draw = 150, 1500, 4, 3, Draws(4)
    found = []
    for _ in range(150):
        h = (draw(N, d) @ draw(d, m, variance=1 / d)).relu()
        norms = linear_block_norms(h, draw(C, m, variance=1 / m), torch.zeros(N, dtype=torch.long))
        found.append(of_blocks(norms.square()))
    mean, error = mean_and_error(found)
    limits = output_block_limits(C, m, num_draws=2000)
    for index, name in enumerate(("diagonal", "off_diagonal")):
        limit, value = getattr(limits, name), float(mean[index])
        both = math.hypot(float(error[index]), getattr(limits, f"{name}_stderr"))
        assert abs(limit - value) < 4 * both + 0.02 * value


def test_many_classes_reach_the_output_limits() -> None:
    C, m = 1500, 10
    limit, found = output_class_limits(m), output_block_limits(C, m, num_draws=150, num_samples=150)
    diagonal, error = C**2 * found.diagonal, C**2 * found.diagonal_stderr
    assert abs(diagonal - limit.diagonal) < 4 * error + 0.02 * limit.diagonal
    off, off_error = C**4 * found.off_diagonal, C**4 * found.off_diagonal_stderr
    assert abs(off - limit.off_diagonal) < 4 * off_error + 0.02 * limit.off_diagonal
    # With 1/8π in b₁ and b₂, as (67) prints, both are several times too small.
    for c, value, stderr in ((1 / m, diagonal, error), (2 / m, off, off_error)):
        value_at, slope, curvature = block_limits._quadrant(c)
        b = 0.75 + 0.25 * value_at
        printed = m * curvature * b ** (m - 1) + m * (m - 1) * slope**2 * b ** (m - 2)
        assert value > 3 * printed + 10 * stderr


def test_the_exponent_of_33() -> None:
    m, draw = 10, Draws(5)
    means = []
    for _ in range(40):
        products = draw(100_000, m).relu() * draw(100_000, m).relu()
        pairs = products.sum(1).square() - products.square().sum(1)
        weights = torch.exp(2.0 / m * products.sum(1)) / (m * (m - 1))
        means.append((weights * pairs).mean())
    mean, error = mean_and_error(means)
    value, slope, _ = block_limits._quadrant(2 / m)
    b = 0.75 + value
    assert abs(slope**2 * b ** (m - 2) - float(mean)) < 4 * float(error)
    assert abs(slope**2 * b ** (m - 1) - float(mean)) > 8 * float(error)


# --- eigenvalues ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [(1, 1), (0, 2)])
def test_eigenvalues_of_blocks_of_a_linear_model(rows: tuple[int, int]) -> None:
    C, draw = 3, Draws(6)
    law = block_law(gamma=0.4, num_classes=C, rows=rows, num_samples=1500, num_points=150)
    distances = []
    for d, N in ((20, 50), (200, 500)):
        H = linear_hessian(
            draw(N, d), draw(C, d, variance=1 / d), torch.zeros(N, dtype=torch.long)
        ).view(C, d, C, d)
        values = torch.linalg.eigvalsh(H[rows[0], :, rows[1]])
        distances.append(law.wasserstein(values))
    spread = law.upper - law.lower
    assert distances[1] < 0.5 * distances[0]
    assert distances[1] < 0.02 * spread
    # Without its sign, as in (56), the off-diagonal law would lie on the other side of zero.
    assert (law.upper < 0.0) == (rows[0] != rows[1])


@pytest.mark.parametrize("rows", [(1, 1), (0, 2)])
def test_eigenvalues_of_hidden_blocks_given_the_output_layer(rows: tuple[int, int]) -> None:
    C, m, draw = 4, 3, Draws(7)
    V = draw(C, m)
    law = block_law(gamma=0.3, output=V, rows=rows, num_samples=2000, num_points=150)
    distances = []
    for d, N in ((30, 100), (240, 800)):
        W, labels = draw(m, d, variance=1 / d), torch.zeros(N, dtype=torch.long)
        H = one_hidden_layer_hessian(draw(N, d), W, V, labels)
        block = H[: m * d, : m * d].view(m, d, m, d)[rows[0], :, rows[1]]
        distances.append(law.wasserstein(torch.linalg.eigvalsh(block)))
    assert distances[1] < 0.03 * (law.upper - law.lower)
    assert distances[1] < distances[0]
    other = block_law(gamma=0.3, output=V, rows=(2, 1), num_samples=500, num_points=150)
    assert other.wasserstein(torch.linalg.eigvalsh(block)) > 2 * distances[1]


# --- options -------------------------------------------------------------------------------------


def test_a_seed_fixes_the_draws() -> None:
    first, again, other = (output_block_limits(3, 2, num_draws=4, seed=s) for s in (5, 5, 6))
    assert first.diagonal == again.diagonal != other.diagonal
    assert (first.num_draws, first.seed) == (4, 5)


V0 = torch.ones(4, 3)
REFUSALS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "gamma": (lambda: linear_block_limits(-1.0, 3), errors.InvalidArgumentError, "above 0"),
    "one class": (lambda: linear_block_limits(1.0, 1), errors.InvalidArgumentError, "at least 2"),
    "two units": (lambda: hidden_class_limits(1.0, 2), errors.InvalidArgumentError, "at least 3"),
    "two units of outputs": (
        lambda: output_class_limits(2),
        errors.InvalidArgumentError,
        "at least 3",
    ),
    "loss": (
        lambda: hidden_block_limits(1.0, 3, 4, loss="mse"),
        errors.UnknownNameError,
        "'squared-error'; got 'mse'",
    ),
    "one draw": (
        lambda: output_block_limits(3, 4, num_draws=1),
        errors.InvalidArgumentError,
        r"output_block_limits\(num_draws=...\)` must be at least 2",
    ),
    "one sample": (
        lambda: hidden_block_limits(1.0, 3, 4, num_samples=1),
        errors.InvalidArgumentError,
        "num_samples",
    ),
    "neither model": (lambda: block_law(gamma=1.0), errors.InvalidArgumentError, "either"),
    "both models": (
        lambda: block_law(gamma=1.0, num_classes=4, output=V0),
        errors.InvalidArgumentError,
        "either",
    ),
    "no matrix": (
        lambda: block_law(gamma=1.0, output=V0[0]),
        errors.ShapeError,
        r"got shape \(3,\)",
    ),
    "row": (
        lambda: block_law(gamma=1.0, output=V0, rows=(0, 3)),
        errors.InvalidArgumentError,
        "from 0 to 2",
    ),
}


@pytest.mark.parametrize(("call", "error", "words"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refusals(call: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
