"""The base of all matrices that are sums over a risk's data: the one driver of their products.

A product takes these steps. If the function has changed, what was kept for the old one is dropped.
A matrix that was not tested yet is compared with finite differences of the function. The rows go
to the representation that the choice gave. The result is refused if it is not finite, and computed
again if a write that PyTorch does not count has moved the parameters meanwhile.
"""

import copy
import math
from typing import Self

import torch
from torch import Tensor

from eigenscape.curvature.products.choice import Choice
from eigenscape.curvature.products.plan import Plan
from eigenscape.curvature.products.representation import Representation
from eigenscape.curvature.self_test import self_test
from eigenscape.device import product_defects
from eigenscape.errors import NonFiniteError
from eigenscape.operator import LinearOperator
from eigenscape.records import SelfTest
from eigenscape.risk import Snapshot, derivatives_explained
from eigenscape.space import ParamSpace


class NetworkMatrix(LinearOperator):
    """A symmetric matrix of derivatives; the choice that it is given says which one.

    Attributes:
        risk: The function that is differentiated.
    """

    def __init__(self, choice: Choice) -> None:
        """Compute nothing yet.

        Args:
            choice: What the matrix is, and by which representation it is multiplied.
        """
        self._start(choice)

    def _start(self, choice: Choice) -> None:
        self._choice, self.risk = choice, choice.risk
        self._representation: Representation | None = None
        self._snapshot: Snapshot | None = None
        self._verdict: SelfTest | None = None
        self._noise: float | None = None

    @property
    def space(self) -> ParamSpace:
        """The risk's parameters."""
        return self.risk.space

    @property
    def dtype(self) -> torch.dtype:
        """The parameters' dtype."""
        return self.risk.dtype

    @property
    def device(self) -> torch.device:
        """The parameters' device."""
        return self.risk.device

    @property
    def is_symmetric(self) -> bool:
        """Always: it is a matrix of second derivatives or a sum of squares."""
        return True

    @property
    def plan(self) -> Plan:
        """What each representation costs, and why this one is used; `print(H.plan.explain())`."""
        return self._choice.plan

    @property
    def memory_budget(self) -> int:
        """Bytes that products may keep."""
        return self._choice.budget

    @property
    def noise(self) -> float:
        """Relative rounding noise of products, measured once as `noise_floor` does.

        It is 0 unless some of the model computes in a lower precision than that of the parameters:
        under `autocast`, or in layers that compute in float32 whatever their input.
        """
        if self.risk.precision == self.dtype:
            return 0.0
        if self._noise is None:
            self._noise = product_defects(
                self.matmat,
                self.space.size,
                dtype=self.dtype,
                device=self.device,
                num_probes=2,
                seed=0,
            ).relative
        return self._noise

    @property
    def self_test(self) -> SelfTest:
        """Whether this is the matrix of the user's own function, as differences of it show.

        Cost: at most about three gradients, once for each kind of matrix of a risk.

        Raises:
            SelfTestError: If it is not.
        """
        if self._verdict is None:
            choice = self._choice
            key = (choice.name, self.space.names, *choice.settings)
            known = self.risk.whole.verdicts
            if key not in known:
                with derivatives_explained(f"`{choice.name}`"):
                    known[key] = self_test(choice)
            self._verdict = known[key]
        return self._verdict

    @property
    def kept_bytes(self) -> int:
        """Memory on the device that products keep; known after the first product, 0 before."""
        return 0 if self._representation is None else self._representation.memory(1).kept

    def working_bytes(self, num_columns: int) -> int:
        """Predict the memory of temporaries while columns are multiplied; after a first product."""
        if self._representation is None:
            return 0
        return self._representation.memory(num_columns).working

    def block(self, names: tuple[str, ...]) -> Self | None:
        """Return the diagonal block of some tensors, which differentiates nothing else."""
        choice = self._choice.restricted(names)
        if choice is None:
            return None
        block = copy.copy(self)
        block._start(choice)
        return block

    def matmat(self, X: Tensor) -> Tensor:
        """Multiply columns (n, k); sums over batches are accumulated in float64.

        Args:
            X: The columns.

        Returns:
            The products (n, k).

        Raises:
            NonFiniteError: If a product is NaN or infinite.
            NonDeterministicRiskError: If a loader gave another number of samples than before.
            UnsupportedModelError: If PyTorch cannot differentiate the model or the loss twice.
        """
        # One column needs its row, its float64 sum and its product at the same time.
        columns = max(1, int(self._choice.budget // (X.shape[0] * (8 + 3 * X.element_size()))))
        with derivatives_explained(f"A product with {self._choice.name}"):
            products = [self._guarded(group.T).T for group in X.split(columns, dim=1)]
        return products[0] if len(products) == 1 else torch.cat(products, dim=1)

    def _guarded(self, rows: Tensor) -> Tensor:
        """Multiply with what is kept for the parameters as they are now, and refuse NaN.

        Writes that PyTorch does not count are looked for when the result is read, so that a
        product waits for the device only once; after such a write it is computed again. Several
        ranks look first, so that all take the same branch.

        Args:
            rows: The rows (k, n).

        Returns:
            The products (k, n).

        Raises:
            NonFiniteError: If one is NaN or infinite.
        """
        alone = self.risk.ranks.size == 1
        snapshot, representation = self._ready(wait=not alone)
        count = representation.num_evaluations
        result = representation.multiply(rows)
        is_finite, has_moved = self._looked_at(result, snapshot if alone else None)
        if has_moved:
            snapshot, representation = self._ready(wait=True)
            count = -1
            result = representation.multiply(rows)
            is_finite, _ = self._looked_at(result, None)
        if representation.num_evaluations > count:
            snapshot.settle()
        if not is_finite:
            raise NonFiniteError(
                f"A product with {self._choice.name} is NaN or infinite. Check the vector, the "
                "parameters and the data; second derivatives can overflow where the loss does not. "
                "An operation may also have none at such a point (in PyTorch 2.13 `logcumsumexp` "
                "has none where its gradient is zero): write it out in simpler ones."
            )
        return result

    def _current(self) -> Representation:
        """Return the representation for the parameters as they are now."""
        with derivatives_explained(f"`{self._choice.name}`"):
            _, representation = self._ready(wait=True)
        return representation

    def _ready(self, *, wait: bool) -> tuple[Snapshot, Representation]:
        """Forget what was kept for another function, and test the matrix of a new one."""
        with self.risk.ranks.together():
            snapshot = self._refresh(wait=wait)
        if self._verdict is None and self.self_test:
            snapshot.settle()
        if self._representation is None:
            with self.risk.ranks.together():
                self._representation = self._choice.representation()
        return snapshot, self._representation

    def _refresh(self, *, wait: bool) -> Snapshot:
        """Forget what was kept for another function; compare contents at once if `wait`."""
        last = self._snapshot
        is_same = last is not None and not last.is_counted_as_changed()
        if last is not None and is_same and not (wait and bool(last.differs(self.device))):
            return last
        if last is None or last.is_another_function():
            self._representation = self._verdict = None
        elif self._representation is not None:
            self._representation.forget()
        self._snapshot = self.risk.snapshot()
        return self._snapshot

    def _looked_at(self, result: Tensor, snapshot: Snapshot | None) -> tuple[bool, bool]:
        """Return whether a product is finite, and whether model and data differ from a snapshot."""
        # Two extremes find NaN and infinity alike.
        extremes = result.aminmax() if result.numel() else ()
        differ = torch.zeros((), device=result.device, dtype=torch.bool)
        if snapshot is not None:
            differ = snapshot.differs(result.device)
        *ends, moved = torch.stack([*extremes, differ.to(self.dtype)]).tolist()
        return all(map(math.isfinite, ends)), bool(moved)
