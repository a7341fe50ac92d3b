"""Stacked fully connected networks with ReLU, and their gradients written out.

p networks have weights (p, n), each row all layers in order, (output, input) row-major and then the
bias. Gradients are written out, as there is one for each network and not of their sum.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


def initial_weights(num: int, sizes: Sequence[int], draw: torch.Generator) -> Tensor:
    """Return weights (p, n) on the host, as the thesis's code draws them.

    Matrices are N(0, 1.2²/inputs), biases N(0, 1.2²/outputs).
    """
    parts = []
    for inward, outward in pairwise(sizes):
        for length, fan in ((outward * inward, inward), (outward, outward)):
            parts.append(1.2 / fan**0.5 * torch.randn(num, length, generator=draw))
    return torch.cat(parts, 1)


def lengths_of(sizes: Sequence[int]) -> list[int]:
    """Return how many weights each tensor has: matrices and biases, layer by layer."""
    return [length for i, o in pairwise(sizes) for length in (i * o, o)]


Layers = list[tuple[Tensor, Tensor]]


def _layers(weights: Tensor, sizes: Sequence[int]) -> Layers:
    # Split at once: on the way back the parts are then joined by one copy.
    shapes = list(pairwise(sizes))
    parts = weights.split(lengths_of(sizes), 1)
    matrices = [part.view(-1, o, i) for part, (i, o) in zip(parts[::2], shapes, strict=True)]
    return list(zip(matrices, parts[1::2], strict=True))


def _passed(layers: Layers, inputs: Tensor) -> list[Tensor]:
    """Return the inputs of every layer, and the logits last."""
    seen = [inputs]
    for place, (matrix, bias) in enumerate(layers):
        z = torch.baddbmm(bias[:, None], seen[-1], matrix.mT)
        seen.append(z.relu() if place + 1 < len(layers) else z)
    return seen


def logits(weights: Tensor, sizes: Sequence[int], inputs: Tensor) -> Tensor:
    """Return logits (p, b, c) of inputs (p, b, d)."""
    return _passed(_layers(weights, sizes), inputs)[-1]


def cross_entropy(found: Tensor, labels: Tensor, shares: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy (p,) of logits (p, b, c), or the sum with shares (p, b)."""
    each = found.log_softmax(2).gather(2, labels[..., None])[..., 0]
    return -each.mean(1) if shares is None else -(each * shares).sum(1)


def losses(
    weights: Tensor,
    sizes: Sequence[int],
    inputs: Tensor,
    labels: Tensor,
    shares: Tensor | None = None,
) -> Tensor:
    """Return the mean cross-entropy of every network on its batch (p,)."""
    return cross_entropy(logits(weights, sizes, inputs), labels, shares)


def gradients(weights: Tensor, sizes: Sequence[int], inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient of `losses` for every network (p, n)."""
    layers = _layers(weights, sizes)
    seen = _passed(layers, inputs)
    wanted = torch.nn.functional.one_hot(labels, sizes[-1])
    delta = (seen[-1].softmax(2) - wanted) / labels.shape[1]
    parts: list[Tensor] = []
    for place, (matrix, _) in reversed(list(enumerate(layers))):
        parts = [torch.bmm(delta.mT, seen[place]).flatten(1), delta.sum(1), *parts]
        if place:
            delta = torch.bmm(delta, matrix) * (seen[place] > 0)
    return torch.cat(parts, 1)
