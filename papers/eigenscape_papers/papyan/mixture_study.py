"""Papyan Theorem 8.1: the Fisher matrix of logistic regression on a mixture of Gaussians.

Letters: D inputs, C classes, t the signal-to-noise ratio, α the share that the symmetric
probabilities leave to wrong classes. The theorem is checked as it stands, against samples, and
against a regression that was trained on the mixture, whose probabilities are not symmetric.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from eigenscape.records import Axis, Line, Mark, Panel, Picture, Points
from eigenscape_papers.papyan.regression import Regression, fisher_matrix, mixture, regress
from eigenscape_papers.runner import (
    Measured,
    Outcome,
    Setting,
    Sheet,
    Study,
    Workshop,
    indices,
    picture,
    rounded,
    table,
)
from eigenscape_papers.runner.orders import rank_correlation
from eigenscape_papers.theory import (
    FisherLevels,
    error_from_ratio,
    expected_fisher,
    fisher_levels,
    mixture_error,
    mixture_uncertainty,
    optimal_fisher_levels,
)

_RATIOS = ("outliers/bulk", "outliers/mini-bulk", "mini-bulk/bulk")
_LEVELS = ("outliers", "bulk")


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Check the theorem, sample its matrix, and train regressions."""
    options = setting.options
    D, C, signals = options["num_inputs"], options["num_classes"], options["signals"]
    gap, miscounted = exactness(options["cases"])
    sizes, distances = _sampled(options, workshop.device)
    fits = [
        regress(options, t, seed, workshop.device)
        for t in signals
        for seed in range(options["num_seeds"])
    ]
    best = {t: optimal_fisher_levels(D, C, t) for t in signals}
    levels = [fisher_levels(D, C, fit.signal, error=fit.uncertainty) for fit in fits]
    ratios = torch.tensor([[fisher_levels(D, C, t).ratio(k) for k in _RATIOS] for t in signals])
    outliers = torch.tensor([float(fit.values[:C].mean()) for fit in fits])
    fewer = torch.tensor([float(fit.values[: C - 1].mean()) for fit in fits])
    bulk = torch.tensor([fit.bulk for fit in fits])
    errors = torch.tensor([fit.error for fit in fits])
    predicted = torch.tensor(
        [error_from_ratio(float(r), C, exact=True) for r in fewer / bulk], dtype=torch.float64
    )
    theorem = {kind: torch.tensor([_level(x, kind) for x in levels]) for kind in _LEVELS}
    ours = {kind: torch.tensor([_level(best[f.signal], kind) for f in fits]) for kind in _LEVELS}

    def by_signal(values: Tensor) -> Tensor:
        return values.view(len(signals), -1).mean(1)

    measured = {
        "papyan.theorem8.1.levels": Measured(gap),
        "papyan.theorem8.1.multiplicities": Measured(float(miscounted)),
        "papyan.lemma8.1.sampled": Measured(_slope(sizes, distances)),
        "papyan.s8.2.separation": Measured(float((ratios.diff(dim=0) > 0).all(1).double().mean())),
        "papyan.theorem8.1.trained.outliers": _furthest(outliers / theorem["outliers"]),
        "papyan.theorem8.1.trained.bulk": _furthest(bulk / theorem["bulk"]),
        "papyan.s8.corrected.outliers": _furthest(fewer / ours["outliers"]),
        "papyan.s8.corrected.bulk": _furthest(bulk / ours["bulk"]),
        "papyan.s8.2.predictive": Measured(
            rank_correlation(by_signal(errors)[by_signal(fewer / bulk).argsort()].tolist())
        ),
        "papyan.s8.2.predicted-error": Measured(float((predicted / errors).log().abs().max())),
    }
    shown = next(i for i, fit in enumerate(fits) if fit.signal == options["shown"])
    pictures = (
        _spectra_picture(
            fits[shown], levels[shown], best[options["shown"]], _sampling_panel(sizes, distances)
        ),
        _ratio_picture(options, fits, fewer / bulk),
    )
    beside = (
        *(outliers / theorem["outliers"], bulk / theorem["bulk"]),
        *(fewer / ours["outliers"], bulk / ours["bulk"], predicted),
    )
    return Outcome(measured, pictures, (_sheet(fits, C, beside),))


def exactness(cases: Sequence[tuple[int, int, float, float | None]]) -> tuple[float, int]:
    """Compare the spectrum of Lemma 8.1's matrix with Theorem 8.1.

    Args:
        cases: D, C, t and α; None for that of the best regression.

    Returns:
        The largest difference of eigenvalues over the largest eigenvalue, and the number of cases
        in which a level does not occur as often as the theorem says.
    """
    gap, wrong = 0.0, 0
    for D, C, t, alpha in cases:
        values = torch.linalg.eigvalsh(expected_fisher(D, C, t, error=alpha)).flip(0)
        levels = fisher_levels(D, C, t, error=alpha)
        top = float(values[0])
        gap = max(gap, float((values - levels.eigenvalues()).abs().max()) / top)
        near = (values[:, None] - levels.values).abs() < 1e-9 * top
        wrong += near.sum(0).tolist() != [C, C * (C - 2), (D - C) * (C - 1), D]
    return gap, wrong


