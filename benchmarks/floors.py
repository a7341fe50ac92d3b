"""What counting operations and bytes allows, at the rates of this machine.

Arithmetic is counted as that of matrix products, bytes as what has to be read or written once. The
larger of the two times is the floor. A problem that fits into a cache may beat the one for bytes.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from problems import Problem
from timing import best_time
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

_SIDE = {"cpu": 1024, "cuda": 8192}
_COPIED = {"cpu": 2**26, "cuda": 2**30}  # bytes: beyond any cache


@dataclass(frozen=True)
class Rates:
    """Rates of a machine, measured.

    Attributes:
        flops: Operations a second of a large float32 matrix product.
        bandwidth: Bytes a second, read or written, of a large copy.
    """

    flops: float
    bandwidth: float

    def seconds(self, flops: float, nbytes: float) -> float:
        """Return the floor."""
        return max(flops / self.flops, nbytes / self.bandwidth)

    def as_dict(self) -> dict[str, float]:
        """Return plain values."""
        return asdict(self)


def measured_rates(device: torch.device) -> Rates:
    side, size = _SIDE[device.type], _COPIED[device.type]
    A = torch.randn(side, side, device=device)
    C = torch.empty_like(A)
    product = best_time(lambda: torch.mm(A, A, out=C))
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = best_time(lambda: target.copy_(source))
    return Rates(2 * side**3 / product, 2 * size / copy)


def counted(function: Callable[[], Any]) -> int:
    """Count the operations of the matrix products in a call."""
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


def product_floors(problem: Problem, rates: Rates, columns: int = 1) -> tuple[float, float]:
    """Return the floors, in seconds, of a Hessian and a Gauss-Newton product of some columns."""
    work = counted(problem.gradient)
    size = next(problem.model.parameters()).element_size()
    vectors, kept = (2 * columns + 1) * problem.size * size, _activations(problem) * size
    hessian, gauss_newton = (ratio * work * columns for ratio in problem.floors())
    # A Hessian product reads every activation and the slope at it; Gauss-Newton, activations only.
    return (
        rates.seconds(hessian, vectors + 2 * kept),
        rates.seconds(gauss_newton, vectors + kept),
    )


def layer_floor(problem: Problem, layer: str, rates: Rates, columns: int = 1) -> float:
    """Return the floor of a product with the block of a linear layer, from its factors.

    With N inputs a (n,) and roots B (C, m): a Vᵀ, then B and Bᵀ, then the sum of outer products.
    """
    weight = problem.model.get_submodule(layer).weight
    m, n = weight.shape
    N, C = len(problem.x), int(problem.model(problem.x[:1]).shape[1])
    flops = 4.0 * N * m * (n + C) * columns
    nbytes = weight.element_size() * (N * (n + C * m) + 2.0 * m * n * columns)
    return rates.seconds(flops, nbytes)


def step_floor(size: int, basis: int, rates: Rates) -> float:
    """Return the floor of orthogonalising a vector twice against a basis: four reads of it."""
    return rates.seconds(8.0 * size * basis, 4.0 * 4 * size * basis)


def _activations(problem: Problem) -> int:
    """Count the entries of what layers take as inputs."""
    total = 0

    def hook(_module: nn.Module, inputs: tuple[torch.Tensor, ...], _output: Any) -> None:
        nonlocal total
        total += inputs[0][0].numel() * len(problem.x)

    layers = [m for m in problem.model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    handles = [layer.register_forward_hook(hook) for layer in layers]
    problem.model(problem.x[:1])
    for handle in handles:
        handle.remove()
    return total
