"""A network whose layers stand in one flat level under the papers' names, each with its ReLU.

The two papers that normalise do it differently, so the place of BatchNorm is a choice:

- Wu App. D.2: after the ReLU, and the pooling where there is one, without learnable parameters;
- Papyan footnote 4 and App. D.3: between the layer and its ReLU, with learnable parameters.

Both use running statistics in eval mode. There BatchNorm is frozen, an affine map, and the Hessian
is that of a function of single samples. `EmpiricalRisk` evaluates in eval mode unless told to keep.
"""

from collections.abc import Callable
from enum import Enum

import torch.nn.functional as F
from torch import Tensor, nn

Pool = Callable[[Tensor], Tensor]


class Norm(Enum):
    """Where BatchNorm stands."""

    NONE = "none"
    AFTER_RELU = "after the ReLU, not learnable (Wu)"
    BEFORE_RELU = "before the ReLU, learnable (Papyan)"


class Layered(nn.Module):
    """Base of the networks here: named layers, ReLU as a function, BatchNorm `bn-<layer>`."""

    def __init__(self, norm: Norm = Norm.NONE) -> None:
        """Start without layers.

        Args:
            norm: Where the hidden layers are normalised.
        """
        super().__init__()
        self.norm = norm

    def add_hidden(self, name: str, layer: nn.Linear | nn.Conv2d) -> None:
        """Add a layer that a ReLU follows, with its BatchNorm where the network has them."""
        self.add_module(name, layer)
        if self.norm is not Norm.NONE:
            learnable = self.norm is Norm.BEFORE_RELU
            norm: nn.Module
            if isinstance(layer, nn.Conv2d):
                norm = nn.BatchNorm2d(layer.out_channels, affine=learnable)
            else:
                norm = nn.BatchNorm1d(layer.out_features, affine=learnable)
            self.add_module(f"bn-{name}", norm)

    def hidden(self, name: str, x: Tensor, pool: Pool | None = None) -> Tensor:
        """Apply a hidden layer, its ReLU, pooling and BatchNorm, in the network's order."""
        return self.relu(name, self.affine(name, x), pool)

    def affine(self, name: str, x: Tensor) -> Tensor:
        """Apply a layer, and its BatchNorm where that comes before the ReLU."""
        z: Tensor = self.get_submodule(name)(x)
        if self.norm is Norm.BEFORE_RELU:
            z = self.get_submodule(f"bn-{name}")(z)
        return z

    def relu(self, name: str, z: Tensor, pool: Pool | None = None) -> Tensor:
        """Apply a layer's ReLU and pooling, and its BatchNorm where that comes after."""
        x = F.relu(z)
        if pool is not None:
            x = pool(x)
        if self.norm is Norm.AFTER_RELU:
            x = self.get_submodule(f"bn-{name}")(x)
        return x


def pad_28_to_32(x: Tensor) -> Tensor:
    """Pad images of 28×28 pixels with zeros to 32×32, as LeCun et al. (1998) did for LeNet5."""
    return F.pad(x, (2, 2, 2, 2)) if x.shape[-2:] == (28, 28) else x
