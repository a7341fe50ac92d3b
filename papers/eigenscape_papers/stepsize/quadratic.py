"""The best step size of gradient descent on a quadratic, in closed form.

Letters as in chapter 5 of the thesis: f(w) = ½ wᵀHw, w_t the point after t steps of size η from w₀;
λ_i eigenvalues, L the largest and α the smallest; c_i the coefficients of w₀ on the eigenvectors,
c_min = min(|c_1|, |c_d|). Meta-objectives: F = f(w_t), or with a logarithm F = (1/t) log f(w_t).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.device import eigh
from eigenscape.errors import (
    InvalidArgumentError,
    ShapeError,
    require_count,
    require_positive,
    require_seed,
)
from eigenscape_papers.stepsize._checks import require_finite, step_sizes_of
from eigenscape_papers.stepsize._measure import first_root, log_factors, over_largest


@dataclass(frozen=True, eq=False)
class Quadratic:
    """A positive definite quadratic and a starting point, on its eigenbasis.

    Attributes:
        eigenvalues: λ (d,), float64, ascending and above 0.
        coefficients: c (d,), float64, not all 0.

    Raises:
        ShapeError: If the two do not fit.
        InvalidArgumentError: If eigenvalues are not positive and ascending, or the start is zero.

    Examples:
        >>> H = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> Quadratic.of(H, torch.tensor([3.0, 4.0])).eigenvalues.tolist()
        [1.0, 2.0]
    """

    eigenvalues: Tensor
    coefficients: Tensor

    def __post_init__(self) -> None:
        """Refuse what is no positive definite quadratic: L and α are read off the ends."""
        lam = require_finite(self.eigenvalues, "Quadratic(eigenvalues)", ndim=1)
        c = require_finite(self.coefficients, "Quadratic(coefficients)", ndim=1)
        if lam.shape != c.shape:
            raise ShapeError(
                f"`Quadratic(eigenvalues, coefficients)` must be of one length; got {len(lam)} and "
                f"{len(c)}."
            )
        if float(lam[0]) <= 0 or bool((lam.diff() < 0).any()):
            raise InvalidArgumentError(
                "`Quadratic(eigenvalues)` must be above 0 and ascending; got "
                f"{float(lam[0]):.3g} first and {float(lam[-1]):.3g} last. Sort them with their "
                "coefficients, as `Quadratic.of(matrix, start)` does; `best_step_size` takes any "
                "symmetric operator."
            )
        if not bool(c.any()):
            raise InvalidArgumentError("`Quadratic(coefficients)` is zero: the start is a minimum.")

    @classmethod
    def of(cls, matrix: Tensor, start: Tensor) -> "Quadratic":
        """Decompose a matrix.

        Args:
            matrix: H (d, d), symmetric positive definite.
            start: w₀ (d,).

        Returns:
            The quadratic.

        Raises:
            ShapeError: If the two do not fit.
            InvalidArgumentError: If H is not symmetric or not positive definite, or w₀ is zero.
        """
        H = require_finite(matrix, "Quadratic.of(matrix)", ndim=2).double()
        w = require_finite(start, "Quadratic.of(start)", ndim=1).double()
        if H.shape != (len(w), len(w)):
            raise ShapeError(
                f"`Quadratic.of` needs H ({len(w)}, {len(w)}) for a start of {len(w)} entries; got "
                f"{tuple(H.shape)}."
            )
        if not torch.allclose(H, H.T, rtol=1e-6, atol=1e-6 * float(H.abs().max())):
            raise InvalidArgumentError("`Quadratic.of(matrix)` must be symmetric.")
        values, vectors = eigh((H + H.T) / 2)
        if float(values[0]) <= 1e-14 * float(values[-1]) or not bool(w.any()):
            raise InvalidArgumentError(
                "`Quadratic.of` needs a positive definite matrix and a start that is not zero; the "
                f"smallest eigenvalue is {float(values[0]):.3g}. `best_step_size` takes any "
                "symmetric operator."
            )
        return cls(values, vectors.T @ w)

    @property
    def smoothness(self) -> float:
        """L."""
        return float(self.eigenvalues[-1])

    @property
    def convexity(self) -> float:
        """The smallest eigenvalue, α."""
        return float(self.eigenvalues[0])

    @property
    def least_share(self) -> float:
        """c_min, of the start scaled to length 1."""
        ends = self.coefficients[[0, -1]].abs().min()
        return float(ends / self.coefficients.norm())


def random_quadratic(dimension: int = 20, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draw the thesis's inner problem: H = XᵀX and w₀, X and w₀ standard normal, in float64.

    Args:
        dimension: d.
        seed: Fixes both.

    Returns:
        H (d, d) and w₀ (d,).

    Raises:
        InvalidArgumentError: If the dimension is below 1.

    Examples:
        >>> H, w = random_quadratic(3)
        >>> H.shape, w.shape, bool((torch.linalg.eigvalsh(H) > 0).all())
        (torch.Size([3, 3]), torch.Size([3]), True)
    """
    d = require_count(dimension, "random_quadratic(dimension)")
    require_seed(seed, "random_quadratic")
    draw = torch.Generator().manual_seed(seed)
    X = torch.randn(d, d, generator=draw, dtype=torch.float64)
    H = X.T @ X
    return (H + H.T) / 2, torch.randn(d, generator=draw, dtype=torch.float64)


