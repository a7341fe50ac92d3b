"""Stacked fully connected networks with ReLU, and their gradients written out.

p networks have weights (p, n), each row all layers in order, (output, input) row-major and then the
bias. The gradient is made of ordinary products, so that the outer back-propagation passes through
it once, as through any other function: no graph of a graph.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


def initial_weights(num: int, sizes: Sequence[int], draw: torch.Generator) -> Tensor:
    """Return weights (p, n) on the host: He's normal weights, biases zero."""
    parts = []
    for inward, outward in pairwise(sizes):
        matrix = torch.randn(num, outward * inward, generator=draw) * (2 / inward) ** 0.5
        parts += [matrix, torch.zeros(num, outward)]
    return torch.cat(parts, 1)


def _layers(weights: Tensor, sizes: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    found, start = [], 0
    for inward, outward in pairwise(sizes):
        middle = start + inward * outward
        matrix = weights[:, start:middle].view(-1, outward, inward)
        start = middle + outward
        found.append((matrix, weights[:, middle:start]))
    return found


def _passed(weights: Tensor, sizes: Sequence[int], inputs: Tensor) -> list[Tensor]:
    """Return the inputs of every layer, and the logits last."""
    seen = [inputs]
    layers = _layers(weights, sizes)
    for place, (matrix, bias) in enumerate(layers):
        z = torch.baddbmm(bias[:, None], seen[-1], matrix.mT)
        seen.append(z.relu() if place + 1 < len(layers) else z)
    return seen


def logits(weights: Tensor, sizes: Sequence[int], inputs: Tensor) -> Tensor:
    """Return logits (p, b, c) of inputs (p, b, d)."""
    return _passed(weights, sizes, inputs)[-1]


def cross_entropy(found: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy (p,) of logits (p, b, c)."""
    return -found.log_softmax(2).gather(2, labels[..., None])[..., 0].mean(1)


def losses(weights: Tensor, sizes: Sequence[int], inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of every network on its batch (p,)."""
    return cross_entropy(logits(weights, sizes, inputs), labels)


def gradients(weights: Tensor, sizes: Sequence[int], inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient of `losses` for every network (p, n)."""
    seen = _passed(weights, sizes, inputs)
    wanted = torch.nn.functional.one_hot(labels, sizes[-1])
    delta = (seen[-1].softmax(2) - wanted) / labels.shape[1]
    parts: list[Tensor] = []
    for place, (matrix, _) in reversed(list(enumerate(_layers(weights, sizes)))):
        parts = [torch.bmm(delta.mT, seen[place]).flatten(1), delta.sum(1), *parts]
        if place:
            delta = torch.bmm(delta, matrix) * (seen[place] > 0)
    return torch.cat(parts, 1)
