"""Turn approximate eigenvectors into pairs with certificates.

Letters: A the symmetric operator (n × n); V, X (n, k) orthonormal columns; θ, λ Ritz values, our
eigenvalues; r = ‖Av − λv‖. A has an eigenvalue in [λ − r, λ + r].
"""

import torch
from torch import Tensor

from eigenscape.device import eigh, full_precision
from eigenscape.errors import (
    NonFiniteError,
    ShapeError,
    require_choice,
    require_count,
    require_positive,
)
from eigenscape.linalg._products import (
    BATCH,
    InUnits,
    carries_self_test,
    multiply,
    require_symmetric,
)
from eigenscape.operator import LinearOperator
from eigenscape.records import EigenPairs, Status

WHICH = ("largest", "smallest", "both", "magnitude")

# A residual of this many roundings of ‖A‖ is as good as products in this dtype can be.
_ROUNDINGS = 64
# Least eigenvalue of VᵀV, columns of length 1, above which a Cholesky QR in float64 leaves columns
# orthogonal to 1e-10, and another one to rounding.
_INDEPENDENT = 1e-6
# Entries of a float64 intermediate result: 512 MiB.
_PIECE = 2**26


@carries_self_test
@full_precision()
def certify(
    operator: LinearOperator,
    vectors: Tensor,
    *,
    which: str = "largest",
    tolerance: float = 1e-6,
    rotate: bool = True,
    norm: float = 0.0,
    num_products: int = 0,
    seed: int = 0,
    batch: int = BATCH,
) -> EigenPairs:
    """Turn approximate eigenvectors of any origin into pairs with residuals from real products.

    Use it on vectors from a file, another tool or another data set: the residuals say how good they
    are as eigenvectors of this operator.

    Cost: k products.

    Args:
        operator: Symmetric operator A.
        vectors: Approximate eigenvectors (n, k) or (n,); they need not be orthonormal.
        which: What the pairs are meant to be; decides their order.
        tolerance: The status is converged if no residual is above this fraction of its |λ|, or
            above 64 roundings of ‖A‖; `operator.noise`·‖A‖ is added to both.
        rotate: Mix the vectors to the best pairs of their span (Rayleigh–Ritz). False keeps each
            (orthonormalised) vector and gives its Rayleigh quotient.
        norm: A lower bound of ‖A‖ where one is known, such as the largest |λ| met on the way; the
            largest |λ| of these pairs is used if it is more.
        num_products: Products already spent, which are added to the record.
        seed: What fixed the random numbers behind the vectors, for the record.
        batch: Columns multiplied at a time.

    Returns:
        The pairs. Their status says whether the tolerance holds; no warning is issued here.

    Raises:
        WrongTypeError: If the operator is none.
        NotSymmetricError: If it is not symmetric.
        ShapeError: If the vectors do not fit.
        NonFiniteError: If a vector or a product is NaN or infinite.

    Examples:
        >>> from eigenscape.operator import Dense
        >>> A = Dense(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
        >>> pairs = certify(A, torch.tensor([[1.0, 0.0], [5.0, 1.0]]))
        >>> [round(value, 6) for value in pairs.values.tolist()]
        [3.0, 1.0]
    """
    n = require_symmetric(operator, "certify(operator)")
    require_choice(which, WHICH, "certify(which=...)")
    require_positive(tolerance, "certify(tolerance=...)")
    require_count(seed, "certify(seed=...)", at_least=0)
    V = require_vectors(vectors, n, "certify(vectors=...)")
    scaled = InUnits(operator)
    X = orthonormal(V).to(operator.dtype).to(torch.float64)
    AX = multiply(scaled, X, "certify", batch=batch)
    if rotate:
        values, S = _rotation(X, AX, which)
        _turn(X, S)
        _turn(AX, S)
    else:
        values, X, AX = _quotients(X, AX, which)
    return make_pairs(
        scaled,
        values,
        X,
        AX,
        which=which,
        tolerance=tolerance,
        norm=norm,
        num_products=num_products + X.shape[1],
        seed=seed,
    )


def make_pairs(
    operator: InUnits,
    values: Tensor,
    X: Tensor,
    AX: Tensor,
    *,
    which: str,
    tolerance: float,
    num_products: int,
    seed: int,
    norm: float = 0.0,
    advice: str = "Give more products or a larger tolerance.",
) -> EigenPairs:
    """Build the record from values, float64 vectors and their products. Cost: no product.

    Args:
        operator: Gives the dtype of the vectors, and the unit of values and products.
        values: Eigenvalues (k,), already in order.
        X: Their vectors (n, k), float64.
        AX: The products with them.
        which: See `EigenPairs`.
        tolerance: See `EigenPairs`.
        num_products: Products spent, but for those that looked for the unit.
        seed: What fixed the random numbers.
        norm: See `certify`; not in the operator's unit.
        advice: What to do if a residual is above the tolerance.

    Returns:
        The record; its status compares the residuals with the tolerance.
    """
    residuals = residual_norms(values, X, AX)
    limits = residual_limits(values, tolerance, operator, norm / operator.unit)
    good = int((residuals <= limits).sum())
    text = f"{good} of {len(values)} residuals are within {tolerance:.1e} · |λ|"
    if (close := int((residuals <= tolerance * values.abs()).sum())) < good:
        rounding = f"rounding of products in {operator.dtype}"
        floor = f"noise floor {operator.noise:.1e} · ‖A‖ of products"
        text += f", {good - close} of them only within the {floor if operator.noise else rounding}"
    num_products += operator.looks
    values, residuals = values * operator.unit, residuals * operator.unit
    if good == len(values):
        status = Status(True, f"{text} after {num_products} products.")
    else:
        text += f", the largest is {float(residuals.max()):.1e}, after {num_products} products."
        status = Status(False, f"{text} {advice}")
    return EigenPairs(
        status,
        num_products,
        seed,
        values,
        X.to(operator.dtype),
        residuals,
        which,
        tolerance,
        dict(operator.space.shapes),
    )


