"""How long gradients and products take here, from a few of them on as few samples as will do."""

import time
from dataclasses import dataclass

import torch

from eigenscape.analyses.whole._subsample import GRADIENTS, subsample
from eigenscape.curvature import GaussNewton, Hessian
from eigenscape.operator import LinearOperator
from eigenscape.parallel import Ranks
from eigenscape.risk import EmpiricalRisk

# Where a gradient takes longer than this, products are timed on fewer samples.
_SLOW_SECONDS = 0.3
# Quick products are timed several times, since another process may be in the way.
_TIMING_SECONDS = 0.25
_MOST_TIMES = 5
# Largest cost of a matrix's self-test and of making its graph, in gradients.
_FIRST_GRADIENTS = 4.0
# Graphs beyond this are made again for every product, on a processor.
_KEPT_BYTES = 4 * 2**30
# Columns that `linalg` hands to an operator at a time, at most.
MOST_COLUMNS = 16


@dataclass(frozen=True)
class Rates:
    """What products with one matrix take.

    Attributes:
        first: Seconds of the first product, with the self-test and the making of graphs.
        alone: Seconds of one product.
        shared: Seconds of one among several columns.
        memory_bytes: Graphs that are kept, and temporaries.
        num_products: Products that were spent to learn it.
    """

    first: float
    alone: float
    shared: float
    memory_bytes: int
    num_products: int


@dataclass(frozen=True)
class Few:
    """Samples on which products are quick.

    Attributes:
        risk: The function on these samples.
        scale: By what to multiply times, for all samples.
        batch_scale: How much larger the largest batch of all is.
        gradient_seconds: What a gradient of all data takes.
    """

    risk: EmpiricalRisk
    scale: float
    batch_scale: float
    gradient_seconds: float


def few_samples(risk: EmpiricalRisk, gradient_seconds: float) -> Few:
    """Choose samples to time products on.

    Args:
        risk: The function.
        gradient_seconds: What a gradient of all data takes.

    Returns:
        All samples where a gradient is quick, or where processes share them.
    """
    if gradient_seconds <= _SLOW_SECONDS or risk.ranks.size > 1:
        return Few(risk, 1.0, 1.0, gradient_seconds)
    count = max(1, int(risk.num_samples * 0.5 * _SLOW_SECONDS / gradient_seconds))
    some, chosen = subsample(risk, count, seed=0)
    largest, larger = (max(batch.size for batch in r.batches) for r in (some, risk))
    return Few(some, risk.num_samples / chosen.num_samples, larger / largest, gradient_seconds)


def rates(operator: GaussNewton | Hessian, few: Few, num_columns: int) -> Rates:
    """Time products on some samples, and say what they take on all.

    Args:
        operator: The matrix, of these samples.
        few: The samples.
        num_columns: How many columns will share a product.

    Returns:
        The rates.
    """
    ranks = few.risk.ranks
    x = torch.ones(operator.space.size, 1, dtype=operator.dtype, device=operator.device)
    x /= x.norm()
    started = time.monotonic()
    float((operator @ x).sum())
    first = ranks.first(time.monotonic() - started)
    alone, count = _quickest(operator, x, ranks)
    shared = alone
    # Columns share passes over the data for small networks only.
    if num_columns > 1 and few.scale == 1.0 and alone <= _TIMING_SECONDS:
        seconds, more = _quickest(operator, x.expand(-1, num_columns), ranks)
        shared, count = seconds / num_columns, count + num_columns * more
    kept = operator.kept_bytes * few.scale
    most = _KEPT_BYTES if few.risk.device.type == "cpu" else kept
    is_kept = kept <= most
    if few.scale > 1.0:
        again = 0.0 if is_kept else few.gradient_seconds
        alone = shared = few.scale * alone + again
        first = _FIRST_GRADIENTS * few.gradient_seconds + 2 * alone
    working = few.batch_scale * operator.working_bytes(MOST_COLUMNS)
    return Rates(first, alone, shared, int(min(kept, most) + working), 1 + count)


def guessed_rates(few: Few) -> Rates:
    """Return what products usually take, where none can be had."""
    seconds = GRADIENTS * few.gradient_seconds
    return Rates(_FIRST_GRADIENTS * few.gradient_seconds + seconds, seconds, seconds, 0, 0)


def _quickest(operator: LinearOperator, X: torch.Tensor, ranks: Ranks) -> tuple[float, int]:
    """Return the shortest of a few tries, and how many they were."""
    times: list[float] = []
    while not times or (len(times) < _MOST_TIMES and sum(times) < _TIMING_SECONDS):
        started = time.monotonic()
        float((operator @ X).sum())  # waits for the device
        # Clocks differ, and all ranks must multiply equally often.
        times.append(ranks.first(time.monotonic() - started))
    return min(times), len(times)
