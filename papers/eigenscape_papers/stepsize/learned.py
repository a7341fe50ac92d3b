"""Learn optimisers on training loss or on validation loss, and train networks with them.

Letters as in `update_rule.py`; t steps, b samples a batch.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.errors import (
    CheckpointError,
    InvalidArgumentError,
    ShapeError,
    require_count,
    require_positive,
    require_seed,
)
from eigenscape.records import Checkpoint, Key, ProgressCallback, Record, Status, Ticker, crc
from eigenscape_papers.stepsize import _stacked_mlp as mlp
from eigenscape_papers.stepsize._checks import (
    require_classes,
    require_finite,
    require_widths,
    step_sizes_of,
)
from eigenscape_papers.stepsize._recorded import Recorded, Work
from eigenscape_papers.stepsize._segments import MOST_STEPS, Seen, Segments, cut
from eigenscape_papers.stepsize._stepping import (
    Layout,
    State,
    clocks,
    joined,
    new_weights,
    sizes_of,
    take_step,
)
from eigenscape_papers.stepsize.problems import ProblemKind, Problems, draw_problems
from eigenscape_papers.stepsize.update_rule import UpdateRule

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


def learn_rules(
    inputs: Tensor,
    labels: Tensor,
    kinds: Sequence[ProblemKind],
    *,
    hidden: Sequence[int] = (100, 20),
    num_problems: int = 100,
    num_trajectories: int = 3,
    segments: tuple[int, float] = (10, 30.0),
    lengths: tuple[int, float] = (50, 100.0),
    batch_size: int = 32,
    judge_size: int | None = None,
    meta_rate: float = 0.01,
    start: UpdateRule | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> tuple[LearnedRule, ...]:
    """Learn optimisers for fully connected networks, one for each kind of problems.

    A trajectory trains a network from new weights. It is cut into segments; after each the
    meta-objective, the mean loss over its steps, is propagated back to its beginning and the rule
    moves by RMSprop. Derivatives pass through the weights and not through their gradients.
    Rules are learned side by side, step by step, since steps of one small network leave most of a
    GPU idle. What a rule learns does not depend on the others: all have the same first weights,
    batches drawn by the same random numbers, and segments of the same lengths.

    By default all numbers are those of Thesis D.6.1, and what it leaves open is as in its code: no
    second derivatives, RMSprop with a decay of 0.9 whose mean squares begin at 1, slopes cut off at
    ±10 000, and a meta-objective on all samples to judge by. A run ends where that is not finite.

    Cost of a step, counted for the thesis's networks and rule: 490 numbers a weight and rule are
    read or written on the way forward, 370 on the way back; memory for 11 numbers a weight and
    rule where each piece of a segment begins, and for 60 at each step of one piece. On a CUDA
    device a piece is one launch; and in float32, with Triton and one hidden layer of at most 64 in
    the rule, kernels of our own read or write 50 and 36 numbers and 13 are kept.

    Args:
        inputs: Features of the samples (N, d); their dtype and device are used.
        labels: Classes (N,), integers from 0.
        kinds: What a rule is learned on; p of them.
        hidden: Widths of the networks that are trained.
        num_problems: How many problems of each kind there are.
        num_trajectories: Runs of each.
        segments: A run has a + Exp(b) segments, a ≥ 1.
        lengths: A segment has a + Exp(b) steps, a ≥ 1.
        batch_size: Samples of a step.
        judge_size: Samples of a look at the meta-objective, drawn anew before each step; all by
            default.
        meta_rate: Step size of RMSprop.
        start: Rule to begin with; `UpdateRule.random(seed=seed)` by default.
        checkpoint: Folder in which to save the state after every run; called again with the same
            arguments, learning goes on from there and ends where it would have. So it does with
            more trajectories.
        seed: Fixes everything.
        progress: Called after each segment; counts runs.

    Returns:
        The rules and the courses of their meta-objectives, kind by kind. Not converged where a
        tenth of the segments or more had to be skipped.

    Raises:
        ShapeError: If samples and classes do not fit.
        InvalidArgumentError: If a number is out of range.
        CheckpointError: If the checkpoint is of another call, or of more runs.
    """
    call = "learn_rules"
    require_count(len(kinds), f"{call}(kinds)")
    total = require_count(num_problems, f"{call}(num_problems=...)")
    total *= require_count(num_trajectories, f"{call}(num_trajectories=...)")
    b = require_count(batch_size, f"{call}(batch_size=...)")
    if judge_size is not None:
        require_count(judge_size, f"{call}(judge_size=...)")
    require_widths(hidden, f"{call}(hidden=...)")
    _require_some(segments, f"{call}(segments=...)")
    _require_some(lengths, f"{call}(lengths=...)")
    require_seed(seed, call)
    rule = (UpdateRule.random(seed=seed) if start is None else start).to(inputs)
    rate = require_positive(meta_rate, f"{call}(meta_rate=...)")
    lesson = _Lesson.start(rule, len(kinds))
    if checkpoint is not None:
        key: Key = {"call": call, "seed": seed, "meta_rate": rate, "hidden": [*hidden]}
        key |= {"kinds": [vars(kind) for kind in kinds], "problems": num_problems}
        key |= {"batches": [b, judge_size], "segments": [*segments], "lengths": [*lengths]}
        key["rule"] = [rule.scale, rule.exponent]
        key["tensors"] = [f"{crc(t):08x}" for t in (inputs, labels, *rule.parameters)]
        lesson.save_in(checkpoint, key)
        if lesson.done > total:
            raise CheckpointError(
                f"`{call}(checkpoint=...)` holds {lesson.done} runs, more than the {total} that "
                "are asked for. Raise `num_trajectories`, or use another folder."
            )
    moves: Segments | None = None
    ticker = Ticker(progress, "learning optimisers", total)
    for run in range(lesson.done, total):
        # A trajectory of problem `run` modulo their number, of each kind.
        number = run % num_problems
        problems = [
            draw_problems(inputs, labels, numbers=[number], seed=seed, **vars(kind))
            for kind in kinds
        ]
        clock, *draws = _draws(seed, run, len(kinds))
        pairs = zip(problems, draws, strict=True)
        state = State.start(torch.cat([new_weights(each, hidden, draw) for each, draw in pairs]))
        moves = moves or Segments(lesson.rules, sizes_of(problems[0], hidden), inputs)
        lesson.begin()
        count = _some(segments, clock)
        for k in range(count):
            t = _some(lengths, clock)
            batches = Seen.of(problems, draws, t, b, judge_size)
            losses, slopes, state = moves.run(state, batches)
            if not lesson.learned(losses.tolist(), t, slopes, rate):
                break
            ticker.tick(run + (k + 1) // count)
        lesson.end(run + 1)
        ticker.tick(lesson.done)
    return lesson.results([kind.objective for kind in kinds], seed)


def _draws(seed: int, run: int, count: int) -> list[torch.Generator]:
    """Return random numbers of a run: for its lengths, and the same for each of the rules.

    They are of the run and not of the course before it, so that a run which ends early changes
    nothing in later ones, and rules stay side by side. Problems have such seeds too; but for
    the lengths of run 0, no run meets a problem that was drawn by its own numbers.
    """
    first = 2 * (1_000_003 * seed + run)
    return [torch.Generator().manual_seed(first + (i > 0)) for i in range(count + 1)]


@dataclass(eq=False)
class _Lesson:
    """Rules that are learned, with all that decides over how they go on.

    Attributes:
        rules: The rules, moved in place.
        squares: Moving means of their squared slopes.
        losses: Of each rule, meta-objective and steps of each segment.
        skipped: Of each rule, segments whose meta-objective was not finite.
        running: Which rules' runs have not ended early.
        done: Runs that have ended.
        checkpoint: Where it is saved; None for nowhere.
    """

    rules: UpdateRule
    squares: list[Tensor]
    losses: list[list[tuple[float, float]]]
    skipped: list[int]
    running: list[bool]
    done: int = 0
    checkpoint: Checkpoint | None = None

    @classmethod
    def start(cls, rule: UpdateRule, count: int) -> "_Lesson":
        """Return so many that have learned nothing."""
        rules = rule.repeated(count).to_learn()
        squares = [torch.ones_like(parameter) for parameter in rules.parameters]
        return cls(rules, squares, [[] for _ in range(count)], [0] * count, [True] * count)

    def begin(self) -> None:
        """Begin a run of every rule."""
        self.running = [True] * len(self.running)

    @torch.no_grad()
    def learned(
        self, losses: Sequence[float], steps: int, slopes: Sequence[Tensor], rate: float
    ) -> bool:
        """Move rules by RMSprop, but those whose loss is not finite; tell whether some run on."""
        for i, loss in enumerate(losses):
            if self.running[i]:
                self.losses[i].append((loss, steps))
                if not math.isfinite(loss):
                    self.running[i] = False
                    self.skipped[i] += 1
        if not any(self.running):
            return False
        for parameter, square, slope in zip(
            self.rules.parameters, self.squares, slopes, strict=True
        ):
            moving = torch.tensor(self.running).view(-1, *(1,) * (parameter.ndim - 1)).to(parameter)
            # What is not finite counts as 0.
            known = slope.nan_to_num(0.0, 0.0, 0.0).clamp(-_META_CLIP, _META_CLIP)
            square.lerp_(known.square(), (1 - _META_DECAY) * moving)
            parameter.sub_(rate * moving * known * torch.rsqrt(square + _META_EPSILON))
        return True

    @torch.no_grad()
    def save_in(self, folder: str | os.PathLike[str], key: Key) -> None:
        """Save the state there from now on, and go on from what is there."""
        self.checkpoint = Checkpoint(folder, key)
        if not (pieces := self.checkpoint.load()):
            return
        kept = pieces[-1]
        for name, tensors in self._tensors().items():
            for i, tensor in enumerate(tensors):
                tensor.copy_(kept[f"{name}.{i}"])
        for i in range(len(self.losses)):
            self.losses[i] = [(float(loss), float(t)) for loss, t in kept[f"losses.{i}"]]
        self.done, *self.skipped = (int(number) for number in kept["counts"])

    def end(self, done: int) -> None:
        """Note that so many runs have ended, and save."""
        self.done = done
        if self.checkpoint is None:
            return
        named = self._tensors().items()
        kept = {
            f"{name}.{i}": tensor.detach() for name, each in named for i, tensor in enumerate(each)
        }
        for i, losses in enumerate(self.losses):
            kept[f"losses.{i}"] = torch.tensor(losses, dtype=torch.float64)
        kept["counts"] = torch.tensor([done, *self.skipped])
        self.checkpoint.replace(kept)

    def _tensors(self) -> dict[str, Sequence[Tensor]]:
        return {"rules": self.rules.parameters, "squares": self.squares}

    def results(self, objectives: Sequence[str], seed: int) -> tuple[LearnedRule, ...]:
        """Return what was learned."""
        learned_rules = []
        for i, objective in enumerate(objectives):
            losses, steps = torch.tensor(self.losses[i], dtype=torch.float64).T
            rule = self.rules[i]
            learned_rules.append(
                LearnedRule(
                    status=_status(losses, self.skipped[i]).warn(),
                    num_products=0,
                    seed=seed,
                    weights=tuple(tensor.detach().clone() for tensor in rule.weights),
                    biases=tuple(tensor.detach().clone() for tensor in rule.biases),
                    scale=rule.scale,
                    exponent=rule.exponent,
                    objective=objective,
                    meta_losses=losses,
                    lengths=steps.long(),
                    num_skipped=self.skipped[i],
                )
            )
        return tuple(learned_rules)


def _require_some(kind: tuple[int, float], call: str) -> None:
    """Refuse what has no number at the least, or no finite mean."""
    if len(kind) != 2 or not 0.0 <= kind[1] < math.inf:
        raise InvalidArgumentError(
            f"`{call}` must be (a, b) for a + Exp(b), b finite and not below 0; got {kind}."
        )
    require_count(kind[0], f"{call}'s first number")


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
        WrongTypeError: If test classes are no integers.
        ShapeError: If step sizes or test samples do not fit.
        InvalidArgumentError: If a number is out of range, or a test class is none of the problems'.
        NonFiniteError: If a test sample is NaN or infinite.

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
    require_widths(hidden, f"{call}(hidden=...)")
    require_seed(seed, call)
    _require_test(test, problems, call)
    draw, sizes = torch.Generator().manual_seed(seed), sizes_of(problems, hidden)
    state = State.start(new_weights(problems, hidden, draw))
    move = Recorded(_mover(how, problems, sizes), problems.inputs.device)
    measured, at = [], [t * (k + 1) // looks for k in range(looks)]
    for stop in at:
        rows = problems.draw("fitted", stop - state.step, b, draw)
        for chunk in rows.split(cut(len(rows), min(MOST_STEPS, len(rows)), rows.device)):
            batches = (*problems.batches(chunk), clocks(state.step, len(chunk), state.weights))
            w, m, v = move(*state.tensors, *batches)
            state = State(w, m, v, state.step + len(chunk))
        measured.append(_look(state.weights, problems, test, sizes))
    columns = [torch.stack(column, 1) for column in zip(*measured, strict=True)]
    return Course(Status(True, f"{t} steps."), 0, seed, torch.tensor(at), *columns)


def _require_test(test: tuple[Tensor, Tensor], problems: Problems, call: str) -> None:
    """Refuse test samples that are none of the problems' kind."""
    x = require_finite(test[0], f"{call}(test)[0]", ndim=2)
    d, c = problems.inputs.shape[1], problems.classes.shape[1]
    if x.shape[1] != d:
        raise ShapeError(
            f"`{call}(test)[0]` must have {d} features, as the problems have; got {tuple(x.shape)}."
        )
    require_classes(test[1], f"{call}(test)[1]", length=len(x), num_classes=c)


