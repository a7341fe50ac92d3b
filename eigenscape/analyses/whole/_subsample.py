"""Some samples in place of all: drawn by a seed, named by their numbers, and not judged alone."""

import random
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from eigenscape.parallel import machine_of
from eigenscape.records import Columns, Record, storable
from eigenscape.risk import Batch, EmpiricalRisk, flat_gradient

# Cost of a product, in gradients.
GRADIENTS = 2.5


@storable
@dataclass(frozen=True, eq=False)
class Subsample:
    """Which samples an analysis looked at.

    Attributes:
        num_samples: How many.
        num_all: How many there are.
        numbers: Their numbers (num_samples,), from 0, in the order of the data.
        seed: What drew them.
    """

    num_samples: int
    num_all: int
    numbers: Tensor
    seed: int

    def __str__(self) -> str:
        """Name them."""
        shown = ", ".join(str(int(number)) for number in self.numbers[:8])
        more = ", …" if self.num_samples > 8 else ""
        return (
            f"{self.num_samples} of {self.num_all} samples, drawn with seed {self.seed}: "
            f"{shown}{more}"
        )


@dataclass(frozen=True, eq=False)
class OtherSamples(Record):
    """The same quantities from other samples, as many, none of which was among the first.

    Attributes:
        subsample: Which samples.
        loss: The mean (or sum) of their losses.
        gradient_norm: Norm of its gradient.
        largest: Largest eigenvalue of its Hessian.
        residual: Its certificate.
        trace: Trace of its Hessian.
        trace_stderr: Its standard error.
    """

    subsample: Subsample
    loss: float
    gradient_norm: float
    largest: float
    residual: float
    trace: float
    trace_stderr: float

    def columns(self) -> Columns:
        """Return the numbers with their errors."""
        return {
            "quantity": ["loss", "gradient norm", "largest eigenvalue", "trace"],
            "value": [self.loss, self.gradient_norm, self.largest, self.trace],
            "error": [None, None, self.residual, self.trace_stderr],
        }


def samples_within(risk: EmpiricalRisk, seconds: float, num_products: int) -> int:
    """Return how many samples products can afford, by counting what one sample takes.

    Cost: one gradient of one sample.

    Args:
        risk: The function.
        seconds: For all products, on an ordinary machine.
        num_products: How many there will be.

    Returns:
        A number from 1 to that of all samples.
    """
    batch = next(iter(risk.batches)).head(1)
    with torch.enable_grad(), risk.evaluating(), FlopCounterMode(display=False) as counter:
        leaves = risk.leaves()
        flat_gradient(risk.total(leaves, batch)[0], leaves)
    each = GRADIENTS * max(counter.get_total_flops(), 1) / batch.size
    # By a table and no clock: a run that is started again must choose as before.
    total = machine_of(risk.device.type).flops * seconds / num_products
    return int(max(1, min(risk.num_samples, total // each)))


def subsample(
    risk: EmpiricalRisk, num_samples: int, *, seed: int, skip: int = 0
) -> tuple[EmpiricalRisk, Subsample]:
    """Return the same risk on some samples, drawn without replacement.

    Args:
        risk: The function.
        num_samples: How many samples. Where batches cannot be cut, whole batches are taken until
            there are so many.
        seed: Draws them.
        skip: Pass over so many of those drawn, for samples that others do not share.

    Returns:
        The risk, and which samples they are.
    """
    total = risk.num_samples
    drawn = random.Random(seed).sample(range(total), min(skip + num_samples, total))[skip:]
    wanted, first = set(drawn), 0
    batches: list[object] = []
    numbers: list[int] = []
    for batch in risk.batches:
        rows = [row for row in range(batch.size) if first + row in wanted]
        if rows and len(numbers) < num_samples:
            kept = batch if len(rows) == batch.size else batch.take(rows)
            rows = rows if kept.size == len(rows) else list(range(batch.size))
            batches.append(_raw(kept))
            numbers += [first + row for row in rows]
        first += batch.size
    indices = torch.tensor(numbers, dtype=torch.int64)
    return risk.on(batches), Subsample(len(numbers), total, indices, seed)


def _raw(batch: Batch) -> object:
    """Write a batch as a loader gives it."""
    if batch.kwargs and batch.target is None:
        return batch.kwargs
    inputs: object = batch.kwargs if batch.kwargs else batch.args
    return (inputs, batch.target) if batch.target is not None else batch.args
