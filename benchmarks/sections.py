"""What is measured: one function per section, each returning its rows."""

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import problems
import rivals
import torch
from problems import Problem
from scipy.sparse.linalg import LinearOperator as ScipyOperator
from scipy.sparse.linalg import eigsh as scipy_eigsh
from timing import Row, seconds_of, timed
from torch import Tensor

import eigenscape as es

OURS = "eigenscape"
PAIRS, TOLERANCE = 10, 1e-6
ROUNDING = 1e-4  # a float32 product further off than this has another reason than rounding
COPY = 0.05  # an eigenvalue further off than this is a copy, or one was missed


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    device: torch.device
    rounds: int
    seeds: int
    probes: int
    steps: int
    density_rounds: int


@dataclass(frozen=True)
class Method:
    """A way to multiply.

    Attributes:
        build: Makes the product of a problem; may fail.
        columns: Vectors multiplied at once.
        matrix: Which reference it is held against.
    """

    build: Callable[[Problem], rivals.Product]
    columns: int = 1
    matrix: str = "H"


def risk_of(problem: Problem, batch_size: int | None = None) -> es.EmpiricalRisk:
    # All data in one batch unless said otherwise, as every rival here has them.
    data, size = (problem.x, problem.y), batch_size or len(problem.x)
    return es.EmpiricalRisk(problem.model, es.CrossEntropy(), data, batch_size=size)


def our_hessian(problem: Problem, **options: Any) -> rivals.Product:
    return es.Hessian(risk_of(problem, options.pop("batch_size", None)), **options).__matmul__


def our_gauss_newton(problem: Problem) -> rivals.Product:
    return es.GaussNewton(risk_of(problem)).__matmul__


PRODUCTS = {
    "eigenscape Hessian": Method(our_hessian),
    "eigenscape Hessian, memory_budget=0": Method(partial(our_hessian, memory_budget=0)),
    "eigenscape Hessian, 8 columns": Method(our_hessian, columns=8),
    "eigenscape Hessian, batch_size=250": Method(partial(our_hessian, batch_size=250)),
    "double backward, kept graph": Method(rivals.autograd_kept),
    "double backward, fresh graph": Method(rivals.autograd_fresh),
    "curvlinops Hessian": Method(rivals.curvlinops_product),
    "curvlinops Hessian, 8 columns": Method(rivals.curvlinops_product, columns=8),
    "PyHessian, one batch": Method(rivals.pyhessian_batch),
    "PyHessian, dataloader": Method(rivals.pyhessian_loader),
    "hessian-eigenthings Hessian": Method(rivals.eigenthings_product),
    "BackPACK hessian_vector_product": Method(rivals.backpack_product),
    "eigenscape GaussNewton": Method(our_gauss_newton, matrix="G"),
    "curvlinops GGN": Method(lambda p: rivals.curvlinops_product(p, "GGN"), matrix="G"),
    "hessian-eigenthings GGN": Method(rivals.eigenthings_ggn, matrix="G"),
}


def products(problem: Problem, plan: Plan) -> list[Row]:
    """(a) One product in gradients."""
    methods = PRODUCTS
    if not problem.name.startswith("lenet"):  # smaller batches pay where activations are large
        methods = {name: m for name, m in methods.items() if "batch_size" not in name}
    references = {
        "H": problems.hessian_reference(problem),
        "G": problems.gauss_newton_reference(problem),
    }
    return _multiplied("a", problem, problem.name, methods, references, problem.vector, plan)


def layer_block(problem: Problem, plan: Plan) -> list[Row]:
    """(d) One product with the block of a layer, in gradients of the whole network."""
    layer, names = "fc1", ("fc1.weight", "fc1.bias")
    block = es.ParamSpace.of(dict(problem.model.named_parameters())).block(layer)
    methods = {
        "eigenscape LayerHessian": Method(lambda p: es.LayerHessian(risk_of(p), layer).__matmul__),
        "eigenscape LayerHessian, 8 columns": Method(
            lambda p: es.LayerHessian(risk_of(p), layer).__matmul__, columns=8
        ),
        "eigenscape Hessian[layer]": Method(lambda p: es.Hessian(risk_of(p))[layer].__matmul__),
        "double backward of the layer, kept graph": Method(
            lambda p: rivals.autograd_kept(p, names)
        ),
        "curvlinops Hessian of the layer": Method(
            lambda p: rivals.curvlinops_product(p, "Hessian", names)
        ),
        "hessian-eigenthings Hessian of the layer": Method(
            lambda p: rivals.eigenthings_product(p, names)
        ),
    }

    def vector(columns: int) -> Tensor:
        return block.take(problem.vector(columns))

    references = {"H": problems.hessian_reference(problem, names)}
    name = f"{problem.name} {layer}"
    return _multiplied("d", problem, name, methods, references, vector, plan)


