"""The generalised Gauss-Newton matrix."""

from torch import Tensor

from eigenscape.batches import Batch
from eigenscape.losses import OutputProduct
from eigenscape.operators._graphs import BatchGraph, JacobianGraph, RiskOperator
from eigenscape.risk import EmpiricalRisk


class GaussNewton(RiskOperator):
    """G = mean Jᵀ (∇²_z ℓ) J with J = ∂z/∂θ, the first term of Papyan (5.1).

    Positive semidefinite where the loss is convex in the output. The curvature at the output is a
    closed form for the losses of this package. Cost of one product, where the graph is kept: about
    one and a third gradients.

    Examples:
        The Gauss-Newton matrix of ½·mean (w x)² is mean x².

        >>> import torch
        >>> from eigenscape.losses import SquaredError
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> risk = EmpiricalRisk(torch.nn.Linear(1, 1, bias=False), SquaredError(), (x, 0 * x))
        >>> GaussNewton(risk) @ torch.ones(1)
        tensor([5.])
    """

    def __init__(self, risk: EmpiricalRisk, *, memory_budget: int | None = None) -> None:
        """Define the operator; nothing is computed before the first product.

        Args:
            risk: The function to differentiate; its model must return one tensor.
            memory_budget: As for `Hessian`.
        """
        super().__init__(risk, memory_budget)

    def _graph(self, batch: Batch) -> BatchGraph:
        return JacobianGraph(self.risk, batch, self._curvature, "GaussNewton")

    def _curvature(self, output: Tensor, batch: Batch) -> OutputProduct:
        return self.risk.loss.hessian_at(output, batch.target)
