"""A process group of one GPU gives the answers of that GPU without a group."""

import socket

import pytest
import torch
from torch import nn

from eigenscape import CrossEntropy, EmpiricalRisk, Hessian, KroneckerHessian, LayerHessian
from eigenscape.parallel import Ranks, join

pytestmark = pytest.mark.gpu


def answers(ranks: Ranks) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).to("cuda")
    x, y = torch.randn(23, 4), torch.arange(23) % 3
    risk = EmpiricalRisk(model, CrossEntropy(), (x, y), batch_size=8, ranks=ranks)
    columns = torch.randn(risk.space.size, 2, device="cuda")
    layer = LayerHessian(risk, "0")
    factor = KroneckerHessian(risk, "0").output_factor
    return [risk.gradient(), Hessian(risk) @ columns, layer @ columns[: layer.shape[0]], factor]


def test_nccl_with_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    expected = answers(Ranks())
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }.items():
        monkeypatch.setenv(name, value)
    with join(timeout_seconds=60.0) as ranks:
        assert ranks.device == torch.device("cuda", 0)
        assert ranks.first(["a"]) == ["a"]
        assert ranks.gather("b") == ["b"]
        assert ranks.sum(torch.ones(3)).tolist() == [1.0] * 3  # one that lies on the CPU
        found_here = answers(ranks)
    for tensor, other in zip(found_here, expected, strict=True):
        torch.testing.assert_close(tensor, other, rtol=1e-12, atol=1e-14)
