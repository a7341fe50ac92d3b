"""Learned optimisers on a GPU: recorded steps are those of the CPU, on the way forth and back."""

import pytest
import torch
from torch import Tensor

from eigenscape.stepsize import UpdateRule, draw_problems, learn_rule, train_networks
from eigenscape.stepsize._segments import Segments
from eigenscape.stepsize._stepping import State, is_fused, new_weights

pytestmark = pytest.mark.gpu
SIZES = (6, 4, 5, 3)
STEPS = 16  # of a piece: several pieces in few steps, since steps amplify rounding


@pytest.fixture(autouse=True)
def _short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("_segments", "learned"):
        monkeypatch.setattr(f"eigenscape.stepsize.{module}.MOST_STEPS", STEPS)


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


def segment(device: str) -> list[Tensor]:
    """Run two segments of several pieces, with a change of the rule between them."""
    draw, rule = torch.Generator().manual_seed(2), some_rule(device).to_learn()
    problems = draw_problems(*samples(device), objective="validation", numbers=range(3))
    state = State.start(new_weights(problems, SIZES[1:-1], draw))
    segments, found = Segments(rule, SIZES, state.weights), []
    for t in (2 * STEPS + 3, STEPS + 1):
        fitted, judged = (problems.draw(which, t, 5, draw) for which in ("fitted", "judged"))
        loss, slopes, state = segments.run(problems, state, fitted, judged)
        found += [loss, *slopes, *state.tensors]
        with torch.no_grad():
            for part in rule.parameters:
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
    problems = draw_problems(
        x.float().to("cuda", dtype), y.cuda(), objective="validation", numbers=range(networks)
    )
    state = State.start(new_weights(problems, sizes[1:-1], draw).float().to(dtype))
    rule = UpdateRule.random().to(torch.ones((), dtype=torch.float32)).to(state.weights).to_learn()
    assert is_fused(rule, state.weights) == (dtype == torch.float32)
    fitted, judged = (problems.draw(which, t, 5, draw) for which in ("fitted", "judged"))
    segments = Segments(rule, sizes, state.weights)
    loss, slopes, end = segments.run(problems, state, fitted, judged)
    return [loss, *slopes, *end.tensors]


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
    found = learn_rule(
        x.float(),
        y,
        objective="training",
        hidden=(4,),
        num_problems=5,
        num_trajectories=1,
        stacked=2,
        segments=(3, 0.0),
        lengths=(20, 0.0),
        batch_size=8,
    )
    assert found.meta_losses.shape == (9,)  # two stacks of two problems, and one of one
    assert found.num_skipped == 0
    assert all(part.is_cuda and bool(torch.isfinite(part).all()) for part in found.rule.parameters)
