"""From certificates to the study's numbers, tables, notes and picture."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from eigenscape.records import Axis, Panel, Picture, Points
from eigenscape_papers.runner import SERIES, Measured, Sheet, counted, picture, rounded, table
from eigenscape_papers.wu._table_9 import (
    INDEXED,
    TABLE_9,
    TEST_ERRORS,
    TURNED,
    arithmetic_gap,
    plain,
)

# The order that the paper has, one step at a time.
PAIRS = (("appr", "base"), ("iter", "appr"))
# What the table has of a certificate, in the order of its columns.
_KEPT = (
    *("bound", "kl", "error", "error_bound", "prior_variance"),
    *("num_examples", "num_samples", "index", "delta", "delta_samples"),
)
# The network of Figs 7 and 30.
_SHOWN = "T10-200^2"


@dataclass(frozen=True, eq=False)
class Row:
    """A network's certificate by one method, as it is kept.

    Attributes:
        network: Its name in Table 9.
        seed: Its seed.
        method: How the basis was chosen.
        certificate: Its numbers by name: the bound and all that it was computed from.
        refuted: What fresh draws found against it; empty where they confirm it.
        test_error: Of the trained network.
        fall: Rank correlation of variances and eigenvalues over the first layer's directions.
        curve: Places of some directions, by falling eigenvalue, and the variances there.
        device: Where it was computed; rows of one study may come from several machines.
    """

    network: str
    seed: int
    method: str
    certificate: dict[str, float]
    refuted: str
    test_error: float
    fall: float
    curve: tuple[list[int], list[float]]
    device: str

    @property
    def compared(self) -> tuple[float, float, float, float]:
        """Bound, KL, error after the Monte-Carlo step and ½ log λ, as Table 9 has them."""
        c = self.certificate
        return c["bound"], c["kl"], c["error_bound"], 0.5 * math.log(c["prior_variance"])


def bounds_of(rows: Sequence[Row]) -> dict[tuple[str, int], dict[str, float]]:
    """Return bounds by network and seed, then by method."""
    bounds: dict[tuple[str, int], dict[str, float]] = {}
    for row in rows:
        bounds.setdefault((row.network, row.seed), {})[row.method] = row.certificate["bound"]
    return bounds


def sheets(rows: Sequence[Row]) -> tuple[Sheet, ...]:
    """Return every row, and, where there are the paper's networks, Table 9 beside ours."""
    cells = [
        (
            *(row.network, row.seed, row.method),
            *(row.certificate[key] for key in _KEPT),
            *(row.test_error, "no" if row.refuted else "yes"),
        )
        for row in rows
    ]
    more = (_paired(rows), _beside(rows))
    return (table("wu-bounds.bounds", cells), *(one for one in more if one is not None))


def _paired(rows: Sequence[Row]) -> Sheet | None:
    """Return how methods differ, network by network; None where there are no two seeds."""
    cells = [
        (gap.network, f"{gap.one.upper()} - {gap.other.upper()}", gap.seeds, *gap.numbers)
        for gap in gaps(bounds_of(rows))
    ]
    return table("wu-bounds.differences", cells) if cells else None


def _beside(rows: Sequence[Row]) -> Sheet | None:
    """Return ours, the mean over seeds, beside each row of Table 9; None where there is none."""
    cells = []
    for (name, method), theirs in TABLE_9.items():
        ours = [row.compared for row in rows if (row.network, row.method) == (name, method)]
        if ours:
            means = [fmean(values) for values in zip(*ours, strict=True)]
            pairs = [v for pair in zip(means, theirs, strict=True) for v in pair]
            cells.append((name, method, len(ours), *pairs))
    return table("wu-bounds.table-9", cells) if cells else None


def missing(keys: list[tuple[str, int, str]]) -> tuple[str, ...]:
    """Say what was not run, network by network and seed by seed."""
    methods: dict[str, list[str]] = {}
    for name, seed, method in keys:
        methods.setdefault(f"{name} seed {seed}", []).append(method.upper())
    sentences = [f"{net} ({', '.join(left)})" for net, left in methods.items()]
    return (f"Not run: {'; '.join(sentences)}.",) if sentences else ()


def devices(rows: Sequence[Row]) -> tuple[str, ...]:
    """Say where rows were computed."""
    return (f"Rows were computed: {counted(row.device for row in rows)}.",) if rows else ()


def refuted(rows: Sequence[Row]) -> tuple[str, ...]:
    """Say which certificates were not confirmed, and why."""
    return tuple(
        f"Not confirmed: {row.network} seed {row.seed} by {row.method.upper()}. {row.refuted}"
        for row in rows
        if row.refuted
    )


def measured(rows: Sequence[Row]) -> dict[str, Measured]:
    """Return a number for each claim that these rows can decide."""
    numbers = {"wu.table9.arithmetic": Measured(arithmetic_gap())}
    for name, method in TABLE_9:
        of_method = [row for row in rows if (row.network, row.method) == (name, method)]
        if of_method:
            values = [row.certificate["bound"] for row in of_method]
            numbers[f"wu.table9.{plain(name)}.{method}"] = Measured.over(values)
    for name in TEST_ERRORS:
        errors = {row.seed: row.test_error for row in rows if row.network == name}
        if errors:
            numbers[f"wu.table1.{plain(name)}.test-error"] = Measured.over(list(errors.values()))
    if rows:
        confirmed = fmean(not row.refuted for row in rows)
        numbers["wu.table9.certificates-hold"] = Measured(confirmed)
    return numbers | _order(bounds_of(rows)) | _falls(rows)


