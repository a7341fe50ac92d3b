import math
from fractions import Fraction

import pytest
import torch

from eigenscape.errors import InvalidArgumentError, NonFiniteError, ShapeError, WrongTypeError
from eigenscape_papers.stepsize import (
    Quadratic,
    log_slope_bounds,
    meta_descent,
    meta_gradient,
    meta_objective,
    optimal_step_size,
    plain_slope_bounds,
    random_quadratic,
)

ETA = torch.tensor([0.003, 0.02, 0.03, 0.05, 0.11], dtype=torch.float64)


def unrolled(H: torch.Tensor, w: torch.Tensor, eta: torch.Tensor, t: int) -> torch.Tensor:
    """f(w_t), by taking the steps."""
    values = []
    for step in eta:
        here = w
        for _ in range(t):
            here = here - step * (H @ here)
        values.append(0.5 * here @ H @ here)
    return torch.stack(values)


@pytest.fixture(params=[0, 1, 2])
def case(request: pytest.FixtureRequest) -> tuple[torch.Tensor, torch.Tensor, Quadratic]:
    H, w = random_quadratic(7, seed=request.param)
    return H, w, Quadratic.of(H, w)


@pytest.mark.parametrize("t", [1, 4, 9])
def test_the_closed_forms_are_those_of_the_steps(
    case: tuple[torch.Tensor, torch.Tensor, Quadratic], t: int
) -> None:
    H, w, q = case
    eta = ETA.clone().requires_grad_()
    plain = unrolled(H, w, eta, t)
    torch.testing.assert_close(
        meta_objective(q, ETA, num_steps=t, log=False), plain.detach(), rtol=1e-8, atol=0.0
    )
    torch.testing.assert_close(
        meta_objective(q, ETA, num_steps=t), plain.detach().log() / t, rtol=1e-8, atol=1e-10
    )
    (slope,) = torch.autograd.grad(plain.sum(), eta, retain_graph=True)
    torch.testing.assert_close(
        meta_gradient(q, ETA, num_steps=t, log=False), slope, rtol=1e-7, atol=0.0
    )
    (slope,) = torch.autograd.grad((plain.log() / t).sum(), eta)
    torch.testing.assert_close(meta_gradient(q, ETA, num_steps=t), slope, rtol=1e-7, atol=0.0)


def test_the_logarithm_bears_any_number_of_steps(
    case: tuple[torch.Tensor, torch.Tensor, Quadratic],
) -> None:
    _, _, q = case
    far = torch.tensor([1e-4, 1.0, 50.0])
    for values in (meta_objective(q, far, num_steps=10**6), meta_gradient(q, far, num_steps=10**6)):
        assert bool(values.isfinite().all())
    assert not bool(meta_objective(q, far, num_steps=10**6, log=False).isfinite().all())


@pytest.mark.parametrize("t", [1, 5, 40, 1000])
def test_the_root_is_a_minimum_between_its_ends(
    case: tuple[torch.Tensor, torch.Tensor, Quadratic], t: int
) -> None:
    _, _, q = case
    best = optimal_step_size(q, num_steps=t)
    assert 1 / q.smoothness <= best <= 1 / q.convexity
    around = torch.tensor([best * (1 - 1e-6), best * (1 + 1e-6)])
    low, high = meta_gradient(q, around, num_steps=t).tolist()
    assert low < 0 < high
    elsewhere = torch.logspace(-3, 0, 200)
    slopes = meta_gradient(q, elsewhere, num_steps=t)
    assert torch.equal(slopes > 0, elsewhere > best)
    value = meta_objective(q, best, num_steps=t)
    assert bool((meta_objective(q, elsewhere, num_steps=t) >= value - 1e-12).all())


def exact_root(values: list[float], coefficients: list[float], t: int) -> float:
    """The η where Σ (λc)²(1 − ηλ)^(2t−1) is 0, bisected with rational numbers."""
    nodes = [Fraction(value) for value in values]
    weights = [(Fraction(c) * lam) ** 2 for c, lam in zip(coefficients, nodes, strict=True)]
    low, high = 1 / max(nodes), 1 / min(nodes)
    for _ in range(80):
        middle = Fraction(float((low + high) / 2))  # or its digits double with every power
        terms = [
            w * (1 - middle * lam) ** (2 * t - 1) for lam, w in zip(nodes, weights, strict=True)
        ]
        low, high = (middle, high) if sum(terms) > 0 else (low, middle)
    return float(low)


@pytest.mark.parametrize("t", [1, 2, 10, 300])
@pytest.mark.parametrize(
    ("values", "coefficients"),
    [
        ([1.0, 2.0, 10.0], [1.0, 1.0, 0.0]),
        ([1.0, 2.0, 10.0], [1.0, 1.0, 1e-8]),
        ([1.0, 2.0, 10.0], [1.0, 1.0, 1e-150]),
        ([1.0, 2.0, 2.0], [1.0, 0.0, 1.0]),
        ([1.0, 2.0, 10.0], [0.0, 1.0, 1.0]),
        ([1e-6, 1.0, 7.0], [1e-9, 1e3, 1.0]),
        ([1.0, 2.0, 10.0], [0.0, 1.0, 0.0]),
    ],
)
def test_coefficients_may_be_tiny_or_zero(
    values: list[float], coefficients: list[float], t: int
) -> None:
    q = Quadratic(*(torch.tensor(each, dtype=torch.float64) for each in (values, coefficients)))
    best = optimal_step_size(q, num_steps=t)
    assert best == pytest.approx(exact_root(values, coefficients, t), rel=1e-9)


