"""Finding a layer, cutting the graph at its output, and applying it to other parameters."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape.errors import UnknownNameError, UnsupportedModelError, WrongTypeError
from eigenscape.risk import (
    CrossEntropy,
    EmpiricalRisk,
    Tail,
    apply_layer,
    capture_tail,
    find_layer,
    from_matrices,
    input_numbers,
    input_vectors,
    is_lookup,
    matrix_obstacle,
    to_matrices,
)
from tests.cases import Recurrent, TwoInputs, case

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(6) % 3


def risk_of(*middle: nn.Module) -> EmpiricalRisk:
    model = nn.Sequential(nn.Linear(4, 5), *(middle or (nn.Tanh(),)), nn.Linear(5, 3))
    return EmpiricalRisk(model, CrossEntropy(), (X, Y))


def test_layers_are_found_by_their_own_name_or_a_parameters() -> None:
    risk = risk_of()
    layer = find_layer(risk, "2")
    assert (layer.name, layer.params, layer.fields) == (
        "2",
        ("2.weight", "2.bias"),
        ("weight", "bias"),
    )
    assert layer.module is risk.module[2]
    assert layer.obstacle is None
    assert find_layer(risk, "2.bias").params == ("2.bias",)
    root = EmpiricalRisk(nn.Linear(4, 3), CrossEntropy(), (X, Y))
    assert find_layer(root, "").fields == ("weight", "bias")
    assert find_layer(root, "weight").name == ""


def test_unknown_layers_are_refused() -> None:
    risk = risk_of()
    with pytest.raises(UnknownNameError, match=r"'2.wieght'.*Nearest: '2.weight'"):
        find_layer(risk, "2.wieght")
    with pytest.raises(UnknownNameError, match="no layer of that name with parameters"):
        find_layer(risk, "1")
    with pytest.raises(WrongTypeError, match="needs the name of a layer; got int"):
        find_layer(risk, 0)
    with pytest.raises(WrongTypeError, match="pure function"):
        find_layer(case("pure-function").risk(), "W")


def test_obstacles_are_named() -> None:
    assert "tied to 'head.weight'" in str(
        find_layer(case("attention-fused").risk(), "emb").obstacle
    )
    assert "not known to be linear" in str(find_layer(case("lstm").risk(), "rnn").obstacle)
    assert find_layer(case("cnn-batchnorm").risk(), "1").obstacle is None
    assert isinstance(case("lstm").model, Recurrent)


@pytest.mark.parametrize("middle", [nn.Tanh(), nn.ReLU(inplace=True)], ids=["tanh", "in place"])
def test_the_tail_is_the_loss_as_a_function_of_the_output(middle: nn.Module) -> None:
    risk = risk_of(middle)
    model, (batch,) = risk.module, risk.batches
    layer = find_layer(risk, "0")
    tail = capture_tail(risk, layer, batch)
    assert isinstance(model, nn.Sequential)
    z = model[0](X)
    torch.testing.assert_close(tail.output, z.detach())
    assert tail.output.is_leaf
    assert torch.equal(tail.args[0], X)
    expected = torch.autograd.grad(
        nn.functional.cross_entropy(model[2](model[1](z)), Y, reduction="sum"), model[0].bias
    )[0]
    (slope,) = torch.autograd.grad(tail.total, tail.output)
    torch.testing.assert_close(slope.sum(0), expected)
    assert not model[0]._forward_hooks


def test_applying_a_layer_is_its_jacobian() -> None:
    for name, layers in (
        ("cnn-batchnorm", ["0", "1", "4", "7"]),
        ("embedding-padding", ["emb", "fc"]),
        ("layernorm", ["1"]),
        ("dense-prediction", ["2"]),
        ("two-inputs", ["pair"]),
    ):
        risk = case(name).risk()
        (batch,) = risk.batches
        for chosen in layers:
            layer = find_layer(risk, chosen)
            part = risk.restricted(layer.params)
            with part.evaluating():
                tail = capture_tail(part, layer, batch)
                own = {
                    f: part.parameters()[p] for f, p in zip(layer.fields, layer.params, strict=True)
                }
                if not getattr(layer.module, "padding_idx", None):
                    torch.testing.assert_close(apply_layer(layer, own, tail), tail.output.detach())
                double = apply_layer(layer, {f: 2 * v for f, v in own.items()}, tail)
                torch.testing.assert_close(double, 2 * apply_layer(layer, own, tail))


def test_layers_that_run_twice_or_never_or_return_more_are_refused() -> None:
    risk = case("two-inputs").risk()
    assert isinstance(risk.module, TwoInputs)
    (batch,) = risk.batches
    with pytest.raises(UnsupportedModelError, match="'twice' ran 2 times"):
        capture_tail(risk, find_layer(risk, "twice"), batch)
    risk = case("unused-frozen").risk()
    (batch,) = risk.batches
    with pytest.raises(UnsupportedModelError, match="'never' ran 0 times"):
        capture_tail(risk, find_layer(risk, "never"), batch)

    class Pair(nn.Linear):
        def forward(self, x: Tensor) -> tuple[Tensor, None]:
            return super().forward(x), None

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = Pair(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x)[0]

    risk = EmpiricalRisk(Model(), CrossEntropy(), (X, Y))
    with pytest.raises(UnsupportedModelError, match="'fc' returns a tuple"):
        capture_tail(risk, find_layer(risk, "fc"), next(iter(risk.batches)))
    assert not risk.module.fc._forward_hooks


def test_embeddings_are_lookups_and_their_matrix_is_the_weight_transposed() -> None:
    model = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 3))
    ids = torch.randint(0, 7, (6, 3))
    risk = EmpiricalRisk(model, CrossEntropy(), (ids, Y))
    layer = find_layer(risk, "0")
    assert is_lookup(layer)
    assert not is_lookup(find_layer(risk, "2"))
    assert "Embedding is no linear layer" in str(matrix_obstacle(layer))
    (batch,) = risk.batches
    assert torch.equal(input_numbers(capture_tail(risk, layer, batch)), ids)
    rows = torch.randn(2, 28)
    W = to_matrices(layer, rows, 4)
    assert W.shape == (2, 4, 7)
    assert torch.equal(W[1, 2], rows[1].view(7, 4)[:, 2])
    assert torch.equal(from_matrices(layer, W), rows)


def test_a_bias_is_the_last_column() -> None:
    layer = find_layer(risk_of(), "0")
    rows = torch.randn(2, 25)
    W = to_matrices(layer, rows, 5)
    assert torch.equal(W[0, :, 4], rows[0, 20:])
    assert torch.equal(W[1, 3, :4], rows[1, 12:16])
    assert torch.equal(from_matrices(layer, W), rows)


@pytest.mark.parametrize("stride", [1, (2, 3)])
@pytest.mark.parametrize("dilation", [1, (3, 2)])
def test_patches_are_those_of_unfold(stride: Any, dilation: Any) -> None:
    x = torch.randn(3, 2, 11, 9, dtype=torch.float64)
    module = nn.Conv2d(2, 4, (2, 3), stride=stride, dilation=dilation, padding=1, bias=False)
    model = nn.Sequential(module, nn.Flatten(), nn.LazyLinear(3)).double()
    model(x)  # so that its last layer has a size
    layer = find_layer(EmpiricalRisk(model, CrossEntropy(), (x, Y[:3])), "0")
    found = input_vectors(layer, Tail((x,), {}, x, x, x))
    expected = F.unfold(x, (2, 3), dilation=dilation, padding=1, stride=stride)
    torch.testing.assert_close(found, expected.transpose(1, 2))
