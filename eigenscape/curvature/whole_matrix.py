"""What the matrices of a whole network that need no settings of their own share: a constructor."""

from typing import ClassVar

from eigenscape.curvature.network_matrix import NetworkMatrix
from eigenscape.curvature.products.network import Definition, NetworkChoice
from eigenscape.risk import EmpiricalRisk


class WholeMatrix(NetworkMatrix):
    """A matrix of all parameters that its definition says in full."""

    definition: ClassVar[Definition]

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
            risk: The function to differentiate. For all but the Hessian its model must return one
                tensor.
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
                self.definition,
                representation=representation,
                num_products=num_products,
                memory_budget=memory_budget,
            )
        )
