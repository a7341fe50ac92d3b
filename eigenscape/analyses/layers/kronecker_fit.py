"""How well does E[M] ⊗ E[x̃x̃ᵀ] fit a layer's Hessian, and how well could a Kronecker product?

Letters: H (q × q) the layer's block, q = mn; M the Hessian at the layer's output (m), x̃ its input
(n, with a 1 for the bias); U, V orthonormal bases (m × m, n × n), D (m × n) numbers; an
approximation is (U ⊗ V) diag(D) (U ⊗ V)ᵀ. R_i (m × n) the rows with H = Σ vec(R_i) vec(R_i)ᵀ/N.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.analyses.layers._pictures import fit_picture
from eigenscape.analyses.layers._slopes import all_slopes, roots
from eigenscape.analyses.layers.eigenspace_overlap import eigenspace_overlap
from eigenscape.curvature import KroneckerHessian, LayerHessian, matrix_layers
from eigenscape.device import eigh, full_precision
from eigenscape.errors import ConvergenceWarning, SubstitutionWarning, require_count
from eigenscape.linalg import SpectralNorm, draw_probes, eigsh, spectral_norm
from eigenscape.operator import LinearOperator, WrappedOperator
from eigenscape.records import Columns, EigenPairs, Picture, Record, Status, storable
from eigenscape.risk import EmpiricalRisk, Layer

# Rows that are formed at a time, in numbers.
_CHUNK = 2**22
# Half steps for the best pair: each is a least-squares fit, and they stop where nothing is gained.
_MOST_STEPS, _GAIN = 500, 1e-13


@storable
@dataclass(frozen=True, eq=False)
class KroneckerApproximation:
    """One approximation of a layer's Hessian.

    Attributes:
        name: "kronecker" for E[M] ⊗ E[x̃x̃ᵀ] (Wu (7)); "ekfac" for its eigenvectors with the diagonal
            of H in them, the best in Frobenius norm with those vectors; "best pair" for the B ⊗ A
            that is the best in Frobenius norm.
        spectral_error: ‖H − Ĥ‖₂/‖H‖₂.
        spectral_residual: Residual of its numerator over ‖H‖₂.
        frobenius_error: ‖H − Ĥ‖_F/‖H‖_F.
        frobenius_stderr: Its standard error; 0 where it is exact.
        values: The largest eigenvalues of Ĥ (k,), descending, float64.
        overlaps: Overlap (k,) of the top j eigenspaces of H and Ĥ (Wu Def. 4.1), j = 1, …, k.
    """

    name: str
    spectral_error: float
    spectral_residual: float
    frobenius_error: float
    frobenius_stderr: float
    values: Tensor
    overlaps: Tensor


@dataclass(frozen=True, eq=False)
class KroneckerFit(Record):
    """A layer's Hessian and its Kronecker approximations.

    Attributes:
        layer: The layer's name.
        num_parameters: q.
        spectral_norm: ‖H‖₂.
        frobenius_norm: ‖H‖_F.
        frobenius_stderr: Its standard error; 0 where it is exact.
        method: How Frobenius norms were found: "dense", "gram" or "probes".
        values: The largest eigenvalues of H (k,), descending.
        residuals: Their residuals (k,).
        approximations: One entry for each approximation.
        seconds: Wall time it took.
    """

    layer: str
    num_parameters: int
    spectral_norm: float
    frobenius_norm: float
    frobenius_stderr: float
    method: str
    values: Tensor
    residuals: Tensor
    approximations: tuple[KroneckerApproximation, ...]
    seconds: float

    def columns(self) -> Columns:
        """Return one row for each approximation."""
        rows = self.approximations
        return {
            "approximation": [r.name for r in rows],
            "spectral error": [r.spectral_error for r in rows],
            "Frobenius error": [r.frobenius_error for r in rows],
            "stderr": [r.frobenius_stderr for r in rows],
            "top eigenvalue": [float(r.values[0]) for r in rows],
            "true": [float(self.values[0]) for _ in rows],
            "overlap": [float(r.overlaps[-1]) for r in rows],
        }

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (fit_picture(self),)


@full_precision()
def kronecker_fit(
    risk: EmpiricalRisk,
    layer: str,
    *,
    num_pairs: int = 10,
    num_probes: int = 32,
    max_exact: int = 4096,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> KroneckerFit:
    """Compare a layer's Hessian with E[M] ⊗ E[x̃x̃ᵀ] and with the best that its kind allows.

    Wu's decoupling conjecture (7) is that the first is close, above all at the top: Fig. 2 compares
    eigenvalues and eigenspaces of F-200². M is GᵀAG, which is the Hessian at the layer's output
    where the rest is piecewise linear. Beside it stand two that bound what can be had: "ekfac"
    keeps its eigenvectors and takes the diagonal of H in them, and "best pair" is the nearest of
    all products B ⊗ A. Neither is ever further from H than the first in Frobenius norm. Both are
    exact, from per-sample factors where what follows the layer is piecewise linear, from the dense
    block where it is not and q ≤ `max_exact`; else they are left out, and the status says so.

    Cost: about 4 products per pair, 10 to 50 for each spectral norm, C backward passes of the tail,
    and for the best pair 2 passes over the stored factors a step, mostly 3 to 20 of them.

    Args:
        risk: Its model must be an `nn.Module`.
        layer: As for `KroneckerHessian`; convolutions too.
        num_pairs: Largest eigenpairs to compare; no more than q are.
        num_probes: Random probes for Frobenius norms that are not exact, 2 or more.
        max_exact: The largest matrix to form for exact Frobenius norms: the q × q block, or the
            inner products of its N·C rows. Exact errors are good to about 1e-8.
        tolerance: Bound on the residuals of eigenpairs and spectral norms.
        seed: Fixes starting vectors and probes.

    Returns:
        One entry for each approximation.

    Raises:
        UnsupportedModelError: If the layer is not one matrix applied to vectors, or does not have
            samples in its first dimension.

    Examples:
        With M = 1, x = (1, 0) and M = 3, x = (0, 1) the block is diag(½, 3/2), but E[M] ⊗ E[xxᵀ] is
        2 · ½ · I: an error of ½·√2 in ½·√10.

        >>> from eigenscape.risk.losses import CallableLoss
        >>> loss = CallableLoss(lambda z, y: (y * z.square() / 2).sum(1))
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False)).double()
        >>> x, y = torch.eye(2).double(), torch.tensor([[1.0], [3.0]]).double()
        >>> fit = kronecker_fit(EmpiricalRisk(model, loss, (x, y)), "0", num_pairs=2)
        >>> [(a.name, round(a.frobenius_error, 6)) for a in fit.approximations]
        [('kronecker', 0.447214), ('ekfac', 0.0), ('best pair', 0.0)]

    References:
        George, Laurent, Bouthillier, Ballas and Vincent, "Fast approximate natural gradient descent
        in a Kronecker-factored eigenbasis", 2018. Van Loan and Pitsianis, "Approximation with
        Kronecker products", 1993.
    """
    started = time.monotonic()
    require_count(num_pairs, "kronecker_fit(num_pairs=...)")
    require_count(num_probes, "kronecker_fit(num_probes=...)", at_least=2)
    require_count(max_exact, "kronecker_fit(max_exact=...)")
    (matrix_layer,) = matrix_layers(risk, [layer], f"kronecker_fit(risk, {layer!r})")
    H, K = _block(risk, layer), KroneckerHessian(risk, layer, seed=seed)
    pairs = eigsh(H, num_pairs=min(num_pairs, H.space.size), tolerance=tolerance, seed=seed)
    top = spectral_norm(H, tolerance=tolerance, seed=seed)
    source: _Rows | _Whole | None = None
    obstacle = H.plan.candidate("factors").obstacle
    if obstacle is None:
        source = _Rows(risk, matrix_layer, H)
    elif H.space.size <= max_exact:
        source = _Whole(H, K)
    fits, text = _approximations(K, source, obstacle)
    norms = _exact_norms(risk, layer, H, max_exact)
    scores = [] if source is None else [_score(a, source) for a in fits]
    if norms is None:
        norms = _probed_norms(H, fits, scores, draw_probes(H, num_probes, seed=seed + 1))
    gaps = [(norms.squares + score).clamp_min(0.0) for score in scores] or [norms.smallest]
    fars = [_distance(H - approximation, tolerance, seed) for approximation in fits]
    # A difference that is rounding alone has no eigenvalue to converge to.
    good = all(bool(far.status) or far.value <= tolerance * top.value for far in fars)
    good = good and bool(pairs.status) and bool(top.status)
    norm, stderr = _ratio(norms.squares, torch.ones_like(norms.squares))
    return KroneckerFit(
        status=Status(good, text if good else f"{text} Some eigenvalues did not converge."),
        num_products=norms.cost + sum(result.num_products for result in (pairs, top, *fars)),
        seed=seed,
        layer=layer,
        num_parameters=H.space.size,
        spectral_norm=top.value,
        frobenius_norm=norm,
        frobenius_stderr=stderr,
        method=norms.method,
        values=pairs.values.cpu(),
        residuals=pairs.residuals.cpu(),
        approximations=tuple(
            _entry(approximation, far, gap, norms.squares, pairs, top.value)
            for approximation, far, gap in zip(fits, fars, gaps, strict=True)
        ),
        seconds=time.monotonic() - started,
    )


class _InBasis(WrappedOperator):
    """(U ⊗ V) diag(D) (U ⊗ V)ᵀ in the layer's space, which is that of K."""

    def __init__(self, name: str, K: KroneckerHessian, U: Tensor, V: Tensor, D: Tensor) -> None:
        super().__init__(K)
        self.name, self._K, self.U, self.V, self.D = name, K, U, V, D

    def matmat(self, X: Tensor) -> Tensor:
        inside = self.D * (self.U.T @ self._K.to_matrices(X).double() @ self.V)
        return self._K.from_matrices(self.U @ inside @ self.V.T).to(X.dtype)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """Return the k largest entries of D and their vectors (q, k)."""
        values, where = self.D.flatten().topk(k)
        i, j = where // self.D.shape[1], where % self.D.shape[1]
        matrices = self.U.T[i][:, :, None] * self.V.T[j][:, None, :]
        return values, self._K.from_matrices(matrices)


