"""A small convolutional network for small images, such as the 8×8 digits."""

import re

from torch import Tensor, nn

from eigenscape_papers.networks._family import COUNT, Family, ModelInfo, Shape, require_image
from eigenscape_papers.networks._layered import Layered


class SmallConv(Layered):
    """Two 3×3 convolutions, each with ReLU and 2×2 max-pooling, and one linear layer.

    Examples:
        >>> net = SmallConv((1, 8, 8), 10)
        >>> sum(p.numel() for p in net.parameters())
        1898
    """

    def __init__(
        self, input_shape: Shape, num_classes: int, *, widths: tuple[int, int] = (8, 16)
    ) -> None:
        """Make the layers.

        Args:
            input_shape: (channels, height, width), at least 4×4.
            num_classes: Outputs.
            widths: Channels of the two convolutions.
        """
        super().__init__()
        channels, height, width = require_image(input_shape, "SmallConv", smallest=4)
        self.add_hidden("conv1", nn.Conv2d(channels, widths[0], 3, padding=1))
        self.add_hidden("conv2", nn.Conv2d(widths[0], widths[1], 3, padding=1))
        self.fc1 = nn.Linear(widths[1] * (height // 4) * (width // 4), num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (N, channels, height, width) to logits (N, classes)."""
        for name in ("conv1", "conv2"):
            x = nn.functional.max_pool2d(self.hidden(name, x), 2)
        logits: Tensor = self.fc1(x.flatten(1))
        return logits


def _make(name: re.Match[str], shape: Shape, num_classes: int) -> nn.Module:
    widths = (int(name["first"]), int(name["second"])) if name["first"] else (8, 16)
    return SmallConv(shape, num_classes, widths=widths)


FAMILIES = (
    Family(
        ModelInfo(
            pattern="SmallConv",
            grammar="SmallConv[-n-m]",
            examples=("SmallConv", "SmallConv-8-16"),
            summary="Two 3×3 convolutions (8 and 16 channels if not said) and a linear layer.",
            source="none: for demonstrations on small images",
            layers="conv1, conv2, fc1",
        ),
        rf"SmallConv(-(?P<first>{COUNT})-(?P<second>{COUNT}))?",
        _make,
    ),
)
