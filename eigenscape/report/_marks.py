"""What both renderers ask of the marks of a picture."""

import math
from collections.abc import Sequence

from eigenscape.records import Points, short


def is_positive(value: float) -> bool:
    """Say whether a number can stand on a logarithmic axis."""
    return math.isfinite(value) and value > 0


def known(errors: Sequence[float]) -> list[float]:
    """Return half lengths of error bars, with 0 for those that nobody knows."""
    return [error if math.isfinite(error) else 0.0 for error in errors]


def lower_arms(mark: Points, errors: Sequence[float]) -> list[float]:
    """Return the lower halves of vertical bars on a logarithmic axis, which stop short of zero."""
    return [min(e, 0.999 * v) if v > 0 else 0.0 for v, e in zip(mark.y, errors, strict=True)]


def tick_texts(ticks: Sequence[float]) -> list[str]:
    """Return the texts beside the ticks of a colour bar."""
    return [short(tick, 2).removeprefix("1 × ") for tick in ticks]
