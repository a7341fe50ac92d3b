"""What the Gauss-Newton matrix leaves out of the Hessian."""

from functools import partial

from eigenscape.curvature.network_matrix import NetworkMatrix
from eigenscape.curvature.products.graphs import HessianGraph
from eigenscape.curvature.products.network import Definition, NetworkChoice
from eigenscape.risk import EmpiricalRisk

_DEFINITION = Definition("Residual", "residual", partial(HessianGraph, fixed_output_gradient=True))


class Residual(NetworkMatrix):
    """E = H − G = mean Σ_c (∂ℓ/∂z_c) ∇²_θ z_c, the second term of Papyan (5.2).

    It is the Hessian of θ ↦ ⟨r, z(θ)⟩ with the output gradient r = ∂ℓ/∂z held fixed, so one product
    costs what a Hessian product costs, not that and a Gauss-Newton product.

    Examples:
        A model that is linear in its parameters has none.

        >>> import torch
        >>> from eigenscape.risk.losses import SquaredError
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> risk = EmpiricalRisk(torch.nn.Linear(1, 1, bias=False), SquaredError(), (x, x))
        >>> Residual(risk) @ torch.ones(1)
        tensor([0.])
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
