"""Losses as sums of terms, with the curvature that Gauss-Newton and Fisher need at the output.

A loss gives the *sum* of its terms over a batch and their *number*; the risk divides once, at the
end. So a short last batch, ignored tokens and class weights count for what they hold.

Letters: z output of the network, y target, ℓ one term, p = softmax(z) or σ(z), s weight of a term,
r = ∂ℓ/∂z, t a tangent at the output.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from eigenscape.errors import (
    InvalidArgumentError,
    ShapeError,
    UnsupportedModelError,
    WrongTypeError,
    require_choice,
    require_positive,
)
from eigenscape.risk.batch import tensors_in

Noise = Callable[[torch.Size], Tensor]
OutputProduct = Callable[[Tensor], Tensor]


class Loss(ABC):
    """A loss that knows the sum of its terms, their number, and its curvature at the output.

    Attributes:
        obstacle: Why it is no known function of the output; empty where it is one.
    """

    obstacle: ClassVar[str] = ""

    @abstractmethod
    def total(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the terms and their number (or total weight), both scalars."""

    @abstractmethod
    def hessian_at(self, output: Tensor, target: Tensor) -> OutputProduct:
        """Return the function t ↦ ∇²_z (sum of terms) · t, with all that is fixed done once."""

    @abstractmethod
    def drawn_output_gradient(self, output: Tensor, target: Tensor, noise: Noise) -> Tensor:
        """Return r for labels drawn from the model itself.

        `noise(shape)` gives uniform numbers in (0, 1); the loss asks for one number per draw.
        """

    @abstractmethod
    def term_dims(self, output: Tensor, target: Tensor) -> tuple[int, ...]:
        """Return the dimensions of the output that belong to one and the same term."""

    def output_gradient(self, output: Tensor, target: Tensor) -> Tensor:
        """Return r = ∂(sum of terms)/∂z, detached."""
        if self.obstacle:
            raise UnsupportedModelError(self.obstacle)
        leaf = output.detach().requires_grad_()
        with torch.enable_grad():
            total, _ = self.total(leaf, target)
        return _slope(total, leaf, create_graph=False)


