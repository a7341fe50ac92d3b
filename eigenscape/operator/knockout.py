"""Knockouts: take a matrix out of another and see which spectral features go with it (Papyan §3).

A feature of the spectrum of A is attributed to B when it vanishes after B is knocked out.

Definition 3.2 tells square matrices from others, and §7.13 takes the second case for weights, which
are square in most of its layers. What decides is the symmetry: where A has eigenvectors one space
is enough, where it has singular vectors there are two.
"""

import torch
from torch import Tensor

from eigenscape.device import eigh
from eigenscape.errors import NonFiniteError, ShapeError, WrongTypeError
from eigenscape.operator.linear_operator import LinearOperator, WrappedOperator, require_operator

# What sums that made B may have lost, in units of its rounding.
_ROUNDINGS = 64
# Entries from which a basis is found by products alone, and how many are in float64 at a time.
_LARGE, _PIECE = 2**27, 2**26


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
    """Project the spaces of B out of A (Papyan Def. 3.2).

    For symmetric A this is (I − BB⁺) A (I − BB⁺), which removes the column space of B. For any
    other A, square or not, it is (I − UUᵀ) A (I − VVᵀ) with the left and right singular vectors of
    B that belong to non-zero singular values, as for weights in §7.13.
    Cost: one singular value decomposition of B in float64, then two thin products more per column.

    Args:
        A: The operator to change, (m, n).
        B: A matrix: (n, r) for symmetric A (only its column space matters), (m, n) for any other.
            There, VVᵀ removes one space V (n, r), orthonormal, from both sides. An operator is made
            dense first, so give eigenvectors where it is large.

    Returns:
        The operator after the knockout, symmetric if A is.

    Raises:
        WrongTypeError: If B is no real floating-point tensor.
        NonFiniteError: If B holds NaN or infinity.
        ShapeError: If the shapes do not fit.

    Examples:
        >>> from eigenscape.operator import Dense
        >>> A = Dense(torch.diag(torch.tensor([3.0, 2.0, 1.0])))
        >>> B = torch.tensor([[5.0], [0.0], [0.0]])
        >>> projection_knockout(A, B).to_dense().diagonal()
        tensor([0., 2., 1.])

        A square matrix of weights: B goes from the second input to the first output.

        >>> W = Dense(torch.tensor([[0.0, 5.0], [2.0, 0.0]]))
        >>> projection_knockout(W, torch.tensor([[0.0, 3.0], [0.0, 0.0]])).to_dense()
        tensor([[0., 0.],
                [2., 0.]])
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
    (m, n), one_space = A.shape, A.is_symmetric
    fits = matrix.ndim == 2 and (matrix.shape[0] == n if one_space else matrix.shape == (m, n))
    if not fits:
        name, wanted = ("symmetric A", f"({n}, r)") if one_space else ("A", f"({m}, {n})")
        hint = " For one space V on both sides give V @ V.T." if m == n and not one_space else ""
        raise ShapeError(
            f"`projection_knockout(A, B)` with {name} of shape ({m}, {n}) needs B of shape "
            f"{wanted}; got {tuple(matrix.shape)}.{hint}"
        )
    # Rank by the precision B was given in: directions below its rounding are not B's. Rounded
    # entries move a singular value by √r·ε·σ₁ at most, r the shorter side; the longer one must not
    # count, or of float32 with ten million rows nothing would be left.
    relative = max(min(matrix.shape), _ROUNDINGS) * torch.finfo(matrix.dtype).eps
    if one_space and matrix.numel() > _LARGE:
        basis = _span(matrix.to(A.device), relative).to(A.dtype)
        return _Projected(A, basis, basis)
    U, singular, Vt = torch.linalg.svd(matrix.to(A.device, torch.float64), full_matrices=False)
    largest = singular.max() if singular.numel() else singular.new_zeros(())
    kept = singular > relative * largest
    left = U[:, kept].to(A.dtype)
    right = left if one_space else Vt[kept].T.to(A.dtype)
    return _Projected(A, left, right)


def _span(B: Tensor, relative: float) -> Tensor:
    """Return an orthonormal basis of few long columns in their dtype, from their Gram matrix.

    cuSOLVER decomposes no matrix of 2³¹ entries, and the decomposition would take several copies in
    float64. Squares lose singular values below 1e-8 of the largest, so B's own rounding decides in
    float32, and that loss in float64.
    """
    pieces = B.split(max(1, _PIECE // B.shape[1]))
    gram = torch.zeros(B.shape[1], B.shape[1], dtype=torch.float64, device=B.device)
    for rows in pieces:
        gram += rows.double().T @ rows.double()
    squares, S = eigh((gram + gram.T) / 2)
    sizes = squares.clamp_min(0.0).sqrt()
    kept = sizes > max(relative, 1e-7) * sizes.max()
    turn = S[:, kept] / sizes[kept]
    return torch.cat([(rows.double() @ turn).to(B.dtype) for rows in pieces])


class _Projected(WrappedOperator):
    """(I − UUᵀ) A (I − VVᵀ)."""

    def __init__(self, inner: LinearOperator, left: Tensor, right: Tensor) -> None:
        super().__init__(inner, is_symmetric=inner.is_symmetric and left is right)
        self._left, self._right = left, right

    def matmat(self, X: Tensor) -> Tensor:
        return _remove(self._left, self._inner.matmat(_remove(self._right, X)))

    def adjoint_matmat(self, Y: Tensor) -> Tensor:
        return _remove(self._right, self._inner.adjoint_matmat(_remove(self._left, Y)))


def _remove(basis: Tensor, X: Tensor) -> Tensor:
    return X - basis @ (basis.T @ X)
