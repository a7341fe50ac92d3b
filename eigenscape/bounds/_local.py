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
# Rows of matrices are so many numbers, or a multiple, so that they begin at 16 bytes; V has columns
# of 0 for that. Where they did not, an H200 took other kernels, of half the rate by a profile.
_ALIGNED = 4


class OutputNoise:
    """Outputs of a network whose layers' outputs are drawn, one draw for each example.

    Attributes:
        width: Numbers of noise for each example: the layers' outputs together.
    """

    def __init__(self, risk: EmpiricalRisk, basis: Basis) -> None:
        """Find the layers.

        Args:
            risk: The risk.
            basis: Bases of the layers, which say where their parameters are.

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
        self._axes: list[Tensor | None] = [None] * len(self._weights)

    def turn(self, basis: Basis) -> None:
        """Use another basis; where it is of the same shapes, tensors stay where they are."""
        for index, layer in enumerate(basis.layers):
            known = self._axes[index]
            V = layer.rotations[1] if layer.rotations else None
            if V is not None and known is not None:
                known[:, : len(V)] = V
            else:
                self._axes[index] = None if V is None else F.pad(V, (0, -len(V) % _ALIGNED))

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
            basis: The basis that it was turned to, of two rotations for each layer or none.
            x: Inputs (B, …).
            noise: Standard normal numbers (B, width).

        Returns:
            The outputs.

        Raises:
            UnsupportedModelError: If a layer was not used once, as one matrix on rows.
        """
        noise_by_layer = noise.split(self._widths, dim=1)
        layers = {
            id(means[name]): (log_std, layer_noise, layer, V)
            for name, log_std, layer_noise, layer, V in zip(
                self._weights, log_stds, noise_by_layer, basis.layers, self._axes, strict=True
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
    """Adds noise to the output of a layer, and removes the layer from those that are left."""

    def __init__(self, layers: dict[int, tuple[Tensor, Tensor, LayerBasis, Tensor | None]]) -> None:
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
        layer_noise = self._layers.pop(id(args[1]))
        add: type[Function] = _Noise  # PyTorch gives `apply` no types
        return add.apply(output, args[0], *layer_noise)


class _Noise(Function):
    """Adds U e to the outputs of a layer; V is the layer's with columns of 0 more, or None."""

    @staticmethod
    def forward(
        ctx: Any,
        output: Tensor,
        x: Tensor,
        log_std: Tensor,
        noise: Tensor,
        layer: LayerBasis,
        V: Tensor | None,
    ) -> Tensor:
        variances, m = log_std.mul(2.0).exp_(), noise.shape[1]
        if V is not None:
            S = F.pad(variances.view(m, -1), (0, V.shape[1] - len(V)))
            t = torch.addmm(V[-1], x, V[:-1]) if layer.has_bias else x @ V
        else:
            S, t = _weights(variances, layer, m), x  # whose 1 is not written out
        squares = t.square()
        if V is None and layer.has_bias:
            e = torch.addmm(variances[-m:], squares, S.T)
        else:
            e = squares @ S.T
        std = e.clamp_min_(_SMALLEST).sqrt_()
        ctx.save_for_backward(t, squares, S, variances, std, noise)
        ctx.layer, ctx.V = layer, V
        if V is None:
            return torch.addcmul(output, noise, std)
        return torch.addmm(output, noise * std, layer.rotations[0].T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        t, squares, S, variances, std, noise = ctx.saved_tensors
        layer, V = ctx.layer, ctx.V
        delta = slope if V is None else slope @ layer.rotations[0]
        q = (delta * noise).div_(std)
        along = q.T @ squares
        if V is not None:
            of_log_std = (along[:, : len(V)] * variances.view(len(along), -1)).flatten()
        else:
            slopes = [along.flatten(), q.sum(0)] if layer.has_bias else [along.flatten()]
            of_log_std = torch.cat(slopes).mul_(variances)
        of_x = None
        if ctx.needs_input_grad[1]:
            of_x = (q @ S).mul_(t)
            if V is not None:
                of_x = of_x @ (V[:-1] if layer.has_bias else V).T
        return slope, of_x, of_log_std, None, None, None


def _weights(variances: Tensor, layer: LayerBasis, m: int) -> Tensor:
    """Return the variances of the weights (m, n) in the standard basis, where biases come last."""
    return (variances[:-m] if layer.has_bias else variances).view(m, -1)
