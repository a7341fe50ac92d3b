"""Power and subspace iteration: the simplest eigen-solvers, and a polynomial filter for clusters.

Letters: A the symmetric operator (n × n); v a unit vector; θ = vᵀAv its Rayleigh quotient, sign
included; V (n, b) an orthonormal basis; G = AV. Without the filter both are there for comparison
with the papers, and find the eigenvalues of largest magnitude; `eigsh` needs far fewer products.
"""

import torch
from torch import Tensor

from eigenscape.device import full_precision
from eigenscape.errors import (
    InvalidArgumentError,
    require_choice,
    require_count,
    require_positive,
)
from eigenscape.linalg._chebyshev import LOOK, FilteredIteration, Found
from eigenscape.linalg._products import (
    BATCH,
    InUnits,
    carries_self_test,
    multiply,
    require_symmetric,
)
from eigenscape.linalg.pairs import (
    make_pairs,
    orthonormal,
    require_vectors,
    residual_limits,
    residual_norms,
    ritz,
)
from eigenscape.linalg.probes import draw_probes
from eigenscape.operator import LinearOperator
from eigenscape.records import EigenPairs, ProgressCallback, Ticker

# A two-step movement below this part of the one-step movement means |λ₂/λ₁| above about 0.9 with
# opposite signs: worth another advice than plain slowness.
_SWINGING = 0.1

_SLOW = (
    "The error falls like |λ₂/λ₁| per product: raise `max_products=`, or use `eigsh`, which needs "
    "far fewer products."
)
_MORE = "Raise `max_products=` or `num_extra=`, or use `eigsh`: it needs fewer products."
_FILTER_MORE = "Raise `max_products=`, `degree=` or `num_extra=`."
_OPPOSITE = (
    "The iterates swing between two vectors: the eigenvalues of largest magnitude are near "
    "±{sigma:.4e}, of opposite signs, and power iteration separates them slowly or never. Use "
    "`eigsh`, or `subspace_iteration(num_pairs=2)`."
)


@carries_self_test
@full_precision()
def power_iteration(
    operator: LinearOperator,
    *,
    tolerance: float = 1e-6,
    max_products: int = 1000,
    seed: int = 0,
    start: Tensor | None = None,
    progress: ProgressCallback | None = None,
) -> EigenPairs:
    """Find the eigenpair of largest magnitude by repeated multiplication.

    The value is the Rayleigh quotient vᵀAv, so its sign is right. Convergence is judged by the
    residual ‖Av − θv‖ and never by two successive values, which agree where the iteration merely
    stagnates or swings between λ and −λ.

    Cost: one product per step, about log(1/tolerance)/log|λ₁/λ₂| steps.

    Args:
        operator: Symmetric operator A.
        tolerance: Stop once the residual is at most this fraction of |θ|.
        max_products: Products at most.
        seed: Fixes the start vector.
        start: Start vector (n,) in place of a random one. One that is orthogonal to the wanted
            eigenvector finds another.
        progress: Called after each product.

    Returns:
        One pair. If it did not converge, its status says why, and a `ConvergenceWarning` is issued.

    Raises:
        WrongTypeError: If the operator is none.
        NotSymmetricError: If it is not symmetric.
        ShapeError: If the start does not fit.
        InvalidArgumentError: If a number is out of range.
        NonFiniteError: If a product is NaN or infinite.

    Examples:
        >>> from eigenscape.operator import Dense
        >>> A = Dense(torch.diag(torch.tensor([-4.0, 1.0, 2.0])))
        >>> round(power_iteration(A).values.item(), 4)
        -4.0

    References:
        Papyan, "Traces of class/cross-class structure pervade deep learning spectra", 2020,
        Alg. 5, which prints
        the norm ‖Av‖ in place of the Rayleigh quotient.
    """
    n = require_symmetric(operator, "power_iteration(operator)")
    scaled = InUnits(operator)
    require_positive(tolerance, "power_iteration(tolerance=...)")
    require_count(max_products, "power_iteration(max_products=...)")
    require_count(seed, "power_iteration(seed=...)", at_least=0)
    v = _start(operator, start, 1, seed, n, "power_iteration(start=...)")
    ticker = Ticker(progress, "power iteration", max_products)
    before = v
    advice = _SLOW
    for step in range(1, max_products + 1):
        Av = multiply(scaled, v, "power_iteration")
        theta = (v * Av).sum(0) / (v * v).sum(0)
        size = Av.norm()
        ahead = _rounded(Av / size, operator)
        moves = [(ahead - v).norm(), (ahead + v).norm(), (ahead - before).norm()]
        # All that decides comes to the host in one transfer.
        known = torch.stack([theta[0], residual_norms(theta, v, Av)[0], size, *moves]).cpu()
        ticker.tick(step)
        if bool(known[1] <= residual_limits(known[:1], tolerance, scaled)):
            break
        # Where ±λ balance, two steps lead back to the same vector though one step does not. They
        # part by the ratio of the two movements per step, so below the tolerance none will do.
        sigma, forth, other, back = known[2:].tolist()
        there = min(forth, other)
        if step > 1 and back <= _SWINGING * there:
            advice = _OPPOSITE.format(sigma=sigma * scaled.unit)
            if back <= tolerance * there:
                break
        if step < max_products:
            before, v = v, ahead
    pairs = make_pairs(
        scaled,
        theta,
        v,
        Av,
        which="magnitude",
        tolerance=tolerance,
        num_products=step,
        seed=seed,
        advice=advice,
    )
    pairs.status.warn()
    return pairs


