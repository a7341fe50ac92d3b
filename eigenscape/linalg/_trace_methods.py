"""The methods behind `trace`: Hutchinson, Hutch++ and XTrace.

Letters: A the operator (n × n), symmetric or not; v, ω probes with E[v vᵀ] = I; m their number;
Q (n, r) an orthonormal basis of a sketch of A's range; G = AQ.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from eigenscape.errors import require_choice, require_count
from eigenscape.linalg._few_samples import MIN_PROBES, Goal, QuadraticSamples
from eigenscape.linalg._products import BATCH, multiply
from eigenscape.linalg._xtrace import new_directions, xtrace_from_products
from eigenscape.linalg.probes import KINDS, draw_probes
from eigenscape.operator import LinearOperator
from eigenscape.records import Ticker

# Directions of a sketch below this many roundings of its longest column are rounding themselves.
_FLOOR = 16


@dataclass(frozen=True)
class Estimate:
    """A method's answer: value, standard error, probes, products."""

    value: float
    stderr: float
    num_probes: int
    num_products: int


class TraceMethod(ABC):
    """A way to a trace; a frozen dataclass with its settings.

    Attributes:
        min_products: The least budget with which it can run.
    """

    min_products: ClassVar[int]

    @abstractmethod
    def run(
        self, operator: LinearOperator, budget: int, seed: int, goal: Goal, ticker: Ticker
    ) -> Estimate:
        """Spend up to `budget` products, fewer where the goal is reached."""


@dataclass(frozen=True)
class Hutchinson(TraceMethod):
    """The mean of vᵀAv over random probes: any operator, error ∝ ‖A‖_F/√m.

    Attributes:
        kind: The probes: "rademacher" (least variance), "gaussian" or "sphere".
        batch: Probes multiplied at a time; a tolerance is looked at once per batch.

    References:
        Hutchinson, "A stochastic estimator of the trace of the influence matrix", 1990.
    """

    kind: str = "rademacher"
    batch: int = BATCH
    min_products: ClassVar[int] = 2

    def __post_init__(self) -> None:
        require_choice(self.kind, KINDS, "Hutchinson(kind=...)")
        require_count(self.batch, "Hutchinson(batch=...)")

    def run(
        self, operator: LinearOperator, budget: int, seed: int, goal: Goal, ticker: Ticker
    ) -> Estimate:
        """Spend up to `budget` products, fewer where the goal is reached."""
        samples = QuadraticSamples(self.kind)
        while samples.count < budget:
            size = min(self.batch, budget - samples.count)
            V = draw_probes(operator, size, seed=seed, kind=self.kind, first=samples.count)
            samples.add(V, multiply(operator, V, "trace", batch=self.batch))
            ticker.tick(samples.count)
            if goal.reached(samples.value, samples.stderr, samples.count):
                break
        return Estimate(samples.value, samples.stderr, samples.count, samples.count)


@dataclass(frozen=True)
class HutchPlusPlus(TraceMethod):
    """A third of the budget finds the range, a third its trace, a third probes what remains.

    Use it where few eigenvalues carry the trace; the error falls like 1/m for semi-definite A.
    Memory: as many float64 vectors as products.

    Attributes:
        batch: Columns multiplied at a time; a tolerance is looked at once per batch.

    References:
        Meyer, Musco, Musco, Woodruff, "Hutch++: optimal stochastic trace estimation", 2021.
    """

    batch: int = BATCH
    min_products: ClassVar[int] = 6

    def __post_init__(self) -> None:
        require_count(self.batch, "HutchPlusPlus(batch=...)")

    def run(
        self, operator: LinearOperator, budget: int, seed: int, goal: Goal, ticker: Ticker
    ) -> Estimate:
        """Spend up to `budget` products, fewer where the goal is reached."""
        sketched = budget // 3
        V = draw_probes(operator, sketched, seed=seed)
        Y = multiply(operator, V, "trace", batch=self.batch)
        ticker.tick(sketched)
        none = Y.new_zeros(Y.shape[0], 0)
        # The basis is rounded to the operator's dtype at once, so that what is projected out of the
        # probes is what was multiplied.
        Q = new_directions(none, Y, _floor(operator, Y)).to(operator.dtype).to(torch.float64)
        inside = float((Q * multiply(operator, Q, "trace", batch=self.batch)).sum())
        spent = sketched + Q.shape[1]
        ticker.tick(spent)
        samples = QuadraticSamples("rademacher")
        value, stderr = inside, 0.0
        # A sketch of lower rank costs fewer products than planned; they go to the probes.
        while spent < budget:
            size = min(self.batch, budget - spent)
            V = draw_probes(operator, size, seed=seed, first=sketched + samples.count).double()
            AZ = multiply(operator, V - Q @ (Q.T @ V), "trace", batch=self.batch)
            samples.add(V, AZ - Q @ (Q.T @ AZ))
            spent += size
            ticker.tick(spent)
            # Given the sketch, the part inside is exact: all error is that of the probes.
            value, stderr = inside + samples.value, samples.stderr
            if goal.reached(value, stderr, samples.count):
                break
        return Estimate(value, stderr, samples.count, spent)


@dataclass(frozen=True)
class XTrace(TraceMethod):
    """Every probe serves both to find the range and, left out of it, to probe what remains.

    Use it where the spectrum decays; it then needs the fewest products of the three. The probes are
    spherical and the remainders normalised. Memory: two float64 vectors
    for each product.

    Attributes:
        batch: Columns multiplied at a time; a tolerance is looked at once per batch.

    References:
        Epperly, Tropp, Webber, "XTrace: making the most of every sample in stochastic trace
        estimation", SIAM J. Matrix Anal. Appl. 45(1), 2024. Its error estimate takes the
        leave-one-out estimates for independent; the one here adds their covariance.
    """

    batch: int = BATCH
    min_products: ClassVar[int] = 6

    def __post_init__(self) -> None:
        require_count(self.batch, "XTrace(batch=...)")

    def run(
        self, operator: LinearOperator, budget: int, seed: int, goal: Goal, ticker: Ticker
    ) -> Estimate:
        """Spend up to `budget` products, fewer where the goal is reached."""
        n, planned = operator.shape[0], budget // 2
        Omega, Y, Q, G = (
            torch.zeros(n, 0, dtype=torch.float64, device=operator.device) for _ in range(4)
        )
        value, stderr = 0.0, 0.0
        while (m := Omega.shape[1]) < planned:
            size = min(self.batch, planned - m)
            V = draw_probes(operator, size, seed=seed, kind="sphere", first=m)
            fresh = multiply(operator, V, "trace", batch=self.batch)
            Omega, Y = torch.cat([Omega, V.to(torch.float64)], 1), torch.cat([Y, fresh], 1)
            added = new_directions(Q, fresh, _floor(operator, Y))
            added = added.to(operator.dtype).to(torch.float64)
            Q = torch.cat([Q, added], 1)
            G = torch.cat([G, multiply(operator, added, "trace", batch=self.batch)], 1)
            ticker.tick(Omega.shape[1] + Q.shape[1])
            m += size
            # The estimate costs no product but O(n m²) arithmetic: made when someone looks at it.
            if m == planned or (goal.tolerance is not None and m >= MIN_PROBES):
                value, stderr = xtrace_from_products(Omega, Y, Q, G)
                if goal.reached(value, stderr, m):
                    break
        return Estimate(value, stderr, Omega.shape[1], Omega.shape[1] + Q.shape[1])


def _floor(operator: LinearOperator, Y: Tensor) -> float:
    return float(_FLOOR * torch.finfo(operator.dtype).eps * Y.norm(dim=0).max())
