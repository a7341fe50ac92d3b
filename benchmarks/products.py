"""(a) One product with the whole matrix, and (d) with the block of a layer."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import bars
import references
import rivals
from bars import ASIDE, BY_HAND, MASKED, OURS, RIVAL
from plan import ROUNDING, Plan, best_chunk, our_gauss_newton, our_hessian, risk_of
from problems import Problem
from timing import Row, timed
from torch import Tensor

import eigenscape as es

BLOCKS = (4, 8, 16)
LAYER, LAYER_NAMES = "fc1", ("fc1.weight", "fc1.bias")


@dataclass(frozen=True)
class Method:
    """A way to multiply.

    Attributes:
        build: Makes the product of a problem; may fail. Methods with the same one share it.
        job: What it is compared on.
        role: Whose it is.
        columns: Vectors multiplied at once.
        is_cut: Whether it gets the data in chunks.
    """

    build: Callable[[Problem], rivals.Product]
    job: str
    role: str
    columns: int = 1
    is_cut: bool = False


Methods = dict[str, Method]


def products(problem: Problem, plan: Plan) -> tuple[list[Row], str]:
    """(a) One product in gradients, the gradient at its own best chunk."""
    chunk, found = best_chunk(problem, plan)
    unit, for_rivals = problem.cut(chunk), problem.cut(_rivals_chunk(problem, chunk))
    reference = references.hessian_reference(problem)
    methods = _cut(_hessian_methods(), problem, for_rivals)
    rows = _gradient_rows(problem, unit, plan)
    rows += _multiplied("a", for_rivals, unit, methods, reference, problem.vector, plan)
    # The other matrix apart: kept graphs of both would be in memory together.
    reference = references.gauss_newton_reference(problem)
    methods = _cut(_gauss_newton_methods(), problem, for_rivals)
    rows += _multiplied("a", for_rivals, unit, methods, reference, problem.vector, plan)
    times = ", ".join(f"{size}: {1000 * spent:.3g}" for size, spent in found.items())
    note = f"the gradient is quickest in chunks of {chunk} (ms by chunk: {times})"
    return rows, note


def layer_block(problem: Problem, plan: Plan) -> list[Row]:
    """(d) One product with the block of a layer, in gradients of the whole network."""
    chunk, _ = best_chunk(problem, plan)
    block = es.ParamSpace.of(dict(problem.model.named_parameters())).block(LAYER)
    for_rivals = problem.cut(_rivals_chunk(problem, chunk))

    def vector(columns: int) -> Tensor:
        return block.take(problem.vector(columns))

    reference = references.hessian_reference(problem, LAYER_NAMES)
    methods = _cut(_layer_methods(), problem, for_rivals)
    return _multiplied("d", for_rivals, problem.cut(chunk), methods, reference, vector, plan)


def _hessian_methods() -> Methods:
    one, blocks = bars.ONE_HESSIAN, bars.HESSIAN_BLOCKS
    uncached = partial(our_hessian, memory_budget=0)
    methods = {
        "eigenscape Hessian": Method(our_hessian, one, OURS),
        "eigenscape Hessian, memory_budget=0": Method(uncached, one, ASIDE),
        "double backward, kept": Method(rivals.autograd_kept, one, BY_HAND),
        "double backward, kept, in chunks": Method(rivals.autograd_kept, one, BY_HAND, is_cut=True),
        "double backward, fresh": Method(rivals.autograd_fresh, one, BY_HAND),
        "curvlinops Hessian": Method(rivals.curvlinops_product, one, RIVAL),
        "curvlinops Hessian, in chunks": Method(rivals.curvlinops_product, one, RIVAL, is_cut=True),
        "PyHessian, one batch": Method(rivals.pyhessian_batch, one, RIVAL),
        "PyHessian, dataloader": Method(rivals.pyhessian_loader, one, RIVAL, is_cut=True),
        "hessian-eigenthings Hessian": Method(rivals.eigenthings_product, one, RIVAL),
        "hessian-eigenthings Hessian, in chunks": Method(
            rivals.eigenthings_product, one, RIVAL, is_cut=True
        ),
        "BackPACK hessian_vector_product": Method(rivals.backpack_product, one, RIVAL),
    }
    return {**methods, **_in_blocks("Hessian", our_hessian, rivals.curvlinops_product, blocks)}


def _gauss_newton_methods() -> Methods:
    one, blocks = bars.ONE_GAUSS_NEWTON, bars.GAUSS_NEWTON_BLOCKS
    methods = {
        "eigenscape GaussNewton": Method(our_gauss_newton, one, OURS),
        "curvlinops GGN": Method(_curvlinops_ggn, one, RIVAL),
        "curvlinops GGN, in chunks": Method(_curvlinops_ggn, one, RIVAL, is_cut=True),
        "hessian-eigenthings GGN": Method(rivals.eigenthings_ggn, one, RIVAL),
        "hessian-eigenthings GGN, in chunks": Method(
            rivals.eigenthings_ggn, one, RIVAL, is_cut=True
        ),
    }
    return {**methods, **_in_blocks("GaussNewton", our_gauss_newton, _curvlinops_ggn, blocks)}


def _curvlinops_ggn(problem: Problem) -> rivals.Product:
    return rivals.curvlinops_product(problem, "GGN")


def _in_blocks(
    name: str,
    ours: Callable[[Problem], rivals.Product],
    theirs: Callable[[Problem], rivals.Product],
    job: str,
) -> Methods:
    methods = {}
    for k in BLOCKS:
        methods[f"eigenscape {name}, {k} columns"] = Method(ours, job, OURS, k)
        methods[f"curvlinops {name}, {k} columns"] = Method(theirs, job, RIVAL, k)
        label = f"curvlinops {name}, {k} columns, in chunks"
        methods[label] = Method(theirs, job, RIVAL, k, is_cut=True)
    return methods


def _layer_methods() -> Methods:
    names, job = LAYER_NAMES, bars.LAYER

    def ours(problem: Problem) -> rivals.Product:
        return es.LayerHessian(risk_of(problem), LAYER).__matmul__

    def restricted(problem: Problem) -> rivals.Product:
        return es.Hessian(risk_of(problem))[LAYER].__matmul__

    def all_masked(problem: Problem) -> rivals.Product:
        return rivals.masked(problem, rivals.autograd_kept(problem), names)

    def curvlinops(problem: Problem) -> rivals.Product:
        return rivals.curvlinops_product(problem, "Hessian", names)

    def eigenthings(problem: Problem) -> rivals.Product:
        return rivals.eigenthings_product(problem, names)

    return {
        "eigenscape LayerHessian": Method(ours, job, OURS),
        **{
            f"eigenscape LayerHessian, {k} columns": Method(ours, f"{job}, blocks", OURS, k)
            for k in BLOCKS
        },
        "eigenscape Hessian[layer]": Method(restricted, job, MASKED),
        "double backward, kept, masked": Method(all_masked, job, MASKED),
        "double backward, kept, masked, in chunks": Method(all_masked, job, MASKED, is_cut=True),
        "double backward of the layer, kept": Method(
            lambda p: rivals.autograd_kept(p, names), job, BY_HAND
        ),
        "curvlinops Hessian of the layer": Method(curvlinops, job, RIVAL),
        "curvlinops Hessian of the layer, in chunks": Method(curvlinops, job, RIVAL, is_cut=True),
        "hessian-eigenthings Hessian of the layer": Method(eigenthings, job, RIVAL),
        "hessian-eigenthings Hessian of the layer, in chunks": Method(
            eigenthings, job, RIVAL, is_cut=True
        ),
    }


def _rivals_chunk(problem: Problem, best: int) -> int:
    """Choose the chunk that rivals get beside the whole batch."""
    if problem.name.startswith("resnet"):
        return problem.chunks()[0]  # sixteen columns of more are beyond an ordinary memory
    return best


def _cut(methods: Methods, problem: Problem, for_rivals: Problem) -> Methods:
    """Leave out what would be measured twice, or would not fit."""
    if for_rivals.chunk == len(problem.x):
        return {label: m for label, m in methods.items() if not m.is_cut}
    if problem.name.startswith("resnet"):
        return {
            label: m for label, m in methods.items() if m.role == OURS or m.is_cut or m.columns == 1
        }
    return methods


def _gradient_rows(problem: Problem, unit: Problem, plan: Plan) -> list[Row]:
    """Time the gradient in its two forms, so that one unit can be had from the other."""
    jobs = {}
    for label, each in (("one batch", problem), (f"chunks of {unit.chunk}", unit)):
        row = Row("a", problem.name, "gradient", f"autograd, {label}", BY_HAND)
        jobs[label] = (row, each.gradient)
    timed(jobs, unit.gradient, plan.rounds)
    return [row for row, _ in jobs.values()]


def _multiplied(
    section: str,
    problem: Problem,
    unit: Problem,
    methods: Methods,
    reference: rivals.Product,
    vector: Callable[[int], Tensor],
    plan: Plan,
) -> list[Row]:
    """Time all methods on one vector (or several) and compare the last column's product."""
    built: dict[tuple[Callable[[Problem], rivals.Product], bool], rivals.Product] = {}

    def multiply(method: Method) -> Tensor:
        key = (method.build, method.is_cut)
        if key not in built:
            built[key] = method.build(problem if method.is_cut else problem.cut(None))
        return built[key](vectors[method.columns])

    vectors = {method.columns: vector(method.columns) for method in methods.values()}
    jobs = {}
    for label, method in methods.items():
        row = Row(section, problem.name, method.job, label, method.role)
        row.note = f"chunks of {problem.chunk}" if method.is_cut else ""
        jobs[label] = (row, partial(multiply, method))
    columns = {label: method.columns for label, method in methods.items()}
    found = timed(jobs, unit.gradient, plan.rounds, columns)
    expected = {k: reference(V.reshape(-1, k)[:, -1]) for k, V in vectors.items()}
    for label, result in found.items():
        row, k = jobs[label][0], columns[label]
        last = result.reshape(-1, k)[:, -1].double()
        row.error = float((last - expected[k]).norm() / expected[k].norm())
        row.wrong = row.error > ROUNDING
    return [row for row, _ in jobs.values()]
