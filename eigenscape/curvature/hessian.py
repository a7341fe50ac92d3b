"""The Hessian of an empirical risk."""

from eigenscape.curvature.products.graphs import HessianGraph
from eigenscape.curvature.products.network import Definition
from eigenscape.curvature.whole_matrix import WholeMatrix


class Hessian(WholeMatrix):
    """The matrix of second derivatives of the risk with respect to its parameters.

    Products are exact: double backward, or what was found to agree with it. Cost of one: about two
    gradients where what does not depend on the vector is kept; otherwise about three and a half.
    Where the risk has `autocast`, they are those of a model in bfloat16, by kept graphs, and
    `noise` says how far they are from those of one matrix.

    Attributes:
        plan: How products are computed, and why; `print(H.plan.explain())`.

    Examples:
        The Hessian of ½·mean (w x)² is mean x².

        >>> import torch
        >>> from eigenscape.risk import EmpiricalRisk, SquaredError
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> risk = EmpiricalRisk(torch.nn.Linear(1, 1, bias=False), SquaredError(), (x, 0 * x))
        >>> Hessian(risk) @ torch.ones(1)
        tensor([5.])
    """

    definition = Definition("Hessian", "hessian", HessianGraph)
