import math
import warnings

import pytest
import torch
from torch import nn

from eigenscape.curvature import GaussNewton, Hessian
from eigenscape.errors import (
    ConvergenceWarning,
    InvalidArgumentError,
    NonFiniteError,
    ShapeError,
    WrongTypeError,
)
from eigenscape.operator import Dense
from eigenscape.risk import CrossEntropy, EmpiricalRisk, SquaredError
from eigenscape_papers.stepsize import (
    Quadratic,
    best_step_size,
    loss_after,
    optimal_step_size,
    random_quadratic,
)
from eigenscape_papers.stepsize._measure import first_root


def model_change(H: torch.Tensor, g: torch.Tensor, eta: float, t: int) -> float:
    """gᵀδ + ½ δᵀHδ, by taking the steps."""
    delta = torch.zeros_like(g)
    for _ in range(t):
        delta = delta - eta * (g + H @ delta)
    return float(g @ delta + 0.5 * delta @ H @ delta)


@pytest.mark.parametrize("t", [1, 2, 5, 12])
def test_as_many_products_as_steps_are_exact(t: int) -> None:
    H, w = random_quadratic(15)
    found = best_step_size(Dense(H), H @ w, num_steps=t, num_products=t)
    assert found.num_products == t + 1  # one certifies λ_max
    assert found.error == 0
    best = optimal_step_size(Quadratic.of(H, w), num_steps=t)
    assert found.step_size == pytest.approx(best, rel=1e-9)
    assert found.change == pytest.approx(model_change(H, H @ w, best, t), rel=1e-8)
    other = float(found.change_after(0.3 * best))
    assert other == pytest.approx(model_change(H, H @ w, 0.3 * best, t), rel=1e-8)
    assert found.change <= found.stable_change
    assert float(found.weights.sum()) == pytest.approx(float((H @ w).square().sum()))


def test_one_step_is_the_line_search() -> None:
    H, w = random_quadratic(6)
    g = H @ w
    found = best_step_size(Dense(H), g, num_steps=1)
    assert found.step_size == pytest.approx(float(g @ g / (g @ H @ g)))
    assert found.change < found.stable_change
    assert found.stable == pytest.approx(2 / float(torch.linalg.eigvalsh(H)[-1]))


@pytest.mark.parametrize("part", [1e-3, 1e-8, 1e-12, 0.0])
def test_the_line_search_bears_a_gradient_that_hardly_sees_the_sharpest_direction(
    part: float,
) -> None:
    values = torch.tensor([1.0, 2.0, 5.0, 100.0], dtype=torch.float64)
    g = torch.tensor([1.0, 1.0, 1.0, part], dtype=torch.float64)
    found = best_step_size(Dense(torch.diag(values)), g, num_steps=1)
    assert found.step_size == pytest.approx(float(g @ g / (g @ (values * g))), rel=1e-10)


def test_a_network_that_has_gone_down_its_sharpest_directions() -> None:
    # Steps of 1/λ_max take out the sharpest direction first, so the gradient has no part in it.
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(60, 8, generator=draw, dtype=torch.float64) * torch.logspace(1, -1, 8)
    model = nn.Linear(8, 1, dtype=torch.float64)
    risk = EmpiricalRisk(model, SquaredError(), (x, x.sum(1, keepdim=True)))
    H = Hessian(risk).to_dense()
    for _ in range(8):
        step = risk.space.unflatten(risk.gradient())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter -= step[name] / torch.linalg.eigvalsh(H)[-1]
    g = risk.gradient()
    found = best_step_size(Hessian(risk), g, num_steps=1)
    assert found.step_size == pytest.approx(float(g @ g / (g @ H @ g)), rel=1e-9)
    assert risk.value() + found.change == pytest.approx(
        loss_after(risk, found.step_size, num_steps=1), rel=1e-9
    )


def test_the_line_search_with_curvature_of_both_signs() -> None:
    H = torch.diag(torch.tensor([1.0, -0.99], dtype=torch.float64))
    found = best_step_size(Dense(H), torch.ones(2, dtype=torch.float64), num_steps=1)
    assert found.step_size == pytest.approx(200.0)
    assert "first minimum" not in found.status.text


