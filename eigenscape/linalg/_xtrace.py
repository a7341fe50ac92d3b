"""The mathematics of XTrace: leave-one-out estimates of a trace, and how far they move together.

Letters: A the operator (n × n); Ω (n, m) probes ω_i, of any spherical distribution; Y = AΩ;
Q (n, r) an orthonormal basis of range(Y); G = AQ; T = QᵀAQ; R = QᵀY = diag(σ)Vᵀ in a basis turned
so that R has orthogonal rows; s_i the unit vector in R^r that the columns of R other than i do not
reach; P_i = Q(I − s_i s_iᵀ)Qᵀ the projector on the range of the other columns of Y.

Each probe in turn gives Hutchinson's estimate of what the others' projector leaves:

    t_i = tr(P_i A) + (n − rank P_i) · z_iᵀ A z_i / z_iᵀ z_i,   z_i = (I − P_i) ω_i,

is unbiased given all the other probes, because z_i/‖z_i‖ is uniform on a sphere that only they fix.
The estimate is the mean of the t_i.

The t_i are not independent, and their spread alone understates the error (in variance by a third
to a half where the spectrum decays). Let t_i^(j) be t_i without probe j. It does not see ω_j, and
t_j has mean tr A given all but ω_j, so E[(t_i^(j) − tr A)(t_j − tr A)] = 0. Nor does t_j^(i) see
ω_i, and t_i − t_i^(j) has mean 0 given all but ω_i, so E[(t_i − t_i^(j))(t_j^(i) − tr A)] = 0. What
is left is

    Cov(t_i, t_j) = E[(t_i − t_i^(j)) (t_j − t_j^(i))],

exactly, and

    Var(mean) = Var(t_i)/m + (1 − 1/m) Cov(t_i, t_j).

Given the other probes t_i varies as a Hutchinson sample does in the d = n − rank P_i dimensions
that they leave, so Var(t_i) = 2 E‖(I − P_i) A z_i − (z_iᵀAz_i/d) z_i‖² for z_i of length √d: each
probe shows it by n entries, where the spread of few t_i would be a guess. Both terms are estimated
from numbers that are already there: no product is spent on the error.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.linalg._few_samples import widening

# A probe is essential to the range if its leverage in R is 1. Where m > rank, none is, and
# leverages fall below 1 by far more than this.
_LEVERAGE_GAP = 1e-8


@dataclass(frozen=True)
class LeaveOneOut:
    """What the leave-one-out estimates are made of, in the turned basis.

    Attributes:
        estimates: t_i (m,).
        traces: tr(P_i A) (m,).
        squares: z_iᵀ A z_i (m,).
        lengths: z_iᵀ z_i (m,).
        variances: Of each t_i, given the other probes (m,).
        missing: s_i as columns (r, m), zero for a probe that the others can replace.
    """

    estimates: Tensor
    traces: Tensor
    squares: Tensor
    lengths: Tensor
    variances: Tensor
    missing: Tensor


def new_directions(Q: Tensor, Y: Tensor, floor: float) -> Tensor:
    """Return an orthonormal basis of what Y (n, k) adds to the range of Q (n, r).

    Args:
        Q: Orthonormal columns so far; may have none.
        Y: New columns, float64.
        floor: Directions shorter than this are rounding and are left out.

    Returns:
        Orthonormal columns (n, ≤ k), orthogonal to Q to rounding.
    """
    for _ in range(2):  # One pass leaves what the subtraction cancelled; the second removes it.
        Y = Y - Q @ (Q.T @ Y)
    basis, triangle = torch.linalg.qr(Y)
    U, lengths, _ = torch.linalg.svd(triangle)
    fresh: Tensor = basis @ U[:, lengths > floor]
    fresh = fresh - Q @ (Q.T @ fresh)
    if fresh.shape[1] > 0:
        fresh, _ = torch.linalg.qr(fresh)
    return fresh


def xtrace_from_products(Omega: Tensor, Y: Tensor, Q: Tensor, G: Tensor) -> tuple[float, float]:
    """Return XTrace's estimate and its standard error. Cost: no product; O(n m² + m⁴) arithmetic.

    Args:
        Omega: Probes (n, m), m ≥ 3, each uniform on a sphere or Gaussian.
        Y: A Ω.
        Q: Orthonormal basis of range(Y) (n, r).
        G: A Q.

    Returns:
        The estimate and its standard error.
    """
    n, m = Omega.shape
    U, sigma, Vh = torch.linalg.svd(Q.T @ Y, full_matrices=False)
    # In the turned basis s_i has entries V_ik/σ_k, so its small entries keep their relative
    # accuracy; t_i^(j) divides by them where the spectrum falls steeply.
    Q, G = Q @ U, G @ U
    one = _leave_one_out(Omega, Y, Q, G, Vh / sigma[:, None], Vh)
    mean_variance = float(one.variances.mean())
    shared = _covariance(one, Q.T @ G, Q.T @ Omega, _cross(Omega, Y, Q, G, one), n)
    # The covariance is estimated without bias and may come out of its range by chance. Cut to it at
    # 0, the standard error errs on the large side.
    variance = mean_variance / m + (1 - 1 / m) * min(max(shared, 0.0), mean_variance)
    return float(one.estimates.mean()), float(widening(m)) * math.sqrt(variance)


def _leave_one_out(
    Omega: Tensor, Y: Tensor, Q: Tensor, G: Tensor, unreached: Tensor, Vh: Tensor
) -> LeaveOneOut:
    n, r = Q.shape
    T = Q.T @ G
    essential = Vh.square().sum(0) > 1 - _LEVERAGE_GAP
    S = torch.where(essential, unreached / unreached.norm(dim=0).clamp_min(1e-300), 0.0)
    traces = T.trace() - (S * (T @ S)).sum(0)
    Z, AZ = _remainders(Omega, Y, Q, G, S)
    squares, lengths = (Z * AZ).sum(0), (Z * Z).sum(0)
    left = n - r + essential
    estimates = traces + left * squares / lengths
    inside = Q.T @ AZ
    outside = AZ - Q @ (inside - S * (S * inside).sum(0)) - Z * (squares / lengths)
    variances = 2.0 * left * outside.square().sum(0) / lengths
    return LeaveOneOut(estimates, traces, squares, lengths, variances, S)


def _remainders(Omega: Tensor, Y: Tensor, Q: Tensor, G: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Return z_i and A z_i as columns."""
    W = Q.T @ Omega
    inside = W - S * (S * W).sum(0)
    return Omega - Q @ inside, Y - G @ inside


