"""Is a matrix that of the user's own function? A few samples are asked, by differences.

Two things are compared. Value against gradient, in the model's own precision, while the user's own
parameters are moved in place: a copy would hide a loss that holds on to them. And a product of the
matrix against differences of gradients, or of outputs, in float64: a float32 model is evaluated
with float64 tensors in the places of its own, where that is the same function, for differences in
float32 have two digits at best.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from eigenscape.batches import Batch
from eigenscape.errors import SelfTestError
from eigenscape.losses import BinaryCrossEntropy, CrossEntropy, OutputProduct
from eigenscape.operators._batch_graphs import gradients
from eigenscape.operators._samples import telling_samples
from eigenscape.parameters import Spy, Widened
from eigenscape.risk import EmpiricalRisk, Params, flat_gradient, leaf_copies
from eigenscape.selftest import Check, SelfTest, compare, displaced

# What the test takes for each of its samples, in gradients of that sample; and how many gradients
# of all data it may take.
_GRADIENTS_PER_SAMPLE, _MOST_GRADIENTS = 24, 3.0
# Entries of a product that are compared.
_MOST_ENTRIES = 2**20

_OFF = SelfTest("off", "Not compared with the function itself, as asked (`self_test=False`).")
_CONSTANT = "values that the model detaches count as constants, as asked, and differences move them"
_ADVICE = (
    "If values that are detached, rounded or computed outside autograd are meant to be constants, "
    "say so: `EmpiricalRisk(detached='constant')`. `self_test=False` leaves the comparison out."
)


class Tested(Protocol):
    """What the test needs of a matrix."""

    risk: EmpiricalRisk
    kind: str  # "hessian", "gauss-newton" or "residual"

    def product_on(self, batch: Batch, row: Tensor) -> Tensor:
        """Multiply a row (1, n) with what a batch adds to the matrix; inside `evaluating()`."""

    def curvature_at(self, output: Tensor, batch: Batch) -> OutputProduct:
        """Return the product with the matrix at the output."""


@dataclass(frozen=True)
class _Precision:
    """Steps to take, relative to the size of the parameters, and what to expect of numbers.

    `eps` is the rounding error of values; `floor` the smallest relative deviation that counts.
    """

    steps: tuple[float, ...]
    eps: float
    floor: float


_DOUBLE = _Precision((1e-4, 1e-5, 1e-6, 1e-7), 2.3e-16, 1e-5)
_SINGLE = _Precision((1e-1, 3e-2, 1e-2, 3e-3, 1e-3), 1.2e-7, 2e-3)
_HALF = _Precision((3e-1, 1e-1, 3e-2), 8e-3, 0.3)


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
        most = int(_MOST_GRADIENTS * risk.num_own_samples / _GRADIENTS_PER_SAMPLE)
        groups = telling_samples(risk.batches, most, together=risk.samples_interact)
        verdict = _Examination(operator, groups).verdict()
    if risk.ranks.size == 1:
        return verdict
    verdicts = [SelfTest.from_dict(plain) for plain in risk.ranks.gather(asdict(verdict))]
    return next((v for v in verdicts if v.verdict != "passed"), verdicts[0])


@dataclass
class _Product:
    """What some samples add to a product with the matrix.

    Attributes:
        samples: The samples.
        entries: The entries that are looked at, float64.
        noise: Rounding error of each tensor's entries.
    """

    samples: Batch
    entries: Tensor
    noise: list[float]


class _Examination:
    """The comparisons of one matrix on some groups of samples."""

    def __init__(self, operator: Tested, groups: Sequence[Batch]) -> None:
        self._operator, self._risk, self._groups = operator, operator.risk, groups
        self._direction, self._other = _random_directions(self._risk)
        shapes = [p.numel() for p in self._risk.parameters().values()]
        self._kept = _spread(shapes, self._risk.device)
        self._sizes = [len(entries) for entries in self._kept]
        self._index = torch.cat(self._kept)
        self._name = type(operator).__name__

    def verdict(self) -> SelfTest:
        """Compare on all groups; a group that the model cannot run alone leaves it unresolved."""
        checks: list[Check] = []
        reason = ""
        products: list[_Product] = []
        for samples in self._groups:
            try:
                products.append(self._product(samples))
            except Exception as error:  # some models cannot be given fewer samples
                reason = _refusal(samples, error)
        scales = self._scales(products)
        for product in products:
            try:
                checks += self._compared(product, scales)
            except SelfTestError:
                raise
            except Exception as error:
                reason = _refusal(product.samples, error)
        return SelfTest.of(checks, reason)

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
        parts: tuple[Tensor, ...] = entries.split(self._sizes)
        return parts

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
        number = next(i for i, group in enumerate(self._groups) if group is samples)
        with _moved_in_place(risk, samples) as own:
            checks = self._first_order(own, number)
            if own.precision is _DOUBLE:
                return [*checks, self._second_order(own, product, here, _DOUBLE)]
            value = float(_value(own, self._direction, 0.0))
        with _in_double_precision(risk, samples) as twin:
            if twin is not None and self._is_alike(twin, value, own.precision):
                checks = checks + self._first_order(twin, number)
                return [*checks, self._second_order(twin, product, here, own.precision)]
        with _moved_in_place(risk, samples) as own:
            return [*checks, self._second_order(own, product, here, own.precision)]

    def _first_order(self, line: "_Line", number: int) -> list[Check]:
        """Compare slopes of the loss with its gradient: once for all matrices of a risk."""
        known = self._risk.whole.verdicts
        key = "slopes", tuple(self._risk.space.names), number, line.precision
        if key not in known:
            known[key] = self._slopes(line)
        found: list[Check] = known[key]
        return found

    def _slopes(self, line: "_Line") -> list[Check]:
        gradient = _gradient(line, self._direction, 0.0)
        size = float(gradient.norm())
        lines = {"a random direction": self._direction}
        if 0 < size < torch.inf:
            lines["the gradient"] = gradient / size * self._direction.norm()
        checks = []
        for name, way in lines.items():
            check = compare(
                f"slope of the loss along {name}",
                partial(_value, line, way),
                way @ gradient,
                line.precision.steps,
                eps=line.precision.eps,
                floor=line.precision.floor,
                noise=[_rounding_of_value(line, self._direction)],
            )
            if check.is_wrong:
                raise SelfTestError(
                    "The gradient that autograd gives is not that of the loss, moved with the "
                    f"model's own parameters: {check}, relative. A part of the model or of the "
                    "loss depends on parameters in a way that autograd does not see (`detach`, "
                    f"`.data`, `no_grad`, `.item()`, NumPy, rounding, earlier copies). {_ADVICE}"
                )
            checks.append(check)
        return checks

    def _second_order(
        self,
        line: "_Line",
        product: _Product,
        scales: Sequence[float],
        precision: _Precision,
    ) -> Check:
        """Compare a product with differences: of gradients, of what outputs pull back, or both."""
        operator, direction = self._operator, self._direction
        terms: list[Callable[[float], Tensor]] = []
        if operator.kind != "gauss-newton":
            terms.append(lambda step: _gradient(line, direction, step))
        if operator.kind != "hessian":
            sign = 1 if operator.kind == "gauss-newton" else -1
            pull = _pull(line, operator, direction)
            terms.append(lambda step: sign * pull(_output(line, direction, step)))
        check = compare(
            f"a product of {self._name} and differences of "
            f"{'gradients' if len(terms) == 1 else 'both'}",
            lambda step: sum((term(step)[self._index] for term in terms), torch.zeros(())),
            product.entries,
            line.precision.steps,
            eps=line.precision.eps,
            floor=max(line.precision.floor, precision.floor),
            noise=self._noise(line, product),
            scales=scales,
            sizes=self._sizes,
        )
        if check.is_wrong:
            raise SelfTestError(
                f"`{self._name}(risk)` would not be the matrix of your function: {check}, relative,"
                " in one of the tensors. A second derivative that PyTorch takes is not that of the "
                "function: an `autograd.Function` whose backward pass uses numbers saved without "
                "their graph, a detached value, or a layer of PyTorch with such a defect (in 2.13 "
                "`weight_norm`; `parametrize.remove_parametrizations` takes it out). " + _ADVICE
            )
        return check

    def _noise(self, line: "_Line", product: _Product) -> list[float]:
        """Add what a saturated softmax loses: p − p² of a p that rounds to 1."""
        risk = self._risk
        is_saturable = isinstance(risk.loss, CrossEntropy | BinaryCrossEntropy)
        if risk.precision == torch.float64 or not is_saturable:
            return product.noise
        step = line.precision.steps[-1]
        ends = [_output(line, self._direction, sign * step).double() for sign in (1, -1)]
        tangent = (ends[0] - ends[1]) / (2 * step)
        pulled = _pulled(line, self._direction, lambda output: tangent.to(output.dtype))
        eps = torch.finfo(risk.precision).eps
        parts = self._split(pulled.double()[self._index])
        return [
            known + 16 * eps * float(part.norm())
            for known, part in zip(product.noise, parts, strict=True)
        ]

    def _is_alike(self, twin: "_Line", value: float, precision: _Precision) -> bool:
        difference = abs(float(_value(twin, self._direction, 0.0)) - value)
        return difference <= precision.floor * abs(value) + 64 * precision.eps * twin.samples.size


def _refusal(samples: Batch, error: Exception) -> str:
    said = (str(error).strip().splitlines() or [""])[0]
    return f"{samples.size} samples alone give {type(error).__name__}: {said}"


# --- the function along a line --------------------------------------------------------------------


@dataclass
class _Line:
    """A risk on a few samples; `point(direction, step)` gives parameters along a direction."""

    risk: EmpiricalRisk
    samples: Batch
    precision: _Precision
    point: Callable[[Tensor, float], Params]


@contextmanager
def _moved_in_place(risk: EmpiricalRisk, samples: Batch) -> Iterator[_Line]:
    """Evaluate the user's own objects, whose parameters are moved and put back."""
    with risk.evaluating():
        leaves, own = risk.leaves(), risk.own_parameters()
        with displaced([own[name] for name in risk.space.names]) as move:

            def point(direction: Tensor, step: float) -> Params:
                move(_pieces(direction, leaves), step)
                return leaves

            yield _Line(risk, samples, _precision_of(risk), point)


