"""A layer's Gauss-Newton matrix with one Kronecker product for each class: Σ_c π_c Δ_c ⊗ H_c.

Letters: x̃ (n) input of the layer with a 1 for its bias, m outputs, p_c' the model's probability of
class c', δ_c' (m) the derivative of the loss at the layer's output if the label were c', π_c the
share of samples of class c, H_c = E[x̃x̃ᵀ | c], Δ_c = E[Σ_c' p_c' δ_c' δ_c'ᵀ | c].
"""

import torch
from torch import Tensor

from eigenscape.curvature.classes.moments import class_moments
from eigenscape.curvature.formed import FormedOperator
from eigenscape.curvature.gauss_newton import GaussNewton
from eigenscape.curvature.matrix_layers import matrix_layers
from eigenscape.curvature.output_hessian import drawing_status
from eigenscape.device import full_precision
from eigenscape.errors import require_count
from eigenscape.risk import EmpiricalRisk, derivatives_explained, from_matrices, to_matrices


class ClassKronecker(FormedOperator):
    """The class-distinct Kronecker approximation (output) ⊗ (input) of one layer, known as CFAC.

    `KroneckerHessian` pairs the inputs of every class with the errors of every other; here each
    class has factors of its own. It equals the layer's Gauss-Newton matrix where inputs are
    constant within each class, and `KroneckerHessian` where all classes have equal factors. In
    Papyan §7.7 Δ_c is printed with 1/N and the weights w = p/(nC), too small by the factor N·C;
    meant is the mean over the class. His average over classes of one size is here weighted by their
    sizes. Samples whose target is ignored do not count.

    Positions of a convolution are as for `KroneckerHessian`: Δ_c adds the positions' own blocks,
    H_c is a mean over them. Class weights of the loss go into Δ_c.

    Cost: C backward passes of the tail, or `num_samples`; K·(m² + n²) float64 numbers in memory
    for the K classes that occur. A product is two GEMMs for each of them.

    Attributes:
        classes: The K classes that occur (K,).
        weights: π_c (K,), float64.
        output_factors: Δ_c (K, m, m), float64.
        input_factors: H_c (K, n, n), float64.
        num_samples: Targets drawn for each sample; None where output factors are exact.
        status: Whether targets were drawn. False, with a warning, if that was not asked for.

    Examples:
        Two classes with orthogonal inputs: class 0 has 1 in the first coordinate, class 1 has 2 in
        the second. At equal logits A = ¼ (1 −1; −1 1), and half of the samples have each input.

        >>> from eigenscape.risk.losses import CrossEntropy
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False))
        >>> _ = torch.nn.init.zeros_(model[0].weight)
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        >>> risk = EmpiricalRisk(model, CrossEntropy(), (x, torch.tensor([0, 1])))
        >>> ClassKronecker(risk, "0").to_dense()
        tensor([[ 0.1250,  0.0000, -0.1250,  0.0000],
                [ 0.0000,  0.5000,  0.0000, -0.5000],
                [-0.1250,  0.0000,  0.1250,  0.0000],
                [ 0.0000, -0.5000,  0.0000,  0.5000]])

    References:
        Papyan §7.10.
    """

    @derivatives_explained("`ClassKronecker`")
    @full_precision()
    def __init__(
        self, risk: EmpiricalRisk, layer: str, *, num_samples: int | None = None, seed: int = 0
    ) -> None:
        """Pass over the data once and form all factors.

        Args:
            risk: Its loss must be `CrossEntropy`, its model an `nn.Module` with an output
                (samples, classes); for a language model see `token_samples`. Of soft targets the
                most probable class counts.
            layer: "fc1" for weight and bias, "fc1.weight" for the weight alone.
            num_samples: Targets to draw for each sample. By default none where there are at most
                256 classes (exact), else 16.
            seed: Fixes the drawn targets.

        Raises:
            UnsupportedModelError: If the layer is not one matrix applied to vectors or does not
                have samples in its first dimension, or samples have no classes.
        """
        call = f"ClassKronecker(risk, {layer!r})"
        if num_samples is not None:
            require_count(num_samples, "ClassKronecker(num_samples=...)")
        (matrix_layer,) = matrix_layers(risk, [layer], call)
        moments = class_moments(
            risk, [matrix_layer], call, shared=False, num_samples=num_samples, seed=seed
        )
        self._layer, self._space = matrix_layer, risk.restricted(matrix_layer.params).space
        self._dtype, self._device = risk.dtype, risk.device
        self.classes, self.weights = moments.classes, moments.weights
        self.output_factors, self.input_factors = moments.outputs, moments.inputs
        self.num_samples = moments.num_samples
        self._compare(GaussNewton(risk))
        self.status = drawing_status("ClassKronecker", num_samples, self.num_samples)

    @full_precision()
    def matmat(self, X: Tensor) -> Tensor:
        """Multiply columns (N, k): each, as the m × n matrix V, becomes Σ_c π_c Δ_c V H_c."""
        V = to_matrices(self._layer, X.T, self.output_factors.shape[-1])
        total = torch.zeros_like(V)
        for weight, left, right in zip(
            self.weights, self.output_factors, self.input_factors, strict=True
        ):
            total += (weight * left).to(V) @ V @ right.to(V)
        return from_matrices(self._layer, total).T
