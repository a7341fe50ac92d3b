"""What goes into a layer, and the loss's derivatives at its output with every label (Papyan §7.2).

Letters: N samples, C classes, h (n) the layer's input, p_c' the model's probability of class c',
δ_c' (m) the derivative of −log p_c' at the layer's output: the error that goes back if the label
were c'.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.curvature import labels_of, matrix_layers
from eigenscape.device import full_precision
from eigenscape.errors import TooLargeError, UnsupportedModelError, require_count
from eigenscape.records import Columns, Record, Status
from eigenscape.risk import (
    Batch,
    CrossEntropy,
    EmpiricalRisk,
    Layer,
    SampleRows,
    capture_tail,
    layer_input,
)

_Part = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class BackpropagatedErrors(Record):
    """A layer's inputs, and its errors with every label.

    For a layer on plain vectors δ_c' ⊗ h is the gradient of its weight if the label were c', and
    Σ w δδᵀ is the output factor of `KroneckerHessian`.

    Attributes:
        layer: The layer's name.
        classes: The class of each sample (N,).
        features: h (N, n), without a 1 for the bias; of a convolution all channels and pixels.
        errors: δ (N, C, m), candidate labels in the middle; of a convolution all channels and
            pixels of its output.
        probabilities: p (N, C).
    """

    layer: str
    classes: Tensor
    features: Tensor
    errors: Tensor
    probabilities: Tensor

    @property
    def weights(self) -> Tensor:
        """W = p/N (N, C): the weights of `errors` in the Gauss-Newton matrix of the mean loss."""
        return self.probabilities / len(self.probabilities)

    def columns(self) -> Columns:
        """Return one row for each class: samples, root mean squares of features and errors."""
        present = self.classes.unique()
        masks = [self.classes == c for c in present]
        squares = self.errors.square().sum(-1)
        return {
            "class": present.tolist(),
            "samples": [int(mask.sum()) for mask in masks],
            "features": [float(self.features[p].square().sum(1).mean().sqrt()) for p in masks],
            "errors": [
                float((self.probabilities[p] * squares[p]).sum(1).mean().sqrt()) for p in masks
            ],
        }


@full_precision()
def backpropagated_errors(
    risk: EmpiricalRisk, layer: str, *, max_bytes: int = 4 * 2**30
) -> BackpropagatedErrors:
    """Collect a layer's inputs and the errors that every label would send back to it.

    These are the h^(l−1) and δ^l of Papyan (7.3), to be taken apart by class: by `class_structure`
    for one, with `classes`, and for errors with `weights`. Samples whose target is ignored are left
    out. Label smoothing changes nothing: the curvature does not depend on it.

    Cost: C backward passes of the tail; N·(n + C·m) numbers in memory.

    Args:
        risk: Its loss must be `CrossEntropy` without class weights, its model an `nn.Module` with
            an output (samples, classes), its data in one process.
        layer: A linear layer or a convolution that runs once, with samples in its first dimension.
        max_bytes: Most memory for what is returned.

    Returns:
        Both, sample by sample, in the order and dtype of the data, in host memory.

    Raises:
        UnknownNameError: If there is no such layer.
        UnsupportedModelError: If layer, loss, output or processes do not fit.
        TooLargeError: If more than `max_bytes` would be returned.

    Examples:
        At the model's output δ_c' = p − e_c'; at equal logits of two classes that is ±½.

        >>> model = torch.nn.Sequential(torch.nn.Linear(1, 2, bias=False))
        >>> model[0].weight.data = torch.zeros(2, 1)
        >>> risk = EmpiricalRisk(model, CrossEntropy(), (torch.ones(1, 1), torch.tensor([1])))
        >>> backpropagated_errors(risk, "0").errors.tolist()
        [[[-0.5, 0.5], [0.5, -0.5]]]
    """
    call = f"backpropagated_errors(risk, {layer!r})"
    require_count(max_bytes, "backpropagated_errors(max_bytes=...)")
    _require_plain(risk, call)
    (chosen,) = matrix_layers(risk, [layer], call)
    rows = SampleRows(call)
    batches: list[_Part] = []
    for batch in risk.batches:
        captured = _captured(risk, chosen, batch, call, rows)
        if not batches:
            _require_room(captured, round(risk.num_terms), max_bytes, call)
        batches.append(captured)
    classes, features, errors, p = (torch.cat(column) for column in zip(*batches, strict=True))
    return BackpropagatedErrors(
        status=Status(True, f"{len(classes)} samples, {p.shape[1]} labels each."),
        num_products=0,
        seed=0,
        layer=layer,
        classes=classes,
        features=features,
        errors=errors,
        probabilities=p,
    )


def _captured(
    risk: EmpiricalRisk, layer: Layer, batch: Batch, call: str, rows: SampleRows
) -> _Part:
    """Return classes, features, errors and probabilities of a batch, in host memory."""
    with torch.enable_grad(), risk.evaluating(frozen=True):
        tail = capture_tail(risk, layer, batch)
        y = labels_of(risk, tail.prediction, batch, call)
        p = tail.prediction.detach().softmax(1)
        kept = (y >= 0).cpu()
        h = layer_input(tail)
        rows.require([layer], tail.prediction, [tail.output], [h])
        errors = []
        for label in range(p.shape[1]):
            residual = p.clone()
            residual[:, label] -= 1.0
            (slope,) = torch.autograd.grad(
                tail.prediction, tail.output, residual, retain_graph=True
            )
            errors.append(slope.flatten(1).cpu()[kept])
    return y.cpu()[kept], h.flatten(1).cpu()[kept], torch.stack(errors, 1), p.cpu()[kept]


def _require_plain(risk: EmpiricalRisk, call: str) -> None:
    loss = risk.loss
    if isinstance(loss, CrossEntropy) and loss.class_weights is not None:
        raise UnsupportedModelError(
            f"`{call}` is for `CrossEntropy()` without class weights, whose curvature is the mean "
            "of δδᵀ over labels. Leave them out."
        )
    if risk.ranks.size > 1:
        raise UnsupportedModelError(
            f"`{call}` returns every sample, and these are spread over {risk.ranks.size} "
            "processes. Run it in one."
        )


def _require_room(captured: _Part, num_samples: int, max_bytes: int, call: str) -> None:
    # From shapes: there may be no sample in it, if all its targets are ignored.
    needed = sum(t.shape[1:].numel() * t.element_size() for t in captured) * num_samples
    if needed > max_bytes:
        raise TooLargeError(
            f"`{call}` keeps {needed:.3g} bytes for {num_samples} samples with errors of "
            f"{captured[2].shape[1]} labels; `max_bytes` is {max_bytes:.3g}. Raise it, or use "
            "fewer samples."
        )
