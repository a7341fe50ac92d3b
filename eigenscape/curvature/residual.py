"""What the Gauss-Newton matrix leaves out of the Hessian."""

from functools import partial

from eigenscape.curvature.products.graphs import HessianGraph
from eigenscape.curvature.products.network import Definition
from eigenscape.curvature.whole_matrix import WholeMatrix


class Residual(WholeMatrix):
    """E = H − G = mean Σ_c (∂ℓ/∂z_c) ∇²_θ z_c, the second term of Papyan (5.2).

    It is the Hessian of θ ↦ ⟨r, z(θ)⟩ with the output gradient r = ∂ℓ/∂z held fixed, so one product
    costs what a Hessian product costs, not that and a Gauss-Newton product.

    Examples:
        A model that is linear in its parameters has none.

        >>> import torch
        >>> from eigenscape.risk import EmpiricalRisk, SquaredError
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> risk = EmpiricalRisk(torch.nn.Linear(1, 1, bias=False), SquaredError(), (x, x))
        >>> Residual(risk) @ torch.ones(1)
        tensor([0.])
    """

    definition = Definition(
        "Residual", "residual", partial(HessianGraph, fixed_output_gradient=True)
    )
