"""Learned optimisers on a GPU: recorded steps are those of the CPU, on the way forth and back."""

import pytest
import torch
from torch import Tensor

from eigenscape_papers.stepsize import (
    ProblemKind,
    Problems,
    UpdateRule,
    draw_problems,
    learn_rules,
    train_networks,
)
from eigenscape_papers.stepsize._segments import Seen, Segments
from eigenscape_papers.stepsize._stepping import State, is_fused, new_weights

pytestmark = pytest.mark.gpu
SIZES = (6, 4, 5, 3)
STEPS = 16  # of a piece: several pieces in few steps, since steps amplify rounding


@pytest.fixture(autouse=True)
def _short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("_segments", "learned"):
        monkeypatch.setattr(f"eigenscape_papers.stepsize.{module}.MOST_STEPS", STEPS)


def samples(device: str) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(40) % 3
    x = torch.randn(40, 6, generator=draw, dtype=torch.float64)
    return (x + 2 * torch.nn.functional.one_hot(y, 6)).to(device), y.to(device)


def some_rule(device: str) -> UpdateRule:
    draw = torch.Generator().manual_seed(5)
    rule = UpdateRule.random((7, 4)).to(torch.ones((), dtype=torch.float64))
    moved = [
        p + 0.2 * torch.randn(p.shape, generator=draw, dtype=torch.float64) for p in rule.parameters
    ]
    return rule.with_parameters(moved).to(torch.ones((), dtype=torch.float64, device=device))


def some_rules(rule: UpdateRule, count: int) -> UpdateRule:
    """Return rules that differ, to learn."""
    rules = rule.repeated(count)
    factors = [torch.linspace(1, 0.8, count).view(-1, *(1,) * p.ndim) for p in rule.parameters]
    pairs = zip(rules.parameters, factors, strict=True)
    return rules.with_parameters([p * factor.to(p) for p, factor in pairs]).to_learn()


def some_problems(x: Tensor, y: Tensor, count: int) -> list[Problems]:
    """Return problems of several kinds, one each."""
    kinds = [ProblemKind("validation", 30 + i, 0.1 * i) for i in range(count)]
    return [draw_problems(x, y, numbers=[i], **vars(kind)) for i, kind in enumerate(kinds)]


def segment(device: str) -> list[Tensor]:
    """Run two segments of several pieces, with a change of the rules between them."""
    draw, rules = torch.Generator().manual_seed(2), some_rules(some_rule(device), 3)
    problems = some_problems(*samples(device), 3)
    state = State.start(torch.cat([new_weights(each, SIZES[1:-1], draw) for each in problems]))
    segments, found = Segments(rules, SIZES, state.weights), []
    for t, judge_size in ((2 * STEPS + 3, 5), (STEPS + 1, None)):
        seen = Seen.of(problems, [draw] * 3, t, 5, judge_size)
        losses, slopes, state = segments.run(state, seen)
        found += [losses, *slopes, *state.tensors]
        with torch.no_grad():
            for part in rules.parameters:
                part.mul_(0.9)
    return [part.cpu() for part in found]


def test_segments_are_those_of_the_cpu() -> None:
    # A recording that failed would warn, and warnings are errors.
    for ours, theirs in zip(segment("cuda"), segment("cpu"), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


def segment_of_a_small_rule(
    dtype: torch.dtype, sizes: tuple[int, ...], networks: int, t: int
) -> list[Tensor]:
    """Run a segment whose rule has one hidden layer; the numbers given are those of float32."""
    draw = torch.Generator().manual_seed(4)
    y = torch.arange(40) % sizes[-1]
    x = torch.randn(40, sizes[0], generator=draw) + 2 * torch.nn.functional.one_hot(y, sizes[0])
    problems = some_problems(x.float().to("cuda", dtype), y.cuda(), networks)
    first = torch.cat([new_weights(each, sizes[1:-1], draw) for each in problems])
    state = State.start(first.float().to(dtype))
    rules = some_rules(UpdateRule.random(), networks).to(torch.ones((), dtype=torch.float32))
    rules = rules.to(state.weights).to_learn()
    assert is_fused(rules, state.weights) == (dtype == torch.float32)
    seen = Seen.of(problems, [draw] * networks, t, 5, 5)
    losses, slopes, end = Segments(rules, sizes, state.weights).run(state, seen)
    return [losses, *slopes, *end.tensors]


# In float32 PyTorch's own operations are 5e-7 off; and 8e-4 where the rule has 10 million hidden
# units, of which twelve then have another sign than in float64.
@pytest.mark.parametrize(
    ("sizes", "networks", "t", "off"),
    [((6, 20, 15, 3), 3, STEPS + 2, 1e-4), ((784, 100, 20, 10), 2, 2, 1e-2)],
    ids=["several recordings", "programs of several pieces"],
)
def test_steps_in_our_kernels_are_the_others(
    sizes: tuple[int, ...], networks: int, t: int, off: float
) -> None:
    given = sizes, networks, t
    ours, theirs = (segment_of_a_small_rule(d, *given) for d in (torch.float32, torch.float64))
    for one, other in zip(ours, theirs, strict=True):
        size = float(other.abs().max())
        assert size > 0
        torch.testing.assert_close(one.double(), other, rtol=0, atol=off * size)
    for one, again in zip(ours, segment_of_a_small_rule(torch.float32, *given), strict=True):
        assert torch.equal(one, again)


@pytest.mark.parametrize("kind", ["rule", "descent"])
def test_networks_are_trained_as_on_the_cpu(kind: str) -> None:
    found = []
    for device in ("cuda", "cpu"):
        x, y = samples(device)
        problems = draw_problems(x, y, objective="training", numbers=range(3))
        how = some_rule(device) if kind == "rule" else torch.tensor([0.1, 0.2, 0.3])
        found.append(train_networks(how, problems, (x, y), hidden=(4,), num_steps=40, num_looks=2))
    torch.testing.assert_close(found[0].train_losses, found[1].train_losses, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(found[0].test_accuracies, found[1].test_accuracies)


def test_rules_are_learned_in_float32() -> None:
    x, y = samples("cuda")
    both = learn_rules(
        x.float(),
        y,
        [ProblemKind("training"), ProblemKind("validation", 20, 0.2)],
        hidden=(4,),
        num_problems=3,
        num_trajectories=1,
        segments=(3, 0.0),
        lengths=(20, 0.0),
        batch_size=8,
    )
    for found in both:
        assert found.meta_losses.shape == (9,)
        assert found.num_skipped == 0
        parts = found.rule.parameters
        assert all(part.is_cuda and bool(torch.isfinite(part).all()) for part in parts)
