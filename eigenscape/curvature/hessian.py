"""The Hessian of an empirical risk."""

from eigenscape.curvature.network_matrix import NetworkMatrix
from eigenscape.curvature.products.graphs import HessianGraph
from eigenscape.curvature.products.network import Definition, NetworkChoice
from eigenscape.risk import EmpiricalRisk

_DEFINITION = Definition("Hessian", "hessian", HessianGraph)


class Hessian(NetworkMatrix):
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
        >>> from eigenscape.risk.losses import SquaredError
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> risk = EmpiricalRisk(torch.nn.Linear(1, 1, bias=False), SquaredError(), (x, 0 * x))
        >>> Hessian(risk) @ torch.ones(1)
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
            risk: The function to differentiate.
            representation: How products are computed: "graph" keeps autograd graphs; "linearised"
                traces the model once and keeps what does not depend on the vector; "compiled" lets
                `torch.compile` write that as code. "auto" takes what is quickest for
                `num_products`, and falls back where a product disagrees with double backward; see
                `plan`. It changes no answer.
            num_products: Products to expect, for the choice.
            memory_budget: Most bytes for kept graphs and for columns in flight; by default 4 GiB on
                a CPU and half of the free memory of a GPU. Whatever does not fit is computed anew
                at each product. It changes no answer.
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
