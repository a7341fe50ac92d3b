"""Is the gradient that of the user's own function? A few samples are asked, by differences.

The value is compared with the gradient in the model's own precision, with the user's own parameters
moved in place: copies would hide a loss that keeps references to them. Differences in float32 have
two digits at best, so a float32 model is also evaluated with float64 tensors in place of its own,
where that is the same function.

Matrices are compared along the same lines; see `curvature.self_test`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from eigenscape.errors import SelfTestError
from eigenscape.records import Check
from eigenscape.risk.batch import Batch
from eigenscape.risk.empirical_risk import EmpiricalRisk
from eigenscape.risk.leaves import Params, flat_gradient, leaf_copies
from eigenscape.risk.parameters import Spy, Widened
from eigenscape.risk.telling_samples import telling_samples
from eigenscape.selftest import compare, displaced

# Cost of testing a matrix: for each sample, in gradients of that sample; and at most, in gradients
# of all data.
_GRADIENTS_PER_SAMPLE, _MOST_GRADIENTS = 24, 3.0

ADVICE = (
    "If values that are detached, rounded or computed outside autograd are meant to be constants, "
    "say so: `EmpiricalRisk(detached='constant')`. `self_test=False` leaves the comparison out."
)


@dataclass(frozen=True)
class Precision:
    """Steps to take, relative to the size of the parameters, and what to expect of numbers.

    `eps` is the rounding error of values; `floor` the smallest relative deviation that counts.
    """

    steps: tuple[float, ...]
    eps: float
    floor: float


DOUBLE = Precision((1e-4, 1e-5, 1e-6, 1e-7), 2.3e-16, 1e-5)
_SINGLE = Precision((1e-1, 3e-2, 1e-2, 3e-3, 1e-3), 1.2e-7, 2e-3)
_HALF = Precision((3e-1, 1e-1, 3e-2), 8e-3, 0.3)


@dataclass
class Line:
    """A risk on a few samples; `point(direction, step)` gives parameters along a direction."""

    risk: EmpiricalRisk
    samples: Batch
    precision: Precision
    point: Callable[[Tensor, float], Params]


def samples_to_ask(risk: EmpiricalRisk) -> list[Batch]:
    """Choose groups of samples that differ, few enough for a test of three gradients."""
    most = int(_MOST_GRADIENTS * risk.num_own_samples / _GRADIENTS_PER_SAMPLE)
    return telling_samples(risk.batches, most, together=risk.samples_interact)


def slope_checks(
    risk: EmpiricalRisk, line: Line, number: int | None, direction: Tensor
) -> list[Check]:
    """Compare slopes of the loss with its gradient: once for all matrices of a risk.

    Args:
        risk: The risk.
        line: Its loss on some samples, along a line.
        number: The number of this group among `samples_to_ask`, if it is one of them.
        direction: A random direction.

    Returns:
        The comparisons.

    Raises:
        SelfTestError: If the two contradict each other.
    """
    if number is None:
        return _slopes(line, direction)
    known = risk.whole.verdicts
    key = "slopes", tuple(risk.space.names), number, line.precision
    if key not in known:
        known[key] = _slopes(line, direction)
    checks: list[Check] = known[key]
    return checks


def _slopes(line: Line, direction: Tensor) -> list[Check]:
    gradient = gradient_at(line, direction, 0.0)
    # Padding moves the loss though it is given no gradient, by PyTorch's convention.
    steepest = line.risk.without_padding(gradient[None])[0]
    size = float(steepest.norm())
    lines = {"a random direction": direction}
    if 0 < size < torch.inf:
        lines["the gradient"] = steepest / size * direction.norm()
    checks = []
    for name, way in lines.items():
        check = compare(
            f"slope of the loss along {name}",
            partial(value_at, line, way),
            way @ gradient,
            line.precision.steps,
            eps=line.precision.eps,
            floor=line.precision.floor,
            noise=[_rounding_of_value(line, direction)],
        )
        if check.is_wrong:
            raise SelfTestError(
                "The gradient that autograd gives is not that of the loss, moved with the "
                f"model's own parameters: {check}, relative. A part of the model or of the "
                "loss depends on parameters in a way that autograd does not see (`detach`, "
                f"`.data`, `no_grad`, `.item()`, NumPy, rounding, earlier copies). {ADVICE}"
            )
        checks.append(check)
    return checks


# --- the function along a line --------------------------------------------------------------------


@contextmanager
def moved_in_place(risk: EmpiricalRisk, samples: Batch) -> Iterator[Line]:
    """Evaluate the user's own objects, whose parameters are moved and put back."""
    with risk.evaluating():
        leaves, users_parameters = risk.leaves(), risk.own_parameters()
        with displaced([users_parameters[name] for name in risk.space.names]) as move:

            def point(direction: Tensor, step: float) -> Params:
                move(list(risk.space.unflatten(direction).values()), step)
                return leaves

            yield Line(risk, samples, _precision_of(risk), point)


