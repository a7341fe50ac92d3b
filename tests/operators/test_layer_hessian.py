"""Layer blocks: fallbacks, checks and refusals. The numbers are in `tests/contracts`."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape.errors import SubstitutionWarning, UnknownNameError, WrongTypeError
from eigenscape.losses import CrossEntropy, SquaredError
from eigenscape.operators import Hessian, LayerHessian
from eigenscape.risk import EmpiricalRisk
from eigenscape.testing import check_operator
from tests.cases import case, mlp

X = torch.randn(11, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(11) % 3


def test_closed_form_of_the_last_layer() -> None:
    """Softmax regression: mean (diag p − ppᵀ) ⊗ aaᵀ."""
    risk = EmpiricalRisk(
        nn.Sequential(nn.Linear(4, 3, bias=False)), CrossEntropy(), (X, Y), batch_size=4
    )
    p = risk.module(X).softmax(1).detach()
    M = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    expected = torch.einsum("nab,ni,nj->aibj", M, X, X).reshape(12, 12) / 11
    check_operator(LayerHessian(risk, "0"), expected, rtol=1e-12)


def test_nothing_before_the_layer_is_evaluated_again() -> None:
    class Head(nn.Module):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return torch.tanh(self.fc(x))

    head = Head()
    model = nn.Sequential(head, nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    risk = EmpiricalRisk(model, CrossEntropy(), (X, Y), batch_size=4)
    block = LayerHessian(risk, "1")
    block @ torch.ones(36)
    before = head.calls
    block @ torch.ones(36, 3)
    assert head.calls == before


class UsedElsewhere(nn.Module):
    """A weight that the model also reads behind the module's back."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(F.linear(self.fc(x), self.fc.weight)))


class Penalised(nn.Linear):
    """A linear layer in name only."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.weight.square().sum()


def test_the_check_catches_what_the_layer_does_not_say() -> None:
    odd = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), Penalised(5, 3))
    for model, layer in ((UsedElsewhere(), "fc"), (odd, "2")):
        risk = EmpiricalRisk(model, CrossEntropy(), (X, Y), batch_size=4)
        with pytest.warns(SubstitutionWarning, match="disagrees with double backward") as caught:
            operator = LayerHessian(risk, layer)
        assert caught[0].filename == __file__
        assert operator.representation == "full"
        check_operator(operator, Hessian(risk)[layer].to_dense())


def test_parts_of_a_layer() -> None:
    c = case("cnn-batchnorm")
    risk = c.risk(4)
    for name in ("1.weight", "4.bias", "7.weight"):
        index = risk.space.block(name).index()
        operator = LayerHessian(risk, name)
        assert operator.space.names == (name,)
        check_operator(operator, c.hessian()[index][:, index], atol=1e-12)


def test_frozen_parts_are_left_out() -> None:
    model = mlp(4, 5, 3)
    model[2].bias.requires_grad_(False)
    risk = EmpiricalRisk(model, CrossEntropy(), (X, Y))
    operator = LayerHessian(risk, "2")
    assert operator.space.names == ("2.weight",)
    check_operator(operator, Hessian(risk)["2.weight"].to_dense())


def test_the_budget_changes_no_answer() -> None:
    c = case("conv1d")
    index = c.risk().space.block("0").index()
    for budget in (0, 2000):
        operator = LayerHessian(c.risk(3), "0", memory_budget=budget)
        check_operator(operator, c.hessian()[index][:, index])


def test_a_linear_loss_has_no_curvature() -> None:
    risk = EmpiricalRisk(nn.Sequential(nn.Linear(4, 3)), lambda z, y: (z * y).mean(), (X, X[:, :3]))
    assert not LayerHessian(risk, "0").to_dense().any()
    squared = EmpiricalRisk(nn.Sequential(nn.Linear(4, 3)), SquaredError(), (X, X[:, :3]))
    assert LayerHessian(squared, "0").to_dense().any()


def test_refusals() -> None:
    risk = case("mlp-tanh").risk()
    with pytest.raises(UnknownNameError, match="no layer of that name"):
        LayerHessian(risk, "1")
    with pytest.raises(WrongTypeError, match="needs the name of a layer"):
        LayerHessian(risk, 0)
