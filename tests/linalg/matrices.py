"""Matrices with a known spectrum, and operators that count their products or give wrong ones."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from eigenscape.operator import Dense, LinearOperator, WrappedOperator
from eigenscape.space import ParamSpace
from eigenscape.testing import matrix_with_spectrum


def with_spectrum(values: Sequence[float] | Tensor, seed: int = 0) -> Tensor:
    """Return a symmetric float64 matrix with these eigenvalues and random eigenvectors."""
    return matrix_with_spectrum(values, seed=seed)


def decaying(n: int) -> Tensor:
    """Eigenvalues 1, 1/2, 1/3, …"""
    return 1.0 / torch.arange(1, n + 1, dtype=torch.float64)


def indefinite(n: int) -> Tensor:
    """Eigenvalues evenly from −1 to 2."""
    return torch.linspace(-1.0, 2.0, n, dtype=torch.float64)


def low_rank_and_noise(n: int) -> Tensor:
    """Six outliers 10, 20, …, 60 above a bulk of ±0.1."""
    bulk = 0.1 * torch.cos(torch.arange(n, dtype=torch.float64))
    bulk[:6] = 10.0 * torch.arange(1, 7, dtype=torch.float64)
    return bulk


SPECTRA: dict[str, Callable[[int], Tensor]] = {
    "decaying": decaying,
    "indefinite": indefinite,
    "low rank and noise": low_rank_and_noise,
}


class Counting(WrappedOperator):
    """Counts columns, remembers the widest product, and may spoil what it gives."""

    def __init__(
        self, matrix: Tensor, spoil: Callable[[Tensor], Tensor] | None = None, **spaces: object
    ) -> None:
        super().__init__(Dense(matrix, **spaces))
        self.count = 0
        self.widest = 0
        self._spoil = spoil

    def matmat(self, X: Tensor) -> Tensor:
        self.count += X.shape[1]
        self.widest = max(self.widest, X.shape[1])
        Y = self._inner.matmat(X)
        return Y if self._spoil is None else self._spoil(Y)


class Diagonal(LinearOperator):
    """A diagonal matrix of any size."""

    def __init__(self, values: Tensor) -> None:
        self._values, self._space = values, ParamSpace.flat(len(values))

    @property
    def space(self) -> ParamSpace:
        return self._space

    @property
    def dtype(self) -> torch.dtype:
        return self._values.dtype

    @property
    def device(self) -> torch.device:
        return self._values.device

    @property
    def is_symmetric(self) -> bool:
        return True

    def matmat(self, X: Tensor) -> Tensor:
        return self._values[:, None] * X


def nan_operator(n: int = 8) -> LinearOperator:
    """Return an operator whose products are NaN."""
    return Counting(torch.eye(n), spoil=lambda Y: Y * float("nan"))
