"""(b) Eigenpairs of largest magnitude: of the whole Hessian, and of a layer's block."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import bars
import references
import rivals
import torch
from bars import ASIDE, BY_HAND, OURS, RIVAL
from plan import Plan, best_chunk, our_hessian, risk_of
from problems import Problem
from products import LAYER, LAYER_NAMES
from scipy.sparse.linalg import LinearOperator as ScipyOperator
from scipy.sparse.linalg import eigsh as scipy_eigsh
from timing import Row, in_turn
from torch import Tensor

import eigenscape as es

COPY = 0.05  # an eigenvalue further off than this is a copy, or one was missed
SLACK = 2.0  # a residual this many times what was asked still counts
STEPS = 6  # Lanczos steps a pair for a library that cannot be asked for a residual


@dataclass(frozen=True)
class Case:
    """What is asked for.

    Attributes:
        job: Its name.
        pairs: How many.
        tolerance: Of ‖Hv − λv‖ / |λ|.
        dtype: Of the network.
        rounds: Starting vectors, at most.
        layer: The layer whose block it is, or None for everything.
    """

    job: str
    pairs: int
    tolerance: float
    dtype: torch.dtype = torch.float32
    rounds: int = 5
    layer: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters."""
        return LAYER_NAMES if self.layer else ()


DOUBLE = "10 pairs to 1e-6, float64"
WHOLE = (
    Case(DOUBLE, 10, 1e-6, torch.float64),
    Case(bars.PAIRS_10, 10, 1e-4),
    Case(bars.PAIRS_50, 50, 1e-4, rounds=3),
)
OF_LAYER = (Case(bars.LAYER_PAIRS, 120, 1e-5, rounds=2, layer=LAYER),)

Answer = tuple[Tensor, Tensor, int, str]  # values by magnitude, vectors (n, k), products, note
Solver = Callable[[int], Answer]


