"""A segment and its gradient against autograd through an explicit loop over one network."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from eigenscape.errors import (
    CheckpointError,
    ConvergenceWarning,
    InvalidArgumentError,
    NonFiniteError,
    ShapeError,
    WrongTypeError,
)
from eigenscape.records import pack, unpack
from eigenscape_papers.stepsize import (
    Parts,
    ProblemKind,
    Problems,
    UpdateRule,
    _recorded,
    _segments,
    _stacked_mlp,
    draw_problems,
    learn_rules,
    learned,
    train_networks,
    weight_features,
)
from eigenscape_papers.stepsize._recorded import Recorded
from eigenscape_papers.stepsize._segments import Seen, Segments, cut
from eigenscape_papers.stepsize._stepping import State, new_weights

DECAYS = torch.tensor([0.5, 0.9, 0.99, 0.999, 0.9999], dtype=torch.float64)
SCALES = torch.tensor([3.0, 10, 30, 100, 300, 1000, 3000, 10_000, 300_000], dtype=torch.float64)
HIDDEN, SIZES = (4, 5), (6, 4, 5, 3)
SMALL = {"num_problems": 2, "num_trajectories": 1, "batch_size": 8, "hidden": (4,)}
SMALL |= {"segments": (2, 0.0), "lengths": (3, 0.0)}
HALVES = (slice(0, 2), slice(2, 4))
TRAINING, VALIDATION = ProblemKind("training"), ProblemKind("validation")


def samples(count: int = 40) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(count) % 3
    x = torch.randn(count, 6, generator=draw)
    return x + 2 * torch.nn.functional.one_hot(y, 6), y


def some_rules(count: int = 3) -> UpdateRule:
    draw = torch.Generator().manual_seed(5)
    rules = UpdateRule.random((7, 4)).to(torch.ones(())).repeated(count)
    moved = [p + 0.2 * torch.randn(p.shape, generator=draw) for p in rules.parameters]
    return rules.with_parameters(moved).to_learn()


def seen_by(
    problems: Problems, draw: torch.Generator, t: int, b: int, judge_size: int | None
) -> Seen:
    """Draw what stacked problems of one kind see."""
    rows = problems.draw("fitted", t, b, draw)
    judged = problems.judged if judge_size is None else problems.draw("judged", t, judge_size, draw)
    m = judged.shape[-1]
    shares = torch.full((problems.num_problems, m), 1 / m)
    return Seen(problems.inputs, problems.labels, rows, judged, shares)


def loss_of(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of one network, by torch's own functions."""
    start = 0
    for place, (i, o) in enumerate(itertools.pairwise(SIZES)):
        matrix, bias = w[start : start + i * o].view(o, i), w[start + i * o : start + i * o + o]
        start += i * o + o
        x = linear(x.relu() if place else x, matrix, bias)
    return cross_entropy(x, y)


def explicit(rules: UpdateRule, w: Tensor, seen: Seen) -> list[Tensor]:
    """Return the mean loss of each network over a segment, one after another."""
    found, parts = [], Parts.of([24, 4, 20, 5, 15, 3], w)
    for i in range(len(w)):
        here, m, v = w[i].clone().requires_grad_(), torch.zeros(5, 1), torch.zeros(5, 1)
        rule, total = rules[i], torch.zeros(())
        for step, rows in enumerate(seen.fitted[:, i]):
            others = (seen.judged if seen.judged.ndim == 2 else seen.judged[step])[i]
            others = others[seen.shares[i] > 0]
            total = total + loss_of(here, seen.inputs[others], seen.labels[i, others])
            seen_from = here.detach().requires_grad_()  # no second derivatives
            loss = loss_of(seen_from, seen.inputs[rows], seen.labels[i, rows])
            (g,) = torch.autograd.grad(loss, seen_from)
            m = DECAYS[:, None] * m + (1 - DECAYS[:, None]) * g
            v = DECAYS[:, None] * v + (1 - DECAYS[:, None]) * g**2
            features = weight_features(here[None], g[None], m[None], v[None], parts)[0].T
            x = torch.cat([features, torch.tanh((step + 1) / SCALES - 1).expand(len(g), 9)], 1)
            for place, (matrix, bias) in enumerate(zip(rule.weights, rule.biases, strict=True)):
                x = linear(x.relu() if place else x, matrix, bias)
            here = here - rule.scale * x[:, 0] * torch.exp(rule.exponent * x[:, 1])
        found.append(total / len(seen.fitted))
    return found