def test_directions_without_a_part_in_the_start_do_not_count() -> None:
    whole = Quadratic(
        torch.tensor([1.0, 2.0, 10.0]).double(), torch.tensor([1.0, 1.0, 0.0]).double()
    )
    seen = Quadratic(whole.eigenvalues[:2], whole.coefficients[:2])
    eta = torch.tensor([0.1, 0.5, 0.9]).double()
    for function in (meta_objective, meta_gradient):
        for t in (3, 400, 10**6):
            found = function(whole, eta, num_steps=t)
            assert bool(found.isfinite().all())
            torch.testing.assert_close(found, function(seen, eta, num_steps=t))


def test_one_eigenvalue_has_one_answer() -> None:
    q = Quadratic.of(4.0 * torch.eye(3), torch.ones(3))
    assert optimal_step_size(q, num_steps=7) == 0.25
    assert meta_gradient(q, 0.25, num_steps=7).tolist() == [0.0]


def test_the_starts_length_does_not_matter() -> None:
    H, w = random_quadratic(5)
    one, two = Quadratic.of(H, w), Quadratic.of(H, 1e6 * w)
    torch.testing.assert_close(
        meta_gradient(one, ETA, num_steps=9), meta_gradient(two, ETA, num_steps=9)
    )
    assert one.least_share == pytest.approx(two.least_share)


def test_meta_descent_comes_near_and_stays_above_zero() -> None:
    q = Quadratic.of(*random_quadratic())
    best = optimal_step_size(q, num_steps=80)
    assert 0.02 < best < 0.04
    path = meta_descent(q, num_steps=80, start=0.1)
    assert path.shape == (1001,)
    assert bool((path >= 0).all())
    assert abs(float(path[-1]) / best - 1) < 0.3
    first = 0.1 - 0.01 * float(meta_gradient(q, 0.1, num_steps=80))
    assert float(path[1]) == pytest.approx(max(first, 0.0))


def test_bounds_of_the_plain_objective(
    case: tuple[torch.Tensor, torch.Tensor, Quadratic],
) -> None:
    _, _, q = case
    eta = torch.linspace(0.1, 6.0, 60) / q.smoothness
    for t in (1, 3, 20):
        slopes = meta_gradient(q, eta, num_steps=t, log=False).abs()
        low, high = plain_slope_bounds(q, eta, num_steps=t)
        assert bool((low <= slopes * (1 + 1e-12)).all())
        assert bool((slopes <= high * (1 + 1e-12)).all())
    assert math.isinf(float(high[-1]))
    assert float(low[0]) == 0.0
    assert float(low[-1]) > 0


def test_bounds_of_the_logarithm(case: tuple[torch.Tensor, torch.Tensor, Quadratic]) -> None:
    _, _, q = case
    epsilon, most = 0.1 / q.smoothness, 3 / q.convexity
    low, high = log_slope_bounds(q, distance=epsilon, largest=most)
    eta = torch.cat([torch.linspace(0, 4 / q.smoothness, 400), torch.linspace(0, most, 400)])
    for t in (1, 10, 300):
        slopes = meta_gradient(q, eta, num_steps=t).abs()
        assert bool((slopes <= high).all())
        far = (eta - optimal_step_size(q, num_steps=t)).abs() >= epsilon
        assert bool((slopes[far] >= low).all())


def test_refusals() -> None:
    H, w = random_quadratic(4)
    with pytest.raises(ShapeError, match="needs H"):
        Quadratic.of(H, w[:3])
    with pytest.raises(InvalidArgumentError, match="symmetric"):
        Quadratic.of(torch.triu(H), w)
    with pytest.raises(InvalidArgumentError, match="positive definite"):
        Quadratic.of(torch.diag(torch.tensor([1.0, 0.0])), w[:2])
    with pytest.raises(InvalidArgumentError, match="not zero"):
        Quadratic.of(H, torch.zeros(4))
    with pytest.raises(NonFiniteError):
        Quadratic.of(H, w / 0)
    with pytest.raises(WrongTypeError):
        Quadratic.of(H, [1.0])
    with pytest.raises(WrongTypeError, match=r"`random_quadratic\(seed=...\)` must be an integer"):
        random_quadratic(4, seed=1.5)
    q = Quadratic.of(H, w)
    with pytest.raises(InvalidArgumentError, match="0 or more"):
        meta_gradient(q, torch.tensor([-1.0]), num_steps=3)
    with pytest.raises(InvalidArgumentError, match="num_steps"):
        meta_gradient(q, 0.1, num_steps=0)
    with pytest.raises(InvalidArgumentError, match="distance"):
        log_slope_bounds(q, distance=1.0 / q.smoothness, largest=9 / q.convexity)
    with pytest.raises(InvalidArgumentError, match="two different"):
        log_slope_bounds(Quadratic.of(torch.eye(2), w[:2]), distance=0.1, largest=3.0)


@pytest.mark.parametrize("values", [[3.0, 1.0], [-1.0, 3.0], [0.0, 3.0]])
def test_eigenvalues_given_directly_are_positive_and_ascending(values: list[float]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"above 0 and ascending.*`Quadratic.of"):
        Quadratic(torch.tensor(values), torch.ones(2))
    with pytest.raises(ShapeError, match="one length; got 2 and 3"):
        Quadratic(torch.tensor([1.0, 3.0]), torch.ones(3))
    with pytest.raises(InvalidArgumentError, match="is zero"):
        Quadratic(torch.tensor([1.0, 3.0]), torch.zeros(2))
    with pytest.raises(NonFiniteError, match="eigenvalues"):
        Quadratic(torch.tensor([1.0, math.nan]), torch.ones(2))
    one = Quadratic(torch.tensor([2.0, 2.0]), torch.ones(2))  # equal ones are in order
    assert optimal_step_size(one, num_steps=3) == 0.5
