"""Power and subspace iteration: the simplest eigen-solvers, kept for comparison with the papers.

Letters: A the symmetric operator (n × n); v a unit vector; θ = vᵀAv its Rayleigh quotient, sign
included; V (n, b) an orthonormal basis; G = AV. Both find the eigenvalues of largest magnitude.
For everything else, and far fewer products, use `eigsh`.
"""

import torch
from torch import Tensor

from eigenscape.errors import ShapeError, require_count, require_positive
from eigenscape.linalg._products import BATCH, multiply, require_seed, require_symmetric
from eigenscape.linalg.pairs import (
    make_pairs,
    orthonormal,
    require_vectors,
    residual_limits,
    residual_norms,
    ritz,
)
from eigenscape.linalg.probes import draw_probes
from eigenscape.linear_operator import LinearOperator
from eigenscape.pairs import EigenPairs
from eigenscape.precision import full_precision
from eigenscape.progress import ProgressCallback, Ticker

# A two-step movement below this part of the one-step movement means |λ₂/λ₁| above about 0.9 with
# opposite signs: worth another advice than plain slowness.
_SWINGING = 0.1

_SLOW = (
    "The error falls like |λ₂/λ₁| per product: raise `max_products=`, or use `eigsh`, which needs "
    "far fewer products."
)
_OPPOSITE = (
    "The iterates swing between two vectors: the eigenvalues of largest magnitude are near "
    "±{sigma:.4e}, of opposite signs, and power iteration separates them slowly or never. Use "
    "`eigsh`, or `subspace_iteration(num_pairs=2)`."
)


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
        >>> from eigenscape.operators import Dense
        >>> A = Dense(torch.diag(torch.tensor([-4.0, 1.0, 2.0])))
        >>> round(power_iteration(A).values.item(), 4)
        -4.0

    References:
        Papyan, "Traces of class/cross-class structure pervade deep learning spectra", 2020,
        Alg. 5, which prints
        the norm ‖Av‖ in place of the Rayleigh quotient.
    """
    n = require_symmetric(operator, "power_iteration(operator)")
    require_positive(tolerance, "power_iteration(tolerance=...)")
    require_count(max_products, "power_iteration(max_products=...)")
    require_seed(seed, "power_iteration")
    v = _start(operator, start, 1, seed, n, "power_iteration(start=...)")
    ticker = Ticker(progress, "power iteration", max_products)
    before = v
    advice = _SLOW
    for step in range(1, max_products + 1):
        Av = multiply(operator, v, "power_iteration")
        theta = (v * Av).sum(0) / (v * v).sum(0)
        sigma = float(Av.norm())
        ticker.tick(step)
        if bool(residual_norms(theta, v, Av) <= residual_limits(theta, tolerance, operator)):
            break
        ahead = _rounded(Av / sigma, operator)
        # Where ±λ balance, two steps lead back to the same vector though one step does not. They
        # part by the ratio of the two movements per step, so below the tolerance none will do.
        there = min(float((ahead - v).norm()), float((ahead + v).norm()))
        back = float((ahead - before).norm())
        if step > 1 and back <= _SWINGING * there:
            advice = _OPPOSITE.format(sigma=sigma)
            if back <= tolerance * there:
                break
        if step < max_products:
            before, v = v, ahead
    pairs = make_pairs(
        operator,
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


@full_precision()
def subspace_iteration(
    operator: LinearOperator,
    *,
    num_pairs: int,
    num_iterations: int | None = None,
    tolerance: float = 1e-6,
    max_products: int | None = None,
    num_extra: int = 0,
    seed: int = 0,
    start: Tensor | None = None,
    batch: int = BATCH,
    progress: ProgressCallback | None = None,
) -> EigenPairs:
    """Find the eigenpairs of largest magnitude by repeated multiplication of a whole basis.

    Each iteration multiplies an orthonormal basis and takes the best pairs in its span
    (Rayleigh–Ritz); values keep their signs, and ±λ of equal magnitude are told apart.

    Cost: num_pairs + num_extra products per iteration; the error of pair i falls like
    |λ_{b+1}/λ_i| per iteration, b = num_pairs + num_extra.

    Args:
        operator: Symmetric operator A.
        num_pairs: How many pairs.
        num_iterations: Run exactly so many iterations, whatever the residuals. None stops at the
            tolerance.
        tolerance: Residual asked for, as a fraction of |λ|; rounding of the largest is enough.
        max_products: Products at most; 1000 per column if None. Not with `num_iterations`.
        num_extra: Columns carried along beyond `num_pairs`; a few speed convergence up.
        seed: Fixes the start.
        start: Start columns (n, num_pairs + num_extra) in place of random ones.
        batch: Columns multiplied at a time.
        progress: Called after each iteration.

    Returns:
        The pairs. If a residual is above the tolerance, the status says so, and a
        `ConvergenceWarning` is issued.

    Raises:
        WrongTypeError: If an argument is of another kind.
        NotSymmetricError: If the operator is not symmetric.
        ShapeError: If the start does not fit.
        InvalidArgumentError: If a number is out of range.
        NonFiniteError: If a product is NaN or infinite.

    Examples:
        >>> from eigenscape.operators import Dense
        >>> A = Dense(torch.diag(torch.tensor([-4.0, 3.0, 1.0, 0.5])))
        >>> [round(value, 4) for value in subspace_iteration(A, num_pairs=2).values.tolist()]
        [-4.0, 3.0]

    References:
        Papyan, "Traces of class/cross-class structure pervade deep learning spectra", 2020, Alg. 5.
        Saad, "Numerical Methods for Large Eigenvalue Problems", 2011, section 5.1.
    """
    n = require_symmetric(operator, "subspace_iteration(operator)")
    require_count(num_pairs, "subspace_iteration(num_pairs=...)", at_most=n)
    require_count(num_extra, "subspace_iteration(num_extra=...)", at_least=0)
    require_count(batch, "subspace_iteration(batch=...)")
    require_positive(tolerance, "subspace_iteration(tolerance=...)")
    require_seed(seed, "subspace_iteration")
    b = min(num_pairs + num_extra, n)
    steps = _num_steps(num_iterations, max_products, b)
    V = _start(operator, start, b, seed, n, "subspace_iteration(start=...)")
    ticker = Ticker(progress, "subspace iteration", steps)
    for step in range(1, steps + 1):
        G = multiply(operator, V, "subspace_iteration", batch=batch)
        values, X, AX = (part[..., :num_pairs] for part in ritz(V, G, "magnitude"))
        ticker.tick(step)
        limits = residual_limits(values, tolerance, operator)
        if num_iterations is None and bool((residual_norms(values, X, AX) <= limits).all()):
            break
        if step < steps:
            V = _rounded(orthonormal(G), operator)
    pairs = make_pairs(
        operator,
        values,
        X,
        AX,
        which="magnitude",
        tolerance=tolerance,
        num_products=step * b,
        seed=seed,
        advice="Raise `max_products=` or `num_extra=`, or use `eigsh`: it needs fewer products.",
    )
    pairs.status.warn()
    return pairs


def _num_steps(num_iterations: int | None, max_products: int | None, b: int) -> int:
    if num_iterations is not None:
        return require_count(num_iterations, "subspace_iteration(num_iterations=...)")
    if max_products is None:
        return 1000
    return require_count(max_products, "subspace_iteration(max_products=...)", at_least=b) // b


def _start(
    operator: LinearOperator, start: Tensor | None, b: int, seed: int, n: int, call: str
) -> Tensor:
    if start is None:
        return _rounded(orthonormal(draw_probes(operator, b, seed=seed, kind="gaussian")), operator)
    V = require_vectors(start, n, call)
    if V.shape[1] != b:
        raise ShapeError(f"`{call}` must have {b} columns, one per pair; got {V.shape[1]}.")
    return _rounded(orthonormal(V.to(operator.device)), operator)


def _rounded(V: Tensor, operator: LinearOperator) -> Tensor:
    """Round to the operator's dtype, so that residuals are those of the vectors multiplied."""
    return V.to(operator.dtype).to(torch.float64)
