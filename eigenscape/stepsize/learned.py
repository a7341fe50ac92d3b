"""Learn an optimiser on training loss or on validation loss, and train networks with it.

Letters as in `update_rule.py`; t steps, b samples a batch.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from eigenscape.errors import ShapeError, require_count, require_positive
from eigenscape.progress import ProgressCallback, Ticker
from eigenscape.records import Record, Status
from eigenscape.stepsize import _stacked_mlp as mlp
from eigenscape.stepsize._checks import step_sizes_of
from eigenscape.stepsize._stepping import State, new_weights, sizes_of, take_step
from eigenscape.stepsize.problems import Problems, draw_problems
from eigenscape.stepsize.update_rule import UpdateRule

# RMSprop would make full steps of gradients that are mere noise; below this size it does not.
_META_DECAY, _META_EPSILON, _META_CLIP = 0.9, 1e-3, 1.0
_MOST_SEEN = 10_000
# Numbers that back-propagation keeps of a weight and step, and how many bytes it may keep in all.
_KEPT, _MOST_BYTES = 400, 2**30


@dataclass(frozen=True, eq=False)
class LearnedRule(Record):
    """An optimiser that was learned.

    Attributes:
        weights: Those of the rule.
        biases: Likewise.
        scale: Likewise.
        exponent: Likewise.
        objective: "training" or "validation".
        meta_losses: Meta-objective of each segment.
        lengths: Steps of each segment.
        num_skipped: Segments whose gradient was not finite; their runs ended there.
    """

    weights: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    scale: float
    exponent: float
    objective: str
    meta_losses: Tensor
    lengths: Tensor
    num_skipped: int

    @property
    def rule(self) -> UpdateRule:
        """The rule."""
        return UpdateRule(self.weights, self.biases, self.scale, self.exponent)


def learn_rule(
    inputs: Tensor,
    labels: Tensor,
    *,
    objective: str,
    hidden: Sequence[int] = (100, 20),
    num_samples: int | None = None,
    label_noise: float = 0.0,
    num_problems: int = 100,
    num_trajectories: int = 3,
    stacked: int = 10,
    segments: tuple[int, float] = (10, 30.0),
    lengths: tuple[int, float] = (50, 100.0),
    batch_size: int = 32,
    judge_size: int | None = None,
    meta_rate: float = 0.01,
    start: UpdateRule | None = None,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> LearnedRule:
    """Learn an optimiser for fully connected networks, by default as in the thesis.

    A trajectory trains a network from new weights. It is cut into segments; after each the
    meta-objective, the mean loss over its steps, is propagated back to its beginning and the rule
    moves by RMSprop. `stacked` problems run side by side and share one step of the rule, so the
    rule moves that many times less often than with one problem at a time.

    Cost of a step: about 60 numbers a weight and problem, three times over; memory for 11 numbers a
    weight and problem at each of √t places, and for √t steps.

    Args:
        inputs: Features of the samples (N, d); their dtype and device are used.
        labels: Classes (N,).
        objective: "training" or "validation", as for `draw_problems`.
        hidden: Widths of the networks that are trained.
        num_samples: Samples of a problem, as for `draw_problems`.
        label_noise: Likewise.
        num_problems: How many problems there are.
        num_trajectories: Runs of each.
        stacked: Runs at once.
        segments: A run has a + Exp(b) segments.
        lengths: A segment has a + Exp(b) steps.
        batch_size: Samples of a step.
        judge_size: Samples of a look at the meta-objective, one after each step; as many as of a
            step by default.
        meta_rate: Step size of RMSprop.
        start: Rule to begin with; `UpdateRule.random(seed=seed)` by default.
        seed: Fixes everything.
        progress: Called after each segment's step of the rule; counts stacks.

    Returns:
        The rule and the course of its meta-objective. Not converged where a tenth of the segments
        or more had to be skipped.

    Raises:
        ShapeError: If samples and classes do not fit.
        InvalidArgumentError: If a number is out of range.
    """
    call = "learn_rule"
    total = require_count(num_problems, f"{call}(num_problems=...)")
    total *= require_count(num_trajectories, f"{call}(num_trajectories=...)")
    size = require_count(stacked, f"{call}(stacked=...)")
    b = require_count(batch_size, f"{call}(batch_size=...)")
    judges = require_count(judge_size or b, f"{call}(judge_size=...)")
    rule = (UpdateRule.random(seed=seed) if start is None else start).to(inputs).to_learn()
    rate = require_positive(meta_rate, f"{call}(meta_rate=...)")
    descent = torch.optim.RMSprop(rule.parameters, rate, _META_DECAY, _META_EPSILON)
    draw = torch.Generator().manual_seed(seed)
    losses: list[tuple[float, int]] = []
    skipped, ticker = 0, Ticker(progress, "learning an optimiser", total)
    for first in range(0, total, size):
        # Run i is a trajectory of problem i modulo their number.
        numbers = [i % num_problems for i in range(first, min(first + size, total))]
        problems = draw_problems(
            inputs,
            labels,
            objective=objective,
            numbers=numbers,
            num_samples=num_samples,
            label_noise=label_noise,
            seed=seed,
        )
        state = State.start(new_weights(problems, hidden, draw))
        for _ in range(_some(segments, draw)):
            t = _some(lengths, draw)
            fitted = problems.draw("fitted", t, b, draw)
            judged = problems.draw("judged", t, judges, draw)
            loss, state = _segment(rule, problems, state.detached(), hidden, fitted, judged)
            losses.append((float(loss.detach()), t))
            if not _descended(descent, rule, loss):
                skipped += 1
                break
        ticker.tick(min(first + size, total))
    found, steps = torch.tensor(losses, dtype=torch.float64).T
    return LearnedRule(
        status=_status(found, skipped).warn(),
        num_products=0,
        seed=seed,
        weights=tuple(part.detach() for part in rule.weights),
        biases=tuple(part.detach() for part in rule.biases),
        scale=rule.scale,
        exponent=rule.exponent,
        objective=objective,
        meta_losses=found,
        lengths=steps.long(),
        num_skipped=skipped,
    )


def _segment(
    rule: UpdateRule,
    problems: Problems,
    state: State,
    hidden: Sequence[int],
    fitted: Tensor,
    judged: Tensor,
) -> tuple[Tensor, State]:
    """Take steps on batches (t, p, b); return the mean loss after each on others, and the end."""
    sizes = sizes_of(problems, hidden)

    def several(
        w: Tensor, m: Tensor, v: Tensor, start: int, stop: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        here, total = State(w, m, v, state.step + start), w.new_zeros(())
        for place in range(start, stop):
            here = take_step(rule, here, sizes, problems.batches(fitted[place]))
            seen = mlp.losses(here.weights, sizes, *problems.batches(judged[place]))
            total = total + seen.mean()
        return here.weights, here.first, here.second, total

    t = len(fitted)
    here = (state.weights, state.first, state.second)
    if t * state.weights.nbytes * _KEPT <= _MOST_BYTES:
        w, m, v, loss = several(*here, 0, t)
        return loss / t, State(w, m, v, state.step + t)
    # Keep w, m and v of √t places only; on the way back the steps between are taken again.
    chunk = math.isqrt(t - 1) + 1
    loss = state.weights.new_zeros(())
    for start in range(0, t, chunk):
        stop = min(start + chunk, t)
        w, m, v, part = checkpoint(several, *here, start, stop, use_reentrant=False)
        here, loss = (w, m, v), loss + part
    return loss / t, State(*here, state.step + t)


def _some(kind: tuple[int, float], draw: torch.Generator) -> int:
    """Draw a + Exp(b), rounded down."""
    return int(kind[0] - kind[1] * math.log1p(-float(torch.rand((), generator=draw))))


def _descended(descent: torch.optim.Optimizer, rule: UpdateRule, loss: Tensor) -> bool:
    """Move the rule; or leave it, and say so, where the gradient is not finite."""
    descent.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(rule.parameters, _META_CLIP)
    if not bool(torch.isfinite(norm)):
        return False
    descent.step()
    return True


def _status(losses: Tensor, skipped: int) -> Status:
    text = (
        f"{len(losses)} segments; meta-objective {losses[0]:.3g} at first, {losses[-1]:.3g} last."
    )
    if skipped:
        text += f" {skipped} had no finite gradient."
    if skipped * 10 >= len(losses):
        return Status(False, f"{text} Lower `meta_rate` or the rule's `scale`.")
    return Status(True, text)


@dataclass(frozen=True, eq=False)
class Course(Record):
    """How networks fared; k looks at p networks.

    Attributes:
        steps: When it was looked (k,).
        train_losses: On the samples that are fitted (p, k).
        train_accuracies: Likewise, against their labels with noise (p, k).
        judged_losses: On the samples to judge by (p, k).
        test_accuracies: On the test samples, against true classes (p, k).
    """

    steps: Tensor
    train_losses: Tensor
    train_accuracies: Tensor
    judged_losses: Tensor
    test_accuracies: Tensor


@torch.no_grad()
def train_networks(
    how: UpdateRule | Tensor,
    problems: Problems,
    test: tuple[Tensor, Tensor],
    *,
    hidden: Sequence[int] = (100, 20),
    num_steps: int,
    batch_size: int = 32,
    num_looks: int = 20,
    seed: int = 0,
) -> Course:
    """Train a network on every problem and look at it from time to time.

    Args:
        how: A rule; or step sizes (p,), one for each problem, for plain stochastic gradient
            descent.
        problems: The problems.
        test: Features (T, d) and true classes (T,) of other samples.
        hidden: Widths of the networks.
        num_steps: t.
        batch_size: Samples of a step.
        num_looks: k, evenly spread, the last at the end.
        seed: Fixes weights and batches.

    Returns:
        Losses and accuracies.

    Raises:
        ShapeError: If step sizes or test samples do not fit.
        InvalidArgumentError: If a number is out of range.

    Examples:
        >>> x = torch.tensor([[1.0], [-1.0]]).repeat(20, 1)
        >>> y = torch.arange(40) % 2
        >>> problems = draw_problems(x, y, objective="training", numbers=[0])
        >>> course = train_networks(
        ...     torch.tensor([0.5]), problems, (x, y), hidden=(), num_steps=50, num_looks=2
        ... )
        >>> course.test_accuracies[0, -1].item()
        1.0
    """
    call = "train_networks"
    t = require_count(num_steps, f"{call}(num_steps=...)")
    looks = require_count(num_looks, f"{call}(num_looks=...)", at_most=t)
    b = require_count(batch_size, f"{call}(batch_size=...)")
    draw, sizes = torch.Generator().manual_seed(seed), sizes_of(problems, hidden)
    state = State.start(new_weights(problems, hidden, draw))
    step = _mover(how, problems, sizes)
    seen, at = [], [t * (k + 1) // looks for k in range(looks)]
    for stop in at:
        rows = problems.draw("fitted", stop - state.step, b, draw)
        for batch in rows:
            state = step(state, problems.batches(batch))
        seen.append(_look(state.weights, problems, test, sizes))
    columns = [torch.stack(part, 1) for part in zip(*seen, strict=True)]
    return Course(Status(True, f"{t} steps."), 0, seed, torch.tensor(at), *columns)


def _mover(
    how: UpdateRule | Tensor, problems: Problems, sizes: Sequence[int]
) -> Callable[[State, tuple[Tensor, Tensor]], State]:
    """Return what takes one step."""
    if isinstance(how, UpdateRule):
        rule = how.to(problems.inputs)
        return lambda state, batch: take_step(rule, state, sizes, batch)
    eta = step_sizes_of(how, "train_networks(how)").to(problems.inputs)
    if len(eta) != problems.num_problems:
        raise ShapeError(
            f"`train_networks(how)` must be a rule or {problems.num_problems} step sizes, one for "
            f"each problem; got {len(eta)}."
        )

    def descend(state: State, batch: tuple[Tensor, Tensor]) -> State:
        g = mlp.gradients(state.weights, sizes, *batch)
        return State(state.weights - eta[:, None] * g, state.first, state.second, state.step + 1)

    return descend


def _look(
    weights: Tensor, problems: Problems, test: tuple[Tensor, Tensor], sizes: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return losses and accuracies (p,) in float64 on the host, of 10 000 samples at most."""
    x, y = problems.batches(problems.fitted[:, :_MOST_SEEN])
    found = mlp.logits(weights, sizes, x)
    train = mlp.cross_entropy(found, y)
    right = (found.argmax(2) == y).double().mean(1)
    judged = mlp.losses(weights, sizes, *problems.batches(problems.judged[:, :_MOST_SEEN]))
    x, y = test[0].to(weights).expand(len(weights), -1, -1), problems.classes[:, test[1].cpu()]
    tested = (mlp.logits(weights, sizes, x).argmax(2) == y).double().mean(1)
    return train.double().cpu(), right.cpu(), judged.double().cpu(), tested.cpu()
