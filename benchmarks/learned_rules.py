"""Steps of a learned optimiser on a GPU, recorded and launched one by one.

    python benchmarks/learned_rules.py

Networks 784-100-20-10 and rules of 32 units, as the Thesis has them, on random numbers: one, and
four or eight at once, as the study has them. Segments are timed forth and back, with kernels of
our own and without. The floor is memory, with them: of a weight and step 50 numbers are read or
written forth (35 of them by the rule and 9 to judge), and 36 back (17 by the rule). For one
network it is the launches that take the time, some 70 a step of which 5 are our own.
"""

import argparse
import time
from unittest.mock import patch

import torch

from eigenscape_papers.stepsize import Problems, UpdateRule, _segments, _stepping, draw_problems
from eigenscape_papers.stepsize._recorded import Recorded
from eigenscape_papers.stepsize._segments import Seen, Segments
from eigenscape_papers.stepsize._stacked_mlp import lengths_of
from eigenscape_papers.stepsize._stepping import State, new_weights

SIZES, SAMPLES, BATCH, STEPS = (784, 100, 20, 10), 1000, 32, 150
NUMBERS = 50 + 36
BANDWIDTH = 4.0e12  # bytes a second that copies reach on an H200


def seconds(problems: list[Problems], repeats: int) -> float:
    """Return the least time of a step, forth and back, after one segment to record it."""
    draw, times = torch.Generator().manual_seed(0), []
    state = State.start(torch.cat([new_weights(each, SIZES[1:-1], draw) for each in problems]))
    seen = Seen.of(problems, [draw] * len(problems), STEPS, BATCH, None)
    rules = UpdateRule.random(seed=1).to(state.weights).repeated(len(problems)).to_learn()
    segments = Segments(rules, SIZES, state.weights)
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        segments.run(state, seen)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return min(times[1:]) / STEPS


def main() -> None:
    """Time them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    x = torch.randn(6000, SIZES[0], generator=torch.Generator().manual_seed(0)).cuda()
    y = (torch.arange(6000) % SIZES[-1]).cuda()
    kind = {"objective": "validation", "num_samples": SAMPLES}
    weights = sum(lengths_of(SIZES))
    for networks in (1, 4, 8):
        problems = [draw_problems(x, y, numbers=[i], **kind) for i in range(networks)]
        found = {"floor, of memory": networks * weights * 4 * NUMBERS / BANDWIDTH}
        found["recorded"] = seconds(problems, repeats)
        answers = {"is_fused": lambda *_: False}
        with patch.multiple(_stepping, **answers), patch.multiple(_segments, **answers):
            found["without kernels"] = seconds(problems, repeats)
        with patch.object(Recorded, "__call__", lambda self, *given: self._work(*given)):
            found["one by one"] = seconds(problems, repeats)
        for name, each in found.items():
            print(f"{networks:2d} networks, {name:16s} {1e3 * each:8.3f} ms a step", flush=True)


if __name__ == "__main__":
    main()
