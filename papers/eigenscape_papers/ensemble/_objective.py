"""Losses of stacked networks: slopes at the outputs, sums for the record, nothing that waits.

The losses of `eigenscape.risk.losses` check their targets in every call, and a check waits for the
device. Here the targets were checked once, so that a step is two kernels and can be recorded in a
CUDA graph. Losses without such a form go one seed at a time through their own code.

Shapes: K steps, S seeds, B samples per step, C classes. z output, y target, r slope of the *mean*
of the terms, W = (class weight) ∘ (target distribution), s = Σ_c W, n number (or weight) of terms;
then ℓ = −Σ_c W log p and r = (s p − W)/n with p = softmax(z).
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from eigenscape.errors import InvalidArgumentError
from eigenscape.risk import CrossEntropy, Loss, SquaredError

Prepared = tuple[Tensor, ...]
SUMS = ("loss", "terms", "correct", "samples")


class Objective(ABC):
    """What a training step and a record need of a loss."""

    has_accuracy = False

    @abstractmethod
    def prepare(self, targets: Tensor) -> Prepared:
        """Turn targets (K, S, B, …) into what all steps need, each with leading (K, S)."""

    @abstractmethod
    def slope(self, output: Tensor, prepared: Prepared) -> Tensor:
        """Return r for outputs (S, B, …) and one step's part of what was prepared."""

    @abstractmethod
    def sums(self, outputs: Tensor, prepared: Prepared) -> Tensor:
        """Return (4, S) float64: the sums over K and B that `SUMS` names."""


class _CrossEntropy(Objective):
    """Cross-entropy of outputs (B, C), with class weights, smoothing and ignored targets."""

    has_accuracy = True

    def __init__(self, loss: CrossEntropy, num_classes: int, like: Tensor) -> None:
        self._loss, self._classes = loss, torch.arange(num_classes, device=like.device)
        weights = loss.class_weights
        self._weights = torch.ones(num_classes).to(like) if weights is None else weights.to(like)

    def prepare(self, targets: Tensor) -> Prepared:
        smooth, C = self._loss.label_smoothing, len(self._classes)
        if targets.dtype.is_floating_point:
            q = targets.to(self._weights)
            kept, label = torch.ones_like(q[..., 0]), targets.argmax(-1)
            n = kept.double().sum(-1)
        else:
            label = targets
            onehot = targets.unsqueeze(-1) == self._classes
            q = onehot.to(self._weights)
            kept = (targets != self._loss.ignore_index).to(q)
            n = (q @ self._weights * kept).double().sum(-1)
        W = self._weights * ((1 - smooth) * q + smooth / C) * kept.unsqueeze(-1)
        scale = (1 / n).to(W).unsqueeze(-1).unsqueeze(-1)
        return -W * scale, W.sum(-1, keepdim=True) * scale, n, label, kept

    def slope(self, output: Tensor, prepared: Prepared) -> Tensor:
        return torch.addcmul(prepared[0], output.softmax(-1), prepared[1])

    def sums(self, outputs: Tensor, prepared: Prepared) -> Tensor:
        minus_W, _, n, label, kept = prepared
        means = (minus_W * outputs.log_softmax(-1)).sum(-1).double().sum(-1)
        correct = (outputs.argmax(-1) == label).double() * kept
        totals = (means * n, n, correct.sum(-1), kept.double().sum(-1))
        return torch.stack([total.sum(0) for total in totals])


class _TokenCrossEntropy(Objective):
    """The same at many positions of a sample, as of a text: their targets are class indices.

    W is never made: over thousands of tokens it is as large as the outputs, and nearly all zero.
    """

    def __init__(self, loss: CrossEntropy, output: Tensor, class_dim: int) -> None:
        self._loss, self._dim, C = loss, class_dim - output.ndim, output.shape[class_dim]
        weights = loss.class_weights
        self._weights = torch.ones(C).to(output) if weights is None else weights.to(output)

    def prepare(self, targets: Tensor) -> Prepared:
        label, smooth = targets.long(), self._loss.label_smoothing
        if self._loss.next_token:
            none = torch.full_like(label[:, :, :, :1], self._loss.ignore_index)
            label = torch.cat((label[:, :, :, 1:], none), 3)
        label = label.flatten(2)
        dropped = label == self._loss.ignore_index
        label = label.masked_fill(dropped, 0)
        target_weight = self._weights[label].masked_fill(dropped, 0)
        n = target_weight.double().sum(-1)
        scale = (1 / n).to(target_weight).unsqueeze(-1)
        spread = (smooth * self._weights.mean()).masked_fill(dropped, 0)
        tensors = ((1 - smooth) * target_weight * scale, spread * scale, label, dropped)
        return *(tensor.unsqueeze(-1) for tensor in tensors), n

    def slope(self, output: Tensor, prepared: Prepared) -> Tensor:
        target_weight, spread, label, dropped, _ = prepared
        r = self._positions(output).softmax(-1) * (target_weight + spread)
        if self._loss.label_smoothing:
            r -= spread * (self._weights / self._weights.sum())
        # Whatever the logits are where nothing is compared, they may be infinite.
        r = r.scatter_add_(-1, label, -target_weight).masked_fill_(dropped, 0)
        return r.view(output.movedim(self._dim, -1).shape).movedim(-1, self._dim)

    def sums(self, outputs: Tensor, prepared: Prepared) -> Tensor:
        rows = []
        for output, *now in zip(outputs, *prepared, strict=True):  # all at once would be copied
            target_weight, spread, label, dropped, n = now
            log_p = self._positions(output).log_softmax(-1)
            terms = target_weight * log_p.gather(-1, label)
            if self._loss.label_smoothing:
                terms += spread * (log_p @ (self._weights / self._weights.sum())).unsqueeze(-1)
            mean = -terms.masked_fill(dropped, 0).double().sum((1, 2))
            rows.append(torch.stack((mean * n, n, torch.zeros_like(n), torch.zeros_like(n))))
        return torch.stack(rows).sum(0)

    def _positions(self, output: Tensor) -> Tensor:
        """Return outputs (S, …) as (S, positions of all samples, C)."""
        return output.movedim(self._dim, -1).flatten(1, -2)


