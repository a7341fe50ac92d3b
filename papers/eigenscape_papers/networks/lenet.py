"""LeNet5 and its variants with other widths (Wu Tables 4 and 5)."""

import re

from torch import Tensor, nn

from eigenscape.errors import InvalidArgumentError
from eigenscape_papers.networks._family import COUNT, Family, ModelInfo, Shape, require_image
from eigenscape_papers.networks._layered import Layered, Norm, pad_28_to_32

_WIDTHS = {"conv1": 6, "conv2": 16, "fc1": 120, "fc2": 84}


class LeNet5(Layered):
    """Two 5×5 convolutions, each with ReLU and 2×2 max-pooling, and three linear layers.

    Images of 28×28 pixels are padded with zeros to 32×32, so that MNIST and CIFAR-10 have the same
    shapes from `conv1` on. BatchNorm stands after the pooling; Wu Table 5 has it before, but their
    numbers are those of networks that have it after (docs/errata.md).

    Examples:
        >>> LeNet5((3, 32, 32), 10).fc1
        Linear(in_features=400, out_features=120, bias=True)
    """

    def __init__(
        self,
        input_shape: Shape,
        num_classes: int,
        *,
        widths: dict[str, int] | None = None,
        norm: Norm = Norm.NONE,
    ) -> None:
        """Make the layers.

        Args:
            input_shape: (channels, height, width), at least 16×16.
            num_classes: Outputs.
            widths: Channels or units of `conv1`, `conv2`, `fc1` or `fc2` where not the usual ones.
            norm: Where the hidden layers are normalised.
        """
        super().__init__(norm)
        channels, *sides = require_image(input_shape, "LeNet5", smallest=16)
        width = _WIDTHS | (widths or {})
        height, breadth = (_size_after_pooling(32 if sides == [28, 28] else n) for n in sides)
        self.add_hidden("conv1", nn.Conv2d(channels, width["conv1"], 5))
        self.maxpool1 = nn.MaxPool2d(2)
        self.add_hidden("conv2", nn.Conv2d(width["conv1"], width["conv2"], 5))
        self.maxpool2 = nn.MaxPool2d(2)
        self.add_hidden("fc1", nn.Linear(width["conv2"] * height * breadth, width["fc1"]))
        self.add_hidden("fc2", nn.Linear(width["fc1"], width["fc2"]))
        self.fc3 = nn.Linear(width["fc2"], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (N, channels, height, width) to logits (N, classes)."""
        x = self.hidden("conv1", pad_28_to_32(x), self.maxpool1)
        x = self.hidden("conv2", x, self.maxpool2).flatten(1)
        x = self.hidden("fc2", self.hidden("fc1", x))
        logits: Tensor = self.fc3(x)
        return logits


def _size_after_pooling(n: int) -> int:
    return ((n - 4) // 2 - 4) // 2


def _make(name: re.Match[str], shape: Shape, num_classes: int) -> nn.Module:
    pairs = re.findall(r"\((\w+)-(\d+)\)", name["variant"])
    widths = {layer: int(width) for layer, width in pairs}
    if len(widths) < len(pairs):
        raise InvalidArgumentError(
            f"`build({name[0]!r})` gives one layer two widths. Name each layer once."
        )
    norm = Norm.AFTER_RELU if name["norm"] else Norm.NONE
    return LeNet5(shape, num_classes, widths=widths, norm=norm)


FAMILIES = (
    Family(
        ModelInfo(
            pattern="LeNet5",
            grammar="LeNet5[-(layer-n)]…[-BN]",
            examples=("LeNet5", "LeNet5-(fc1-80)", "LeNet5-(conv2-25)", "LeNet5-BN"),
            summary=(
                "LeNet5 with ReLU and max-pooling; -(fc1-80) gives layer fc1 (or conv1, conv2, "
                "fc2) 80 units. -BN: BatchNorm after every ReLU and its pooling, not learnable. "
                "28×28 is padded."
            ),
            source="Wu App. D.2, Tables 4 and 5; variants: Table 6 and Wu-2020 Table 6",
            layers="conv1, conv2, fc1, fc2, fc3; bn-conv1, …, bn-fc2",
        ),
        rf"LeNet5(?P<variant>(-\((conv1|conv2|fc1|fc2)-{COUNT}\))*)(?P<norm>-BN)?",
        _make,
    ),
)
