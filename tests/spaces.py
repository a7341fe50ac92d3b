"""Spaces with tensors whose entries are all different, for tests of spaces and partitions."""

import torch
from torch import Tensor, nn

from eigenscape.space import ParamSpace


def marked(shapes: dict[str, tuple[int, ...]]) -> tuple[ParamSpace, dict[str, Tensor], Tensor]:
    """A space, tensors whose entries are all different, and their flat vector."""
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    space = ParamSpace.of(tensors)
    return space, tensors, space.flatten(tensors)


def of_module(module: nn.Module) -> tuple[ParamSpace, dict[str, Tensor], Tensor]:
    return marked({name: tuple(p.shape) for name, p in module.named_parameters()})


def cat(*parts: Tensor) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def same(actual: Tensor, *parts: Tensor) -> None:
    torch.testing.assert_close(actual, cat(*parts), rtol=0, atol=0)


NET = {"fc1.weight": (5, 3), "fc1.bias": (5,), "scale": (), "fc2.weight": (2, 5), "fc2.bias": (2,)}
