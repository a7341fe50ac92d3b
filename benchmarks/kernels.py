"""Kernels of our own, by Triton, beside `torch.compile` of the PyTorch operations they replace.

    python benchmarks/kernels.py --out kernels.json

A file of kernels stays where it is at least 1.5 times as fast as the best compiled version. Each
way is a recorded CUDA graph, replayed; float32 without TF32. Every topic runs in a process of its
own with its share of the time, and what breaks or has no time left is a note in the table.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import kernel_cases
import torch
from torch import Tensor

# By topic, the seconds after which it is ended; its last way stops 5 s before.
ENDS = {"bounds": 50, "ensemble": 155, "stepsize": 230}
MODES = ("default", "max-autotune-no-cudagraphs")
MOST_SECONDS = 25  # of one way, compilation included
ROUNDS = 21


@dataclass
class Row:
    """One job: by way its milliseconds, distance from the first plain way, and what went wrong."""

    topic: str
    job: str
    ms: dict[str, float] = field(default_factory=dict)
    off: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def best(self, kinds: Sequence[str]) -> str:
        """Return the fastest way of some kinds, which names begin with; or nothing."""
        ways = [way for way in self.ms if way.split(":")[0] in kinds]
        return min(ways, key=self.ms.__getitem__, default="")


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise where something takes longer."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {seconds:.0f} s")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def milliseconds(work: Callable[[], object], calls: int) -> float:
    """Return the time of a call in a recorded graph of several; without a GPU, of a plain call."""
    if not torch.cuda.is_available():
        begun = time.perf_counter()
        work()
        return 1e3 * (time.perf_counter() - begun)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side, capture_error_mode="relaxed"):
        for _ in range(calls):
            work()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(ROUNDS + 3)]
    for mark in marks:
        mark.record()
        graph.replay()
    torch.cuda.synchronize()
    # The first replays load the graph.
    return median(one.elapsed_time(two) for one, two in pairwise(marks[2:])) / calls


def distance(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Return the largest difference of two results, each relative to the largest of its tensor."""
    pairs = zip(ours, theirs, strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs)


def measure(topic: str, case: kernel_cases.Case, until: float, dry: bool) -> Row:
    """Run a job in all ways, and note what breaks."""
    row, reference = Row(topic, case.job), []
    backend: dict[str, Any] = {"backend": "aot_eager"} if dry else {}
    ways: dict[str, Callable[[], Any]] = {
        **{f"plain: {name}": way(lambda f: f) for name, way in case.plain.items()},
        **{f"triton: {name}": way(lambda f: f) for name, way in case.triton.items()},
    }
    for mode in MODES[:1] if case.only_default else MODES:
        options = backend or {"mode": mode}
        compiled = partial(torch.compile, dynamic=False, **options)
        for name, way in (case.plain | case.sums).items():
            ways[f"{mode}: {name}"] = way(compiled)
        for name, way in case.beside.items():
            ways[f"triton: {name}, {mode}"] = way(compiled)
    for name, work in ways.items():
        seconds = min(MOST_SECONDS, until - time.time())
        if seconds < 2:
            row.notes[name] = "no time left"
            continue
        torch._dynamo.reset()
        breaks = torch._dynamo.utils.counters["graph_break"]
        breaks.clear()
        try:
            with at_most(seconds):
                case.reset()
                results = [tensor.detach().double().clone() for tensor in work()]
                reference = reference or results
                row.off[name] = distance(results, reference)
                row.ms[name] = milliseconds(work, case.calls) / case.steps
            if breaks:  # what is between them ran uncompiled
                row.notes[name] = f"{sum(breaks.values())} graph breaks"
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            row.notes[name] = f"{type(error).__name__}: {lines[0][:160]}"
        print(topic, case.job, name, row.ms.get(name), row.notes.get(name, ""), flush=True)
    return row


def run_topic(topic: str, until: float, dry: bool, out: Path) -> None:
    """Measure all jobs of a topic; the file is written after each."""
    torch._inductor.config.autotune_num_choices_displayed = 0
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    rows: list[Row] = []
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name, build in kernel_cases.TOPICS[topic].items():
        try:
            rows.append(measure(topic, build(device, dry), until, dry))
        except Exception as error:
            rows.append(Row(topic, name, notes={"all": f"{type(error).__name__}: {error}"[:200]}))
        out.write_text(json.dumps([asdict(row) for row in rows]))
        torch.cuda.empty_cache()


def run_all(args: argparse.Namespace) -> list[Row]:
    """Run each topic in a process, which is ended with its time."""
    begun, rows = time.time(), []
    with tempfile.TemporaryDirectory() as folder:
        for topic in args.only:
            out, until = Path(folder, f"{topic}.json"), begun + ENDS[topic]
            command = [sys.executable, __file__, "--topic", topic, "--out", str(out)]
            command += ["--until", str(until - 5), *(["--dry"] if args.dry else [])]
            try:
                code = subprocess.run(command, timeout=until - time.time()).returncode
                note = f"ended with {code}" if code else ""
            except subprocess.TimeoutExpired:
                note = "no time left"
            if out.exists():
                rows += [Row(**row) for row in json.loads(out.read_text())]
            if note:
                rows.append(Row(topic, "", notes={"all": note}))
    return rows


def print_table(rows: Sequence[Row]) -> None:
    heads = "topic", "job", "Triton ms", "eager ms", "compiled ms", "compiled / Triton", "off"
    print(f"\n| {' | '.join(heads)} | best compiled |\n|{'---|' * 8}")
    for row in rows:
        names = [row.best(kinds) for kinds in (("triton",), ("plain",), MODES)]
        times = [row.ms.get(name, float("nan")) for name in names]
        numbers = " | ".join(f"{ms:.4f}" for ms in times)
        off = " ".join(f"{row.off[name]:.0e}" for name in (names[0], names[2]) if name in row.off)
        ratio = f"{times[2] / times[0]:.2f}"
        print(f"| {row.topic} | {row.job} | {numbers} | {ratio} | {off} | {names[2]} |")
    for row in rows:
        for name, ms in row.ms.items():
            print(f"{row.topic}, {row.job}, {name}: {ms:.4f} ms, off {row.off.get(name, 0):.1e}")
        for name, note in row.notes.items():
            print(f"{row.topic}, {row.job}, {name}: {note}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, help="JSON file for the rows")
    parser.add_argument("--only", nargs="*", default=list(ENDS), choices=list(ENDS))
    parser.add_argument("--dry", action="store_true", help="tiny sizes, nothing compiled to code")
    parser.add_argument("--topic", choices=list(ENDS), help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.topic:
        run_topic(args.topic, args.until, args.dry, args.out)
        os._exit(0)  # not waiting for the compiler's workers
    rows = run_all(args)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    if args.out:
        content = {"torch": torch.__version__, "device": device, "rows": [asdict(r) for r in rows]}
        args.out.write_text(json.dumps(content, indent=1) + "\n")
    print(f"\ntorch {torch.__version__}, {device}")
    print_table(rows)


if __name__ == "__main__":
    main()
