"""A step in our kernels against the same step in PyTorch's operations, in float64 by autograd.

Without a GPU Triton interprets them; sizes are unequal, so that a swapped index shows.
"""

import math

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from eigenscape_papers.stepsize import UpdateRule, _fused, _segments, _stepping, draw_problems
from eigenscape_papers.stepsize._segments import Seen, Segments
from eigenscape_papers.stepsize._stepping import (
    Layout,
    State,
    clocks,
    is_fused,
    joined,
    new_weights,
    take_step,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
P, SIZES, N = 2, (7, 5, 3), 58  # tensors of 35, 5, 15 and 3 weights
STATE, SLOPES = ("w", "m", "v"), ("w", "first", "second", "biases", "last biases")
SMALL = {"_SEE": (8, 1), "_MOVE": (16, 1), "_THROUGH": (8, 1), "_BACK": (16, 1)}
SMALL |= {"_PROGRAMS": 5, "_JOINED": 2}


@pytest.fixture(params=["small", "own"])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tiles of few weights, several in all that holds some, the last not full; or our own."""
    if request.param == "small":
        monkeypatch.setattr(_stepping, "SPAN", 32)
        for name, value in SMALL.items():
            monkeypatch.setattr(_fused, name, value)


def some_rules(hidden: int) -> UpdateRule:
    """Return a rule for each network."""
    rules = UpdateRule.random((hidden,), seed=1).repeated(P)
    moved = [part + 0.2 * torch.randn(part.shape) for part in rules.parameters]
    rules = rules.with_parameters(moved).to(torch.zeros((), dtype=torch.float32))
    return UpdateRule(rules.weights, rules.biases, scale=0.3, exponent=0.2)


def places() -> list[Tensor]:
    """Return w, m and v of unequal sizes for each network, decay and tensor, in float32."""
    parts = torch.tensor([1.0, 30, 0.1, 4]).repeat_interleave(torch.tensor([35, 5, 15, 3]))
    sizes = torch.tensor([[1.0], [0.3]]) * parts
    m = torch.tensor([1.0, 0.8, 0.5, 0.2, 0.1])[:, None] * sizes[:, None] * torch.randn(P, 5, N)
    v = m.square() * (0.2 + torch.rand(P, 5, N))
    return [(sizes * torch.randn(P, N)).float(), m.float(), v.float()]


def batches(steps: int) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(P, 4, 7).float(), torch.randint(3, (P, 4))) for _ in range(steps)]


def after(
    rule: UpdateRule,
    given: list[Tensor],
    work: list[tuple[Tensor, Tensor]],
    *,
    fused: bool,
    patch: pytest.MonkeyPatch,
) -> tuple[list[Tensor], list[Tensor]]:
    """Return w, m and v after steps, and slopes of a random sum of w: ours, or in float64."""
    like = torch.zeros((), dtype=torch.float32 if fused else torch.float64, device=DEVICE)
    weights = torch.randn(P, N, generator=torch.Generator().manual_seed(3)).float().to(like)
    # Whatever the dtype, the numbers given are those of float32.
    start, rule = given[0].to(like).requires_grad_(), rule.to(like).to_learn()
    state, layout = (start, given[1].to(like), given[2].to(like)), Layout.of(SIZES, like)
    times = clocks(20, len(work), torch.zeros((), dtype=torch.float32)).to(like)
    with patch.context() as patched:
        patched.setattr(_stepping, "is_fused", lambda *_: fused)
        rows = joined(rule, start)
        assert (rows is not None) == fused
        for (x, y), clock in zip(work, times, strict=True):
            state = take_step(rule, state, layout, (x.to(like), y.to(DEVICE)), clock, rows)
        slopes = torch.autograd.grad(state[0], [start, *rule.parameters], weights)
    return [part.detach() for part in state], [*slopes]


def compare(ours: list[Tensor], theirs: list[Tensor], names: tuple[str, ...], rtol: float) -> None:
    # Relative to the largest of a tensor (of a decay's row): sums of many terms may cancel.
    for name, one, other in zip(names, ours, theirs, strict=True):
        size = other.abs().amax((0, -1) if name in "mv" else None, keepdim=True)
        assert bool((size > 0).all()), name
        off = float(((one.double() - other) / size).abs().max())
        assert off < rtol, f"{name}: {off}"


# Float32 has 6e-8; gradients of the networks, sums of 32 products and of all weights leave 1e-6.
@pytest.mark.parametrize("hidden", [32, 5])
def test_a_step_and_its_slopes(hidden: int, tiles: None, monkeypatch: pytest.MonkeyPatch) -> None:
    rules, given, work = some_rules(hidden), places(), batches(1)
    ours, theirs = (after(rules, given, work, fused=f, patch=monkeypatch) for f in (True, False))
    compare(ours[0], theirs[0], STATE, 1e-5)
    compare(ours[1], theirs[1], SLOPES, 1e-5)
    assert ours[1][1].shape == (P, hidden, 31)


def test_the_most_hidden_units(monkeypatch: pytest.MonkeyPatch) -> None:
    rules, given, work = some_rules(64), places(), batches(1)
    ours, theirs = (after(rules, given, work, fused=f, patch=monkeypatch) for f in (True, False))
    compare(ours[0], theirs[0], STATE, 1e-5)
    compare(ours[1], theirs[1], SLOPES, 1e-5)


def test_slopes_pass_through_several_steps(tiles: None, monkeypatch: pytest.MonkeyPatch) -> None:
    rules, given, work = some_rules(5), places(), batches(2)
    ours, theirs = (after(rules, given, work, fused=f, patch=monkeypatch) for f in (True, False))
    compare(ours[0], theirs[0], STATE, 1e-4)
    compare(ours[1], theirs[1], SLOPES, 1e-4)


def test_one_rule_for_all_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    rule, given, work = some_rules(5)[0], places(), batches(1)
    ours, theirs = (after(rule, given, work, fused=f, patch=monkeypatch) for f in (True, False))
    compare(ours[0], theirs[0], STATE, 1e-5)
    compare(ours[1], theirs[1], SLOPES, 1e-5)
    assert ours[1][1].shape == (5, 31)


def test_two_runs_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    rules, given, work = some_rules(5), places(), batches(1)
    once, again = (after(rules, given, work, fused=True, patch=monkeypatch) for _ in range(2))
    for one, two in zip([*once[0], *once[1]], [*again[0], *again[1]], strict=True):
        assert torch.equal(one, two)


def step_of(rule: UpdateRule, state: list[Tensor], g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return a step of ours with gradients g, without slopes."""
    like = torch.zeros((), dtype=torch.float32, device=DEVICE)
    w, m, v = (part.to(like) for part in state)
    rule = rule.to(like)
    with torch.no_grad():
        return _fused.moved(
            rule,
            _fused.join(rule, P),
            (w, m, v),
            g.to(like),
            Layout.of(SIZES, like),
            clocks(0, 1, like)[0],
        )


def test_what_is_not_a_number_stays_none() -> None:
    g = torch.randn(P, N)
    g[1, 37] = math.nan  # of the second tensor
    w, _, _ = step_of(some_rules(5), places(), g)
    assert w[1].isnan().tolist() == [35 <= i < 40 for i in range(N)]
    assert bool(w[0].isfinite().all())


def test_no_gradient_at_all_and_what_is_not_contiguous() -> None:
    given, rule = places(), some_rules(5)
    zero = torch.zeros(P, N)
    plain = step_of(rule, [given[0], *(0 * part for part in given[1:])], zero)
    assert bool(plain[0].isfinite().all())
    assert not plain[1].any()
    wide = [
        torch.stack([part, part], part.ndim)[..., 0]
        for part in (given[0], *(0 * p for p in given[1:]))
    ]
    found = step_of(rule, wide, zero)
    assert torch.equal(found[0], plain[0])


def test_spans_have_all_weights_and_stay_in_their_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stepping, "SPAN", 16)
    like = torch.zeros((), dtype=torch.float32)
    layout = Layout.of(SIZES, like)
    assert layout.spans.tolist() == [
        *([0, 16, 0], [16, 32, 0], [32, 35, 0]),
        *([35, 40, 1], [40, 55, 2], [55, 58, 3]),
    ]
    assert layout.tensors.tolist() == [[0, 3, 35], [3, 4, 5], [4, 5, 15], [5, 6, 3]]
    monkeypatch.setattr(_stepping, "MOST_SPANS", 3)  # no more than 48 weights: spans are longer
    assert Layout.of(SIZES, like).spans.tolist() == [
        *([0, 32, 0], [32, 35, 0]),
        *([35, 40, 1], [40, 55, 2], [55, 58, 3]),
    ]


