"""What an analysis will compute and cost, known before it starts."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from eigenscape.analyses.layers.layer_curvature import layer_names
from eigenscape.analyses.whole._budget import (
    BLOCKS,
    LAYERS,
    MATRICES,
    OTHERS,
    POINT,
    Budget,
    as_budget,
    as_stages,
    capped_pairs,
    density_products,
    num_pairs,
    spectrum_products,
)
from eigenscape.analyses.whole._pictures import plan_picture
from eigenscape.analyses.whole._stages import can_do_without
from eigenscape.analyses.whole._subsample import samples_within, subsample
from eigenscape.analyses.whole._timing import Few, Rates, few_samples, guessed_rates, rates
from eigenscape.analyses.whole.matrix_spectrum import eigsh_products
from eigenscape.analyses.whole.point import Point, point
from eigenscape.curvature import GaussNewton, Hessian
from eigenscape.records import Columns, Picture, Record, Status, storable, text_table
from eigenscape.risk import EmpiricalRisk

# One product with a layer's block costs about this share of one with the whole Hessian: half of the
# network follows the average layer.
_LAYER_SHARE = 0.5
# Start-up time that the first pass of a process may take.
_WARM_UP_SECONDS = 2.0
# Most memory that `linalg` takes for the bases of eigenpairs and of densities.
_PAIRS_BYTES, _DENSITY_BYTES = 8 * 2**30, 2 * 2**30


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
        limits: What is left out to keep the cost within the budget, in sentences.
        num_samples: How many samples are looked at; None for all.
        report_seconds: Predicted time of figures and report, where they are to be written.
    """

    budget: Budget
    stages: tuple[Stage, ...]
    memory_bytes: int
    disk_bytes: int
    num_parameters: int
    device: str
    limits: tuple[str, ...] = ()
    num_samples: int | None = None
    report_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Predicted wall time of all stages, and of the report."""
        return sum(stage.seconds for stage in self.stages) + self.report_seconds

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the stages."""
        return tuple(stage.name for stage in self.stages)

    def columns(self) -> Columns:
        """Return one row for each stage."""
        return {
            "stage": [s.name for s in self.stages],
            "products": [s.num_products for s in self.stages],
            "seconds": [s.seconds for s in self.stages],
        }

    def __str__(self) -> str:
        """Return the stages, the totals and the limits."""
        total = f"about {self.seconds / 60:.1f} minutes, {self.memory_bytes / 2**20:.0f} MiB"
        lines = [text_table(self.columns()), f"{total} on {self.device}", *self.limits]
        return "\n".join(lines)

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (plan_picture(self),)


def plan_analysis(
    risk: EmpiricalRisk,
    *,
    budget: str | Budget = "standard",
    num_pairs: int | None = None,
    stages: str | Iterable[str] | None = None,
) -> Plan:
    """Predict what `analyze` with this budget will cost, from a few timed products.

    Cost: a gradient and two forward passes over the data. Products with the Hessian and the
    Gauss-Newton matrix are timed on fewer samples where a gradient takes long, and take a few
    gradients of those; at most about a second where it does not.

    Args:
        risk: What to analyse.
        budget: "first-look", "quick", "standard", "thorough", or a `Budget` of your own.
        num_pairs: Largest eigenpairs of each matrix, exactly so many.
        stages: The parts to compute, e.g. "Hessian" or ["layers", "block norms"]; all by default.

    Returns:
        The plan. Predicted seconds are those of this machine as it is now; eigenvalues that lie
        close together take more products than predicted.

    Raises:
        InvalidArgumentError: If there is no such budget or stage, or the number is out of range.
        WrongTypeError: If an argument is of another kind.

    Examples:
        >>> from eigenscape.risk.losses import SquaredError
        >>> x = torch.zeros(20, 3)
        >>> risk = EmpiricalRisk(torch.nn.Linear(3, 2), SquaredError(), (x, torch.zeros(20, 2)))
        >>> plan_analysis(risk, budget="quick", stages="layers").names
        ('loss and gradient', 'layers')
    """
    chosen = as_budget(budget, num_pairs=num_pairs)
    wanted = as_stages(stages, chosen)
    if not layer_names(risk):
        wanted = tuple(name for name in wanted if name != LAYERS)
    num_samples = _affordable(risk, chosen)
    looked = risk if num_samples is None else subsample(risk, num_samples, seed=0)[0]
    if num_samples is None:
        wanted = tuple(name for name in wanted if name != OTHERS)
    here, seconds = _timed_point(looked)
    return _Forecast(looked, chosen, wanted, here, seconds).plan(num_samples)


def _timed_point(risk: EmpiricalRisk) -> tuple[Point, float]:
    """Return loss and gradient, and what they take once PyTorch has warmed up."""
    started = time.monotonic()
    here = point(risk)
    seconds = risk.ranks.first(time.monotonic() - started)
    if seconds < _WARM_UP_SECONDS:
        started = time.monotonic()
        risk.gradient()
        seconds = min(seconds, risk.ranks.first(time.monotonic() - started))
    return here, seconds


