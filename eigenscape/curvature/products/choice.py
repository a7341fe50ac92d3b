"""What a matrix is, and by which representation it is multiplied."""

from abc import ABC, abstractmethod

from torch import Tensor

from eigenscape.curvature.products.plan import Plan
from eigenscape.curvature.products.representation import Representation
from eigenscape.risk import Batch, EmpiricalRisk, OutputProduct


class Choice(ABC):
    """What a matrix is, and by which representation it is multiplied.

    Attributes:
        risk: The function that is differentiated.
        name: What the matrix is called.
        kind: "hessian", "gauss-newton" or "residual": what the self-test compares it with.
        budget: Bytes for what is kept, the same on all ranks.
    """

    risk: EmpiricalRisk
    name: str
    kind: str
    budget: int

    @property
    @abstractmethod
    def settings(self) -> tuple[object, ...]:
        """What tells two matrices of this name and risk apart."""

    @property
    @abstractmethod
    def plan(self) -> Plan:
        """What each representation costs, and which one is used."""

    @abstractmethod
    def representation(self) -> Representation:
        """Return a fresh representation of the kind in use."""

    @abstractmethod
    def product_on(self, batch: Batch, row: Tensor) -> Tensor:
        """Multiply a row (1, n) with what a batch adds to the matrix; inside `evaluating()`."""

    @abstractmethod
    def curvature_at(self, output: Tensor, batch: Batch) -> OutputProduct:
        """Return the product with the matrix at the model's output."""

    @abstractmethod
    def restricted(self, names: tuple[str, ...]) -> "Choice | None":
        """Return the choice for the diagonal block of some tensors, or None if it saves nothing."""