def _sampled(options: Mapping[str, Any], device: torch.device) -> tuple[tuple[int, ...], Tensor]:
    """Return numbers of samples and distances (sizes, seeds) of the sampled matrix."""
    D, C, t = options["num_inputs"], options["num_classes"], options["shown"]
    alpha = mixture_uncertainty(C, t)
    G = expected_fisher(D, C, t, error=alpha).to(device)
    rows = []
    for count in options["sizes"]:
        row = []
        for seed in range(options["num_seeds"]):
            x, y = mixture(options, t, seed, "train", device, per_class=count // C)
            p = torch.full((len(x), C), alpha / (C - 1), dtype=x.dtype, device=device)
            p[torch.arange(len(x)), y] = 1.0 - alpha
            row.append(float((fisher_matrix(x, p) - G).norm() / G.norm()))
        rows.append(row)
    return tuple(options["sizes"]), torch.tensor(rows, dtype=torch.float64)


def _slope(sizes: Sequence[int], distances: Tensor) -> float:
    x = torch.tensor(sizes, dtype=torch.float64).log()
    y = distances.log().mean(1)
    x, y = x - x.mean(), y - y.mean()
    return float(x @ y / (x @ x))


def _level(levels: FisherLevels, kind: str) -> float:
    return float(levels.values[levels.names.index(kind)])


def _furthest(ratios: Tensor) -> Measured:
    """Return the ratio that is furthest from 1, and the standard deviation over all."""
    return Measured(float(ratios[ratios.log().abs().argmax()]), float(ratios.std()))


def _spectra_picture(
    fit: Regression, theorem: FisherLevels, best: FisherLevels, sampling: Panel
) -> Picture:
    count = len(fit.values) - theorem.num_inputs  # the rest are zeros
    x = indices(count)
    marks: list[Mark] = [
        Points(x, rounded(fit.values[:count], 5), "hessian", "trained"),
        Line(x, rounded(theorem.eigenvalues()[:count]), "gauss_newton", "Theorem 8.1"),
        Line(x, rounded(best.eigenvalues()[:count]), "residual", "best weights", dashed=True),
    ]
    return picture(
        "papyan-mixture.spectra",
        (
            Panel(marks, Axis("index", whole=True), Axis("eigenvalue", log=True), "Spectrum"),
            sampling,
        ),
        C=theorem.num_classes,
        D=theorem.num_inputs,
        t=f"{fit.signal:g}",
    )


def _ratio_picture(
    options: Mapping[str, Any], fits: Sequence[Regression], ratios: Tensor
) -> Picture:
    D, C = options["num_inputs"], options["num_classes"]
    low, high = options["signals"][0], options["signals"][-1]
    t = torch.linspace(low, high, 25, dtype=torch.float64).tolist()
    growth: list[Mark] = [
        Line(t, rounded([fisher_levels(D, C, v).ratio(kind) for v in t]), tint, kind)
        for kind, tint in zip(_RATIOS, ("first", "second", "third"), strict=True)
    ]
    of_errors: list[Mark] = []
    curves: tuple[tuple[str, Callable[..., FisherLevels], str, bool], ...] = (
        ("Theorem 8.1", fisher_levels, "gauss_newton", False),
        ("best weights", optimal_fisher_levels, "residual", True),
    )
    for label, levels, tint, dashed in curves:
        x = rounded([levels(D, C, v).ratio() for v in t])
        y = rounded([mixture_error(C, v) for v in t])
        of_errors.append(Line(x, y, tint, label, dashed))
    errors = [fit.error for fit in fits]
    of_errors.append(Points(rounded(ratios), rounded(errors), "hessian", "trained"))
    return picture(
        "papyan-mixture.ratios",
        (
            Panel(growth, Axis("t"), Axis("ratio", log=True), "Theorem 8.1"),
            Panel(
                of_errors,
                Axis("outliers/bulk", log=True),
                Axis("misclassification", log=True),
                "Trained",
            ),
        ),
    )


def _sampling_panel(sizes: Sequence[int], distances: Tensor) -> Panel:
    x, mean = tuple(float(n) for n in sizes), distances.mean(1)
    line = [float(mean[0]) * math.sqrt(sizes[0] / n) for n in sizes]
    spread = rounded(distances.std(1)) if distances.shape[1] > 1 else None
    marks: list[Mark] = [
        Line(x, rounded(line), "muted", "1/√n", dashed=True),
        Points(x, rounded(mean), "hessian", "sampled", y_error=spread),
    ]
    return Panel(marks, Axis("samples n", log=True), Axis("distance", log=True), "Lemma 8.1")


def _sheet(fits: Sequence[Regression], C: int, beside: Sequence[Tensor]) -> Sheet:
    rows = [
        (
            *(fit.signal, fit.uncertainty, mixture_uncertainty(C, fit.signal)),
            *(fit.error, mixture_error(C, fit.signal)),
            *(float(values[n]) for values in beside),
            fit.slope,
        )
        for n, fit in enumerate(fits)
    ]
    return table("papyan-mixture.regressions", rows)


STUDY = Study.of("papyan-mixture", measure)
