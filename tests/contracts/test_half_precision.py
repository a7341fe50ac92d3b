"""A model evaluated in bfloat16: what is rounded, what is not, what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape.curvature import Hessian, LayerHessian
from eigenscape.errors import InvalidArgumentError, UnsupportedModelError
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from tests.small_net import X, Y, close, flat_gradient, net, oracle

X32 = (X.float(), Y)


def bfloat16_risk(model: nn.Module | Callable[..., Any], **options: Any) -> EmpiricalRisk:
    return EmpiricalRisk(model, CrossEntropy(), X32, autocast=torch.bfloat16, **options)


def test_the_model_runs_in_bfloat16_and_the_loss_does_not() -> None:
    seen: list[torch.dtype] = []
    model = net().float()
    model[2].register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    risk = bfloat16_risk(model)
    batch = next(iter(risk.batches))
    with risk.evaluating():
        logits = risk.output(risk.parameters(), batch)
        total, _ = risk.total(risk.parameters(), batch)
    assert set(seen) == {torch.bfloat16}
    assert logits.dtype == total.dtype == risk.gradient().dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        expected = F.cross_entropy(model(X.float()).float(), Y).item()
    assert risk.value() == pytest.approx(expected, rel=1e-6)
    assert not torch.is_autocast_enabled("cpu")


def test_derivatives_of_a_bfloat16_model_are_as_good_as_its_dtype() -> None:
    model = net(nn.BatchNorm1d(5), nn.Tanh()).eval()
    expected, slope = oracle(model), flat_gradient(model)
    risk = bfloat16_risk(model.float(), batch_size=4)
    assert not torch.equal(risk.gradient(), EmpiricalRisk(model, CrossEntropy(), X32).gradient())
    close(risk.gradient(), slope, rtol=3e-2)
    H = Hessian(risk)
    close(H.to_dense(), expected, rtol=5e-2)
    assert (H.plan.chosen, H.plan.reason) == ("graph", "half precision")
    for layer, part in (("0", slice(0, 25)), ("3", slice(-18, None))):
        block = LayerHessian(risk, layer, representation="tail")
        close(block.to_dense(), expected[part, part], rtol=5e-2)


def test_pure_functions_run_in_bfloat16_too() -> None:
    weight = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).float()

    def linear(params: dict[str, Tensor], x: Tensor) -> Tensor:
        return F.linear(x, params["w"])

    found = bfloat16_risk(linear, params={"w": weight}).gradient()
    exact = EmpiricalRisk(linear, CrossEntropy(), X32, params={"w": weight}).gradient()
    assert 1e-4 < (found - exact).norm() / exact.norm() < 3e-2


@pytest.mark.parametrize(
    ("dtype", "autocast"),
    [
        (torch.float64, torch.bfloat16),  # autocast leaves float64 alone
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.bfloat16),
        (torch.float32, torch.float16),
        (torch.float32, torch.float32),
        (torch.float32, "bfloat16"),
    ],
)
def test_autocast_that_makes_no_sense_is_refused(dtype: torch.dtype, autocast: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="autocast="):
        EmpiricalRisk(net().to(dtype), CrossEntropy(), (X, Y), autocast=autocast)


def test_traces_of_a_bfloat16_model_are_refused() -> None:
    risk = bfloat16_risk(net().float())
    for representation in ("linearised", "compiled"):
        with pytest.raises(UnsupportedModelError, match="use 'graph'"):
            Hessian(risk, representation=representation)
