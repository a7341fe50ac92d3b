"""Approximations of a matrix by pieces whose eigenvectors are known, and their inverse roots.

Letters: B the approximation, zero outside its pieces; V diag(λ) Vᵀ one piece of it, on a block of
entries; R = (c|B| + δ)^(-1/2).
"""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from eigenscape.curvature import KroneckerHessian
from eigenscape.device import eigh
from eigenscape.errors import InvalidArgumentError, ShapeError, TooLargeError, WrongTypeError
from eigenscape.operator import LinearOperator, WrappedOperator
from eigenscape.space import Block, Partition

Approximation = Partition | Tensor | LinearOperator | Sequence[LinearOperator]


class Piece(Protocol):
    """A symmetric matrix on one block that is known by its eigenvalues and eigenvectors."""

    block: Block
    values: Tensor

    def apply(self, values: Tensor, X: Tensor) -> Tensor:
        """Multiply columns by V diag(values) Vᵀ."""


class DensePiece:
    """A block that was multiplied out."""

    def __init__(self, block: Block, matrix: Tensor) -> None:
        self.block = block
        matrix = matrix.double()
        self.values, self._vectors = eigh((matrix + matrix.T) / 2)

    def apply(self, values: Tensor, X: Tensor) -> Tensor:
        V = self._vectors.to(X)
        product: Tensor = V @ (values.to(X)[:, None] * (V.T @ X))
        return product


class DiagonalPiece:
    """A diagonal."""

    def __init__(self, block: Block, values: Tensor) -> None:
        self.block, self.values = block, values.double()

    def apply(self, values: Tensor, X: Tensor) -> Tensor:
        return values.to(X)[:, None] * X


class KroneckerPiece:
    """A Kronecker product, by the eigenvectors of its factors."""

    def __init__(self, block: Block, operator: KroneckerHessian) -> None:
        self.block, self._operator = block, operator
        left, self._left = eigh(operator.output_factor)
        right, self._right = eigh(operator.input_factor)
        self.values = torch.outer(left, right)

    def apply(self, values: Tensor, X: Tensor) -> Tensor:
        U, W = self._left.to(X), self._right.to(X)
        inner = values.to(X) * (U.T @ self._operator.to_matrices(X) @ W)
        return self._operator.from_matrices(U @ inner @ W.T)


class Approximate(WrappedOperator):
    """B, in the space of the operator that it approximates."""

    def __init__(self, inner: LinearOperator, pieces: Sequence[Piece], what: str) -> None:
        super().__init__(inner, is_symmetric=True)
        self.pieces, self.what = pieces, what

    def matmat(self, X: Tensor) -> Tensor:
        total = torch.zeros_like(X)
        for piece in self.pieces:
            product = piece.apply(piece.values, piece.block.take(X))
            total += piece.block.put(product, len(X))
        return total


class Preconditioned(WrappedOperator):
    """R (A + δ) R with R = (c|B| + δ)^(-1/2)."""

    def __init__(
        self, inner: LinearOperator, approximate: Approximate, scale: float, damping: float
    ) -> None:
        super().__init__(inner)
        self._approximate, self._scale, self._damping = approximate, scale, damping

    def matmat(self, X: Tensor) -> Tensor:
        Y = self.root(X)
        return self.root(self._inner.matmat(Y) + self._damping * Y)

    def root(self, X: Tensor) -> Tensor:
        """Multiply by R; outside the pieces it is δ^(-1/2)."""
        outside = 1 / math.sqrt(self._damping)
        total = outside * X
        for piece in self._approximate.pieces:
            weights = (self._scale * piece.values.abs() + self._damping).rsqrt()
            rows = piece.block.take(X)
            change = piece.apply(weights, rows) - outside * rows
            total += piece.block.put(change, len(X))
        return total


def approximate(
    operator: LinearOperator, approximation: Approximation, dense: Tensor | None, limit: int
) -> tuple[Approximate, int]:
    """Make B; return it with the number of products spent."""
    n = operator.space.size
    everything = Block("all", (range(n),))
    if isinstance(approximation, Partition):
        if approximation.space != operator.space:
            raise ShapeError(
                "`block_preconditioning(operator, partition)` needs blocks of the operator's own "
                f"space; got blocks of {approximation.space!r}. Build it from `operator.space`."
            )
        _require_small(max(approximation.sizes), limit)
        pieces: list[Piece] = []
        for block in approximation:
            if dense is not None:
                index = block.index(dense.device)
                pieces.append(DensePiece(block, dense[index[:, None], index]))
            else:
                pieces.append(DensePiece(block, operator[block].to_dense()))
        spent = 0 if dense is not None else sum(approximation.sizes)
        return Approximate(operator, pieces, f"{len(approximation)} blocks"), spent
    if isinstance(approximation, Tensor):
        if approximation.shape != (n,) or not bool(torch.isfinite(approximation).all()):
            raise ShapeError(
                f"`block_preconditioning(operator, diagonal)` needs {n} finite numbers; got shape "
                f"{tuple(approximation.shape)}. Pass e.g. `adam_diagonal(state, operator.space)`."
            )
        piece = DiagonalPiece(everything, approximation.to(operator.device))
        return Approximate(operator, [piece], "diagonal"), 0
    operators = (
        [approximation] if isinstance(approximation, LinearOperator) else list(approximation)
    )
    made = [_piece(operator, block_operator, limit) for block_operator in operators]
    if not made:
        raise InvalidArgumentError(
            "`block_preconditioning(operator, operators)` needs one operator or more; got none."
        )
    Partition(operator.space, [piece.block for piece in made])  # refuses an overlap
    kinds = {type(block_operator).__name__ for block_operator in operators}
    return Approximate(operator, made, " and ".join(sorted(kinds))), 0


def _piece(operator: LinearOperator, block_operator: object, limit: int) -> Piece:
    if not isinstance(block_operator, LinearOperator):
        raise WrongTypeError(
            "`block_preconditioning(operator, approximation)` needs a Partition, a diagonal "
            f"(tensor), or operators; got {type(block_operator).__name__}."
        )
    known = operator.space.shapes
    for name, shape in block_operator.space.shapes.items():
        if known.get(name) != shape:
            raise ShapeError(
                "`block_preconditioning(operator, approximation)` needs operators on tensors of "
                f"the operator's space; {block_operator!r} has {name!r} of shape {tuple(shape)}. "
                "Restrict it, or build both from one risk."
            )
    names = block_operator.space.names
    block = Block(names[0], tuple(operator.space.block(name).spans[0] for name in names))
    if isinstance(block_operator, KroneckerHessian):
        return KroneckerPiece(block, block_operator)
    _require_small(block.size, limit)
    return DensePiece(block, block_operator.to_dense())


def _require_small(size: int, limit: int) -> None:
    if size > limit:
        raise TooLargeError(
            "`block_preconditioning` decomposes blocks of the approximation, of at most "
            f"{limit} entries; got one of {size}. Refine the partition, use `KroneckerHessian`, or "
            "raise `dense_limit`."
        )
