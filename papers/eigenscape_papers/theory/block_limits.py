"""Sizes of the Hessian's blocks of random networks as N, d → ∞ (Dong, Theorems 1 and 2).

Letters: N samples of d inputs x ~ N(0, I), γ = d/N; m hidden units with z ~ N(0, I_m) in the limit
and s = relu(z); C classes; W (m, d) with entries of variance 1/d and V (C, m) of variance 1/m, for
the linear model V (C, d) of variance 1/d; p the softmax; η a block's weight, so that the block is
(1/N) Σ η_n x_n x_nᵀ; I(c) = E[exp(c z₁z₂); z₁, z₂ > 0].

Every number here is a *squared* Frobenius norm: divided by d for blocks of inputs (d, d), as in
Dong (62), (63), (27), (28), where (22) and (23) print norms; and as it is for output blocks (m, m).

The second moment of a block's limiting law is γ E[η²] + E[η]². For one hidden layer η depends on V
too, and what is averaged over V is γ E[η² | V] + E[η | V]²: Dong (92) has E[η]² in place of
E[E[η | V]²], and so loses a part of h_ij that does not vanish. I(c) has the closed form
(¼ + arcsin(c)/2π) / √(1 − c²), and the integrals of (67) are its derivatives; the factor 1/8π in
b₁ and b₂ must be 1/2π, as (108) has it.

Reference: Dong, Zhang, Yao, Sun, "Towards Quantifying the Hessian Structure of Neural Networks".
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eigenscape.errors import (
    InvalidArgumentError,
    ShapeError,
    require_choice,
    require_count,
    require_positive,
)
from eigenscape.records import Record, Status
from eigenscape_papers.theory.marchenko_pastur import SpectralLaw, spectral_law

_LOSSES = ("cross-entropy", "squared-error")
# In a strip of half-width π/2 the integrands are analytic: the trapezoidal rule of step h errs by
# exp(−π²/h), below rounding. Weights e^(4z) move the Gaussian by 4, so its tail is cut at 9 + 4.
_STEP, _TAIL, _LEFT_OUT = 0.25, 13.0, 40.0


@dataclass(frozen=True, eq=False)
class BlockLimits(Record):
    """Limits of the squared norms of diagonal and off-diagonal blocks.

    Attributes:
        diagonal: Limit for a block (i, i), times C^diagonal_power.
        off_diagonal: Limit for a block (i, j), i ≠ j, times C^off_diagonal_power.
        diagonal_stderr: Standard error; 0 for closed forms and quadrature.
        off_diagonal_stderr: Likewise.
        diagonal_power: Power of C by which a limit C → ∞ was scaled; 0 for finite C.
        off_diagonal_power: Likewise.
        num_draws: Draws of V behind an estimate; 0 for closed forms and quadrature.
    """

    diagonal: float
    off_diagonal: float
    diagonal_stderr: float
    off_diagonal_stderr: float
    diagonal_power: int
    off_diagonal_power: int
    num_draws: int


def linear_block_limits(gamma: float, num_classes: int) -> BlockLimits:
    """Return g_ii and g_ij: lim ‖block‖²_F / d of a linear model with cross-entropy.

    Dong (62), (63), which (22) and (23) print without the square. The expectations over C Gaussian
    logits are single integrals, good to rounding for every C.

    Args:
        gamma: d/N.
        num_classes: C, 2 or more.

    Returns:
        The limits, without standard errors.

    Raises:
        WrongTypeError: If an argument is not a number.
        InvalidArgumentError: If one is out of range.

    Examples:
        Two classes have p₁(1 − p₁) = p₁p₂.

        >>> limits = linear_block_limits(0.5, 2)
        >>> abs(limits.diagonal - limits.off_diagonal) < 1e-12
        True
    """
    gamma = require_positive(gamma, "linear_block_limits(gamma=...)")
    C = require_count(num_classes, "linear_block_limits(num_classes=...)", at_least=2)
    first = _softmax_moment(1, 0, C) - _softmax_moment(2, 0, C)
    second = _softmax_moment(2, 0, C) - 2 * _softmax_moment(3, 0, C) + _softmax_moment(4, 0, C)
    return _exact(
        gamma * second + first**2,
        gamma * _softmax_moment(2, 2, C) + _softmax_moment(1, 1, C) ** 2,
    )


def linear_class_limits(gamma: float) -> BlockLimits:
    """Return lim C² g_ii = γe + 1 and lim C⁴ g_ij = γe² + 1 as C → ∞, Dong (24), (25).

    Args:
        gamma: d/N.

    Returns:
        The limits, of squared norms over d, with their powers of C.

    Raises:
        WrongTypeError: If gamma is not a number.
        InvalidArgumentError: If it is not above 0.

    Examples:
        >>> round(linear_class_limits(1.0).diagonal, 6)
        3.718282
    """
    gamma = require_positive(gamma, "linear_class_limits(gamma=...)")
    return _exact(gamma * math.e + 1.0, gamma * math.e**2 + 1.0, powers=(2, 4))


def hidden_block_limits(
    gamma: float,
    num_classes: int,
    num_units: int,
    *,
    loss: str = "cross-entropy",
    num_draws: int = 1000,
    num_samples: int = 64,
    seed: int = 0,
) -> BlockLimits:
    """Return h_ii, h_ij or u_ii, u_ij: lim E ‖block‖²_F / d over rows of W, one hidden layer.

    Cross-entropy: Dong (91), (92) with E[η | V]² inside the mean over V. Each draw of V gives an
    unbiased estimate from `num_samples` draws of z, averaged over all units and pairs. Squared
    errors: Dong (28) in closed form, u_ii = C(C + 2)(1 + 2γ)/4m² and u_ij = C(1 + 4γ)/16m². They
    are those of ½‖z − y‖², and of the Hessian (8) that Dong prints; that of Dong's loss ‖z − y‖²
    is twice as large, and its squared norms are four times these.

    Cost: for cross-entropy, `num_draws` · `num_samples` · C · m² operations.

    Args:
        gamma: d/N.
        num_classes: C, 1 or more.
        num_units: m, 2 or more.
        loss: "cross-entropy" or "squared-error".
        num_draws: Draws of V.
        num_samples: Draws of z for each V.
        seed: Fixes them.

    Returns:
        The limits, with standard errors for cross-entropy.

    Raises:
        WrongTypeError: If an argument is not a number.
        InvalidArgumentError: If one is out of range.
        UnknownNameError: If there is no such loss.

    Examples:
        >>> hidden_block_limits(0.5, 2, 2, loss="squared-error").diagonal
        1.0
    """
    call = "hidden_block_limits"
    gamma = require_positive(gamma, f"{call}(gamma=...)")
    C = require_count(num_classes, f"{call}(num_classes=...)")
    m = require_count(num_units, f"{call}(num_units=...)", at_least=2)
    if require_choice(loss, _LOSSES, f"{call}(loss=...)") == "squared-error":
        return _exact(
            C * (C + 2) * (1.0 + 2.0 * gamma) / (4.0 * m * m),
            C * (1.0 + 4.0 * gamma) / (16.0 * m * m),
        )

    def squares(V: Tensor, z: Tensor) -> tuple[float, float]:
        eta = _hidden_weights(V, z)
        both = gamma * eta.square().mean(0) + _square_of_mean(eta)
        return _mean_of_blocks(both)

    return _estimate(call, squares, C, m, num_draws, num_samples, seed)


def hidden_class_limits(
    gamma: float, num_units: int, *, loss: str = "cross-entropy"
) -> BlockLimits:
    """Return the limits of h_ii, C h_ij, or of u_ii/C², u_ij/C, as C → ∞ (squared norms over d).

    h_ii → (1 + 2γ)/4m². C h_ij → γ A + B, where A is what Dong (30) prints and
    B = (I'(1/m)/m² + I(1/m)/m)² (¾ + I(1/m))^(m−2) the limit of C E[E[η | V]²], which (92) leaves
    out. Squared errors: Dong (31).

    Args:
        gamma: d/N.
        num_units: m, 3 or more: A is infinite for 2.
        loss: "cross-entropy" or "squared-error".

    Returns:
        The limits, with their powers of C.

    Raises:
        WrongTypeError: If an argument is not a number.
        InvalidArgumentError: If one is out of range.
        UnknownNameError: If there is no such loss.

    Examples:
        >>> round(hidden_class_limits(0.5, 8).diagonal, 9)
        0.0078125
    """
    gamma = require_positive(gamma, "hidden_class_limits(gamma=...)")
    m = require_count(num_units, "hidden_class_limits(num_units=...)", at_least=3)
    diagonal = (1.0 + 2.0 * gamma) / (4.0 * m * m)
    if require_choice(loss, _LOSSES, "hidden_class_limits(loss=...)") == "squared-error":
        return _exact(diagonal, (1.0 + 4.0 * gamma) / (16.0 * m * m), powers=(-2, -1))
    of_samples = (m - 1) ** 2 / (4 * m * (m - 2) ** 3)
    of_samples *= (0.5 * math.sqrt(m / (m - 2)) + 0.5) ** (m - 2)
    value, slope, _ = _quadrant(1.0 / m)
    of_weights = (slope / m**2 + value / m) ** 2 * (0.75 + value) ** (m - 2)
    return _exact(diagonal, gamma * of_samples + of_weights, powers=(0, 1))


def output_block_limits(
    num_classes: int,
    num_units: int,
    *,
    num_draws: int = 1000,
    num_samples: int = 64,
    seed: int = 0,
) -> BlockLimits:
    """Return q_ii and q_ij: lim E ‖block‖²_F over rows of V, one hidden layer, cross-entropy.

    Dong (103), (104) with (107): the mean over V of ‖E[w ssᵀ | V]‖² with w = p_i(1 − p_i) or p_i
    p_j, estimated without bias from pairs of samples. It does not depend on γ: m stays fixed.

    Cost: `num_draws` · `num_samples`² · C operations.

    Args:
        num_classes: C, 2 or more.
        num_units: m.
        num_draws: Draws of V.
        num_samples: Draws of z for each V.
        seed: Fixes them.

    Returns:
        The limits of the squared norms (not over d), with standard errors.

    Raises:
        WrongTypeError: If an argument is not an integer.
        InvalidArgumentError: If one is out of range.

    Examples:
        Two classes have p₁(1 − p₁) = p₁p₂.

        >>> limits = output_block_limits(2, 3, num_draws=5)
        >>> abs(limits.diagonal - limits.off_diagonal) < 1e-12
        True
    """
    call = "output_block_limits"
    C = require_count(num_classes, f"{call}(num_classes=...)", at_least=2)
    m = require_count(num_units, f"{call}(num_units=...)")

    def squares(V: Tensor, z: Tensor) -> tuple[float, float]:
        s = z.relu()
        p = (s @ V.T).softmax(1)
        kernel = (s @ s.T).square()
        kernel.fill_diagonal_(0.0)
        pairs = len(z) * (len(z) - 1) * C
        same, other = p * (1.0 - p), p * p.roll(1, 1)
        diagonal, off = (float((w * (kernel @ w)).sum()) / pairs for w in (same, other))
        return diagonal, off

    return _estimate(call, squares, C, m, num_draws, num_samples, seed)


def output_class_limits(num_units: int) -> BlockLimits:
    """Return lim C² q_ii and lim C⁴ q_ij as C → ∞, Dong (32) and (33) corrected.

    Both are m a₂ b^(m−1) + m(m − 1) a₁² b^(m−2) with a₁ = I'(c), a₂ = I''(c), b = ¾ + I(c), at
    c = 1/m and c = 2/m. (33) prints b^(m−1) in its last term where its proof has b^(m−2), and (67)
    has ¾ + I/4 in place of b.

    Args:
        num_units: m, 3 or more: for 2, the second one is infinite.

    Returns:
        The limits of the squared norms (not over d), with their powers of C.

    Raises:
        WrongTypeError: If num_units is not an integer.
        InvalidArgumentError: If it is below 3.

    Examples:
        For wide layers lim C² q_ii / m² is e^(1/2π) / 4π².

        >>> limits = output_class_limits(10**6)
        >>> round(limits.diagonal / 1e12 * 4 * math.pi**2 / math.exp(1 / (2 * math.pi)), 4)
        1.0
    """
    m = require_count(num_units, "output_class_limits(num_units=...)", at_least=3)
    limits = []
    for c in (1.0 / m, 2.0 / m):
        value, slope, curvature = _quadrant(c)
        b = 0.75 + value
        limits.append(m * curvature * b ** (m - 1) + m * (m - 1) * slope**2 * b ** (m - 2))
    return _exact(limits[0], limits[1], powers=(2, 4))


def block_law(
    *,
    gamma: float,
    num_classes: int | None = None,
    output: Tensor | None = None,
    rows: tuple[int, int] = (0, 0),
    num_points: int = 256,
    num_samples: int = 2048,
    seed: int = 0,
) -> SpectralLaw:
    """Return the limiting eigenvalues of one block of a cross-entropy Hessian, Dong (55), (81).

    Without `output` it is the block of two rows of a linear model, with weights p_i(1 − p_i), or
    −p_i p_j: Dong (56) has the sign of neither (5) nor (15), and so the law of the negative. With
    `output` it is the block of two hidden units, given V, with weights that may have both signs.
    The weights' law is a sample of `num_samples`.

    Args:
        gamma: d/N.
        num_classes: C, for the linear model.
        output: V (C, m), for one hidden layer.
        rows: The block's two rows, of V for the linear model and of W else.
        num_points: Points of the density's grid.
        num_samples: Draws of the weights.
        seed: Fixes them.

    Returns:
        The law.

    Raises:
        InvalidArgumentError: If both or none of `num_classes` and `output` are passed, or a number
            is out of range.
        ShapeError: If `output` is no matrix.
        WrongTypeError: If an argument is not a number.

    Examples:
        Two classes have p₁(1 − p₁) = p₁p₂: the two blocks are each other's negatives.

        >>> options = {"gamma": 0.5, "num_classes": 2, "num_samples": 200}
        >>> laws = [block_law(rows=(0, j), **options) for j in (0, 1)]
        >>> abs(laws[0].upper + laws[1].lower) < 1e-12
        True
    """
    if (num_classes is None) == (output is None):
        raise InvalidArgumentError(
            "`block_law()` needs either `num_classes=` (linear model) or `output=` (one hidden "
            "layer), and not both."
        )
    require_count(num_samples, "block_law(num_samples=...)", at_least=2)
    if output is not None:
        if output.ndim != 2:
            raise ShapeError(
                f"`block_law(output=...)` must be a matrix; got shape {tuple(output.shape)}."
            )
        V = output.detach().double().cpu()
        i, j = _rows(rows, V.shape[1])
        weights = _hidden_weights(V, _normal((num_samples, V.shape[1]), seed))[:, i, j]
    else:
        C = require_count(num_classes, "block_law(num_classes=...)", at_least=2)
        i, j = _rows(rows, C)
        p = _normal((num_samples, C), seed).softmax(1)
        weights = p[:, i] * (1.0 - p[:, i]) if i == j else -p[:, i] * p[:, j]
    return spectral_law(weights, ratio=gamma, num_points=num_points)


def _rows(rows: tuple[int, int], size: int) -> tuple[int, int]:
    i, j = (require_count(row, "block_law(rows=...)", at_least=0, at_most=size - 1) for row in rows)
    return i, j


def _softmax_moment(a: int, b: int, C: int) -> float:
    """Return E[p₁ᵃ p₂ᵇ] for C independent standard Gaussian logits.

    With 1/S^k = ∫ t^(k−1) e^(−tS) dt / Γ(k), k = a + b, t = e^u and x = t e^z, it is the integral
    over u of G_a G_b G_0^(C−2) / Γ(k), where G_k = E[x^k e^(−x)].
    """
    u = torch.arange(-_TAIL - _LEFT_OUT - math.log(C), _TAIL + 6.0, _STEP, dtype=torch.float64)
    g = torch.arange(-_TAIL, _TAIL + 0.5 * _STEP, _STEP, dtype=torch.float64)
    weights = torch.exp(-0.5 * g.square())
    weights = weights / weights.sum()
    x = torch.exp(u[:, None] + g)
    G_0, G_a, G_b = (x.pow(power) * torch.exp(-x) @ weights for power in (0, a, b))
    return _STEP * float((G_a * G_b * G_0.pow(C - 2)).sum()) / math.gamma(a + b)


def _quadrant(c: float) -> tuple[float, float, float]:
    """Return I(c) = E[exp(c z₁z₂); z₁, z₂ > 0] with two derivatives, for |c| < 1."""
    r, angle = 1.0 - c * c, 0.25 + math.asin(c) / (2.0 * math.pi)
    return (
        angle * r**-0.5,
        1.0 / (2.0 * math.pi * r) + c * angle * r**-1.5,
        3.0 * c / (2.0 * math.pi * r**2) + (1.0 + 2.0 * c * c) * angle * r**-2.5,
    )


def _hidden_weights(V: Tensor, z: Tensor) -> Tensor:
    """Return η (n, m, m): covariances of V's columns under p, for pairs of units that are active.

    These are the weights ξ_C and η_C of Dong's Proposition 4.
    """
    m = V.shape[1]
    p = (z.relu() @ V.T).softmax(1)
    mean = p @ V
    products = (p @ (V[:, :, None] * V[:, None, :]).flatten(1)).view(-1, m, m)
    active = (z > 0.0).to(V)
    centred = products - mean[:, :, None] * mean[:, None, :]
    return centred * active[:, :, None] * active[:, None, :]


def _square_of_mean(values: Tensor) -> Tensor:
    """Estimate E[value]² without bias, from the pairs of different samples (first dimension)."""
    n = len(values)
    return (values.sum(0).square() - values.square().sum(0)) / (n * (n - 1))


def _mean_of_blocks(values: Tensor) -> tuple[float, float]:
    """Return the mean of the diagonal of (m, m) and the mean of what is beside it."""
    m, trace = len(values), float(values.diagonal().sum())
    return trace / m, (float(values.sum()) - trace) / (m * (m - 1))


def _estimate(
    call: str,
    squares: Callable[[Tensor, Tensor], tuple[float, float]],
    C: int,
    m: int,
    num_draws: int,
    num_samples: int,
    seed: int,
) -> BlockLimits:
    """Average over draws of V; they are independent, and so is the standard error over them."""
    require_count(num_draws, f"{call}(num_draws=...)", at_least=2)
    require_count(num_samples, f"{call}(num_samples=...)", at_least=2)
    estimates = torch.empty(num_draws, 2, dtype=torch.float64)
    for draw in range(num_draws):
        V = _normal((C, m), seed, 0, draw) / math.sqrt(m)
        estimates[draw] = torch.tensor(
            squares(V, _normal((num_samples, m), seed, 1, draw)), dtype=torch.float64
        )
    error = estimates.std(0) / math.sqrt(num_draws)
    text = f"Estimated from {num_draws} draws of V with {num_samples} samples each."
    return BlockLimits(
        status=Status(True, text),
        num_products=0,
        seed=seed,
        diagonal=float(estimates[:, 0].mean()),
        off_diagonal=float(estimates[:, 1].mean()),
        diagonal_stderr=float(error[0]),
        off_diagonal_stderr=float(error[1]),
        diagonal_power=0,
        off_diagonal_power=0,
        num_draws=num_draws,
    )


def _exact(diagonal: float, off: float, *, powers: tuple[int, int] = (0, 0)) -> BlockLimits:
    status = Status(True, "Computed to rounding.")
    return BlockLimits(status, 0, 0, diagonal, off, 0.0, 0.0, *powers, 0)


def _normal(shape: tuple[int, ...], seed: int, *stream: int) -> Tensor:
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *stream])))
    return torch.from_numpy(generator.standard_normal(shape))
