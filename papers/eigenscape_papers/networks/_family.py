"""What a family of networks says of itself, and the refusals that families share."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import nn

from eigenscape.errors import ShapeError

Shape: TypeAlias = tuple[int, ...]

COUNT = r"[1-9]\d*"  # a width or a number of layers inside a name


@dataclass(frozen=True)
class ModelInfo:
    """A family of networks, in words.

    Attributes:
        pattern: Its name in short, e.g. "F-n^m".
        grammar: All that a name may hold; what stands in brackets may be left out.
        examples: Names that can be built.
        summary: What the networks are.
        source: Where they stand in the papers.
        layers: The names of the layers, as the papers have them.
    """

    pattern: str
    grammar: str
    examples: tuple[str, ...]
    summary: str
    source: str
    layers: str


@dataclass(frozen=True)
class Family:
    """How a family reads its names and builds its networks.

    Attributes:
        info: The description.
        name: The regular expression that a whole name must match.
        make: Builds a network from the match, the shape of one input and the number of classes.
    """

    info: ModelInfo
    name: str
    make: Callable[[re.Match[str], Shape, int], nn.Module]


def require_image(shape: Sequence[int], family: str, *, smallest: int, also: str = "") -> Shape:
    """Return (channels, height, width) if a family can take such images, else refuse.

    Args:
        shape: Shape of one input.
        family: Name of the family, for the message.
        smallest: Least height and width.
        also: Further sizes that are taken, as words for the message.

    Returns:
        The same three numbers.

    Raises:
        ShapeError: If it is no image or too small.
    """
    if len(shape) == 3 and min(shape[1:]) >= smallest:
        return tuple(shape)
    raise ShapeError(
        f"`build(input_shape=...)` of {family} must be (channels, height, width) with height and "
        f"width of at least {smallest}{also}; got {tuple(shape)}. Enlarge or pad the images, or "
        "build 'SmallConv', which takes images from 4×4 on."
    )
