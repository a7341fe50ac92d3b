"""ResNet18 for small images, without BatchNorm (Wu) and with it (Papyan).

The input goes through one 3×3 convolution without pooling, as He et al. (2016) do for CIFAR. Then
come four stages of two blocks; the later three stages halve the image, and their first shortcut is
a 1×1 convolution, since a narrow network changes the size there even where it keeps the channels.
"""

import re
from collections.abc import Sequence

from torch import Tensor, nn

from eigenscape_papers.networks._family import COUNT, Family, ModelInfo, Shape, require_image
from eigenscape_papers.networks._layered import Layered, Norm

CHANNELS = (64, 128, 256, 512)


class ResNet18(Layered):
    """Eight blocks of two 3×3 convolutions around a shortcut, average-pooling, one linear layer.

    Convolutions have no bias, with BatchNorm or without.

    Examples:
        >>> net = ResNet18((3, 32, 32), 10, channels=(4, 4, 4, 4))
        >>> net.get_submodule("sc-conv1")
        Conv2d(4, 4, kernel_size=(1, 1), stride=(2, 2), bias=False)
    """

    def __init__(
        self,
        input_shape: Shape,
        num_classes: int,
        *,
        channels: Sequence[int] = CHANNELS,
        norm: Norm = Norm.NONE,
    ) -> None:
        """Make the layers.

        Args:
            input_shape: (channels, height, width), at least 8×8.
            num_classes: Outputs.
            channels: Channels of the four stages.
            norm: Where the convolutions are normalised.
        """
        super().__init__(norm)
        colours = require_image(input_shape, "ResNet18", smallest=8)[0]
        self.add_hidden("conv1", _conv3(colours, channels[0]))
        inputs = channels[0]
        for block in range(8):
            outputs, stride = channels[block // 2], _stride(block)
            first = 2 * block + 2  # number of the block's first convolution
            self.add_hidden(f"conv{first}", _conv3(inputs, outputs, stride))
            self.add_hidden(f"conv{first + 1}", _conv3(outputs, outputs))
            if stride == 2:
                self._add_shortcut(f"sc-conv{block // 2}", inputs, outputs)
            inputs = outputs
        self.fc1 = nn.Linear(inputs, num_classes)

    def _add_shortcut(self, name: str, inputs: int, outputs: int) -> None:
        self.add_module(name, nn.Conv2d(inputs, outputs, 1, stride=2, bias=False))
        if self.norm is Norm.BEFORE_RELU:  # no ReLU on a shortcut, so nothing to stand after
            self.add_module(f"bn-{name}", nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map images (N, channels, height, width) to logits (N, classes)."""
        x = self.hidden("conv1", x)
        for block in range(8):
            first, second = f"conv{2 * block + 2}", f"conv{2 * block + 3}"
            short = self.affine(f"sc-conv{block // 2}", x) if _stride(block) == 2 else x
            x = self.relu(second, self.affine(second, self.hidden(first, x)) + short)
        logits: Tensor = self.fc1(x.mean((2, 3)))
        return logits


def _stride(block: int) -> int:
    return 2 if block in (2, 4, 6) else 1


def _conv3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


def _make(name: re.Match[str], shape: Shape, num_classes: int) -> nn.Module:
    channels = (int(name["width"]),) * 4 if name["width"] else CHANNELS
    norm = {"-BN": Norm.AFTER_RELU, "_bn": Norm.BEFORE_RELU}.get(name["norm"], Norm.NONE)
    return ResNet18(shape, num_classes, channels=channels, norm=norm)


FAMILIES = (
    Family(
        ModelInfo(
            pattern="ResNet18-Wn",
            grammar="ResNet18[-Wn][-BN | _bn]",
            examples=("ResNet18-W64", "ResNet18", "ResNet18_bn", "ResNet18-W16_bn"),
            summary=(
                "ResNet18 for small images, without BatchNorm unless the name says so; -Wn: n "
                "channels in every convolution. -BN: BatchNorm after every ReLU, not learnable. "
                "_bn: the usual one after every convolution, learnable."
            ),
            source="Wu App. D.2 (-Wn), Papyan App. D.1 (ResNet18_bn)",
            layers="conv1, …, conv17, sc-conv1, sc-conv2, sc-conv3, fc1; bn-conv1, …",
        ),
        rf"ResNet18(-W(?P<width>{COUNT}))?(?P<norm>-BN|_bn)?",
        _make,
    ),
)
