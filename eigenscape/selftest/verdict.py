"""A believed derivative beside differences of the function, part by part."""

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from eigenscape.records import BEYOND, Check
from eigenscape.selftest.differences import central_difference


def compare(
    name: str,
    function: Callable[[float], Tensor],
    believed: Tensor,
    steps: Sequence[float],
    *,
    eps: float,
    floor: float,
    noise: Sequence[float] = (0.0,),
    scales: Sequence[float] = (0.0,),
    sizes: Sequence[int] | None = None,
) -> Check:
    """Compare a believed derivative at zero with differences of a function of one number.

    Args:
        name: What it is.
        function: From a number to a tensor.
        believed: What its derivative at zero should be.
        steps: As for `central_difference`.
        eps: As for `central_difference`.
        floor: Smallest relative deviation that counts.
        noise: Rounding error of what is believed, of each part.
        scales: What a deviation is held against where both parts are smaller: what other samples
            add to the same part.
        sizes: As for `central_difference`: the parts are compared one by one.

    Returns:
        The check of the part that deviates most, beside what can be seen there.

    Examples:
        >>> import torch
        >>> square = lambda t: torch.tensor((3.0 + t) ** 2, dtype=torch.float64)
        >>> right, wrong = torch.tensor(6.0), torch.tensor(6.1)
        >>> steps = (1e-4, 1e-5, 1e-6)
        >>> compare("2x", square, right, steps, eps=2e-16, floor=1e-4).is_wrong
        False
        >>> compare("2x", square, wrong, steps, eps=2e-16, floor=1e-4).is_wrong
        True
    """
    least = floor / BEYOND
    slope = central_difference(function, steps, eps=eps, goal=least, sizes=sizes)
    theirs = believed.detach().double().flatten()
    split = list(sizes or [theirs.numel()])
    compared = zip(
        slope.value.split(split),
        theirs.split(split),
        slope.errors.tolist(),
        noise,
        scales,
        strict=True,
    )
    checks = [
        _check(name, one, other, error + rounding, least, scale)
        for one, other, error, rounding, scale in compared
    ]
    resolved = [check for check in checks if check.is_resolved]
    if not resolved:
        return min(checks, key=lambda check: check.resolution)
    return max(resolved, key=lambda check: _order(check.deviation / check.resolution))


def _order(ratio: float) -> float:
    return math.inf if math.isnan(ratio) else ratio


def _check(
    name: str, first: Tensor, second: Tensor, error: float, least: float, scale: float
) -> Check:
    size = max(float(first.norm()), float(second.norm()), scale)
    if not math.isfinite(size) or not math.isfinite(error):
        return Check(name, math.nan, math.inf)
    if size <= error:  # nothing there, as far as can be seen
        return Check(name, 0.0, least if size == 0.0 else 1.0)
    deviation = float((first - second).norm()) / size
    return Check(name, deviation, max(error / size, least))