@carries_self_test
@full_precision()
def subspace_iteration(
    operator: LinearOperator,
    *,
    num_pairs: int,
    which: str = "magnitude",
    degree: int = 1,
    num_iterations: int | None = None,
    tolerance: float = 1e-6,
    max_products: int | None = None,
    num_extra: int | None = None,
    seed: int = 0,
    start: Tensor | None = None,
    batch: int = BATCH,
    progress: ProgressCallback | None = None,
) -> EigenPairs:
    """Find eigenpairs by repeated multiplication of a whole basis, with A or a polynomial of it.

    Each iteration multiplies an orthonormal basis and takes the best pairs in its span
    (Rayleigh–Ritz); values keep their signs, and ±λ of equal magnitude are told apart.

    With a `degree` of 2 or more the basis is multiplied by a Chebyshev polynomial of A that damps
    all but the wanted end of the spectrum, and pairs that have converged are multiplied no more. A
    whole block has every copy of a repeated eigenvalue in it, so none is missed near a bulk, where
    `eigsh` may miss some.

    Cost: b = num_pairs + num_extra products per iteration; the error of pair i falls like
    |λ_{b+1}/λ_i| per iteration. With the filter: 16 products to see where the bulk is, then
    b · degree per iteration; the error falls like exp(−degree · 2√gap), the gap from λ_i to λ_{b+1}
    as a fraction of the spectrum.

    Args:
        operator: Symmetric operator A.
        num_pairs: How many pairs.
        which: "magnitude"; with a filter also "largest" or "smallest", by sign.
        degree: Degree of the polynomial: 1 is A itself, 10 to 30 are good filters, the more the
            narrower the gap.
        num_iterations: Run exactly so many iterations, whatever the residuals. None stops at the
            tolerance. Not with a filter.
        tolerance: Residual asked for, as a fraction of |λ|; rounding of the largest is enough.
        max_products: Products at most; 1000 per column if None. Not with `num_iterations`.
        num_extra: Columns carried along beyond `num_pairs`; a few speed convergence up. By default
            none, and with a filter, which needs one, a fourth of `num_pairs` and 4 more.
        seed: Fixes the start.
        start: Start columns (n, q), e.g. vectors of a nearby operator, in place of the first q
            random ones.
        batch: Columns multiplied at a time.
        progress: Called after each iteration.

    Returns:
        The pairs. If a residual is above the tolerance, the status says so, and a
        `ConvergenceWarning` is issued.

    Raises:
        WrongTypeError: If an argument is of another kind.
        NotSymmetricError: If the operator is not symmetric.
        ShapeError: If the start does not fit.
        InvalidArgumentError: If a number is out of range, or arguments exclude each other.
        NonFiniteError: If a product is NaN or infinite.

    Examples:
        >>> from eigenscape.operator import Dense
        >>> A = Dense(torch.diag(torch.tensor([-4.0, 3.0, 1.0, 0.5])))
        >>> [round(value, 4) for value in subspace_iteration(A, num_pairs=2).values.tolist()]
        [-4.0, 3.0]

    References:
        Papyan, "Traces of class/cross-class structure pervade deep learning spectra", 2020, Alg. 5.
        Saad, "Numerical Methods for Large Eigenvalue Problems", 2011, section 5.1.
        Zhou, Saad, Tiago and Chelikowsky, "Self-consistent-field calculations using
        Chebyshev-filtered subspace iteration", 2006.
    """
    n = require_symmetric(operator, "subspace_iteration(operator)")
    require_count(num_pairs, "subspace_iteration(num_pairs=...)", at_most=n)
    require_count(degree, "subspace_iteration(degree=...)")
    require_choice(which, ("magnitude", "largest", "smallest"), "subspace_iteration(which=...)")
    require_count(batch, "subspace_iteration(batch=...)")
    require_positive(tolerance, "subspace_iteration(tolerance=...)")
    require_count(seed, "subspace_iteration(seed=...)", at_least=0)
    if degree == 1 and which != "magnitude":
        raise InvalidArgumentError(
            f"`subspace_iteration(which={which!r})` needs a filter, since powers of A find the "
            'largest magnitudes. Give `degree=20`, or leave `which="magnitude"`.'
        )
    scaled = InUnits(operator)
    b = min(num_pairs + _num_extra(num_extra, num_pairs, degree), n)
    V = _start(operator, start, b, seed, n, "subspace_iteration(start=...)")
    if degree == 1:
        steps = _num_steps(num_iterations, max_products, b)
        ticker = Ticker(progress, "subspace iteration", steps)
        result = _iterate(scaled, V, num_pairs, steps, num_iterations, tolerance, batch, ticker)
    else:
        most = _filter_budget(num_iterations, max_products, b, n)
        filtered = FilteredIteration(
            scaled,
            k=num_pairs,
            b=b,
            degree=degree,
            which=which,
            tolerance=tolerance,
            batch=batch,
            seed=seed,
        )
        result = filtered.run(V, most, Ticker(progress, "subspace iteration", most))
    pairs = make_pairs(
        scaled,
        result.values,
        result.vectors,
        result.products,
        which=which,
        tolerance=tolerance,
        num_products=result.num_products,
        seed=seed,
        advice=_MORE if degree == 1 else _FILTER_MORE,
    )
    pairs.status.warn()
    return pairs


