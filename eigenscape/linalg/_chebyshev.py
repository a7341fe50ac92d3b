"""Chebyshev-filtered subspace iteration: a block is multiplied by a polynomial of A, not by A.

Letters: S = A, or −A where the smallest eigenvalues are wanted, so that the wanted ones are at the
upper end; X (n, b) the block, best column first, and SX; θ its Ritz values; [low, cut] the interval
to damp, with centre c and half-width e; p(t) = T_d((t − c)/e) / T_d((top − c)/e), T_d the Chebyshev
polynomial: at most 1/T_d(…) inside the interval, and outside it rising as fast as a polynomial can.

Zhou, Saad, Tiago and Chelikowsky, "Self-consistent-field calculations using Chebyshev-filtered
subspace iteration", 2006.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.linalg._products import multiply
from eigenscape.linalg.lanczos import lanczos
from eigenscape.linalg.pairs import orthonormal, residual_limits, residual_norms, ritz
from eigenscape.operator import LinearOperator
from eigenscape.records import Ticker

LOOK = 16  # Lanczos steps that look where the spectrum ends and where its bulk does
_LEAST_GROWTH = 3.0  # of the wanted pairs over what is damped, in one iteration


@dataclass(frozen=True)
class Found:
    """The wanted pairs in order, with their products, and how many products there were."""

    values: Tensor
    vectors: Tensor
    products: Tensor
    num_products: int


class FilteredIteration:
    """A block that is filtered and turned to its Ritz vectors, until the first k have converged."""

    def __init__(
        self,
        operator: LinearOperator,
        *,
        k: int,
        b: int,
        degree: int,
        which: str,
        tolerance: float,
        batch: int,
        seed: int,
    ) -> None:
        self._operator, self._k, self._degree, self._batch = operator, k, degree, batch
        self._tolerance, self._which = tolerance, which
        self._sign = -1.0 if which == "smallest" else 1.0
        run = lanczos(operator, num_steps=LOOK, seed=seed)
        self.num_products = run.num_products
        nodes, weights = (per_probe[0] for per_probe in run.quadrature())
        self._norm = float(nodes.abs().max())
        nodes = nodes.abs() if which == "magnitude" else self._sign * nodes
        order = nodes.argsort(descending=True)
        # The density says where about 2b eigenvalues end; the first Ritz values correct it.
        above = weights[order].cumsum(0) * operator.space.size
        last = int((above < 2 * b).sum().clamp_max(len(order) - 1))
        self._cut = float(nodes[order[last]])
        # No eigenvalue was seen further off than the residual; what is below would be amplified.
        self._low = float(nodes.min()) - float(run.betas[0, -1])

    def run(self, V: Tensor, max_products: int, ticker: Ticker) -> Found:
        """Filter orthonormal columns V (n, b) until k pairs are found or products spent."""
        b = V.shape[1]
        X, SX = V[:, :0], V[:, :0]
        while True:
            SV = self._multiply(V)
            ticker.tick(self.num_products)
            # Converged vectors cost no more products, but stay in the span: the best pairs of all
            # of it are not spoilt by what was not perfect about them.
            order = "magnitude" if self._which == "magnitude" else "largest"
            values, X, SX = ritz(torch.cat([X, V], 1), torch.cat([SX, SV], 1), order)
            # All that decides comes to the host in one transfer.
            known = [values, residual_norms(values, X, SX), self._sizes(values, SX)]
            ritz_values, residuals, sizes = torch.stack(known).cpu()
            limits = residual_limits(ritz_values, self._tolerance, self._operator, self._norm)
            locked = int((residuals <= limits)[: self._k].long().cumprod(0).sum())
            if locked == self._k:
                break
            theta = sizes.tolist()
            self._move_interval(theta, float(residuals[-1]))
            degree = min(self._degree_for(theta[locked:]), self._left(max_products, b - locked))
            if degree < 1:
                break
            Q = X[:, :locked]
            V = self._filter(X[:, locked:], SX[:, locked:], Q, theta[locked:], degree)
            X, SX = Q, SX[:, :locked]
        best = list(range(self._k))
        if self._which == "smallest":  # by sign, values descend
            best.reverse()
        return Found(
            self._sign * values[best], X[:, best], self._sign * SX[:, best], self.num_products
        )

    def _left(self, max_products: int, columns: int) -> int:
        return (max_products - self.num_products) // columns

    def _multiply(self, X: Tensor) -> Tensor:
        Y = multiply(self._operator, X, "subspace_iteration", batch=self._batch)
        self.num_products += X.shape[1]
        return Y.mul_(self._sign)

    def _sizes(self, values: Tensor, SX: Tensor) -> Tensor:
        """Return lower bounds of the first b eigenvalues of S, or of their magnitudes, descending.

        Ritz values are such bounds. Their magnitudes are not, since a mixture of λ and −λ has a
        value between them; the singular values of S X are.
        """
        if self._which != "magnitude":
            return values
        squares: Tensor = torch.linalg.eigvalsh(SX.T @ SX)
        return squares.clamp_min(0.0).sqrt().flip(0)

    def _move_interval(self, theta: list[float], residual: float) -> None:
        """Let the interval end at the last value of the block, and well below the wanted ones."""
        wanted, last = theta[self._k - 1], theta[-1]
        # Where the whole block is one cluster, its last value is as good as a wanted one: a filter
        # that ends there would not tell the cluster from what is below it.
        away = math.cosh(math.acosh(_LEAST_GROWTH) / self._degree)
        if self._which == "magnitude":
            self._cut = min(last, wanted / away)
            return
        low = self._low = min(self._low, last - residual)
        self._cut = low + min(max(last - low, (wanted - low) / 4), (wanted - low) * 2 / (1 + away))

    def _scale(self, theta: list[float]) -> tuple[float, float, float]:
        """Return centre and half-width of the interval, and the place of the best value in it."""
        low = -self._cut if self._which == "magnitude" else self._low
        centre, half = (low + self._cut) / 2, (self._cut - low) / 2
        half = max(half, torch.finfo(torch.float64).eps * self._norm)
        top = max(abs(value - centre) for value in theta)
        return centre, half, max(1.0, top / half)

    def _degree_for(self, theta: list[float]) -> int:
        """Lower the degree where the best value would drown the others in its rounding."""
        growth = math.acosh(self._scale(theta)[2])
        most = math.log(2 / torch.finfo(self._operator.dtype).eps ** 0.5)
        return self._degree if growth * self._degree <= most else max(1, int(most / growth))

    def _filter(self, X: Tensor, SX: Tensor, Q: Tensor, theta: list[float], degree: int) -> Tensor:
        """Return orthonormal columns of p(S) X, orthogonal to Q.

        The recurrence of T_d is divided by its growth at the best value, so that nothing overflows.

        Args:
            X: Columns (n, b).
            SX: The products with them, known already.
            Q: Locked columns; what rounding brings back of them is removed before it grows.
            theta: Ritz values of X.
            degree: Degree d; costs d − 1 products per column.

        Returns:
            The columns, as they will be multiplied.
        """
        centre, half, top = self._scale(theta)
        sigma = 1 / top
        before, Y = X, (SX - centre * X) * (sigma / half)
        for _ in range(degree - 1):
            Y = Y - Q @ (Q.T @ Y)
            following = 1 / (2 * top - sigma)
            SY = self._multiply(Y)
            grown = (SY - centre * Y) * (2 * following / half) - (sigma * following) * before
            before, Y, sigma = Y, grown, following
        for _ in range(2):  # the second removes what the first had brought out of small columns
            Y = orthonormal(Y - Q @ (Q.T @ Y))
        return Y.to(self._operator.dtype).to(torch.float64)
