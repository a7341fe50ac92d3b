"""The mean Hessian of the loss at the outputs of layers, E[M].

Letters: z the model's output with C entries per sample, A = ∇²_z ℓ, m outputs of a layer, P its
positions (1 for a fully connected layer on vectors, the pixels of a convolution's output), G the
derivative of z with respect to the layer's output, M = Gᵀ A G (Wu (24), (33)).
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from eigenscape.curvature.drawn_targets import sample_noise
from eigenscape.curvature.formed import FormedOperator
from eigenscape.curvature.gauss_newton import GaussNewton
from eigenscape.curvature.hessian import Hessian
from eigenscape.curvature.matrix_layers import capture_shifts
from eigenscape.curvature.products.graphs import require_tensor_output
from eigenscape.curvature.roots import MOST_OUTPUTS, exact_roots, have_exact_roots
from eigenscape.device import eigh, full_precision
from eigenscape.errors import (
    EmptySelectionError,
    InvalidArgumentError,
    UnsupportedModelError,
    require_choice,
    require_count,
)
from eigenscape.records import EigenPairs, Status
from eigenscape.risk import (
    Batch,
    EmpiricalRisk,
    Layer,
    SampleRows,
    derivatives_explained,
    find_layer,
    is_matrix,
    output_vectors,
)
from eigenscape.space import ParamSpace

KINDS = ("gauss-newton", "hessian")
POSITIONS = ("own", "shared")

_DEFAULT_SAMPLES = 16
_INSTEAD = "`OutputHessian(..., kind='hessian', positions='shared')` takes every layout."


class OutputHessian(FormedOperator):
    """The Hessian of the risk with respect to the output of one layer, or of several at once.

    One layer: E[M] (m, m), the output side of its Kronecker approximation (Wu (7)). With several
    positions a sample's M is (mP, mP); what is kept are the positions' own blocks, averaged: the M̃
    of Wu (36). `KroneckerHessian.output_factor` is their sum, P times as much.

    Several layers: the joint matrix over their concatenated outputs, blocks between layers
    included (Wu App. B, (44)–(47)); `M["fc1", "fc2"]` is such a block. It is defined by one shift
    for each output of each layer, the same at all positions: the Hessian with respect to the
    layers' biases (Wu (25)). `positions="shared"` asks for the same of one layer; with one position
    there is no difference.

    A layer may have positions before samples, or folded into them, where samples need not be told
    apart: for "gauss-newton" of own blocks, and for "hessian" of shared shifts.

    Two kinds. "gauss-newton" is what Wu calls M: Gᵀ A G. "hessian" is the second derivative itself,
    by double backward. They agree where the model's output is piecewise linear in the layers'
    outputs (ReLU, max-pooling, affine layers); behind tanh, GELU, attention or normalisation
    they differ, and only the first is certain to be positive semi-definite.

    Cost, in backward passes over the data: C for "gauss-newton" whatever the number of layers, if
    C ≤ 256, otherwise `num_samples`, with targets drawn from the model's own distribution, which is
    unbiased. For "hessian" one for each row of the matrix, times P for the own blocks of one layer.

    Attributes:
        matrix: E[M] (m, m), float64; layers one after the other.
        kind: "gauss-newton" or "hessian".
        positions: "own" or "shared".
        num_positions: P of each layer, its output vectors for each sample; where batches differ,
            that of the last.
        num_samples: Targets drawn for each sample; None where nothing was drawn.
        status: Whether targets were drawn. False, with a warning, if that was not asked for.

    Examples:
        Under ½·mean ‖z − y‖² the curvature at the output is I; a layer below a weight w has w² of
        it, and the block between the two is w.

        >>> from eigenscape.risk.losses import SquaredError
        >>> model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
        >>> _ = torch.nn.init.constant_(model[1].weight, 3.0)
        >>> risk = EmpiricalRisk(model, SquaredError(), (torch.ones(2, 1), torch.ones(2, 1)))
        >>> OutputHessian(risk, "0").matrix.tolist()
        [[9.0]]
        >>> OutputHessian(risk).matrix.tolist()
        [[9.0, 3.0], [3.0, 1.0]]

    References:
        Wu §3, §4.4, App. A and B. Grosse and Martens, 2016, for the positions' own blocks.
    """

    @derivatives_explained("`OutputHessian`")
    @full_precision()
    def __init__(
        self,
        risk: EmpiricalRisk,
        layers: str | Sequence[str] | None = None,
        *,
        kind: str = "gauss-newton",
        positions: str | None = None,
        num_samples: int | None = None,
        seed: int = 0,
    ) -> None:
        """Pass over the data once and form the matrix.

        Args:
            risk: The function to differentiate; its model must be an `nn.Module`.
            layers: The name of a layer, or several; all linear layers and convolutions by default.
            kind: "gauss-newton" or "hessian".
            positions: "own" for the mean of the positions' own blocks, "shared" for one shift at
                all positions. By default "own" for one layer and "shared" for several.
            num_samples: Targets to draw for each sample. By default none where a sample has at most
                256 outputs (exact), else 16. "hessian" draws none.
            seed: Fixes the drawn targets.

        Raises:
            UnsupportedModelError: If a layer is no linear layer or convolution, does not run
                exactly once in a forward pass, or has rows that are not samples and should be.
            InvalidArgumentError: If layers repeat, or own blocks are asked of several.
        """
        chosen_layers = _find_layers(risk, layers)
        self.kind = require_choice(kind, KINDS, "OutputHessian(kind=...)")
        usual = "own" if len(chosen_layers) == 1 else "shared"
        self.positions = require_choice(
            usual if positions is None else positions, POSITIONS, "OutputHessian(positions=...)"
        )
        if self.positions == "own" and len(chosen_layers) > 1:
            raise InvalidArgumentError(
                f"`OutputHessian(positions='own')` needs one layer; got {len(chosen_layers)}, "
                "whose positions have nothing to do with each other. Pass positions='shared'."
            )
        if num_samples is not None:
            require_count(num_samples, "OutputHessian(num_samples=...)")
        self.num_samples = num_samples if kind == "gauss-newton" else None
        self.num_positions: dict[str, int] = {}
        self._sizes: dict[str, tuple[int]] = {}
        self._layers, self._dtype, self._device = chosen_layers, risk.dtype, risk.device
        self._sample_rows = SampleRows("OutputHessian(risk, layers)", _INSTEAD)
        with risk.ranks.together():
            total = self._total(risk, seed)
        self.matrix = symmetric(risk.ranks.sum(total) / risk.divisor)
        self._compare((Hessian if kind == "hessian" else GaussNewton)(risk))
        self.status = drawing_status("OutputHessian", num_samples, self.num_samples)
        self._space = ParamSpace(self._sizes)

    def _total(self, risk: EmpiricalRisk, seed: int) -> Tensor:
        """Sum over the samples of this rank."""
        total = torch.zeros((), dtype=torch.float64, device=risk.device)
        for batch in risk.batches:
            with torch.enable_grad(), risk.evaluating(frozen=True):
                tails = capture_shifts(risk, self._layers, batch)
                shifts, prediction = [tail.output for tail in tails], tails[0].prediction
                for layer, shift in zip(self._layers, shifts, strict=True):
                    m = output_vectors(layer, shift).shape[-1]
                    # From the number of entries: the first dimensions may be in any order.
                    self.num_positions[_label(layer)] = shift.numel() // (m * batch.size)
                    self._sizes[_label(layer)] = (m,)
                if self.kind == "hessian":
                    if self.positions == "own":
                        self._require_sample_rows(shifts, prediction, batch)
                    slopes = _gradients(tails[0].total, shifts, create_graph=True)
                    total = total + self._second(slopes, shifts)
                    continue
                require_tensor_output(prediction, "OutputHessian")
                self.num_samples = draws_needed(prediction, self.num_samples)
                if self.positions == "shared":
                    self._require_sample_rows(shifts, prediction, batch)
                else:
                    self._require_own_samples(shifts[0], prediction, batch)
                for root in output_roots(risk, prediction, batch, self.num_samples, seed):
                    total = total + gram(self._rows(_gradients(prediction, shifts, root)))
        return total

    def _require_sample_rows(self, shifts: Sequence[Tensor], prediction: Any, batch: Batch) -> None:
        """Refuse layers whose rows are not samples."""
        if isinstance(prediction, Tensor) and prediction.shape[:1] == (batch.size,):
            self._sample_rows.require(self._layers, prediction, shifts)
        for layer, shift in zip(self._layers, shifts, strict=True):
            self._sample_rows.require_shape(layer, shift, batch.size)

    def _require_own_samples(self, shift: Tensor, prediction: Tensor, batch: Batch) -> None:
        """Refuse a layer whose output vectors are not those of one sample each."""
        (layer,) = self._layers
        if shift.numel() % (self._sizes[_label(layer)][0] * batch.size):
            self._sample_rows.require_shape(layer, shift, batch.size)
        if self.num_samples is None:  # roots of several samples go back at once
            self._sample_rows.require_unmixed(layer, prediction, shift)

    def _rows(self, slopes: Sequence[Tensor]) -> Tensor:
        """Return slopes as rows whose squares add up to the matrix."""
        vectors = [output_vectors(layer, s) for layer, s in zip(self._layers, slopes, strict=True)]
        if self.positions == "shared":
            return torch.cat([v.sum(1) for v in vectors], dim=1)
        return vectors[0] / math.sqrt(self.num_positions[_label(self._layers[0])])

    def _second(self, slopes: Sequence[Tensor], shifts: Sequence[Tensor]) -> Tensor:
        """Differentiate the slopes once more. The samples' blocks add up: no two of them mix."""
        P = 1 if self.positions == "shared" else self.num_positions[_label(self._layers[0])]
        total = torch.zeros((), dtype=torch.float64, device=slopes[0].device)
        for position in range(P):
            where = slice(None) if self.positions == "shared" else slice(position, position + 1)
            rows = [self._sums(_gradients(v, shifts), where) for v in self._sums(slopes, where)]
            total = total + torch.stack(rows).double() / P
        return total.detach()

    def _sums(self, tensors: Sequence[Tensor], where: slice) -> Tensor:
        """Add tensors shaped like the outputs over samples and some positions."""
        vectors = [output_vectors(layer, t) for layer, t in zip(self._layers, tensors, strict=True)]
        return torch.cat([v[:, where].sum(dim=(0, 1)) for v in vectors])

    @full_precision()
    def matmat(self, X: Tensor) -> Tensor:
        """Multiply columns (m, k)."""
        return self.matrix.to(X) @ X

    def top_pairs(self, num_pairs: int) -> EigenPairs:
        """Return the largest eigenpairs. Cost: one eigendecomposition.

        Args:
            num_pairs: How many.

        Returns:
            The pairs, with residuals from real products.
        """
        m = len(self.matrix)
        k = require_count(num_pairs, "top_pairs(num_pairs)", at_most=m)
        values, vectors = (tensor.flip(-1)[..., :k] for tensor in eigh(self.matrix))
        return EigenPairs(
            status=Status(True, f"{k} pairs from the eigendecomposition of {m}×{m}."),
            num_products=k,
            seed=0,
            values=values,
            vectors=vectors.to(self.dtype),
            residuals=(self.matrix @ vectors - vectors * values).norm(dim=0),
            which="largest",
            tolerance=1e-6,
            shapes=dict(self.space.shapes),
        )