def meta_objective(
    quadratic: Quadratic, step_sizes: float | Tensor, *, num_steps: int, log: bool = True
) -> Tensor:
    """Return F(η), f after t steps or its logarithm over t.

    Args:
        quadratic: f and w₀.
        step_sizes: η, one or (k,).
        num_steps: t.
        log: Whether F = (1/t) log f(w_t); this never overflows.

    Returns:
        The values (k,).

    Raises:
        InvalidArgumentError: If a number is out of range.

    Examples:
        >>> q = Quadratic(torch.tensor([1.0, 2.0]).double(), torch.tensor([1.0, 1.0]).double())
        >>> meta_objective(q, 0.5, num_steps=1, log=False).tolist()  # ½(1·¼ + 2·0)
        [0.125]
    """
    t = require_count(num_steps, "meta_objective(num_steps=...)")
    eta = step_sizes_of(step_sizes, "meta_objective(step_sizes)")
    c, lam = quadratic.coefficients, quadratic.eigenvalues
    if log:
        return (_log_terms(quadratic, eta, t).logsumexp(1) - math.log(2)) / t
    return 0.5 * (c.square() * lam * (1 - eta[:, None] * lam) ** (2 * t)).sum(1)


def _log_terms(quadratic: Quadratic, eta: Tensor, t: int) -> Tensor:
    """Return log c²λ(1 − ηλ)^(2t) (k, d)."""
    c, lam = quadratic.coefficients, quadratic.eigenvalues
    return 2 * c.abs().log() + lam.log() + 2 * t * log_factors(lam, eta)


def meta_gradient(
    quadratic: Quadratic, step_sizes: float | Tensor, *, num_steps: int, log: bool = True
) -> Tensor:
    """Return F'(η) in closed form.

    With the logarithm both sums are divided by the largest term of f first, so that nothing
    overflows or vanishes, however many the steps.

    Args:
        quadratic: f and w₀.
        step_sizes: η, one or (k,).
        num_steps: t.
        log: Whether F = (1/t) log f(w_t).

    Returns:
        The slopes (k,).

    Raises:
        InvalidArgumentError: If a number is out of range.

    Examples:
        >>> q = Quadratic(torch.tensor([1.0, 2.0]).double(), torch.tensor([1.0, 1.0]).double())
        >>> meta_gradient(q, 0.5, num_steps=1, log=False).tolist()  # −(1·½ + 4·0)
        [-0.5]
        >>> meta_gradient(q, 0.5, num_steps=1).tolist()  # −2·½ / ¼
        [-4.0]
    """
    t = require_count(num_steps, "meta_gradient(num_steps=...)")
    eta = step_sizes_of(step_sizes, "meta_gradient(step_sizes)")
    c, lam = quadratic.coefficients, quadratic.eigenvalues
    factors = 1 - eta[:, None] * lam
    if not log:
        return -t * (c.square() * lam.square() * factors ** (2 * t - 1)).sum(1)
    terms = over_largest(_log_terms(quadratic, eta, t))
    total = terms.sum(1)
    above = torch.where(terms > 0, lam * terms / factors, 0.0).sum(1)
    return torch.where(total > 0, -2 * above / total, 0.0)  # without terms f is 0, its minimum


def optimal_step_size(quadratic: Quadratic, *, num_steps: int) -> float:
    """Return η*, the only minimum of F, with or without the logarithm.

    It lies in [1/L, 1/α]: at the left end no factor 1 − ηλ is negative, at the right end none is
    positive, and between them the sum rises.

    Args:
        quadratic: f and w₀.
        num_steps: t.

    Returns:
        The step size, to rounding.

    Raises:
        InvalidArgumentError: If `num_steps` is below 1.

    Examples:
        >>> q = Quadratic(torch.tensor([1.0, 3.0]).double(), torch.tensor([3.0, 1.0]).double())
        >>> optimal_step_size(q, num_steps=1)  # 9(1 − η) + 9(1 − 3η) = 0
        0.5
    """
    t = require_count(num_steps, "optimal_step_size(num_steps=...)")
    weights = (quadratic.coefficients * quadratic.eigenvalues).square()
    least, most = 1 / quadratic.smoothness, 1 / quadratic.convexity
    root = first_root(quadratic.eigenvalues, weights / weights.sum(), t)
    return least if root is None else min(max(root, least), most)


