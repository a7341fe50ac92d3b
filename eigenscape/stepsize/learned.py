"""Learn an optimiser on training loss or on validation loss, and train networks with it.

Letters as in `update_rule.py`; t steps, b samples a batch.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.checkpoint import Checkpoint, Key
from eigenscape.errors import ShapeError, require_count, require_positive
from eigenscape.files import crc
from eigenscape.progress import ProgressCallback, Ticker
from eigenscape.records import Record, Status
from eigenscape.stepsize import _stacked_mlp as mlp
from eigenscape.stepsize._checks import step_sizes_of
from eigenscape.stepsize._recorded import Recorded, Work
from eigenscape.stepsize._segments import MOST_STEPS, Segments, batches, cut
from eigenscape.stepsize._stepping import (
    Layout,
    State,
    clocks,
    joined,
    new_weights,
    sizes_of,
    take_step,
)
from eigenscape.stepsize.problems import Problems, draw_problems
from eigenscape.stepsize.update_rule import UpdateRule

# Of RMSprop, as the thesis's code has it: mean squares begin at 1, and slopes are cut off.
_META_DECAY, _META_EPSILON, _META_CLIP = 0.9, 1e-10, 1e4
_MOST_SEEN = 10_000


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
        num_skipped: Segments whose meta-objective was not finite; their runs ended there.
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
    stacked: int = 1,
    segments: tuple[int, float] = (10, 30.0),
    lengths: tuple[int, float] = (50, 100.0),
    batch_size: int = 32,
    judge_size: int | None = None,
    meta_rate: float = 0.01,
    start: UpdateRule | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> LearnedRule:
    """Learn an optimiser for fully connected networks.

    A trajectory trains a network from new weights. It is cut into segments; after each the
    meta-objective, the mean loss over its steps, is propagated back to its beginning and the rule
    moves by RMSprop. Derivatives pass through the weights and not through their gradients.
    `stacked` problems run side by side and share one step of the rule, so the rule moves that many
    times less often than with one problem at a time.

    By default all numbers are those of Thesis D.6.1, and what it leaves open is as in its code: no
    second derivatives, RMSprop with a decay of 0.9 whose mean squares begin at 1, slopes cut off at
    ±10 000, and a meta-objective on all samples to judge by. A run ends where that is not finite.

    Cost of a step, counted for the thesis's networks and rule: 490 numbers a weight and problem are
    read or written on the way forward, 370 on the way back; memory for 11 numbers a weight and
    problem where each piece of a segment begins, and for 60 at each step of one piece. On a CUDA
    device a piece is one launch; and in float32, with Triton and one hidden layer of at most 64 in
    the rule, kernels of our own read or write 50 and 36 numbers and 13 are kept.

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
        judge_size: Samples of a look at the meta-objective, drawn anew before each step; all by
            default.
        meta_rate: Step size of RMSprop.
        start: Rule to begin with; `UpdateRule.random(seed=seed)` by default.
        checkpoint: Folder in which to save the state after every `stacked` runs; called again with
            the same arguments, learning goes on from there and ends where it would have.
        seed: Fixes everything.
        progress: Called after each segment's step of the rule; counts runs.

    Returns:
        The rule and the course of its meta-objective. Not converged where a tenth of the segments
        or more had to be skipped.

    Raises:
        ShapeError: If samples and classes do not fit.
        InvalidArgumentError: If a number is out of range.
        CheckpointError: If the checkpoint is of another call.
    """
    call = "learn_rule"
    total = require_count(num_problems, f"{call}(num_problems=...)")
    total *= require_count(num_trajectories, f"{call}(num_trajectories=...)")
    size = require_count(stacked, f"{call}(stacked=...)")
    b = require_count(batch_size, f"{call}(batch_size=...)")
    if judge_size is not None:
        require_count(judge_size, f"{call}(judge_size=...)")
    rule = (UpdateRule.random(seed=seed) if start is None else start).to(inputs)
    rate = require_positive(meta_rate, f"{call}(meta_rate=...)")
    kind: Key = {"objective": objective, "num_samples": num_samples, "label_noise": label_noise}
    lesson = _Lesson.start(rule, seed)
    if checkpoint is not None:
        key: Key = {**kind, "call": call, "seed": seed, "meta_rate": rate, "hidden": [*hidden]}
        key |= {
            "problems": num_problems,
            "runs": total,
            "stacked": size,
            "batches": [b, judge_size],
        }
        key |= {"segments": [*segments], "lengths": [*lengths], "rule": [rule.scale, rule.exponent]}
        key["tensors"] = [f"{crc(t):08x}" for t in (inputs, labels, *rule.parameters)]
        lesson.save_in(checkpoint, key)
    moves: Segments | None = None
    ticker = Ticker(progress, "learning an optimiser", total)
    for first in range(lesson.done, total, size):
        # Run i is a trajectory of problem i modulo their number.
        numbers = [i % num_problems for i in range(first, min(first + size, total))]
        problems = draw_problems(inputs, labels, numbers=numbers, seed=seed, **kind)
        draw = lesson.draw
        state = State.start(new_weights(problems, hidden, draw))
        moves = moves or Segments(lesson.rule, sizes_of(problems, hidden), inputs)
        count = _some(segments, draw)
        for k in range(count):
            t = _some(lengths, draw)
            fitted = problems.draw("fitted", t, b, draw)
            judged = problems.draw("judged", t, judge_size, draw) if judge_size else None
            loss, slopes, state = moves.run(problems, state, fitted, judged)
            if not lesson.learned(float(loss), t, slopes, rate):
                break
            ticker.tick(first + len(numbers) * (k + 1) // count)
        lesson.end(first + len(numbers))
        ticker.tick(lesson.done)
    return lesson.result(objective, seed)


@dataclass(eq=False)
class _Lesson:
    """A rule that is learned, with all that decides over how it goes on.

    Attributes:
        rule: The rule, moved in place.
        squares: Moving means of its squared slopes.
        draw: Draws weights, batches and lengths.
        losses: Meta-objective and steps of each segment.
        skipped: Segments whose meta-objective was not finite.
        done: Runs that have ended.
        checkpoint: Where it is saved; None for nowhere.
    """

    rule: UpdateRule
    squares: list[Tensor]
    draw: torch.Generator
    losses: list[tuple[float, float]]
    skipped: int = 0
    done: int = 0
    checkpoint: Checkpoint | None = None

    @classmethod
    def start(cls, rule: UpdateRule, seed: int) -> "_Lesson":
        """Return one that has learned nothing."""
        rule = rule.to_learn()
        squares = [torch.ones_like(part) for part in rule.parameters]
        return cls(rule, squares, torch.Generator().manual_seed(seed), [])

    @torch.no_grad()
    def learned(self, loss: float, steps: int, slopes: Sequence[Tensor], rate: float) -> bool:
        """Move the rule by RMSprop; or leave it, and say so, where the loss is not finite."""
        self.losses.append((loss, steps))
        if not math.isfinite(loss):
            self.skipped += 1
            return False
        for part, square, slope in zip(self.rule.parameters, self.squares, slopes, strict=True):
            # What is not finite counts as 0.
            known = slope.nan_to_num(0.0, 0.0, 0.0).clamp(-_META_CLIP, _META_CLIP)
            square.lerp_(known.square(), 1 - _META_DECAY)
            part.sub_(rate * known * torch.rsqrt(square + _META_EPSILON))
        return True

    @torch.no_grad()
    def save_in(self, folder: str | os.PathLike[str], key: Key) -> None:
        """Save the state there from now on, and go on from what is there."""
        self.checkpoint = Checkpoint(folder, key)
        if not (pieces := self.checkpoint.load()):
            return
        kept = pieces[-1]
        for name, parts in self._tensors().items():
            for i, part in enumerate(parts):
                part.copy_(kept[f"{name}.{i}"])
        self.draw.set_state(kept["draw"])
        self.losses = [(float(loss), float(steps)) for loss, steps in kept["losses"]]
        self.skipped, self.done = (int(number) for number in kept["counts"])

    def end(self, done: int) -> None:
        """Note that so many runs have ended, and save."""
        self.done = done
        if self.checkpoint is None:
            return
        parts = self._tensors().items()
        kept = {f"{name}.{i}": part.detach() for name, each in parts for i, part in enumerate(each)}
        kept["losses"] = torch.tensor(self.losses, dtype=torch.float64)
        kept["draw"], kept["counts"] = self.draw.get_state(), torch.tensor([self.skipped, done])
        self.checkpoint.replace(kept)

    def _tensors(self) -> dict[str, Sequence[Tensor]]:
        return {"rule": self.rule.parameters, "squares": self.squares}

    def result(self, objective: str, seed: int) -> LearnedRule:
        """Return what was learned."""
        losses, steps = torch.tensor(self.losses, dtype=torch.float64).T
        return LearnedRule(
            status=_status(losses, self.skipped).warn(),
            num_products=0,
            seed=seed,
            weights=tuple(part.detach() for part in self.rule.weights),
            biases=tuple(part.detach() for part in self.rule.biases),
            scale=self.rule.scale,
            exponent=self.rule.exponent,
            objective=objective,
            meta_losses=losses,
            lengths=steps.long(),
            num_skipped=self.skipped,
        )


def _some(kind: tuple[int, float], draw: torch.Generator) -> int:
    """Draw a + Exp(b), rounded down."""
    return int(kind[0] - kind[1] * math.log1p(-float(torch.rand((), generator=draw))))


def _status(losses: Tensor, skipped: int) -> Status:
    text = (
        f"{len(losses)} segments; meta-objective {losses[0]:.3g} at first, {losses[-1]:.3g} last."
    )
    if skipped:
        text += f" {skipped} were not finite."
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
    move = Recorded(_mover(how, problems, sizes), problems.inputs.device)
    seen, at = [], [t * (k + 1) // looks for k in range(looks)]
    for stop in at:
        rows = problems.draw("fitted", stop - state.step, b, draw)
        for part in rows.split(cut(len(rows), min(MOST_STEPS, len(rows)), rows.device)):
            given = (*batches(problems, part), clocks(state.step, len(part), state.weights))
            w, m, v = move(*state.tensors, *given)
            state = State(w, m, v, state.step + len(part))
        seen.append(_look(state.weights, problems, test, sizes))
    columns = [torch.stack(part, 1) for part in zip(*seen, strict=True)]
    return Course(Status(True, f"{t} steps."), 0, seed, torch.tensor(at), *columns)


def _mover(how: UpdateRule | Tensor, problems: Problems, sizes: Sequence[int]) -> Work:
    """Return what takes steps on (k, p, b, d) and (k, p, b), from w, m and v to those after."""
    if isinstance(how, UpdateRule):
        rule, layout = how.to(problems.inputs), Layout.of(sizes, problems.inputs)

        def follow(w: Tensor, m: Tensor, v: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
            here, rows = (w, m, v), joined(rule, w)
            for x, y, clock in zip(*given, strict=True):
                here = take_step(rule, here, layout, (x, y), clock, rows)
            return here

        return follow
    eta = step_sizes_of(how, "train_networks(how)").to(problems.inputs)
    if len(eta) != problems.num_problems:
        raise ShapeError(
            f"`train_networks(how)` must be a rule or {problems.num_problems} step sizes, one for "
            f"each problem; got {len(eta)}."
        )

    def descend(w: Tensor, m: Tensor, v: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        for x, y, _ in zip(*given, strict=True):
            w = torch.addcmul(w, eta[:, None], mlp.gradients(w, sizes, x, y), value=-1)
        return w, m, v

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