def _iterate(
    operator: LinearOperator,
    V: Tensor,
    k: int,
    steps: int,
    fixed: int | None,
    tolerance: float,
    batch: int,
    ticker: Ticker,
) -> Found:
    """Multiply and turn columns V until the first k pairs have converged, or for `steps` times."""
    for step in range(1, steps + 1):
        G = multiply(operator, V, "subspace_iteration", batch=batch)
        values, X, AX = ritz(V, G, "magnitude")
        ticker.tick(step)
        norms = residual_norms(values[:k], X[:, :k], AX[:, :k])
        ritz_values, residuals = torch.stack([values[:k], norms]).cpu()
        limits = residual_limits(ritz_values, tolerance, operator)
        if fixed is None and bool((residuals <= limits).all()):
            break
        if step < steps:
            # Of the span of G, columns that are nearly orthogonal already.
            V = _rounded(orthonormal(AX), operator)
    return Found(values[:k], X[:, :k], AX[:, :k], step * V.shape[1])


def _num_extra(num_extra: int | None, num_pairs: int, degree: int) -> int:
    if num_extra is None:
        return 0 if degree == 1 else 4 + num_pairs // 4
    # The filter damps all up to the last column, which therefore cannot be a wanted one.
    least = 0 if degree == 1 else 1
    return require_count(num_extra, "subspace_iteration(num_extra=...)", at_least=least)


def _num_steps(num_iterations: int | None, max_products: int | None, b: int) -> int:
    if num_iterations is not None:
        return require_count(num_iterations, "subspace_iteration(num_iterations=...)")
    if max_products is None:
        return 1000
    return require_count(max_products, "subspace_iteration(max_products=...)", at_least=b) // b


def _filter_budget(num_iterations: int | None, max_products: int | None, b: int, n: int) -> int:
    if num_iterations is not None:
        raise InvalidArgumentError(
            "`subspace_iteration(num_iterations=...)` is for `degree=1`: how far a filter gets in "
            "one iteration varies. Give `max_products=`."
        )
    if max_products is None:
        return 1000 * b
    least = min(n, LOOK) + b
    return require_count(max_products, "subspace_iteration(max_products=...)", at_least=least)


def _start(
    operator: LinearOperator, start: Tensor | None, b: int, seed: int, n: int, call: str
) -> Tensor:
    V = draw_probes(operator, b, seed=seed, kind="gaussian")
    if start is not None:
        columns = require_vectors(start, n, call, most=b)
        V[:, : columns.shape[1]] = columns
    return _rounded(orthonormal(V), operator)


def _rounded(V: Tensor, operator: LinearOperator) -> Tensor:
    """Round to the operator's dtype, so that residuals are those of the vectors multiplied."""
    return V.to(operator.dtype).to(torch.float64)
