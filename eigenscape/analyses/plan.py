"""What an analysis will compute and cost, known before it starts."""

import time
from dataclasses import dataclass

import torch

from eigenscape.analyses.layer_curvature import layer_names
from eigenscape.analyses.matrix_spectrum import edge_products, eigsh_products
from eigenscape.analyses.point import point
from eigenscape.distributed import Ranks
from eigenscape.errors import WrongTypeError, require_choice
from eigenscape.linear_operator import LinearOperator
from eigenscape.operators import GaussNewton, Hessian
from eigenscape.records import Columns, Record, Status, storable, text_table
from eigenscape.risk import EmpiricalRisk

# One product with a layer's block costs about this share of one with the whole Hessian: half of the
# network follows the average layer.
_LAYER_SHARE = 0.5


# Columns that `linalg` hands to an operator at a time, at most.
_MOST_COLUMNS = 16
# Quick products are timed several times, since another process may be in the way.
_TIMING_SECONDS = 0.5

MATRICES = ("Hessian", "Gauss-Newton", "residual")


@storable
@dataclass(frozen=True)
class Budget:
    """How much to spend.

    Attributes:
        name: "quick", "standard" or "thorough", or a name of your own.
        num_pairs: Largest eigenpairs of each matrix (at least C + 4 are taken for C classes).
        num_smallest: Smallest eigenpairs.
        tolerance: Asked of residuals, as a fraction of the eigenvalue.
        num_steps: Lanczos steps per probe of a density.
        num_probes: Probes of a density.
        num_layer_pairs: Largest eigenpairs of each layer's block.
        num_layer_probes: Probes for each layer's trace, norm and Kronecker error.
        num_block_probes: Probes for the map of block norms.
    """

    name: str
    num_pairs: int
    num_smallest: int
    tolerance: float
    num_steps: int
    num_probes: int
    num_layer_pairs: int
    num_layer_probes: int
    num_block_probes: int


BUDGETS = {
    "quick": Budget("quick", 8, 1, 1e-2, 40, 2, 4, 4, 4),
    "standard": Budget("standard", 20, 2, 1e-3, 100, 6, 10, 10, 16),
    "thorough": Budget("thorough", 40, 4, 1e-5, 160, 16, 20, 40, 40),
}


@storable
@dataclass(frozen=True)
class Stage:
    """One part of an analysis.

    Attributes:
        name: What it answers, e.g. "Hessian".
        num_products: Predicted products with the matrix of this stage.
        seconds: Predicted wall time.
    """

    name: str
    num_products: int
    seconds: float


@dataclass(frozen=True, eq=False)
class Plan(Record):
    """The stages of an analysis with predicted cost.

    Attributes:
        budget: What was asked for.
        stages: In the order in which they run.
        memory_bytes: Predicted peak memory of vectors and kept graphs on the device, beside the
            model and its data.
        disk_bytes: Predicted size of the saved arrays.
        num_parameters: n.
        device: Where it runs.
    """

    budget: Budget
    stages: tuple[Stage, ...]
    memory_bytes: int
    disk_bytes: int
    num_parameters: int
    device: str

    @property
    def seconds(self) -> float:
        """Predicted wall time of all stages."""
        return sum(stage.seconds for stage in self.stages)

    def columns(self) -> Columns:
        """Return one row for each stage."""
        return {
            "stage": [s.name for s in self.stages],
            "products": [s.num_products for s in self.stages],
            "seconds": [s.seconds for s in self.stages],
        }

    def __str__(self) -> str:
        """Return the stages and the totals."""
        total = f"about {self.seconds / 60:.1f} minutes, {self.memory_bytes / 2**20:.0f} MiB"
        return f"{text_table(self.columns())}\n{total} on {self.device}"


def as_budget(budget: str | Budget) -> Budget:
    """Return the budget of that name, or the budget itself.

    Args:
        budget: "quick", "standard", "thorough", or a `Budget`.

    Returns:
        The budget.

    Raises:
        WrongTypeError: If it is neither.
    """
    if isinstance(budget, Budget):
        return budget
    if not isinstance(budget, str):
        raise WrongTypeError(
            f"`analyze(budget=...)` must be one of {', '.join(BUDGETS)} or a `Budget`; got "
            f"{type(budget).__name__}."
        )
    return BUDGETS[require_choice(budget, tuple(BUDGETS), "analyze(budget=...)")]


