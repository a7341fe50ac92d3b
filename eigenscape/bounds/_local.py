"""Noise at the outputs of layers: every example sees a network of its own.

A layer turns x̃ (its input, with a 1 for its bias) into W̃x̃. Where W̃ has the mean W̄ and, in the
basis UᵀW̃V, independent entries of variances S, the output is W̄x̃ + U e with independent e_i of
variance Σ_j S_ij (Vᵀx̃)²_j. To draw e for every example is to draw a network for every example, at
the price of a second product with the layer (Kingma, Salimans and Welling, 2015). The expected loss
is the same, and so is that of its slopes; their noise falls with the examples of a batch, where
networks that are drawn whole have to share it out.

Derivatives are written out. With ς = ½ log S, t = Vᵀx̃, e_i = ξ_i √(Σ_j S_ij t_j²) for the noise ξ,
and δ the slope of e: that of ς_ij is S_ij q_i t_j² and that of t_j is t_j Σ_i q_i S_ij, where
q_i = δ_i ξ_i / √(Σ_j S_ij t_j²).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
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

    def outputs(
        self,
        means: Mapping[str, Tensor],
        log_stds: Sequence[Tensor],
        basis: Basis,
        x: Tensor,
        noise: Tensor,
    ) -> Tensor:
        """Return the outputs (B, C); inside `risk.evaluating()`.

        Args:
            means: The parameters' means, by name.
            log_stds: Logarithms of standard deviations along each layer's basis vectors (size,).
            basis: The basis, of two rotations for each layer or none.
            x: Inputs (B, …).
            noise: Standard normal numbers (B, width).

        Returns:
            The outputs.

        Raises:
            UnsupportedModelError: If a layer was not used once, as one matrix on rows.
        """
        parts = noise.split(self._widths, dim=1)
        layers = {
            id(means[name]): (layer, log_std, part)
            for name, layer, log_std, part in zip(
                self._weights, basis.layers, log_stds, parts, strict=True
            )
        }
        with _NoisyLinear(layers):
            z: Tensor = self._risk.call({**self._risk.constants(), **means}, (x,), {})
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
        layer, log_std, noise = self._layers.pop(id(args[1]))
        noisy: Tensor = _Noise.apply(output, args[0], log_std, noise, layer)  # type: ignore[no-untyped-call]
        return noisy


class _Noise(Function):
    """Adds U e to the outputs of a layer."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, x: Tensor, log_std: Tensor, noise: Tensor, layer: LayerBasis
    ) -> Tensor:
        variances = log_std.mul(2.0).exp_()
        S, of_bias = _parts(variances, layer, noise.shape[1])
        t = _turned(x, layer)
        squares = t.square()
        e = squares @ S.T if of_bias is None else torch.addmm(of_bias, squares, S.T)
        std = e.clamp_min_(_SMALLEST).sqrt_()
        ctx.save_for_backward(t, squares, variances, std, noise)
        ctx.layer = layer
        if not layer.rotations:
            return torch.addcmul(output, noise, std)
        return torch.addmm(output, noise * std, layer.rotations[0].T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        t, squares, variances, std, noise = ctx.saved_tensors
        layer: LayerBasis = ctx.layer
        S, of_bias = _parts(variances, layer, noise.shape[1])
        delta = slope @ layer.rotations[0] if layer.rotations else slope
        q = (delta * noise).div_(std)
        along = q.T @ squares
        if of_bias is None:
            of_log_std = along.flatten().mul_(variances)
        else:
            of_log_std = torch.cat([along.flatten(), q.sum(0)]).mul_(variances)
        of_x = None
        if ctx.needs_input_grad[1]:
            of_x = (q @ S).mul_(t)
            if layer.rotations:
                V = layer.rotations[1]
                of_x = of_x @ (V[:-1] if layer.has_bias else V).T
        return slope, of_x, of_log_std, None, None


def _parts(variances: Tensor, layer: LayerBasis, m: int) -> tuple[Tensor, Tensor | None]:
    """Return S (m, …) and, where they are apart from it, the biases' variances (m,)."""
    if layer.rotations or not layer.has_bias:
        return variances.view(m, -1), None
    return variances[:-m].view(m, -1), variances[-m:]


def _turned(x: Tensor, layer: LayerBasis) -> Tensor:
    """Return the rows Vᵀx̃; without rotations x itself, whose 1 is not written out."""
    if not layer.rotations:
        return x
    V = layer.rotations[1]
    return torch.addmm(V[-1], x, V[:-1]) if layer.has_bias else x @ V
