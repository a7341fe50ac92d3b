"""The Gauss-Newton matrix of several layers from second moments: block (k, l) is Δ^kl ⊗ H^kl.

Letters: x̃ (n̂) the inputs of all layers joined, each with a 1 for its bias; δ (m̂) the derivatives
of the loss at all their outputs, joined; H = E[x̃x̃ᵀ], Δ = E[Σ_c' p_c' δ_c' δ_c'ᵀ], and H_c, Δ_c the
same within class c, whose share of the samples is π_c; X^kl the block of layers k and l.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.curvature import (
    FormedOperator,
    GaussNewton,
    class_moments,
    drawing_status,
    matrix_layers,
)
from eigenscape.device import full_precision
from eigenscape.errors import EmptySelectionError, require_count
from eigenscape.risk import EmpiricalRisk, Layer, derivatives_explained, from_matrices, to_matrices
from eigenscape.space import Block, ParamSpace


class KhatriRao(FormedOperator):
    """Kronecker products block by block, for several layers and what lies between them.

    With `per_class`, Σ_c π_c Δ_c ⊙ H_c, CFAC of the network (Papyan Def. 7.2); without, Δ ⊙ H, KFAC
    of the network (Def. 7.1). ⊙ is the Khatri–Rao product: block (k, l) of the result is the
    Kronecker product of the blocks (k, l) of its factors, in our order (output) ⊗ (input). It is a
    section of a Kronecker product of positive semi-definite matrices, and so one itself. The first
    equals the Gauss-Newton matrix of these layers where the inputs of all of them are constant
    within each class, the second where there is one sample. Diagonal blocks are `ClassKronecker`
    and `KroneckerHessian` for layers that work on plain vectors.

    The paper has plain vectors only. Layers with several positions have nothing to do with each
    other's positions: slopes are added and inputs averaged over them, as for `full_approximation`,
    which is exact where inputs are constant over positions too.

    Cost: C backward passes, or `num_samples`, and K·(m̂² + n̂²) float64 numbers in memory for the K
    classes that occur. A product is two GEMMs for each of them and pair of layers.

    Attributes:
        layers: Names of the layers, in the order of the factors.
        classes: The K classes that occur (K,); without `per_class` the number 0 for all.
        weights: π_c (K,), float64.
        output_factors: Δ_c (K, m̂, m̂), float64.
        input_factors: H_c (K, n̂, n̂), float64.
        num_samples: Targets drawn for each sample; None where output factors are exact.
        status: Whether targets were drawn. False, with a warning, if that was not asked for.

    Examples:
        One sample, one class: nothing is lost, between layers neither. The slopes of z₁ − z₀ are
        v = (2, −1, 1), the logits are equal, and the matrix is ¼ vvᵀ.

        >>> from eigenscape.risk.losses import CrossEntropy
        >>> model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 2))
        >>> values = ([[1.0]], [[0.0], [2.0]], [0.0, -2.0])
        >>> for p, value in zip(model.parameters(), values): p.data = torch.tensor(value)
        >>> risk = EmpiricalRisk(model, CrossEntropy(), (torch.ones(1, 1), torch.tensor([0])))
        >>> KhatriRao(risk, ["0", "1.weight"]).to_dense()
        tensor([[ 1.0000, -0.5000,  0.5000],
                [-0.5000,  0.2500, -0.2500],
                [ 0.5000, -0.2500,  0.2500]])

    References:
        Papyan §7.2, §7.10.
    """

    @derivatives_explained("`KhatriRao`")
    @full_precision()
    def __init__(
        self,
        risk: EmpiricalRisk,
        layers: Sequence[str],
        *,
        per_class: bool = True,
        num_samples: int | None = None,
        seed: int = 0,
    ) -> None:
        """Pass over the data once and form all factors.

        Args:
            risk: As for `ClassKronecker`.
            layers: "fc1" for weight and bias, "fc1.weight" for the weight alone.
            per_class: One pair of factors for each class, or one for all.
            num_samples: As for `ClassKronecker`.
            seed: Fixes the drawn targets.

        Raises:
            UnsupportedModelError: If a layer is not one matrix applied to vectors, or does not
                have samples in its first dimension, or samples have no classes.
            EmptySelectionError: If no layer is named.
            InvalidArgumentError: If one is named twice.
        """
        call = "KhatriRao(risk, layers)"
        names = [layers] if isinstance(layers, str) else list(layers)
        if not names:
            raise EmptySelectionError(f"`{call}` needs at least one layer; got none. Name some.")
        if num_samples is not None:
            require_count(num_samples, "KhatriRao(num_samples=...)")
        chosen_layers = matrix_layers(risk, names, call)
        moments = class_moments(
            risk,
            chosen_layers,
            call,
            shared=True,
            per_class=per_class,
            num_samples=num_samples,
            seed=seed,
        )
        self.layers = tuple(names)
        self._space = risk.restricted(
            [name for layer in chosen_layers for name in layer.params]
        ).space
        self._dtype, self._device = risk.dtype, risk.device
        self.classes, self.weights = moments.classes, moments.weights
        self.output_factors, self.input_factors = moments.outputs, moments.inputs
        self.num_samples = moments.num_samples
        self._compare(GaussNewton(risk))
        self.status = drawing_status("KhatriRao", num_samples, self.num_samples)
        self._slices = _layer_slices(chosen_layers, self._space)

    @full_precision()
    def matmat(self, X: Tensor) -> Tensor:
        """Multiply columns: with V^l their matrices, layer k gets Σ_c π_c Σ_l Δ_c^kl V^l H_c^lk."""
        V = [layer.matrices(X) for layer in self._slices]
        totals = [torch.zeros_like(matrix) for matrix in V]
        for weight, left, right in zip(
            self.weights, self.output_factors, self.input_factors, strict=True
        ):
            left, right = (weight * left).to(X), right.to(X)
            for total, target in zip(totals, self._slices, strict=True):
                for matrix, source in zip(V, self._slices, strict=True):
                    delta = left[target.outputs, source.outputs]
                    total += delta @ matrix @ right[source.inputs, target.inputs]
        pairs = zip(self._slices, totals, strict=True)
        return sum((layer.columns(t, len(X)) for layer, t in pairs), start=torch.zeros_like(X))


@dataclass(frozen=True)
class _LayerSlices:
    """Where a layer is among the parameters, and its rows and columns in both factors."""

    layer: Layer
    block: Block
    outputs: slice
    inputs: slice

    def matrices(self, X: Tensor) -> Tensor:
        """Return the layer's rows of columns (N, k) as matrices (k, m, n)."""
        m = self.outputs.stop - self.outputs.start
        return to_matrices(self.layer, self.block.take(X).T, m)

    def columns(self, matrices: Tensor, size: int) -> Tensor:
        """Return matrices as columns (N, k), zero in other layers."""
        return self.block.put(from_matrices(self.layer, matrices).T, size)


def _layer_slices(layers: Sequence[Layer], space: ParamSpace) -> list[_LayerSlices]:
    slices: list[_LayerSlices] = []
    m = n = 0
    for layer in layers:
        block = space.block(*layer.params)
        num_outputs = space.shapes[layer.params[0]][0]  # of a weight
        num_inputs = block.size // num_outputs
        outputs, inputs = slice(m, m + num_outputs), slice(n, n + num_inputs)
        slices.append(_LayerSlices(layer, block, outputs, inputs))
        m, n = outputs.stop, inputs.stop
    return slices
