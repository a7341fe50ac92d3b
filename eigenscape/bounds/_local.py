"""Noise at the outputs of layers: every example sees a network of its own.

A layer turns x̃ (its input, with a 1 for its bias) into W̃x̃. Where W̃ has the mean W̄ and, in the
basis UᵀW̃V, independent entries of variances S, the output is W̄x̃ + U e with independent e_i of
variance Σ_j S_ij (Vᵀx̃)²_j. To draw e for every example is to draw a network for every example, at
the price of a second product with the layer (Kingma, Salimans and Welling, 2015). The expected loss
is the same, and so is that of its slopes; their noise falls with the examples of a batch, where
networks that are drawn whole have to share it out.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from eigenscape.bounds.posterior import Basis, LayerBasis
from eigenscape.errors import UnsupportedModelError
from eigenscape.risk import EmpiricalRisk

# Keeps the square root away from 0, where it has no slope: an input of zeros has no noise.
_SMALLEST = 1e-30


class OutputNoise:
    """Outputs of a network whose layers' outputs are drawn, one draw for each example.

    Attributes:
        width: Numbers of noise for each example: the layers' outputs together.
    """

    def __init__(self, risk: EmpiricalRisk, basis: Basis) -> None:
        """Find the layers.

        Args:
            risk: The risk.
            basis: Bases of the layers, for their places alone.

        Raises:
            UnsupportedModelError: If some parameter belongs to no linear layer.
        """
        self._risk = risk
        shapes, starts, at = risk.space.shapes, {}, 0
        for name in risk.space.names:
            starts[at] = name
            at += math.prod(shapes[name])
        self._weights = [starts[layer.start] for layer in basis.layers]
        for layer, name in zip(basis.layers, self._weights, strict=True):
            if len(shapes[name]) != 2:
                raise UnsupportedModelError(
                    "`BoundRecipe(noise='outputs')` is for networks of linear layers; "
                    f"'{layer.name}' has shape {tuple(shapes[name])}. Use noise='weights'."
                )
        self._widths = [shapes[name][0] for name in self._weights]
        self.width = sum(self._widths)

    def outputs(self, theta: Tensor, basis: Basis, x: Tensor, noise: Tensor) -> Tensor:
        """Return the outputs (B, C); inside `risk.evaluating()`.

        Args:
            theta: Means and logarithms of standard deviations in the basis (2, P).
            basis: The basis, of two rotations for each layer or none.
            x: Inputs (B, …).
            noise: Standard normal numbers (B, width).

        Returns:
            The outputs.

        Raises:
            UnsupportedModelError: If a layer was not used once, as one matrix on rows.
        """
        params = self._risk.space.unflatten(theta[0])
        parts = noise.split(self._widths, dim=1)
        layers = {
            id(params[name]): (layer, theta[1, layer.start : layer.start + layer.size], part)
            for name, layer, part in zip(self._weights, basis.layers, parts, strict=True)
        }
        with _NoisyLinear(layers):
            z: Tensor = self._risk.call({**self._risk.constants(), **params}, (x,), {})
        if layers:
            raise UnsupportedModelError(
                "`BoundRecipe(noise='outputs')` found linear layers that `torch.nn.functional."
                "linear` does not apply. Use noise='weights'."
            )
        return z.flatten(1)


class _NoisyLinear(TorchFunctionMode):
    """Adds its noise to what a layer gives, and strikes the layer off."""

    def __init__(self, layers: dict[int, tuple[LayerBasis, Tensor, Tensor]]) -> None:
        super().__init__()
        self._layers, self._all = layers, frozenset(layers)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if func is not F.linear or id(args[1]) not in self._all:
            return output
        # A second time, or at several positions, the noise would have to be the same one.
        if args[0].ndim != 2 or id(args[1]) not in self._layers:
            raise UnsupportedModelError(
                "`BoundRecipe(noise='outputs')` is for layers that each example passes once; one "
                f"is used again, or got inputs of shape {tuple(args[0].shape)}. Use "
                "noise='weights'."
            )
        return output + _spread(args[0], *self._layers.pop(id(args[1])))


def _spread(x: Tensor, layer: LayerBasis, log_std: Tensor, noise: Tensor) -> Tensor:
    """Return the rows U e, where `noise` has e in units of its standard deviations."""
    extended = F.pad(x, (0, 1), value=1.0) if layer.has_bias else x
    S = layer.matrix((2.0 * log_std).exp(), noise.shape[1])
    U, V = layer.rotations or (None, None)
    turned = extended if V is None else extended @ V
    e = noise * (turned.square() @ S.T).clamp_min(_SMALLEST).sqrt()
    return e if U is None else e @ U.T
