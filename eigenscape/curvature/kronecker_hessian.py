"""A layer's Hessian as if inputs and output curvature were independent: E[M] ⊗ E[x̃x̃ᵀ].

Letters: x̃ (n) input of the layer with a 1 for its bias, m outputs, P positions (1 for a fully
connected layer, the pixels of a convolution's output), z the model's output with C entries per
sample, A = ∇²_z ℓ, G = ∂z/∂(layer's output), M = Gᵀ A G (Wu (33); the Hessian at the layer's output
itself wherever the tail is piecewise linear), D the risk's divisor.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from eigenscape.curvature.formed import FormedOperator
from eigenscape.curvature.gauss_newton import GaussNewton
from eigenscape.curvature.matrix_layers import matrix_layers
from eigenscape.curvature.output_hessian import (
    drawing_status,
    draws_needed,
    gram,
    output_roots,
    symmetric,
)
from eigenscape.curvature.products.graphs import require_tensor_output
from eigenscape.device import eigh, full_precision
from eigenscape.errors import ShapeError, require_count
from eigenscape.records import EigenPairs, Status
from eigenscape.risk import (
    Batch,
    CrossEntropy,
    EmpiricalRisk,
    SampleRows,
    capture_tail,
    derivatives_explained,
    from_matrices,
    input_vectors,
    output_vectors,
    to_matrices,
)


class KroneckerHessian(FormedOperator):
    """The Kronecker approximation (output) ⊗ (input) of one layer's Hessian, known as K-FAC.

    `output_factor` is (1/D) Σ over samples and positions of the position's own block of M;
    `input_factor` is the mean of x̃x̃ᵀ over samples and positions. For a convolution this is Wu (38)
    with the 1/P of (36) moved from one factor to the other. Inputs that have no part in the loss
    because their target is ignored do not count in either factor.

    Cost: a backward pass of the tail over the data for each of C outputs, where C ≤ 256; outputs
    may have any shape, C counts the numbers of one sample. Otherwise `num_samples` passes with
    targets drawn from the model's own distribution, which is unbiased and said in `status`.

    Attributes:
        output_factor: E[M] (m, m), float64.
        input_factor: E[x̃x̃ᵀ] (n, n), float64.
        num_positions: P.
        num_samples: Targets drawn for each sample; None where the output factor is exact.
        status: Whether targets were drawn. False, with a warning, if that was not asked for.

    Examples:
        Under ½·mean ‖z − y‖² the last layer's Hessian is I ⊗ E[xxᵀ], so nothing is lost.

        >>> from eigenscape.risk.losses import SquaredError
        >>> x = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False))
        >>> risk = EmpiricalRisk(model, SquaredError(), (x, torch.zeros(2, 1)))
        >>> KroneckerHessian(risk, "0").to_dense()
        tensor([[1., 1.],
                [1., 2.]])

    References:
        Martens and Grosse, "Optimizing neural networks with Kronecker-factored approximate
        curvature", 2015; Grosse and Martens, 2016, for convolutions. Wu §3 and App. A.
    """

    @derivatives_explained("`KroneckerHessian`")
    @full_precision()
    def __init__(
        self, risk: EmpiricalRisk, layer: str, *, num_samples: int | None = None, seed: int = 0
    ) -> None:
        """Pass over the data once and form both factors.

        Args:
            risk: The function to differentiate; its model must be an `nn.Module`.
            layer: "fc1" for weight and bias, "fc1.weight" for the weight alone.
            num_samples: Targets to draw for each sample. By default none where a sample has at most
                256 outputs (exact), else 16.
            seed: Fixes the drawn targets.

        Raises:
            UnsupportedModelError: If the layer is not one matrix applied to vectors, or samples
                change each other's outputs behind it and no targets are drawn.
        """
        call = f"KroneckerHessian(risk, {layer!r})"
        (matrix_layer,) = matrix_layers(risk, [layer], call)
        if num_samples is not None:
            require_count(num_samples, "KroneckerHessian(num_samples=...)")
        self._layer, self._space = matrix_layer, risk.restricted(matrix_layer.params).space
        self._dtype, self._device = risk.dtype, risk.device
        self.num_samples = num_samples
        with risk.ranks.together():
            sums = self._sums(risk, seed, SampleRows(call, "Or draw targets: `num_samples=16`."))
        output, inputs, vectors = (risk.ranks.sum(local_sum) for local_sum in sums)
        self.output_factor = symmetric(output / risk.divisor)
        self.input_factor = symmetric(inputs / vectors)
        self._compare(GaussNewton(risk))
        self.status = drawing_status("KroneckerHessian", num_samples, self.num_samples)

    def _sums(
        self, risk: EmpiricalRisk, seed: int, rows: SampleRows
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sum position blocks of M and x̃x̃ᵀ over this rank's data, and count the vectors x̃."""
        output = inputs = torch.zeros((), dtype=torch.float64, device=risk.device)
        vectors = 0
        for batch in risk.batches:
            with risk.evaluating(frozen=True):
                tail = capture_tail(risk, self._layer, batch)
                require_tensor_output(tail.prediction, "KroneckerHessian")
                x = input_vectors(self._layer, tail)
                self.num_positions = x.shape[1]
                counted = have_terms(risk, tail.prediction, batch, x.shape[:2])
                self.num_samples = draws_needed(tail.prediction, self.num_samples)
                if self.num_samples is None:  # roots of all samples go back at once
                    rows.require_unmixed(self._layer, tail.prediction, tail.output)
                roots = output_roots(risk, tail.prediction, batch, self.num_samples, seed)
                for cotangent in roots:
                    (slope,) = torch.autograd.grad(
                        tail.prediction, tail.output, cotangent, retain_graph=True
                    )
                    b = output_vectors(self._layer, slope)
                    output = output + gram(b)
                    if counted is not None:  # other positions' terms may depend on it
                        counted = counted | (b != 0).any(-1)
                x = x if counted is None else x[counted]
                vectors += x.shape[:-1].numel()
                inputs = inputs + gram(x)
        return output, inputs, torch.tensor(vectors, device=risk.device)

    def matmat(self, X: Tensor) -> Tensor:
        """Multiply columns (N, k): each, as the m × n matrix V, becomes E[M] V E[x̃x̃ᵀ]."""
        V = self.to_matrices(X)
        product = self.output_factor.to(V) @ V @ self.input_factor.to(V)
        return self.from_matrices(product)

    def to_matrices(self, X: Tensor) -> Tensor:
        """Reshape columns (N, k) to matrices (k, m, n), the bias as last column of each."""
        m, n = len(self.output_factor), len(self.input_factor)
        if X.shape[0] != m * n:
            raise ShapeError(
                f"`to_matrices(X)` needs columns of length {m * n} = {m} × {n}; got "
                f"{tuple(X.shape)}."
            )
        return to_matrices(self._layer, X.T, m)

    def from_matrices(self, V: Tensor) -> Tensor:
        """Undo `to_matrices`."""
        return from_matrices(self._layer, V).T

    def top_pairs(self, num_pairs: int) -> EigenPairs:
        """Return the largest eigenpairs λ_i μ_j, u_i ⊗ v_j; the product is never formed.

        Cost: an eigendecomposition of each factor.

        Args:
            num_pairs: How many.

        Returns:
            The pairs, with residuals from real products.
        """
        m, n = len(self.output_factor), len(self.input_factor)
        k = require_count(num_pairs, "top_pairs(num_pairs)", at_most=m * n)
        left, U = eigh(self.output_factor)
        right, V = eigh(self.input_factor)
        values, where = torch.outer(left, right).flatten().topk(k)
        i, j = where // n, where % n
        matrices = U.T[i][:, :, None] * V.T[j][:, None, :]
        vectors = self.from_matrices(matrices)
        residuals = (
            self.from_matrices(self.output_factor @ matrices @ self.input_factor) - vectors * values
        ).norm(dim=0)
        return EigenPairs(
            status=Status(True, f"{k} pairs from eigendecompositions of {m}×{m} and {n}×{n}."),
            num_products=k,
            seed=0,
            values=values,
            vectors=vectors.to(self.dtype),
            residuals=residuals,
            which="largest",
            tolerance=1e-6,
            shapes=dict(self.space.shapes),
        )


def have_terms(
    risk: EmpiricalRisk, output: Tensor, batch: Batch, shape: torch.Size
) -> Tensor | None:
    """Say which inputs have a term of the loss of their own, one that is not ignored.

    Args:
        risk: It has the loss.
        output: The model's output.
        batch: It has the targets.
        shape: Of the inputs (N, P).

    Returns:
        True or False (N, P); None where all have. Positions are told apart where the layer has as
        many as the loss; else all inputs of a sample have a term if the sample has. None also for
        a layer whose first dimension is not the samples.
    """
    loss = risk.loss
    if not isinstance(loss, CrossEntropy):
        return None
    _, y, is_index = loss.aligned(output.detach(), batch.target)
    if not is_index:
        return None
    kept = y != loss.ignore_index
    if loss.next_token:  # the last position is compared with nothing
        kept = F.pad(kept, (0, 1))
    if kept.numel() == shape.numel() and (shape[0] == len(kept) or shape[1] == 1):
        kept = kept.reshape(shape)
    elif shape[0] == len(kept):
        kept = kept.reshape(len(kept), -1).any(1, keepdim=True).expand(shape)
    else:
        return None
    return None if bool(kept.all()) else kept
