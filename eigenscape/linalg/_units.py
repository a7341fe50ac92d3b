"""Arithmetic that does not depend on the scale of an operator: it is computed with A/u.

Letters: A the operator; u its unit, a power of two near the size of its products.

Squares of 1e-160 are 0 and those of 1e160 are infinite, and residuals, norms and standard errors
are full of squares. So an algorithm multiplies with A/u and returns its answer times u. Powers of
two change no bit of a number, so answers are the same as before wherever squares had room; there u
is 1, and nothing is divided at all.
"""

import math

import torch
from torch import Tensor

from eigenscape.linalg.probes import draw_probes
from eigenscape.linear_operator import LinearOperator, WrappedOperator

# Number of the random vector that looks how large an operator is: far from those of any algorithm.
_LOOK = 2**40


class InUnits(WrappedOperator):
    """A/u; u is found from the first product that is not zero."""

    def __init__(self, inner: LinearOperator, beside: float = 0.0) -> None:
        super().__init__(inner)
        self._beside, self._known = abs(beside), False
        self.unit, self.looks = 1.0, 0

    def matmat(self, X: Tensor) -> Tensor:
        """Multiply columns, and divide by the unit."""
        return self._divided(X, self._inner.matmat(X))

    def adjoint_matmat(self, Y: Tensor) -> Tensor:
        """Multiply columns by the transpose, and divide by the unit."""
        return self._divided(Y, self._inner.adjoint_matmat(Y))

    def adopt(self, unit: float) -> None:
        """Use the unit of an earlier run."""
        self.unit, self._known = unit, True

    def _divided(self, X: Tensor, Y: Tensor) -> Tensor:
        if not self._known:
            self._settle(_ratio(X, Y))
        return Y if self.unit == 1.0 else Y * (1.0 / self.unit)

    def _settle(self, size: float) -> None:
        """Choose the unit from the size of a first product.

        One that is very small or large may be that of a few directions only, such as a first column
        or a start that was given. Then a random vector is multiplied, which leans on all of them.
        """
        if not 0.0 < size < math.inf:
            return
        if unit_of(max(size, self._beside), self.dtype) != 1.0:
            X = draw_probes(self._inner, 1, seed=0, kind="gaussian", first=_LOOK)
            self.looks += 1
            other = _ratio(X, self._inner.matmat(X))
            if other < math.inf:
                size = max(size, other)
        self.adopt(unit_of(max(size, self._beside), self.dtype))

    def __repr__(self) -> str:
        """Show the operator itself."""
        return repr(self._inner)


def in_units(operator: LinearOperator, *, beside: float = 0.0) -> InUnits:
    """Return the operator in its own unit.

    Cost: one more product, counted in `looks`, where the first one is very small or very large.

    Args:
        operator: The operator A.
        beside: The size of what will be added to it, such as a damping.
    """
    return InUnits(operator, beside)


def unit_of(size: float, dtype: torch.dtype = torch.float64) -> float:
    """Return a power of two near a size, or 1 where fourth powers of it have room anyway.

    Vectors in less than float64 are squared at most; all that is longer is in float64.
    """
    if not 0.0 < size < math.inf:
        return 1.0
    most = int(math.log2(torch.finfo(dtype).max)) - 7
    ordinary = most // 8 if dtype == torch.float64 else most // 4
    exponent = math.frexp(size)[1]
    return 1.0 if abs(exponent) <= ordinary else 2.0 ** max(-most, min(exponent, most))


def unit_of_each(columns: Tensor) -> Tensor:
    """Return the unit of each column (n, k) of float64 numbers: (k,)."""
    sizes = columns.abs().amax(0).tolist() if columns.shape[0] else [0.0] * columns.shape[1]
    units = [unit_of(size) for size in sizes]
    return torch.tensor(units, dtype=torch.float64, device=columns.device)


def _ratio(X: Tensor, Y: Tensor) -> float:
    """Return how large the entries of products Y are against those of X, in one transfer."""
    if X.numel() == 0 or Y.numel() == 0:
        return 0.0
    from_size, to_size = torch.stack([X.abs().amax().double(), Y.abs().amax().double()]).tolist()
    return to_size / from_size if from_size > 0.0 else 0.0
