"""How a cost grows: an exponent with its standard error."""

from collections.abc import Sequence

import numpy as np


def fit_exponent(sizes: Sequence[float], costs: Sequence[float]) -> tuple[float, float]:
    """Fit cost = c · size^p by least squares on logarithms.

    Args:
        sizes: At least three different sizes.
        costs: What each cost.

    Returns:
        The exponent p and its standard error.

    Examples:
        >>> p, stderr = fit_exponent([1, 2, 4], [3, 12, 48])
        >>> round(p, 12), stderr < 1e-12
        (2.0, True)
    """
    if len(set(sizes)) < 3 or len(sizes) != len(costs):
        raise ValueError(f"expected three sizes or more, each with a cost; got {len(sizes)}")
    x, y = np.log(np.asarray(sizes, float)), np.log(np.asarray(costs, float))
    x, y = x - x.mean(), y - y.mean()
    slope = float(x @ y / (x @ x))
    variance = float(np.sum((y - slope * x) ** 2)) / (len(x) - 2)
    return slope, float(np.sqrt(variance / (x @ x)))


def upper_part(sizes: Sequence[float], costs: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the larger half of a sweep, three points at least: below it, overheads decide."""
    keep = min(len(sizes), max(3, (len(sizes) + 1) // 2))
    return list(sizes[-keep:]), list(costs[-keep:])