def ritz(X: Tensor, AX: Tensor, which: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return the Ritz values of the span of X in order, with vectors and products turned alike."""
    values, S = _rotation(X, AX, which)
    return values, X @ S, AX @ S


def _rotation(X: Tensor, AX: Tensor, which: str) -> tuple[Tensor, Tensor]:
    """Return the Ritz values of the span of X in order, and what turns X to their vectors."""
    T = X.T @ AX
    # Columns rounded to float32 are orthonormal to 1e-7 only, and would spoil the values to first
    # order. XᵀX = LLᵀ turns the span's own problem into an ordinary one.
    L = torch.linalg.cholesky(X.T @ X)
    T = torch.linalg.solve_triangular(L, (T + T.T) / 2, upper=False)
    T = torch.linalg.solve_triangular(L, T.T, upper=False)
    values, S = eigh((T + T.T) / 2)
    order = descending(values, which)
    return values[order], torch.linalg.solve_triangular(L.T, S[:, order], upper=True)


def _turn(X: Tensor, S: Tensor) -> None:
    """Turn X to XS where it is: of millions of rows a second copy is much."""
    for piece in X.split(max(1, _PIECE // X.shape[1])):
        piece.copy_(piece @ S)


def _quotients(X: Tensor, AX: Tensor, which: str) -> tuple[Tensor, Tensor, Tensor]:
    values = (X * AX).sum(0) / (X * X).sum(0)
    order = descending(values, which)
    return values[order], X[:, order], AX[:, order]


def residual_norms(values: Tensor, X: Tensor, AX: Tensor) -> Tensor:
    """Return ‖Ax − λx‖/‖x‖ for each column."""
    width = max(1, _PIECE // max(len(X), 1))
    chunks = zip(values.split(width), X.split(width, 1), AX.split(width, 1), strict=True)
    return torch.cat([(AV - V * v).norm(dim=0) / V.norm(dim=0) for v, V, AV in chunks])


def residual_limits(
    values: Tensor, tolerance: float, operator: LinearOperator, norm: float = 0.0
) -> Tensor:
    """Return the residual up to which each pair counts as converged.

    Products that are noisy have residuals of that size, however good a vector is.
    """
    norm = max(norm, float(values.abs().max()))
    rounding = _ROUNDINGS * torch.finfo(operator.dtype).eps * norm
    return (tolerance * values.abs()).clamp_min(rounding) + operator.noise * norm


def descending(values: Tensor, which: str) -> Tensor:
    """Return the order of the values: by sign and size, or by size alone for "magnitude"."""
    order: Tensor = values.argsort(descending=True, stable=True)
    if which == "magnitude":  # Of two with the same magnitude the positive one comes first.
        order = order[values[order].abs().argsort(descending=True, stable=True)]
    return order


def orthonormal(V: Tensor) -> Tensor:
    """Return orthonormal columns with the span of V (n, k), in float64."""
    # Columns of very unequal length would lose the small ones to the rounding of the large ones.
    V = V.to(torch.float64)
    V = V / V.norm(dim=0).clamp_min(torch.finfo(torch.float64).tiny)
    gram = V.T @ V
    if float(torch.linalg.eigvalsh(gram.cpu())[0]) > _INDEPENDENT:
        # Cholesky QR, twice, is as good and many times faster. L is small and far from singular, so
        # its inverse is as good as solving, which took a GPU 5 s or more for ten columns of 11e6.
        identity = torch.eye(V.shape[1], dtype=V.dtype, device=V.device)
        for _ in range(2):
            L = torch.linalg.cholesky(V.T @ V)
            V = V @ torch.linalg.solve_triangular(L, identity, upper=False).T
        return V
    # A second QR leaves orthogonality at rounding whatever the first one met.
    for _ in range(2):
        V, _R = torch.linalg.qr(V)
    return V


def require_columns(vectors: Tensor, n: int, call: str, *, most: int | None = None) -> Tensor:
    """Return vectors (n,) or (n, k) as columns, at least one and at most so many, else refuse."""
    if not isinstance(vectors, Tensor) or vectors.ndim not in (1, 2) or vectors.shape[0] != n:
        got = tuple(vectors.shape) if isinstance(vectors, Tensor) else type(vectors).__name__
        raise ShapeError(f"`{call}` must be a tensor ({n},) or ({n}, k); got {got}.")
    V = vectors[:, None] if vectors.ndim == 1 else vectors
    if not 1 <= V.shape[1] <= (V.shape[1] if most is None else most):
        limit = "" if most is None else f" and at most {most}"
        raise ShapeError(
            f"`{call}` must have at least one column{limit}; got {V.shape[1]}. Drop the surplus, "
            "or leave it out."
        )
    return V


def require_vectors(vectors: Tensor, n: int, call: str, *, most: int | None = None) -> Tensor:
    """Return vectors as finite, non-zero columns, at most n or so many, else refuse."""
    V = require_columns(vectors, n, call, most=most or n)  # no more than n can be orthonormal
    if not bool(torch.isfinite(V).all()):
        raise NonFiniteError(f"`{call}` must be finite; got NaN or infinity. Check its origin.")
    if bool((V == 0).all(0).any()):
        raise ShapeError(f"`{call}` must have no zero column; leave it out or draw it at random.")
    return V