class _SquaredError(Objective):
    """factor · ‖z − y‖²; class indices stand for one-hot vectors."""

    def __init__(self, loss: SquaredError, num_classes: int | None, like: Tensor) -> None:
        self._loss, self._dtype, self.has_accuracy = loss, like.dtype, num_classes is not None
        self._classes = torch.arange(num_classes or 0, device=like.device)

    def prepare(self, targets: Tensor) -> Prepared:
        if self.has_accuracy:
            return (targets.unsqueeze(-1) == self._classes).to(self._dtype), targets
        return (targets.to(self._dtype),)

    def slope(self, output: Tensor, prepared: Prepared) -> Tensor:
        count = output.shape[1] if self._loss.average == "samples" else output[0].numel()
        return (output - prepared[0]) * (2 * self._loss.factor / count)

    def sums(self, outputs: Tensor, prepared: Prepared) -> Tensor:
        K, S, B = outputs.shape[:3]
        squares = (outputs - prepared[0]).square().double().transpose(0, 1).reshape(S, -1).sum(-1)
        terms = K * B if self._loss.average == "samples" else outputs[:, 0].numel()
        result = torch.zeros(len(SUMS), S, dtype=torch.float64, device=outputs.device)
        result[0] = self._loss.factor * squares
        result[1] = terms
        if self.has_accuracy:
            result[2] = (outputs.argmax(-1) == prepared[1]).double().sum((0, 2))
            result[3] = K * B
        return result


class _Any(Objective):
    """Any loss, through its own code, one seed at a time."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss

    def prepare(self, targets: Tensor) -> Prepared:
        return (targets,)

    def slope(self, output: Tensor, prepared: Prepared) -> Tensor:
        slopes = []
        for z, y in zip(output, prepared[0], strict=True):
            leaf = z.detach().requires_grad_()
            with torch.enable_grad():
                total, count = self._loss.total(leaf, y)
            (r,) = torch.autograd.grad(total, leaf)
            slopes.append(r / count.to(r))
        return torch.stack(slopes)

    def sums(self, outputs: Tensor, prepared: Prepared) -> Tensor:
        result = torch.zeros(len(SUMS), outputs.shape[1], dtype=torch.float64)
        result = result.to(outputs.device)
        for step, targets in zip(outputs, prepared[0], strict=True):
            for index, (z, y) in enumerate(zip(step, targets, strict=True)):
                total, count = self._loss.total(z, y)
                result[0, index] += total.double()
                result[1, index] += count.double()
        return result


def make_objective(loss: Loss, output: Tensor, targets: Tensor, call: str) -> Objective:
    """Choose the form of a loss for outputs like `output`, and check all targets once.

    Args:
        loss: The loss.
        output: Output of one network for one batch, (B, …).
        targets: All targets that the objective will see.
        call: How the user wrote the data.

    Returns:
        The objective.

    Raises:
        InvalidArgumentError: If a class index is out of range.
        ShapeError: If the loss cannot compare the two.
    """
    first = targets[: len(output)]
    is_index = not targets.dtype.is_floating_point
    if isinstance(loss, SquaredError):
        if is_index and output.ndim == 2 and targets.ndim == 1:
            _require_range(targets, output.shape[1], None, call)
            return _SquaredError(loss, output.shape[1], output)
        loss.total(output, first.to(output.dtype))  # refuses shapes that do not fit
        return _SquaredError(loss, None, output)
    loss.total(output, first)
    if isinstance(loss, CrossEntropy) and output.ndim == 2 and loss.class_dim in (None, 1, -1):
        if is_index:
            _require_range(targets, output.shape[1], loss.ignore_index, call)
        return _CrossEntropy(loss, output.shape[1], output)
    if isinstance(loss, CrossEntropy) and is_index:
        (dim,) = loss.term_dims(output, first)
        _require_range(targets, output.shape[dim], loss.ignore_index, call)
        return _TokenCrossEntropy(loss, output, dim)
    return _Any(loss)


def _require_range(targets: Tensor, classes: int, ignored: int | None, call: str) -> None:
    kept = targets if ignored is None else targets[targets != ignored]
    if kept.numel() and (int(kept.min()) < 0 or int(kept.max()) >= classes):
        raise InvalidArgumentError(
            f"`{call}` must hold class indices from 0 to {classes - 1}, one per output of the "
            f"network; got {int(kept.min())} to {int(kept.max())}."
        )
