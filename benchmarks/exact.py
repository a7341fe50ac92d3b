"""(e) An exact trace, (f) an exact dense Hessian, (g) exact spectra of layers."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import bars
import references
import rivals
import torch
import torch.nn.functional as F
from bars import BY_HAND, OURS, RIVAL
from plan import ROUNDING, Plan, best_chunk, risk_of
from problems import Problem
from scipy.sparse.linalg import LinearOperator as ScipyOperator
from scipy.sparse.linalg import eigsh as scipy_eigsh
from timing import Row, in_turn
from torch import Tensor, nn

import eigenscape as es
from eigenscape_papers.theory import one_hidden_layer_hessian

SAMPLES = 96  # products for a sampled trace; XTrace wants an even number, Hutch++ thirds
COLUMNS = 100  # of a dense Hessian at once, for those who take several
CHECKED = 6  # columns of a dense Hessian, or eigenvalues, that are held against the reference


def trace(problem: Problem, plan: Plan) -> list[Row]:
    """(e) The trace of the Gauss-Newton matrix: exactly, or by sampled products."""
    truth = references.relu_trace(problem)

    def look(row: Row, found: float) -> None:
        # The worst round for those who draw, so that none is exact by luck.
        row.error = max(row.error or 0.0, abs(found - truth) / truth)
        row.wrong = row.error > (ROUNDING if row.role == OURS else 0.5)
        row.note = f"trace {found:.6g}, exact {truth:.6g}"
        if row.role == RIVAL:
            row.products.append(SAMPLES)

    methods = {
        "eigenscape exact_trace": (OURS, lambda _seed: es.exact_trace(risk_of(problem)).trace),
        **{
            f"curvlinops {name}": (RIVAL, partial(_curvlinops_trace, problem, name))
            for name in ("hutchinson_trace", "hutchpp_trace", "xtrace")
        },
        **{
            f"hessian-eigenthings {name}": (RIVAL, partial(_eigenthings_trace, problem, name))
            for name in ("hutchinson", "hutch++")
        },
    }
    jobs = {
        label: (Row("e", problem.name, bars.TRACE, label, role), job)
        for label, (role, job) in methods.items()
    }
    unit = problem.cut(best_chunk(problem, plan)[0])
    in_turn(jobs, unit.gradient, plan.long_rounds, look)
    return [row for row, _ in jobs.values()]


def _curvlinops_trace(problem: Problem, name: str, seed: int) -> float:
    import curvlinops

    torch.manual_seed(seed)
    operator = rivals.curvlinops_operator(problem, "GGN")
    return float(getattr(curvlinops, name)(operator, num_matvecs=SAMPLES))


def _eigenthings_trace(problem: Problem, name: str, seed: int) -> float:
    import hessian_eigenthings as he

    operator = rivals.eigenthings_ggn_operator(problem)
    return float(he.trace(operator, num_matvecs=SAMPLES, method=name, seed=seed).estimate)


@dataclass(frozen=True)
class Part:
    """Columns of a matrix, and the seconds for all of them, extrapolated from those of the part.

    Attributes:
        columns: The first columns (n, k).
        seconds: What the whole matrix takes.
        done: How many columns were computed.
    """

    columns: Tensor
    seconds: float
    done: int


def dense(problem: Problem, plan: Plan) -> list[Row]:
    """(f) The whole matrix; rivals that take too long are stopped, and marked as extrapolated."""
    n = problem.size
    reference = references.hessian_reference(problem)
    eye = torch.eye(n, CHECKED, dtype=torch.float64, device=problem.device)
    truth = torch.stack([reference(column) for column in eye.T], dim=1)

    def look(row: Row, found: Tensor | Part) -> None:
        columns = found
        if isinstance(found, Part):
            columns = found.columns
            row.gradients[-1] *= found.seconds / row.seconds[-1]
            row.seconds[-1] = found.seconds
            if found.done < n:
                row.note = f"extrapolated from {found.done} of {n} columns"
        row.error = float((columns[:, :CHECKED].double() - truth).norm() / truth.norm())
        row.wrong = row.error > ROUNDING

    def ours(_round: int) -> Tensor:
        return es.Hessian(risk_of(problem)).to_dense()

    def closed(_round: int) -> Tensor:
        first, last = problem.model.fc1.weight, problem.model.fc2.weight
        return one_hidden_layer_hessian(problem.x, first, last, problem.y)

    methods: dict[str, tuple[str, Callable[[int], Tensor | Part]]] = {
        "eigenscape Hessian.to_dense": (OURS, ours),
        "eigenscape one_hidden_layer_hessian": (OURS, closed),  # for such networks only
        f"curvlinops Hessian @ I, {COLUMNS} columns": (
            RIVAL,
            partial(_columns, problem, plan, rivals.curvlinops_product, COLUMNS),
        ),
        f"torch.func.hessian, {COLUMNS} columns": (
            RIVAL,
            partial(_columns, problem, plan, _forward_over_reverse, COLUMNS),
        ),
        "double backward, kept, column by column": (
            BY_HAND,
            partial(_columns, problem, plan, rivals.autograd_kept, 1),
        ),
    }
    jobs = {
        label: (Row("f", problem.name, bars.DENSE, label, role), job)
        for label, (role, job) in methods.items()
    }
    unit = problem.cut(best_chunk(problem, plan)[0])
    in_turn(jobs, unit.gradient, 1, look)
    return [row for row, _ in jobs.values()]


def _columns(
    problem: Problem,
    plan: Plan,
    build: Callable[[Problem], rivals.Product],
    width: int,
    _round: int,
) -> Part:
    """Multiply with the identity, piece by piece, until done or out of patience."""
    start, n, kept = time.monotonic(), problem.size, []
    product, done = build(problem), 0
    set_up = time.monotonic() - start
    while done < n and (done < CHECKED or time.monotonic() - start < plan.patience / 2):
        piece = torch.zeros(n, min(width, n - done), dtype=problem.dtype, device=problem.device)
        piece[done + torch.arange(piece.shape[1]), torch.arange(piece.shape[1])] = 1.0
        found = product(piece[:, 0] if width == 1 else piece).reshape(n, -1)
        kept += [found.clone()] if done < CHECKED else []
        done += piece.shape[1]
        if problem.device.type == "cuda":
            torch.cuda.synchronize()
    loop = time.monotonic() - start - set_up
    return Part(torch.cat(kept, dim=1), set_up + loop * n / done, done)


def _forward_over_reverse(problem: Problem) -> rivals.Product:
    """Multiply as `torch.func.hessian` does, which is `jacfwd(jacrev(f))`, for some columns."""
    named = {name: p.detach() for name, p in problem.model.named_parameters()}
    sizes = [p.numel() for p in named.values()]

    def loss(flat: Tensor) -> Tensor:
        pieces = zip(named.items(), flat.split(sizes), strict=True)
        params = {name: piece.view_as(p) for (name, p), piece in pieces}
        output = torch.func.functional_call(problem.model, params, (problem.x,))
        return F.cross_entropy(output, problem.y)

    point = torch.cat([p.reshape(-1) for p in named.values()])
    slope = torch.func.jacrev(loss)

    def one(v: Tensor) -> Tensor:
        return torch.func.jvp(slope, (point,), (v,))[1]

    return torch.func.vmap(one, in_dims=1, out_dims=1)


def layer_spectra(problem: Problem, plan: Plan) -> list[Row]:
    """(g) All eigenvalues of every layer's block, and the time for all layers together."""
    names = [
        name
        for name, layer in problem.model.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d)
    ]
    unit = problem.cut(best_chunk(problem, plan)[0])
    rows = []
    for name in names:
        row = Row("g", problem.name, name, "eigenscape layer_spectrum", OURS)
        look = partial(_look_at_top, problem, name)

        def job(_round: int, name: str = name) -> Tensor:
            return es.layer_spectrum(risk_of(problem), name).values

        in_turn({name: (row, job)}, unit.gradient, 1, look)
        rows.append(row)
    total = Row("g", problem.name, bars.SPECTRA, "eigenscape layer_spectrum", OURS)
    if failed := [row for row in rows if row.failed]:
        total.failed, total.note = True, failed[0].note
    else:
        total.seconds = [sum(row.seconds[0] for row in rows)]
        total.gradients = [sum(row.gradients[0] for row in rows)]
        total.error, total.wrong = max(row.error for row in rows), any(row.wrong for row in rows)
        total.note = f"{len(problem.x)} images, {len(rows)} layers"
    return [*rows, total]


def _look_at_top(problem: Problem, name: str, row: Row, values: Tensor) -> None:
    """Compare the largest eigenvalues with ARPACK's on a float64 product."""
    inside = tuple(n for n, _ in problem.model.named_parameters() if n.startswith(f"{name}."))
    reference = references.hessian_reference(problem, inside)
    size = sum(p.numel() for n, p in problem.model.named_parameters() if n in inside)

    def multiply(x: Tensor) -> Tensor:
        v = torch.from_numpy(x.reshape(-1)).to(problem.device)
        return reference(v).cpu().numpy()

    A = ScipyOperator((size, size), matvec=multiply, dtype="float64")
    start = torch.ones(size, dtype=torch.float64).numpy()
    truth = scipy_eigsh(A, CHECKED, which="LA", v0=start, return_eigenvectors=False)
    top = values.double().cpu().sort(descending=True).values[:CHECKED]
    expected = torch.from_numpy(truth.copy()).sort(descending=True).values
    row.error = float(((top - expected).abs() / expected).max())
    row.wrong = row.error > 1e-3
    row.note = f"{size} parameters; error of the {CHECKED} largest"