def test_stacked_gradients_are_those_of_autograd() -> None:
    x, y = samples()
    problems = draw_problems(x, y, objective="training", numbers=range(3), label_noise=0.5)
    draw = torch.Generator().manual_seed(1)
    w = new_weights(problems, HIDDEN, draw) + 0.1
    assert w.shape == (3, sum((n + 1) * m for n, m in pairwise(SIZES)))
    batch = problems.batches(problems.draw("fitted", 1, 9, draw)[0])
    found = _stacked_mlp.gradients(w, SIZES, *batch)
    values = _stacked_mlp.losses(w, SIZES, *batch)
    for i in range(3):
        one = w[i].clone().requires_grad_()
        loss = loss_of(one, batch[0][i], batch[1][i])
        (expected,) = torch.autograd.grad(loss, one)
        torch.testing.assert_close(found[i], expected)
        torch.testing.assert_close(values[i], loss.detach())


@pytest.mark.parametrize("judge_size", [4, None])
@pytest.mark.parametrize("most_bytes", [2**30, 0])
def test_a_segment_and_its_gradient(
    most_bytes: int, judge_size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_segments._MOST_BYTES, "cpu", most_bytes)  # 0: steps are taken again
    kinds = (TRAINING, ProblemKind("validation", 31, 0.3), ProblemKind("training", 12))
    problems = [draw_problems(*samples(), numbers=[i], **vars(k)) for i, k in enumerate(kinds)]
    draws = [torch.Generator().manual_seed(2 + i) for i in range(3)]
    pairs = zip(problems, draws, strict=True)
    w, rules = torch.cat([new_weights(each, HIDDEN, draw) for each, draw in pairs]), some_rules()
    seen = Seen.of(problems, draws, 7, 5, judge_size)
    losses, found, end = Segments(rules, SIZES, w).run(State.start(w), seen)
    plain = explicit(rules, w, seen)
    torch.testing.assert_close(losses, torch.stack(plain).detach())
    # Each rule moves its own network alone, so that slopes of the sum are each one's own.
    for ours, theirs in zip(found, torch.autograd.grad(sum(plain), rules.parameters), strict=True):
        assert bool((theirs.flatten(1).abs().amax(1) > 0).all())
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)
    assert end.step == 7
    assert end.weights.shape == w.shape
    assert not end.weights.requires_grad


def test_what_networks_of_different_kinds_see() -> None:
    kinds = (ProblemKind("validation", 31), ProblemKind("training", 12, 0.5))
    problems = [draw_problems(*samples(), numbers=[3], **vars(kind)) for kind in kinds]
    draws = [torch.Generator().manual_seed(2) for _ in kinds]
    seen = Seen.of(problems, draws, 50, 5, None)
    assert seen.fitted.shape == (50, 2, 5)
    assert seen.judged.shape == seen.shares.shape == (2, 16)
    for i, (problem, count) in enumerate(zip(problems, (16, 12), strict=True)):
        assert set(seen.fitted[:, i].flatten().tolist()) == set(problem.fitted[0].tolist())
        assert torch.equal(seen.judged[i, :count], problem.judged[0])
        assert seen.shares[i].tolist() == pytest.approx([1 / count] * count + [0] * (16 - count))
        assert torch.equal(seen.labels[i], problem.labels[0])
    x, y, others, classes, shares = seen.steps(3, 9)
    assert x.shape == (6, 2, 5, 6)
    assert torch.equal(x[2, 1], seen.inputs[seen.fitted[5, 1]])
    assert torch.equal(y[2, 1], problems[1].labels[0, seen.fitted[5, 1]])
    assert others.shape == (2, 16, 6)
    assert torch.equal(classes[1, :12], problems[1].labels[0, problems[1].judged[0]])
    assert shares is seen.shares


def test_the_gradient_ends_at_the_beginning_of_its_segment() -> None:
    problems = draw_problems(*samples(), objective="training", numbers=[0])
    draw = torch.Generator().manual_seed(2)
    rule, state = some_rules(1), State.start(new_weights(problems, HIDDEN, draw))
    segments = Segments(rule, SIZES, state.weights)
    seen = seen_by(problems, draw, 4, 5, 6)
    parts = [replace(seen, fitted=seen.fitted[i], judged=seen.judged[i]) for i in HALVES]
    whole, slopes, end = segments.run(state, seen)
    first, early, middle = segments.run(state, parts[0])
    second, late, last = segments.run(middle, parts[1])
    torch.testing.assert_close((first + second) / 2, whole)
    torch.testing.assert_close(last.weights, end.weights)
    assert last.step == end.step == 4
    assert not torch.allclose((early[0] + late[0]) / 2, slopes[0])


