"""Squared gradients of single samples, against gradients that autograd takes one by one."""

import pytest
import torch
from torch import Tensor, nn

from eigenscape.analyses.whole import _squared_gradients as module
from eigenscape.analyses.whole._squared_gradients import (
    by_position,
    covered_layers,
    normalised,
    squared_gradients,
)
from eigenscape.errors import UnsupportedModelError, WrongTypeError
from eigenscape.risk import CrossEntropy, EmpiricalRisk, capture_tail, find_layer
from tests.cases import N, case, normal, shaken

Y = torch.arange(N) % 3
INSTEAD = "Do something else."


class Bag(nn.Module):
    def __init__(self, padding: int | None) -> None:
        super().__init__()
        self.emb, self.fc = nn.Embedding(6, 4, padding_idx=padding), nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(torch.tanh(self.emb(ids)).mean(1))


def head(*layers: nn.Module, size: int) -> nn.Sequential:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(size, 3))


IDS = torch.arange(N * 5).view(N, 5) * 7 % 6
LAYERS = {
    "linear": lambda: (head(nn.Linear(4, 5), size=5), normal(N, 4), "0"),
    "linear at positions": lambda: (head(nn.Linear(4, 5), size=35), normal(N, 7, 4), "0"),
    "convolution": lambda: (head(nn.Conv2d(2, 3, (3, 2)), size=60), normal(N, 2, 7, 5), "0"),
    "groups": lambda: (head(nn.Conv1d(4, 6, 3, groups=2), size=30), normal(N, 4, 7), "0"),
    "embedding": lambda: (Bag(None), IDS, "emb"),
    "padding": lambda: (Bag(2), IDS, "emb"),
    "layer norm": lambda: (head(shaken(nn.LayerNorm((3, 4))), size=24), normal(N, 2, 3, 4), "0"),
    "rms norm": lambda: (head(shaken(nn.RMSNorm(4)), size=12), normal(N, 3, 4), "0"),
    "group norm": lambda: (head(shaken(nn.GroupNorm(2, 6)), size=30), normal(N, 6, 5), "0"),
    "batch norm": lambda: (head(shaken(nn.BatchNorm1d(6)), size=30), normal(N, 6, 5), "0"),
    "instance norm": lambda: (
        head(shaken(nn.InstanceNorm1d(6, affine=True)), size=30), normal(N, 6, 5), "0",
    ),
}  # fmt: skip


def truth(layer: nn.Module, inputs: Tensor, slope: Tensor) -> dict[str, float]:
    """Σ_n ‖∂⟨δ_n, f(x_n)⟩/∂θ‖² for each parameter of a layer, sample by sample."""
    layer.eval()
    sums = dict.fromkeys((name for name, _ in layer.named_parameters()), 0.0)
    for x, delta in zip(inputs.split(1), slope.split(1), strict=True):
        value = (layer(x) * delta).sum()
        slopes = torch.autograd.grad(value, list(layer.parameters()))
        for name, g in zip(sums, slopes, strict=True):
            sums[name] += float(g.square().sum())
    return sums


def prepared(name: str, num_roots: int) -> tuple[dict[str, float], dict[str, float]]:
    model, x, layer_name = LAYERS[name]()
    risk = EmpiricalRisk(model, CrossEntropy(), (x, Y))
    layer = find_layer(risk, layer_name)
    with torch.enable_grad(), risk.evaluating():
        tail = capture_tail(risk, layer, next(iter(risk.batches)))
        slope = torch.randn_like(tail.output)
        norms = squared_gradients(layer, tail, num_roots)
        answers = {field: float(norm(slope)) for field, norm in norms.items()}
    return answers, truth(layer.module, x, slope)


@pytest.mark.parametrize("num_roots", [1, 500])  # the cheaper way depends on it
@pytest.mark.parametrize("name", LAYERS)
def test_sums_are_those_of_single_gradients(name: str, num_roots: int) -> None:
    answers, expected = prepared(name, num_roots)
    assert answers == pytest.approx(expected, rel=1e-12)
    assert answers != pytest.approx({k: 1.001 * v for k, v in expected.items()}, rel=1e-12)


@pytest.mark.parametrize("name", ["linear at positions", "convolution", "groups", "embedding"])
def test_few_samples_at_a_time_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_NUMBERS", 60)
    for num_roots in (1, 500):
        answers, expected = prepared(name, num_roots)
        assert answers == pytest.approx(expected, rel=1e-12)


def test_positions_are_laid_out_as_the_layer_has_them() -> None:
    z = torch.arange(2.0 * 3 * 5).view(2, 3, 5)
    assert torch.equal(by_position(nn.Linear(4, 5), z), z)
    assert torch.equal(by_position(nn.Conv1d(4, 3, 1), z), z.transpose(1, 2))
    assert torch.equal(by_position(nn.BatchNorm1d(3), z), z.transpose(1, 2))
    assert torch.equal(by_position(nn.LayerNorm((3, 5)), z), z.view(2, 1, 15))
    assert torch.equal(by_position(nn.Linear(4, 5), z[:, 0]), z[:, :1])


def test_a_normalisation_is_seen_without_its_scale() -> None:
    model = head(shaken(nn.LayerNorm(4)), size=12)
    x = normal(N, 3, 4)
    risk = EmpiricalRisk(model, CrossEntropy(), (x, Y))
    layer = find_layer(risk, "0")
    with torch.enable_grad(), risk.evaluating():
        tail = capture_tail(risk, layer, next(iter(risk.batches)))
        result = normalised(layer, tail)
    centred = x - x.mean(2, keepdim=True)
    expected = centred / (centred.square().mean(2, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(result, expected)


def test_layers_that_are_covered_are_those_of_the_parameters() -> None:
    risk = case("cnn-batchnorm").risk()
    names = [layer.name for layer in covered_layers(risk, "f(risk)", INSTEAD)]
    assert names == ["0", "1", "4", "7"]
    bag = case("embedding-padding").risk()
    assert [layer.name for layer in covered_layers(bag, "f(risk)", INSTEAD)] == ["emb", "fc"]
    with pytest.raises(UnsupportedModelError, match=r"emb\.weight \(a table\)"):
        covered_layers(bag, "f(risk)", INSTEAD, tables=False)


def test_layers_that_are_not_covered_are_named_with_the_reason() -> None:
    with pytest.raises(UnsupportedModelError, match=r"`f\(risk\)`.*Bilinear.*Do something else"):
        covered_layers(case("two-inputs").risk(), "f(risk)", INSTEAD)
    with pytest.raises(WrongTypeError, match=r"pure function. Do something else"):
        covered_layers(case("pure-function").risk(), "f(risk)", INSTEAD)
    model = head(nn.BatchNorm1d(6, track_running_stats=False), size=30)
    risk = EmpiricalRisk(model, CrossEntropy(), (normal(N, 6, 5), Y))
    with pytest.raises(UnsupportedModelError, match="statistics of its batch"):
        covered_layers(risk, "f(risk)", INSTEAD)
