"""Derivatives along a line without automatic differentiation, with the digits that they have.

f(t) is known at points of a line. D(h) = (f(h) − f(−h)) / 2h is off by h² f‴/6, by rounding of
about ε‖f‖/h, and by anything if a kink lies between the points. Where two steps agree, none of the
three is larger than their difference, but for luck; so steps shrink until two agree. A kink at 0
itself gives every step the same wrong mean of two slopes: the distance of the slopes ahead and
behind, which vanishes with h for a smooth function, counts as an error too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# The rounding error of a function value, in units of eps times its norm.
_ROUNDINGS = 8.0


@dataclass(frozen=True)
class Difference:
    """A derivative by differences, in several parts.

    Attributes:
        value: The derivative, flat, float64.
        errors: How far each part of it may be off, in the norm: the distance of two steps or of
            two sides, or rounding.
    """

    value: Tensor
    errors: Tensor


def central_difference(
    function: Callable[[float], Tensor],
    steps: Sequence[float],
    *,
    eps: float,
    goal: float,
    sizes: Sequence[int] | None = None,
) -> Difference:
    """Differentiate a function of one number at zero.

    Cost: one value, and two for each step up to the first that agrees with the one before it.

    Args:
        function: From a number to a tensor of a fixed shape.
        steps: Steps to try, the largest first; two at least.
        eps: Relative rounding error of the function's values.
        goal: Relative error that is good enough.
        sizes: How many entries belong to each part, whose errors are counted apart; one by default.

    Returns:
        For each part, the derivative by the steps that agree best.

    Raises:
        ValueError: If there are fewer than two steps.

    Examples:
        >>> cube = lambda t: torch.tensor((2.0 + t) ** 3, dtype=torch.float64)
        >>> slope = central_difference(cube, (1e-3, 1e-4, 1e-5), eps=2e-16, goal=1e-5)
        >>> round(slope.value.item(), 5)
        12.0
    """
    if len(steps) < 2:
        raise ValueError(f"`steps` needs two steps at least; got {len(steps)}")
    middle = function(0.0).double().flatten()
    split = list(sizes or [middle.numel()])
    best: list[tuple[Tensor, float]] | None = None
    before: Tensor | None = None
    for step in steps:
        ahead, behind = (function(sign * step).double().flatten() for sign in (1, -1))
        slope = (ahead - behind) / (2 * step)
        # Twice the distance of a slope of one side from the mean of both.
        bend = (ahead - 2 * middle + behind) / step
        rounding = _ROUNDINGS * eps * float(torch.maximum(ahead.norm(), behind.norm())) / step
        if before is not None:
            columns = zip(slope.split(split), before.split(split), bend.split(split), strict=True)
            now = [
                (estimate, max(float((estimate - old).norm()), float(sides.norm()), rounding))
                for estimate, old, sides in columns
            ]
            if best is not None:
                # Two coarse steps may be near each other and far from what finer ones show.
                best = [
                    (estimate, max(error, float((estimate - finer).norm()) - rounding))
                    for (estimate, error), (finer, _) in zip(best, now, strict=True)
                ]
            best = now if best is None else list(map(_better, best, now))
            if all(error <= goal * float(estimate.norm()) for estimate, error in best):
                break
        before = slope
    estimates, errors = zip(*(best or []), strict=True)
    return Difference(torch.cat(estimates), torch.tensor(errors, dtype=torch.float64))


def _better(one: tuple[Tensor, float], other: tuple[Tensor, float]) -> tuple[Tensor, float]:
    return other if not one[1] <= other[1] else one
