"""One layer's own block of the Hessian, by differentiating only what follows the layer.

Letters: a inputs of the layer, W its parameters, z its output, J = ∂z/∂W (constant, since z is
linear in W), L the loss as a function of z.
"""

import math

import torch
from torch import Tensor

from eigenscape.curvature.layers.choice import LayerChoice
from eigenscape.curvature.layers.factors import Factors
from eigenscape.curvature.layers.stored import DenseBlock, StoredFactors
from eigenscape.curvature.network_matrix import NetworkMatrix
from eigenscape.errors import UnsupportedModelError
from eigenscape.risk import EmpiricalRisk, derivatives_explained


class LayerHessian(NetworkMatrix):
    """The Hessian with respect to the parameters of one layer, exactly.

    For a layer that is linear in its parameters (linear, convolution, embedding, affine part of a
    normalisation) a product is Jᵀ (∇²_z L) J v: the layer itself forwards, the second derivative of
    the tail, the layer backwards. Nothing before the layer is evaluated again, and no weight
    gradient of the tail is formed. Layers that break the premise (tied or called twice, recurrent)
    fall back to the full product restricted to the block, with a `SubstitutionWarning`.

    Five representations give the same matrix. "factors": the layer's inputs and the roots of the
    loss's curvature brought back to its output, multiplied without any pass through the network;
    "streamed": the same, kept in the host's memory and brought to a GPU for each product;
    "dense": the block itself, formed from those; all three only where what follows the layer is
    piecewise linear (ReLU, pooling, affine layers, BatchNorm in eval mode), which is read off the
    autograd graph, confirmed by a product, and makes the block its own Gauss-Newton matrix.
    "tail" and "full" are as above. A plan compares what they cost.

    With `storage=torch.bfloat16` factors are kept rounded, in half the memory. Products are then
    those of another matrix, exactly symmetric, without negative eigenvalues, and `storage_error`
    away. Certify what was found with it by the exact one:
    `certify(LayerHessian(risk, layer), pairs.vectors)`.

    Where the risk has `autocast`, what is stored is one symmetric matrix without `noise`, but made
    of numbers rounded to bfloat16; products of the tail round anew each time.

    Attributes:
        representation: The one in use.
        plan: What was compared; `print(H.plan.explain())`.
        storage_error: ‖H̃v − Hv‖ / ‖Hv‖ for a random v and all data, with H̃ the matrix that is
            multiplied: about ‖H̃ − H‖ / ‖H‖ in the Frobenius norm. 0 where nothing is rounded.

    Examples:
        The block of a linear model under ½·mean ‖z − y‖² is I ⊗ mean(a aᵀ).

        >>> from eigenscape.risk.losses import SquaredError
        >>> a = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False))
        >>> risk = EmpiricalRisk(model, SquaredError(), (a, torch.zeros(2, 1)))
        >>> LayerHessian(risk, "0").to_dense()
        tensor([[1., 1.],
                [1., 2.]])
    """

    def __init__(
        self,
        risk: EmpiricalRisk,
        layer: str,
        *,
        representation: str = "auto",
        num_products: int = 100,
        memory_budget: int | None = None,
        storage: torch.dtype | None = None,
        check: bool = True,
    ) -> None:
        """Find the layer, compare its representations, and confirm one product.

        Args:
            risk: The function to differentiate; its model must be an `nn.Module`.
            layer: "fc1" for all of the layer's parameters, "fc1.weight" for one of them.
            representation: "auto" for the cheapest, or one of "factors", "streamed", "dense",
                "tail", "full".
            num_products: Products to expect, for the choice.
            memory_budget: As for `Hessian`.
            storage: The dtype in which "factors" and "streamed" are kept; the parameters' by
                default, which is exact. Sums are in float32 at least. Rounded factors are made
                at once, since their error is measured against one product of the tail.
            check: Compare one product of the batch with most targets with full double backward. It
                costs about four gradients of that batch and catches weights that the model uses
                elsewhere by other means than a shared `nn.Parameter`.

        Raises:
            UnsupportedModelError: If the representation asked for cannot be used here.
            InvalidArgumentError: If the parameters would not be rounded to that dtype.
            NonFiniteError: If a factor is too large for it.
        """
        choice = LayerChoice(
            risk,
            layer,
            representation=representation,
            num_products=num_products,
            memory_budget=memory_budget,
            storage=storage,
            check=check,
        )
        super().__init__(choice)
        self._layer_choice = choice
        if choice.is_rounded:
            self._stored()

    @property
    def representation(self) -> str:
        """The name of the representation in use."""
        return self._layer_choice.chosen

    @property
    def storage_error(self) -> float:
        """How far products of rounded factors are from the exact ones; 0 where nothing is."""
        return self._layer_choice.storage_error

    @property
    def num_rows(self) -> int | None:
        """N·C rows R with block = RᵀR, where what follows is piecewise linear; else None."""
        return self._layer_choice.num_rows

    def row_gram(self) -> Tensor:
        """Return RRᵀ (N·C, N·C) in float64, R the rows of which the block is RᵀR.

        The two matrices have the same non-zero eigenvalues, and this one is the smaller where
        samples are few. Cost: C backward passes of the tail, then (N·C)² inner products.

        Raises:
            UnsupportedModelError: If the representation has no factors.
        """
        return self._require_factors().gram() / self.risk.divisor

    def combined_rows(self, weights: Tensor) -> Tensor:
        """Return Rᵀu (q, k) for weights u (N·C, k): an eigenvector of RRᵀ becomes the block's.

        Args:
            weights: One row for each row of R, float64.

        Returns:
            The sums, float64.

        Raises:
            UnsupportedModelError: If the representation has no factors.
        """
        return self._require_factors().combinations(weights).T / math.sqrt(self.risk.divisor)

    def stored_matrix(self) -> Tensor | None:
        """Return the block where it is stored."""
        stored = self._stored() if self.representation == "dense" else None
        return stored if isinstance(stored, Tensor) else None

    def _stored(self) -> Factors | Tensor | None:
        """Return what is stored for the parameters as they are now; None where nothing is."""
        representation = self._current()
        with derivatives_explained(f"`LayerHessian(risk, {self._layer_choice.layer.name!r})`"):
            if isinstance(representation, StoredFactors):
                return representation.factors
            return representation.block if isinstance(representation, DenseBlock) else None

    def _require_factors(self) -> Factors:
        name = self._layer_choice.layer.name
        if self.risk.ranks.size > 1:
            raise UnsupportedModelError(
                f"The rows of `LayerHessian(risk, {name!r})` are spread over "
                f"{self.risk.ranks.size} processes. Use `eigsh`, or one process."
            )
        stored = self._stored() if self.representation in ("factors", "streamed") else None
        if isinstance(stored, Factors):
            return stored
        raise UnsupportedModelError(
            f"The rows of `LayerHessian(risk, {name!r})` are had from its factors; its "
            f"representation is {self.representation!r}. Pass `representation='factors'`."
        )
