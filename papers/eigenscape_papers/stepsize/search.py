"""Learn a step size over many tasks: by training loss (TbT) or by validation loss (TbV).

Letters as in `tasks.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.errors import require_choice, require_count, require_not_negative, require_seed
from eigenscape.records import Columns, ProgressCallback, Record, Status, Ticker
from eigenscape_papers.stepsize._checks import step_sizes_of
from eigenscape_papers.stepsize.tasks import (
    Tasks,
    descend,
    draw_samples,
    draw_tasks,
    squared_distances,
    task_losses,
)

OBJECTIVES = ("training", "validation")
# Inputs of tasks that are fitted together: they should stay in a processor's cache.
_CPU_BYTES, _GPU_BYTES = 2**23, 2**31
# From the seed of a task's data to that of its steps. A generator takes 32 bits of a seed: half of
# them away, steps and data of seeds less than 2147 apart have no random numbers in common.
_STEPS = 2**31


@dataclass(frozen=True, eq=False)
class LearnedStepSize(Record):
    """A step size chosen over tasks, and what it does on new ones.

    Attributes:
        objective: "training" (TbT) or "validation" (TbV).
        step_size: η*, the best of the grid.
        step_sizes: The grid (k,).
        meta_losses: Mean meta-loss of each (k,).
        stderr: Their standard errors over tasks (k,).
        train_rmse: √ of the mean squared training error on each test task (b,).
        test_rmse: √(‖w − w*‖² + σ²) on each test task (b,), the error expected on new samples.
        test_distances: ‖w − w*‖² on each test task (b,).
    """

    objective: str
    step_size: float
    step_sizes: Tensor
    meta_losses: Tensor
    stderr: Tensor
    train_rmse: Tensor
    test_rmse: Tensor
    test_distances: Tensor

    def columns(self) -> Columns:
        """Return one row for each step size."""
        return {
            "step size": self.step_sizes.tolist(),
            "meta-loss": self.meta_losses.tolist(),
            "standard error": self.stderr.tolist(),
        }


def usual_grid() -> Tensor:
    """Return the thesis's candidates: 25 step sizes from 1e-6 to 1, even in their logarithms."""
    return torch.logspace(-6, 0, 25, dtype=torch.float64)


def learn_step_size(
    objective: str,
    *,
    num_samples: int,
    dimension: int,
    noise: float,
    num_steps: int,
    num_tasks: int = 300,
    num_test_tasks: int = 10,
    num_training: int | None = None,
    step_sizes: Tensor | None = None,
    stochastic: bool = False,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    progress: ProgressCallback | None = None,
) -> LearnedStepSize:
    """Choose the step size with the least mean meta-loss over tasks, and test it on new tasks.

    Cost: t products with X and Xᵀ for each task, however many the step sizes; with `stochastic`, t
    steps of each step size.

    Args:
        objective: "training": fit all n samples, and judge by the loss on them. "validation": fit
            the first part, and judge by the loss on the rest.
        num_samples: n, of each task.
        dimension: d.
        noise: σ.
        num_steps: t.
        num_tasks: Tasks to choose on.
        num_test_tasks: New tasks to test on.
        num_training: Samples in the first part; half by default.
        step_sizes: Candidates (k,); `usual_grid()` by default.
        stochastic: One sample a step, drawn uniformly, instead of all.
        seed: Fixes tasks and samples; both objectives see the same tasks.
        dtype: Precision.
        device: Where to compute.
        progress: Called after each portion of tasks.

    Returns:
        The step size, the meta-losses, and the errors on the test tasks. Not converged where the
        best is an end of the grid.

    Raises:
        InvalidArgumentError: If a number is out of range.

    Examples:
        >>> found = learn_step_size(
        ...     "training", num_samples=40, dimension=20, noise=0.1, num_steps=20, num_tasks=4
        ... )
        >>> 0.3 < found.step_size < 0.9
        True
    """
    call = "learn_step_size"
    require_choice(objective, OBJECTIVES, f"{call}(objective)")
    require_count(num_tasks, f"{call}(num_tasks=...)", at_least=2)
    require_count(num_test_tasks, f"{call}(num_test_tasks=...)")
    require_count(dimension, f"{call}(dimension=...)")
    require_count(num_steps, f"{call}(num_steps=...)")
    require_not_negative(noise, f"{call}(noise=...)")
    require_seed(seed, call)
    grid = usual_grid() if step_sizes is None else step_sizes
    grid = step_sizes_of(grid, f"{call}(step_sizes=...)")
    half = require_count(num_samples, f"{call}(num_samples=...)") // 2
    cut = half if num_training is None else num_training
    if objective == "validation":
        require_count(cut, f"{call}(num_training=...)", at_most=num_samples - 1)
    plan = _Plan(
        num_samples,
        dimension,
        noise,
        num_steps,
        cut if objective == "validation" else None,
        stochastic,
        seed,
        dtype,
        device,
    )
    ticker, losses = Ticker(progress, "tasks", num_tasks), []
    for start, tasks in plan.portions(0, num_tasks):
        losses.append(plan.meta_losses(start, tasks, grid))
        ticker.tick(sum(map(len, losses)))
    per_task = torch.cat(losses)
    best = int(per_task.mean(0).argmin())
    tested = [
        plan.tested(start, tasks, grid[best : best + 1])
        for start, tasks in plan.portions(num_tasks, num_test_tasks)
    ]
    train, distances = (torch.cat(tensors) for tensors in zip(*tested, strict=True))
    return LearnedStepSize(
        status=_status(grid, best).warn(),
        num_products=0,
        seed=seed,
        objective=objective,
        step_size=float(grid[best]),
        step_sizes=grid,
        meta_losses=per_task.mean(0),
        stderr=per_task.std(0) / num_tasks**0.5,
        train_rmse=(2 * train).sqrt(),
        test_rmse=(distances + noise**2).sqrt(),
        test_distances=distances,
    )