@dataclass(frozen=True, eq=False)
class CrossEntropy(Loss):
    """Softmax cross-entropy, equal to `torch.nn.functional.cross_entropy` over all data at once.

    ℓ = −Σ_c w_c q_c log p_c with q the target distribution (after smoothing), and
    ∇²_z ℓ = s (diag p − p pᵀ) with s = Σ_c w_c q_c. With class indices the mean divides by
    Σ w_y over the targets that are not ignored; with soft targets, by the number of positions.

    Attributes:
        class_weights: One weight per class, or None.
        ignore_index: Class index that marks targets to leave out.
        label_smoothing: Mass spread evenly over the classes.
        class_dim: Which output dimension holds the classes. By default it is read off the shapes:
            last if targets have the shape of the output without it, else 1.
        next_token: Compare position t of the output with target t + 1, for causal language models
            with labels that are not yet shifted; positions are dimension 1. None leaves it to the
            risk: as the model's own loss is, else True for known causal models. Alone, False.
    """

    class_weights: Tensor | None = None
    ignore_index: int = -100
    label_smoothing: float = 0.0
    class_dim: int | None = None
    next_token: bool | None = None

    def __post_init__(self) -> None:
        """Refuse settings that mean nothing."""
        smoothing = self.label_smoothing
        if not isinstance(smoothing, int | float) or not 0.0 <= smoothing <= 1.0:
            raise InvalidArgumentError(
                f"`CrossEntropy(label_smoothing=...)` must be from 0 to 1; got {smoothing!r}."
            )
        weights = self.class_weights
        _require_weights(weights, "CrossEntropy(class_weights=...)")
        if weights is not None and (weights.ndim != 1 or bool((weights < 0).any())):
            raise InvalidArgumentError(
                "`CrossEntropy(class_weights=...)` needs one weight ≥ 0 per class, shape (c,); "
                f"got shape {tuple(weights.shape)}."
            )

    def total(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return Σℓ and the number (or weight) of terms."""
        z, y, is_index = self.aligned(output, target)
        weights = None if self.class_weights is None else self.class_weights.to(z)
        # Positions as samples: PyTorch's kernel for them apart is not deterministic on a GPU.
        total = F.cross_entropy(
            z.movedim(1, -1).flatten(0, -2),
            y.flatten() if is_index else y.movedim(1, -1).flatten(0, -2),
            weight=weights,
            reduction="sum",
            label_smoothing=self.label_smoothing,
            ignore_index=self.ignore_index if is_index else -100,  # probabilities know no other
        )
        if not is_index:
            count = _number(y.numel() // y.shape[1])
        else:
            kept = y[y != self.ignore_index]
            count = weights[kept].double().sum() if weights is not None else _number(kept.numel())
        return total, count.to(z.device)

    def hessian_at(self, output: Tensor, target: Tensor) -> OutputProduct:
        """Return t ↦ s (p∘t − p pᵀt) at every position; it keeps p, and makes its result alone."""
        dim = self._class_dim(output, target)
        s = self._restored(self.term_weights(*self.aligned(output, target)), dim)
        p = output.detach().softmax(dim)
        if self.next_token:  # there s is zero, and the logits may be anything
            p.movedim(dim, 1)[:, :, -1:] = 0

        def product(tangent: Tensor) -> Tensor:
            bent = p * tangent
            return bent.addcmul_(p, bent.sum(dim, keepdim=True), value=-1).mul_(s)

        return product

    def drawn_output_gradient(self, output: Tensor, target: Tensor, noise: Noise) -> Tensor:
        """Return √s (p − onehot(ŷ)) with ŷ drawn from p by inverting its distribution function."""
        z, y, is_index = self.aligned(output, target)
        p = z.detach().softmax(1)
        u = noise(p[:, :1].shape).to(p.device)
        cumulative = p.double().cumsum(1)
        # Compare with u times the last sum, not with u: rounding can leave that sum below 1.
        drawn = (cumulative < u * cumulative[:, -1:]).sum(1, keepdim=True)
        onehot = torch.zeros_like(p).scatter_(1, drawn, 1.0)
        r = self.term_weights(z, y, is_index).sqrt() * (p - onehot)
        return self._restored(r, self._class_dim(output, target))

    def term_dims(self, output: Tensor, target: Tensor) -> tuple[int, ...]:
        """Return the class dimension: every position is a term of its own."""
        return (self._class_dim(output, target),)

    def aligned(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor, bool]:
        """Bring classes to dimension 1 and shift next-token targets."""
        dim = self._class_dim(output, target)
        is_index = not target.dtype.is_floating_point
        z = output.movedim(dim, 1)
        y = target if is_index else target.movedim(dim, 1)
        if self.next_token:
            z, y = z[:, :, :-1], y[:, 1:] if is_index else y[:, :, 1:]
        if is_index:
            y = y.long()
            _require_classes(y, z.shape[1], self.ignore_index)
        if self.class_weights is not None and self.class_weights.numel() != z.shape[1]:
            raise ShapeError(
                f"`CrossEntropy(class_weights=...)` needs {z.shape[1]} weights, one per class of "
                f"the output; got {self.class_weights.numel()}."
            )
        return z, y, is_index

    def _restored(self, aligned: Tensor, class_dim: int) -> Tensor:
        """Undo `aligned`: unused last positions get zero, classes go back where they were."""
        if self.next_token:
            aligned = F.pad(aligned, (0, 1))
        return aligned.movedim(1, class_dim)

    def _class_dim(self, output: Tensor, target: Tensor) -> int:
        _require_tensor(output, target, "CrossEntropy")
        if output.ndim < 2:
            raise ShapeError(
                "`CrossEntropy` needs an output (samples, classes, …); got shape "
                f"{tuple(output.shape)}."
            )
        if self.class_dim is not None:
            dims = [d for d in range(output.ndim) if self.class_dim in (d, d - output.ndim)]
        else:
            dims = list(dict.fromkeys((output.ndim - 1, 1)))
        if target.dtype.is_floating_point:
            known = self.class_dim is not None or output.ndim == 2
            fits = dims[:1] if known and target.shape == output.shape else []
        else:
            fits = [d for d in dims if output.shape[:d] + output.shape[d + 1 :] == target.shape]
        if len(fits) != 1:
            raise ShapeError(
                f"`CrossEntropy` cannot tell where the classes are: output {tuple(output.shape)}, "
                f"target {tuple(target.shape)} ({target.dtype}). Expected class indices of the "
                "output's shape without its class dimension, or probabilities of its full shape. "
                "Pass `class_dim=` to say which dimension it is."
            )
        return fits[0]

    def term_weights(self, z: Tensor, y: Tensor, is_index: bool) -> Tensor:
        """Return s for every position, with a class dimension of size 1."""
        classes = z.shape[1]
        weights = z.new_ones(classes) if self.class_weights is None else self.class_weights.to(z)
        if is_index:
            kept = y != self.ignore_index
            label_weights = weights[y.where(kept, torch.zeros_like(y))]
            s = (1 - self.label_smoothing) * label_weights + self.label_smoothing * weights.mean()
            return (s * kept).unsqueeze(1)
        q = (1 - self.label_smoothing) * y + self.label_smoothing / classes
        return (weights.view(1, -1, *[1] * (z.ndim - 2)) * q).sum(1, keepdim=True)


@dataclass(frozen=True, eq=False)
class SquaredError(Loss):
    """factor · ‖z − y‖², averaged over samples (default) or over single elements.

    The default, ½‖z − y‖² per sample, is the Gaussian negative log-likelihood, with ∇²_z ℓ = I.
    `SquaredError(factor=1.0, average="elements")` equals `torch.nn.MSELoss()`.

    Attributes:
        factor: The factor before the square; ∇²_z ℓ = 2·factor·I.
        average: "samples" or "elements".
    """

    factor: float = 0.5
    average: str = "samples"

    def __post_init__(self) -> None:
        """Refuse settings that mean nothing."""
        require_positive(self.factor, "SquaredError(factor=...)")
        require_choice(self.average, ("samples", "elements"), "SquaredError(average=...)")

    def total(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return Σℓ and the number of samples or elements."""
        _require_same_shape(output, target, "SquaredError")
        number = output.shape[0] if self.average == "samples" else output.numel()
        return self.factor * (output - target).square().sum(), _number(number).to(output.device)

    def hessian_at(self, output: Tensor, target: Tensor) -> OutputProduct:
        """Return t ↦ 2·factor·t."""
        return lambda tangent: 2 * self.factor * tangent

    def drawn_output_gradient(self, output: Tensor, target: Tensor, noise: Noise) -> Tensor:
        """Return r for ŷ drawn from N(z, 1/(2·factor))."""
        normal: Tensor = torch.special.ndtri(noise(output.shape)).to(output)
        return math.sqrt(2 * self.factor) * normal

    def term_dims(self, output: Tensor, target: Tensor) -> tuple[int, ...]:
        """Return all dimensions but the first: a term is a sample."""
        return tuple(range(1, output.ndim))


@dataclass(frozen=True, eq=False)
class BinaryCrossEntropy(Loss):
    """Binary cross-entropy on logits, averaged over elements as `BCEWithLogitsLoss` does.

    ℓ = −(w y log p + (1−y) log(1−p)), p = σ(z), so ∇²_z ℓ = s p (1−p) with s = w y + 1 − y.

    Attributes:
        positive_weight: The weight w of positive targets, broadcast against the output, or None.
        average: "elements" or "samples".
    """

    positive_weight: Tensor | None = None
    average: str = "elements"

    def __post_init__(self) -> None:
        """Refuse settings that mean nothing."""
        require_choice(self.average, ("samples", "elements"), "BinaryCrossEntropy(average=...)")
        _require_weights(self.positive_weight, "BinaryCrossEntropy(positive_weight=...)")

    def total(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return Σℓ and the number of elements or samples."""
        y = self._labels(output, target)
        weight = None if self.positive_weight is None else self.positive_weight.to(output)
        total = F.binary_cross_entropy_with_logits(output, y, pos_weight=weight, reduction="sum")
        number = output.shape[0] if self.average == "samples" else output.numel()
        return total, _number(number).to(output.device)

    def hessian_at(self, output: Tensor, target: Tensor) -> OutputProduct:
        """Return t ↦ s p (1−p) ∘ t."""
        p = output.detach().sigmoid()
        curvature = self._term_weights(output.detach(), target) * p * (1 - p)
        return lambda tangent: curvature * tangent

    def drawn_output_gradient(self, output: Tensor, target: Tensor, noise: Noise) -> Tensor:
        """Return √s (p − ŷ) with ŷ drawn from p, each element on its own."""
        p = output.detach().sigmoid()
        drawn = (noise(output.shape).to(p.device) < p.double()).to(p)
        return self._term_weights(output, target).sqrt() * (p - drawn)

    def term_dims(self, output: Tensor, target: Tensor) -> tuple[int, ...]:
        """Return all dimensions but the first: a term is a sample."""
        return tuple(range(1, output.ndim))

    def _labels(self, output: Tensor, target: Tensor) -> Tensor:
        _require_same_shape(output, target, "BinaryCrossEntropy")
        weight = output if self.positive_weight is None else self.positive_weight
        try:
            weight.expand(output.shape)
        except RuntimeError:
            raise ShapeError(
                "`BinaryCrossEntropy(positive_weight=...)` must broadcast against the output "
                f"{tuple(output.shape)}; got {tuple(weight.shape)}."
            ) from None
        return target.to(output.dtype)

    def _term_weights(self, output: Tensor, target: Tensor) -> Tensor:
        y = self._labels(output, target)
        if self.positive_weight is None:
            return torch.ones_like(output)
        return self.positive_weight.to(output) * y + 1 - y


@dataclass(frozen=True, eq=False)
class CallableLoss(Loss):
    """Any function of (output, target), differentiated by autograd.

    It may return a pair (sum of terms, number of terms); a tensor with one loss per term, which is
    summed and counted; or one number, taken as the *mean* over the batch's samples.

    Attributes:
        function: The user's loss.
        takes_whole: Whether it gets all that the model returns, or the logits of an object that has
            them. None leaves it to the risk: all if it can take that.
    """

    function: Callable[[Any, Any], object]
    takes_whole: bool | None = None

    def total(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return Σℓ and the number of terms."""
        value = self.function(output, target)
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], Tensor):
            total, count = value
            return total, torch.as_tensor(count, dtype=torch.float64, device=total.device)
        if isinstance(value, Tensor) and value.ndim > 0:
            if value.numel() == 1 and _samples(output, target) > 1:
                raise ShapeError(
                    f"A loss of shape {tuple(value.shape)} may be a mean or a single term. Return "
                    "`loss.squeeze()` for a mean, or the pair (sum of terms, number of terms)."
                )
            return value.sum(), _number(value.numel()).to(value.device)
        if isinstance(value, Tensor):
            samples = _samples(output, target)
            return value * samples, _number(samples).to(value.device)
        raise WrongTypeError(
            "A loss function must return a tensor (a mean, or one loss per term) or a pair (sum of "
            f"terms, number of terms); got {type(value).__name__}."
        )

    def hessian_at(self, output: Tensor, target: Tensor) -> OutputProduct:
        """Return t ↦ ∇²_z (sum of terms) · t by double backward, its graph kept."""
        leaf = output.detach().requires_grad_()
        with torch.enable_grad():
            total, _ = self.total(leaf, target)
            r = _slope(total, leaf, create_graph=True)

        def product(tangent: Tensor) -> Tensor:
            if not r.requires_grad:  # the loss is linear in its output
                return torch.zeros_like(tangent)
            (Ht,) = torch.autograd.grad(r, leaf, tangent, retain_graph=True, allow_unused=True)
            return torch.zeros_like(tangent) if Ht is None else Ht

        return product

    def drawn_output_gradient(self, output: Tensor, target: Tensor, noise: Noise) -> Tensor:
        """Refuse: a bare function does not say which distribution labels come from."""
        raise UnsupportedModelError(
            "`Fisher` with drawn labels needs a loss with a likelihood: CrossEntropy, SquaredError "
            "or BinaryCrossEntropy. Use `Fisher(risk, kind='empirical')` or `GaussNewton(risk)`."
        )

    def term_dims(self, output: Tensor, target: Tensor) -> tuple[int, ...]:
        """Return all dimensions but the first: a term is a sample."""
        return tuple(range(1, output.ndim))


