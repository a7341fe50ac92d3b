"""Small networks and data for tests of layer blocks."""

import torch
from torch import nn

from eigenscape.risk import CrossEntropy, EmpiricalRisk

X = torch.randn(11, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(11) % 3


def relu_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, (2, 3), stride=(1, 2), padding=(1, 0)), nn.BatchNorm2d(3), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(3, 4, 2, padding=1), nn.LeakyReLU(0.1), nn.AvgPool2d((1, 2)),
        nn.Flatten(), nn.Linear(16, 6), nn.Hardtanh(), nn.Linear(6, 3, bias=False),
    )  # fmt: skip


def image_risk(batch_size: int | None = 4, loss: object = None) -> EmpiricalRisk:
    torch.manual_seed(1)
    x, y = torch.randn(11, 2, 5, 7), torch.arange(11) % 3
    return EmpiricalRisk(relu_net(), loss or CrossEntropy(), (x, y), batch_size=batch_size)
