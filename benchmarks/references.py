"""What is true of a problem: plain PyTorch in float64, with nothing of the package."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from problems import GPT, Problem
from torch import Tensor, nn


def exact(problem: Problem) -> Problem:
    """The same problem in float64, with attention written out."""
    double = problem.to(torch.float64)
    if isinstance(double.model, GPT):
        double.model.fuse(False)
    return double


def hessian_reference(problem: Problem, names: tuple[str, ...] = ()) -> Callable[[Tensor], Tensor]:
    """Products (n,) with the float64 Hessian, or with its block of some parameters."""
    double = exact(problem)
    named = dict(double.model.named_parameters())
    params = [named[name] for name in (names or named)]
    loss = F.cross_entropy(double.model(double.x), double.y)
    slopes = torch.autograd.grad(loss, params, create_graph=True)
    slope = torch.cat([s.reshape(-1) for s in slopes])

    def product(v: Tensor) -> Tensor:
        parts = torch.autograd.grad(slope, params, v.to(slope), retain_graph=True)
        return torch.cat([part.reshape(-1) for part in parts])

    return product


def gauss_newton_reference(problem: Problem) -> Callable[[Tensor], Tensor]:
    """Products (n,) with the float64 Gauss-Newton matrix: forward mode, then one vjp."""
    double = exact(problem)
    params = {name: p.detach() for name, p in double.model.named_parameters()}

    def output(values: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(double.model, values, (double.x,))

    def product(v: Tensor) -> Tensor:
        pieces = v.double().split([p.numel() for p in params.values()])
        tangent = {n: t.view_as(params[n]) for n, t in zip(params, pieces, strict=True)}
        z, moved = torch.func.jvp(output, (params,), (tangent,))
        p = z.softmax(1)
        bent = p * (moved - (p * moved).sum(1, keepdim=True)) / double.y.numel()
        (pulled,) = torch.func.vjp(output, params)[1](bent)
        return torch.cat([pulled[name].reshape(-1) for name in params])

    return product


def relu_trace(problem: Problem) -> float:
    """The exact trace of the Hessian of an MLP with ReLU, where it equals Gauss-Newton's.

    With ∇²ℓ = Σ_c s_c s_cᵀ and s_c = √p_c (e_c − p), the trace is mean Σ_c ‖Jᵀ s_c‖², and of a
    linear layer with input a and back-propagated δ, ‖Jᵀ s‖² = (‖a‖² + 1) ‖δ‖².
    """
    double = exact(problem)
    inputs, outputs, h = [], [], double.x
    for layer in double.model:
        if isinstance(layer, nn.Linear):
            inputs.append(h.detach())
        h = layer(h)
        if isinstance(layer, nn.Linear):
            outputs.append(h)
    p = h.detach().softmax(1)
    total = 0.0
    for c in range(p.shape[1]):
        s = p[:, c : c + 1].sqrt() * (F.one_hot(torch.tensor(c), p.shape[1]).to(p) - p)
        deltas = torch.autograd.grad(h, outputs, s, retain_graph=True)
        for a, delta in zip(inputs, deltas, strict=True):
            total += float(((a.square().sum(1) + 1) * delta.square().sum(1)).sum())
    return total / len(double.x)
