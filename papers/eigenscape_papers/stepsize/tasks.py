"""Least-squares tasks whose step size is learned: on their training loss, or on other samples.

Letters as in chapter 5 of the thesis: w* a unit vector in d dimensions, x ~ N(0, I),
y = ⟨w*, x⟩ + ξ with noise σ; n samples of a task, X (n, d) and H = XᵀX/n with eigenvalues λ_i;
w_t after t steps of size η from 0 on the mean of ½(y − ⟨w, x⟩)². b tasks, k step sizes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.errors import (
    InvalidArgumentError,
    ShapeError,
    WrongTypeError,
    require_count,
    require_not_negative,
    require_positive,
    require_seed,
)
from eigenscape_papers.stepsize._checks import require_finite, step_sizes_of

TRUNCATION = 40.0


@dataclass(frozen=True, eq=False)
class Tasks:
    """Some tasks with their samples.

    Attributes:
        inputs: X (b, n, d).
        targets: y (b, n).
        truths: w* (b, d).
        noise: σ.

    Raises:
        WrongTypeError: If a part is no floating-point tensor.
        ShapeError: If the parts do not fit each other.
        NonFiniteError: If an entry is NaN or infinite.
        InvalidArgumentError: If the noise is negative or not finite.
    """

    inputs: Tensor
    targets: Tensor
    truths: Tensor
    noise: float

    def __post_init__(self) -> None:
        """Refuse what is no set of tasks."""
        X = require_finite(self.inputs, "Tasks(inputs)", ndim=3)
        y = require_finite(self.targets, "Tasks(targets)", ndim=2)
        w = require_finite(self.truths, "Tasks(truths)", ndim=2)
        require_not_negative(self.noise, "Tasks(noise)")
        b, n, d = X.shape
        alike = all(tensor.dtype == X.dtype and tensor.device == X.device for tensor in (y, w))
        if y.shape != (b, n) or w.shape != (b, d) or not alike:
            got = ", ".join(f"{tuple(tensor.shape)} of {tensor.dtype}" for tensor in (X, y, w))
            raise ShapeError(
                "`Tasks(inputs, targets, truths)` must be (b, n, d), (b, n) and (b, d), of one "
                f"dtype and on one device; got {got}."
            )

    def split(self, first: int) -> tuple["Tasks", "Tasks"]:
        """Return the same tasks with their first samples, and with the others.

        Args:
            first: How many samples go to the first part.

        Returns:
            Both parts.

        Raises:
            InvalidArgumentError: If a part would be empty.
        """
        require_count(first, "Tasks.split(first)", at_most=self.inputs.shape[1] - 1)
        return (
            Tasks(self.inputs[:, :first], self.targets[:, :first], self.truths, self.noise),
            Tasks(self.inputs[:, first:], self.targets[:, first:], self.truths, self.noise),
        )


def draw_tasks(
    num_tasks: int,
    num_samples: int,
    dimension: int,
    *,
    noise: float,
    seed: int = 0,
    first: int = 0,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Tasks:
    """Draw tasks; each has its own random numbers, so that portions of them are the same tasks.

    Args:
        num_tasks: b.
        num_samples: n.
        dimension: d.
        noise: σ; may be 0.
        seed: Fixes them.
        first: Number of the first task.
        dtype: Precision.
        device: Where they shall be.

    Returns:
        The tasks.

    Raises:
        InvalidArgumentError: If a number is out of range.

    Examples:
        >>> tasks = draw_tasks(2, 5, 3, noise=0.0)
        >>> torch.allclose(tasks.targets, (tasks.inputs @ tasks.truths[..., None])[..., 0])
        True
    """
    call = "draw_tasks"
    b = require_count(num_tasks, f"{call}(num_tasks)")
    n = require_count(num_samples, f"{call}(num_samples)")
    d = require_count(dimension, f"{call}(dimension)")
    sigma = require_not_negative(noise, f"{call}(noise=...)")
    require_seed(seed, call)
    require_count(first, f"{call}(first=...)", at_least=0)
    drawn = []
    for task in range(first, first + b):
        draw = torch.Generator().manual_seed(1_000_003 * seed + task)
        truth = torch.randn(d, generator=draw, dtype=dtype)
        errors = torch.randn(n, generator=draw, dtype=dtype)
        drawn.append((truth / truth.norm(), errors, torch.randn(n, d, generator=draw, dtype=dtype)))
    truths, errors, X = (torch.stack(tensors).to(device) for tensors in zip(*drawn, strict=True))
    clean = torch.bmm(X, truths[..., None])[..., 0]
    return Tasks(X, clean + sigma * errors, truths, sigma)


def descend(
    tasks: Tasks,
    step_sizes: float | Tensor,
    *,
    num_steps: int,
    limit: float | None = None,
    samples: Tensor | None = None,
) -> Tensor:
    """Run gradient descent on every task with every step size at once.

    Cost: t products with X and Xᵀ for each task, however many the step sizes.

    A run whose weights grow to `limit` is frozen there, as `limit` times a fixed unit vector: the
    thesis's way to say that its loss is high.

    Args:
        tasks: What to fit.
        step_sizes: η, one or (k,).
        num_steps: t.
        limit: Largest ‖w‖; 40σ by default, or 40 where σ is 0.
        samples: For stochastic gradient descent, the sample of each step (b, t), from 0 to n − 1,
            the same for all step sizes; see `draw_samples`. All samples by default.

    Returns:
        w_t (b, d, k).

    Raises:
        WrongTypeError: If the samples are no integers.
        ShapeError: If the samples do not fit.
        InvalidArgumentError: If a number is out of range.

    Examples:
        >>> one = torch.ones(1, 1, 1)
        >>> tasks = Tasks(one, one[0], one[0], 0.0)
        >>> descend(tasks, torch.tensor([0.5, 50.0]), num_steps=2).tolist()  # 1 − (1 − η)²; frozen
        [[[0.75, 40.0]]]
    """
    call = "descend"
    b, n, d = tasks.inputs.shape
    eta = step_sizes_of(step_sizes, f"{call}(step_sizes)").to(tasks.inputs)
    t = require_count(num_steps, f"{call}(num_steps=...)")
    if limit is None:
        limit = TRUNCATION * (tasks.noise or 1.0)
    require_positive(limit, f"{call}(limit=...)")
    if samples is None:
        basis, T, length = _krylov(tasks, min(t, n, d))
        target = torch.zeros_like(T[:, :, :1])
        target[:, 0, 0] = length
        here, frozen = _iterate(lambda a, _: torch.bmm(T, a) - target, target * eta, t, eta, limit)
        w = torch.bmm(basis.mT, here)
    else:
        _require_samples(samples, (b, t), n)
        rows, chosen = torch.arange(b, device=eta.device), samples.to(eta.device)

        def slope(w: Tensor, step: int) -> Tensor:
            x = tasks.inputs[rows, chosen[:, step]][:, None]
            return x.mT * (torch.bmm(x, w) - tasks.targets[rows, chosen[:, step]][:, None, None])

        w, frozen = _iterate(slope, eta.new_zeros(b, d, len(eta)), t, eta, limit)
    far = torch.zeros_like(w)
    far[:, 0] = limit
    return torch.where(frozen, far, w)


def _require_samples(samples: object, shape: tuple[int, int], n: int) -> None:
    call = "descend(samples=...)"
    if not isinstance(samples, Tensor) or samples.dtype not in (torch.int64, torch.int32):
        kind = samples.dtype if isinstance(samples, Tensor) else type(samples).__name__
        raise WrongTypeError(
            f"`{call}` must be a tensor of integers, torch.int64 or torch.int32; got {kind}. Take "
            "`draw_samples(...)`."
        )
    if tuple(samples.shape) != shape:
        raise ShapeError(f"`{call}` must be {shape}; got {tuple(samples.shape)}.")
    low, high = (int(end) for end in samples.aminmax())
    if low < 0 or high >= n:
        raise InvalidArgumentError(
            f"`{call}` must be samples from 0 to {n - 1}; got {low} to {high}."
        )


def _krylov(tasks: Tasks, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return a basis V (b, m, d) of what m steps can reach, T = V H Vᵀ (b, m, m) and ‖Xᵀy/n‖.

    Gradient descent from 0 never leaves the Krylov space of Xᵀy, whatever the step size: t products
    serve all of them, and the steps themselves are taken in t dimensions.
    """
    X, n = tasks.inputs, tasks.inputs.shape[1]
    v = _apply(X.mT, tasks.targets) / n
    length = v.norm(dim=1, keepdim=True)
    V = X.new_zeros(len(X), size, X.shape[2])
    T = X.new_zeros(len(X), size, size)
    v = v / torch.where(length > 0, length, 1.0)
    scale = torch.zeros_like(length)
    for j in range(size):
        V[:, j] = v
        w = _apply(X.mT, _apply(X, v)) / n
        for _ in range(2):  # twice, so that rounding of the first pass goes too
            along = _apply(V[:, : j + 1], w)
            T[:, : j + 1, j] += along
            w = w - _apply(V[:, : j + 1].mT, along)
        beta = w.norm(dim=1, keepdim=True)
        scale = torch.maximum(scale, T[:, j, j, None].abs() + beta)
        alive = beta > 10 * torch.finfo(X.dtype).eps * scale  # else the space is exhausted
        v = torch.where(alive, w / torch.where(alive, beta, 1.0), 0.0)
        if j + 1 < size:
            T[:, j + 1, j] = torch.where(alive, beta, 0.0)[:, 0]
    return V, T, length[:, 0]