def draws_needed(output: Tensor, num_samples: int | None) -> int | None:
    """Return how many targets to draw for each sample; None where all roots are had exactly."""
    if num_samples is None and not have_exact_roots(output):
        return _DEFAULT_SAMPLES
    return num_samples


def drawing_status(name: str, asked: int | None, num_samples: int | None) -> Status:
    """Say whether targets were drawn, and whether that was asked for; warn if it was not.

    Args:
        name: The operator's name.
        asked: The `num_samples=` of the user.
        num_samples: How many were drawn for each sample, or None.

    Returns:
        The status.
    """
    if num_samples is None:
        return Status(True, "No targets are drawn: the curvature at the output is exact.")
    text = f"`{name}` draws {num_samples} targets for each sample: unbiased, not exact."
    if asked is None:
        text += (
            f" It is exact for up to {MOST_OUTPUTS} outputs a sample, with a backward pass for "
            "each; here are more. Pass `num_samples=` to say how many to draw."
        )
    return Status(asked is not None, text).warn()


def output_roots(
    risk: EmpiricalRisk, output: Tensor, batch: Batch, num_samples: int | None, seed: int
) -> list[Tensor]:
    """Return r_j, shaped like the model's output, with Σ_j r_j r_jᵀ = A, exactly or in expectation.

    Args:
        risk: It has the loss.
        output: The model's output.
        batch: It has the targets.
        num_samples: Targets to draw; None for exact roots.
        seed: Fixes the drawn targets.

    Returns:
        The roots.
    """
    z = output.detach()
    if num_samples is None:
        return exact_roots(risk, z, batch)
    noises = (sample_noise(batch, draw, seed, z.device) for draw in range(num_samples))
    drawn = [risk.loss.drawn_output_gradient(z, batch.target, noise) for noise in noises]
    return [residual / num_samples**0.5 for residual in drawn]