class _Rows:
    """H as a sum over rows R_i: what contractions with it need, by passes over the factors."""

    def __init__(self, risk: EmpiricalRisk, layer: Layer, H: LayerHessian) -> None:
        self._risk, self._layer = risk, layer
        fits = H.plan.candidate("factors").nbytes <= H.memory_budget
        with risk.ranks.together():
            self._kept = list(self._fresh()) if fits else None

    def diagonal(self, U: Tensor, V: Tensor) -> Tensor:
        """Return (u_i ⊗ v_j)ᵀ H (u_i ⊗ v_j) (m, n)."""

        def one(x: Tensor, b: Tensor) -> Tensor:
            return (b @ U).square().sum(1).T @ (x @ V).square()

        return self._sum(one, lambda R: (U.T @ R @ V).square().sum(0))

    def left(self, A: Tensor) -> Tensor:
        """Return Σ R A Rᵀ (m, m): ⟨H, B ⊗ A⟩ = ⟨this, B⟩ for all B."""

        def one(x: Tensor, b: Tensor) -> Tensor:
            weight = ((x @ A) * x).sum(-1)
            return torch.einsum("ncm,nck->mk", b * weight[:, None, None], b)

        return self._sum(one, lambda R: torch.einsum("rmi,rki->mk", R @ A, R))

    def right(self, B: Tensor) -> Tensor:
        """Return Σ Rᵀ B R (n, n): ⟨H, B ⊗ A⟩ = ⟨this, A⟩ for all A."""

        def one(x: Tensor, b: Tensor) -> Tensor:
            weight = ((b @ B) * b).sum(dim=(1, 2))
            return (x * weight[:, None]).T @ x

        return self._sum(one, lambda R: torch.einsum("rmi,rmj->ij", R, B @ R))

    def _sum(
        self, one: Callable[[Tensor, Tensor], Tensor], many: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Add over samples: of one position R = b xᵀ is not formed, of many it is, in chunks."""
        total = torch.zeros((), dtype=torch.float64, device=self._risk.device)
        with self._risk.ranks.together():
            for x, b in self._fresh() if self._kept is None else self._kept:
                if x.shape[1] == 1:
                    total = total + one(x[:, 0].double(), b[:, :, 0].double())
                    continue
                size = max(1, _CHUNK // (b.shape[1] * b.shape[3] * x.shape[2]))
                for xs, bs in zip(x.split(size), b.split(size), strict=True):
                    R = torch.einsum("ncpm,npi->ncmi", bs.double(), xs.double())
                    total = total + many(R.flatten(0, 1))
        return self._risk.ranks.sum(total) / self._risk.divisor

    def _fresh(self) -> Iterator[tuple[Tensor, Tensor]]:
        call = f"kronecker_fit(risk, {self._layer.name!r})"
        for chunk in all_slopes(self._risk, self._layer, roots(self._risk), call):
            yield chunk.inputs, chunk.slopes


class _Whole:
    """H as a dense matrix; contractions as those of `_Rows`."""

    def __init__(self, H: LayerHessian, K: KroneckerHessian) -> None:
        block = H.to_dense().double()
        half = K.to_matrices((block + block.T) / 2)  # (q, m, n): its rows are still parameters
        self._H = K.to_matrices(half.flatten(1)).unflatten(0, half.shape[1:])

    def diagonal(self, U: Tensor, V: Tensor) -> Tensor:
        turned = torch.einsum("aibj,ak,bk->ijk", self._H, U, U)
        return torch.einsum("ijk,il,jl->kl", turned, V, V)

    def left(self, A: Tensor) -> Tensor:
        return torch.einsum("aibj,ij->ab", self._H, A)

    def right(self, B: Tensor) -> Tensor:
        return torch.einsum("aibj,ab->ij", self._H, B)


def _block(risk: EmpiricalRisk, layer: str, representation: str = "auto") -> LayerHessian:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SubstitutionWarning)  # slower, and exact all the same
        return LayerHessian(risk, layer, representation=representation)


def _approximations(
    K: KroneckerHessian, source: _Rows | _Whole | None, obstacle: str | None
) -> tuple[list[_InBasis], str]:
    """Build all that can be had, and say what cannot."""
    first = _in_basis("kronecker", K, K.output_factor, K.input_factor)
    if source is None:
        return [first], (
            f"Only E[M] ⊗ E[xxᵀ]: {obstacle}, and the block has {K.space.size} parameters; raise "
            "`max_exact` to form it."
        )
    second = _InBasis("ekfac", K, first.U, first.V, source.diagonal(first.U, first.V))
    B, A, steps = _best_pair(source, K.input_factor)
    text = f"The best pair took {steps} steps."
    if steps == _MOST_STEPS:
        text += " They still gained a little at the end."
    return [first, second, _in_basis("best pair", K, B, A)], text


def _in_basis(name: str, K: KroneckerHessian, B: Tensor, A: Tensor) -> _InBasis:
    (left, U), (right, V) = eigh(B), eigh(A)
    return _InBasis(name, K, U, V, torch.outer(left, right))


# Power iteration for the leading singular triple of the rearranged matrix (Van Loan and Pitsianis)
# without forming it. The error never grows, so no pair with the first A is better than the result.
def _best_pair(source: _Rows | _Whole, A: Tensor) -> tuple[Tensor, Tensor, int]:
    """Fit B for fixed A and A for fixed B in turn; return both and the steps taken."""
    B, tiny, gained = A, torch.finfo(A.dtype).tiny, 0.0
    for step in range(1, _MOST_STEPS + 1):
        B = _symmetric(source.left(A)) / A.square().sum().clamp_min(tiny)
        A = _symmetric(source.right(B)) / B.square().sum().clamp_min(tiny)
        size = float(B.norm() * A.norm())  # ‖H − B ⊗ A‖² = ‖H‖² − size², A being fitted to B
        if size - gained <= _GAIN * size:
            return B, A, step
        gained = size
    return B, A, _MOST_STEPS


def _score(approximation: _InBasis, source: _Rows | _Whole) -> Tensor:
    """Return ‖H − Ĥ‖_F² − ‖H‖_F² = ‖Ĥ‖² − 2⟨H, Ĥ⟩, exactly."""
    D = approximation.D
    return (D * (D - 2 * source.diagonal(approximation.U, approximation.V))).sum()


@dataclass(frozen=True)
class _Norms:
    """‖H‖_F² and the smallest ‖H − Ĥ‖_F²: one exact number each, or one for each probe."""

    method: str
    squares: Tensor
    smallest: Tensor
    cost: int


def _exact_norms(risk: EmpiricalRisk, layer: str, H: LayerHessian, max_exact: int) -> _Norms | None:
    """Find ‖H‖_F² from the smaller of RRᵀ and H, if that may be formed."""
    q, rows = H.space.size, H.num_rows
    if rows is not None and rows <= min(max_exact, q):
        squares = _block(risk, layer, "factors").row_gram().square().sum()[None]
        return _Norms("gram", squares, squares, 0)
    if q <= max_exact:
        is_stored = H.plan.candidate("dense").obstacle is None
        block = _block(risk, layer, "dense") if is_stored else H
        squares = block.to_dense().double().square().sum()[None]
        return _Norms("dense", squares, squares, 0 if is_stored else q)
    return None


# Large eigenvalues add little noise so, and no estimate is below another that must be smaller.
def _probed_norms(
    H: LayerHessian, approximations: list[_InBasis], scores: list[Tensor], w: Tensor
) -> _Norms:
    """Estimate ‖H − Ĥ‖_F² for the nearest Ĥ; ‖H‖_F² differs from it by what is known exactly."""
    best = min(range(len(scores)), key=lambda i: float(scores[i]), default=0)
    Hw = (H @ w).double()
    gaps = (Hw - (approximations[best] @ w).double()).square().sum(0)
    squares = gaps - scores[best] if scores else Hw.square().sum(0)
    return _Norms("probes", squares, gaps, w.shape[1])


def _distance(difference: LinearOperator, tolerance: float, seed: int) -> SpectralNorm:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the record's status has it
        return spectral_norm(difference, tolerance=tolerance, seed=seed)


def _entry(
    approximation: _InBasis,
    far: SpectralNorm,
    gap: Tensor,
    squares: Tensor,
    pairs: EigenPairs,
    size: float,
) -> KroneckerApproximation:
    values, vectors = approximation.top(len(pairs))
    error, stderr = _ratio(gap, squares)
    return KroneckerApproximation(
        name=approximation.name,
        spectral_error=_over(far.value, size),
        spectral_residual=_over(far.residual, size),
        frobenius_error=error,
        frobenius_stderr=stderr,
        values=values.cpu(),
        overlaps=eigenspace_overlap(pairs, vectors).overlaps,
    )


def _ratio(above: Tensor, below: Tensor) -> tuple[float, float]:
    """Return √(mean/mean) and its standard error by the delta method; 0 for one exact number."""
    low = float(below.mean())
    square = _over(float(above.mean()), low)
    root = square**0.5
    if above.numel() == 1 or root == 0:
        return root, 0.0
    spread = float((above - square * below).std()) / above.numel() ** 0.5
    return root, spread / (2 * root * low)


def _over(above: float, below: float) -> float:
    return above / below if below > 0 else 0.0


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.T) / 2
