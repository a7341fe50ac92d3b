"""Fully connected networks: Wu's `F-n^m`, Papyan's `MLP`, Dong's linear and one-hidden-layer ones.

All flatten their input, all use ReLU between layers, and in all the layers are `fc1`, `fc2`, … from
the input on, the last one giving the logits.
"""

import math
import re
from collections.abc import Sequence

from torch import Tensor, nn

from eigenscape_papers.networks._family import COUNT, Family, ModelInfo, Shape
from eigenscape_papers.networks._layered import Layered, Norm


class FullyConnected(Layered):
    """Linear layers with ReLU between them.

    Examples:
        >>> net = FullyConnected(4, (5, 5), 3)
        >>> [name for name, _ in net.named_children()]
        ['fc1', 'fc2', 'fc3']
    """

    def __init__(
        self,
        num_inputs: int,
        widths: Sequence[int],
        num_classes: int,
        *,
        hidden_bias: bool = True,
        last_bias: bool = True,
        norm: Norm = Norm.NONE,
    ) -> None:
        """Make the layers.

        Args:
            num_inputs: Entries of one input.
            widths: Units of each hidden layer; none for a linear model.
            num_classes: Outputs.
            hidden_bias: Whether hidden layers have biases.
            last_bias: Whether the last layer has one.
            norm: Where the hidden layers are normalised.
        """
        super().__init__(norm)
        sizes = (num_inputs, *widths)
        for i, width in enumerate(widths):
            self.add_hidden(f"fc{i + 1}", nn.Linear(sizes[i], width, bias=hidden_bias))
        self.add_module(f"fc{len(sizes)}", nn.Linear(sizes[-1], num_classes, bias=last_bias))
        self.num_layers = len(sizes)

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs of any shape (N, …) to logits (N, classes)."""
        x = x.flatten(1)
        for i in range(1, self.num_layers):
            x = self.hidden(f"fc{i}", x)
        logits: Tensor = self.get_submodule(f"fc{self.num_layers}")(x)
        return logits


def _linear(name: re.Match[str], shape: Shape, num_classes: int) -> nn.Module:
    return FullyConnected(math.prod(shape), (), num_classes, last_bias=not name["nobias"])


def _one_hidden(name: re.Match[str], shape: Shape, num_classes: int) -> nn.Module:
    widths = (int(name["width"] or 8),)
    return FullyConnected(math.prod(shape), widths, num_classes, hidden_bias=False, last_bias=False)


def _wu(name: re.Match[str], shape: Shape, num_classes: int) -> nn.Module:
    widths: list[int] = []
    for group in name["widths"].split("-"):
        width, _, repeats = group.partition("^")
        widths += [int(width)] * int(repeats or 1)
    norm = Norm.AFTER_RELU if name["norm"] else Norm.NONE
    return FullyConnected(math.prod(shape), widths, num_classes, norm=norm)


def _papyan(name: re.Match[str], shape: Shape, num_classes: int) -> nn.Module:
    # "Eight-layer" in Papyan means eight hidden layers: his layer 8 shows C² outliers in the errors
    # at its output (Fig. 10), and the logits are only C.
    widths = [int(name["width"])] * int(name["depth"])
    # A bias before BatchNorm has no effect on the function, so the public code of Papyan leaves it
    # out of the linear layers of VGG11; its MLP is not public, and is built alike here.
    norm = Norm.BEFORE_RELU if name["norm"] else Norm.NONE
    bias = norm is Norm.NONE
    return FullyConnected(math.prod(shape), widths, num_classes, hidden_bias=bias, norm=norm)


FAMILIES = (
    Family(
        ModelInfo(
            pattern="linear",
            grammar="linear[-nobias]",
            examples=("linear", "linear-nobias"),
            summary="One linear layer, with or without bias (softmax regression).",
            source="Dong §4 and Assumption 2 (no bias; its weight is V; init 'lecun')",
            layers="fc1",
        ),
        r"linear(?P<nobias>-nobias)?",
        _linear,
    ),
    Family(
        ModelInfo(
            pattern="one-hidden-n",
            grammar="one-hidden[-n]",
            examples=("one-hidden", "one-hidden-8"),
            summary="One hidden layer of n units (8 if not said), ReLU, no biases.",
            source="Dong §3.1 and App. B.3 (init 'lecun', Assumption 2)",
            layers="fc1 (Dong's W), fc2 (Dong's V)",
        ),
        rf"one-hidden(-(?P<width>{COUNT}))?",
        _one_hidden,
    ),
    Family(
        ModelInfo(
            pattern="F-n^m",
            grammar="F-n[^m][-n[^m]]…[-BN]",
            examples=("F-200^2", "F-200^2-100", "F-600", "F-1500^3", "F-200^2-BN"),
            summary=(
                "m hidden layers of n units, further widths after a dash. "
                "-BN: BatchNorm after every ReLU, not learnable."
            ),
            source="Wu App. D.2, Table 3; -BN: App. F.4, Table 8",
            layers="fc1, fc2, …, the last for the logits; bn-fc1, …",
        ),
        rf"F-(?P<widths>{COUNT}(\^{COUNT})?(-{COUNT}(\^{COUNT})?)*)(?P<norm>-BN)?",
        _wu,
    ),
    Family(
        ModelInfo(
            pattern="MLP-mxn",
            grammar="MLP-mxn[-BN]",
            examples=("MLP-8x2048-BN", "MLP-4x256"),
            summary=(
                "m hidden layers of n units. -BN: BatchNorm between layer and ReLU, learnable, and "
                "hidden layers without bias."
            ),
            source="Papyan §7 (footnote 4), App. D.1",
            layers="fc1, …, fc(m+1); bn-fc1, …",
        ),
        rf"MLP-(?P<depth>{COUNT})x(?P<width>{COUNT})(?P<norm>-BN)?",
        _papyan,
    ),
)