def _affordable(risk: EmpiricalRisk, budget: Budget) -> int | None:
    """Return how many samples a budget can look at; None for all."""
    if budget.sample_seconds is None or risk.ranks.size > 1:
        return None
    products = spectrum_products("Hessian", budget, (budget.num_pairs, 0), risk.space.size)
    count = samples_within(risk, budget.sample_seconds, 2 * products)
    return count if count < risk.num_samples else None


class _Forecast:
    """Turns timed products into predictions of the stages."""

    def __init__(
        self,
        risk: EmpiricalRisk,
        budget: Budget,
        wanted: tuple[str, ...],
        here: Point,
        gradient_seconds: float,
    ) -> None:
        self._risk, self._budget, self._here, self._wanted = risk, budget, here, wanted
        self._gradient_seconds = gradient_seconds
        most = max(1, risk.space.size // 2)
        self._pairs = {}
        for name in MATRICES:
            largest, smallest = num_pairs(name, budget, here.num_classes)
            self._pairs[name] = min(largest, most), min(smallest, most)
        few = few_samples(risk, gradient_seconds)
        self._hessian = self._gauss_newton = guessed_rates(few)
        if set(wanted) - {POINT, "Gauss-Newton"}:
            self._hessian = self._rates("Hessian", Hessian, few)
        if {"Gauss-Newton", LAYERS} & set(wanted):
            self._gauss_newton = self._rates("Gauss-Newton", GaussNewton, few)

    def _rates(self, name: str, kind: type[GaussNewton | Hessian], few: Few) -> Rates:
        pairs, size = self._pairs[name], self._risk.space.size
        expected = spectrum_products(name, self._budget, pairs, size)
        try:
            matrix = kind(few.risk, num_products=expected)
            return rates(matrix, few, self._budget.num_probes)
        except Exception as error:
            if not can_do_without(error):
                raise
            return guessed_rates(few)  # the stage itself reports the problem

    def plan(self, num_samples: int | None) -> Plan:
        """Predict all stages."""
        wanted = self._wanted
        limit = capped_pairs(self._budget, self._here.num_classes)
        spectra = any(name in MATRICES[:2] for name in wanted)
        both = (self._hessian, self._gauss_newton)
        vector = self._risk.space.size * torch.finfo(self._risk.dtype).bits // 8
        kept = sum(sum(self._pairs[name]) for name in MATRICES if name in wanted) * vector
        held = kept if self._risk.device.type == "cpu" else 0
        return Plan(
            status=Status(True, "Predicted from timed products."),
            num_products=sum(rate.num_products for rate in both),
            seed=0,
            budget=self._budget,
            stages=tuple(self._stage(name) for name in wanted),
            memory_bytes=self._basis_bytes(vector) + held + max(rate.memory_bytes for rate in both),
            disk_bytes=kept + vector,
            num_parameters=self._risk.space.size,
            device=str(self._risk.device),
            limits=(limit,) if limit is not None and spectra else (),
            num_samples=num_samples,
        )

    def _stage(self, name: str) -> Stage:
        H, budget = self._hessian, self._budget
        names = layer_names(self._risk)
        if name == POINT:
            return Stage(name, 0, self._gradient_seconds)
        if name in MATRICES:
            return self._spectrum(name, self._gauss_newton if name == "Gauss-Newton" else H)
        if name == OTHERS:
            again = self._spectrum("Hessian", H)
            return Stage(name, again.num_products, again.seconds + self._gradient_seconds)
        if name == LAYERS:
            pairs, probes = eigsh_products(budget.num_layer_pairs), budget.num_layer_probes
            # Each block is tested, made and compared anew, about as a matrix of the whole is.
            each = self._gauss_newton.first
            each += (pairs * H.alone + probes * H.shared) * _LAYER_SHARE
            return Stage(name, len(names) * (pairs + probes), len(names) * each)
        blocks = max(len(names), 1) * budget.num_block_probes
        return Stage(BLOCKS, blocks, blocks * H.shared)

    def _spectrum(self, name: str, rate: Rates) -> Stage:
        """Predict both ends of a spectrum, and its density."""
        size = self._risk.space.size
        density = density_products(self._budget, size)
        products = spectrum_products(name, self._budget, self._pairs[name], size)
        seconds = rate.first + (products - density) * rate.alone + density * rate.shared
        return Stage(name, products, seconds)

    def _basis_bytes(self, vector: int) -> int:
        """Predict what bases of eigenpairs and densities take, as `linalg` chooses them."""
        k, steps = max(self._pairs["Hessian"]), self._budget.num_steps
        pairs = min((4 * k + 40) * vector, max(_PAIRS_BYTES, (k + 4) * vector))
        pairs += k * self._risk.space.size * 8
        most = max(_DENSITY_BYTES, (steps + 1) * vector)
        return max(pairs, min(steps * self._budget.num_probes * vector, most))