def _multiplied(
    section: str,
    problem: Problem,
    name: str,
    methods: dict[str, Method],
    references: dict[str, rivals.Product],
    vector: Callable[[int], Tensor],
    plan: Plan,
) -> list[Row]:
    """Time all methods on one vector (or several) and compare the last column's product."""
    built: dict[str, rivals.Product] = {}

    def multiply(label: str, method: Method, V: Tensor) -> Tensor:
        if label not in built:
            built[label] = method.build(problem)
        return built[label](V)

    vectors = {label: vector(method.columns) for label, method in methods.items()}
    jobs = {
        label: (Row(section, name, label), partial(multiply, label, method, vectors[label]))
        for label, method in methods.items()
    }
    timed(jobs, problem.gradient, plan.rounds, {k: m.columns for k, m in methods.items()})
    for label, (row, job) in jobs.items():
        if not row.failed:
            found = job().reshape(-1, methods[label].columns)[:, -1].double()
            v = vectors[label].reshape(-1, methods[label].columns)[:, -1]
            expected = references[methods[label].matrix](v)
            row.error = float((found - expected).norm() / expected.norm())
            row.wrong = row.error > ROUNDING
    return [row for row, _ in jobs.values()]


def eigenpairs(problem: Problem, plan: Plan) -> list[Row]:
    """(b) The pairs largest in magnitude; a round is a starting vector."""
    reference = problems.hessian_reference(problem)
    counter = rivals.Counter(most=10**6)
    start = problem.to(torch.float64).vector(seed=99)
    # An answer to compare with that owes nothing to the package.
    values, _ = _scipy(reference, start, counter, tolerance=1e-11)
    rows = []
    for dtype in (torch.float64, torch.float32):
        rows += _pairs_in(problem.to(dtype), reference, values, plan)
    return rows


def _pairs_in(problem: Problem, reference: rivals.Product, truth: Tensor, plan: Plan) -> list[Row]:
    solvers = _solvers(problem)
    name = f"{problem.name}, {str(problem.dtype).removeprefix('torch.')}"
    rows = {label: Row("b", name, label) for label in solvers}
    worst: dict[str, float] = {}
    seconds_of(problem.gradient)
    for seed in range(plan.seeds):
        start = problem.vector(seed=seed)
        for label, build in solvers.items():
            row = rows[label]
            if row.failed:
                continue
            try:
                solve = build()
                unit, _ = seconds_of(problem.gradient, 3)
                spent, (values, vectors, count, note) = seconds_of(partial(solve, start, seed))
            except Exception as error:
                row.fail(error)
                continue
            row.seconds.append(spent)
            row.gradients.append(spent / unit)
            row.products.append(count)
            residual = _residual(reference, values, vectors)
            off = float(((values - truth).abs() / truth.abs()).max())
            row.error = max(row.error or 0.0, residual)
            worst[label] = max(worst.get(label, 0.0), off)
            row.wrong = worst[label] > COPY
            row.note = f"{note}values off by {worst[label]:.0e}"
    return list(rows.values())


Answer = tuple[Tensor, Tensor, int, str]  # values by magnitude, vectors (n, k), products, note


def _solvers(problem: Problem) -> dict[str, Callable[[], Callable[[Tensor, int], Answer]]]:
    """By name, a function that builds a solver: (starting vector, seed) to an answer."""

    def ours(**options: int) -> Callable[[Tensor, int], Answer]:
        operator = es.Hessian(risk_of(problem))
        operator @ problem.vector()  # the graph is built before the clock starts, for all alike

        def solve(start: Tensor, seed: int) -> Answer:
            pairs = es.eigsh(
                operator,
                num_pairs=PAIRS,
                which="magnitude",
                tolerance=TOLERANCE,
                start=start,
                seed=seed,
                **options,
            )
            note = f"{PAIRS} of the products are certificates; "
            note += "" if pairs.status else "says not converged; "
            return pairs.values.cpu(), pairs.vectors, pairs.num_products, note

        return solve

    def arpack(
        build: Callable[[Problem], rivals.Product], ncv: int | None
    ) -> Callable[[Tensor, int], Answer]:
        product = build(problem)
        product(problem.vector())

        def solve(start: Tensor, _seed: int) -> Answer:
            counter = rivals.Counter()
            values, vectors = _scipy(product, start, counter, ncv=ncv)
            return values, vectors, counter.count, ""

        return solve

    def pyhessian() -> Callable[[Tensor, int], Answer]:
        h = rivals.pyhessian_object(problem)
        module = sys.modules["pyhessian.hessian"]  # the package's attribute is the class

        def solve(_start: Tensor, seed: int) -> Answer:
            counter = rivals.Counter()
            torch.manual_seed(seed)
            with counter.watching(module, "hessian_vector_product"):
                values, vectors = h.eigenvalues(top_n=PAIRS)
            V = torch.stack([torch.cat([p.reshape(-1) for p in v]) for v in vectors], dim=1)
            return *_by_magnitude(torch.tensor(values), V), counter.count, "its defaults; "

        return solve

    def eigenthings(steps: int | None) -> Callable[[Tensor, int], Answer]:
        import hessian_eigenthings as he

        operator = rivals.eigenthings_operator(problem)
        full = None if steps is None else True

        def solve(_start: Tensor, seed: int) -> Answer:
            found = he.lanczos(operator, k=PAIRS, max_iter=steps, reorthogonalize=full, seed=seed)
            V = found.eigenvectors.T
            return *_by_magnitude(found.eigenvalues, V), found.iterations, ""

        return solve

    return {
        "eigenscape.eigsh": ours,
        "eigenscape.eigsh, num_check=0": lambda: ours(num_check=0),
        "scipy eigsh on eigenscape Hessian": lambda: arpack(our_hessian, None),
        "scipy eigsh, ncv=40, on eigenscape Hessian": lambda: arpack(our_hessian, 40),
        "scipy eigsh on curvlinops Hessian": lambda: arpack(rivals.curvlinops_product, None),
        "PyHessian eigenvalues": pyhessian,
        "hessian-eigenthings lanczos, defaults": lambda: eigenthings(None),
        "hessian-eigenthings lanczos, 60 steps": lambda: eigenthings(6 * PAIRS),
    }


