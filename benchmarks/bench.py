"""Measure eigenscape against other libraries and plain PyTorch: one process, one table.

    python benchmarks/bench.py [--quick] [--device cuda] [--sections abcd] [--json FILE]

Nothing here passes or fails: see `benchmarks/README.md` for what the columns mean.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import sys
import time
from pathlib import Path
from statistics import median

THREADS = 2
SETTINGS = {
    # Waiting threads must not spin: they take the other library's core away.
    "OMP_WAIT_POLICY": "PASSIVE",
    "OMP_NUM_THREADS": str(THREADS),
    "OPENBLAS_NUM_THREADS": "1",  # numpy and scipy, beside torch's own threads
}

if __name__ == "__main__" and any(os.environ.get(k) != v for k, v in SETTINGS.items()):
    # They are read when torch is loaded, so the script starts again with them.
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **SETTINGS})

import problems  # noqa: E402
import sections  # noqa: E402
import torch  # noqa: E402
from timing import Row, table  # noqa: E402

PACKAGES = (
    "torch",
    "scipy",
    "curvlinops-for-pytorch",
    "pyhessian",
    "hessian-eigenthings",
    "backpack-for-pytorch",
)
BAR = 2.6  # gradients for one Hessian product: what we ask of ourselves

HEADINGS = {
    "a": "(a) One product, in gradients. Error: of the product, relative, unit random vector.",
    "b": "(b) 10 eigenpairs of largest magnitude to 1e-6. Error: largest ‖Hv − λv‖ / |λ|.",
    "c": "(c) Spectral density. Error: of the trace; it holds the noise of the probes.",
    "d": "(d) One product with a layer's block, in gradients of the whole network.",
}


def main() -> None:
    options = _options()
    torch.set_num_threads(THREADS)
    torch.backends.cudnn.allow_tf32 = False  # products are compared in float32
    sections.quiet()
    device = torch.device(options.device)
    rounds = options.rounds or (3 if options.quick else 15)
    plan = (
        sections.Plan(device, rounds, seeds=2, probes=2, steps=15, density_rounds=1)
        if options.quick
        else sections.Plan(device, rounds, seeds=7, probes=10, steps=60, density_rounds=3)
    )
    facts = _facts(options, plan)
    rows, notes = [], []
    try:
        _measure(options, plan, rows, notes)
    except KeyboardInterrupt:
        notes.append("Interrupted: what follows is what was measured until then.")
    facts["seconds"], facts["load_at_end"] = time.time() - facts.pop("started"), _load()
    path = options.json or (None if options.quick else _default_path(device))
    if path is not None:
        raw = {**facts, "notes": notes, "rows": [dataclasses.asdict(row) for row in rows]}
        Path(path).write_text(json.dumps(raw, indent=1) + "\n")
        print(f"raw numbers: {path}")
    print(f"\n{facts['machine']}, {facts['device']}, {THREADS} threads, load {facts['load']} to")
    print(f"{facts['load_at_end']}; " + ", ".join(f"{k} {v}" for k, v in facts["versions"].items()))
    print("\n".join(["", *notes, ""]))
    rows.sort(key=lambda row: row.section)
    for key in dict.fromkeys(row.section for row in rows):
        print(HEADINGS[key])
    print("\n" + table(rows))


def _measure(
    options: argparse.Namespace, plan: sections.Plan, rows: list[Row], notes: list[str]
) -> None:
    for problem in _problems(options, plan.device):
        notes.append(f"{problem.name}: {problem.size} parameters, loss {problem.loss:.3f}.")
        print(f"{notes[-1]} Measuring ...", flush=True)
        kind = problem.name.split()[0]
        if "a" in options.sections:
            found = sections.products(problem, plan)
            rows += found
            notes.append(_gap(problem, found))
        if "b" in options.sections and kind == "mlp":
            found = sections.eigenpairs(problem, plan)
            rows += found
            notes += _counts(found)
        if "c" in options.sections and kind == "mlp":
            rows += sections.density(problem, plan)
        if "d" in options.sections and kind == "lenet":
            rows += sections.layer_block(problem, plan)


def _problems(options: argparse.Namespace, device: torch.device):
    """Make the problems one after the other, so that only one is in memory."""
    names = options.problems.split(",")
    if "mlp" in names:
        yield problems.mlp(500 if options.quick else 2000).to(device)
    if "lenet" in names:
        for n in (100,) if options.quick else (500, 2000):
            yield problems.lenet(n).to(device)
    if "gpt" in names or "gpt-sdpa" in names:
        size = (16, 2, 64) if options.quick else (64, 4, 128)
        text = problems.gpt(*size).to(device)
        if "gpt" in names:
            yield text
        if "gpt-sdpa" in names:
            yield problems.fused(text)


def _gap(problem: problems.Problem, rows: list[Row]) -> str:
    """Say what counting matrix products allows, and how far from it we are."""
    parts = []
    floors = problem.floors()
    for name, floor in zip(("Hessian", "GaussNewton"), floors, strict=True):
        row = next(r for r in rows if r.method == f"{sections.OURS} {name}")
        if row.failed:
            parts.append(f"{name} failed")
            continue
        ours = median(row.gradients)
        parts.append(f"{name} {ours:.2f} gradients, floor {floor:.2f}, {ours / floor:.2f} times it")
        if name == "Hessian":
            parts[-1] += f" (bar {BAR}: {'met' if ours <= BAR else 'NOT met'})"
    return f"{problem.name}: " + "; ".join(parts) + "."


def _counts(rows: list[Row]) -> list[str]:
    """Compare products with SciPy's, start by start, certificates left out as SciPy has none."""
    lines = []
    for name in dict.fromkeys(row.problem for row in rows):
        by = {row.method: row.products for row in rows if row.problem == name}
        found = [count - sections.PAIRS for count in by["eigenscape.eigsh, num_check=0"]]
        theirs, whole = by["scipy eigsh on eigenscape Hessian"], by["eigenscape.eigsh"]
        if found and len(found) == len(theirs) == len(whole):
            more = sum(a > b for a, b in zip(found, theirs, strict=True))
            look = [w - sections.PAIRS - f for w, f in zip(whole, found, strict=True)]
            lines.append(
                f"{name}: products, ours {median(found):g} to find the pairs + {median(look):g} "
                f"to look for copies + {sections.PAIRS} certificates; SciPy's {median(theirs):g} "
                f"(bar: find them in no more; more for {more} of {len(found)} starts)."
            )
    return lines


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare eigenscape with other libraries.")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, few rounds: a rehearsal")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--sections", default="abcd", help="which of a, b, c, d")
    parser.add_argument("--problems", default="mlp,lenet,gpt,gpt-sdpa", help="which networks")
    parser.add_argument("--rounds", type=int, help="rounds for (a) and (d)")
    parser.add_argument("--json", help="where raw numbers go; --quick writes none by default")
    return parser.parse_args()


def _facts(options: argparse.Namespace, plan: sections.Plan) -> dict:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "missing"
    return {
        "started": time.time(),
        "machine": f"{_processor()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "device": _device_name(plan.device),
        "threads": torch.get_num_threads(),
        "environment": SETTINGS,
        "load": _load(),
        "versions": versions,
        "options": vars(options),
        "plan": {**dataclasses.asdict(plan), "device": str(plan.device)},
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _default_path(device: torch.device) -> Path:
    label = re.sub(r"[^a-z0-9]+", "-", _device_name(device).lower()).strip("-")
    return Path(__file__).parent / f"results-{label}.json"


def _load() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


if __name__ == "__main__":
    main()
