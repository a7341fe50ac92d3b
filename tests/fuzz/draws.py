"""Random choices that follow from one integer seed, and the pieces of a network they make.

Everything is drawn twice: once for the library as a user would write it, once for the truth. What a
user hides from autograd (`detach`, a custom Function whose backward pass is wrong) is written
openly in the second.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")

# No powers of two, and rarely the same twice: what is transposed or flattened wrongly shows.
SIZES = (3, 5, 6, 7)


class Draw:
    """Choices and numbers; the same for one seed, whatever `honest` and `dtype` are.

    Attributes:
        honest: Whether what a user hides from autograd is written openly.
        dtype: What floating-point numbers are in; their values fit float32.
    """

    def __init__(self, seed: int, *, honest: bool, dtype: torch.dtype) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed + 1)
        self.honest, self.dtype = honest, dtype

    def pick(self, options: Sequence[T]) -> T:
        return self.random.choice(options)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def size(self) -> int:
        return self.pick(SIZES)

    def normal(self, *shape: int) -> Tensor:
        numbers = torch.randn(shape, generator=self.generator, dtype=torch.float32)
        return numbers.to(self.dtype)

    def positive(self, *shape: int) -> Tensor:
        numbers = torch.rand(shape, generator=self.generator, dtype=torch.float32)
        return (numbers + 0.5).to(self.dtype)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=self.generator)


@dataclass
class Part:
    """A piece of a network.

    Attributes:
        module: What is called.
        width: Size of the features that it returns.
        tags: What it is made of.
        defect: Why a refusal is right, where it is; else empty.
    """

    module: nn.Module
    width: int
    tags: list[str] = field(default_factory=list)
    defect: str = ""


@dataclass
class Stem(Part):
    """The first piece, and the inputs that it takes.

    Attributes:
        inputs: One or two tensors that hold all samples.
        dims: The dimension of each that counts samples.
        layout: "flat" (N, F), "seq" (N, T, F) or "pixels" (N, F, …).
    """

    inputs: tuple[Tensor, ...] = ()
    dims: tuple[int, ...] = (0,)
    layout: str = "flat"


class Lambda(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def activation(d: Draw) -> nn.Module:
    """Draw an activation that keeps the shape."""
    smooth = (
        nn.Tanh, nn.GELU, nn.SiLU, nn.Softplus, nn.ELU, nn.CELU, nn.SELU, nn.Mish, nn.Sigmoid,
        nn.LogSigmoid, nn.Softsign, nn.Tanhshrink,
    )  # fmt: skip
    kinked = (
        nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.ReLU6,
        nn.Hardshrink, nn.Softshrink, nn.RReLU,
    )  # fmt: skip
    named = {
        "gelu-tanh": lambda: nn.GELU("tanh"),
        "threshold": lambda: nn.Threshold(0.1, -0.25),
        "softmax": lambda: nn.Softmax(-1),
        "log-softmax": lambda: nn.LogSoftmax(-1),
        "sine": lambda: Lambda(torch.sin),
    }
    kind = d.pick(("smooth", "smooth", "kinked", "kinked", *named))
    if kind in named:
        return named[kind]()
    cls = d.pick(smooth if kind == "smooth" else kinked)
    module: nn.Module = PlainHardsigmoid() if cls is nn.Hardsigmoid and d.honest else cls()
    return module


class PlainHardsigmoid(nn.Hardsigmoid):
    """The same in operations that have all derivatives, as PyTorch's has not."""

    def forward(self, x: Tensor) -> Tensor:
        return (x / 6 + 0.5).clamp(0, 1)


NO_SECOND_DERIVATIVE = "no second derivative in PyTorch"


def randomise(d: Draw, module: nn.Module) -> None:
    """Give parameters and buffers numbers of which none is special, in the dtype of the draw."""
    module.to(d.dtype)
    seen: set[int] = set()
    with torch.no_grad():
        for name, p in module.named_parameters():
            if id(p) in seen:
                continue
            seen.add(id(p))
            scale = 0.7 if p.ndim > 1 else 0.4
            start = 1.0 if p.ndim <= 1 and "weight" in name else 0.0
            p.copy_(start + scale * d.normal(*p.shape).float())
        for name, b in module.named_buffers():
            if name.endswith("running_var"):
                b.copy_(d.positive(*b.shape))
            elif name.endswith("running_mean"):
                b.copy_(0.3 * d.normal(*b.shape).float())
            elif b.is_floating_point() and b.ndim == 1 and name.rsplit(".")[-1] in ("_u", "_v"):
                b.copy_(nn.functional.normalize(d.normal(*b.shape).float(), dim=0))