@contextmanager
def _in_double_precision(risk: EmpiricalRisk, samples: Batch) -> Iterator[_Line | None]:
    """Evaluate with float64 tensors in the places of the user's; None where that cannot be had."""
    with risk.evaluating(), risk.in_float64(), Widened():
        start = {name: p.double() for name, p in risk.parameters().items()}

        def point(direction: Tensor, step: float) -> Params:
            pieces = zip(start.items(), _pieces(direction, start), strict=True)
            return leaf_copies({name: p + step * piece for (name, p), piece in pieces})

        line = _Line(risk, samples.to(torch.float64), _DOUBLE, point)
        yield line if _is_whole(line) else None


def _is_whole(line: _Line) -> bool:
    """Tell whether a function can be had in float64, and keeps nothing of the user's parameters."""
    own = [p for p in line.risk.own_parameters().values() if p.requires_grad]
    still = torch.zeros(line.risk.space.size, device=line.risk.device)
    spy = Spy(torch.float64)
    try:
        with torch.enable_grad(), spy:
            total, _ = line.risk.total(line.point(still, 0.0), line.samples)
            slopes = torch.autograd.grad(total, own, allow_unused=True)
    except Exception:  # whatever a model says of tensors in another dtype than its own
        return False
    is_precise = total.dtype == spy.lowest == torch.float64
    return is_precise and all(slope is None for slope in slopes)


