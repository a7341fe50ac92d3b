"""Numbers as people read them: few digits, a real minus sign, powers of ten."""

import math
from collections.abc import Sequence

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def short(value: object, digits: int = 4) -> str:
    """Write a number with few digits.

    Args:
        value: A number, a text (returned as it is), or None.
        digits: Significant digits.

    Returns:
        The text.

    Examples:
        >>> short(-0.000012345), short(1234567.0), short(0.5), short(None), short(123.4, 2)
        ('−1.234 × 10⁻⁵', '1.235 × 10⁶', '0.5', '–', '120')
    """
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ").replace("-", "−")  # a narrow space
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        if abs(value) >= 1e4:
            return _whole(value)
        text = f"{value:.{digits}g}"
        return (f"{float(text):.0f}" if "e" in text else text).replace("-", "−")
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".").replace("-", "−")
    return f"{mantissa} × 10{str(int(exponent)).translate(_SUPERSCRIPT)}"


def with_error(value: float, error: float, *, exact: str = "exact") -> str:
    """Write a number with its error, which says how many digits are worth showing.

    Args:
        value: The number.
        error: Its standard error or residual; 0 where exact, NaN where unknown.
        exact: What to say where the error is 0.

    Returns:
        The text.

    Examples:
        >>> with_error(12.3456, 0.0213), with_error(3.0, 0.0), with_error(3.0, float("nan"))
        ('12.346 ± 0.021', '3 (exact)', '3 (one probe, no error)')
    """
    if math.isnan(error):
        return f"{short(value)} (one probe, no error)"
    if error == 0:
        return f"{short(value)} ({exact})"
    if not (math.isfinite(value) and math.isfinite(error)):
        return f"{short(value)} ± {short(error)}"
    size = max(abs(value), error)
    decimals = 1 - math.floor(math.log10(error))  # two digits of the error
    if 1e-3 <= size < 1e5 and decimals <= 5:
        decimals = max(decimals, 0)
        return f"{value:.{decimals}f} ± {error:.{decimals}f}".replace("-", "−")
    if 1e-3 <= size < 1e5:
        return f"{short(value, 6)} ± {short(error, 2)}"
    return f"{short(value)} ± {short(error, 2)}"


def seconds(value: float | None) -> str:
    """Write a duration.

    Args:
        value: Seconds, or None where nobody measured.

    Returns:
        The text.

    Examples:
        >>> seconds(0.0423), seconds(75.0), seconds(7300.0), seconds(None)
        ('0.042 s', '75 s', '2 h 2 min', 'not measured')
    """
    if value is None or math.isnan(value):
        return "not measured"
    if value < 120:
        return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def size(count: float) -> str:
    """Write a number of bytes.

    Args:
        count: How many.

    Returns:
        The text.

    Examples:
        >>> size(512), size(3_200_000), size(999_600), size(2.5e15)
        ('512 bytes', '3.2 MB', '1 MB', '2500 TB')
    """
    value, units = float(count), ["TB", "GB", "MB", "kB", "bytes"]
    while value >= 999.5 and len(units) > 1:  # 999.5 is 1000 with three digits
        value /= 1000
        units.pop()
    return f"{short(value, 3)} {units[-1]}"


def _whole(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ").replace("-", "−")


def colour_ticks(logs: Sequence[float]) -> list[float]:
    """Return round numbers between the ends of a colour bar.

    Args:
        logs: Decimal logarithms of what the colours show.

    Returns:
        Decades; 1, 2, 5 of each in a bar of up to three; both ends and the middle in one so short
        that it holds fewer than two of those.
    """
    low, high = min(logs), max(logs)
    steps = (1.0,) if high - low > 3 else (1.0, 2.0, 5.0)
    every = range(math.floor(low), math.ceil(high) + 1)
    candidates = [step * 10.0**k for k in every for step in steps]
    inside = [v for v in candidates if low - 1e-9 <= math.log10(v) <= high + 1e-9]
    if len(inside) < 2:
        inside = sorted({10.0**low, 10.0 ** ((low + high) / 2), 10.0**high})
    return inside[:: max(1, math.ceil(len(inside) / 8))]