def meta_descent(
    quadratic: Quadratic,
    *,
    num_steps: int,
    start: float,
    num_meta_steps: int = 1000,
    rate: float = 0.01,
) -> Tensor:
    """Run projected gradient descent on (1/t) log f(w_t) over η ≥ 0, with meta step rate/√k.

    Theorem 5.3.2 has rate 1, its experiment 1/100. It reaches η* but keeps stepping over it, by
    rate/√k times a slope that changes fast near η*.

    Args:
        quadratic: f and w₀.
        num_steps: t.
        start: η₀.
        num_meta_steps: How many meta steps.
        rate: The meta step size of the first.

    Returns:
        η₀ and all that follow (num_meta_steps + 1,).

    Raises:
        InvalidArgumentError: If a number is out of range.

    Examples:
        >>> q = Quadratic(torch.tensor([1.0, 3.0]).double(), torch.tensor([3.0, 1.0]).double())
        >>> path = meta_descent(q, num_steps=1, start=0.1, num_meta_steps=2000)
        >>> round(float(path[-1]), 3)
        0.5
    """
    call = "meta_descent"
    require_count(num_meta_steps, f"{call}(num_meta_steps=...)")
    rate = require_positive(rate, f"{call}(rate=...)")
    eta = torch.tensor([require_positive(start, f"{call}(start=...)")], dtype=torch.float64)
    path = [eta]
    for k in range(1, num_meta_steps + 1):
        slope = meta_gradient(quadratic, eta, num_steps=num_steps)
        eta = (eta - rate / k**0.5 * slope).clamp_min(0.0)
        path.append(eta)
    return torch.cat(path)


def plain_slope_bounds(
    quadratic: Quadratic, step_sizes: Tensor, *, num_steps: int
) -> tuple[Tensor, Tensor]:
    """Return what Theorem 5.3.1 says of |F'| for F = f(w_t): at least this, at most that.

    Exponentially small below 2/L, exponentially large above.

    Args:
        quadratic: f and w₀; the bounds are for w₀ of its own length.
        step_sizes: η (k,).
        num_steps: t.

    Returns:
        Lower bounds (k,), 0 up to 2/L, and upper bounds (k,), infinite above it.

    Raises:
        InvalidArgumentError: If a number is out of range.

    Examples:
        >>> q = Quadratic(torch.tensor([1.0, 2.0]).double(), torch.tensor([0.6, 0.8]).double())
        >>> low, high = plain_slope_bounds(q, torch.tensor([0.5]).double(), num_steps=2)
        >>> low.tolist(), high.round(decimals=6).tolist()  # 2 · 2² · (½)³
        ([0.0], [1.0])
    """
    t = require_count(num_steps, "plain_slope_bounds(num_steps=...)")
    eta = step_sizes_of(step_sizes, "plain_slope_bounds(step_sizes)")
    L, alpha = quadratic.smoothness, quadratic.convexity
    length = quadratic.coefficients.square().sum()
    worst = torch.maximum((1 - eta * alpha).abs(), (1 - eta * L).abs())
    high = length * t * L**2 * worst ** (2 * t - 1)
    low = t * L**2 * (quadratic.coefficients[-1] ** 2 * (eta * L - 1) ** (2 * t - 1) - length)
    inside = eta < 2 / L
    return torch.where(inside, 0.0, low.clamp_min(0.0)), torch.where(inside, high, torch.inf)


def log_slope_bounds(
    quadratic: Quadratic, *, distance: float, largest: float
) -> tuple[float, float]:
    """Return what Claims D.1.2, D.1.3 say of |F'| for the logarithm: at least this, at most that.

    The upper bound holds for every η ≥ 0, the lower for those up to `largest` that are `distance`
    or more from η*; neither depends on t.

    Args:
        quadratic: f and w₀, with L > α.
        distance: ε, below 1/L.
        largest: M̂, at least 2/α.

    Returns:
        2ε c_min² min(α³/L, 1/M̂²) and 4L³/(c_min² α (L − α)).

    Raises:
        InvalidArgumentError: If a number is out of range, or the theorem does not apply.

    Examples:
        >>> q = Quadratic(torch.tensor([1.0, 2.0]).double(), torch.tensor([1.0, 1.0]).double())
        >>> low, high = log_slope_bounds(q, distance=0.1, largest=2.0)
        >>> round(low, 6), round(high, 6)  # 0.2 · ½ · ¼, 32/(½ · 1 · 1)
        (0.025, 64.0)
    """
    call = "log_slope_bounds"
    L, alpha, c = quadratic.smoothness, quadratic.convexity, quadratic.least_share
    epsilon = require_positive(distance, f"{call}(distance=...)")
    most = require_positive(largest, f"{call}(largest=...)")
    if epsilon >= 1 / L or most < 2 / alpha:
        raise InvalidArgumentError(
            f"`{call}` needs `distance` below 1/L = {1 / L:.4g} and `largest` of at least 2/α = "
            f"{2 / alpha:.4g}; got {epsilon:g} and {most:g}."
        )
    if alpha >= L or c == 0:
        raise InvalidArgumentError(
            f"`{call}` needs two different eigenvalues and a start on both of their eigenvectors."
        )
    low = 2 * epsilon * c**2 * min(alpha**3 / L, 1 / most**2)
    return low, 4 * L**3 / (c**2 * alpha * (L - alpha))