@pytest.mark.parametrize("power", [-0.5, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("t", [200, 10_000])
def test_the_error_covers_what_more_products_change(power: float, t: int) -> None:
    values = torch.logspace(-4, 0, 150, dtype=torch.float64)
    misses = []
    for seed in range(4):
        draw = torch.Generator().manual_seed(seed)
        g = torch.randn(150, generator=draw, dtype=torch.float64) * values**power
        found = best_step_size(Dense(torch.diag(values)), g, num_steps=t, num_products=20)
        exact = first_root(values, g.square(), t)
        assert exact is not None
        misses.append(abs(found.step_size - exact) / found.error)
    # An estimate: as the docstring says, it falls short in few of many cases, and not by much.
    assert max(misses) < 2.5
    assert sum(miss > 1 for miss in misses) <= 1


@pytest.mark.parametrize("seed", range(5))
def test_few_products_come_with_an_error_that_is_not_too_small(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    Q = torch.linalg.qr(torch.randn(120, 120, generator=draw)).Q
    values = torch.cat([torch.tensor([5.0, 3.0, 2.5]), torch.logspace(-4, 0, 117)])
    H = (Q * values) @ Q.T
    H = (H + H.T) / 2
    w = torch.randn(120, generator=draw)
    found = best_step_size(Dense(H), H @ w, num_steps=300, num_products=12)
    assert found.num_products == 13
    best = optimal_step_size(Quadratic.of(H, w), num_steps=300)
    assert abs(found.step_size - best) <= found.error + 1e-3 * best
    assert found.error < 0.1 * best
    assert found.stable == pytest.approx(2 / 5.0, rel=1e-4)
    assert abs(found.largest - 5.0) <= found.largest_residual


@pytest.mark.parametrize("num_products", [2, 6, 40])
@pytest.mark.parametrize("n", [5, 30])
def test_an_eigenvalue_is_within_the_residual_also_in_float32(n: int, num_products: int) -> None:
    # What Lanczos itself says of its residual falls to 1e-27 here.
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        A = torch.randn(n, n, generator=draw, dtype=torch.float32)
        A = (A + A.T) / 2 if seed % 2 else A @ A.T / n
        H = Dense((A + A.T) / 2)
        g = torch.randn(n, generator=draw, dtype=torch.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # η* is of no interest
            found = best_step_size(H, g, num_steps=2, num_products=num_products)
        values = torch.linalg.eigvalsh(H.to_dense().double())
        assert float((values - found.largest).abs().min()) <= found.largest_residual
        if num_products >= n:  # a tight certificate, too: a few roundings of ‖H‖
            assert found.largest_residual < 20 * 1.2e-7 * float(values.abs().max())


def test_the_residual_is_that_of_the_ritz_vector() -> None:
    H, w = random_quadratic(12)
    found = best_step_size(Dense(H), H @ w, num_steps=3, num_products=3)
    V = torch.linalg.qr(torch.stack([torch.linalg.matrix_power(H, k) @ w for k in (1, 2, 3)], 1)).Q
    values, vectors = torch.linalg.eigh(V.T @ H @ V)
    v = V @ vectors[:, -1]
    assert found.largest == pytest.approx(float(values[-1]))
    assert found.largest_residual == pytest.approx(float((H @ v - values[-1] * v).norm()))


def test_flat_directions_are_no_trouble() -> None:
    H = Dense(torch.diag(torch.tensor([2.0, 1.0, 0.0])))
    g = torch.tensor([1.0, 1.0, 0.5])
    found = best_step_size(H, g, num_steps=4)
    eta = torch.linspace(0.01, 1.2, 4000)
    best = eta[found.change_after(eta).argmin()]
    assert found.step_size == pytest.approx(float(best), abs=1e-3)
    expected = model_change(H.to_dense(), g, found.step_size, 4)
    assert found.change == pytest.approx(expected)


def test_negative_curvature_is_told() -> None:
    H = Dense(torch.diag(torch.tensor([4.0, 1.0, -0.1])))
    g = torch.tensor([1.0, 1.0, 0.5])
    found = best_step_size(H, g, num_steps=3)
    assert "negative curvature" in found.status.text
    eta = torch.linspace(0.001, found.step_size * 1.01, 3000)
    values = found.change_after(eta)
    assert float(eta[values.argmin()]) == pytest.approx(found.step_size, rel=1e-3)
    H = Dense(torch.diag(torch.tensor([0.1, -3.0])))
    with pytest.warns(ConvergenceWarning, match="without end"):
        lost = best_step_size(H, torch.ones(2), num_steps=3)
    assert math.isnan(lost.step_size)
    assert math.isnan(lost.change)
    assert math.isinf(lost.error)
    assert lost.columns() == {"λ_max": [pytest.approx(0.1)], "λ_min": [pytest.approx(-3.0)]}
    with pytest.warns(ConvergenceWarning, match="without end"):
        down = best_step_size(Dense(-torch.eye(2)), torch.ones(2), num_steps=2)
    assert math.isinf(down.stable)
    assert "negative curvature down to -1 is all" in down.status.text
    with pytest.warns(ConvergenceWarning, match="no curvature at all"):
        flat = best_step_size(Dense(torch.zeros(2, 2)), torch.ones(2), num_steps=2)
    assert "negative" not in flat.status.text
    assert math.isnan(flat.step_size)


@pytest.mark.parametrize("t", [9, 5000])  # after 5000 steps both ends of the sum are infinite
def test_minima_that_negative_curvature_makes_are_no_answer(t: int) -> None:
    H = torch.diag(torch.tensor([3.0, -2.0]))
    g = torch.tensor([1.0, 0.3])
    with pytest.warns(ConvergenceWarning, match="without end"):
        wild = best_step_size(Dense(H), g, num_steps=t)
    assert first_root(wild.nodes, wild.weights, t) is not None
    assert math.isnan(wild.step_size)
    assert math.isnan(wild.change)
    assert wild.smallest == pytest.approx(-2.0)


def test_too_few_products_warn() -> None:
    H, w = random_quadratic(30)
    with pytest.warns(ConvergenceWarning, match="more products"):
        best_step_size(Dense(H), H @ w, num_steps=50, num_products=1)


def test_a_linear_network_does_what_the_model_says() -> None:
    model = nn.Linear(5, 2)
    x, y = torch.randn(30, 5), torch.randn(30, 2)
    risk = EmpiricalRisk(model, SquaredError(), (x, y))
    found = best_step_size(Hessian(risk), risk.gradient(), num_steps=6)
    before = risk.value()
    for _ in range(6):
        step = risk.space.unflatten(risk.gradient())
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter -= found.step_size * step[name]
    assert risk.value() - before == pytest.approx(found.change, rel=1e-8)


def test_a_network_with_its_hessian_and_gauss_newton() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    risk = EmpiricalRisk(model, CrossEntropy(), (torch.randn(40, 4), torch.arange(40) % 3))
    g = risk.gradient()
    for operator, t in ((Hessian(risk), 1), (GaussNewton(risk), 8)):
        found = best_step_size(operator, g, num_steps=t)
        dense = operator.to_dense()
        expected = model_change(dense, g, found.step_size, t)
        assert found.change == pytest.approx(expected, rel=1e-6)
        values = torch.linalg.eigvalsh(dense)
        assert found.largest <= float(values[-1]) + 1e-9
        assert found.largest == pytest.approx(float(values[-1]), rel=0.05)
    assert found.smallest > -1e-12
    table = found.to_frame()
    assert list(table["η"]) == [found.step_size, found.stable / 2, found.stable]


def test_refusals() -> None:
    H = Dense(torch.eye(3))
    with pytest.raises(ShapeError, match=r"\(3,\)"):
        best_step_size(H, torch.ones(2), num_steps=1)
    with pytest.raises(InvalidArgumentError, match="zero"):
        best_step_size(H, torch.zeros(3), num_steps=1)
    with pytest.raises(NonFiniteError):
        best_step_size(H, torch.tensor([1.0, math.nan, 1.0]), num_steps=1)
    with pytest.raises(InvalidArgumentError, match="num_steps"):
        best_step_size(H, torch.ones(3), num_steps=0)
    with pytest.raises(WrongTypeError):
        best_step_size(torch.eye(3), torch.ones(3), num_steps=1)


def test_steps_on_the_network_are_taken_back() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    data = (torch.randn(20, 4), torch.arange(20) % 3)
    risk = EmpiricalRisk(model, CrossEntropy(), data)
    before = [p.detach().clone() for p in model.parameters()]
    found = loss_after(risk, 0.3, num_steps=4)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(4):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(data[0]), data[1]).backward()
        optimiser.step()
    loss = nn.functional.cross_entropy(model(data[0]), data[1]).detach()
    assert found == pytest.approx(float(loss))
    linear = EmpiricalRisk(nn.Linear(4, 1), SquaredError(), (data[0], torch.ones(20, 1)))
    assert math.isinf(loss_after(linear, 1e200, num_steps=9))
