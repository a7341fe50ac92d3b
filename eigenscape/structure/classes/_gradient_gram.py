"""Inner products of all gradients of a network, layer by layer and without the gradients.

A sample i has C gradients, Jᵀr_ic for the roots Σ_c r_ic r_icᵀ = ∇²_z ℓ_i of the loss's curvature
at its output z: rows whose second moment is the Gauss-Newton matrix. At a layer such a row is
Σ_p s_p x_pᵀ. So two of them have the product Σ_pp' (s_p·s'_p')(x_p·x'_p'), or are written out, some
outputs at a time: whichever takes fewer operations.

Letters: N samples, P positions, x (N, P, n) inputs of a layer, s (N, C, P, m) slopes at its output.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from eigenscape.analyses import by_position, covered_layers, normalised
from eigenscape.curvature import MOST_OUTPUTS, exact_roots, have_exact_roots
from eigenscape.errors import UnsupportedModelError
from eigenscape.records import ProgressCallback, Ticker
from eigenscape.risk import (
    Batch,
    EmpiricalRisk,
    Layer,
    SampleRows,
    capture_tail,
    input_vectors,
    is_matrix,
    layer_input,
    leaf_copies,
    num_groups,
)

# Numbers in float64 that are held at a time beside the matrix itself.
_MOST_NUMBERS, _MOST_GPU_NUMBERS = 2**24, 2**28
# Samples and roots whose gradients are compared with those of autograd.
_CHECKED = 3
_INSTEAD = "Use products: `ClassGradients(risk)`."
_Rows = tuple[Tensor, Tensor]  # x and s of one matrix


def gradient_gram(
    risk: EmpiricalRisk, call: str, progress: ProgressCallback | None = None
) -> Tensor:
    """Return the inner products of all rows. Cost: for each layer a forward and C backward passes.

    Args:
        risk: Its model must be an `nn.Module` of linear, convolution and normalisation layers, each
            called once; its output (samples, up to 256 numbers).
        call: The user's call, for messages.
        progress: Told how many layers are done.

    Returns:
        The matrix (N·C, N·C) in float64; row i·C + c is root c of sample i. It is not divided by
        the risk's divisor.

    Raises:
        WrongTypeError: If the model is a pure function.
        UnsupportedModelError: If a layer or the output is of another kind, if weights are used
            elsewhere than in their layer, or if a layer's rows are not samples or mix later.
    """
    layers = covered_layers(risk, call, _INSTEAD, tables=False)
    gram: Tensor | None = None
    ticker = Ticker(progress, "inner products of gradients", len(layers))
    for done, layer in enumerate(layers, 1):
        with risk.evaluating(frozen=True):  # normalisations are looked at by themselves, too
            matrices = _seen(risk, layer, call)
        for x, s in matrices:
            if gram is None:
                gram = s.new_zeros(2 * (s.shape[0] * s.shape[1],), dtype=torch.float64)
            _add(gram, x, s)
        ticker.tick(done)
    if gram is None:  # nothing depends on the parameters
        raise UnsupportedModelError(f"`{call}` found no parameter on which the output depends.")
    _check(risk, gram, call)
    return gram


def _seen(risk: EmpiricalRisk, layer: Layer, call: str) -> list[_Rows]:
    """Return x and s of a layer over all data, one pair for each matrix it has."""
    rows = SampleRows(call, _INSTEAD)
    inputs: list[Tensor] = []
    slopes: list[Tensor] = []
    module = layer.module
    for batch in risk.batches:
        tail = capture_tail(risk, layer, batch, must_matter=False)
        _require_output(tail.prediction, batch, call)
        rows.require([layer], tail.prediction, [tail.output], [layer_input(tail)])
        roots = exact_roots(risk, tail.prediction.detach(), batch)
        back = [_slope(tail.prediction, tail.output, root) for root in roots]
        slopes.append(torch.stack([by_position(module, slope) for slope in back], 1))
        if "weight" not in layer.fields:
            continue
        if is_matrix(module):
            plain = dataclasses.replace(layer, fields=("weight",))
            inputs.append(input_vectors(plain, tail))
        else:
            inputs.append(by_position(module, normalised(layer, tail)))
    s = torch.cat(slopes)
    one = s.new_ones(len(s), 1, 1)
    matrices = [(one, s.sum(2, keepdim=True))] if "bias" in layer.fields else []
    if not inputs:
        return matrices
    x = torch.cat(inputs)
    if not is_matrix(module):  # a scale: Σ_p s_p ∘ x̂_p
        return [*matrices, (one, (s * x[:, None]).sum(2, keepdim=True))]
    groups = num_groups(module)
    return [*matrices, *zip(x.chunk(groups, 2), s.chunk(groups, 3), strict=True)]


def _slope(prediction: Tensor, output: Tensor, root: Tensor) -> Tensor:
    if not prediction.requires_grad:  # the layer changes nothing
        return torch.zeros_like(output)
    (slope,) = torch.autograd.grad(
        prediction, output, root, retain_graph=True, materialize_grads=True
    )
    return slope


def _require_output(prediction: Any, batch: Batch, call: str) -> None:
    is_tensor = isinstance(prediction, Tensor)
    is_plain = is_tensor and prediction.ndim == 2
    if is_plain and have_exact_roots(prediction) and len(prediction) == batch.size:
        return
    got = tuple(prediction.shape) if is_tensor else type(prediction).__name__
    raise UnsupportedModelError(
        f"`{call}` needs an output (samples, up to {MOST_OUTPUTS} numbers); got {got}. {_INSTEAD}"
    )


def _add(gram: Tensor, x: Tensor, s: Tensor) -> None:
    """Add the inner products at one matrix, by the cheaper of two ways."""
    (N, P, n), (C, m) = x.shape, (s.shape[1], s.shape[3])
    written = (N * C) ** 2 * m * n
    in_pairs = (N * P) ** 2 * n + (N * C * P) ** 2 * (m + 1)
    most = _MOST_GPU_NUMBERS if gram.is_cuda else _MOST_NUMBERS
    if written < in_pairs:
        _add_written(gram, x, s, max(1, most // (N * C * n)))
    else:
        _add_pairs(gram, x, s, max(1, int(most**0.5) // (C * P)))


def _add_written(gram: Tensor, x: Tensor, s: Tensor, outputs: int) -> None:
    """Write rows out for some outputs at a time."""
    N, C = s.shape[:2]
    for slopes in s.split(outputs, 3):
        # (N, C·m, P) times (N, P, n): one product for each sample.
        rows = slopes.transpose(2, 3).flatten(1, 2) @ x
        rows = rows.reshape(N * C, -1).double()
        gram.addmm_(rows, rows.T)


def _add_pairs(gram: Tensor, x: Tensor, s: Tensor, samples: int) -> None:
    """Multiply inner products of slopes and of inputs, for some samples at a time."""
    (N, P, n), (C, m) = x.shape, (s.shape[1], s.shape[3])
    tiles = [slice(first, min(first + samples, N)) for first in range(0, N, samples)]
    for index, one in enumerate(tiles):
        x_one, s_one = x[one].double().reshape(-1, n), s[one].double().reshape(-1, m)
        a = one.stop - one.start
        for two in tiles[: index + 1]:
            b = two.stop - two.start
            inputs = x_one @ x[two].double().reshape(-1, n).T
            product = (s_one @ s[two].double().reshape(-1, m).T).view(a, C, P, b, C, P)
            product *= inputs.view(a, 1, P, b, 1, P)
            tile = product.sum((2, 5)).view(a * C, b * C)
            rows, columns = (slice(side.start * C, side.stop * C) for side in (one, two))
            gram[rows, columns] += tile
            if one != two:
                gram[columns, rows] += tile.T


def _check(risk: EmpiricalRisk, gram: Tensor, call: str) -> None:
    """Compare a few rows with gradients by autograd, which knows of all that happens.

    It finds weights that are used elsewhere too, and samples that change each other's outputs.

    Raises:
        UnsupportedModelError: If they differ.
    """
    batch = next(iter(risk.batches))
    with torch.enable_grad(), risk.evaluating():
        leaves = leaf_copies(risk.parameters())
        output = risk.output(leaves, batch)
        roots = exact_roots(risk, output.detach(), batch)
        rows, places = [], []
        for sample in range(min(_CHECKED, batch.size)):
            for number, root in enumerate(roots[:_CHECKED]):
                seed = torch.zeros_like(root)
                seed[sample] = root[sample]
                gradients = torch.autograd.grad(
                    output, list(leaves.values()), seed, retain_graph=True, materialize_grads=True
                )
                rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
                places.append(sample * len(roots) + number)
    plain = torch.stack(rows).double()
    expected = plain @ plain.T
    gap = (gram[places][:, places] - expected).abs().max()
    # Rounding stays far below √eps, a missing term does not.
    if gap > risk.slack * expected.abs().max():
        raise UnsupportedModelError(
            f"`{call}` finds other gradients than autograd: the model uses a weight elsewhere than "
            "in its own layer, or samples change each other's outputs. "
            f"{_INSTEAD}"
        )
