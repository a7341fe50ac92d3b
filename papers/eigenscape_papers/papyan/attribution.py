"""Are these outliers due to that matrix, as a number (Papyan §3, Table 1)?

Letters: A the operator with k outliers, B the suspected cause, V (n, r) the leading eigenvectors of
B; λ_1 ≥ … ≥ λ_{k+1} eigenvalues of A (their magnitudes where `which` says so), λ'_i those after a
knockout: of A − B, or of (I − VVᵀ) A (I − VVᵀ); Q a random orthogonal matrix.

Two things can disappear. The *mass* of the outliers is what they have above the bulk, whose edge is
λ_{k+1}: Σ_{i≤k} (λ_i − λ_{k+1}). The *gap* is λ_k − λ_{k+1}; what is left of it is the widest of
the first k gaps, since knocking out one outlier of k moves the gap and closes nothing. The null
value is what the same knockout does with QBQᵀ, which has B's spectrum and none of its directions.

A projection makes no outliers: its eigenvalues interlace with those of A. A subtraction makes up to
one for each eigenvector of B, of the other sign than its eigenvalue. So after it more gaps count,
one for each λ'_i > λ_{k+1}. By Weyl's inequality these are at most k and the rank of B, or with
signs k and the number of its eigenvalues below zero; by products, r stands for the rank. Among
magnitudes a gap is one between eigenvalues of one sign: new outliers of the other sign would lie in
it and hide it. An eigenvalue of the other sign ends a gap only if it is none, at most λ_{k+1}.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from eigenscape.device import eigh
from eigenscape.errors import (
    InvalidArgumentError,
    NotSymmetricError,
    ShapeError,
    require_choice,
    require_count,
    require_positive,
)
from eigenscape.linalg import draw_probes, eigsh
from eigenscape.operator import (
    Dense,
    LinearOperator,
    WrappedOperator,
    projection_knockout,
    require_operator,
    subtraction_knockout,
)
from eigenscape.records import Columns, EigenPairs, ProgressCallback, Record, Status

WHICH = ("magnitude", "largest")
# Entries that are transformed at once: complex, in float64, they take 16 bytes each.
_AT_ONCE = 2**26
# Rows of matrices that are decomposed; of larger ones a few pairs cost less by products.
_MOST_EXACT = 4096
# Products are as good as these many roundings of their size; `eigsh` has the same.
_ROUNDINGS = 64
_Matrix = Tensor | LinearOperator  # known by its entries, or by its products


@dataclass(frozen=True, eq=False)
class Attribution(Record):
    """What a knockout of the cause leaves of the outliers.

    Scores go from 0, nothing has disappeared, to 1, all of it has.

    Attributes:
        before: λ_1 to λ_{k+1} with their signs (k+1,).
        subtracted: The same of A − B. Its gap may lie further down, among new outliers.
        projected: The same with the leading eigenvectors of B projected out of A.
        residuals: ‖Av − λv‖ of these three (3, k+1), in this order. For dense matrices, of which no
            vectors are computed, nε·max |λ|, which bounds the rounding.
        mass_subtracted: Share of the outliers' mass that disappears with A − B.
        gap_subtracted: Share of the gap that disappears with A − B.
        mass_projected: Share of the mass that disappears with the projection.
        gap_projected: Share of the gap that disappears with the projection.
        null: The same four for random QBQᵀ, each draw a row (num_draws, 4).
        num_outliers: k.
        rank: r, the eigenvectors of B that were projected out.
        which: "magnitude" or "largest".
    """

    before: Tensor
    subtracted: Tensor
    projected: Tensor
    residuals: Tensor
    mass_subtracted: float
    gap_subtracted: float
    mass_projected: float
    gap_projected: float
    null: Tensor
    num_outliers: int
    rank: int
    which: str

    def columns(self) -> Columns:
        """Return one row for each knockout: scores, and the mean scores of random ones."""
        null = self.null.mean(0).tolist() if len(self.null) else [None] * 4
        return {
            "knockout": ("subtraction", "projection"),
            "mass": (self.mass_subtracted, self.mass_projected),
            "null mass": (null[0], null[2]),
            "gap": (self.gap_subtracted, self.gap_projected),
            "null gap": (null[1], null[3]),
        }


def attribution(
    operator: LinearOperator,
    cause: LinearOperator,
    *,
    num_outliers: int,
    rank: int | None = None,
    which: str = "magnitude",
    num_draws: int = 1,
    tolerance: float = 1e-3,
    max_products: int | None = None,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Attribution:
    """Measure how much of the outliers of an operator disappears when a cause is knocked out.

    Outliers are due to B where the scores are near 1 and those of a random QBQᵀ are near 0. A cause
    of the right directions and the wrong size shows as a high score of the projection with a low
    one of the subtraction.

    Two `Dense` operators of up to 4096 rows are decomposed exactly. Otherwise it is one `eigsh` of
    k + 1 pairs for A, one of r for B, and two for the knockouts and for each draw: of k + r + 1
    pairs after a subtraction (k + 1 for "largest" and a B without eigenvalues below zero) and of
    k + 1 after a projection. These look for the edge of a bulk, which takes the most products.

    Args:
        operator: A, symmetric.
        cause: B, symmetric, of the same size.
        num_outliers: k, less than n.
        rank: Eigenvectors of B to project out, those of largest magnitude; k by default. Those of
            eigenvalue zero, to the rounding of B's dtype, are never among them. By products,
            A − B is searched for as many new outliers, so give no fewer than B has outliers: with
            too few of them `gap_subtracted` is too high.
        which: "magnitude" to count outliers of either sign, so that a cause that was too large
            shows as a new outlier below; "largest" for those above only.
        num_draws: Random causes for the null value; 0 for none.
        tolerance: As for `eigsh`.
        max_products: As for `eigsh`, for each of them.
        seed: Fixes starting vectors and random causes.
        progress: Called after each step of each `eigsh`.

    Returns:
        Eigenvalues before and after, scores and null values. `num_products` counts products with A
        or B, with A − B as one.

    Raises:
        WrongTypeError: If one of them is no operator.
        NotSymmetricError: If one of them is not symmetric.
        ShapeError: If their sizes differ.
        InvalidArgumentError: If k is too large, or A has no gap there.

    Examples:
        >>> A = Dense(torch.diag(torch.tensor([9.0, 8.0, 1.0, 0.9, 0.8, 0.7])))
        >>> B = Dense(torch.diag(torch.tensor([8.0, 7.0, 0.0, 0.0, 0.0, 0.0])))
        >>> found = attribution(A, B, num_outliers=2, num_draws=0)
        >>> found.mass_subtracted, round(found.gap_projected, 4)
        (1.0, 0.9857)
        >>> [round(value, 4) for value in found.projected.tolist()]
        [1.0, 0.9, 0.8]
    """
    n = _require_pair(operator, cause)
    k = require_count(num_outliers, "attribution(num_outliers=...)", at_most=n - 1)
    r = require_count(k if rank is None else rank, "attribution(rank=...)", at_most=n)
    require_choice(which, WHICH, "attribution(which=...)")
    require_positive(tolerance, "attribution(tolerance=...)")
    require_count(num_draws, "attribution(num_draws=...)", at_least=0)
    exact = isinstance(operator, Dense) and isinstance(cause, Dense) and n <= _MOST_EXACT
    spectra = _Spectra(tolerance, max_products, seed, progress)
    # Dense matrices are taken as they are: the algebra of operators would multiply identities.
    A, B = (M.to_dense().double() if exact else M for M in (operator, cause))
    before = spectra.top(A, k + 1, which)
    old = _sizes(before.values, which)
    if not float(old[k - 1] - old[k]) > 0.0:
        raise InvalidArgumentError(
            f"`attribution(num_outliers={k})` needs a gap after eigenvalue {k}; there is none. See "
            "`outliers(eigsh(A, num_pairs=...))` for where the gaps are."
        )
    causes, span = spectra.leading(B, r, torch.finfo(cause.dtype).eps)
    new = len(causes) if which == "magnitude" else int((causes < 0.0).sum())

    def knocked(B: _Matrix, V: Tensor) -> tuple[_Top, _Top]:
        subtracted = spectra.top(_subtracted(A, B), min(k + new + 1, n), which)
        return subtracted, spectra.top(_projected(A, V), k + 1, which)

    def scores(after: tuple[_Top, _Top]) -> list[float]:
        return [share for top in after for share in _shares(old, top.values, which)]

    after = knocked(B, span)
    null = []
    for draw in range(num_draws):
        rotation = _rotation(operator, seed, draw)
        null.append(scores(knocked(_rotated(B, rotation), rotation(span, False))))
    mass_subtracted, gap_subtracted, mass_projected, gap_projected = scores(after)
    return Attribution(
        status=spectra.status(),
        num_products=sum(pairs.num_products for pairs in spectra.runs),
        seed=seed,
        before=before.values,
        subtracted=after[0].values[: k + 1],
        projected=after[1].values,
        residuals=torch.stack([top.residuals[: k + 1] for top in (before, *after)]),
        mass_subtracted=mass_subtracted,
        gap_subtracted=gap_subtracted,
        mass_projected=mass_projected,
        gap_projected=gap_projected,
        null=torch.tensor(null, dtype=torch.float64).reshape(num_draws, 4),
        num_outliers=k,
        rank=span.shape[1],
        which=which,
    )


def _require_pair(A: LinearOperator, B: LinearOperator) -> int:
    for operator, name in ((A, "operator"), (B, "cause")):
        require_operator(operator, f"attribution({name})")
        if not operator.is_symmetric:
            raise NotSymmetricError(
                f"`attribution({name})` needs a symmetric operator; got {operator!r}. Where a "
                "matrix is symmetric but for rounding, pass `Dense((M + M.T) / 2)`; for singular "
                "values use `A.gram()`."
            )
    if A.shape != B.shape:
        raise ShapeError(
            f"`attribution(operator, cause)` needs operators of one size; got {A.shape} and "
            f"{B.shape}."
        )
    return A.space.size


@dataclass(frozen=True, eq=False)
class _Top:
    """Leading eigenvalues and what bounds their errors."""

    values: Tensor
    residuals: Tensor


def _sizes(values: Tensor, which: str) -> Tensor:
    return values.abs() if which == "magnitude" else values


def _shares(old: Tensor, values: Tensor, which: str) -> tuple[float, float]:
    """Return the shares of mass and gap that are gone.

    Args:
        old: λ_1 to λ_{k+1}.
        values: λ'_1 to λ'_{k+1} or further, with their signs.
        which: What they are ordered by.
    """
    k, edge, new = len(old) - 1, old[-1], _sizes(values, which)
    mass = (new[:k] - edge).clamp_min(0.0).sum() / (old[:k] - edge).sum()
    num_gaps = max(k, int((new[:-1] > edge).sum()))
    gap = _widest_gap(values[: num_gaps + 1], edge, which) / (old[k - 1] - edge)
    return float((1.0 - mass).clamp(0.0, 1.0)), float((1.0 - gap).clamp(0.0, 1.0))


def _widest_gap(values: Tensor, edge: Tensor, which: str) -> Tensor:
    """Return the widest gap between successive values, or between successive ones of one sign."""
    if which == "largest":
        return -values.diff().min()
    widest = []
    for side in (values, -values):
        # The last value is as far down as gaps are looked for.
        floor = (-side).max().minimum(edge).maximum(values[-1].abs())
        widest.append(-side.clamp_min(floor).sort(descending=True).values.diff().min())
    return torch.stack(widest).max()


def _subtracted(A: _Matrix, B: _Matrix) -> _Matrix:
    # Both are known in the same way.
    if isinstance(A, Tensor):
        return A - cast(Tensor, B)
    return subtraction_knockout(A, cast(LinearOperator, B))


def _projected(A: _Matrix, V: Tensor) -> _Matrix:
    """Project orthonormal columns out of both sides."""
    if not isinstance(A, Tensor):
        return projection_knockout(A, V)
    left = A - V @ (V.T @ A)
    return left - (left @ V) @ V.T


def _rotated(B: _Matrix, rotation: Callable[[Tensor, bool], Tensor]) -> _Matrix:
    """Return QBQᵀ."""
    if isinstance(B, Tensor):
        return rotation(rotation(B, False).T, False)
    return _Conjugated(B, rotation)


@dataclass
class _Spectra:
    """Finds leading eigenvalues and vectors, and keeps the runs of those that took products."""

    tolerance: float
    max_products: int | None
    seed: int
    progress: ProgressCallback | None = None
    runs: list[EigenPairs] = field(default_factory=list)

    def top(self, matrix: _Matrix, count: int, which: str) -> _Top:
        if isinstance(matrix, Tensor):
            values = torch.linalg.eigvalsh(_symmetric(matrix))
            largest = values.abs().max()
            values = values[_order(values, which)[:count]].cpu()
            rounding = len(matrix) * torch.finfo(values.dtype).eps * float(largest)
            return _Top(values, torch.full_like(values, rounding))
        pairs = self._run(matrix, count, which)
        return _Top(pairs.values, pairs.residuals)

    def leading(self, matrix: _Matrix, count: int, eps: float) -> tuple[Tensor, Tensor]:
        """Return all eigenvalues at hand that are not zero to rounding, and leading vectors."""
        if isinstance(matrix, Tensor):
            values, vectors = eigh(_symmetric(matrix))
            order = _order(values, "magnitude")
            values, vectors = values[order], vectors[:, order]
        else:
            pairs = self._run(matrix, count, "magnitude")
            values, vectors = pairs.values, pairs.vectors
        rounding = _rounding(len(vectors), eps, exact=isinstance(matrix, Tensor))
        kept = values.abs() > rounding * values.abs().max()
        return values[kept], vectors[:, kept.to(vectors.device)][:, :count]

    def _run(self, matrix: LinearOperator, count: int, which: str) -> EigenPairs:
        pairs = eigsh(
            matrix,
            num_pairs=count,
            which=which,
            tolerance=self.tolerance,
            max_products=self.max_products,
            seed=self.seed,
            progress=self.progress,
        )
        self.runs.append(pairs)
        return pairs

    def status(self) -> Status:
        if not self.runs:
            return Status(True, "Exact: dense matrices.")
        failed = [pairs for pairs in self.runs if not pairs.status]
        if failed:
            words = f"{len(failed)} of {len(self.runs)} spectra not converged"
            return Status(False, f"{words}: {failed[0].status}")
        return Status(True, f"{len(self.runs)} spectra converged.")


def _rounding(n: int, eps: float, *, exact: bool) -> float:
    """Return which share of the largest an eigenvalue may have that is zero but for rounding."""
    if exact:  # of the decomposition in float64, or of the entries before it
        return max(n * torch.finfo(torch.float64).eps, math.sqrt(n) * eps)
    # Of products. With n in it, float32 would have no directions from eight million parameters on.
    return _ROUNDINGS * eps


def _symmetric(matrix: Tensor) -> Tensor:
    return 0.5 * (matrix + matrix.T)


def _order(values: Tensor, which: str) -> Tensor:
    return (values.abs() if which == "magnitude" else values).argsort(descending=True)


def _rotation(operator: LinearOperator, seed: int, draw: int) -> Callable[[Tensor, bool], Tensor]:
    """Return (X, transposed) ↦ QX or QᵀX: two transforms, each after random signs.

    It costs n log n a column, where a uniformly distributed Q would cost n². Between the two the
    rows are turned round, since a transform leaves the last ones out.
    """
    signs = draw_probes(operator, 2, seed=seed, first=2 * draw).double()

    def few(X: Tensor, transposed: bool) -> Tensor:
        Y = X.double()
        if transposed:
            Y = signs[:, :1] * _spread(signs[:, 1:] * _spread(Y).flip(0))
        else:
            Y = _spread((signs[:, 1:] * _spread(signs[:, :1] * Y)).flip(0))
        return Y.to(X.dtype)

    def apply(X: Tensor, transposed: bool) -> Tensor:
        if X.shape[1] == 0:  # of a cause that is zero: a transform needs a column
            return X
        pieces = X.split(max(1, _AT_ONCE // len(X)), 1)
        return torch.cat([few(piece, transposed) for piece in pieces], 1)

    return apply


def _spread(X: Tensor) -> Tensor:
    """Write each column as a matrix, as square as can be, and transform its rows and columns."""
    # Hartley's transform is orthogonal and symmetric, and its entries are alike in size. cuFFT
    # refuses to make it of a whole column, of tens of millions of entries.
    side = math.isqrt(len(X))
    kept = len(X) // side * side
    Y = X[:kept].reshape(-1, side, X.shape[1])
    for dim in (0, 1):
        both = torch.fft.fft(Y, dim=dim, norm="ortho")
        Y = both.real - both.imag
    return torch.cat([Y.reshape(kept, -1), X[kept:]])


class _Conjugated(WrappedOperator):
    """QBQᵀ."""

    def __init__(self, inner: LinearOperator, rotation: Callable[[Tensor, bool], Tensor]) -> None:
        super().__init__(inner)
        self._rotation = rotation

    def matmat(self, X: Tensor) -> Tensor:
        return self._rotation(self._inner.matmat(self._rotation(X, True)), False)
