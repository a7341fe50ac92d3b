"""One run: options, problems one after the other, the record, the tables."""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import bars
import problems
import torch
from compiled import compiled_products
from density import density
from eigenpairs import OF_LAYER, WHOLE, eigenpairs, product_counts
from exact import dense, layer_spectra, trace
from plan import Plan, make_plan, quiet
from problems import Problem
from products import layer_block, products
from scaling import scaling
from sparse_codes import sparse_codes
from timing import Row, markdown, rows_table

ALL = "abcdefgos"
PACKAGES = (
    "torch",
    "scipy",
    "scikit-learn",
    "curvlinops-for-pytorch",
    "pyhessian",
    "hessian-eigenthings",
    "backpack-for-pytorch",
)
HEADINGS = {
    "a": "(a) One product, in gradients. Error: of the product, relative, unit random vector.",
    "b": "(b) Eigenpairs of largest magnitude. Error: largest ‖Hv − λv‖ / |λ|.",
    "c": "(c) Spectral density. Error: of the trace; it holds the noise of the probes.",
    "d": "(d) One product with a layer's block, in gradients of the whole network.",
    "e": "(e) Trace of the Gauss-Newton matrix. Error: of the trace, the worst round's.",
    "f": "(f) Dense Hessian. Error: of its first columns.",
    "g": "(g) All eigenvalues of every layer's block. Error: of the largest ones.",
    "o": "(o) Matching pursuit. Error: of what is left of the samples, against float64.",
    "s": "(s) Scaling. ms: at the largest size.",
}
IMAGES = Path(__file__).parents[1] / "docs" / "images"


@dataclasses.dataclass
class Record:
    """What was measured: by section, rows and notes and under what load."""

    sections: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    def add(self, key: str, rows: list[Row], notes: list[str], seconds: float, **more: Any) -> None:
        """Add to a section."""
        kept = self.sections.setdefault(key, {"seconds": 0.0, "rows": [], "notes": []})
        kept["seconds"] += seconds
        kept["load"] = _load()
        kept["rows"] += [dataclasses.asdict(row) for row in rows]
        kept["notes"] += notes
        kept.update(more)

    def rows(self) -> list[Row]:
        """Return all rows in the order of the sections."""
        return [Row(**row) for key in sorted(self.sections) for row in self.sections[key]["rows"]]


def run(threads: int, settings: dict[str, str]) -> None:
    options = _options()
    if options.show:
        raw = json.loads(Path(options.show).read_text())
        _print(raw, Record(raw["sections"]))
        return
    torch.set_num_threads(threads)
    torch.backends.cudnn.allow_tf32 = False  # products are compared in float32
    quiet()
    plan = make_plan(options.device, options.quick, options.rounds)
    facts = _facts(options, plan, settings)
    path, record = _path(options, plan.device), Record()
    if options.merge and path is not None and path.exists():
        old = json.loads(path.read_text()).get("sections", {})
        record.sections = {k: v for k, v in old.items() if k not in options.sections}
    try:
        _measure(options, plan, record)
    except KeyboardInterrupt:
        facts["interrupted"] = True
    facts["seconds"], facts["load_at_end"] = time.time() - facts.pop("started"), _load()
    raw = {**facts, "sections": record.sections}
    if path is not None:
        path.write_text(json.dumps(raw, indent=1) + "\n")
        print(f"raw numbers: {path}")
    _print(raw, record)


def _measure(options: argparse.Namespace, plan: Plan, record: Record) -> None:
    for problem in _problems(options, plan):
        wanted = [key for key in _sections_of(problem.name) if key in options.sections]
        if not wanted:
            continue
        about = f"{problem.name}: {len(problem.x)} samples, {problem.size} parameters, "
        about += f"loss {problem.loss:.3f}"
        print(f"{about}. Measuring {', '.join(wanted)} ...", flush=True)
        record.add(wanted[0], [], [about], 0.0)
        for key in wanted:
            _take(record, key, lambda key=key, problem=problem: _section(key, problem, plan))
    if "o" in options.sections:
        _take(record, "o", lambda: sparse_codes(plan))
    if "s" in options.sections:
        with tempfile.TemporaryDirectory() as aside:  # a rehearsal draws, but leaves no picture
            folder = Path(aside) if plan.quick else IMAGES
            _take(record, "s", lambda: scaling(plan, _label(plan.device), folder))


def _take(record: Record, key: str, measure: Callable[[], tuple[list[Row], Any]]) -> None:
    """Add what was measured; one that breaks leaves a note, and the others their rows."""
    start = time.time()
    try:
        rows, more = measure()
    except Exception as error:
        traceback.print_exc()
        rows, more = [], [f"FAILED: {type(error).__name__}: {str(error)[:200]}"]
    notes, facts = ([], more) if isinstance(more, dict) else (more, {})
    record.add(key, rows, notes, time.time() - start, **facts)


def _section(key: str, problem: Problem, plan: Plan) -> tuple[list[Row], list[str]]:
    """Measure one section on one problem: its rows, and what else there is to say."""
    if key == "a" and "11M" in problem.name:
        rows, note = compiled_products(problem, plan)
        return rows, [f"{problem.name}: {note}"]
    if key == "a":
        rows, note = products(problem, plan)
        return rows, [f"{problem.name}: {note}", _gap(problem, rows)]
    if key == "b":
        rows = eigenpairs(problem, plan, OF_LAYER if problem.name == "lenet" else WHOLE)
        return rows, product_counts(rows)
    if key == "g":
        return layer_spectra(_fewer_or_more(problem, plan), plan), []
    simple = {"c": density, "d": layer_block, "e": trace, "f": dense}
    return simple[key](problem, plan), []


