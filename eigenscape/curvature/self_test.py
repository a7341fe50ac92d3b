"""Test by finite differences, on a few samples, that a matrix is that of the user's function.

Value is compared with gradient (see `slopes`), and a product of the matrix with differences of
gradients, or of outputs, in float64 where the function can be had in it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from eigenscape.curvature.products.graphs import gradients
from eigenscape.errors import SelfTestError
from eigenscape.records import Check, SelfTest
from eigenscape.risk import (
    ADVICE,
    DOUBLE,
    Batch,
    BinaryCrossEntropy,
    CrossEntropy,
    EmpiricalRisk,
    Line,
    OutputProduct,
    Precision,
    double_backward,
    gradient_at,
    in_double_precision,
    moved_in_place,
    other_samples,
    output_at,
    random_directions,
    samples_to_ask,
    slope_checks,
    value_at,
)
from eigenscape.selftest import compare

# Entries of a product that are compared.
_MOST_ENTRIES = 2**20
# How much more than plain double backward another exact way may lose to rounding.
_ROUNDINGS = 8.0
# Further groups that are tried if the first ones add nothing to some tensor.
_MOST_SEARCHED = 8

# What is differenced for each kind of matrix.
_DIFFERENCES = {
    "hessian": "gradients",
    "gauss-newton": "outputs",
    "residual": "gradients and outputs",
}

_OFF = SelfTest("off", "Not compared with the function itself, as asked (`self_test=False`).")
_CONSTANT = "values that the model detaches count as constants, as asked, and differences move them"


class Tested(Protocol):
    """What the test needs of a matrix; a `Choice` has it."""

    risk: EmpiricalRisk
    name: str
    kind: str  # "hessian", "gauss-newton" or "residual"

    def product_on(self, batch: Batch, row: Tensor) -> Tensor:
        """Multiply a row (1, n) with what a batch adds to the matrix; inside `evaluating()`."""

    def curvature_at(self, output: Tensor, batch: Batch) -> OutputProduct:
        """Return the product with the matrix at the output."""


def self_test(operator: Tested) -> SelfTest:
    """Compare a matrix with differences of the function, on a few samples.

    Args:
        operator: The matrix.

    Returns:
        The verdict.

    Raises:
        SelfTestError: If the two contradict each other.
    """
    risk = operator.risk
    if not risk.wants_self_test:
        return _OFF
    if risk.detached == "constant":
        return SelfTest.of((), _CONSTANT)
    with risk.ranks.together():
        verdict = _Examination(operator, samples_to_ask(risk)).verdict()
    if risk.ranks.size == 1:
        return verdict
    verdicts = [SelfTest.from_dict(plain) for plain in risk.ranks.gather(asdict(verdict))]
    return next((v for v in verdicts if v.verdict != "passed"), verdicts[0])


@dataclass
class _Product:
    """What some samples add to a product with the matrix.

    Attributes:
        samples: The samples.
        entries: The entries that are compared, float64.
        noise: Rounding error of each tensor's entries.
    """

    samples: Batch
    entries: Tensor
    noise: list[float]


class _Examination:
    """The comparisons of one matrix on some groups of samples."""

    def __init__(self, operator: Tested, groups: Sequence[Batch]) -> None:
        self._operator, self._risk, self._groups = operator, operator.risk, groups
        self._direction, self._other = random_directions(self._risk)
        shapes = [p.numel() for p in self._risk.parameters().values()]
        self._kept = _spread(shapes, self._risk.device)
        self._sizes = [len(entries) for entries in self._kept]
        self._index = torch.cat(self._kept)
        self._name = operator.name

    def verdict(self) -> SelfTest:
        """Compare on all groups; one that the model cannot run alone makes it unresolved."""
        checks: list[Check] = []
        products, reason = self._products(self._groups)
        if self._silent(products) and not reason:
            more, reason = self._products(self._others(products))
            products += more
            if not any(bool(p.entries.any()) for p in products) and self._are_some(products):
                reason = f"the samples that were asked add nothing to {self._name}"
        scales = self._scales(products)
        for product in products:
            try:
                checks += self._compared(product, scales)
            except SelfTestError:
                raise
            except Exception as error:
                reason = _refusal(product.samples, error)
        return SelfTest.of(checks, reason)

    def _products(self, groups: Iterable[Batch]) -> tuple[list[_Product], str]:
        """Multiply with what each group adds; say why a group cannot be run alone."""
        products, reason = [], ""
        for samples in groups:
            try:
                products.append(self._product(samples))
            except Exception as error:  # some models cannot be given fewer samples
                reason = _refusal(samples, error)
        return products, reason

    def _silent(self, products: Sequence[_Product]) -> set[int]:
        """Return the tensors to which none of the samples adds anything."""
        splits = [self._split(product.entries) for product in products]
        return {
            number
            for number in range(len(self._sizes))
            if self._sizes[number] and not any(bool(split[number].any()) for split in splits)
        }

    def _others(self, products: Sequence[_Product]) -> Iterator[Batch]:
        """Yield samples that add something to tensors to which the first ones add nothing."""
        silent = self._silent(products)
        most = max((group.size for group in self._groups), default=1)
        for samples in islice(other_samples(self._risk.batches, most), _MOST_SEARCHED):
            try:
                product = self._product(samples)
            except Exception:  # as above
                continue
            if heard := silent - self._silent([product]):
                silent -= heard
                yield samples
            if not silent:
                return

    def _are_some(self, products: Sequence[_Product]) -> bool:
        """Tell whether there are samples that were not asked."""
        return sum(p.samples.size for p in products) < self._risk.num_own_samples

    def _product(self, samples: Batch) -> _Product:
        """Multiply; the noise of float32 shows in how far products are from linear."""
        with self._risk.evaluating():
            Av = self._multiplied(samples, self._direction)
            if self._risk.precision == torch.float64:
                return _Product(samples, Av, [1e-12 * float(t.norm()) for t in self._split(Av)])
            Aw = self._multiplied(samples, self._other)
            defect = self._multiplied(samples, self._direction + self._other) - Av - Aw
        eps = torch.finfo(self._risk.precision).eps
        pairs = zip(self._split(Av), self._split(defect), strict=True)
        noise = [8 * (eps * float(t.norm()) + float(d.norm())) for t, d in pairs]
        return _Product(samples, Av, noise)

    def _multiplied(self, samples: Batch, row: Tensor) -> Tensor:
        product = self._operator.product_on(samples, row[None].to(self._risk.dtype))[0]
        return product.double()[self._index]

    def _split(self, entries: Tensor) -> tuple[Tensor, ...]:
        tensors: tuple[Tensor, ...] = entries.split(self._sizes)
        return tensors

    def _scales(self, products: Sequence[_Product]) -> list[float]:
        """Return the size of each tensor's entries per sample, where samples give most of it.

        A group of samples that adds next to nothing to a sum need not be right to its own digits.
        """
        each = [
            [float(t.norm()) / max(p.samples.size, 1) for t in self._split(p.entries)]
            for p in products
        ]
        return [max(sizes) for sizes in zip(*each, strict=True)] if each else []

    def _compared(self, product: _Product, scales: Sequence[float]) -> list[Check]:
        risk, samples = self._risk, product.samples
        here = [scale * max(samples.size, 1) for scale in scales]
        number = next((i for i, group in enumerate(self._groups) if group is samples), None)
        with moved_in_place(risk, samples) as line:
            checks = slope_checks(risk, line, number, self._direction)
            if line.precision is DOUBLE:
                return [*checks, self._right(self._second_order(line, product, here, DOUBLE))]
            value = float(value_at(line, self._direction, 0.0))
        rounding: Sequence[float] = [0.0] * len(self._sizes)
        for is_second_try in (False, True):
            with in_double_precision(risk, samples) as twin:
                if twin is None or not self._is_alike(twin, value, line.precision):
                    break
                more = slope_checks(risk, twin, number, self._direction)
                check = self._second_order(twin, product, here, line.precision, rounding)
                if is_second_try or not check.is_wrong or self._operator.kind == "gauss-newton":
                    return [*checks, *more, self._right(check)]
                exact = double_backward(twin, self._direction)
            # Saturated functions lose more to rounding than products show.
            with moved_in_place(risk, samples) as line:
                lost = self._split((double_backward(line, self._direction) - exact)[self._index])
            rounding = [_ROUNDINGS * float(t.norm()) for t in lost]
        with moved_in_place(risk, samples) as line:
            return [*checks, self._right(self._second_order(line, product, here, line.precision))]

    def _right(self, check: Check) -> Check:
        """Refuse what is wrong."""
        if check.is_wrong:
            raise SelfTestError(
                f"`{self._name}(risk)` would not be the matrix of your function: {check}, relative,"
                " in one of the tensors. A second derivative that PyTorch takes is not that of the "
                "function: an `autograd.Function` whose backward pass uses numbers saved without "
                "their graph, a detached value, or a layer of PyTorch with such a defect (in 2.13 "
                "`weight_norm`; `parametrize.remove_parametrizations` takes it out). " + ADVICE
            )
        return check

    def _second_order(
        self,
        line: Line,
        product: _Product,
        scales: Sequence[float],
        precision: Precision,
        rounding: Sequence[float] = (),
    ) -> Check:
        """Compare a product with differences: of gradients, of what outputs pull back, or both."""
        operator, direction = self._operator, self._direction
        terms: list[Callable[[float], Tensor]] = []
        if operator.kind != "gauss-newton":
            terms.append(lambda step: gradient_at(line, direction, step))
        if operator.kind != "hessian":
            sign = 1 if operator.kind == "gauss-newton" else -1
            pull = _pull(line, operator, direction)
            terms.append(lambda step: sign * pull(output_at(line, direction, step)))
        noise = self._noise(line, product)
        return compare(
            f"a product of {self._name} and differences of {_DIFFERENCES[operator.kind]}",
            lambda step: sum((term(step)[self._index] for term in terms), torch.zeros(())),
            product.entries,
            line.precision.steps,
            eps=line.precision.eps,
            floor=max(line.precision.floor, precision.floor),
            noise=[n + r for n, r in zip(noise, rounding or [0.0] * len(noise), strict=True)],
            scales=scales,
            sizes=self._sizes,
        )

    def _noise(self, line: Line, product: _Product) -> list[float]:
        """Add what a saturated softmax loses: p − p² of a p that rounds to 1."""
        risk = self._risk
        is_saturable = isinstance(risk.loss, CrossEntropy | BinaryCrossEntropy)
        if risk.precision == torch.float64 or not is_saturable:
            return product.noise
        step = line.precision.steps[-1]
        ends = [output_at(line, self._direction, sign * step).double() for sign in (1, -1)]
        tangent = (ends[0] - ends[1]) / (2 * step)
        pulled = _pulled(line, self._direction, lambda output: tangent.to(output.dtype))
        eps = torch.finfo(risk.precision).eps
        tensors = self._split(pulled.double()[self._index])
        return [
            known + 16 * eps * float(t.norm())
            for known, t in zip(product.noise, tensors, strict=True)
        ]

    def _is_alike(self, twin: Line, value: float, precision: Precision) -> bool:
        difference = abs(float(value_at(twin, self._direction, 0.0)) - value)
        return difference <= precision.floor * abs(value) + 64 * precision.eps * twin.samples.size


def _refusal(samples: Batch, error: Exception) -> str:
    said = (str(error).strip().splitlines() or [""])[0]
    return f"{samples.size} samples alone give {type(error).__name__}: {said}"


def _pull(line: Line, operator: Tested, direction: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the function t ↦ Jᵀ B t, with J and B where the parameters are."""
    bend = operator.curvature_at(output_at(line, direction, 0.0), line.samples)
    return lambda tangent: _pulled(line, direction, lambda _: bend(tangent))


def _pulled(line: Line, direction: Tensor, seed: Callable[[Tensor], Tensor]) -> Tensor:
    """Return Jᵀ u, with u from the output."""
    leaves = line.point(direction, 0.0)
    with torch.enable_grad():
        output = line.risk.output(leaves, line.samples)
        slopes = gradients(output, list(leaves.values()), seed(output))
    pairs = zip(slopes, leaves.values(), strict=True)
    return torch.cat([(torch.zeros_like(p) if s is None else s).flatten() for s, p in pairs])


def _spread(sizes: Sequence[int], device: torch.device) -> list[Tensor]:
    """Choose entries of each tensor, evenly spread: differences of all would take much memory."""
    share = max(1, -(-sum(sizes) // _MOST_ENTRIES))
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [
        torch.arange(start, start + size, share, device=device)
        for start, size in zip(starts, sizes, strict=True)
    ]
