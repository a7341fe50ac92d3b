"""One sample's share in the Hessian of a small network, and the refusals of what makes no network.

Everything here is float64, whatever the dtype of the network: p (1 − p) and variances under p
cancel in confident models.

Letters: u = W x, h = σ(u), z = V h, y target; s a sample's weight; p = softmax(z), r = s ∂ℓ/∂z,
B = s ∂²ℓ/∂z². Cross-entropy has B = s (diag p − p pᵀ), and ½‖z − y‖² has B = s I.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eigenscape.errors import (
    EmptySelectionError,
    InvalidArgumentError,
    NonFiniteError,
    ShapeError,
    WrongTypeError,
    require_choice,
)
from eigenscape.risk import CrossEntropy

Activation = Callable[[Tensor], Tensor]

_LOSSES = ("cross-entropy", "squared-error")
_ACTIVATIONS: dict[str, Activation] = {"relu": torch.relu, "tanh": torch.tanh, "gelu": F.gelu}
_IGNORED = CrossEntropy().ignore_index


@dataclass(frozen=True, eq=False)
class OutputTerms:
    """Derivatives of the loss with respect to z, for a chunk of samples, in float64.

    Attributes:
        s: The samples' weights (n,); all the same for squared errors.
        r: First derivatives (n, C).
        p: Probabilities (n, C); None for squared errors.
    """

    s: Tensor
    r: Tensor
    p: Tensor | None

    def product(self, t: Tensor) -> Tensor:
        """Return B t (n, C) for one t (C,); a single row (1, C) where it is the same for all."""
        if self.p is None:
            return self.s[:1, None] * t
        return self.s[:, None] * self.p * (t - (self.p @ t)[:, None])


def output_terms(z: Tensor, y: Tensor, s: Tensor, loss: str) -> OutputTerms:
    """Differentiate the loss at outputs z (n, C) with targets y and weights s (n,)."""
    p = None if loss == "squared-error" else z.softmax(1)
    if p is None:
        r = s[:, None] * (z - y)
    elif y.is_floating_point():
        r = s[:, None] * p - y
    else:
        r = s[:, None] * p
        # Where a target is ignored, s is 0 and any class will do.
        r[torch.arange(len(y), device=y.device), y.long().clamp_min(0)] -= s
    if not bool(r.isfinite().all()):
        raise NonFiniteError(
            "The network's outputs or the targets are NaN or infinite, and so is their Hessian. "
            "Check inputs, weights and targets."
        )
    return OutputTerms(s, r, p)


@dataclass(frozen=True, eq=False)
class Units:
    """h, σ'(u) and σ''(u), each (n, m), in float64."""

    h: Tensor
    first: Tensor
    second: Tensor


def units_of(activation: Activation, u: Tensor) -> Units:
    """Apply an activation, and differentiate it twice."""
    leaf = u.detach().requires_grad_()
    with torch.enable_grad():
        h = activation(leaf.clone())  # a copy, as some activations work in place
        first = _derivative(h, leaf)
        second = _derivative(first, leaf)
    return Units(h.detach(), first.detach(), second.detach())


def _derivative(value: Tensor, leaf: Tensor) -> Tensor:
    """Differentiate each entry with respect to its own argument."""
    if not value.requires_grad:
        return torch.zeros_like(leaf)
    (gradient,) = torch.autograd.grad(
        value.sum(), leaf, create_graph=True, allow_unused=True, materialize_grads=True
    )
    return gradient


def hidden_weights(terms: OutputTerms, units: Units, V: Tensor, K: Tensor, i: int) -> Tensor:
    """Return the weights (n, m) of x xᵀ in the blocks (i, j), for K = B v_i."""
    w = K @ V * units.first * units.first[:, i, None]
    w[:, i] += units.second[:, i] * (terms.r @ V[:, i])
    return w