@dataclass(frozen=True)
class _Plan:
    """How tasks are made and fitted; `cut` samples for training, or all of them."""

    num_samples: int
    dimension: int
    noise: float
    num_steps: int
    cut: int | None
    stochastic: bool
    seed: int
    dtype: torch.dtype
    device: torch.device | str

    def portions(self, first: int, count: int) -> Iterator[tuple[int, Tasks]]:
        """Draw tasks, as many at a time as memory allows, each with the number of its first."""
        most = _CPU_BYTES if torch.device(self.device).type == "cpu" else _GPU_BYTES
        size = max(1, most // (self.num_samples * self.dimension * self.dtype.itemsize))
        for start in range(first, first + count, size):
            yield (
                start,
                draw_tasks(
                    min(size, first + count - start),
                    self.num_samples,
                    self.dimension,
                    noise=self.noise,
                    seed=self.seed,
                    first=start,
                    dtype=self.dtype,
                    device=self.device,
                ),
            )

    def fitted(self, start: int, tasks: Tasks, grid: Tensor) -> tuple[Tasks, Tasks, Tensor]:
        """Return the samples that were fitted, those to judge by, and w_t for each step size."""
        fit, judge = (tasks, tasks) if self.cut is None else tasks.split(self.cut)
        samples = None
        if self.stochastic:
            first, n = _STEPS + 1_000_003 * self.seed + start, fit.inputs.shape[1]
            seeds = range(first, first + len(tasks.truths))
            samples = torch.cat([draw_samples(1, n, self.num_steps, seed=seed) for seed in seeds])
        return fit, judge, descend(fit, grid, num_steps=self.num_steps, samples=samples)

    def meta_losses(self, start: int, tasks: Tasks, grid: Tensor) -> Tensor:
        """Return the meta-loss of every task and step size, in float64 on the host."""
        _, judge, weights = self.fitted(start, tasks, grid)
        return task_losses(judge, weights).double().cpu()

    def tested(self, start: int, tasks: Tasks, grid: Tensor) -> tuple[Tensor, Tensor]:
        """Return training loss and ‖w − w*‖² of every task, for one step size."""
        fit, _, weights = self.fitted(start, tasks, grid)
        train, distance = task_losses(fit, weights), squared_distances(tasks, weights)
        return train[:, 0].double().cpu(), distance[:, 0].double().cpu()


def _status(grid: Tensor, best: int) -> Status:
    text = f"The best of {len(grid)} step sizes is {float(grid[best]):.4g}."
    if len(grid) > 1 and best in (0, len(grid) - 1):
        return Status(False, f"{text} It is an end of the grid; widen `step_sizes`.")
    return Status(True, text)