def test_a_segment_takes_such_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    draw, found = torch.Generator().manual_seed(0), []
    x, y = torch.randn(40, 6, generator=draw).float().to(DEVICE), (torch.arange(40) % 3).to(DEVICE)
    kinds = {"training": 20, "validation": 30}
    problems = [
        draw_problems(x, y, objective=objective, num_samples=n, numbers=[0])
        for objective, n in kinds.items()
    ]
    state = State.start(torch.cat([new_weights(each, (4,), draw) for each in problems]))
    seen, rules = Seen.of(problems, [draw, draw], 3, 5, None), some_rules(5).to(x).to_learn()
    for answer in (True, False):
        for module in (_stepping, _segments):
            monkeypatch.setattr(module, "is_fused", lambda *_, answer=answer: answer)
        losses, slopes, end = Segments(rules, (6, 4, 3), x).run(state, seen)
        found.append([losses, *slopes, *end.tensors])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4 * float(other.abs().max()))


def test_pieces_are_longer_where_less_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    w = torch.zeros(P, N)
    segments, state = Segments(some_rules(5), SIZES, w), State.start(w)
    monkeypatch.setitem(_segments._MOST_BYTES, "cpu", 16 * w.nbytes * 9)
    assert segments._lengths(state, 9) == [3, 3, 3]
    monkeypatch.setattr(_segments, "is_fused", lambda *_: True)
    assert segments._lengths(state, 9) == [9]


def test_which_steps_are_fused() -> None:
    like, fits = torch.zeros((), dtype=torch.float32), UpdateRule.random((64,))
    assert not is_fused(fits, like)  # not on a CPU
    assert joined(fits, like) is None
    on_gpu = type("OnGpu", (), {"is_cuda": True, "dtype": torch.float32})()
    assert is_fused(fits, on_gpu)
    assert not is_fused(UpdateRule.random((65,)), on_gpu)
    assert not is_fused(UpdateRule.random((8, 8)), on_gpu)
    on_gpu.dtype = torch.float64
    assert not is_fused(fits, on_gpu)
