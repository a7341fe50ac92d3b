"""A step in our kernels against the same step in PyTorch's operations, in float64 by autograd.

Without a GPU Triton interprets them; sizes are unequal, so that a swapped index shows.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from eigenscape.stepsize import UpdateRule, _fused
from eigenscape.stepsize._segments import Segments
from eigenscape.stepsize._stepping import State, clocks, decays, is_fused, moved, new_weights
from eigenscape.stepsize.problems import draw_problems

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDED = torch.zeros((), dtype=torch.float32)
P = 3
NAMES = ("w", "m", "v", "g", "first", "second", "biases", "last biases")


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    # Several blocks of several tiles, the last of them not full, from few weights.
    for name in ("_SEE", "_MOVE", "_BACK", "_THROUGH"):
        monkeypatch.setattr(_fused, name, (64, 4))
    monkeypatch.setattr(_fused, "_EACH", 2)
    monkeypatch.setattr(_fused, "_PROGRAMS", 2 * P)


def some_rule(hidden: int) -> UpdateRule:
    rule = UpdateRule.random((hidden,), seed=1).to(torch.ones(()))
    rule = rule.with_parameters([part + 0.2 * torch.randn_like(part) for part in rule.parameters])
    return UpdateRule(rule.weights, rule.biases, scale=0.3, exponent=0.2)


def places(n: int, size: float = 1.0) -> list[Tensor]:
    """Return w, m, v and g, of unequal sizes for each network and decay."""
    sizes = size * torch.tensor([1.0, 0.3, 3.0])[:, None]
    g = sizes * torch.randn(P, n)
    m = sizes[..., None] * torch.randn(P, 5, n) * torch.tensor([1.0, 0.8, 0.5, 0.2, 0.1])[:, None]
    v = m.square() * (0.2 + torch.rand(P, 5, n))
    return [torch.randn(P, n), m, v, g]


def after(
    step: object, rule: UpdateRule, given: list[Tensor], dtype: torch.dtype, steps: int = 1
) -> tuple[list[Tensor], list[Tensor]]:
    """Return w, m and v after steps, and slopes of random sums of all their numbers."""
    like = torch.zeros((), dtype=dtype, device=DEVICE)
    # Whatever the dtype, the numbers given are those of float32.
    start = [part.float().to(like).requires_grad_() for part in given]
    rule = rule.to(ROUNDED).to(like).to_learn()
    taken, times = decays(ROUNDED).to(like), clocks(20, 2, ROUNDED).to(like)
    state = start[0], start[1], start[2]
    for k in range(steps):
        state = step(rule, state, start[3] * (1 - 0.5 * k), times[k], taken)
    draw = torch.Generator().manual_seed(3)
    weights = [torch.randn(part.shape, generator=draw).float().to(like) for part in state]
    slopes = torch.autograd.grad(state, [*start, *rule.parameters], weights)
    return [part.detach().double() for part in state], [part.double() for part in slopes]


def both(rule: UpdateRule, given: list[Tensor], steps: int = 1) -> list[Any]:
    """Return the same of our kernels, and of PyTorch's operations in float64."""
    kinds = ((_fused.moved, torch.float32), (moved, torch.float64))
    return [after(step, rule, given, dtype, steps) for step, dtype in kinds]


def compare(ours: list[Tensor], theirs: list[Tensor], names: tuple[str, ...], rtol: float) -> None:
    # Relative to the largest of a tensor (of a decay's row): sums of many terms may cancel.
    for name, one, other in zip(names, ours, theirs, strict=True):
        size = other.abs().amax((0, -1) if other.ndim == 3 else None, keepdim=True)
        assert bool((size > 0).all()), name
        off = float(((one - other) / size).abs().max())
        assert off < rtol, f"{name}: {off}"


# Float32 has 6e-8. Sums of 32 products and of n weights leave 2e-6 at most, as they do in PyTorch's
# operations in float32; products on a GPU are a little less exact.
@pytest.mark.parametrize(("hidden", "n"), [(7, 300), (32, 200), (64, 150), (1, 50)])
def test_a_step_and_its_slopes(hidden: int, n: int) -> None:
    rule, given = some_rule(hidden), places(n)
    ours, theirs = both(rule, given)
    compare(ours[0], theirs[0], ("w", "m", "v"), 2e-6)
    compare(ours[1], theirs[1], NAMES, 1e-5)


def test_slopes_pass_through_two_steps() -> None:
    rule, given = some_rule(7), places(150)
    ours, theirs = both(rule, given, steps=2)
    compare(ours[0], theirs[0], ("w", "m", "v"), 5e-6)
    compare(ours[1], theirs[1], NAMES, 3e-5)


