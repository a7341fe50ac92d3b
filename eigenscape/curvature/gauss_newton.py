"""The generalised Gauss-Newton matrix."""

from eigenscape.curvature.network_matrix import NetworkMatrix
from eigenscape.curvature.products.network import NetworkChoice, jacobian_definition
from eigenscape.risk import EmpiricalRisk

_DEFINITION = jacobian_definition("GaussNewton")


class GaussNewton(NetworkMatrix):
    """G = mean Jᵀ (∇²_z ℓ) J with J = ∂z/∂θ, the first term of Papyan (5.1).

    Positive semidefinite where the loss is convex in the output. The curvature at the output is a
    closed form for the losses of this package. Cost of one product, where the graph is kept: about
    one and a third gradients. With a risk that has `autocast`: as `Hessian`.

    Examples:
        The Gauss-Newton matrix of ½·mean (w x)² is mean x².

        >>> import torch
        >>> from eigenscape.risk.losses import SquaredError
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> risk = EmpiricalRisk(torch.nn.Linear(1, 1, bias=False), SquaredError(), (x, 0 * x))
        >>> GaussNewton(risk) @ torch.ones(1)
        tensor([5.])
    """

    def __init__(
        self,
        risk: EmpiricalRisk,
        *,
        representation: str = "auto",
        num_products: int = 100,
        memory_budget: int | None = None,
    ) -> None:
        """Define the operator; nothing is computed before the first product.

        Args:
            risk: The function to differentiate; its model must return one tensor.
            representation: As for `Hessian`.
            num_products: As for `Hessian`.
            memory_budget: As for `Hessian`.
        """
        super().__init__(
            NetworkChoice(
                risk,
                _DEFINITION,
                representation=representation,
                num_products=num_products,
                memory_budget=memory_budget,
            )
        )
