"""Products of the weights above a layer."""

import pytest
import torch
from torch import Tensor, nn

from eigenscape.errors import UnsupportedModelError
from eigenscape.risk import CrossEntropy, EmpiricalRisk, find_layer
from eigenscape_papers.wu.weights_above import weights_above
from tests.analyses.layers.test__slopes import Y, risk_of
from tests.cases import N, normal


def test_weights_above_are_multiplied_in_their_order() -> None:
    first, second, third = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3, bias=False)
    risk = risk_of(first, nn.ReLU(), second, nn.Tanh(), third)
    W = third.weight.detach() @ second.weight.detach()
    torch.testing.assert_close(weights_above(risk, find_layer(risk, "0")), W)
    torch.testing.assert_close(weights_above(risk, find_layer(risk, "2")), third.weight.detach())
    torch.testing.assert_close(weights_above(risk, find_layer(risk, "4")), torch.eye(3))


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc1(x)
        return self.fc3(h + torch.tanh(self.fc2(h)))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(self.fc2(torch.tanh(self.fc2(self.fc1(x)))))


@pytest.mark.parametrize(
    ("model", "layer", "words"),
    [
        (Skip(), "fc1", "by a way round a Linear"),
        (Twice(), "fc1", "Linear follows it"),
        (
            nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)),
            "0",
            "LayerNorm fol",
        ),
    ],
)
def test_what_is_no_chain_of_linear_layers_is_refused(
    model: nn.Module, layer: str, words: str
) -> None:
    risk = EmpiricalRisk(model.double(), CrossEntropy(), (normal(N, 4), Y))
    with pytest.raises(UnsupportedModelError, match=words):
        weights_above(risk, find_layer(risk, layer))
    # No hook is left, so that what was linear stays so.
    assert not any(module._forward_hooks for module in model.modules())
