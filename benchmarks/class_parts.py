"""Time and memory of taking G of a classifier apart by class: four parts, and two densities.

    python benchmarks/class_parts.py                                  # LeNet5, 10 000 images
    python benchmarks/class_parts.py --model VGG11_bn --samples 13600 --device cuda

The network is at its initial weights, in float32: time and memory do not depend on them. Data are
CIFAR-10 where its files are found (`--data-dir`), else random numbers of that shape. Bases of
Lanczos are kept where they fit in what `--limit` leaves, else three vectors of them. Memory is the
device's own count on a GPU, and on a CPU what the process has taken from the system at the most,
libraries included. Bytes by arithmetic stand beside it: n parameters take v = 4n; the means C²·v,
2C·v more while they are formed; a product 13 v, a kept basis as many v as steps.
"""

import argparse
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch

import eigenscape as es
from eigenscape.errors import EigenscapeError
from eigenscape_papers.datasets import load
from eigenscape_papers.networks import build

T = TypeVar("T")
PARTS = ("class", "cross", "same", "global", "centred")
SHAPE, CLASSES = (3, 32, 32), 10
VECTORS = 13  # of n numbers, while a step of Lanczos multiplies


@dataclass
class Clock:
    """Runs steps, and prints what each took."""

    device: torch.device
    rows: list[tuple[str, float, float]] = field(default_factory=list)

    def step(self, name: str, work: Callable[[], T]) -> T:
        """Run one of them; on a busy machine the processor's seconds say more than the clock's."""
        self._wait()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        started, busy = time.perf_counter(), time.process_time()
        found = work()
        self._wait()
        seconds, busy = time.perf_counter() - started, time.process_time() - busy
        self.rows.append((name, seconds, busy))
        gigabytes = self._peak() / 1e9
        print(f"{name:28} {seconds:7.1f} s {busy:7.1f} s {gigabytes:6.2f} GB", flush=True)
        return found

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _peak(self) -> float:
        if self.device.type == "cuda":
            return float(torch.cuda.max_memory_allocated())
        return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def make_risk(options: argparse.Namespace, device: torch.device) -> tuple[es.EmpiricalRisk, str]:
    try:
        data = load("cifar10", folder=options.data_dir).take(options.samples)
        x, y, what = data.inputs, data.targets, "CIFAR-10"
    except EigenscapeError:
        x = torch.randn(options.samples, *SHAPE, generator=torch.Generator().manual_seed(0))
        y, what = torch.arange(options.samples) % CLASSES, "random numbers"
    model = build(options.model, input_shape=SHAPE, num_classes=CLASSES, seed=0)
    model = model.float().to(device).eval()
    pair = (x.to(device, torch.float32), y.to(device))
    return es.EmpiricalRisk(model, es.CrossEntropy(), pair), what


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="LeNet5")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=64, help="of Lanczos, from one vector")
    parser.add_argument("--limit", type=float, default=20.0, help="GB for everything")
    parser.add_argument("--graphs", type=float, default=2.0, help="GB for what products keep")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data-dir")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    risk, what = make_risk(options, device)
    v = 4 * risk.space.size / 1e9
    means = CLASSES**2 * v
    room = options.limit - means - (VECTORS + 1) * v - options.graphs - 1.0
    keeps = options.steps * v <= room
    formed = means + (2 * CLASSES + 2) * v
    multiplied = means + (VECTORS + 1 + options.steps * keeps) * v + options.graphs
    print(f"{options.model}, {risk.space.size:,} parameters, {options.samples} of {what}, {device}")
    print(f"by arithmetic: means {means:.2f} GB, formed {formed:.2f}, densities {multiplied:.2f},")
    print(f"activations of a batch apart; bases {'kept' if keeps else 'not kept'}")
    print(f"threads {options.threads}, load {os.getloadavg()[0]:.1f} before")
    print(f"{'':28} {'clock':>9} {'processor':>9} {'peak':>8}")

    clock = Clock(device)
    budget = int(options.graphs * 1e9)
    clock.step("one gradient", risk.gradient)
    gradients = clock.step(
        "means of C² cells",
        lambda: es.ClassGradients(risk, max_bytes=int(means * 1e9) + 1, memory_budget=budget),
    )
    values = clock.step(
        "eigenvalues, low-rank parts",
        lambda: {name: gradients.eigenvalues(name) for name in PARTS},
    )
    traces = clock.step("traces", gradients.traces)
    for name, matrix in (("G", gradients.total), ("G_within", gradients.part("within"))):
        clock.step(
            f"density of {name}",
            lambda matrix=matrix: es.spectral_density(
                matrix, num_steps=options.steps, num_probes=1, reorthogonalise=keeps
            ),
        )
    # The gradient is there for comparison.
    total, busy = (sum(row[i] for row in clock.rows if row[0] != "one gradient") for i in (1, 2))
    print(f"{'all of it':28} {total:7.1f} s {busy:7.1f} s, load {os.getloadavg()[0]:.1f} after")
    for name in PARTS:
        top = ", ".join(f"{float(value):.3g}" for value in values[name][:3])
        print(f"  {name:8} {len(values[name]):3} eigenvalues: {top} …; trace {traces[name]:.4g}")


if __name__ == "__main__":
    main()