def gram(vectors: Tensor) -> Tensor:
    """Return Σ v vᵀ over everything but the last dimension, float64."""
    flat = vectors.reshape(-1, vectors.shape[-1])
    return (flat.T @ flat).double()


def symmetric(matrix: Tensor) -> Tensor:
    """Return the symmetric part."""
    return (matrix + matrix.T) / 2


def _label(layer: Layer) -> str:
    """Return a name that is never empty: a model may be a layer itself."""
    return layer.name or layer.params[0]


def _find_layers(risk: EmpiricalRisk, names: str | Sequence[str] | None) -> list[Layer]:
    call = "OutputHessian(risk, layers)"
    if names is None:
        owners = dict.fromkeys(name.rpartition(".")[0] or name for name in risk.space.names)
        every = [find_layer(risk, name, call) for name in owners]
        kept = {layer.name: layer for layer in reversed(every) if is_matrix(layer.module)}
        layers = list(kept.values())[::-1]
    else:
        chosen = [names] if isinstance(names, str) else names
        layers = [find_layer(risk, name, call) for name in chosen]
    if not layers:
        raise EmptySelectionError(
            f"`{call}` found no linear layer or convolution. Name layers of these kinds."
        )
    for layer in layers:
        if not is_matrix(layer.module):
            raise UnsupportedModelError(
                f"`OutputHessian(risk, {layer.name!r})` needs a linear layer or a convolution; "
                f"got {type(layer.module).__name__}. Name another layer."
            )
    labels = [layer.name for layer in layers]
    if len(set(labels)) < len(labels):
        raise InvalidArgumentError(
            f"`{call}` needs different layers; got {labels}. Name each once."
        )
    return layers


def _gradients(
    head: Tensor,
    leaves: Sequence[Tensor],
    cotangent: Tensor | None = None,
    *,
    create_graph: bool = False,
) -> tuple[Tensor, ...]:
    """Differentiate; zero where nothing depends on a leaf."""
    if not head.requires_grad:
        return tuple(torch.zeros_like(leaf) for leaf in leaves)
    settings: Any = dict(retain_graph=True, create_graph=create_graph, materialize_grads=True)
    return torch.autograd.grad(head, leaves, cotangent, **settings)
