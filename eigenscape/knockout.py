"""Knockouts: take a matrix out of another and see which spectral features go with it (Papyan §3).

A feature of the spectrum of A is attributed to B when it vanishes after B is knocked out.
"""

import torch
from torch import Tensor

from eigenscape.errors import NonFiniteError, ShapeError, WrongTypeError
from eigenscape.linear_operator import LinearOperator, WrappedOperator, require_operator


def subtraction_knockout(A: LinearOperator, B: LinearOperator) -> LinearOperator:
    """Return A ⊖ B = A − B (Papyan Def. 3.1).

    Args:
        A: The operator whose spectral features are to be explained.
        B: The operator they may be due to, of the same shape.

    Returns:
        The difference; features that vanish from its spectrum are attributed to B.
    """
    return A - B


def projection_knockout(A: LinearOperator, B: "Tensor | LinearOperator") -> LinearOperator:
    """Project the column space of B out of A (Papyan Def. 3.2).

    For square A this is (I − BB⁺) A (I − BB⁺). For rectangular A, of the shape of B, it is
    (I − UUᵀ) A (I − VVᵀ) with the singular vectors of B that belong to non-zero singular values.
    Cost: one singular value decomposition of B in float64, then two thin products more per column.

    Args:
        A: The operator to change, (m, n).
        B: A matrix: (n, r) for square A (only its column space matters), (m, n) for rectangular A.
            An operator is made dense first, so give eigenvectors where it is large.

    Returns:
        The operator after the knockout, symmetric if A is.

    Raises:
        WrongTypeError: If B is no real floating-point tensor.
        NonFiniteError: If B holds NaN or infinity.
        ShapeError: If the shapes do not fit.

    Examples:
        >>> from eigenscape.operators import Dense
        >>> A = Dense(torch.diag(torch.tensor([3.0, 2.0, 1.0])))
        >>> B = torch.tensor([[5.0], [0.0], [0.0]])
        >>> projection_knockout(A, B).to_dense().diagonal()
        tensor([0., 2., 1.])
    """
    require_operator(A, "projection_knockout(A, ...)")
    matrix = B.to_dense() if isinstance(B, LinearOperator) else B
    if not isinstance(matrix, Tensor) or not matrix.dtype.is_floating_point:
        kind = matrix.dtype if isinstance(matrix, Tensor) else type(matrix).__name__
        raise WrongTypeError(
            "`projection_knockout(A, B)` needs B as a real floating-point tensor or an operator; "
            f"got {kind}."
        )
    if not bool(torch.isfinite(matrix).all()):
        raise NonFiniteError("`projection_knockout(A, B)` needs finite B; got NaN or infinity.")
    m, n = A.shape
    fits = matrix.ndim == 2 and (matrix.shape[0] == n if m == n else matrix.shape == (m, n))
    if not fits:
        wanted = f"({n}, r)" if m == n else f"({m}, {n})"
        raise ShapeError(
            f"`projection_knockout(A, B)` with A of shape ({m}, {n}) needs B of shape {wanted}; "
            f"got {tuple(matrix.shape)}."
        )
    U, singular, Vt = torch.linalg.svd(matrix.to(A.device, torch.float64), full_matrices=False)
    largest = singular.max() if singular.numel() else singular.new_zeros(())
    # Rank by the precision B was given in: directions below its rounding are not B's.
    cutoff = max(matrix.shape) * torch.finfo(matrix.dtype).eps * largest
    kept = singular > cutoff
    left = U[:, kept].to(A.dtype)
    right = left if m == n else Vt[kept].T.to(A.dtype)
    return _Projected(A, left, right)


class _Projected(WrappedOperator):
    """(I − UUᵀ) A (I − VVᵀ)."""

    def __init__(self, inner: LinearOperator, left: Tensor, right: Tensor) -> None:
        super().__init__(inner)
        self._left, self._right = left, right

    @property
    def is_symmetric(self) -> bool:
        return self._inner.is_symmetric and self._left is self._right

    def matmat(self, X: Tensor) -> Tensor:
        return _remove(self._left, self._inner.matmat(_remove(self._right, X)))

    def adjoint_matmat(self, Y: Tensor) -> Tensor:
        return _remove(self._right, self._inner.adjoint_matmat(_remove(self._left, Y)))


def _remove(basis: Tensor, X: Tensor) -> Tensor:
    return X - basis @ (basis.T @ X)