def _slope(total: Tensor, leaf: Tensor, *, create_graph: bool) -> Tensor:
    """Return ∂total/∂leaf; zero where a batch's loss does not depend on the output."""
    if not total.requires_grad:
        return torch.zeros_like(leaf)
    (slope,) = torch.autograd.grad(total, leaf, create_graph=create_graph, allow_unused=True)
    return torch.zeros_like(leaf) if slope is None else slope


def _number(count: int) -> Tensor:
    return torch.tensor(float(count), dtype=torch.float64)


def _samples(output: object, target: object) -> int:
    for value in tensors_in((target, output)):
        if value.ndim > 0:
            return value.shape[0]
    raise ShapeError(
        "A loss function that returns a mean needs a target or output with samples to count. "
        "Return the pair (sum of terms, number of terms) instead."
    )


def _require_tensor(output: object, target: object, name: str) -> None:
    for what, value in (("output", output), ("target", target)):
        if not isinstance(value, Tensor) or value.is_complex():
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise WrongTypeError(
                f"`{name}` needs a real tensor as {what}; got {kind}. "
                "Wrap the model so that it returns logits, and give batches (inputs, target)."
            )


def _require_weights(weights: object, call: str) -> None:
    if weights is not None and (not isinstance(weights, Tensor) or weights.is_complex()):
        raise WrongTypeError(f"`{call}` needs a real tensor; got {type(weights).__name__}.")


def _require_same_shape(output: Tensor, target: Tensor, name: str) -> None:
    _require_tensor(output, target, name)
    if output.shape != target.shape or output.ndim == 0:
        raise ShapeError(
            f"`{name}` needs output and target of one shape (samples, …); got "
            f"{tuple(output.shape)} and {tuple(target.shape)}. Broadcasting them would change the "
            "loss: reshape the target, e.g. `y[:, None]`."
        )


def _require_classes(y: Tensor, classes: int, ignore_index: int) -> None:
    kept = y[y != ignore_index]
    if kept.numel() and (int(kept.min()) < 0 or int(kept.max()) >= classes):
        raise InvalidArgumentError(
            f"`CrossEntropy` needs class indices from 0 to {classes - 1} (or ignore_index "
            f"{ignore_index}); got {int(kept.min())} to {int(kept.max())}."
        )
