"""Networks by name: the register of families, and what can be asked of it."""

import re
from collections.abc import Sequence

import torch
from torch import nn

from eigenscape.errors import (
    ShapeError,
    UnknownNameError,
    WrongTypeError,
    near_matches,
    require_count,
)
from eigenscape_papers.networks import fully_connected, gpt, lenet, resnet, small_conv, vgg
from eigenscape_papers.networks._family import Family, ModelInfo
from eigenscape_papers.networks.initialisation import initialise

_FAMILIES = (
    *fully_connected.FAMILIES,
    *lenet.FAMILIES,
    *vgg.FAMILIES,
    *resnet.FAMILIES,
    *small_conv.FAMILIES,
    *gpt.FAMILIES,
)


def build(
    name: str,
    *,
    input_shape: Sequence[int],
    num_classes: int,
    seed: int = 0,
    init: str = "pytorch",
) -> nn.Module:
    """Build a network of the papers, with weights that the seed fixes.

    Layers have the papers' names at the top level of the module, so that
    `LayerHessian(risk, "fc1")` is the block called fc1 in their tables. The module is in float32 on
    the CPU, in train mode, whatever PyTorch's defaults are now; the global random state is neither
    used nor changed.

    Args:
        name: The network, e.g. "F-200^2" or "LeNet5-(fc1-80)"; see `describe()`.
        input_shape: Shape of one input, e.g. (1, 28, 28); of a GPT, (T,).
        num_classes: Number of outputs; of a GPT, the size of its vocabulary.
        seed: Fixes the weights, from 0 to 2³² − 1.
        init: Rule for the weights of linear and convolution layers: "pytorch" (its default, also
            for biases), or with biases zero "xavier" (uniform), "kaiming" (normal, for ReLU) or
            "lecun" (normal with variance one over the number of inputs).

    Returns:
        The network.

    Raises:
        UnknownNameError: If no family has such a name, or `init` is unknown.
        ShapeError: If the family cannot take such inputs.
        InvalidArgumentError: If a number is out of range.

    Examples:
        >>> net = build("F-200^2", input_shape=(1, 28, 28), num_classes=10)
        >>> [name for name, _ in net.named_children()], count_parameters(net)
        (['fc1', 'fc2', 'fc3'], 199210)
    """
    shape = _require_shape(input_shape)
    require_count(num_classes, "build(num_classes=...)")
    family, match = _find(name)
    # Constructors draw weights too; what they draw is thrown away, and must not be missed.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        net = family.make(match, shape, num_classes).float()
    initialise(net, init, seed=seed)
    return net


def names() -> tuple[str, ...]:
    """List the families by their names in short.

    Returns:
        One pattern per family; `describe()` has the whole grammar.

    Examples:
        >>> "F-n^m" in names()
        True
    """
    return tuple(family.info.pattern for family in _FAMILIES)


def describe() -> tuple[ModelInfo, ...]:
    """Describe the families: grammar of their names, examples, source, names of their layers.

    Returns:
        One record per family.

    Examples:
        >>> [info.examples[0] for info in describe() if info.pattern == "LeNet5"]
        ['LeNet5']
    """
    return tuple(family.info for family in _FAMILIES)


def count_parameters(net: nn.Module) -> int:
    """Count the entries of all parameters, tied ones once; buffers do not count.

    Args:
        net: Any module.

    Returns:
        The number.

    Examples:
        >>> count_parameters(nn.Linear(3, 2))
        8
    """
    return sum(parameter.numel() for parameter in net.parameters())


def _require_shape(input_shape: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(input_shape, Sequence) or not input_shape:
        raise ShapeError(
            "`build(input_shape=...)` must be the shape of one input without its batch, e.g. "
            f"(1, 28, 28); got {input_shape!r}."
        )
    return tuple(require_count(size, "build(input_shape=(...))") for size in input_shape)


def _find(name: str) -> tuple[Family, re.Match[str]]:
    if not isinstance(name, str):
        raise WrongTypeError(f"`build(name=...)` must be a string; got {type(name).__name__}.")
    for family in _FAMILIES:
        if match := re.fullmatch(family.name, name):
            return family, match
    examples = [example for family in _FAMILIES for example in family.info.examples]
    grammar = ", ".join(family.info.grammar for family in _FAMILIES)
    raise UnknownNameError(
        f"`build(name=...)` must be a network of the register; got {name!r}. "
        f"{near_matches(name, examples)} The grammar of names: {grammar}. "
        "`models.describe()` explains it."
    )
