"""A small trained network with the weights that it had before training."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from eigenscape.bounds._steps import Steps
from eigenscape.risk import CrossEntropy, EmpiricalRisk


@dataclass
class Problem:
    """A network after training, its initial weights, and its data."""

    model: nn.Module
    prior: dict[str, Tensor]
    data: tuple[Tensor, Tensor]

    @property
    def risk(self) -> EmpiricalRisk:
        return EmpiricalRisk(self.model, CrossEntropy(), self.data)


def trained(model: nn.Module, data: tuple[Tensor, Tensor], steps: int = 60) -> Problem:
    prior = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data[0]), data[1]).backward()
        optimizer.step()
    model.zero_grad()
    return Problem(model, prior, data)


@pytest.fixture
def problem() -> Problem:
    """5 inputs, 4 hidden units, 3 classes, 90 examples."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(90, 5, generator=draw, dtype=torch.float64)
    y = (x @ torch.randn(5, 3, generator=draw, dtype=torch.float64)).argmax(1)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    return trained(model, (x, y))


@pytest.fixture
def slopes_seen(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Collect the slopes by means and by log standard deviations; nothing moves."""
    found: list[Tensor] = []

    def keep(self: Steps, outer: Tensor, inner: Tensor, *_: object) -> list[Tensor]:
        found.append(torch.cat((outer, inner)))
        return [torch.zeros_like(tensor) for tensor in self.moving()]

    monkeypatch.setattr(Steps, "slopes", keep)
    return found