def _value(line: _Line, direction: Tensor, step: float) -> Tensor:
    with torch.no_grad():
        return line.risk.total(line.point(direction, step), line.samples)[0].double()


def _gradient(line: _Line, direction: Tensor, step: float) -> Tensor:
    leaves = line.point(direction, step)
    with torch.enable_grad():
        return flat_gradient(line.risk.total(leaves, line.samples)[0], leaves)


def _output(line: _Line, direction: Tensor, step: float) -> Tensor:
    with torch.no_grad():
        output: Tensor = line.risk.output(line.point(direction, step), line.samples)
    return output


def _pull(line: _Line, operator: Tested, direction: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the function t ↦ Jᵀ B t, with J and B where the parameters are."""
    bend = operator.curvature_at(_output(line, direction, 0.0), line.samples)
    return lambda tangent: _pulled(line, direction, lambda _: bend(tangent))


def _pulled(line: _Line, direction: Tensor, seed: Callable[[Tensor], Tensor]) -> Tensor:
    """Return Jᵀ u, with u from the output."""
    leaves = line.point(direction, 0.0)
    with torch.enable_grad():
        output = line.risk.output(leaves, line.samples)
        slopes = gradients(output, list(leaves.values()), seed(output))
    pairs = zip(slopes, leaves.values(), strict=True)
    return torch.cat([(torch.zeros_like(p) if s is None else s).flatten() for s, p in pairs])


def _rounding_of_value(line: _Line, direction: Tensor) -> float:
    """Bound what a slope may lose to rounding where a loss is small beside the logits."""
    if line.precision is _DOUBLE:
        return 0.0
    output = _output(line, direction, 0.0)
    if not isinstance(output, Tensor) or not output.numel():
        return 0.0
    size = float(output.abs().amax()) * line.samples.size
    return 8 * line.precision.eps * size / line.precision.steps[0]


def _pieces(direction: Tensor, params: Mapping[str, Tensor]) -> list[Tensor]:
    split = direction.split([p.numel() for p in params.values()])
    return [piece.reshape(p.shape) for piece, p in zip(split, params.values(), strict=True)]


def _precision_of(risk: EmpiricalRisk) -> _Precision:
    if risk.precision.itemsize < 4:
        return _HALF
    return _DOUBLE if risk.precision == torch.float64 else _SINGLE


def _random_directions(risk: EmpiricalRisk) -> tuple[Tensor, Tensor]:
    """Return directions in which every tensor moves by its own size, always the same."""
    generator = torch.Generator().manual_seed(0)
    params = [p.double() for p in risk.parameters().values()]
    sizes = [float(p.square().mean().sqrt()) if p.numel() else 0.0 for p in params]
    # A tensor of zeros moves as others do.
    usual = sorted(size for size in sizes if size > 0) or [1.0]
    sizes = [size or usual[len(usual) // 2] for size in sizes]
    rows = []
    for _ in range(2):
        pieces = [
            size * torch.randn(p.numel(), generator=generator, dtype=torch.float64)
            for size, p in zip(sizes, params, strict=True)
        ]
        rows.append(torch.cat(pieces))
    first, second = risk.without_padding(torch.stack(rows).to(risk.device))
    return first, second


def _spread(sizes: Sequence[int], device: torch.device) -> list[Tensor]:
    """Choose entries of each tensor, evenly spread: differences of all would take much memory."""
    share = max(1, -(-sum(sizes) // _MOST_ENTRIES))
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [
        torch.arange(start, start + size, share, device=device)
        for start, size in zip(starts, sizes, strict=True)
    ]