def _mover(how: UpdateRule | Tensor, problems: Problems, sizes: Sequence[int]) -> Work:
    """Return what takes steps on (k, p, b, d) and (k, p, b), from w, m and v to those after."""
    if isinstance(how, UpdateRule):
        rule, layout = how.to(problems.inputs), Layout.of(sizes, problems.inputs)

        def follow(w: Tensor, m: Tensor, v: Tensor, *batches: Tensor) -> tuple[Tensor, ...]:
            here, rows = (w, m, v), joined(rule, w)
            for x, y, clock in zip(*batches, strict=True):
                here = take_step(rule, here, layout, (x, y), clock, rows)
            return here

        return follow
    eta = step_sizes_of(how, "train_networks(how)").to(problems.inputs)
    if len(eta) != problems.num_problems:
        raise ShapeError(
            f"`train_networks(how)` must be a rule or {problems.num_problems} step sizes, one for "
            f"each problem; got {len(eta)}."
        )

    def descend(w: Tensor, m: Tensor, v: Tensor, *batches: Tensor) -> tuple[Tensor, ...]:
        for x, y, _ in zip(*batches, strict=True):
            w = torch.addcmul(w, eta[:, None], mlp.gradients(w, sizes, x, y), value=-1)
        return w, m, v

    return descend


def _look(
    weights: Tensor, problems: Problems, test: tuple[Tensor, Tensor], sizes: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return losses and accuracies (p,) in float64 on the host, of 10 000 samples at most."""
    x, y = problems.batches(problems.fitted[:, :_MOST_SEEN])
    z = mlp.logits(weights, sizes, x)
    train = mlp.cross_entropy(z, y)
    right = (z.argmax(2) == y).double().mean(1)
    judged = mlp.losses(weights, sizes, *problems.batches(problems.judged[:, :_MOST_SEEN]))
    x, y = test[0].to(weights).expand(len(weights), -1, -1), problems.classes[:, test[1].cpu()]
    tested = (mlp.logits(weights, sizes, x).argmax(2) == y).double().mean(1)
    return train.double().cpu(), right.cpu(), judged.double().cpu(), tested.cpu()
