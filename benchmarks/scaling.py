"""(s) How costs grow with parameters, samples, classes, columns and pairs, beside their floors.

    python benchmarks/scaling.py [--quick] [--device cuda] [--json FILE]

is `bench.py --sections s`.

Each sweep changes one thing and is drawn as `docs/images/scaling-<machine>-<sweep>.png`: points
with the exponent fitted over the upper half of the range, and dashed the floor from counting
operations and bytes at rates measured in the same run.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import bars
import problems
import torch
from bars import OURS
from fits import fit_exponent, upper_part
from floors import Rates, layer_floor, measured_rates, product_floors, step_floor
from plan import Plan, our_gauss_newton, our_hessian, risk_of
from problems import Problem
from timing import Row, best_time, seconds_of
from torch import Tensor, nn

import eigenscape as es

HESSIAN, GAUSS_NEWTON = "Hessian product", "Gauss-Newton product"
EIGSH, LAYER_EIGSH = "eigsh, Hessian", "eigsh, fc1"
BASIS = 40  # vectors that a solver's step is measured with


@dataclass(frozen=True)
class Point:
    """What one job cost at one size.

    Attributes:
        seconds: What it took.
        floor: What it would take at the machine's rates.
        note: What was found out on the way.
    """

    seconds: float
    floor: float
    note: str = ""


@dataclass(frozen=True)
class Net:
    """A perceptron with two hidden layers, as wide as its input, without training."""

    width: int
    samples: int
    classes: int

    @property
    def size(self) -> int:
        """Number of parameters."""
        w, C = self.width, self.classes
        return 2 * w * (w + 1) + (w + 1) * C

    def problem(self, device: torch.device) -> Problem:
        """Make it."""
        torch.manual_seed(0)
        model = nn.Sequential()
        sizes = [self.width, self.width, self.width, self.classes]
        for i in range(3):
            model.add_module(f"fc{i + 1}", nn.Linear(sizes[i], sizes[i + 1]))
            if i < 2:
                model.add_module(f"relu{i + 1}", nn.ReLU())
        x = torch.randn(self.samples, self.width)
        y = torch.randint(self.classes, (self.samples,))
        return problems.Problem("perceptron", model, x, y, 0.0, "fc1").to(device)


@dataclass(frozen=True)
class Sweep:
    """One thing that is changed.

    Attributes:
        axis: What is counted on the axis.
        settings: What is set, from small to large.
        measure: From a setting to the cost of each job.
        sizes: Where on the axis each setting stands; the settings themselves, if nothing is said.
    """

    axis: str
    settings: Sequence[int]
    measure: Callable[[int], dict[str, Point]]
    sizes: Sequence[int] = ()


def scaling(plan: Plan, label: str, folder: Path) -> tuple[list[Row], dict[str, Any]]:
    """Measure and draw all sweeps."""
    rates = measured_rates(plan.device)
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, sweep in sweeps(plan, rates).items():
        sizes = list(sweep.sizes or sweep.settings)
        print(f"scaling: {sweep.axis}, {sizes[0]} to {sizes[-1]} ...", flush=True)
        points = [sweep.measure(setting) for setting in sweep.settings]
        found = [
            _fitted(name, job, sizes, [point[job] for point in points], sweep.axis)
            for job in points[0]
        ]
        draw(found, folder / f"scaling-{label}-{name}.png", rates)
        rows += found
    return rows, {"rates": rates.as_dict()}


def sweeps(plan: Plan, rates: Rates) -> dict[str, Sweep]:
    """List them by name."""
    big = 4 if plan.device.type == "cuda" else 1
    base = Net(32, 100, 5) if plan.quick else Net(128 * big, 1000 * big, 10)

    def powers(first: int, count: int) -> list[int]:
        return [first * 2**i for i in range(3 if plan.quick else count)]

    def by_net(**change: int) -> dict[str, Point]:
        net = replace(base, **change).problem(plan.device)
        return {**_products(net, rates, plan), EIGSH: _eigsh(net, rates, 5)}

    def by_pairs(k: int) -> dict[str, Point]:
        return {EIGSH: _eigsh(net, rates, k), LAYER_EIGSH: _layer_eigsh(net, rates, k)}

    net = base.problem(plan.device)
    widths = powers(base.width // 4, 6)
    sizes = [replace(base, width=width).size for width in widths]
    first = 2**11 if plan.quick else 2**15
    return {
        "parameters": Sweep("parameters", widths, lambda w: by_net(width=w), sizes),
        "samples": Sweep("samples", powers(base.samples, 7), lambda N: by_net(samples=N)),
        "classes": Sweep("classes", powers(4, 6), lambda C: by_net(classes=C)),
        "columns": Sweep("columns", powers(1, 7), lambda k: _products(net, rates, plan, k)),
        "pairs": Sweep("pairs", powers(1, 6), by_pairs),
        "size": Sweep("size of a matrix", powers(first, 6), lambda n: _steps(n, plan, rates)),
    }


def _products(problem: Problem, rates: Rates, plan: Plan, columns: int = 1) -> dict[str, Point]:
    """Time the four products, all columns together."""
    risk = risk_of(problem)
    floors = product_floors(problem, rates, columns)

    def point(product: Callable[[Tensor], Tensor], V: Tensor, floor: float, note: str) -> Point:
        product(V)  # sets up
        return Point(best_time(lambda: product(V), plan.rounds), floor, note)

    points = {
        HESSIAN: point(our_hessian(problem), problem.vector(columns), floors[0], ""),
        GAUSS_NEWTON: point(our_gauss_newton(problem), problem.vector(columns), floors[1], ""),
    }
    floor = layer_floor(problem, "fc1", rates, columns)
    for job, kind in ((bars.LAYER_AUTO, "auto"), (bars.LAYER_TAIL, "tail")):
        operator = es.LayerHessian(risk, "fc1", representation=kind)
        generator = torch.Generator().manual_seed(0)
        V = torch.randn(operator.space.size, columns, generator=generator).to(problem.x)
        points[job] = point(operator.__matmul__, V, floor, operator.representation)
    return points


def _eigsh(problem: Problem, rates: Rates, pairs: int) -> Point:
    floor, _ = product_floors(problem, rates)
    return _solved(es.Hessian(risk_of(problem)), floor, pairs)


def _layer_eigsh(problem: Problem, rates: Rates, pairs: int) -> Point:
    floor = layer_floor(problem, "fc1", rates)
    return _solved(es.LayerHessian(risk_of(problem), "fc1"), floor, pairs)


def _solved(operator: es.LinearOperator, floor: float, pairs: int) -> Point:
    """Time eigenpairs to 1e-3; the floor is that of the products that were spent."""
    spent, found = seconds_of(lambda: es.eigsh(operator, num_pairs=pairs, tolerance=1e-3))
    return Point(spent, floor * found.num_products, f"{found.num_products} products")


class Diagonal(es.LinearOperator):
    """A matrix whose products cost nothing, so that only the solver is measured."""

    def __init__(self, n: int, device: torch.device) -> None:
        self._entries = torch.linspace(1.0, 2.0, n, device=device)
        self._space = es.ParamSpace({"diagonal": (n,)})

    @property
    def space(self) -> es.ParamSpace:
        """All of it in one tensor."""
        return self._space

    @property
    def dtype(self) -> torch.dtype:
        """float32, as networks have it."""
        return self._entries.dtype

    @property
    def device(self) -> torch.device:
        """Where the entries are."""
        return self._entries.device

    @property
    def is_symmetric(self) -> bool:
        """Always."""
        return True

    def matmat(self, X: Tensor) -> Tensor:
        """Scale the rows."""
        return self._entries[:, None] * X


def _steps(n: int, plan: Plan, rates: Rates) -> dict[str, Point]:
    """Time what a step of a solver costs beside the product, with the same basis for every n."""
    operator = Diagonal(n, plan.device)
    basis = 12 if plan.quick else BASIS
    spent, found = seconds_of(
        lambda: es.eigsh(
            operator, num_pairs=2, max_products=3 * basis, max_basis=basis, tolerance=1e-9
        )
    )
    # A basis between restarts holds from a few vectors to all: half of them on average.
    floor = step_floor(n, basis // 2, rates)
    points = {bars.SOLVER_STEP: Point(spent / found.num_products, floor)}
    spent, drawn = seconds_of(lambda: es.spectral_density(operator, num_probes=2, num_steps=basis))
    points[bars.DENSITY_STEP] = Point(spent / drawn.num_products, floor)
    return points


def _fitted(sweep: str, job: str, sizes: list[int], points: list[Point], axis: str) -> Row:
    row = Row("s", sweep, job, "eigenscape", OURS)
    seconds = [point.seconds for point in points]
    exponent, stderr = fit_exponent(*upper_part(sizes, seconds))
    row.seconds = [seconds[-1]]
    row.extra = {
        "axis": axis,
        "x": sizes,
        "seconds": seconds,
        "floor": [point.floor for point in points],
        "exponent": exponent,
        "stderr": stderr,
        "notes": [point.note for point in points],
    }
    above = seconds[-1] / points[-1].floor
    row.note = f"exponent {exponent:.2f} ± {stderr:.2f}; at the end {above:.1f} times the floor"
    row.note += f"; {points[-1].note}" if points[-1].note else ""
    return row


def draw(rows: Sequence[Row], path: Path, rates: Rates) -> None:
    """Draw one sweep."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 5.5), layout="constrained")
    for number, row in enumerate(rows):
        extra, colour = row.extra, f"C{number}"
        label = f"{row.job}: {extra['exponent']:.2f} ± {extra['stderr']:.2f}"
        axes.loglog(extra["x"], extra["seconds"], "o-", color=colour, label=label)
        axes.loglog(extra["x"], extra["floor"], "--", color=colour, linewidth=1)
    axes.plot([], [], "k--", linewidth=1, label="floor of each")
    sizes = rows[0].extra["x"]
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel(rows[0].extra["axis"])
    axes.set_ylabel("seconds")
    axes.set_title(
        f"{rates.flops / 1e9:.3g} Gflop/s, {rates.bandwidth / 2**30:.3g} GiB/s; exponents of the "
        "upper half",
        fontsize=10,
    )
    axes.grid(which="major", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    from bench import main

    sys.argv += ["--sections", "s"]
    main()