def _scipy(
    product: rivals.Product,
    start: Tensor,
    counter: rivals.Counter,
    tolerance: float = TOLERANCE,
    ncv: int | None = None,
) -> tuple[Tensor, Tensor]:
    v0 = start.cpu().numpy()

    def multiply(x: Any) -> Any:
        return product(torch.from_numpy(x.reshape(-1)).to(start)).cpu().numpy()

    A = ScipyOperator((v0.size, v0.size), matvec=counter.counted(multiply), dtype=v0.dtype)
    values, vectors = scipy_eigsh(A, PAIRS, which="LM", v0=v0, tol=tolerance, ncv=ncv)
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


def density(problem: Problem, plan: Plan) -> list[Row]:
    """(c) The spectral density; its first moment is compared with the exact trace."""
    trace = problems.relu_trace(problem)
    n, p, m = problem.size, plan.probes, plan.steps

    def ours() -> tuple[float, int]:
        found = es.spectral_density(es.Hessian(risk_of(problem)), num_probes=p, num_steps=m)
        return n * found.moment(1)[0], found.num_products

    def eigenthings() -> tuple[float, int]:
        import hessian_eigenthings as he

        operator, counter = rivals.eigenthings_operator(problem), rivals.Counter(10**6)
        with counter.watching(operator, "matvec"):
            found = he.spectral_density(operator, num_runs=p, lanczos_steps=m, seed=0)
        nodes, weights = found.raw_eigenvalues, found.raw_weights
        return n * float((nodes * weights).nansum(1).mean()), counter.count

    def curvlinops() -> tuple[float, int]:
        from curvlinops import lanczos_approximate_spectrum

        operator, counter = rivals.curvlinops_operator(problem), rivals.Counter(10**6)
        torch.manual_seed(0)
        with counter.watching(operator, "_matmat"):
            grid, rho = lanczos_approximate_spectrum(operator, ncv=m, num_repeats=p)
        # It gives the smoothed density alone, so its trace holds the smoothing as well.
        return n * float(torch.trapezoid(grid * rho, grid)), counter.count

    def pyhessian() -> tuple[float, int]:
        h = rivals.pyhessian_object(problem)
        torch.manual_seed(0)
        nodes, weights = h.density(iter=m, n_v=p)
        pairs = zip(torch.tensor(nodes), torch.tensor(weights), strict=True)
        return n * sum(float((t * w).sum()) for t, w in pairs) / p, p * m

    methods = {
        "eigenscape spectral_density": ours,
        "hessian-eigenthings spectral_density": eigenthings,
        "curvlinops lanczos_approximate_spectrum": curvlinops,
        "PyHessian density": pyhessian,
    }
    rows = {label: Row("c", f"{problem.name}, {p} × {m}", label) for label in methods}
    seconds_of(problem.gradient)
    for _ in range(plan.density_rounds):
        for label, run in methods.items():
            row = rows[label]
            if row.failed:
                continue
            try:
                unit, _ = seconds_of(problem.gradient, 3)
                spent, (found, count) = seconds_of(run)
            except Exception as error:
                row.fail(error)
                continue
            row.seconds.append(spent)
            row.gradients.append(spent / unit)
            row.products.append(count)
            row.error = abs(found - trace) / trace
            row.wrong = row.error > 1.0
            row.note = f"trace {found:.4g}, exact {trace:.4g}"
    return list(rows.values())


def quiet() -> None:
    """Silence what is said on every call; what matters of it is in the table."""
    warnings.filterwarnings("ignore", message="Using backward.. with create_graph=True")
    warnings.filterwarnings("ignore", category=es.errors.ConvergenceWarning)
    warnings.filterwarnings("ignore", category=es.errors.SubstitutionWarning)  # fused attention