def plan_analysis(risk: EmpiricalRisk, *, budget: str | Budget = "standard") -> Plan:
    """Predict what `analyze` with this budget will cost, from a few timed products.

    Cost: one gradient and two products each with the Hessian and the Gauss-Newton matrix where one
    takes long, at most about two seconds of products where it does not.

    Args:
        risk: What to analyse.
        budget: "quick", "standard", "thorough", or a `Budget` of your own.

    Returns:
        The plan. Predicted seconds are those of this machine as it is now; eigenvalues that lie
        close together take more products than predicted.
    """
    chosen = as_budget(budget)
    n, names = risk.space.size, layer_names(risk)
    started = time.monotonic()
    here = point(risk)
    gradient_seconds = time.monotonic() - started
    H, G = Hessian(risk), GaussNewton(risk)
    probes = chosen.num_probes
    (h, h_shared), (g, g_shared) = (_seconds(A, probes, risk.ranks) for A in (H, G))
    density = min(chosen.num_steps, n) * probes
    counts = {name: num_pairs(name, chosen, here.num_classes) for name in MATRICES}
    tops = eigsh_products(counts["Hessian"][0])
    ends = tops + edge_products(counts["Hessian"][1])
    edges = sum(edge_products(k) for k in counts["residual"])
    own = eigsh_products(chosen.num_layer_pairs)
    layers = len(names) * (own + chosen.num_layer_probes)
    blocks = max(len(names), 1) * chosen.num_block_probes
    layer_seconds = own * h + chosen.num_layer_probes * h_shared
    stages = (
        Stage("loss and gradient", 0, gradient_seconds),
        Stage("Hessian", ends + density, ends * h + density * h_shared),
        Stage("Gauss-Newton", tops + density, tops * g + density * g_shared),
        Stage("residual", edges + density, edges * h + density * h_shared),
        Stage("layers", layers, len(names) * layer_seconds * _LAYER_SHARE),
        Stage("block norms", blocks, blocks * h_shared),
    )
    vector = n * torch.finfo(risk.dtype).bits // 8
    kept = sum(map(sum, counts.values()))
    basis = max(2 * counts["Hessian"][0] + 20, density)
    return Plan(
        status=Status(True, "Predicted from timed products."),
        num_products=4,
        seed=0,
        budget=chosen,
        stages=stages,
        memory_bytes=basis * vector
        + max(op.kept_bytes + op.working_bytes(_MOST_COLUMNS) for op in (H, G)),
        disk_bytes=(kept + 1) * vector,
        num_parameters=n,
        device=str(risk.device),
    )


def num_pairs(matrix: str, budget: Budget, num_classes: int | None) -> tuple[int, int]:
    """Return how many of a matrix's largest and smallest pairs to find.

    Args:
        matrix: "Hessian", "Gauss-Newton" or "residual".
        budget: The budget.
        num_classes: C, or None.

    Returns:
        Of H and G some largest pairs beyond the expected C outliers. The smallest eigenvalue of G
        is no news, 0; both ends of H − G are edges of a bulk, where more pairs say little.
    """
    ends = budget.num_smallest
    if matrix == "residual":
        return ends, ends
    top = max(budget.num_pairs, 0 if num_classes is None else num_classes + 4, 3)
    return top, 0 if matrix == "Gauss-Newton" else ends


def _seconds(operator: LinearOperator, num_columns: int, ranks: Ranks) -> tuple[float, float]:
    """Time a product alone, and one among several columns; the quickest of a few tries each."""
    # The first product builds the graphs and is left out. Where one takes long, columns are not
    # tried: they share passes over the data for small networks only.
    x = torch.ones(operator.space.size, 1, dtype=operator.dtype, device=operator.device)
    x /= x.norm()
    _ = operator @ x
    alone = _quickest(operator, x, ranks)
    if num_columns == 1 or alone > _TIMING_SECONDS:
        return alone, alone
    return alone, _quickest(operator, x.expand(-1, num_columns), ranks) / num_columns


def _quickest(operator: LinearOperator, X: torch.Tensor, ranks: Ranks) -> float:
    times: list[float] = []
    while not times or (len(times) < 5 and sum(times) < _TIMING_SECONDS):
        started = time.monotonic()
        float((operator @ X).sum())  # waits for the device
        # Clocks differ, and all ranks must multiply equally often.
        times.append(ranks.first(time.monotonic() - started))
    return min(times)
