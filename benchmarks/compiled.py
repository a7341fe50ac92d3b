"""(a) on a GPU: products of networks of some size, in compiled gradients and in their memory."""

import gc
from collections.abc import Callable
from typing import Any

import bars
import references
import torch
import torch.nn.functional as F
from bars import ASIDE, BY_HAND, OURS
from plan import ROUNDING, Plan, our_gauss_newton, our_hessian
from problems import Problem
from timing import Row, timed
from torch import Tensor

Job = Callable[[], Tensor]


def compiled_products(problem: Problem, plan: Plan) -> tuple[list[Row], str]:
    """Time products against the compiled gradient; memory is the peak, model and data included."""
    gradient, note = _compiled_gradient(problem)
    unit_bytes = _peak(problem, lambda: gradient)
    rows = [_row(problem, "gradient", "autograd, compiled", BY_HAND)]
    rows[0].extra["bytes"] = unit_bytes
    timed({"gradient": (rows[0], gradient)}, gradient, plan.rounds)
    v = problem.vector()
    # The bars are for compiled products: on request, since compiling takes a minute.
    ways = (
        ("compiled", OURS, {"representation": "compiled"}),
        ("as it is", ASIDE, {}),
        ("memory_budget=0", ASIDE, {"memory_budget": 0}),
    )
    kinds = (
        (bars.ONE_HESSIAN, "eigenscape Hessian", our_hessian),
        (bars.ONE_GAUSS_NEWTON, "eigenscape GaussNewton", our_gauss_newton),
    )
    jobs = [
        (job, f"{name}, {way}", role, build, options)
        for job, name, build in kinds
        for way, role, options in ways
    ]
    for job, label, role, build, options in jobs:
        row = _row(problem, job, label, role)
        rows.append(row)

        def make(build: Callable[..., Job] = build, options: dict[str, Any] = options) -> Job:
            product = build(problem, **options)
            return lambda: product(v)

        try:
            row.extra["bytes"] = _peak(problem, make)
            row.extra["memory"] = row.extra["bytes"] / unit_bytes
            found = timed({label: (row, make())}, gradient, plan.rounds)
        except Exception as error:
            row.fail(error)
            continue
        if label in found:
            row.note = f"{row.extra['memory']:.2f} times the gradient's memory"
            _look(problem, job, row, v, found[label])
    return rows, note


def _row(problem: Problem, job: str, method: str, role: str) -> Row:
    return Row("a", problem.name, job, method, role)


def _look(problem: Problem, job: str, row: Row, v: Tensor, found: Tensor) -> None:
    make = (
        references.hessian_reference
        if job == bars.ONE_HESSIAN
        else references.gauss_newton_reference
    )
    expected = make(problem)(v)
    row.error = float((found.double() - expected).norm() / expected.norm())
    row.wrong = row.error > 10 * ROUNDING  # deep ReLU networks: units within rounding of zero


def _compiled_gradient(problem: Problem) -> tuple[Callable[[], object], str]:
    """Compile the loss and differentiate it; where nothing compiles, take the gradient as it is."""
    params = list(problem.model.parameters())

    def loss() -> Tensor:
        return F.cross_entropy(problem.model(problem.x), problem.y)

    compiled = torch.compile(loss)

    def gradient() -> object:
        return torch.autograd.grad(compiled(), params)

    try:
        gradient()
    except Exception as error:
        text = str(error).strip().splitlines() or [""]
        return problem.gradient, f"NOT compiled, plain autograd is the unit: {text[0][:80]}"
    return gradient, "the unit is the compiled gradient, one batch"


def _peak(problem: Problem, make: Callable[[], Callable[[], object]]) -> float:
    """Return the most bytes in use while a job is set up and run twice, with model and data."""
    make()()  # what libraries allocate once and keep is nobody's
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    job = make()
    for _ in range(2):
        job()
    torch.cuda.synchronize()
    held = [*problem.model.parameters(), problem.x, problem.y]
    own = torch.cuda.max_memory_allocated() - before
    return float(own + sum(tensor.numel() * tensor.element_size() for tensor in held))
