"""Initial weights from a seed, by one of the rules that the papers name.

Embeddings are drawn from N(0, 0.02²) under every rule, and so is a layer that is tied to one;
normalisations start as the identity.
"""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor, nn

from eigenscape.errors import require_choice, require_count

EMBEDDING_STD = 0.02  # of GPT-2
MAX_SEED = 2**32 - 1  # PyTorch's generator on a CPU reads 32 bits; more would repeat silently


def initialise(net: nn.Module, init: str, *, seed: int) -> None:
    """Draw all weights of linear, convolution and embedding layers anew, in place.

    With n inputs and m outputs of a unit (for a convolution, channels times kernel size):

    - "pytorch": weights and biases U(−1/√n, 1/√n), PyTorch's default (Kaiming-uniform with a = √5);
      the same numbers as after `torch.manual_seed(seed)` if the layers are made in their order;
    - "xavier": weights U(−√(6/(n+m)), √(6/(n+m))), biases 0 (Wu App. D.3);
    - "kaiming": weights N(0, 2/n), biases 0 (He et al. 2015);
    - "lecun": weights N(0, 1/n), biases 0 (Dong Assumption 2).

    Args:
        net: The network.
        init: The rule.
        seed: Fixes the weights; the global generator is not used.

    Raises:
        UnknownNameError: If there is no such rule.
        InvalidArgumentError: If the seed is out of range.

    Examples:
        >>> layer = nn.Linear(10_000, 4)
        >>> initialise(layer, "lecun", seed=0)
        >>> round(float(layer.weight.detach().std()), 3), layer.bias.tolist()
        (0.01, [0.0, 0.0, 0.0, 0.0])
    """
    draw = _RULES[require_choice(init, _RULES, "build(init=...)")]
    require_count(seed, "build(seed=...)", at_least=0, at_most=MAX_SEED)
    generator = torch.Generator().manual_seed(seed)
    embeddings = {id(module.weight) for module in net.modules() if isinstance(module, nn.Embedding)}
    with torch.no_grad():
        for layer in net.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d) and id(layer.weight) not in embeddings:
                draw(layer.weight, layer.bias, generator)
            elif isinstance(layer, nn.Embedding):
                nn.init.normal_(layer.weight, std=EMBEDDING_STD, generator=generator)


def _pytorch(weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
    if bias is not None:
        bound = 1 / math.sqrt(_num_inputs(weight))
        nn.init.uniform_(bias, -bound, bound, generator=generator)


def _xavier(weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    nn.init.xavier_uniform_(weight, generator=generator)
    _zero(bias)


def _kaiming(weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    nn.init.kaiming_normal_(weight, nonlinearity="relu", generator=generator)
    _zero(bias)


def _lecun(weight: Tensor, bias: Tensor | None, generator: Generator) -> None:
    nn.init.normal_(weight, std=1 / math.sqrt(_num_inputs(weight)), generator=generator)
    _zero(bias)


def _zero(bias: Tensor | None) -> None:
    if bias is not None:
        nn.init.zeros_(bias)


def _num_inputs(weight: Tensor) -> int:
    return weight[0].numel()


_RULES: dict[str, Callable[[Tensor, Tensor | None, Generator], None]] = {
    "pytorch": _pytorch,
    "xavier": _xavier,
    "kaiming": _kaiming,
    "lecun": _lecun,
}