@contextmanager
def in_double_precision(risk: EmpiricalRisk, samples: Batch) -> Iterator[Line | None]:
    """Evaluate with float64 tensors in the places of the user's; None where that cannot be had."""
    with risk.evaluating(), risk.in_float64(), Widened():
        start = {name: p.double() for name, p in risk.parameters().items()}

        def point(direction: Tensor, step: float) -> Params:
            pieces = risk.space.unflatten(direction)
            return leaf_copies({name: p + step * pieces[name] for name, p in start.items()})

        line = Line(risk, samples.to(torch.float64), DOUBLE, point)
        yield line if _is_whole(line) else None


def _is_whole(line: Line) -> bool:
    """Tell whether a function can be had in float64, and keeps nothing of the user's parameters."""
    users_parameters = [p for p in line.risk.own_parameters().values() if p.requires_grad]
    still = torch.zeros(line.risk.space.size, device=line.risk.device)
    spy = Spy(torch.float64)
    try:
        with torch.enable_grad(), spy:
            total, _ = line.risk.total(line.point(still, 0.0), line.samples)
            slopes = torch.autograd.grad(total, users_parameters, allow_unused=True)
    except Exception:  # whatever a model says of tensors in another dtype than its own
        return False
    is_precise = total.dtype == spy.lowest == torch.float64
    return is_precise and all(slope is None for slope in slopes)


def value_at(line: Line, direction: Tensor, step: float) -> Tensor:
    """Return the loss at a point of a line."""
    with torch.no_grad():
        return line.risk.total(line.point(direction, step), line.samples)[0].double()


def gradient_at(line: Line, direction: Tensor, step: float) -> Tensor:
    """Return its gradient there, flat."""
    leaves = line.point(direction, step)
    with torch.enable_grad():
        return flat_gradient(line.risk.total(leaves, line.samples)[0], leaves)


def double_backward(line: Line, direction: Tensor) -> Tensor:
    """Return the Hessian times a direction, flat, by plain double backward."""
    leaves = line.point(direction, 0.0)
    with torch.enable_grad():
        total = line.risk.total(leaves, line.samples)[0]
        tensors = list(leaves.values())
        slopes = torch.autograd.grad(total, tensors, create_graph=True, materialize_grads=True)
        pieces = line.risk.space.unflatten(direction).values()
        along = sum(
            (slope * piece.to(slope)).sum() for slope, piece in zip(slopes, pieces, strict=True)
        )
        if not (isinstance(along, Tensor) and along.requires_grad):
            return torch.zeros_like(direction)
        product = torch.autograd.grad(along, tensors, materialize_grads=True)
    return torch.cat([block.flatten().double() for block in product])


def output_at(line: Line, direction: Tensor, step: float) -> Tensor:
    """Return the output there."""
    with torch.no_grad():
        output: Tensor = line.risk.output(line.point(direction, step), line.samples)
    return output


def _rounding_of_value(line: Line, direction: Tensor) -> float:
    """Bound what a slope may lose to rounding where a loss is small beside the logits."""
    if line.precision is DOUBLE:
        return 0.0
    output = output_at(line, direction, 0.0)
    if not isinstance(output, Tensor) or not output.numel():
        return 0.0
    size = float(output.abs().amax()) * line.samples.size
    return 8 * line.precision.eps * size / line.precision.steps[0]


def _precision_of(risk: EmpiricalRisk) -> Precision:
    if risk.precision.itemsize < 4:
        return _HALF
    return DOUBLE if risk.precision == torch.float64 else _SINGLE


def random_directions(risk: EmpiricalRisk) -> tuple[Tensor, Tensor]:
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
