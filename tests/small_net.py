"""A small classifier with ragged batches, and its dense Hessian."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from eigenscape.testing import dense_hessian

X = torch.randn(70, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.randint(0, 3, (70,), generator=torch.Generator().manual_seed(1))
LOADER = DataLoader(TensorDataset(X, Y), batch_size=32)  # 32, 32 and 6


def net(*middle: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), *(middle or (nn.Tanh(),)), nn.Linear(5, 3))


def oracle(model: nn.Module, x: Tensor = X, y: Tensor = Y) -> Tensor:
    """The dense Hessian of the mean cross-entropy in the mode that a copy of the model is in."""
    twin = copy.deepcopy(model)
    theta = {name: p.detach().double() for name, p in model.named_parameters()}
    call = torch.func.functional_call
    return dense_hessian(lambda p: F.cross_entropy(call(twin, p, (x,)), y), theta)


def close(found: Tensor, expected: Tensor, rtol: float = 1e-10) -> None:
    assert (found.double() - expected).norm() <= rtol * expected.norm()


def flat_gradient(model: nn.Module) -> Tensor:
    loss = F.cross_entropy(model(X), Y)
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
