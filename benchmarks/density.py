"""(c) The spectral density; its first moment is compared with the exact trace."""

from collections.abc import Callable
from functools import partial

import bars
import references
import rivals
import torch
from bars import OURS, RIVAL
from plan import Plan, best_chunk, risk_of
from problems import Problem
from timing import Row, in_turn

import eigenscape as es

Answer = tuple[float, int]  # the mean eigenvalue, products


def density(problem: Problem, plan: Plan) -> list[Row]:
    """(c) All probes, setting up included."""
    trace, n = references.relu_trace(problem), problem.size

    def look(row: Row, answer: Answer) -> None:
        found, count = n * answer[0], answer[1]
        row.products.append(count)
        row.error = abs(found - trace) / trace
        row.wrong = row.error > 1.0
        row.note = f"{aside.get(row.method, '')}trace {found:.4g}, exact {trace:.4g}"
        row.counts = row.method not in aside

    aside = {"curvlinops lanczos_approximate_spectrum": "not reorthogonalised; "}
    methods: dict[str, tuple[str, Callable[[Problem, Plan], Answer]]] = {
        "eigenscape spectral_density": (OURS, _ours),
        "hessian-eigenthings spectral_density": (RIVAL, _eigenthings),
        "curvlinops lanczos_approximate_spectrum": (RIVAL, _curvlinops),
        "PyHessian density": (RIVAL, _pyhessian),
    }
    jobs = {
        label: (
            Row("c", problem.name, bars.DENSITY, label, role),
            partial(lambda method, _round: method(problem, plan), method),
        )
        for label, (role, method) in methods.items()
    }
    in_turn(jobs, problem.cut(best_chunk(problem, plan)[0]).gradient, plan.long_rounds, look)
    return [row for row, _ in jobs.values()]


def _ours(problem: Problem, plan: Plan) -> Answer:
    found = es.spectral_density(
        es.Hessian(risk_of(problem)), num_probes=plan.probes, num_steps=plan.steps
    )
    return found.moment(1)[0], found.num_products


def _eigenthings(problem: Problem, plan: Plan) -> Answer:
    import hessian_eigenthings as he

    operator, counter = rivals.eigenthings_operator(problem), rivals.Counter()
    with counter.watching(operator, "matvec"):
        found = he.spectral_density(
            operator, num_runs=plan.probes, lanczos_steps=plan.steps, seed=0
        )
    nodes, weights = found.raw_eigenvalues, found.raw_weights
    return float((nodes * weights).nansum(1).mean()), counter.count


def _curvlinops(problem: Problem, plan: Plan) -> Answer:
    from curvlinops import lanczos_approximate_spectrum

    operator, counter = rivals.curvlinops_operator(problem), rivals.Counter()
    torch.manual_seed(0)
    with counter.watching(operator, "_matmat"):
        grid, rho = lanczos_approximate_spectrum(operator, ncv=plan.steps, num_repeats=plan.probes)
    # It gives the smoothed density alone, so its trace holds the smoothing as well.
    return float(torch.trapezoid(grid * rho, grid)), counter.count


def _pyhessian(problem: Problem, plan: Plan) -> Answer:
    h = rivals.pyhessian_object(problem)
    torch.manual_seed(0)
    nodes, weights = h.density(iter=plan.steps, n_v=plan.probes)
    pairs = zip(torch.tensor(nodes), torch.tensor(weights), strict=True)
    mean = sum(float((t * w).sum()) for t, w in pairs) / plan.probes
    return mean, plan.probes * plan.steps