def _cross(Omega: Tensor, Y: Tensor, Q: Tensor, G: Tensor, one: LeaveOneOut) -> Tensor:
    """Return Qᵀ(A + Aᵀ) z_i as columns (r, m)."""
    Z, AZ = _remainders(Omega, Y, Q, G, one.missing)
    return Q.T @ AZ + G.T @ Z


def _covariance(one: LeaveOneOut, T: Tensor, W: Tensor, cross: Tensor, n: int) -> float:
    """Return the mean over pairs of (t_i − t_i^(j)) (t_j − t_j^(i))."""
    S = one.missing
    r, m = S.shape
    essential = S.square().sum(0) > 0.5
    change = S.new_zeros(m, m)
    for i in range(m):
        if not bool(essential[i]):
            continue  # Then A has rank r to rounding, and t_i is exact whatever j does.
        # Without probe j too, the direction b_j of s_j beside s_i leaves the projector.
        B = S - torch.outer(S[:, i], S[:, i] @ S)
        B = B - torch.outer(S[:, i], S[:, i] @ B)
        B = B / B.norm(dim=0).clamp_min(1e-300)
        moved = W[:, i] @ B
        bTb = (B * (T @ B)).sum(0)
        squares = one.squares[i] + moved * (cross[:, i] @ B) + moved.square() * bTb
        lengths = one.lengths[i] + moved.square()
        without = one.traces[i] - bTb + (n - r + 2) * squares / lengths
        change[i] = torch.where(essential, one.estimates[i] - without, 0.0)
    change.fill_diagonal_(0.0)
    return float((change * change.T).sum()) / (m * (m - 1))
