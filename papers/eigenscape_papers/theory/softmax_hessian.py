"""The mean Hessian of the softmax loss, with respect to the logits, for Gaussian logits.

Letters: z independent Gaussian logits; p = softmax(z); t = e^u > 0; x = t e^z. As
1/(Σ e^z)² = ∫ t exp(−t Σ e^z) dt, the expectation of p_i p_j is one integral over products of
expectations over single logits: E[p_i p_j] = ∫ G_i G_j Π_{k≠i,j} L_k du, E[p_i²] =
∫ K_i Π_{k≠i} L_k du and E[p_i] = ∫ G_i Π_{k≠i} L_k du, where L, G, K are E[e⁻ˣ], E[x e⁻ˣ] and
E[x² e⁻ˣ] over one logit.
"""

import torch
from torch import Tensor

from eigenscape.errors import InvalidArgumentError, ShapeError

# In a strip of half-width π/2 the integrand is analytic: the trapezoidal rule of step h errs by
# exp(−π²/h), below rounding. Gaussian tails are cut at 9 deviations, and left of all logits the
# integral stops where what is left out is e⁻⁴⁰.
_STEP, _TAIL, _LEFT_OUT = 0.25, 9.0, 40.0


def expected_softmax_hessian(means: Tensor, variances: Tensor) -> Tensor:
    """Return E[diag(p) − ppᵀ] for independent Gaussian logits, to rounding.

    It is what Wu Lemma 3 and Thesis Lemma C.2.15 only bound. Cost: a few hundred nodes u times some
    forty nodes z and more, for each class.

    Args:
        means: Of the logits (c,).
        variances: Of the logits (c,), 0 or more.

    Returns:
        The matrix (c, c), float64. Its rows sum to zero.

    Raises:
        ShapeError: If the two are not vectors of one length, at least 2.
        InvalidArgumentError: If they are not finite, or a variance is negative.

    Examples:
        >>> expected_softmax_hessian(torch.zeros(2), torch.zeros(2)).round(decimals=12).tolist()
        [[0.25, -0.25], [-0.25, 0.25]]
    """
    if means.ndim != 1 or means.shape != variances.shape or len(means) < 2:
        raise ShapeError(
            "`expected_softmax_hessian(means, variances)` needs two vectors of one length, 2 or "
            f"more; got {tuple(means.shape)} and {tuple(variances.shape)}."
        )
    m, v = means.double(), variances.double().to(means.device)
    if not bool(m.isfinite().all() & v.isfinite().all() & (v >= 0.0).all()):
        raise InvalidArgumentError(
            "`expected_softmax_hessian(means, variances)` needs finite means and finite variances "
            "of 0 or more; got others."
        )
    s = v.sqrt()
    low = float((-m - _TAIL * s).min()) - _LEFT_OUT
    high = float((-m + _TAIL * s).min()) + 6.0
    u = torch.arange(low, high, _STEP, dtype=m.dtype, device=m.device)
    step = min(0.5, _STEP / max(float(s.max()), 0.5))
    g = torch.arange(-_TAIL, _TAIL + 0.5 * step, step, dtype=m.dtype, device=m.device)
    weights = torch.exp(-0.5 * g.square())
    weights = weights / weights.sum()
    x = torch.exp(u[:, None, None] + m[:, None] + s[:, None] * g)
    L, G, K = (x.pow(power) * torch.exp(-x) @ weights for power in range(3))
    all_but_one = torch.exp(L.log().sum(1, keepdim=True) - L.log())
    G_over_L = G / L
    products = _STEP * (G * all_but_one).T @ G_over_L
    products.diagonal().copy_(_STEP * (K * all_but_one).sum(0))
    return torch.diag(_STEP * (G * all_but_one).sum(0)) - 0.5 * (products + products.T)