@dataclass(frozen=True)
class Gap:
    """How the bounds of two methods differ for one network, seed by seed.

    Attributes:
        network: The network.
        one: A method.
        other: Another.
        seeds: How many seeds have both.
        mean: Mean of the differences of their bounds.
        error: Its standard error.
        share: Share of the seeds where `one` has the smaller bound.
    """

    network: str
    one: str
    other: str
    seeds: int
    mean: float
    error: float
    share: float

    @property
    def numbers(self) -> tuple[float, float, float]:
        """Mean, standard error and share."""
        return self.mean, self.error, self.share


def gaps(bounds: dict[tuple[str, int], dict[str, float]]) -> list[Gap]:
    """Compare APPR with BASE and ITER with APPR wherever two seeds or more have both."""
    differences = []
    for network in dict.fromkeys(name for name, _ in bounds):
        of_network = [row for (name, _), row in bounds.items() if name == network]
        for one, other in PAIRS:
            values = [a - b for a, b in _both(of_network, one, other)]
            if len(values) < 2:
                continue
            error = stdev(values) / math.sqrt(len(values))
            share = fmean(value < 0.0 for value in values)
            differences.append(Gap(network, one, other, len(values), fmean(values), error, share))
    return differences


def _order(bounds: dict[tuple[str, int], dict[str, float]]) -> dict[str, Measured]:
    """Compare methods, network by network and seed by seed."""
    every = list(bounds.values())
    close: dict[str, list[float]] = {
        "table1.iter-m-close-to-iter": [a / b - 1.0 for a, b in _both(every, "iter-m", "iter")],
        "table9.iter-d-close-to-iter": [
            abs(a / b - 1.0) for a, b in _both(every, "iter-d", "iter")
        ],
    }
    numbers = {f"wu.{key}": Measured(fmean(values)) for key, values in close.items() if values}
    for one, other in PAIRS:
        # On random labels APPR and ITER are not told apart, in the paper neither.
        worst = [
            gap.mean + 2.0 * gap.error
            for gap in gaps(bounds)
            if (gap.one, gap.other) == (one, other)
            and not (one == "iter" and gap.network.startswith("R"))
        ]
        if worst:
            numbers[f"wu.table1.{one}-below-{other}"] = Measured(max(worst))
    return numbers


def _both(rows: Sequence[dict[str, float]], one: str, other: str) -> list[tuple[float, float]]:
    return [(row[one], row[other]) for row in rows if {one, other} <= row.keys()]


def _falls(rows: Sequence[Row]) -> dict[str, Measured]:
    """Return how far variances fall along the eigenvalues, where there are some."""
    falls: dict[tuple[str, int], dict[str, float]] = {}
    for row in rows:
        if row.method in TURNED and math.isfinite(row.fall):
            falls.setdefault((row.network, row.seed), {})[row.method] = row.fall
    numbers = {}
    for method in TURNED:
        if values := [by_method[method] for by_method in falls.values() if method in by_method]:
            numbers[f"wu.fig7.{method}-variance-falls"] = Measured(fmean(values))
    if pairs := _both(list(falls.values()), "iter", "appr"):
        numbers["wu.fig30.iter-falls-more"] = Measured(fmean(a - b for a, b in pairs))
    return numbers


def both_ways(bounds: dict[tuple[str, int], dict[str, float]]) -> tuple[str, ...]:
    """Say what carrying variances over is worth, where both ways were run."""
    pairs = _both(list(bounds.values()), "iter", INDEXED)
    if not pairs:
        return ()
    worse = sum(indexed > carried for carried, indexed in pairs)
    gain = sum(indexed - carried for carried, indexed in pairs) / len(pairs)
    return (
        "ITER-INDEX is ITER with variances left at their index whenever the basis changes. Its "
        f"bound is above that of ITER, which carries them over, in {worse} of {len(pairs)} cases; "
        f"the mean difference is {gain:+.3f}.",
    )


def pictures(rows: Sequence[Row]) -> tuple[Picture, ...]:
    """Show the variances of one network: the paper's, or the first that there is."""
    paper = [row for row in rows if row.network == _SHOWN]
    chosen = (paper or list(rows))[:1]
    if not chosen:
        return ()
    (first,) = chosen
    shown = {
        row.method: row.curve
        for row in rows
        if (row.network, row.seed) == (first.network, first.seed) and row.method != INDEXED
    }
    drawn = [value for _, values in shown.values() for value in values]
    limits = (min(drawn) / 1.5, max(drawn) * 1.5)
    panels = [
        Panel(
            [Points(places, rounded(values), SERIES[number])],
            Axis("parameter" if method == "base" else "direction, eigenvalues falling", log=True),
            Axis("posterior variance", log=True, limits=limits),
            method.upper(),
        )
        for number, (method, (places, values)) in enumerate(shown.items())
    ]
    return (picture("wu-bounds.variances", panels, first.network, seed=first.seed),)
