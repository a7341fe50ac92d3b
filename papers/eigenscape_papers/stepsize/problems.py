"""Small classification problems for a learned optimiser, many of them stacked.

Letters: p problems, N samples of d features in all, n of them to fit, m of them to judge by. Every
problem shuffles the classes, chooses its own samples and has its own label noise. They share the
samples' features, so that a stack of problems costs little more memory than one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.errors import InvalidArgumentError, require_choice, require_count, require_seed
from eigenscape_papers.stepsize._checks import require_classes, require_finite

OBJECTIVES = ("training", "validation")


@dataclass(frozen=True)
class ProblemKind:
    """What problems of one kind have in common; the words are those of `draw_problems`.

    Attributes:
        objective: "training" or "validation".
        num_samples: How many samples a problem has in all; all there are by default.
        label_noise: Share of samples whose class is drawn anew.
    """

    objective: str
    num_samples: int | None = None
    label_noise: float = 0.0


@dataclass(frozen=True, eq=False)
class Problems:
    """Some problems, stacked.

    Attributes:
        inputs: Features of all samples (N, d).
        labels: Each problem's classes of all samples (p, N), noise included.
        fitted: Which samples each problem is trained on (p, n).
        judged: Which samples its meta-objective is taken on (p, m): the same, or others.
        classes: Each problem's order of the classes (p, c): class i became `classes[:, i]`.
    """

    inputs: Tensor
    labels: Tensor
    fitted: Tensor
    judged: Tensor
    classes: Tensor

    @property
    def num_problems(self) -> int:
        """How many there are, p."""
        return len(self.labels)

    def batches(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (…, p, b, d) and classes (…, p, b) of some samples of each problem.

        Args:
            rows: Which (…, p, b), counted among all samples.

        Returns:
            Both.
        """
        return batches_of(self.inputs, self.labels, rows)

    def draw(self, which: str, num_steps: int, batch_size: int, draw: torch.Generator) -> Tensor:
        """Draw batches with replacement.

        Args:
            which: "fitted" or "judged".
            num_steps: t.
            batch_size: b.
            draw: The random numbers, on the host.

        Returns:
            Samples of each step (t, p, b).
        """
        pool = self.fitted if which == "fitted" else self.judged
        shape = (num_steps, self.num_problems, batch_size)
        places = torch.randint(pool.shape[1], shape, generator=draw).to(pool.device)
        return pool.expand(num_steps, -1, -1).gather(2, places)


def batches_of(inputs: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return features and classes of some samples of each problem; letters as in `Problems`."""
    return inputs[rows], labels.expand(*rows.shape[:-1], -1).gather(-1, rows)


def draw_problems(
    inputs: Tensor,
    labels: Tensor,
    *,
    objective: str,
    numbers: Sequence[int],
    num_samples: int | None = None,
    label_noise: float = 0.0,
    seed: int = 0,
) -> Problems:
    """Draw problems from a data set; each has its own random numbers, whatever it is stacked with.

    Args:
        inputs: Features (N, d).
        labels: Classes (N,), integers from 0.
        objective: "training": all chosen samples are fitted and judged by. "validation": one half
            is fitted, the other judged by.
        numbers: Which problems, counted from 0; p of them.
        num_samples: How many samples a problem has in all; N by default.
        label_noise: Share of samples whose class is drawn anew, uniformly from all classes.
        seed: Fixes them.

    Returns:
        The problems.

    Raises:
        WrongTypeError: If classes are no integers.
        ShapeError: If samples and classes do not fit.
        InvalidArgumentError: If a number is out of range.

    Examples:
        >>> x, y = torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 0, 1])
        >>> found = draw_problems(x, y, objective="validation", numbers=range(3))
        >>> found.fitted.shape, found.judged.shape
        (torch.Size([3, 2]), torch.Size([3, 2]))
    """
    call = "draw_problems"
    x = require_finite(inputs, f"{call}(inputs)", ndim=2)
    require_choice(objective, OBJECTIVES, f"{call}(objective=...)")
    require_classes(labels, f"{call}(labels)", length=len(x))
    require_seed(seed, call)
    require_count(len(numbers), f"{call}(numbers=...)")
    n = len(x) if num_samples is None else num_samples
    require_count(n, f"{call}(num_samples=...)", at_least=2, at_most=len(x))
    c = int(labels.max()) + 1
    if not 0 <= label_noise <= 1:
        raise InvalidArgumentError(
            f"`{call}(label_noise=...)` is a share from 0 to 1; got {label_noise}."
        )
    drawn = [
        _one(labels.cpu(), c, n, label_noise, torch.Generator().manual_seed(1_000_003 * seed + i))
        for i in numbers
    ]
    noisy_labels, rows, classes = (
        torch.stack(tensors).to(x.device) for tensors in zip(*drawn, strict=True)
    )
    cut = n if objective == "training" else n // 2
    judged = rows if objective == "training" else rows[:, cut:]
    return Problems(x, noisy_labels, rows[:, :cut], judged, classes)


def _one(
    labels: Tensor, c: int, n: int, noise: float, draw: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Return classes of all samples, the n samples that were chosen, and the order of classes."""
    classes = torch.randperm(c, generator=draw)
    rows = torch.randperm(len(labels), generator=draw)[:n]
    wrong = torch.rand(len(labels), generator=draw) < noise
    anew = torch.randint(c, (len(labels),), generator=draw)
    return torch.where(wrong, anew, classes[labels]), rows, classes
