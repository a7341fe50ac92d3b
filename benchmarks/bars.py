"""What we ask of ourselves: every bar in one place, and whether the rows of a run meet it.

A bar names a job of a section by the words that its rows carry. Nothing passes or fails by it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timing import Row

# Who a row belongs to. Rivals are libraries; what anybody can write in plain PyTorch is shown
# beside them and sets no bar, but for the masked full product.
OURS, RIVAL, BY_HAND, MASKED, ASIDE = "ours", "rival", "by hand", "masked", "aside"

MET, NOT_MET, NO_RIVAL = "met", "NOT met", "rival missing"
NO_RESULT, NOT_RUN = "no result of ours", "not run"


@dataclass(frozen=True)
class Bar:
    """One number to reach.

    Attributes:
        section: The section's letter.
        problem: The network, or the sweep.
        job: The job, as its rows call it.
        measure: "gradients" (of the section's unit), "seconds", "memory" (over the gradient's) and
            "exponent", at most; "times" faster than the best of `against`, at least; "accuracy",
            our error over the smallest of `against`, at most. In all of them, our answer must be as
            exact as was asked.
        limit: The number.
        device: "cpu", "cuda", or "any".
        against: Whose best is compared with.
    """

    section: str
    problem: str
    job: str
    measure: str
    limit: float
    device: str = "any"
    against: str = RIVAL

    def asked(self) -> str:
        """Write the bar in words."""
        words = {"times": f"{self.limit:g}× faster", "accuracy": "no rival more accurate"}
        unit = {"gradients": " gradients", "seconds": " s", "memory": "× memory"}
        text = words.get(self.measure, f"≤ {self.limit:g}{unit.get(self.measure, '')}")
        return f"exponent {text}" if self.measure == "exponent" else text


@dataclass(frozen=True)
class Verdict:
    """A bar with what was measured.

    Attributes:
        bar: The bar.
        ours: Our quickest row, if there is one.
        rival: The quickest row of whom it is compared with that may be compared.
        by_hand: The same of plain PyTorch.
        others: All whom it is compared with.
        value: The number to hold against the limit.
        status: One of the constants above.
    """

    bar: Bar
    ours: "Row | None"
    rival: "Row | None"
    by_hand: "Row | None"
    others: tuple["Row", ...]
    value: float | None
    status: str


ONE_HESSIAN, HESSIAN_BLOCKS = "Hessian, 1 vector", "Hessian, blocks"
ONE_GAUSS_NEWTON, GAUSS_NEWTON_BLOCKS = "Gauss-Newton, 1 vector", "Gauss-Newton, blocks"
PAIRS_10, PAIRS_50 = "10 pairs to 1e-4", "50 pairs to 1e-4"
LAYER_PAIRS = "120 pairs of fc1 to 1e-5"
DENSITY, LAYER, TRACE = "density", "fc1 product", "trace"
DENSE, SPECTRA, CODES = "dense Hessian", "all layers", "sparse codes"
LAYER_AUTO, LAYER_TAIL = "fc1 product, auto", "fc1 product, tail"
SOLVER_STEP, DENSITY_STEP = "eigsh, one step", "density, one step"

_LINEAR = 1.1  # one, and a tenth for noise

# Gradients at most on two cores: one Hessian product, one of a block, one Gauss-Newton product.
_GRADIENTS = {
    "mlp": (1.3, 1.05, 1.15),
    "lenet": (1.6, 1.3, 1.3),
    "resnet": (2.1, 1.5, 1.3),
    "gpt": (2.0, 1.5, 1.4),
}

BARS = (
    *(
        Bar("a", problem, job, "gradients", limit, "cpu")
        for problem, limits in _GRADIENTS.items()
        for job, limit in zip((ONE_HESSIAN, HESSIAN_BLOCKS, ONE_GAUSS_NEWTON), limits, strict=True)
    ),
    # On a GPU: compiled gradients, and their memory.
    *(
        Bar("a", problem, job, measure, limit, "cuda")
        for problem in ("resnet-11M", "gpt-11M")
        for job, measure, limit in (
            (ONE_HESSIAN, "gradients", 2.2),
            (ONE_HESSIAN, "memory", 2.2),
            (ONE_GAUSS_NEWTON, "gradients", 1.6),
            (ONE_GAUSS_NEWTON, "memory", 1.3),
        )
    ),
    Bar("b", "mlp", PAIRS_10, "times", 3.0),
    Bar("b", "mlp", PAIRS_50, "times", 3.0),
    Bar("b", "lenet", LAYER_PAIRS, "times", 30.0),
    Bar("b", "lenet", LAYER_PAIRS, "accuracy", 1.0),
    Bar("c", "mlp", DENSITY, "times", 3.0),
    Bar("d", "lenet", LAYER, "times", 50.0, "cpu", MASKED),
    Bar("d", "lenet", LAYER, "times", 100.0, "cuda", MASKED),
    Bar("d", "lenet", LAYER, "times", 15.0, "cpu"),
    Bar("d", "lenet", LAYER, "times", 20.0, "cuda"),
    Bar("e", "mlp", TRACE, "times", 1.0),
    Bar("e", "mlp", TRACE, "accuracy", 1.0),
    Bar("f", "dong", DENSE, "times", 10.0),
    Bar("f", "dong", DENSE, "seconds", 30.0),
    Bar("g", "lenet", SPECTRA, "seconds", 300.0, "cuda"),
    Bar("o", "atoms", f"{CODES}, float64", "times", 10.0),
    Bar("o", "atoms", f"{CODES}, float32", "times", 10.0),
    Bar("s", "samples", LAYER_AUTO, "exponent", _LINEAR),
    Bar("s", "samples", LAYER_TAIL, "exponent", _LINEAR),
    Bar("s", "columns", LAYER_AUTO, "exponent", _LINEAR),
    Bar("s", "columns", LAYER_TAIL, "exponent", _LINEAR),
    Bar("s", "size", SOLVER_STEP, "exponent", _LINEAR),
    Bar("s", "size", DENSITY_STEP, "exponent", _LINEAR),
)


def verdicts(rows: Sequence["Row"], device: str, bars: Iterable[Bar] = BARS) -> list[Verdict]:
    """Hold rows against the bars of a device ("cpu" or "cuda")."""
    return [verdict(bar, rows) for bar in bars if bar.device in ("any", device)]


def verdict(bar: Bar, rows: Sequence["Row"]) -> Verdict:
    """Hold rows against one bar."""
    place = (bar.section, bar.problem, bar.job)
    there = [row for row in rows if (row.section, row.problem, row.job) == place]
    ours = _quickest(row for row in there if row.role == OURS)
    others = tuple(row for row in there if row.role == bar.against)
    rival = _quickest(row for row in others if row.counts and not row.wrong)
    by_hand = _quickest(row for row in there if row.role == BY_HAND and not row.wrong)
    value = None if ours is None else _value(bar, ours, rival, others)
    if not there:
        status = NOT_RUN
    elif ours is None:
        status = NO_RESULT
    elif value is None:
        status = NO_RIVAL if bar.measure in ("times", "accuracy") else NO_RESULT
    else:
        reached = value >= bar.limit if bar.measure == "times" else value <= bar.limit
        status = MET if reached and ours.counts and not ours.wrong else NOT_MET
    return Verdict(bar, ours, rival, by_hand, others, value, status)


def _quickest(rows: Iterable["Row"]) -> "Row | None":
    done = [row for row in rows if not row.failed and row.seconds]
    return min(done, key=lambda row: median(row.seconds), default=None)


def _value(bar: Bar, ours: "Row", rival: "Row | None", others: Sequence["Row"]) -> float | None:
    if bar.measure == "times":
        return None if rival is None else median(rival.seconds) / median(ours.seconds)
    if bar.measure == "accuracy":
        done = [row for row in others if not row.failed and not row.wrong]
        errors = [row.error for row in done if row.error is not None]
        return None if ours.error is None or not errors else ours.error / min(errors)
    if bar.measure == "gradients":
        return median(ours.gradients) if ours.gradients else None
    if bar.measure == "seconds":
        return median(ours.seconds)
    return ours.extra.get(bar.measure)


def bars_table(found: Sequence[Verdict]) -> list[list[str]]:
    """Lay verdicts out as lines of cells, the heading first."""
    heads = ["", "on", "job", "best rival", "ms", "error", "by hand, ms"]
    lines = [[*heads, "ours", "ms", "error", "ratio", "measured", "bar", ""]]
    for one in found:
        masked = " (masked)" if one.bar.against == MASKED else ""
        lines.append(
            [
                one.bar.section,
                one.bar.problem,
                one.bar.job + masked,
                _rival(one),
                *_time_and_error(one.rival),
                _time_and_error(one.by_hand)[0],
                "-" if one.ours is None else one.ours.method,
                *_time_and_error(one.ours),
                _ratio(one),
                _measured(one),
                one.bar.asked(),
                one.status,
            ]
        )
    return lines


def _rival(one: Verdict) -> str:
    """Name the best, and say what became of those that could not be it."""
    short = [row for row in one.others if not row.failed and not row.wrong and not row.counts]
    counts = {
        "WRONG": sum(row.wrong for row in one.others),
        "inexact": len(short),
        "failed or missing": sum(row.failed for row in one.others),
    }
    rest = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    name = "-" if one.rival is None else one.rival.method
    return f"{name} ({rest})" if rest else name


def _ratio(one: Verdict) -> str:
    if one.rival is None or one.ours is None:
        return "-"
    return f"{median(one.rival.seconds) / median(one.ours.seconds):.3g}"


def _measured(one: Verdict) -> str:
    if one.value is None:
        return "-"
    spread = one.ours.extra.get("stderr") if one.ours and one.bar.measure == "exponent" else None
    unit = "×" if one.bar.measure in ("times", "memory") else ""
    return f"{one.value:.3g}{unit}" + ("" if spread is None else f" ± {spread:.2g}")


def _time_and_error(row: "Row | None") -> tuple[str, str]:
    if row is None:
        return "-", "-"
    error = "-" if row.error is None else f"{row.error:.1e}" + " WRONG" * row.wrong
    return f"{1000 * median(row.seconds):.3g}", error