def test_pieces_have_all_steps() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert cut(7, 3, cpu) == [3, 3, 1]
    assert cut(8, 3, cpu) == [3, 3, 2]
    assert cut(22, 8, cuda) == [2, 4, 8, 8]  # few lengths to record, and the longest last
    assert cut(5, 8, cuda) == [1, 4]
    assert cut(16, 8, cuda) == [8, 8]


@pytest.mark.parametrize("works", [True, False])
def test_a_function_is_recorded_once_for_each_shape(
    works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def record(work: Callable[[], None], *_: object, **__: object) -> Callable[[], None] | None:
        asked.append(work)
        return work if works else None

    monkeypatch.setattr(_recorded, "record_graph", record)
    twice = Recorded(lambda x: (2 * x,), torch.device("cpu"))
    assert twice(torch.ones(2))[0].tolist() == [2, 2]
    assert asked == []  # on a CPU there is nothing to launch
    twice._use_graphs = True
    for size in (2, 3, 2):
        assert twice(torch.full((size,), 1.0 + size))[0].tolist() == [2 + 2 * size] * size
    assert len(asked) == (2 if works else 1)


def test_learning_lowers_the_meta_objective() -> None:
    x, y = samples(60)
    kind = {"hidden": (4,), "num_problems": 12, "num_trajectories": 1}
    kind |= {"segments": (6, 0.0), "lengths": (10, 0.0), "batch_size": 16}
    start = UpdateRule.random((6,))
    start = UpdateRule(start.weights, start.biases, scale=0.02)  # as runs are short
    (found,) = learn_rules(x, y, [TRAINING], start=start, **kind)
    assert found.meta_losses.shape == found.lengths.shape == (72,)
    assert found.num_skipped == 0
    problems = draw_problems(x, y, objective="training", numbers=range(50, 54))
    run = {"hidden": (4,), "num_steps": 40, "num_looks": 2}
    before = train_networks(start, problems, (x, y), **run)
    after = train_networks(found.rule, problems, (x, y), **run)
    assert float(after.train_losses[:, -1].mean()) < 0.8 * float(before.train_losses[:, -1].mean())


def test_the_same_seed_learns_the_same_rule_and_records_are_kept() -> None:
    once, again, other = (
        learn_rules(*samples(), [TRAINING], seed=s, **SMALL)[0] for s in (0, 0, 1)
    )
    for one, two in zip(once.rule.parameters, again.rule.parameters, strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(once.weights[0], other.weights[0])
    back = unpack(*pack(once))
    assert torch.equal(back.rule.weights[1], once.rule.weights[1])


@pytest.mark.parametrize("judge_size", [5, None])
def test_a_rule_learns_in_company_what_it_learns_alone(judge_size: int | None) -> None:
    kinds = [TRAINING, VALIDATION, ProblemKind("validation", 31, 0.4), ProblemKind("training", 12)]
    given = {**SMALL, "segments": (2, 1.0), "lengths": (3, 2.0), "judge_size": judge_size}
    together = learn_rules(*samples(), kinds, **given)
    assert [found.objective for found in together] == [kind.objective for kind in kinds]
    for kind, found in zip(kinds, together, strict=True):
        (alone,) = learn_rules(*samples(), [kind], **given)
        torch.testing.assert_close(found.meta_losses, alone.meta_losses)
        assert torch.equal(found.lengths, alone.lengths)
        # Products of several matrices round otherwise than of one, in float64; RMSprop divides.
        for one, other in zip(found.rule.parameters, alone.rule.parameters, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)
    for one, other in itertools.combinations(together, 2):
        assert not torch.allclose(one.weights[0], other.weights[0])


def test_runs_that_burst_are_skipped_and_told() -> None:
    wild = UpdateRule.random((3,))
    wild = UpdateRule(wild.weights, wild.biases, scale=1e200)
    with pytest.warns(ConvergenceWarning, match="were not finite"):
        (found,) = learn_rules(*samples(), [TRAINING], start=wild, **SMALL)
    assert found.num_skipped > 0
    assert all(bool(torch.isfinite(part).all()) for part in found.rule.parameters)


def test_a_run_that_bursts_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds, given = [TRAINING, VALIDATION], {**SMALL, "segments": (3, 0.0)}
    plain = learn_rules(*samples(), kinds, **given)
    run, calls = Segments.run, []

    def burst(self: Segments, state: State, seen: Seen) -> tuple[Tensor, list[Tensor], State]:
        losses, slopes, state = run(self, state, seen)
        calls.append(len(losses))
        if len(calls) == 2:  # the second segment of the first run
            losses[1] = torch.inf
            for slope in slopes:
                slope[1] = torch.nan
        return losses, slopes, state

    monkeypatch.setattr(Segments, "run", burst)
    with pytest.warns(ConvergenceWarning, match="1 were not finite"):
        first, second = learn_rules(*samples(), kinds, **given)
    assert len(calls) == 6
    assert torch.equal(first.meta_losses, plain[0].meta_losses)
    assert (first.num_skipped, second.num_skipped) == (0, 1)
    for one, other in zip(first.rule.parameters, plain[0].rule.parameters, strict=True):
        assert torch.equal(one, other)
    # Of its first run the other has one segment and the one that burst; then it goes on.
    assert len(second.meta_losses) == 5
    assert torch.equal(second.meta_losses[:1], plain[1].meta_losses[:1])
    assert second.meta_losses[1] == torch.inf
    assert bool(second.meta_losses[2:].isfinite().all())
    assert all(bool(part.isfinite().all()) for part in second.rule.parameters)


def test_lengths_are_a_count_and_an_exponential() -> None:
    draw = torch.Generator().manual_seed(0)
    drawn = torch.tensor([learned._some((10, 30.0), draw) for _ in range(20_000)]).double()
    assert int(drawn.min()) == 10
    assert float(drawn.mean()) == pytest.approx(39.5, abs=0.8)  # rounding down takes a half
    assert {learned._some((4, 0.0), draw) for _ in range(9)} == {4}


def test_descent_with_a_step_size_for_each_problem() -> None:
    x, y = samples()
    problems = draw_problems(x, y, objective="validation", numbers=[1, 1, 2])
    course = train_networks(
        torch.tensor([0.0, 0.3, 0.3]), problems, (x, y), hidden=(4,), num_steps=40, num_looks=4
    )
    assert course.steps.tolist() == [10, 20, 30, 40]
    assert course.train_losses.shape == (3, 4)
    assert torch.equal(course.train_losses[0, :1].expand(4), course.train_losses[0])
    assert bool((course.train_losses[1:, -1] < 0.5 * course.train_losses[1:, 0]).all())
    assert bool((course.test_accuracies[1:, -1] > 0.8).all())  # classes go by the problem's names


def test_refusals() -> None:
    x, y = samples()
    problems = draw_problems(x, y, objective="training", numbers=[0, 1])
    with pytest.raises(ShapeError, match="2 step sizes"):
        train_networks(torch.ones(3), problems, (x, y), num_steps=2, num_looks=1)
    with pytest.raises(InvalidArgumentError, match="num_looks"):
        train_networks(torch.ones(2), problems, (x, y), num_steps=2, num_looks=3)
    with pytest.raises(InvalidArgumentError, match="meta_rate"):
        learn_rules(x, y, [TRAINING], meta_rate=0.0)
    with pytest.raises(InvalidArgumentError, match="judge_size"):
        learn_rules(x, y, [TRAINING], judge_size=-1)
    with pytest.raises(InvalidArgumentError, match="kinds"):
        learn_rules(x, y, [])
    with pytest.raises(InvalidArgumentError, match="objective"):
        learn_rules(x, y, [TRAINING, ProblemKind("both")], **SMALL)


@pytest.mark.parametrize("name", ["segments", "lengths"])
def test_numbers_of_segments_and_steps_are_refused_before_any_is_run(name: str) -> None:
    for wrong in ((0, 0.0), (-1, 5.0)):
        with pytest.raises(InvalidArgumentError, match=rf"`learn_rules\({name}=...\)'s first"):
            learn_rules(*samples(), [TRAINING], **{**SMALL, name: wrong})
    for wrong in ((1, float("nan")), (1, -3.0), (1, float("inf")), (1,)):
        with pytest.raises(InvalidArgumentError, match=rf"`learn_rules\({name}=...\)` must be"):
            learn_rules(*samples(), [TRAINING], **{**SMALL, name: wrong})
    for wrong in ((float("nan"), 1.0), (1.5, 0.0)):
        with pytest.raises(WrongTypeError, match="must be an integer"):
            learn_rules(*samples(), [TRAINING], **{**SMALL, name: wrong})


def test_refusals_of_networks_and_of_test_samples() -> None:
    x, y = samples()
    problems = draw_problems(x, y, objective="training", numbers=[0])
    run = {"hidden": (4,), "num_steps": 2, "num_looks": 1}
    with pytest.raises(InvalidArgumentError, match=r"`learn_rules\(hidden=...\)`"):
        learn_rules(x, y, [TRAINING], **{**SMALL, "hidden": (0,)})
    with pytest.raises(InvalidArgumentError, match=r"`train_networks\(hidden=...\)`"):
        train_networks(torch.ones(1), problems, (x, y), **{**run, "hidden": (4, 0)})
    for call, given in (
        (learn_rules, (x, y, [TRAINING])),
        (train_networks, (torch.ones(1), problems, (x, y))),
    ):
        kind = SMALL if call is learn_rules else run
        with pytest.raises(WrongTypeError, match=rf"`{call.__name__}\(seed=...\)`"):
            call(*given, **kind, seed=1.5)
    for test, error, text in (
        ((x[:, :5], y), ShapeError, r"must have 6 features.*\(40, 5\)"),
        ((x, y[:9]), ShapeError, r"must be \(40,\); got \(9,\)"),
        ((x, y + 1), InvalidArgumentError, "classes from 0 to 2; got 1 to 3"),
        ((x, y - 1), InvalidArgumentError, "classes from 0 to 2; got -1 to 1"),
        ((x, y.double()), WrongTypeError, "tensor of integers"),
        ((x / 0, y), NonFiniteError, "NaN or infinite"),
    ):
        with pytest.raises(error, match=text):
            train_networks(torch.ones(1), problems, test, **run)


class _StoppedError(Exception):
    pass


def test_learning_that_was_stopped_ends_where_it_would_have(tmp_path):
    given = {**SMALL, "num_problems": 5, "segments": (2, 1.0), "lengths": (3, 2.0), "seed": 3}
    kinds = [VALIDATION, TRAINING]
    whole = learn_rules(*samples(), kinds, **given)

    def stop(step):
        if step.done >= 3:
            raise _StoppedError

    with pytest.raises(_StoppedError):
        learn_rules(*samples(), kinds, checkpoint=tmp_path, progress=stop, **given)
    seen = []
    later = learn_rules(
        *samples(),
        kinds,
        checkpoint=tmp_path,
        progress=lambda step: seen.append(step.done),
        **given,
    )
    assert min(seen) >= 2  # the first runs were not done again
    assert len(seen) >= 3
    for one, other in zip(later, whole, strict=True):
        assert torch.equal(one.meta_losses, other.meta_losses)
        assert torch.equal(one.lengths, other.lengths)
        for ours, theirs in zip(one.rule.parameters, other.rule.parameters, strict=True):
            assert torch.equal(ours, theirs)


def test_more_trajectories_go_on_from_fewer(tmp_path):
    given = {**SMALL, "num_problems": 3}
    given.pop("num_trajectories", None)
    (whole,) = learn_rules(*samples(), [TRAINING], num_trajectories=2, **given)
    (short,) = learn_rules(*samples(), [TRAINING], num_trajectories=1, checkpoint=tmp_path, **given)
    seen = []
    (longer,) = learn_rules(
        *samples(),
        [TRAINING],
        num_trajectories=2,
        checkpoint=tmp_path,
        progress=lambda step: seen.append(step.done),
        **given,
    )
    assert min(seen) >= 3  # runs
    assert len(short.meta_losses) < len(longer.meta_losses)
    assert torch.equal(longer.meta_losses, whole.meta_losses)
    for ours, theirs in zip(longer.rule.parameters, whole.rule.parameters, strict=True):
        assert torch.equal(ours, theirs)
    with pytest.raises(CheckpointError, match=r"holds 6 runs, more than the 3.*num_trajectories"):
        learn_rules(*samples(), [TRAINING], num_trajectories=1, checkpoint=tmp_path, **given)


def test_a_checkpoint_of_another_learning_is_refused(tmp_path):
    learn_rules(*samples(), [TRAINING], checkpoint=tmp_path, **SMALL)
    with pytest.raises(CheckpointError, match="kinds"):
        learn_rules(*samples(), [VALIDATION], checkpoint=tmp_path, **SMALL)
    with pytest.raises(CheckpointError, match="tensors"):
        learn_rules(*samples(50), [TRAINING], checkpoint=tmp_path, **SMALL)
