"""A few small networks by name, with weights that a seed fixes."""

import math
import re
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from eigenscape.errors import UnknownNameError, near_matches, require_count

EXAMPLES = ("F-100", "F-32^2", "SmallConv", "SmallGPT")


def build(name: str, *, input_shape: Sequence[int], num_classes: int, seed: int = 0) -> nn.Module:
    """Build a network, in float32 on the CPU.

    Args:
        name: "F-n^m": m hidden layers of n ReLUs, named fc1, fc2, …; "F-n-k" has widths n and k.
            "SmallConv": two convolutions and a linear layer. "SmallGPT": a decoder of two blocks.
        input_shape: Shape of one input; of a decoder, (T,).
        num_classes: Number of outputs; of a decoder, the size of its vocabulary.
        seed: Fixes the weights; PyTorch's own random state stays as it is.

    Returns:
        The network.

    Raises:
        UnknownNameError: If there is no such network.

    Examples:
        >>> net = build("F-32^2", input_shape=(1, 8, 8), num_classes=10)
        >>> [name for name, _ in net.named_children()]
        ['flatten', 'fc1', 'relu1', 'fc2', 'relu2', 'fc3']
    """
    require_count(num_classes, "build(num_classes=...)")
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(seed)
        if name == "SmallConv":
            return _small_conv(tuple(input_shape), num_classes).float()
        if name == "SmallGPT":
            return SmallGPT(input_shape[0], num_classes).float()
        if match := re.fullmatch(r"F-(\d+(?:\^\d+)?(?:-\d+(?:\^\d+)?)*)", name):
            return _perceptron(_widths(match[1]), math.prod(input_shape), num_classes).float()
    raise UnknownNameError(
        f"`build(name=...)` must be F-n^m, SmallConv or SmallGPT; got {name!r}. "
        f"{near_matches(name, EXAMPLES)}"
    )


def _widths(text: str) -> list[int]:
    pairs = (group.partition("^") for group in text.split("-"))
    return [int(width) for width, _, times in pairs for _ in range(int(times or 1))]


def _perceptron(widths: Sequence[int], num_inputs: int, num_classes: int) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number, width in enumerate(widths, 1):
        layers[f"fc{number}"] = nn.Linear(num_inputs, width)
        layers[f"relu{number}"] = nn.ReLU()
        num_inputs = width
    layers[f"fc{len(widths) + 1}"] = nn.Linear(num_inputs, num_classes)
    return nn.Sequential(layers)


def _small_conv(shape: tuple[int, ...], num_classes: int) -> nn.Sequential:
    channels, height, width = shape
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 8, 3, padding=1),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(8, 16, 3, padding=1),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(16 * (height // 4) * (width // 4), num_classes),
        )
    )


class SmallGPT(nn.Module):
    """A decoder of two blocks with LayerNorm and causal attention, for sequences of T tokens."""

    def __init__(self, context: int, vocabulary: int, width: int = 32) -> None:
        """Make the layers.

        Args:
            context: T, the longest sequence.
            vocabulary: Number of tokens.
            width: Size of an embedding.
        """
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True,
                norm_first=True,
            )
            for _ in range(2)
        )  # fmt: skip
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        """Map tokens (N, T) to logits (N, T, vocabulary) of the tokens that follow."""
        count = ids.shape[1]
        h = self.tokens(ids) + self.positions(torch.arange(count, device=ids.device))
        later = torch.ones(count, count, dtype=torch.bool, device=ids.device).triu(1)
        for block in self.blocks:
            h = block(h, src_mask=later)
        logits: Tensor = self.head(self.norm(h))
        return logits
