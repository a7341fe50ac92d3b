"""Learn a dictionary from samples: Algorithms 2 and 3 of the thesis.

Letters as in `sparse_data.py`. A step takes a batch, decodes it by matching pursuit, and moves the
atoms along the gradient of what was not explained, the codes held fixed; then atoms get length 1
again. The baseline explains what it decoded from, noise and all. Masking decodes from some of the
coordinates and is judged on the others, whose noise no code can know.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from eigenscape.device import full_precision
from eigenscape.errors import (
    InvalidArgumentError,
    NonFiniteError,
    ShapeError,
    require_count,
    require_positive,
    require_seed,
)
from eigenscape.parallel import record_graph
from eigenscape.records import ProgressCallback, Record, Status, Ticker
from eigenscape_papers.representations._checks import require_matrix, require_wide
from eigenscape_papers.representations.omp import pursue, require_sparsity
from eigenscape_papers.representations.sparse_data import unit_rows

_BETAS, _EPSILON = (0.9, 0.999), 1e-8


@dataclass(frozen=True, eq=False)
class LearnedDictionary(Record):
    """A dictionary and how its objective fell.

    Attributes:
        dictionary: B, atoms of length 1 (p', d).
        losses: Mean objective of each epoch, as seen while it ran.
        sparsity: k.
        masked: Whether it was judged on coordinates that it had not decoded from.
        mask_size: Coordinates that were decoded from; d for the baseline.
    """

    dictionary: Tensor
    losses: Tensor
    sparsity: int
    masked: bool
    mask_size: int


def initial_dictionary(samples: Tensor, num_atoms: int, *, seed: int = 0) -> Tensor:
    """Take random samples, scaled to length 1, as first atoms.

    Args:
        samples: Rows (n, d).
        num_atoms: p'. Where there are fewer samples that are not 0, random directions follow them.
        seed: Fixes the choice.

    Returns:
        The atoms (p', d).

    Raises:
        InvalidArgumentError: If the number is out of range.

    Examples:
        >>> initial_dictionary(torch.tensor([[0.0, 2.0]]), 1)
        tensor([[0., 1.]])
    """
    Y = require_matrix(samples, "initial_dictionary(samples)")
    require_count(num_atoms, "initial_dictionary(num_atoms)")
    require_seed(seed, "initial_dictionary")
    draw = torch.Generator().manual_seed(seed)
    Y = Y[Y.any(1)]
    chosen = Y[torch.randperm(len(Y), generator=draw)[:num_atoms].to(Y.device)]
    more = torch.randn(num_atoms - len(chosen), Y.shape[1], generator=draw, dtype=torch.float64)
    return unit_rows(torch.cat([chosen, more.to(Y)]))


def usual_mask_size(dimension: int) -> int:
    """Return d − ⌊d/10⌋, and d − 1 for fewer than ten coordinates: something must be hidden."""
    return dimension - max(1, dimension // 10)


@full_precision()
def learn_dictionary(
    Y: Tensor,
    initial: Tensor,
    *,
    sparsity: int,
    masked: bool = True,
    mask_size: int | None = None,
    epochs: int = 500,
    batch_size: int = 200,
    learning_rate: float = 1e-3,
    rescale: bool = True,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> LearnedDictionary:
    """Learn a dictionary, by default with the settings of the thesis's experiments.

    Cost of a step: dp'² for the Gram matrix, and for b samples bk²p' + bdp'. Pass float32 for
    speed; nothing waits for the device but the sum of losses after each epoch, and on a CUDA device
    a step is one launch.

    Args:
        Y: Samples (n, d).
        initial: First atoms (p', d); their lengths do not matter.
        sparsity: Atoms of a sample, k.
        masked: Algorithm 3; otherwise the baseline, Algorithm 2.
        mask_size: Coordinates that are decoded from, new ones at each step; `usual_mask_size` by
            default.
        epochs: Passes over the samples.
        batch_size: Samples of a step; the last batch of an epoch may be shorter.
        learning_rate: Of Adam (β = 0.9, 0.999).
        rescale: As for `orthogonal_matching_pursuit`.
        seed: Fixes the order of the samples and the masks.
        progress: Told after each epoch.

    Returns:
        The dictionary and the course of the objective.

    Raises:
        ShapeError: If samples and atoms do not fit each other, or are of half precision.
        InvalidArgumentError: If `sparsity` exceeds the atoms or the coordinates that are seen, if
            the mask hides everything or nothing, or a number is out of range.
        NonFiniteError: If an entry is NaN or infinite, or becomes so.

    Examples:
        >>> from eigenscape_papers.representations import (
        ...     random_dictionary,
        ...     recovery_error,
        ...     sparse_samples,
        ... )
        >>> A = random_dictionary(6, 20)
        >>> Y, _ = sparse_samples(A, 200, sparsity=1, noise=0.01)
        >>> start = A + 0.2 * random_dictionary(6, 20, seed=1)
        >>> found = learn_dictionary(Y, start, sparsity=1, epochs=60, learning_rate=0.01)
        >>> recovery_error(A, found.dictionary) < 0.002 < recovery_error(A, start)
        True
    """
    call = "learn_dictionary"
    Y = require_wide(require_matrix(Y, f"{call}(Y)"), f"{call}(Y)")
    n, d = Y.shape
    B = unit_rows(require_matrix(initial, f"{call}(initial)", columns=d).clone())
    if B.dtype != Y.dtype or B.device != Y.device:
        raise ShapeError(
            f"`{call}(Y, initial)` must share dtype and device; got {Y.dtype} on {Y.device} and "
            f"{B.dtype} on {B.device}."
        )
    num_visible = require_settings(
        call,
        len(B),
        d,
        sparsity=sparsity,
        masked=masked,
        mask_size=mask_size,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        seed=seed,
    )
    k, size, rate = sparsity, batch_size, float(learning_rate)
    draw, steps = (
        torch.Generator().manual_seed(seed),
        _Steps(Y, B, num_visible, k, rate, rescale=rescale),
    )
    losses, ticker = [], Ticker(progress, "learning a dictionary", epochs)
    for epoch in range(epochs):
        for rows in torch.randperm(n, generator=draw).split(size):
            steps.take(rows, torch.randperm(d, generator=draw) if masked else torch.arange(d))
        losses.append(steps.loss_since() / n)
        if not math.isfinite(losses[-1]):
            raise NonFiniteError(
                f"`{call}`: the objective became {losses[-1]} in epoch {epoch + 1}. Lower "
                f"`learning_rate={rate:g}`, or scale the samples."
            )
        ticker.tick(epoch + 1)
    return LearnedDictionary(
        status=Status(True, f"{epochs} epochs; objective {losses[0]:.4g} to {losses[-1]:.4g}."),
        num_products=0,
        seed=seed,
        dictionary=B,
        losses=torch.tensor(losses, dtype=torch.float64),
        sparsity=k,
        masked=masked,
        mask_size=num_visible,
    )


class _Steps:
    """Steps in buffers that stay where they are; on a CUDA device a graph replays them."""

    def __init__(
        self, Y: Tensor, B: Tensor, num_visible: int, k: int, rate: float, *, rescale: bool
    ) -> None:
        self._Y, self._B, self._seen, self._k, self._rescale = Y, B, num_visible, k, rescale
        self._rate, self._count = rate, 0
        self._mean, self._square = torch.zeros_like(B), torch.zeros_like(B)
        self._total = Y.new_zeros((), dtype=torch.float64)
        # By size of the batch: its rows, the order of coordinates and Adam's factors; what runs.
        self._places: dict[int, tuple[list[Tensor], Callable[[], None]]] = {}
        self._use_graphs = Y.is_cuda

    def take(self, rows: Tensor, order: Tensor) -> None:
        """Take a step on these samples; the first coordinates of the order are seen."""
        self._count += 1
        first, second = (1.0 - beta**self._count for beta in _BETAS)
        factors = torch.tensor([-self._rate / first, math.sqrt(second)], dtype=torch.float64)
        inputs = (rows, order, factors.to(self._Y.dtype))
        if len(rows) not in self._places:
            buffers = [source.to(self._Y.device) for source in inputs]
            self._places[len(rows)] = buffers, self._work(buffers)
        buffers, work = self._places[len(rows)]
        for ours, source in zip(buffers, inputs, strict=True):
            ours.copy_(source)
        work()

    def loss_since(self) -> float:
        """Return the sum of squared errors since it was last asked for."""
        loss = float(self._total)
        self._total.zero_()
        return loss

    def _work(self, buffers: Sequence[Tensor]) -> Callable[[], None]:
        """Return what takes a step on what the buffers hold."""
        work = partial(self._step, *buffers)
        if not self._use_graphs:
            return work
        changing = (self._B, self._mean, self._square, self._total)
        replay = record_graph(
            work, work, self._Y.device, changing=changing, what="The steps of a dictionary"
        )
        self._use_graphs = replay is not None
        return replay or work

    def _step(self, rows: Tensor, order: Tensor, factors: Tensor) -> None:
        """Decode, move the atoms, and add up the squared errors."""
        Y, B = self._Y[rows], self._B
        masked = self._seen < len(order)
        visible, atoms = (x[:, order[: self._seen]] if masked else x for x in (Y, B))
        support, values = pursue(visible @ atoms.T, atoms @ atoms.T, self._k, rescale=self._rescale)
        Z = Y.new_zeros(len(Y), len(B)).scatter_(1, support, values)
        if masked:
            hidden = order[self._seen :]
            R = Z @ B[:, hidden] - Y[:, hidden]
            gradient = torch.zeros_like(B)
            gradient[:, hidden] = Z.T @ R
        else:
            R = Z @ B - Y
            gradient = Z.T @ R
        self._move(gradient.mul_(2.0 / len(Y)), factors)
        self._total += R.double().square().sum()

    def _move(self, gradient: Tensor, factors: Tensor) -> None:
        """Move the atoms by Adam, and make them unit vectors again."""
        B = self._B
        self._mean.lerp_(gradient, 1.0 - _BETAS[0])
        self._square.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1.0 - _BETAS[1])
        below = self._square.sqrt().div_(factors[1]).add_(_EPSILON)
        B.add_((factors[0] * self._mean).div_(below))
        B.div_(B.norm(dim=1, keepdim=True).clamp_min(torch.finfo(B.dtype).tiny))


def require_settings(
    owner: str,
    num_atoms: int,
    dimension: int,
    *,
    sparsity: int,
    masked: bool,
    mask_size: int | None,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
) -> int:
    """Return how many coordinates are seen, or refuse a setting by the name of who takes it.

    Args:
        owner: Who, such as "learn_dictionary".
        num_atoms: p'.
        dimension: d.
        sparsity: As for `learn_dictionary`, and so are the others.
        masked: Whether some coordinates are hidden.
        mask_size: How many are seen; None for the usual number.
        epochs: Passes over the samples.
        batch_size: Samples of a step.
        learning_rate: Of Adam.
        seed: What fixes the random numbers.

    Returns:
        The number of coordinates that are decoded from.

    Raises:
        InvalidArgumentError: If a setting is out of range.
    """
    num_visible = _require_mask(mask_size, dimension, owner, masked=masked)
    require_sparsity(sparsity, num_atoms, num_visible, f"{owner}(sparsity=...)")
    require_count(epochs, f"{owner}(epochs=...)")
    require_count(batch_size, f"{owner}(batch_size=...)")
    require_positive(learning_rate, f"{owner}(learning_rate=...)")
    require_seed(seed, owner)
    return num_visible


def _require_mask(size: int | None, dimension: int, owner: str, *, masked: bool) -> int:
    call = f"{owner}(mask_size=...)"
    if not masked:
        if size is not None:
            raise InvalidArgumentError(
                f"`{call}` is for masking; got {size} with `masked=False`. Leave it out."
            )
        return dimension
    if dimension < 2:
        raise InvalidArgumentError(
            f"`{owner}(masked=True)` needs two coordinates or more, one to see and one to "
            "hide; got 1. Pass `masked=False`."
        )
    if size is None:
        return usual_mask_size(dimension)
    if size in (0, dimension):
        what = "hides everything" if size == 0 else "hides nothing"
        raise InvalidArgumentError(
            f"`{call}` is how many of {dimension} coordinates are seen; {size} {what}. Take one "
            f"from 1 to {dimension - 1}, such as {usual_mask_size(dimension)}."
        )
    return require_count(size, call, at_most=dimension - 1)