def _apply(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Multiply matrices (b, p, q) by a vector each (b, q)."""
    if matrices.device.type == "cpu":  # batched products with single vectors are ten times slower
        return torch.stack([A @ v for A, v in zip(matrices, vectors, strict=True)])
    return torch.bmm(matrices, vectors[..., None])[..., 0]


def _iterate(
    slope: Callable[[Tensor, int], Tensor], like: Tensor, t: int, eta: Tensor, limit: float
) -> tuple[Tensor, Tensor]:
    """Take t steps from 0; return where they end, and which runs (b, 1, k) grew to the limit."""
    w = torch.zeros_like(like)
    frozen = torch.zeros_like(w[:, :1], dtype=torch.bool)
    for step in range(t):
        w = w - eta * slope(w, step)
        frozen |= w.norm(dim=1, keepdim=True) >= limit
        w = torch.where(frozen, 0.0, w)
    return w, frozen


def draw_samples(num_tasks: int, num_samples: int, num_steps: int, *, seed: int = 0) -> Tensor:
    """Draw which sample each step of stochastic gradient descent uses, uniformly.

    Args:
        num_tasks: b.
        num_samples: n.
        num_steps: t.
        seed: Fixes them.

    Returns:
        Numbers (b, t) from 0 to n − 1.

    Raises:
        InvalidArgumentError: If a number is below 1.

    Examples:
        >>> draw_samples(2, 1, 3).tolist()
        [[0, 0, 0], [0, 0, 0]]
    """
    b = require_count(num_tasks, "draw_samples(num_tasks)")
    n = require_count(num_samples, "draw_samples(num_samples)")
    t = require_count(num_steps, "draw_samples(num_steps)")
    require_seed(seed, "draw_samples")
    return torch.randint(n, (b, t), generator=torch.Generator().manual_seed(seed))


def task_losses(tasks: Tasks, weights: Tensor) -> Tensor:
    """Return the mean of ½(y − ⟨w, x⟩)² over the samples of each task.

    Args:
        tasks: The samples, those of training or others.
        weights: w (b, d, k).

    Returns:
        The losses (b, k).

    Raises:
        ShapeError: If the weights do not fit.

    Examples:
        >>> one = torch.ones(1, 1, 1)
        >>> task_losses(Tasks(one, one[0], one[0], 0.0), 3 * one).tolist()
        [[2.0]]
    """
    w = _require_weights(weights, tasks, "task_losses(weights)")
    residual = torch.bmm(tasks.inputs, w) - tasks.targets[..., None]
    return 0.5 * residual.square().mean(1)


def _require_weights(weights: Tensor, tasks: Tasks, call: str) -> Tensor:
    w = require_finite(weights, call, ndim=3)
    if w.shape[:2] != tasks.truths.shape:
        raise ShapeError(
            f"`{call}` must be {tuple(tasks.truths.shape)} and step sizes; got {tuple(w.shape)}."
        )
    return w


def squared_distances(tasks: Tasks, weights: Tensor) -> Tensor:
    """Return ‖w − w*‖² (b, k); half of it and σ²/2 are the expected loss on a new sample.

    Args:
        tasks: The tasks.
        weights: w (b, d, k).

    Returns:
        The squared distances.

    Raises:
        ShapeError: If the weights do not fit.

    Examples:
        >>> one = torch.ones(1, 1, 1)
        >>> squared_distances(Tasks(one, one[0], one[0], 0.0), 3 * one).tolist()
        [[4.0]]
    """
    w = _require_weights(weights, tasks, "squared_distances(weights)")
    return (w - tasks.truths[..., None]).square().sum(1)


def expected_distance(
    eigenvalues: Tensor, *, dimension: int, noise: float, step_size: float, num_steps: int
) -> float:
    """Return E‖w_t − w*‖² over w* and noise, given the spectra of some tasks, in closed form.

    With r = min(n, d) eigenvalues that are not zero it is
    1 − r/d + (1/d) Σ (1 − ηλ)^(2t) + (σ²/n) Σ (1 − (1 − ηλ)^t)²/λ, averaged over the tasks. No run
    is truncated.

    Args:
        eigenvalues: λ (b, n): those of XXᵀ/n for each task, zeros where n > d.
        dimension: d.
        noise: σ.
        step_size: η.
        num_steps: t.

    Returns:
        The mean over the tasks.

    Raises:
        InvalidArgumentError: If a number is out of range.

    Examples:
        >>> lam = torch.tensor([[2.0]])  # n = 1, d = 2; η = 1/λ: all signal and all noise
        >>> expected_distance(lam, dimension=2, noise=3.0, step_size=0.5, num_steps=4)
        5.0
    """
    call = "expected_distance"
    lam = require_finite(eigenvalues, f"{call}(eigenvalues)", ndim=2).double()
    d = require_count(dimension, f"{call}(dimension=...)")
    t = require_count(num_steps, f"{call}(num_steps=...)")
    eta = require_positive(step_size, f"{call}(step_size=...)")
    sigma = require_not_negative(noise, f"{call}(noise=...)")
    n = lam.shape[1]
    lam = lam.sort(1, descending=True).values[:, : min(n, d)]
    if bool((lam <= 0).any()):
        raise InvalidArgumentError(
            f"`{call}(eigenvalues)` must have min(n, d) = {lam.shape[1]} positive ones in each row:"
            " the design is singular."
        )
    left = (1 - eta * lam) ** t
    fitted = sigma**2 / n * ((1 - left).square() / lam).sum(1)
    return float((1 - lam.shape[1] / d + left.square().sum(1) / d + fitted).mean())


def limit_distance(num_samples: int, dimension: int, *, noise: float) -> float:
    """Return E‖w_∞ − w*‖² of least squares from 0, over inputs, w* and noise.

    1 − n/d + σ² n/(d − n − 1) with fewer samples than dimensions, σ² d/(n − d − 1) with more;
    infinite where the two differ by one or none.

    Args:
        num_samples: n.
        dimension: d.
        noise: σ.

    Returns:
        The limit for t → ∞ of any step size below 2/λ_max.

    Raises:
        InvalidArgumentError: If a number is out of range.

    Examples:
        >>> limit_distance(2, 4, noise=3.0)  # ½ + 9 · 2/1
        18.5
        >>> limit_distance(7, 4, noise=1.0)  # 4/2
        2.0
    """
    n = require_count(num_samples, "limit_distance(num_samples)")
    d = require_count(dimension, "limit_distance(dimension)")
    sigma = require_not_negative(noise, "limit_distance(noise=...)")
    free = abs(n - d) - 1
    if free <= 0:
        return float("inf") if sigma else max(1 - n / d, 0.0)
    return 1 - n / d + sigma**2 * n / free if n < d else sigma**2 * d / free
