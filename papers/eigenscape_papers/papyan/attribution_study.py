"""Papyan Table 1, Figs 4, 5: which matrix causes which feature of the spectra of H and G.

Outliers of H are due to G and its bulk to E. Of G, C outliers are due to G_class, the mini-bulk
after them to G_cross, the main bulk to G_within, and nothing to G_{c=c'}.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.curvature import ClassGradients
from eigenscape.linalg import eigsh
from eigenscape.operator import Dense, LinearOperator
from eigenscape.records import (
    Axis,
    EigenPairs,
    Line,
    Panel,
    Picture,
    ProgressCallback,
    Ticker,
    storable,
)
from eigenscape.risk import EmpiricalRisk
from eigenscape.structure import ClassSpan
from eigenscape_papers.papyan import networks as casts
from eigenscape_papers.papyan.attribution import Attribution, attribution
from eigenscape_papers.papyan.whole_spectra import (
    Spectrum,
    formed,
    gradient_parts,
    held_out_risk,
    hessian_parts,
    most_products,
    span_of,
    span_parts,
    take_spectrum,
    total_trace,
)
from eigenscape_papers.runner import (
    Networks,
    Outcome,
    Setting,
    Sheet,
    Study,
    Workshop,
    of_each_network,
    over_networks,
    picture,
    rounded,
    spectrum,
    table,
)

# What residuals may be where only products are known: an eigenvalue is within a hundredth for
# certain, and within its square over the distance to the next where it stands apart. Edges of
# bulks, where it does not, would take most of the products.
_ROUGH = 1e-2
_COLUMNS = 16  # eigenvectors that are multiplied at once

# By claim: cause and matrix.
_JUDGED = {
    "papyan.table1.hessian.outliers": "G in H",
    "papyan.table1.gradients.outliers": "class in G",
    "papyan.table1.gradients.mini-bulk": "cross in rest",
    "papyan.s1-11.top-outlier": "global in G",
}


@storable
@dataclass(frozen=True, eq=False)
class AttributionNetwork:
    """What one network's knockouts do."""

    label: str
    seed: int
    scores: dict[str, Attribution]
    numbers: dict[str, float]
    spectra: dict[str, Spectrum]

    def measured(self) -> dict[str, float]:
        """Return a number for each claim that was measured, by its id."""
        judged = {id: self.scores.get(name) for id, name in _JUDGED.items()}
        gone = {id: score.mass_subtracted for id, score in judged.items() if score is not None}
        return gone | self.numbers


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Knock parts out of H and G of every network, at the end of training."""
    networks = of_each_network("attribution", setting, workshop, _look)
    pictures = [
        drawn(one, index)
        for index, one in enumerate(one for one in networks if one.spectra)
        for drawn in (_log_picture, _scores_picture)
    ]
    products = sum(a.num_products for one in networks for a in one.scores.values())
    measured = over_networks([one.measured() for one in networks])
    return Outcome(measured, tuple(pictures), (_sheet(networks),), (), products)


def _look(
    networks: Networks, seed: int, setting: Setting, workshop: Workshop
) -> AttributionNetwork:
    options = setting.options
    risk, C = networks.risk(seed), networks.data.num_classes or 2
    gradients, hessian, of_gradients = _matrices(risk, C, options["max_bytes"], workshop.progress)
    G, without_class = of_gradients["G"], _less(of_gradients["G"], of_gradients["class"])
    knocked = {
        "G": G,
        "G − class": without_class,
        "G − cross": _less(G, of_gradients["cross"]),
        "G − within": of_gradients["between"],  # without two products of G
        "G − same": _less(G, of_gradients["same"]),
    }
    jobs = {
        "G in H": (hessian["H"], hessian["G"], C),
        "class in G": (G, of_gradients["class"], C),
        "cross in rest": (without_class, of_gradients["cross"], C * (C - 2)),
        "global in G": (G, of_gradients["global"], 1),
    }
    if isinstance(G, Dense):  # what the reasons for differences rest on; too much for large ones
        jobs |= {
            "class + cross in G": (G, _more(of_gradients["class"], of_gradients["cross"]), C),
            "within in rest": (without_class, of_gradients["within"], C * (C - 2)),
            "plain mean in G": (G, _plain_mean(gradients), 1),
        }
    label, drawn = networks.cast.label, seed == networks.cast.seeds[0]
    stages = itertools.count(1)
    ticker = Ticker(workshop.progress, f"knockouts, {label}", len(jobs) + 2 + drawn * len(knocked))
    known = gradients if isinstance(gradients, ClassSpan) else None
    numbers = {"papyan.table1.hessian.bulk": _smaller_bulk(hessian, C, workshop.progress, known)}
    ticker.tick(next(stages))
    del hessian
    scores: dict[str, Attribution] = {}
    for name in [*jobs]:
        A, B, k = jobs.pop(name)  # H, of which a GPU holds much, is not used after the first
        if 0 < k < risk.space.size - 1:
            draws = options["num_draws"] if name in _JUDGED.values() else 0
            is_known = isinstance(A, Dense)
            scores[name] = attribution(
                A,
                B,
                num_outliers=k,
                which="largest",
                tolerance=1e-3 if is_known else _ROUGH,
                max_products=None if is_known else most_products(A.space.size, k),
                num_draws=draws,
                progress=workshop.progress,
            )
        ticker.tick(next(stages))
    numbers |= _of_gradients(gradients, knocked, workshop.progress)
    ticker.tick(next(stages))
    held_out = held_out_risk(workshop, networks, seed, options["samples"])
    if held_out is not None:
        hessian = hessian_parts(held_out)
        numbers["papyan.table1.hessian.test-bulk"] = _smaller_bulk(hessian, C, workshop.progress)
        del hessian
    spectra: dict[str, Spectrum] = {}
    for name, matrix in knocked.items() if drawn else ():
        spectra[name] = take_spectrum(matrix, C, progress=workshop.progress)
        ticker.tick(next(stages))
    return AttributionNetwork(label, seed, scores, numbers, spectra)


def _matrices(
    risk: EmpiricalRisk, C: int, max_bytes: int, progress: ProgressCallback | None
) -> tuple[ClassGradients | ClassSpan, dict[str, LinearOperator], dict[str, LinearOperator]]:
    """Return H, G and E, and G with its parts: formed, in the span of gradients, or as products."""
    span = span_of(risk, C, progress)
    if span is not None:
        return span, hessian_parts(risk), span_parts(span)
    gradients = ClassGradients(risk, max_bytes=max_bytes)
    G = formed(gradients.total)
    matrices = gradient_parts(gradients, G) | {"between": formed(gradients.part("between"))}
    return gradients, hessian_parts(risk, G), matrices


def _of_gradients(
    gradients: ClassGradients | ClassSpan,
    knocked: Mapping[str, LinearOperator],
    progress: ProgressCallback | None,
) -> dict[str, float]:
    """Return how many bulks G has, and what G_within and G_{c=c'} take of it."""
    G, C = knocked["G"], len(gradients.weights)
    squares = min(C * C, G.space.size - 1)
    if isinstance(G, Dense):
        within = G.to_dense() - knocked["G − within"].to_dense()
        share = bulk_share(G.to_dense(), within, squares)
        top = _top(G, squares, progress)
    elif isinstance(gradients, ClassGradients):
        pairs = eigsh(G, num_pairs=squares, tolerance=1e-3, progress=progress)
        share, top = _bulk_share_by_products(gradients, pairs), pairs.values.cpu().double()
        del pairs  # as long as 100 networks
    without = _top(knocked["G − same"], squares, progress)
    change = float(((top - without).abs() / top.clamp_min(1e-300)).max())
    numbers = {"papyan.table1.gradients.bulk": share, "papyan.table1.gradients.same": change}
    if isinstance(G, Dense):
        numbers["papyan.fig5.bulks"] = float(take_spectrum(G, C).num_bulks())
    return numbers


def bulk_share(A: Tensor, B: Tensor, count: int) -> float:
    """Return the share of a matrix's bulk that disappears with another, in the bulk's directions.

    Args:
        A: Symmetric and positive semidefinite (n, n).
        B: What is knocked out of it by subtraction.
        count: Leading eigenvectors of A that are no part of the bulk.

    Returns:
        1 − Σ|λ| of A − B over that of A, both restricted to the other eigenvectors: 1 where nothing
        is left, below zero where more is left than there was; NaN where there is no bulk.

    Examples:
        >>> A = torch.diag(torch.tensor([9.0, 2.0, 1.0]))
        >>> round(bulk_share(A, torch.diag(torch.tensor([0.0, 2.0, 0.5])), 1), 4)
        0.8333
    """
    values, vectors = torch.linalg.eigh(A)
    V = vectors[:, : len(A) - count]  # ascending
    left = V.T @ (A - B) @ V
    bulk = float(values[: len(A) - count].clamp_min(0.0).sum())
    if bulk <= len(A) * torch.finfo(A.dtype).eps * float(values[-1]):
        return math.nan
    return 1.0 - float(torch.linalg.eigvalsh((left + left.T) / 2).abs().sum()) / bulk


def _bulk_share_by_products(gradients: ClassGradients, pairs: EigenPairs) -> float:
    """Return the same of G and G_within from the leading pairs of G.

    Without G_within the means are left, which have no eigenvalues below zero: traces are enough.
    """
    means, inside = gradients.part("between"), 0.0
    for V in pairs.vectors.split(_COLUMNS, dim=1):
        inside += float((V * (means @ V)).sum(dtype=torch.float64))
    total, outside = total_trace(gradients.risk), gradients.traces()["between"] - inside
    bulk = total - float(pairs.values.sum())
    # What the pairs may be off by: the square of their tolerance.
    return 1.0 - outside / bulk if bulk > 1e-6 * total else math.nan


def _smaller_bulk(
    hessian: Mapping[str, LinearOperator],
    C: int,
    progress: ProgressCallback | None,
    span: ClassSpan | None = None,
) -> float:
    """Return by how much the bulk of G is smaller than that of H; the span has all of G."""
    n = hessian["H"].space.size
    away = min(C * C, n // 4)

    def mean(name: str) -> float:
        spectrum = take_spectrum(hessian[name], min(C, away), progress=progress)
        return spectrum.bulk_mean(max(away - C, 0))

    G = mean("G") if span is None else float(span.values[away:].sum()) / (n - away)
    return 1.0 - G / mean("H")


def _plain_mean(gradients: ClassGradients | ClassSpan) -> Dense:
    """Return the second moment of the mean of class means, each of the same weight."""
    weights = gradients.weights
    mean = torch.stack([gradients.mean(row) for row in range(len(weights))]).mean(0)
    return Dense(float(weights.sum() - weights.trace()) * torch.outer(mean, mean))


def _more(A: LinearOperator, B: LinearOperator) -> Dense:
    return Dense(A.to_dense() + B.to_dense())


def _less(A: LinearOperator, B: LinearOperator) -> LinearOperator:
    if isinstance(A, Dense) and isinstance(B, Dense):
        return Dense(A.to_dense() - B.to_dense())
    return A - B


def _top(operator: LinearOperator, count: int, progress: ProgressCallback | None) -> Tensor:
    if isinstance(operator, Dense):
        values: Tensor = torch.linalg.eigvalsh(operator.to_dense()).flip(0)[:count].cpu()
        return values
    pairs = eigsh(operator, num_pairs=count, tolerance=1e-3, progress=progress)
    return pairs.values.cpu().double()


def _log_picture(network: AttributionNetwork, index: int) -> Picture:
    top = float(network.spectra["G"].top[0])
    low, high = 1e-7 * top, 2.0 * top
    colours = ("gauss_newton", "first", "third", "fourth", "sixth")
    base = network.spectra["G"].log_curve(low, high)
    panels = []
    for (name, of_one), colour in zip(network.spectra.items(), colours, strict=True):
        x, y = of_one.log_curve(low, high)
        marks = [Line(rounded(x, 4), rounded(y, 3), colour, None)]
        if name != "G":
            marks.insert(0, Line(rounded(base[0], 4), rounded(base[1], 3), "muted", "G"))
        tall = Axis("eigenvalues a decade", log=True, limits=(0.3, 3.0 * float(base[1].max())))
        panels.append(Panel(marks, Axis("|λ|", log=True, limits=(low, high)), tall, name))
    return picture("papyan-attribution.fig5", panels, network.label, number=index + 1)


def _scores_picture(network: AttributionNetwork, index: int) -> Picture:
    panels = []
    for name in _JUDGED.values():
        if name not in network.scores:
            continue
        score = network.scores[name]
        marks = [
            spectrum(score.before, "muted", "before"),
            spectrum(score.subtracted, "second", "subtracted"),
            spectrum(score.projected, "first", "projected", hollow=True),
        ]
        title = f"{name}: {100 * score.mass_subtracted:.0f} % gone"
        all_values = torch.cat([score.before, score.subtracted, score.projected])
        # From zero, so that a small change looks small.
        tall = Axis(
            "λ", limits=(min(1.1 * float(all_values.min()), 0.0), 1.1 * float(all_values.max()))
        )
        panels.append(Panel(marks, Axis("index", whole=True), tall, title))
    return picture("papyan-attribution.knockouts", panels, network.label, number=index + 1)


def _sheet(networks: list[AttributionNetwork]) -> Sheet:
    rows = []
    for one in networks:
        for name, a in one.scores.items():
            null = a.null.mean(0).tolist() if len(a.null) else [None] * 4
            start = (one.label, one.seed, name, a.num_outliers)
            shares = (a.mass_subtracted, a.gap_subtracted, a.mass_projected, a.gap_projected)
            rows.append((*start, *shares, null[0], null[2]))
    return table("papyan-attribution.knockouts", rows)


STUDY = Study.of(
    "papyan-attribution", measure, {"laptop": (casts.SMALL,), "paper": (casts.VGG_FEW,)}
)