def test_all_sizes_of_tiles_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rule, given, found = some_rule(20), places(190), []
    for R, each, programs in ((64, 1, 1), (32, 3, 2 * P), (128, 2, 10_000)):
        for name in ("_SEE", "_MOVE", "_BACK", "_THROUGH"):
            monkeypatch.setattr(_fused, name, (R, 4))
        monkeypatch.setattr(_fused, "_EACH", each)
        monkeypatch.setattr(_fused, "_PROGRAMS", programs)
        found.append(after(_fused.moved, rule, given, torch.float32)[1])
    compare(found[0], found[1], NAMES, 1e-5)
    compare(found[0], found[2], NAMES, 1e-5)


def test_tiny_gradients_are_seen() -> None:
    # v of order 1e-22, whose squares float32 does not have, gets slopes of order 1e22.
    rule, given = some_rule(7), places(90, size=1e-11)
    rule.weights[0][:, 12:22] = 0  # 1/√v is 1e4 for all but its rounding, which float64 has not
    ours, theirs = both(rule, given)
    compare(ours[0], theirs[0], ("w", "m", "v"), 2e-6)
    # Slopes of the unused columns are features times slopes, and rounding where 1/√v is flat.
    ours[1][4][:, 12:22] = theirs[1][4][:, 12:22]
    compare(ours[1], theirs[1], NAMES, 1e-5)
    assert float(theirs[1][2].abs().max()) > 1e20


def test_a_feature_that_is_the_same_for_all_weights() -> None:
    rule, given = some_rule(7), places(90)
    given[0][:], given[1][:, 1], given[3][:] = 0.7, -2.0, 0.1
    ours, theirs = both(rule, given)
    compare(ours[0], theirs[0], ("w", "m", "v"), 2e-6)
    compare(ours[1], theirs[1], NAMES, 1e-5)


def test_no_gradient_at_all() -> None:
    # Features without any size are 0. By autograd their slopes are infinite; here there are none.
    rule, given = some_rule(7), places(90)
    for part in given[1:]:
        part[1] = 0
    ours = after(_fused.moved, rule, given, torch.float32)
    compare(ours[0], after(moved, rule, given, torch.float64)[0], ("w", "m", "v"), 2e-6)
    assert all(bool(torch.isfinite(part).all()) for part in ours[1])


def test_what_is_not_a_number_stays_none() -> None:
    rule, given = some_rule(7), places(70)
    given[3][1, 5] = math.nan
    with torch.no_grad():
        w, _, _ = after_without_slopes(rule, given)
    assert bool(w[1].isnan().all())
    assert bool(w[[0, 2]].isfinite().all())


def after_without_slopes(rule: UpdateRule, given: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    like = torch.zeros((), dtype=torch.float32, device=DEVICE)
    w, m, v, g = (part.to(like) for part in given)
    # And what is not contiguous: as of a larger tensor.
    m = torch.stack([m, m], 3)[..., 0]
    return _fused.moved(rule.to(like), (w, m, v), g, clocks(0, 1, like)[0], decays(like))


def test_a_segment_takes_such_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    draw, found = torch.Generator().manual_seed(0), []
    x, y = torch.randn(40, 6, generator=draw).float().to(DEVICE), (torch.arange(40) % 3).to(DEVICE)
    problems = draw_problems(x, y, objective="validation", numbers=range(P))
    state = State.start(new_weights(problems, (4,), draw))
    rows, others = (problems.draw(which, 3, 5, draw) for which in ("fitted", "judged"))
    for answer in (lambda *_: True, lambda *_: False):
        for module in ("_stepping", "_segments"):
            monkeypatch.setattr(f"eigenscape.stepsize.{module}.is_fused", answer)
        segments = Segments(UpdateRule.random((7,)).to(x).to_learn(), (6, 4, 3), x)
        loss, slopes, end = segments.run(problems, state, rows, others)
        found.append([loss, *slopes, *end.tensors])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))


def test_which_steps_are_fused() -> None:
    like, fits = torch.zeros((), dtype=torch.float32), UpdateRule.random((64,))
    assert not is_fused(fits, like)  # not on a CPU
    on_gpu = type("OnGpu", (), {"is_cuda": True, "dtype": torch.float32})()
    assert is_fused(fits, on_gpu)
    assert not is_fused(UpdateRule.random((65,)), on_gpu)
    assert not is_fused(UpdateRule.random((8, 8)), on_gpu)
    on_gpu.dtype = torch.float64
    assert not is_fused(fits, on_gpu)
