"""Time of a training step of many networks at once, for several ways to carry it out.

    python benchmarks/training.py --out training.json

Two settings: ten F-200² (784-200-200-10) with the shapes of MNIST, and sixteen LeNet5 with those of
CIFAR-10, batches of 128. The data are random numbers: the time does not depend on them. Each
variant is timed over whole epochs by `fit` itself, reading of losses and drawing of orders
included; what it needs once (recording of graphs, warm-up) is shown apart. The table at the end
extrapolates to 1000 epochs.
"""

import argparse
import json
import platform
import time
import warnings
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from eigenscape.records import Progress
from eigenscape_papers.ensemble import SGD, Engine, Recipe, fit

BATCH = 128
EPOCHS_ASKED = 1000
# Seconds for 1000 epochs that a first, simple implementation needed on one H200.
TO_BEAT = {"f200": 86.0, "lenet": 17 * 60.0}


def f200(seed: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )


def lenet(seed: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


# By name: function, shape of a sample, samples, test samples, seeds.
SETTINGS: dict[str, tuple[Any, tuple[int, ...], int, int, int]] = {
    "f200": (f200, (784,), 60000, 10000, 10),
    "lenet": (lenet, (3, 32, 32), 50000, 10000, 16),
}

# By setting, the engines to compare; each also with TF32 if its name ends in "tf32".
VARIANTS: dict[str, dict[str, Engine]] = {
    "f200": {
        "default": Engine(),
        "default tf32": Engine(),
        "1 step per graph": Engine(steps_per_graph=1),
        "8 steps per graph": Engine(steps_per_graph=8),
        "128 steps per graph": Engine(steps_per_graph=128),
        "update not fused": Engine(fused=False),
        "loop, 8 streams": Engine(stacking="loop"),
        "no graph": Engine(graphs=False),
    },
    "lenet": {
        "default": Engine(),
        "fused": Engine(stacking="vmap", convolution="fused"),
        "unfold": Engine(stacking="vmap", convolution="unfold"),
        "unfold tf32": Engine(stacking="vmap", convolution="unfold"),
        "unfold, no graph": Engine(stacking="vmap", convolution="unfold", graphs=False),
        "grouped": Engine(stacking="vmap", convolution="grouped"),
        "grouped tf32": Engine(stacking="vmap", convolution="grouped"),
        "loop, 1 stream": Engine(stacking="loop", num_streams=1, steps_per_graph=8),
        "loop, 4 streams": Engine(stacking="loop", num_streams=4, steps_per_graph=8),
        "loop, 8 streams": Engine(stacking="loop", num_streams=8, steps_per_graph=8),
        "loop, 16 streams": Engine(stacking="loop", num_streams=16, steps_per_graph=8),
        "loop, 8 streams tf32": Engine(stacking="loop", num_streams=8, steps_per_graph=8),
    },
}


@dataclass
class Row:
    """One variant of one setting."""

    setting: str
    variant: str
    step_ms: float = float("nan")
    first_s: float = float("nan")
    epochs: int = 0
    memory_gb: float = float("nan")
    loss: float = float("nan")
    note: str = ""

    def total_s(self) -> float:
        """Seconds for 1000 epochs."""
        return EPOCHS_ASKED * steps(self.setting) * self.step_ms / 1000


class EnoughError(Exception):
    """Raised to end a training that was timed for long enough."""


def steps(setting: str) -> int:
    return -(-SETTINGS[setting][2] // BATCH)


def measure(setting: str, variant: str, args: argparse.Namespace, data: Any, test: Any) -> Row:
    """Train until the epochs or the seconds are used up, and time the epochs after the first."""
    build, _, _, _, count = SETTINGS[setting]
    row = Row(setting, variant)
    recipe = Recipe(
        epochs=args.epochs + 1,
        batch_size=BATCH,
        optimizer=SGD(0.01, momentum=args.momentum),
        tf32=variant.endswith("tf32"),
    )
    marks = [time.perf_counter()]

    def mark(step: Progress) -> None:
        marks.append(time.perf_counter())
        row.loss = float(step.task.rsplit(" ", 1)[1])
        if marks[-1] - marks[0] > args.seconds and len(marks) > 2:
            raise EnoughError

    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            fit(
                build,
                data,
                recipe,
                seeds=tuple(range(count)),
                test=test,
                engine=VARIANTS[setting][variant],
                device=args.device,
                progress=mark,
            )
        except EnoughError:
            pass
        except RuntimeError as error:
            row.note = f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
            return row
    times = [b - a for a, b in pairwise(marks)]
    row.first_s, row.epochs = times[0], len(times) - 1
    row.step_ms = 1000 * median(times[1:] or times) / (-(-len(data[0]) // BATCH))
    row.note = "; ".join(str(w.message)[:90] for w in caught)
    if args.device == "cuda":
        row.memory_gb = torch.cuda.max_memory_allocated() / 1e9
    return row


def random_data(setting: str, limit: int, device: str) -> tuple[tuple[Tensor, Tensor], Any]:
    _, shape, count, count_test, _ = SETTINGS[setting]
    generator = torch.Generator().manual_seed(0)
    pairs = [
        (
            torch.randn(min(n, limit), *shape, generator=generator).to(device),
            torch.randint(0, 10, (min(n, limit),), generator=generator).to(device),
        )
        for n in (count, count_test)
    ]
    return pairs[0], pairs[1]


def profile(setting: str, args: argparse.Namespace, data: Any) -> None:
    """Print which kernels a few eager steps spend their time in."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    build, _, _, _, count = SETTINGS[setting]
    short = (data[0][: 20 * BATCH], data[1][: 20 * BATCH])
    options: dict[str, Any] = {"seeds": tuple(range(count)), "device": args.device}
    for _ in range(2):  # the first warms up
        with record(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
            fit(build, short, Recipe(epochs=1), engine=Engine(graphs=False), **options)
    print(f"\n{setting}: kernels of 21 eager steps (one is the trial step)")
    table = found.key_averages().table(sort_by="cuda_time_total", row_limit=22)
    print("\n".join(line[:60] + line[-110:] for line in table.splitlines()))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, help="JSON file for the rows")
    parser.add_argument("--epochs", type=int, default=20, help="timed epochs at most")
    parser.add_argument("--seconds", type=float, default=6.0, help="seconds per variant, about")
    parser.add_argument("--setting", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--variant", nargs="*", help="names of variants; all by default")
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--samples", type=int, default=10**9, help="samples at most, to try it out")
    parser.add_argument("--no-test", action="store_true", help="leave the evaluations out")
    parser.add_argument("--profile", action="store_true", help="also print the kernels of a step")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def machine(args: argparse.Namespace) -> dict[str, Any]:
    name = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor()
    return {"torch": torch.__version__, "python": platform.python_version(), "device": name}


def print_table(rows: list[Row], args: argparse.Namespace) -> None:
    print(f"\n{machine(args)}, batches of {BATCH}; evaluation included: {not args.no_test}\n")
    print(
        "| setting | variant | ms/step | first epoch | 1000 epochs | to beat | GB | loss | note |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row.setting} | {row.variant} | {row.step_ms:.4f} | {row.first_s:.1f} s | "
            f"{row.total_s():.0f} s | {TO_BEAT[row.setting]:.0f} s | {row.memory_gb:.1f} | "
            f"{row.loss:g} | {row.note} |"
        )


def main() -> None:
    args = parse()
    rows = []
    for setting in args.setting:
        data, test = random_data(setting, args.samples, args.device)
        if args.profile and args.device == "cuda":
            profile(setting, args, data)
        for variant in VARIANTS[setting]:
            if args.variant and variant not in args.variant:
                continue
            rows.append(measure(setting, variant, args, data, None if args.no_test else test))
            print(rows[-1], flush=True)
    if args.out:
        content = {"machine": machine(args), "rows": [asdict(row) for row in rows]}
        args.out.write_text(json.dumps(content, indent=1) + "\n")
    print_table(rows, args)


if __name__ == "__main__":
    main()
