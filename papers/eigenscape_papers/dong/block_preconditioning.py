"""How good is a block-diagonal, Kronecker or diagonal approximation, as such and for optimising?

Letters: H the matrix (n × n), B its approximation, c = ⟨H, B⟩/‖B‖² the scale at which B is nearest
to H, δ the damping, λ the eigenvalues of H + δ, μ those of R (H + δ) R with R = (c|B| + δ)^(-1/2).
|B| has the eigenvectors of B and the sizes of its eigenvalues.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.device import full_precision
from eigenscape.errors import (
    InvalidArgumentError,
    require_count,
    require_positive,
)
from eigenscape.linalg import draw_probes, eigsh, require_symmetric, spectral_density
from eigenscape.operator import LinearOperator, require_operator
from eigenscape.records import Columns, Picture, Record, Status
from eigenscape.structure import jackknife
from eigenscape_papers.dong._pictures import preconditioning_picture
from eigenscape_papers.dong._preconditioners import (
    Approximate,
    Approximation,
    Preconditioned,
    approximate,
)

_MEAN_PROBES = 4


@dataclass(frozen=True, eq=False)
class BlockPreconditioning(Record):
    """What is lost by an approximation, and what is won by preconditioning with it.

    Attributes:
        approximation: What it was.
        error: ‖H − B‖_F / ‖H‖_F.
        error_stderr: Its standard error; 0 where exact.
        scale: c. 1 for diagonal blocks of H itself.
        scaled_error: ‖H − cB‖_F / ‖H‖_F; what counts where B has no scale of its own (Adam).
        scaled_error_stderr: Its standard error; 0 where exact.
        damping: δ.
        relative_damping: δ over the largest |eigenvalue| of H.
        condition_before: max |λ| / min |λ|; NaN if H + δ is indefinite and too large to decompose.
        condition: max |μ| / min |μ|; NaN in the same case.
        effective_before: max |λ| / mean |λ|: how much slower the average direction is than the
            fastest. It does not hang on the single smallest eigenvalue.
        effective: max |μ| / mean |μ|.
        effective_before_stderr: Its standard error; 0 where exact.
        effective_stderr: Its standard error; 0 where exact.
        is_indefinite: Whether H + δ has negative eigenvalues. Its condition number is then that of
            sizes, and one eigenvalue near 0 by chance decides it: take a Gauss-Newton matrix, or
            look at `effective`.
        is_exact: Whether all is from dense matrices.
    """

    approximation: str
    error: float
    error_stderr: float
    scale: float
    scaled_error: float
    scaled_error_stderr: float
    damping: float
    relative_damping: float
    condition_before: float
    condition: float
    effective_before: float
    effective: float
    effective_before_stderr: float
    effective_stderr: float
    is_indefinite: bool
    is_exact: bool

    def columns(self) -> Columns:
        """Return one row for each number."""
        return {
            "number": ["error", "error at best scale", "condition", "effective condition"],
            "before": [math.nan, math.nan, self.condition_before, self.effective_before],
            "with it": [self.error, self.scaled_error, self.condition, self.effective],
            "stderr": [self.error_stderr, self.scaled_error_stderr, 0.0, self.effective_stderr],
        }

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (preconditioning_picture(self),)


@full_precision()
def block_preconditioning(
    operator: LinearOperator,
    approximation: Approximation,
    *,
    damping: float = 1e-3,
    num_probes: int = 16,
    num_steps: int = 48,
    tolerance: float = 1e-3,
    dense_limit: int = 2048,
    seed: int = 0,
) -> BlockPreconditioning:
    """Measure the error of an approximation, and the condition number it leaves.

    Both H and the preconditioner are damped by the same δ. Where the approximation says nothing
    about an entry, the preconditioner is δ there.

    Cost: n products up to `dense_limit` entries, and then all is exact. Beyond, `num_probes` for
    the errors, about 2 · (`num_steps · 4` + 100) for the spectra, and for a partition the sum of
    its sizes. Memory: the squares of the sizes of blocks.

    Args:
        operator: Symmetric operator H.
        approximation: A partition, for the diagonal blocks of H itself; a diagonal (n,), such as
            `adam_diagonal(...)` or `diagonal(...).values`; a `KroneckerHessian` or any other
            operator on some tensors of the same space, or a list of them for different tensors.
        damping: δ as a fraction of the largest |eigenvalue| of H.
        num_probes: Probes for the errors, where they are estimated; 2 or more.
        num_steps: Lanczos steps for the mean |eigenvalue|, where it is estimated from 4 probes.
        tolerance: Bound on the extreme eigenvalues' residuals, where they are found by iteration.
        dense_limit: Largest matrix, and largest block, that is decomposed.
        seed: Fixes the probes.

    Returns:
        Errors and condition numbers. Not converged if the approximation has no positive overlap
        with H (its scale is then taken as 1), or eigenvalues did not converge.

    Raises:
        NotSymmetricError: If the operator is not symmetric.
        InvalidArgumentError: If it is zero.
        EigenscapeError: One of its other kinds, for approximations that do not fit.

    Examples:
        The diagonal of a diagonal matrix loses nothing and leaves nothing to do.

        >>> from eigenscape.operator import Dense
        >>> d = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
        >>> found = block_preconditioning(Dense(torch.diag(d)), d, damping=1e-12)
        >>> round(found.error, 6), round(found.condition_before, 6), round(found.condition, 6)
        (0.0, 100.0, 1.0)
    """
    require_operator(operator, "block_preconditioning(operator)")
    require_symmetric(operator, "block_preconditioning(operator)")
    require_positive(damping, "block_preconditioning(damping=...)")
    require_count(num_probes, "block_preconditioning(num_probes=...)", at_least=2)
    require_count(num_steps, "block_preconditioning(num_steps=...)", at_least=2)
    n = operator.space.size
    dense = operator.to_dense().double() if n <= dense_limit else None
    B, spent = approximate(operator, approximation, dense, dense_limit)
    (error, scaled_error, scale), spread = _errors(operator, B, dense, num_probes, seed)
    largest, cost = _largest(operator, dense, tolerance, seed)
    delta = damping * largest
    look = _Look(num_steps, tolerance, seed)
    shifted = None if dense is None else dense + delta * torch.eye(n).to(dense)
    before = look.at(operator.shift(delta), shifted)
    conditioned = Preconditioned(operator, B, scale if scale > 0 else 1.0, delta)
    if shifted is not None:  # R (H + δ) R, by its columns and then by its rows
        shifted = conditioned.root(conditioned.root(shifted).T)
    after = look.at(conditioned, shifted)
    spent += n if dense is not None else num_probes + cost + before.cost + after.cost
    return BlockPreconditioning(
        status=_status(scale, before, after),
        num_products=spent,
        seed=seed,
        approximation=B.what,
        error=error,
        error_stderr=spread[0],
        scale=scale,
        scaled_error=scaled_error,
        scaled_error_stderr=spread[1],
        damping=delta,
        relative_damping=damping,
        condition_before=before.condition,
        condition=after.condition,
        effective_before=before.effective,
        effective=after.effective,
        effective_before_stderr=before.effective_stderr,
        effective_stderr=after.effective_stderr,
        is_indefinite=before.is_indefinite,
        is_exact=dense is not None,
    )


def _errors(
    operator: LinearOperator, B: Approximate, dense: Tensor | None, num_probes: int, seed: int
) -> tuple[tuple[float, float, float], tuple[float, float]]:
    """Return error, error at the best scale and that scale, and standard errors of the first two.

    ‖H‖², ⟨H, B⟩ and ‖B‖² come from the same probes: what chance adds to one, it adds to all.
    """
    if dense is not None:
        Y, Z = dense, torch.eye(len(dense)).to(dense)
    else:
        Z = draw_probes(operator, num_probes, seed=seed)
        Y = (operator @ Z).double()
    X = B.matmat(Z).double()
    sums = torch.stack([(P * Q).sum(0) for P, Q in ((Y, Y), (Y, X), (X, X), (Y - X, Y - X))])
    nearness = _nearness(sums.sum(1))
    values = float(nearness[0]), float(nearness[1]), float(nearness[2])
    if dense is not None:
        return values, (0.0, 0.0)
    left_out = [_nearness(sums.sum(1) - sums[:, k]) for k in range(num_probes)]
    first, second, _ = jackknife(torch.stack(left_out)).tolist()
    return values, (first, second)


def _nearness(sums: Tensor) -> Tensor:
    """Return error, error at the best scale, and that scale, from ‖H‖², ⟨H, B⟩, ‖B‖², ‖H − B‖²."""
    hh, hb, bb, dd = sums
    scale = hb / bb if bb > 0 else torch.zeros_like(hb)
    # Both are ‖H − cB‖²; the one with the smaller terms loses fewer digits.
    scaled_gap = dd - (1 - scale).square() * bb if dd < hh else hh - scale * hb
    return torch.stack([(dd / hh).sqrt(), (scaled_gap / hh).clamp_min(0.0).sqrt(), scale])


def _largest(
    operator: LinearOperator, dense: Tensor | None, tolerance: float, seed: int
) -> tuple[float, int]:
    """Return the largest |eigenvalue| of H, and the products that it took."""
    if dense is not None:
        largest, cost = float(torch.linalg.eigvalsh(dense).abs().max()), 0
    else:
        pairs = eigsh(operator, num_pairs=1, which="magnitude", tolerance=tolerance, seed=seed)
        largest, cost = abs(float(pairs.values[0])), pairs.num_products
    if not largest > 0:
        raise InvalidArgumentError(
            "`block_preconditioning(operator)` needs an operator other than zero; got one whose "
            "largest eigenvalue is 0."
        )
    return largest, cost


@dataclass(frozen=True)
class _Condition:
    condition: float
    effective: float
    effective_stderr: float
    is_indefinite: bool
    converged: bool
    cost: int


@dataclass(frozen=True)
class _Look:
    """How to find condition numbers: from all eigenvalues, or from the ends and a density."""

    num_steps: int
    tolerance: float
    seed: int

    def at(self, operator: LinearOperator, dense: Tensor | None) -> _Condition:
        if dense is not None:
            values = torch.linalg.eigvalsh((dense + dense.T) / 2)
            sizes = values.abs()
            largest, smallest = float(sizes.max()), float(sizes.min())
            condition = largest / smallest if smallest > 0 else math.inf
            return _Condition(
                condition, largest / float(sizes.mean()), 0.0, float(values.min()) < 0, True, 0
            )
        ends = eigsh(operator, num_pairs=1, which="both", tolerance=self.tolerance, seed=self.seed)
        high, low = ends.values.tolist()
        largest = max(abs(high), abs(low))
        density = spectral_density(
            operator,
            num_steps=min(self.num_steps, operator.space.size),
            num_probes=_MEAN_PROBES,
            seed=self.seed + 1,
        )
        means = (density.weights * density.nodes.abs()).sum(1)
        mean, stderr = float(means.mean()), float(means.std()) / math.sqrt(_MEAN_PROBES)
        return _Condition(
            condition=largest / low if low > 0 else math.nan,
            effective=largest / mean,
            effective_stderr=largest * stderr / mean**2,
            is_indefinite=low < 0,
            converged=bool(ends.status),
            cost=ends.num_products + density.num_products,
        )


def _status(scale: float, before: _Condition, after: _Condition) -> Status:
    if not scale > 0:
        return Status(
            False,
            f"⟨H, B⟩/‖B‖² = {scale:.2e} is not positive: the approximation does not resemble the "
            "matrix. It was used at scale 1; read no condition number from it.",
        ).warn()
    if not (before.converged and after.converged):
        return Status(
            False, "An extreme eigenvalue did not converge. Raise `tolerance` or `damping`."
        )
    if before.is_indefinite:
        return Status(True, "The damped matrix is indefinite: compare effective condition numbers.")
    return Status(True, "The damped matrix is positive definite.")
