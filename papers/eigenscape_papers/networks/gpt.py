"""A small decoder transformer for characters.

Letters: N sequences, T positions, h heads, d width of a head.
"""

import math
import re

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape.errors import InvalidArgumentError, ShapeError
from eigenscape_papers.networks._family import COUNT, Family, ModelInfo, Shape


class GPT(nn.Module):
    """Token and position embeddings, pre-LayerNorm blocks of attention and MLP, a head.

    Attention is written out as products and a softmax: fused kernels have no second derivative. A
    tied head reads tokens out by the matrix that embeds them, as GPT-2 does: the one parameter is
    `embed.weight`.

    Examples:
        >>> net = GPT(context=5, vocabulary=11, num_blocks=1, width=8, num_heads=2)
        >>> net(torch.zeros(3, 5, dtype=torch.int64)).shape
        torch.Size([3, 5, 11])
    """

    def __init__(
        self,
        *,
        context: int,
        vocabulary: int,
        num_blocks: int,
        width: int,
        num_heads: int,
        tied: bool = False,
    ) -> None:
        """Make the layers.

        Args:
            context: Most positions T of a sequence.
            vocabulary: Number of tokens.
            num_blocks: Number of blocks.
            width: Entries of the residual stream; the MLP has four times as many units.
            num_heads: Attention heads; they divide the width.
            tied: Whether embedding and head are one matrix.

        Raises:
            InvalidArgumentError: If they do not.
        """
        super().__init__()
        if width % num_heads:
            raise InvalidArgumentError(
                f"The width of a GPT must be a multiple of its number of heads; got width {width} "
                f"and {num_heads} heads. Take a width such as {num_heads * -(-width // num_heads)}."
            )
        self.context, self.num_blocks, self.num_heads = context, num_blocks, num_heads
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        for i in range(1, num_blocks + 1):
            self.add_module(f"b{i}-ln1", nn.LayerNorm(width))
            self.add_module(f"b{i}-qkv", nn.Linear(width, 3 * width))
            self.add_module(f"b{i}-proj", nn.Linear(width, width))
            self.add_module(f"b{i}-ln2", nn.LayerNorm(width))
            self.add_module(f"b{i}-fc1", nn.Linear(width, 4 * width))
            self.add_module(f"b{i}-fc2", nn.Linear(4 * width, width))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token numbers (N, T) to the logits of each next token (N, T, vocabulary).

        Args:
            tokens: Integers below the vocabulary's size; T may be shorter than the context.

        Returns:
            The logits; those at position t depend on the tokens up to t only.

        Raises:
            ShapeError: If the sequences are longer than the context, or not (N, T).
        """
        if tokens.ndim != 2 or tokens.shape[1] > self.context:
            raise ShapeError(
                f"A GPT takes tokens of shape (N, T) with T up to its context {self.context}; got "
                f"{tuple(tokens.shape)}. Cut the sequences, or build with a longer `input_shape`."
            )
        # One row of positions per sequence: every layer then sees its inputs sample by sample.
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        x: Tensor = self.embed(tokens) + self.position(positions)
        for i in range(1, self.num_blocks + 1):
            x = x + self._attend(f"b{i}", self._apply_layer(f"b{i}-ln1", x))
            units = self._apply_layer(f"b{i}-fc1", self._apply_layer(f"b{i}-ln2", x))
            x = x + self._apply_layer(f"b{i}-fc2", F.gelu(units))
        logits: Tensor = self.head(self.ln(x))
        return logits

    def _attend(self, block: str, x: Tensor) -> Tensor:
        T, h = x.shape[1], self.num_heads
        qkv = self._apply_layer(f"{block}-qkv", x).unflatten(-1, (3, h, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # each (N, h, T, d)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, -math.inf).softmax(-1)
        heads = (weights @ v).transpose(1, 2).flatten(2)
        return self._apply_layer(f"{block}-proj", heads)

    def _apply_layer(self, name: str, x: Tensor) -> Tensor:
        y: Tensor = self.get_submodule(name)(x)
        return y


def _make(name: re.Match[str], shape: Shape, num_classes: int) -> nn.Module:
    if len(shape) != 1:
        raise ShapeError(
            "`build(input_shape=...)` of a GPT must be (T,), the number of positions; got "
            f"{shape}. Pass e.g. `input_shape=(64,)` and the vocabulary as `num_classes`."
        )
    return GPT(
        context=shape[0],
        vocabulary=num_classes,
        num_blocks=int(name["blocks"]),
        width=int(name["width"]),
        num_heads=int(name["heads"]),
        tied=name["tied"] is not None,
    )


FAMILIES = (
    Family(
        ModelInfo(
            pattern="GPT-mxnxh",
            grammar="GPT-mxnxh[-tied]",
            examples=("GPT-2x64x4", "GPT-2x64x4-tied"),
            summary=(
                "Decoder transformer with m blocks of width n and h heads, for tokens (N, T); "
                "`input_shape` is (T,), `num_classes` the vocabulary. Tied, the head is the "
                "embedding, and drawn as one."
            ),
            source="none: for blocks of a transformer's Hessian at small scale",
            layers="embed, position, b1-ln1, b1-qkv, b1-proj, b1-ln2, b1-fc1, b1-fc2, …, ln, head",
        ),
        rf"GPT-(?P<blocks>{COUNT})x(?P<width>{COUNT})x(?P<heads>{COUNT})(?P<tied>-tied)?",
        _make,
    ),
)