def eigenpairs(problem: Problem, plan: Plan, cases: tuple[Case, ...]) -> list[Row]:
    """(b) A round is a starting vector; setting up is part of the time."""
    rows = []
    for case in cases:
        if plan.quick:
            case = replace(case, pairs=max(3, case.pairs // 10))
        reference = references.hessian_reference(problem, case.names)
        rows += _solved(problem.to(case.dtype), case, reference, plan)
    return rows


def _solved(problem: Problem, case: Case, reference: rivals.Product, plan: Plan) -> list[Row]:
    start = _start(problem.to(torch.float64), case, 99)
    # An answer to compare with that owes nothing to the package.
    truth, _ = _scipy(reference, start, rivals.Counter(), case.pairs, 1e-11)
    worst: dict[str, float] = {}

    def look(row: Row, answer: Answer) -> None:
        values, vectors, count, note = answer
        row.products.append(count)
        row.error = max(row.error or 0.0, _residual(reference, values, vectors))
        off = float(((values - truth).abs() / truth.abs()).max())
        worst[row.method] = max(worst.get(row.method, 0.0), off)
        row.wrong = worst[row.method] > COPY
        row.note = f"{note}values off by {worst[row.method]:.0e}"

    jobs = {
        label: (Row("b", problem.name, case.job, label, role), solver)
        for label, (role, solver) in _solvers(problem, case, plan).items()
    }
    unit = problem.cut(best_chunk(problem, plan)[0])
    in_turn(jobs, unit.gradient, min(plan.seeds, case.rounds), look)
    rows = [row for row, _ in jobs.values()]
    for row in rows:
        row.extra["pairs"] = case.pairs
    _weigh(rows, case)
    return rows


def _weigh(rows: list[Row], case: Case) -> None:
    """Say who is less exact than asked; where float32 forbids more, whoever is as exact as we."""
    enough = SLACK * case.tolerance
    ours = max(row.error or 0.0 for row in rows if row.role == OURS)
    for row in rows:
        limit = enough if row.role == OURS else max(enough, ours)
        row.counts = not row.failed and row.error <= limit
        if row.error is not None and row.error > enough:
            row.note += "; less exact than asked"


def _start(problem: Problem, case: Case, seed: int) -> Tensor:
    v = problem.vector(seed=seed)
    if case.layer is None:
        return v
    return es.ParamSpace.of(dict(problem.model.named_parameters())).block(case.layer).take(v)


def _solvers(problem: Problem, case: Case, plan: Plan) -> dict[str, tuple[str, Solver]]:
    """By name, whose it is and a function of the seed."""
    arpack = partial(_arpack, problem, case, plan)
    curvlinops = partial(rivals.curvlinops_product, problem, "Hessian", case.names)
    solvers = {
        "eigenscape.eigsh": (OURS, partial(_ours, problem, case)),
        "eigenscape.eigsh, num_check=0": (ASIDE, partial(_ours, problem, case, num_check=0)),
        "scipy eigsh on curvlinops": (RIVAL, partial(arpack, curvlinops)),
        "scipy eigsh on double backward, kept": (
            BY_HAND,
            partial(arpack, partial(rivals.autograd_kept, problem, case.names)),
        ),
        "PyHessian eigenvalues": (RIVAL, partial(_pyhessian, problem, case, plan)),
        "hessian-eigenthings lanczos, defaults": (
            RIVAL,
            partial(_eigenthings, problem, case, plan, None),
        ),
        f"hessian-eigenthings lanczos, {STEPS} steps a pair": (
            RIVAL,
            partial(_eigenthings, problem, case, plan, STEPS * case.pairs),
        ),
    }
    chunk, _ = best_chunk(problem, plan)
    if chunk < len(problem.x):
        build = partial(rivals.curvlinops_product, problem.cut(chunk), "Hessian", case.names)
        solvers["scipy eigsh on curvlinops, in chunks"] = (RIVAL, partial(arpack, build))
    if case.layer is None:
        mine = partial(our_hessian, problem)
        solvers["scipy eigsh on eigenscape Hessian"] = (ASIDE, partial(arpack, mine))
    return solvers


def _ours(problem: Problem, case: Case, seed: int, **options: int) -> Answer:
    risk = risk_of(problem)
    operator = es.Hessian(risk) if case.layer is None else es.LayerHessian(risk, case.layer)
    pairs = es.eigsh(
        operator,
        num_pairs=case.pairs,
        which="magnitude",
        tolerance=case.tolerance,
        start=_start(problem, case, seed),
        seed=seed,
        **options,
    )
    note = f"{case.pairs} of the products are certificates; "
    note += "" if pairs.status else "says not converged; "
    return *_by_magnitude(pairs.values, pairs.vectors), pairs.num_products, note


def _arpack(
    problem: Problem, case: Case, plan: Plan, build: Callable[[], rivals.Product], seed: int
) -> Answer:
    counter, start = rivals.Counter(seconds=plan.patience), _start(problem, case, seed)
    values, vectors = _scipy(build(), start, counter, case.pairs, case.tolerance)
    return values, vectors, counter.count, ""


def _pyhessian(problem: Problem, case: Case, plan: Plan, seed: int) -> Answer:
    h = rivals.pyhessian_object(problem, names=case.names)
    module = sys.modules["pyhessian.hessian"]  # the package's attribute is the class
    counter = rivals.Counter(seconds=plan.patience)
    torch.manual_seed(seed)
    with counter.watching(module, "hessian_vector_product"):
        values, vectors = h.eigenvalues(top_n=case.pairs)
    V = torch.stack([torch.cat([p.reshape(-1) for p in v]) for v in vectors], dim=1)
    return *_by_magnitude(torch.tensor(values), V), counter.count, "its defaults; "


def _eigenthings(problem: Problem, case: Case, plan: Plan, steps: int | None, seed: int) -> Answer:
    import hessian_eigenthings as he

    operator = rivals.eigenthings_operator(problem, case.names)
    counter, full = rivals.Counter(seconds=plan.patience), None if steps is None else True
    with counter.watching(operator, "matvec"):
        found = he.lanczos(operator, k=case.pairs, max_iter=steps, reorthogonalize=full, seed=seed)
    V = found.eigenvectors.T
    return *_by_magnitude(found.eigenvalues, V), found.iterations, ""


def _scipy(
    product: rivals.Product, start: Tensor, counter: rivals.Counter, pairs: int, tolerance: float
) -> tuple[Tensor, Tensor]:
    v0 = start.cpu().numpy()

    def multiply(x: Any) -> Any:
        return product(torch.from_numpy(x.reshape(-1)).to(start)).cpu().numpy()

    A = ScipyOperator((v0.size, v0.size), matvec=counter.counted(multiply), dtype=v0.dtype)
    values, vectors = scipy_eigsh(A, pairs, which="LM", v0=v0, tol=tolerance)
    return _by_magnitude(torch.from_numpy(values), torch.from_numpy(vectors))


def _by_magnitude(values: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    order = values.abs().argsort(descending=True)
    return values[order].double().cpu(), vectors[:, order.to(vectors.device)]


def _residual(reference: rivals.Product, values: Tensor, vectors: Tensor) -> float:
    """Return the largest ‖Hv − λv‖ / |λ| by float64 products."""
    worst = 0.0
    for value, vector in zip(values.tolist(), vectors.T, strict=True):
        v = (vector.double() / vector.double().norm()).contiguous()
        Hv = reference(v)
        worst = max(worst, float((Hv - value * v.to(Hv)).norm()) / abs(value))
    return worst


def product_counts(rows: list[Row]) -> list[str]:
    """Compare products with SciPy's, start by start, certificates left out as SciPy has none."""
    there = [row for row in rows if row.job == DOUBLE]
    by = {row.method: row.products for row in there}
    k = there[0].extra["pairs"] if there else 0
    found = [count - k for count in by.get("eigenscape.eigsh, num_check=0", [])]
    theirs = by.get("scipy eigsh on eigenscape Hessian", [])
    whole = by.get("eigenscape.eigsh", [])
    if not found or not len(found) == len(theirs) == len(whole):
        return []
    more = sum(a > b for a, b in zip(found, theirs, strict=True))
    look = [w - k - f for w, f in zip(whole, found, strict=True)]
    return [
        f"{DOUBLE}: products, ours {median(found):g} to find the pairs + {median(look):g} to look "
        f"for copies + {k} certificates; SciPy's {median(theirs):g} (bar: find them in no more; "
        f"more for {more} of {len(found)} starts)."
    ]
