"""A segment and its gradient against autograd through an explicit loop over one network."""

import itertools
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from eigenscape.errors import (
    CheckpointError,
    ConvergenceWarning,
    InvalidArgumentError,
    ShapeError,
)
from eigenscape.records import pack, unpack
from eigenscape.stepsize import (
    Problems,
    UpdateRule,
    _recorded,
    _segments,
    _stacked_mlp,
    draw_problems,
    learn_rule,
    learned,
    train_networks,
)
from eigenscape.stepsize._recorded import Recorded
from eigenscape.stepsize._segments import Segments, cut
from eigenscape.stepsize._stepping import State, new_weights
from eigenscape.stepsize.update_rule import Parts, weight_features

DECAYS = torch.tensor([0.5, 0.9, 0.99, 0.999, 0.9999], dtype=torch.float64)
SCALES = torch.tensor([3.0, 10, 30, 100, 300, 1000, 3000, 10_000, 300_000], dtype=torch.float64)
HIDDEN, SIZES = (4, 5), (6, 4, 5, 3)
SMALL = {"num_problems": 2, "num_trajectories": 1, "stacked": 2, "batch_size": 8, "hidden": (4,)}
SMALL |= {"segments": (2, 0.0), "lengths": (3, 0.0)}


def samples(count: int = 40) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(count) % 3
    x = torch.randn(count, 6, generator=draw)
    return x + 2 * torch.nn.functional.one_hot(y, 6), y


def some_rule() -> UpdateRule:
    draw = torch.Generator().manual_seed(5)
    rule = UpdateRule.random((7, 4)).to(torch.ones(()))
    moved = [p + 0.2 * torch.randn(p.shape, generator=draw) for p in rule.parameters]
    return rule.with_parameters(moved).to_learn()


def loss_of(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of one network, by torch's own functions."""
    start = 0
    for place, (i, o) in enumerate(itertools.pairwise(SIZES)):
        matrix, bias = w[start : start + i * o].view(o, i), w[start + i * o : start + i * o + o]
        start += i * o + o
        x = linear(x.relu() if place else x, matrix, bias)
    return cross_entropy(x, y)


def explicit(
    rule: UpdateRule, problems: Problems, w: Tensor, fitted: Tensor, judged: Tensor
) -> Tensor:
    """Return the mean loss over a segment, one network after another."""
    total, parts = torch.zeros(()), Parts.of([24, 4, 20, 5, 15, 3], w)
    for i in range(len(w)):
        here, m, v = w[i].clone().requires_grad_(), torch.zeros(5, 1), torch.zeros(5, 1)
        for step, (rows, others) in enumerate(zip(fitted[:, i], judged[:, i], strict=True)):
            total = total + loss_of(here, problems.inputs[others], problems.labels[i, others])
            seen_from = here.detach().requires_grad_()  # no second derivatives
            loss = loss_of(seen_from, problems.inputs[rows], problems.labels[i, rows])
            (g,) = torch.autograd.grad(loss, seen_from)
            m = DECAYS[:, None] * m + (1 - DECAYS[:, None]) * g
            v = DECAYS[:, None] * v + (1 - DECAYS[:, None]) * g**2
            seen = weight_features(here[None], g[None], m[None], v[None], parts)[0].T
            x = torch.cat([seen, torch.tanh((step + 1) / SCALES - 1).expand(len(g), 9)], 1)
            for place, (matrix, bias) in enumerate(zip(rule.weights, rule.biases, strict=True)):
                x = linear(x.relu() if place else x, matrix, bias)
            here = here - rule.scale * x[:, 0] * torch.exp(rule.exponent * x[:, 1])
    return total / fitted[:, :, 0].numel()


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


@pytest.mark.parametrize("judged_by", ["some", "all"])
@pytest.mark.parametrize("most_bytes", [2**30, 0])
def test_a_segment_and_its_gradient(
    most_bytes: int, judged_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_segments._MOST_BYTES, "cpu", most_bytes)  # 0: steps are taken again
    problems = draw_problems(*samples(), objective="validation", numbers=range(3))
    draw = torch.Generator().manual_seed(2)
    w, rule = new_weights(problems, HIDDEN, draw), some_rule()
    fitted = problems.draw("fitted", 7, 5, draw)
    judged = problems.draw("judged", 7, 4, draw)
    segments = Segments(rule, SIZES, w)
    if judged_by == "all":
        loss, found, end = segments.run(problems, State.start(w), fitted)
        judged = problems.judged.expand(7, -1, -1)
    else:
        loss, found, end = segments.run(problems, State.start(w), fitted, judged)
    plain = explicit(rule, problems, w, fitted, judged)
    torch.testing.assert_close(loss, plain.detach())
    for ours, theirs in zip(found, torch.autograd.grad(plain, rule.parameters), strict=True):
        assert float(theirs.abs().max()) > 0
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)
    assert end.step == 7
    assert end.weights.shape == w.shape
    assert not end.weights.requires_grad


