"""Which matrices are refused as not symmetric, and that rounding alone is no reason."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import eigenscape as es
from eigenscape.errors import UnsupportedModelError

SEEDS = range(10)


def saturated(layer: nn.Linear, x: Tensor, gap: float) -> es.EmpiricalRisk:
    """A risk of one sample at which the first logit exceeds the others by a gap."""
    with torch.no_grad():
        layer.bias.sub_(layer(x)[0])
        layer.bias[0] += gap
    data = x, torch.tensor([1])
    return es.EmpiricalRisk(layer, es.CrossEntropy(), data, self_test=False)


def small_curvature(layer: nn.Linear, x: Tensor, v: Tensor) -> Tensor:
    """(p_i δ_ij − p_i p_j) (x, 1)(x, 1)ᵀ v without a difference of large numbers."""
    with torch.no_grad():
        p = layer(x)[0].softmax(0)
    others = torch.stack([p[torch.arange(len(p)) != i].sum() for i in range(len(p))])
    curvature = (p * others).diag() - (p[:, None] * p) * (1 - torch.eye(len(p)))
    V = torch.cat([v[: layer.weight.numel()].view_as(layer.weight), v[-len(p) :, None]], 1)
    extended = torch.cat([x[0], torch.ones(1)])
    MV = curvature @ (V @ extended)[:, None] * extended
    return torch.cat([MV[:, :-1].flatten(), MV[:, -1]])


@pytest.mark.parametrize("size", [1.0, 10.0, 100.0, 1000.0])
@pytest.mark.parametrize("gap", [20.0, 24.0])
def test_a_saturated_output_is_answered_to_what_rounding_leaves(size: float, gap: float) -> None:
    """Asymmetry is up to 1e-6 of such products: p⊙t − p (p·t) is a difference of large numbers."""
    for seed in SEEDS:
        torch.manual_seed(seed)
        layer, x, v = nn.Linear(3, 3), size * torch.randn(1, 3), torch.randn(12)
        risk = saturated(layer, x, gap)
        expected = small_curvature(layer, x, v)
        for matrix in (es.GaussNewton(risk), es.Hessian(risk)):
            assert (matrix @ v - expected).norm() <= 1e-4 * expected.norm()


@pytest.mark.parametrize("size", [1.0, 100.0])
def test_a_false_derivative_is_refused_at_a_saturated_output(size: float) -> None:
    for seed in SEEDS:
        torch.manual_seed(seed)
        layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
        with torch.no_grad():
            layer.parametrizations.weight.original0.mul_(1.7)
        risk = saturated(layer, size * torch.randn(1, 3), 15.0)
        with pytest.raises(UnsupportedModelError, match="is not symmetric"):
            es.Hessian(risk) @ torch.ones(risk.space.size)


class RoundedGradient(torch.autograd.Function):
    """A backward pass in float32 behind a float64 forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.float().double()


class Rounding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return RoundedGradient.apply(torch.tanh(x))


def test_a_backward_pass_in_less_precision_is_refused() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 6), Rounding(), nn.Linear(6, 3))
    data = torch.randn(9, 4), torch.randint(0, 3, (9,))
    risk = es.EmpiricalRisk(model, es.CrossEntropy(), data, self_test=False)
    with pytest.raises(UnsupportedModelError, match="is not symmetric"):
        es.Hessian(risk) @ torch.ones(risk.space.size)
