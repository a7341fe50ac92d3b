"""VGG11 for small images, in the versions of Wu and of Papyan.

They differ in more than BatchNorm: Wu ends with one linear layer, Papyan keeps the three of the
original, with BatchNorm where that had dropout.
"""

import re
from collections.abc import Sequence

from torch import Tensor, nn

from eigenscape_papers.networks._family import COUNT, Family, ModelInfo, Shape, require_image
from eigenscape_papers.networks._layered import Layered, Norm, pad_28_to_32

CHANNELS = (64, 128, 256, 256, 512, 512, 512, 512)
_POOLED = (1, 2, 4, 6, 8)  # the convolutions that a 2×2 max-pooling follows


class VGG11(Layered):
    """Eight 3×3 convolutions with five max-poolings, and one linear layer or three.

    Images of 28×28 pixels are padded with zeros to 32×32; at 32×32 one pixel is left at the end.

    Examples:
        >>> VGG11((3, 32, 32), 10, channels=(64,) * 8).fc1
        Linear(in_features=64, out_features=10, bias=True)
    """

    def __init__(
        self,
        input_shape: Shape,
        num_classes: int,
        *,
        channels: Sequence[int] = CHANNELS,
        classifier: int | None = None,
        norm: Norm = Norm.NONE,
    ) -> None:
        """Make the layers.

        Args:
            input_shape: (channels, height, width), 28×28 or at least 32×32.
            num_classes: Outputs.
            channels: Output channels of the eight convolutions.
            classifier: Units of two more linear layers before the last, if any.
            norm: Where the hidden layers are normalised.
        """
        super().__init__(norm)
        if tuple(input_shape[1:]) == (28, 28):
            input_shape = (input_shape[0], 32, 32)
        inputs, *sides = require_image(input_shape, "VGG11", smallest=32, also=", or both 28")
        for i, outputs in enumerate(channels):
            self.add_hidden(f"conv{i + 1}", nn.Conv2d(inputs, outputs, 3, padding=1))
            inputs = outputs
        features = inputs * (sides[0] // 32) * (sides[1] // 32)
        self.num_linear = 1
        if classifier is not None:
            # As in Papyan's public code: no biases in front of BatchNorm, for these two layers.
            bias = norm is not Norm.BEFORE_RELU
            self.add_hidden("fc1", nn.Linear(features, classifier, bias=bias))
            self.add_hidden("fc2", nn.Linear(classifier, classifier, bias=bias))
            features, self.num_linear = classifier, 3
        self.add_module(f"fc{self.num_linear}", nn.Linear(features, num_classes))

    def forward(self, x: Tensor) -> Tensor:
        """Map images (N, channels, height, width) to logits (N, classes)."""
        x = pad_28_to_32(x)
        for i in range(1, 9):
            x = self.hidden(f"conv{i}", x, _pooled if i in _POOLED else None)
        x = x.flatten(1)
        for i in range(1, self.num_linear):
            x = self.hidden(f"fc{i}", x)
        logits: Tensor = self.get_submodule(f"fc{self.num_linear}")(x)
        return logits


def _pooled(x: Tensor) -> Tensor:
    return nn.functional.max_pool2d(x, 2)


def _make(name: re.Match[str], shape: Shape, num_classes: int) -> nn.Module:
    channels = (int(name["width"]),) * 8 if name["width"] else CHANNELS
    if name["norm"] == "_bn":
        # 4096 = 8·512 in the original; a narrow network keeps the proportion.
        wide = 8 * channels[-1]
        return VGG11(shape, num_classes, channels=channels, classifier=wide, norm=Norm.BEFORE_RELU)
    norm = Norm.AFTER_RELU if name["norm"] else Norm.NONE
    return VGG11(shape, num_classes, channels=channels, norm=norm)


FAMILIES = (
    Family(
        ModelInfo(
            pattern="VGG11-Wn",
            grammar="VGG11[-Wn][-BN | _bn]",
            examples=("VGG11-W64", "VGG11", "VGG11-W64-BN", "VGG11_bn", "VGG11-W16_bn"),
            summary=(
                "VGG11 without dropout and with one linear layer; -Wn: n channels in every "
                "convolution. -BN: BatchNorm after every ReLU and its pooling, not learnable. _bn: "
                "Papyan's, with three linear layers (8n wide) and learnable BatchNorm before every "
                "ReLU. 28×28 is padded."
            ),
            source="Wu App. D.2 (-Wn), Wu-2020 App. B.2 (VGG11), Papyan App. D.1, D.3 (VGG11_bn)",
            layers="conv1, …, conv8, fc1 (_bn: fc1, fc2, fc3); bn-conv1, …",
        ),
        rf"VGG11(-W(?P<width>{COUNT}))?(?P<norm>-BN|_bn)?",
        _make,
    ),
)
