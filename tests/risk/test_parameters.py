"""Selection of parameters: by name, by pattern, never frozen ones by default, tied ones once."""

import pytest
import torch
from torch import nn

from eigenscape.errors import (
    EmptySelectionError,
    SubstitutionWarning,
    UnknownNameError,
    UnsupportedModelError,
    WrongTypeError,
)
from eigenscape.risk import eval_mode
from eigenscape.risk.parameters import common_kind, select_parameters, uncompiled


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_all_that_are_not_frozen() -> None:
    net = model()
    net[0].bias.requires_grad_(False)
    assert list(select_parameters(net, None)) == ["0.weight", "2.weight", "2.bias"]
    assert select_parameters(net, None)["2.bias"] is net[2].bias


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ("0", ["0.weight", "0.bias"]),
        (["2.bias", "0.weight"], ["0.weight", "2.bias"]),
        ("*.bias", ["0.bias", "2.bias"]),
    ],
)
def test_by_name_and_pattern_in_the_models_order(params: object, names: list[str]) -> None:
    assert list(select_parameters(model(), params)) == names


def test_a_frozen_parameter_can_be_named() -> None:
    net = model().requires_grad_(False)
    assert list(select_parameters(net, "0.bias")) == ["0.bias"]
    with pytest.raises(EmptySelectionError, match="All 4 parameters are frozen"):
        select_parameters(net, None)


def test_tied_parameters_come_once() -> None:
    net = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    net[1].weight = net[0].weight
    assert list(select_parameters(net, None)) == ["0.weight"]


def test_refusals() -> None:
    with pytest.raises(UnknownNameError, match=r"Nearest: '0.weight'"):
        select_parameters(model(), "0.wieght")
    with pytest.raises(WrongTypeError, match="got 3"):
        select_parameters(model(), 3)
    with pytest.raises(WrongTypeError, match="got a mapping"):
        select_parameters(model(), {"w": torch.ones(1)})
    with pytest.raises(WrongTypeError, match="needs `params=`"):
        select_parameters(lambda params, x: x, None)
    with pytest.raises(WrongTypeError, match="must be an nn"):
        select_parameters(3, None)
    with pytest.raises(EmptySelectionError, match="no parameters"):
        select_parameters(nn.ReLU(), None)
    with pytest.raises(UnsupportedModelError, match=r"model\.0\.sparse = False"):
        select_parameters(nn.Sequential(nn.Embedding(3, 2, sparse=True)), None)


def test_one_kind() -> None:
    assert common_kind({"a": torch.ones(2)}) == (torch.float64, torch.device("cpu"))
    with pytest.raises(WrongTypeError, match="share one dtype and device"):
        common_kind({"a": torch.ones(2), "b": torch.ones(2, dtype=torch.float32)})
    with pytest.raises(WrongTypeError, match=r"'a' must be.*complex"):
        common_kind({"a": torch.ones(2, dtype=torch.complex128)})
    with pytest.raises(WrongTypeError, match="meta"):
        common_kind({"a": torch.ones(2, device="meta")})
    with pytest.raises(EmptySelectionError, match="no entries"):
        common_kind({"a": torch.ones(0)})


def test_lazy_layers_must_have_run() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(WrongTypeError, match=r"'0.weight' has no shape yet.*Run one batch"):
        select_parameters(model, None)
    model(torch.ones(2, 5))
    assert common_kind(dict(model.named_parameters()))[0] == torch.get_default_dtype()


def test_compiled_models_are_unwrapped() -> None:
    net = model()
    assert uncompiled(net) is net
    with pytest.warns(SubstitutionWarning, match="compiled"):
        assert uncompiled(torch.compile(net, backend="aot_eager")) is net


def test_every_part_gets_its_own_mode_back() -> None:
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2))
    model[1].eval()
    with eval_mode(model):
        assert not any(part.training for part in model.modules())
    assert [part.training for part in model.modules()] == [True, True, False]


def test_gradients_scaled_by_counts_are_refused() -> None:
    model = nn.Sequential(nn.Embedding(7, 4, scale_grad_by_freq=True))
    with pytest.raises(UnsupportedModelError, match=r"scale_grad_by_freq = False"):
        select_parameters(model, None)