def sample_weights(
    call: str, inputs: Tensor, targets: Tensor, C: int, loss: str
) -> tuple[Tensor, int]:
    """Check loss and targets; return each sample's weight (N,), and what sums are divided by."""
    require_choice(loss, _LOSSES, f"{call}(loss=...)")
    if not isinstance(targets, Tensor) or targets.is_complex():
        raise WrongTypeError(
            f"`{call}(targets=...)` must be a real tensor; got {type(targets).__name__}."
        )
    N, values = len(inputs), targets.is_floating_point()
    fits = ((N, C),) if values or loss == "squared-error" else ((N,),)
    if targets.shape not in fits or targets.device != inputs.device:
        expected = f"values ({N}, {C})"
        if loss == "cross-entropy":
            expected = f"classes ({N},) of an integer dtype or class probabilities ({N}, {C})"
        raise ShapeError(
            f"`{call}(targets=...)` needs {expected} on {inputs.device}; got "
            f"{tuple(targets.shape)} in {targets.dtype} on {targets.device}."
        )
    if N == 0:
        raise EmptySelectionError(f"`{call}(inputs=...)` holds no sample; pass at least one.")
    s = torch.ones(N, dtype=torch.float64, device=targets.device)
    if loss == "squared-error":
        return s, N
    if values:
        return targets.detach().sum(1, dtype=torch.float64), N
    kept = targets.long() != _IGNORED
    if not bool(kept.any()):
        raise EmptySelectionError(f"`{call}(targets=...)` ignores every sample.")
    low, high = int(targets[kept].min()), int(targets[kept].max())
    if low < 0 or high >= C:
        raise InvalidArgumentError(
            f"`{call}(targets=...)` needs classes from 0 to {C - 1} (or {_IGNORED}, to be left "
            f"out); got {low} to {high}."
        )
    return s * kept, int(kept.sum())


def activation_of(call: str, activation: str | Activation, inputs: Tensor) -> Activation:
    """Return the function of that name, or the function itself if it maps entry by entry."""
    if isinstance(activation, str):
        return _ACTIVATIONS[require_choice(activation, _ACTIVATIONS, f"{call}(activation=...)")]
    probe = torch.linspace(-1.0, 1.0, 6, dtype=torch.float64, device=inputs.device).view(2, 3)
    both, alone = activation(probe.clone()), activation(probe[:1, :1].clone())
    if both.shape != probe.shape or not torch.allclose(both[:1, :1], alone, equal_nan=True):
        raise InvalidArgumentError(
            f"`{call}(activation=...)` must map each entry on its own and keep the shape, as "
            "`torch.tanh` does; this function does not."
        )
    return activation


def require_layers(call: str, inputs: Tensor, **weights: Tensor) -> None:
    """Refuse what is no chain of matrices, all in float32 or all in float64, on one device."""
    for name, matrix in {"inputs": inputs, **weights}.items():
        if not isinstance(matrix, Tensor):
            raise WrongTypeError(
                f"`{call}({name}=...)` must be a tensor; got {type(matrix).__name__}."
            )
        if matrix.ndim != 2 or 0 in matrix.shape[name == "inputs" :]:
            raise ShapeError(
                f"`{call}({name}=...)` must be a matrix; got shape {tuple(matrix.shape)}."
            )
        if matrix.dtype not in (torch.float32, torch.float64) or (
            (matrix.dtype, matrix.device) != (inputs.dtype, inputs.device)
        ):
            raise ShapeError(
                f"`{call}()` needs all matrices in float32 or all in float64, on one device; got "
                f"{name} in {matrix.dtype} on {matrix.device}, inputs in {inputs.dtype} on "
                f"{inputs.device}. Convert them, e.g. `{name}.double()`."
            )
    expected = inputs.shape[1]
    for name, matrix in weights.items():
        if matrix.shape[1] != expected:
            raise ShapeError(
                f"`{call}({name}=...)` needs rows of {expected} numbers, as many as come from the "
                f"layer below; got shape {tuple(matrix.shape)}. A layer's `weight` has one row "
                "for each of its outputs."
            )
        expected = matrix.shape[0]