def _sections_of(name: str) -> str:
    return {"mlp": "abce", "lenet": "abdg", "dong": "f"}.get(name, "a")


def _fewer_or_more(problem: Problem, plan: Plan) -> Problem:
    """Give (g) its data: few on a CPU, where spectra take long, and many on a GPU."""
    if plan.device.type == "cuda":
        return problems.lenet(500, total=500 if plan.quick else 50_000, device=plan.device)
    count = 20 if plan.quick else 200
    return dataclasses.replace(problem, x=problem.x[:count], y=problem.y[:count])


def _problems(options: argparse.Namespace, plan: Plan) -> Iterator[Problem]:
    """Make the problems one after the other, so that only one is in memory."""
    names, quick, device = options.problems.split(","), plan.quick, plan.device
    if "mlp" in names:
        yield problems.mlp(*((200, 50, 20) if quick else (2000,)), device=device)
    if "lenet" in names:
        yield problems.lenet(64 if quick else 2000, device=device)
    if "resnet" in names:
        size = (64, "ResNet18-W4", 8) if quick else (256, "ResNet18-W16", 32)
        yield problems.resnet(*size, steps=20 if quick else 2000, device=device)
    if "gpt" in names or "gpt-sdpa" in names:
        size = (32, 1, 32) if quick else (64, 5, 128)
        text = problems.gpt(*size, steps=50 if quick else 2000, device=device)
        if "gpt" in names:
            yield text
        if "gpt-sdpa" in names:
            yield problems.fused(text)
    if "dong" in names:
        yield problems.dong(*((200, 20) if quick else (5000, 500)), device=device)
    if device.type == "cuda" and "large" in names:
        size = (32, "ResNet18-W16", 32) if quick else (512, "ResNet18", 32)
        yield problems.resnet(*size, name="resnet-11M", steps=3, device=device)
        size = (4, 2, 96) if quick else (64, 6, 384)
        more = {"heads": 6, "length": 256, "name": "gpt-11M", "steps": 3}
        yield problems.gpt(*size, **more, device=device)


def _gap(problem: Problem, rows: list[Row]) -> str:
    """Say what counting matrix products allows, and how far from it we are."""
    parts = []
    for job, floor in zip((bars.ONE_HESSIAN, bars.ONE_GAUSS_NEWTON), problem.floors(), strict=True):
        row = next(row for row in rows if row.job == job and row.role == bars.OURS)
        if row.failed:
            parts.append(f"{job} failed")
            continue
        ours = median(row.gradients)
        parts.append(f"{job} {ours:.2f} gradients, {ours / floor:.2f} times the floor {floor:.2f}")
    return f"{problem.name}: " + "; ".join(parts)


def _print(raw: dict[str, Any], record: Record) -> None:
    versions = ", ".join(f"{k} {v}" for k, v in raw["versions"].items())
    print(f"\n{raw['machine']}, {raw['device']}, {raw['threads']} threads,")
    print(f"load {raw['load']} to {raw['load_at_end']}, {raw['seconds']:.0f} s; {versions}")
    if rates := record.sections.get("s", {}).get("rates"):
        print(f"{rates['flops'] / 1e9:.3g} Gflop/s, {rates['bandwidth'] / 2**30:.3g} GiB/s")
    for key in sorted(record.sections):
        section = record.sections[key]
        print(f"\n{HEADINGS[key]}")
        for note in section["notes"]:
            print(f"  {note}")
        print("\n" + markdown(rows_table([Row(**row) for row in section["rows"]])))
    if raw["plan"]["quick"]:
        print("\nA rehearsal: sizes are tiny, and the bars below are not meant for them.")
    device = "cpu" if raw["device"] == "cpu" else "cuda"
    print("\n" + markdown(bars.bars_table(bars.verdicts(record.rows(), device))))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare eigenscape with other libraries.")
    add = parser.add_argument
    add("--quick", action="store_true", help="tiny sizes, few rounds: a rehearsal")
    add("--device", default="cpu", help="cpu or cuda")
    add("--sections", default=ALL, help=f"which of {', '.join(ALL)}")
    add("--problems", default="mlp,lenet,resnet,gpt,gpt-sdpa,dong,large", help="which networks")
    add("--rounds", type=int, help="rounds for (a) and (d)")
    add(
        "--json", help="where raw numbers go; a rehearsal or a part of a run writes none by default"
    )
    add("--merge", action="store_true", help="keep the file's other sections")
    add("--show", metavar="FILE", help="measure nothing, print the tables of an earlier run")
    return parser.parse_args()


def _facts(options: argparse.Namespace, plan: Plan, settings: dict[str, str]) -> dict[str, Any]:
    versions = {}
    for package in ("eigenscape", *PACKAGES):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "missing"
    return {
        "started": time.time(),
        "machine": f"{_processor()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "device": _device_name(plan.device),
        "threads": torch.get_num_threads(),
        "environment": settings,
        "load": _load(),
        "versions": versions,
        "options": vars(options),
        "plan": {**dataclasses.asdict(plan), "device": str(plan.device)},
    }


def _path(options: argparse.Namespace, device: torch.device) -> Path | None:
    if options.json:
        return Path(options.json)
    is_whole = set(options.sections) >= set(ALL)
    if options.quick or not (is_whole or options.merge):
        return None
    return Path(__file__).parent / f"results-{_label(device)}.json"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", info.read_text()) if info.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _label(device: torch.device) -> str:
    """Name a device in a file's name."""
    label = re.sub(r"[^a-z0-9]+", "-", _device_name(device).lower()).strip("-")
    return label.removeprefix("nvidia-")


def _load() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
