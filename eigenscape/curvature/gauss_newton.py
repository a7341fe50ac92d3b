"""The generalised Gauss-Newton matrix."""

from eigenscape.curvature.products.network import jacobian_definition
from eigenscape.curvature.whole_matrix import WholeMatrix


class GaussNewton(WholeMatrix):
    """G = mean Jᵀ (∇²_z ℓ) J with J = ∂z/∂θ, the first term of Papyan (5.1).

    Positive semidefinite where the loss is convex in the output. The curvature at the output is a
    closed form for the losses of this package. Cost of one product, where the graph is kept: about
    one and a third gradients. With a risk that has `autocast`: as `Hessian`.

    Examples:
        The Gauss-Newton matrix of ½·mean (w x)² is mean x².

        >>> import torch
        >>> from eigenscape.risk import EmpiricalRisk, SquaredError
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> risk = EmpiricalRisk(torch.nn.Linear(1, 1, bias=False), SquaredError(), (x, 0 * x))
        >>> GaussNewton(risk) @ torch.ones(1)
        tensor([5.])
    """

    definition = jacobian_definition("GaussNewton")
