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
    tensors = []
    for inward, outward in pairwise(sizes):
        for length, fan in ((outward * inward, inward), (outward, outward)):
            tensors.append(1.2 / fan**0.5 * torch.randn(num, length, generator=draw))
    return torch.cat(tensors, 1)


def lengths_of(sizes: Sequence[int]) -> list[int]:
    """Return how many weights each tensor has: matrices and biases, layer by layer."""
    return [length for i, o in pairwise(sizes) for length in (i * o, o)]


Layers = list[tuple[Tensor, Tensor]]


def _layers(weights: Tensor, sizes: Sequence[int]) -> Layers:
    # Split at once: on the way back the parts are then joined by one copy.
    shapes = list(pairwise(sizes))
    tensors = weights.split(lengths_of(sizes), 1)
    matrices = [matrix.view(-1, o, i) for matrix, (i, o) in zip(tensors[::2], shapes, strict=True)]
    return list(zip(matrices, tensors[1::2], strict=True))


def _passed(layers: Layers, inputs: Tensor) -> list[Tensor]:
    """Return the inputs of every layer, and the logits last."""
    activations = [inputs]
    for index, (matrix, bias) in enumerate(layers):
        z = torch.baddbmm(bias[:, None], activations[-1], matrix.mT)
        activations.append(z.relu() if index + 1 < len(layers) else z)
    return activations


def logits(weights: Tensor, sizes: Sequence[int], inputs: Tensor) -> Tensor:
    """Return logits (p, b, c) of inputs (p, b, d)."""
    return _passed(_layers(weights, sizes), inputs)[-1]


def cross_entropy(z: Tensor, labels: Tensor, shares: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy (p,) of logits (p, b, c), or the sum with shares (p, b)."""
    each = z.log_softmax(2).gather(2, labels[..., None])[..., 0]
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
    activations = _passed(layers, inputs)
    wanted = torch.nn.functional.one_hot(labels, sizes[-1])
    delta = (activations[-1].softmax(2) - wanted) / labels.shape[1]
    blocks: list[Tensor] = []
    for index, (matrix, _) in reversed(list(enumerate(layers))):
        blocks = [torch.bmm(delta.mT, activations[index]).flatten(1), delta.sum(1), *blocks]
        if index:
            delta = torch.bmm(delta, matrix) * (activations[index] > 0)
    return torch.cat(blocks, 1)