def test_the_gradient_ends_at_the_beginning_of_its_segment() -> None:
    problems = draw_problems(*samples(), objective="training", numbers=[0])
    draw = torch.Generator().manual_seed(2)
    rule, state = some_rule(), State.start(new_weights(problems, HIDDEN, draw))
    segments = Segments(rule, SIZES, state.weights)
    rows = problems.draw("fitted", 4, 5, draw)
    whole, slopes, end = segments.run(problems, state, rows, rows)
    first, early, middle = segments.run(problems, state, rows[:2], rows[:2])
    second, late, last = segments.run(problems, middle, rows[2:], rows[2:])
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
    kind = {"objective": "training", "hidden": (4,), "num_problems": 12, "num_trajectories": 1}
    kind |= {"segments": (6, 0.0), "lengths": (10, 0.0), "batch_size": 16}
    start = UpdateRule.random((6,))
    start = UpdateRule(start.weights, start.biases, scale=0.02)  # as runs are short
    found = learn_rule(x, y, start=start, **kind)
    assert found.meta_losses.shape == found.lengths.shape == (72,)
    assert found.num_skipped == 0
    problems = draw_problems(x, y, objective="training", numbers=range(50, 54))
    run = {"hidden": (4,), "num_steps": 40, "num_looks": 2}
    before = train_networks(start, problems, (x, y), **run)
    after = train_networks(found.rule, problems, (x, y), **run)
    assert float(after.train_losses[:, -1].mean()) < 0.8 * float(before.train_losses[:, -1].mean())


def test_the_same_seed_learns_the_same_rule_and_records_are_kept() -> None:
    once, again, other = (
        learn_rule(*samples(), objective="training", seed=s, **SMALL) for s in (0, 0, 1)
    )
    for one, two in zip(once.rule.parameters, again.rule.parameters, strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(once.weights[0], other.weights[0])
    back = unpack(*pack(once))
    assert torch.equal(back.rule.weights[1], once.rule.weights[1])


def test_both_objectives_differ() -> None:
    one, two = (learn_rule(*samples(), objective=o, **SMALL) for o in ("training", "validation"))
    assert one.objective == "training"
    assert not torch.equal(one.weights[0], two.weights[0])


def test_runs_that_burst_are_skipped_and_told() -> None:
    wild = UpdateRule.random((3,))
    wild = UpdateRule(wild.weights, wild.biases, scale=1e200)
    with pytest.warns(ConvergenceWarning, match="were not finite"):
        found = learn_rule(*samples(), objective="training", start=wild, **SMALL)
    assert found.num_skipped > 0
    assert all(bool(torch.isfinite(part).all()) for part in found.rule.parameters)


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
        learn_rule(x, y, objective="training", meta_rate=0.0)
    with pytest.raises(InvalidArgumentError, match="judge_size"):
        learn_rule(x, y, objective="training", judge_size=-1)
    with pytest.raises(InvalidArgumentError, match="objective"):
        learn_rule(x, y, objective="both", **SMALL)


class _StoppedError(Exception):
    pass


def test_learning_that_was_stopped_ends_where_it_would_have(tmp_path):
    given = {**SMALL, "num_problems": 5, "segments": (2, 1.0), "lengths": (3, 2.0), "seed": 3}
    whole = learn_rule(*samples(), objective="validation", **given)

    def stop(step):
        if step.done >= 3:  # in the second pair of runs
            raise _StoppedError

    with pytest.raises(_StoppedError):
        learn_rule(*samples(), objective="validation", checkpoint=tmp_path, progress=stop, **given)
    seen = []
    later = learn_rule(
        *samples(),
        objective="validation",
        checkpoint=tmp_path,
        progress=lambda step: seen.append(step.done),
        **given,
    )
    assert min(seen) >= 2  # the first pair of runs was not done again
    assert len(seen) >= 3
    assert torch.equal(later.meta_losses, whole.meta_losses)
    assert torch.equal(later.lengths, whole.lengths)
    for one, other in zip(later.rule.parameters, whole.rule.parameters, strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_of_another_learning_is_refused(tmp_path):
    learn_rule(*samples(), objective="training", checkpoint=tmp_path, **SMALL)
    with pytest.raises(CheckpointError, match="objective: 'training', now 'validation'"):
        learn_rule(*samples(), objective="validation", checkpoint=tmp_path, **SMALL)
    with pytest.raises(CheckpointError, match="tensors"):
        learn_rule(*samples(50), objective="training", checkpoint=tmp_path, **SMALL)
