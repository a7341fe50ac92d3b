"""Is the gradient that of the user's own function? Lines, slopes and double backward along them."""

import pytest
import torch
from torch import Tensor, nn

import eigenscape as es
from eigenscape.errors import SelfTestError
from eigenscape.risk import (
    double_backward,
    gradient_at,
    in_double_precision,
    moved_in_place,
    random_directions,
    samples_to_ask,
    slope_checks,
    value_at,
)


def network(activation: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), activation, nn.Linear(5, 2))


def risk_of(model: nn.Module) -> es.EmpiricalRisk:
    dtype = next(model.parameters()).dtype
    X, y = torch.randn(40, 3, dtype=dtype), torch.randint(2, (40,))
    return es.EmpiricalRisk(model, es.CrossEntropy(), (X, y))


def test_double_backward_is_the_hessian() -> None:
    risk = risk_of(network(nn.Tanh()))
    direction, _ = random_directions(risk)
    (whole,) = risk.batches
    with moved_in_place(risk, whole) as line:
        product = double_backward(line, direction)
        ends = [gradient_at(line, direction, step) for step in (1e-5, -1e-5)]
    torch.testing.assert_close(product / risk.num_terms, es.Hessian(risk) @ direction)
    torch.testing.assert_close((ends[0] - ends[1]) / 2e-5, product, rtol=1e-6, atol=1e-6)


def test_parameters_are_moved_and_come_back_bit_by_bit() -> None:
    model = network(nn.Tanh())
    risk, before = risk_of(model), [p.detach().clone() for p in model.parameters()]
    direction, _ = random_directions(risk)
    (whole,) = risk.batches
    with moved_in_place(risk, whole) as line:
        assert value_at(line, direction, 0.5) != value_at(line, direction, 0.0)
    assert all(map(torch.equal, before, model.parameters()))


def test_a_float32_model_is_looked_at_in_float64() -> None:
    risk = risk_of(network(nn.Tanh()).float())
    (whole,) = risk.batches
    direction, _ = random_directions(risk)
    with in_double_precision(risk, whole) as line:
        assert line is not None
        assert gradient_at(line, direction, 0.0).dtype == torch.float64


def test_slopes_are_compared_once_for_each_group() -> None:
    risk = risk_of(network(nn.Tanh()))
    direction, _ = random_directions(risk)
    (samples,) = samples_to_ask(risk)
    with moved_in_place(risk, samples) as line:
        checks = slope_checks(risk, line, 0, direction)
        assert slope_checks(risk, line, 0, direction) is checks
        assert slope_checks(risk, line, None, direction) is not checks
    assert len(checks) == 2
    assert all(check.is_resolved and not check.is_wrong for check in checks)


def test_a_detached_part_is_refused() -> None:
    class Detached(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.sigmoid(x).detach()

    risk = risk_of(network(Detached()))
    direction, _ = random_directions(risk)
    (samples,) = samples_to_ask(risk)
    with (
        moved_in_place(risk, samples) as line,
        pytest.raises(SelfTestError, match="not that of the loss"),
    ):
        slope_checks(risk, line, 0, direction)
