"""Steps of a learned optimiser on a GPU, in our kernels and one operation at a time.

    python benchmarks/learned_rules.py

Ten networks 784-100-20-10 and a rule of 32 units, as the Thesis has them, on random numbers. First
one step and its slopes are compared with float64; then segments are timed, forth and back, with
and without our kernels (`stepsize/_fused.py`), and with other tiles than the chosen ones. The floor
is memory: on the way forth 35 numbers a weight are read or written, and once more where it is gone
again to keep what slopes need, and 92 on the way back.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

from eigenscape.stepsize import UpdateRule, _fused, _segments, _stepping, draw_problems
from eigenscape.stepsize._segments import Segments
from eigenscape.stepsize._stepping import State, clocks, decays, new_weights

NETWORKS, SIZES, BATCH, STEPS = 10, (784, 100, 20, 10), 32, 150
NUMBERS = 2 * 35 + 92
BANDWIDTH = 4.0e12  # bytes a second that copies reach on an H200
TILES: dict[str, list[tuple[int, int]]] = {
    "_BACK": [(128, 4), (64, 4), (64, 2), (128, 8)],
    "_MOVE": [(128, 4), (64, 4), (128, 8)],
    "_SEE": [(256, 4), (512, 4), (128, 4)],
    "_THROUGH": [(512, 4), (256, 4), (1024, 8)],
}
Step = Callable[..., tuple[Tensor, Tensor, Tensor]]


@contextmanager
def without_kernels() -> Iterator[None]:
    """Take steps one operation at a time meanwhile."""
    never = {"is_fused": lambda *_: False}
    with patch.multiple(_stepping, **never), patch.multiple(_segments, **never):
        yield


def one_step(step: Step, w: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Return the update, m, v and all slopes of one step from the same numbers."""
    draw = torch.Generator(w.device).manual_seed(0)
    like = torch.zeros((), dtype=dtype, device=w.device)
    p, n = w.shape
    g, m = (0.01 * torch.randn(*s, generator=draw, device=w.device) for s in ((p, n), (p, 5, n)))
    start = [part.to(like).requires_grad_() for part in (w, m, m.square() + 1e-5, g)]
    rule = UpdateRule.random(seed=1).to(like).to_learn()
    clock, taken = clocks(7, 1, w)[0].to(like), decays(w).to(like)
    after = step(rule, (start[0], start[1], start[2]), start[3], clock, taken)
    slopes = [torch.randn(part.shape, generator=draw, device=w.device).to(like) for part in after]
    found = torch.autograd.grad(after, [*start, *rule.parameters], slopes)
    return [(after[0] - start[0]).detach(), *(part.detach() for part in after[1:]), *found]


def main() -> None:
    """Compare and time."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(6000, SIZES[0], generator=draw).cuda()
    y = (torch.arange(6000) % SIZES[-1]).cuda()
    problems = draw_problems(x, y, objective="validation", numbers=range(NETWORKS))
    state = State.start(new_weights(problems, SIZES[1:-1], draw))
    rows, others = (problems.draw(which, STEPS, BATCH, draw) for which in ("fitted", "judged"))

    def seconds() -> float:
        """Return the least time of a step, forth and back, after one segment to record it."""
        rule = UpdateRule.random(seed=1).to(state.weights).to_learn()
        segments, times = Segments(rule, SIZES, state.weights), []
        for _ in range(repeats + 1):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            segments.run(problems, state, rows, others)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begun)
        return min(times[1:]) / STEPS

    exact = one_step(_stepping.moved, state.weights, torch.float64)
    for name, step in (("our kernels", _fused.moved), ("one by one", _stepping.moved)):
        found = one_step(step, state.weights, torch.float32)
        off = [
            float((a.double() - b).abs().max() / b.abs().max())
            for a, b in zip(found, exact, strict=True)
        ]
        print(f"{name:12s} error of a step and its slopes, relative to the largest: {max(off):.1e}")
    floor = NUMBERS * state.weights.nbytes / BANDWIDTH
    print(f"{'floor':12s} {1e3 * floor:8.3f} ms a step, of memory")
    print(f"{'our kernels':12s} {1e3 * seconds():8.3f} ms a step", flush=True)
    with without_kernels():
        print(f"{'one by one':12s} {1e3 * seconds():8.3f} ms a step", flush=True)
    for name, choices in TILES.items():
        for choice in choices:
            with patch.object(_fused, name, choice):
                print(f"{name:9s} {choice!s:10s} {1e3 * seconds():8.3f} ms a step", flush=True)


if __name__ == "__main__":
    main()
