"""The samples on which the loss is still curved.

A classifier that fits its training data has almost no curvature where it is sure: ∇²_z ℓ of a
sample is diag p − ppᵀ, which vanishes with 1 − max p. Few samples then make the Hessian.
"""

import torch
from torch import Tensor

from eigenscape.errors import InvalidArgumentError, UnsupportedModelError
from eigenscape.risk.batch import Batch
from eigenscape.risk.empirical_risk import EmpiricalRisk
from eigenscape.risk.losses import CrossEntropy

# Outputs of a sample up to which the trace is had by one product for each.
_MOST_OUTPUTS = 1024


@torch.no_grad()
def curvature_traces(risk: EmpiricalRisk) -> Tensor:
    """Return tr ∇²_z ℓ of every sample (n,), float64: how curved the loss is in its output.

    Cost: a forward pass; where the loss is not cross-entropy, one product at the output for each of
    the outputs besides.

    Args:
        risk: Model, loss and data, in one process.

    Returns:
        The traces, in the order of the data.

    Raises:
        UnsupportedModelError: If processes share the data, or outputs are not (samples, classes)
            under another loss than cross-entropy, or are too many.

    Examples:
        >>> model = torch.nn.Linear(1, 2, bias=False)
        >>> with torch.no_grad():
        ...     _ = model.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        >>> data = torch.tensor([[0.0], [5.0]]), torch.tensor([0, 0])
        >>> curvature_traces(EmpiricalRisk(model, CrossEntropy(), data)).round(decimals=4).tolist()
        [0.5, 0.0001]
    """
    if risk.ranks.size > 1:
        raise UnsupportedModelError(
            f"Samples are looked at in one process; {risk.ranks.size} share these data."
        )
    params, traces = risk.parameters(), []
    with risk.evaluating():
        for batch in risk.batches:
            traces.append(_traces(risk, risk.output(params, batch), batch).double().cpu())
    return torch.cat(traces)


def sharpest_samples(risk: EmpiricalRisk, share: float = 1e-3) -> EmpiricalRisk:
    """Return the risk of those samples that have all but a share of the curvature at the output.

    Its operators are near those of the whole risk, up to a factor, since a mean is over fewer
    samples. They are what `eigsh(H, search=...)` wants: residuals of a network that fits its data
    are then about `share` of their eigenvalues, for a fraction of the time.

    Args:
        risk: Model, loss and data, in one process.
        share: Part of Σ tr ∇²_z ℓ that may be left out, from 0 to 1.

    Returns:
        A risk of the same parameters on fewer samples.

    Raises:
        InvalidArgumentError: If the share is out of range, or nothing is curved.
        UnsupportedModelError: If samples are not tensors that can be picked by number, or as for
            `curvature_traces`.

    Examples:
        >>> model = torch.nn.Linear(1, 2, bias=False)
        >>> with torch.no_grad():
        ...     _ = model.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        >>> x, y = torch.tensor([[0.0], [5.0], [1.0]]), torch.tensor([0, 0, 0])
        >>> sharpest_samples(EmpiricalRisk(model, CrossEntropy(), (x, y))).num_samples
        2
    """
    if not 0.0 <= share < 1.0:
        raise InvalidArgumentError(
            f"`sharpest_samples(share=...)` must be from 0 to below 1; got {share}."
        )
    traces = curvature_traces(risk).abs()
    total = float(traces.sum())
    if not total > 0.0:
        raise InvalidArgumentError(
            "`sharpest_samples(risk)`: no sample has any curvature at the output; the loss is flat."
        )
    values, order = traces.sort(descending=True, stable=True)
    # Entry k is left out if the k largest are kept. Summing from the small end rounds least.
    tail_sums = values.flip(0).cumsum(0).flip(0)
    kept = torch.zeros(len(traces), dtype=torch.bool)
    kept[order[: int((tail_sums > share * total).sum())]] = True
    pieces, first = [], 0
    for batch in risk.batches:
        here = kept[first : first + batch.size].nonzero()[:, 0].to(risk.device)
        pieces.append([tensor[here] for tensor in _tensors(batch)])
        first += batch.size
    shapes = {tuple(tensor.shape[1:] for tensor in piece) for piece in pieces}
    if len(shapes) > 1:  # ragged batches stay apart
        return risk.on([tuple(piece) for piece in pieces if len(piece[0])])
    return risk.on(tuple(torch.cat(tensors) for tensors in zip(*pieces, strict=True)))


def _traces(risk: EmpiricalRisk, z: Tensor, batch: Batch) -> Tensor:
    loss = risk.loss
    if isinstance(loss, CrossEntropy):
        aligned, y, is_index = loss.aligned(z, batch.target)
        p = aligned.double().softmax(1)
        return (loss.term_weights(aligned, y, is_index) * p * (1.0 - p)).flatten(1).sum(1)
    if z.ndim != 2 or z.shape[1] > _MOST_OUTPUTS:
        raise UnsupportedModelError(
            f"Curvature of single samples is had for outputs (samples, at most {_MOST_OUTPUTS}), "
            f"or for CrossEntropy(); got {tuple(z.shape)} and {type(loss).__name__}."
        )
    multiply = loss.hessian_at(z, batch.target)
    units = torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    return torch.stack([multiply(u.expand_as(z))[:, j] for j, u in enumerate(units)]).sum(0)


def _tensors(batch: Batch) -> list[Tensor]:
    tensors = [*batch.args, batch.target]
    if batch.kwargs or not all(isinstance(p, Tensor) and len(p) == batch.size for p in tensors):
        raise UnsupportedModelError(
            "Samples are picked from tensors of inputs and targets, whose first dimension counts "
            "them; these data are others. Make a smaller risk by `curvature_traces`."
        )
    return tensors
