"""Papyan Table 1, Figs 4, 5: which matrix causes which feature of the spectra of H and G.

Outliers of H are due to G and its bulk to E. Of G, C outliers are due to G_class, the mini-bulk
after them to G_cross, the main bulk to G_within, and nothing to G_{c=c'}.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from eigenscape.analyses import Attribution, attribution
from eigenscape.linalg import eigsh
from eigenscape.linear_operator import LinearOperator
from eigenscape.operators import ClassGradients, Dense
from eigenscape.report import Axis, Line, Panel, Picture, Points, Sheet
from eigenscape.studies import papyan_casts as casts
from eigenscape.studies._draw import rounded
from eigenscape.studies._tables import sheet
from eigenscape.studies._whole_spectra import (
    Spectrum,
    formed,
    gradient_parts,
    hessian_parts,
    take_spectrum,
    total_trace,
)
from eigenscape.studies.claim import Claim, Measured
from eigenscape.studies.study import Outcome, Setting, Study
from eigenscape.studies.workshop import Networks, Workshop

_MASS = (
    "A feature that “disappears” leaves little; a tenth is little. The mass of k outliers is what "
    "they have above λ_{k+1}, summed."
)
_CLAIMS = (
    Claim(
        "papyan.table1.hessian.outliers",
        "Table 1, Fig. 4a",
        "share of the mass of the C outliers of H that goes with G",
        "knocking out G eliminates the outliers",
        low=0.9,
        why=_MASS,
    ),
    Claim(
        "papyan.table1.hessian.bulk",
        "Table 1, Fig. 4b",
        "1 − mean |λ| of G over that of H, without the top C eigenvalues of either",
        "knocking out E shrinks the bulk significantly: it originates largely from E",
        low=0.5,
        why="“Largely” is more than half. Depends on the loss that is left: E is weighted with "
        "p − y, G with p(1 − p). The narrow network on digits has E a third of G on training data.",
    ),
    Claim(
        "papyan.table1.gradients.outliers",
        "Table 1, Fig. 5",
        "share of the mass of the C outliers of G that goes with G_class",
        "knocking out G_class makes the C outliers disappear",
        low=0.9,
        why=_MASS
        + " On digits projection of its span takes 94 %, subtraction 60 %: the directions "
        "are those of G_class, and other parts of G have a share in them.",
    ),
    Claim(
        "papyan.table1.gradients.mini-bulk",
        "Table 1, Fig. 5",
        "share of the mass of the next C(C − 2) eigenvalues, those of G − G_class, that goes with "
        "G_cross",
        "knocking out G_cross makes the mini-bulk disappear",
        low=0.9,
        why=_MASS + " The text calls the mini-bulk of Fig. 5 the left one, Fig. 6 has G_cross "
        "above the bulk; this looks above.",
    ),
    Claim(
        "papyan.table1.gradients.bulk",
        "Table 1, Fig. 5",
        "share of the mass beyond the first C² eigenvalues of G that goes with G_within",
        "knocking out G_within makes the main bulk disappear",
        low=0.99,
        why="Forced by rank: what is left of G has at most C² eigenvalues. It checks the "
        "decomposition more than it finds anything.",
    ),
    Claim(
        "papyan.table1.gradients.same",
        "§6.1, Fig. 5",
        "largest relative change of one of the first C² eigenvalues when G_{c=c'} is taken out",
        "no clear effect on the spectrum at convergence",
        high=0.1,
        why="A twentieth of a decade cannot be seen on a logarithmic axis; a tenth is about that. "
        "The reason is accuracy, not convergence: the gradients of a sample weighted with p add "
        "up to zero, so w_{c,c} g_{c,c} = −w_c g_c, and G_{c=c'} is G_class with each term times "
        "w_c/w_{c,c}, the odds of an error.",
    ),
    Claim(
        "papyan.s1-11.top-outlier",
        "§1.11",
        "share of the gap λ₁ − λ₂ of G that goes with the second moment of the global mean",
        "the second moment of the global mean causes the top outlier",
        low=0.9,
        why=_MASS + " On digits it takes 3 %, little more than a random matrix of that spectrum. "
        "Why the global mean is so small there was not looked into.",
    ),
)


@dataclass(frozen=True, eq=False)
class _Found:
    """What one network's knockouts do."""

    networks: Networks
    seed: int
    scores: dict[str, Attribution]
    bulk: float
    left: float
    change: float
    spectra: dict[str, Spectrum]

    def measured(self) -> dict[str, float]:
        scores = {
            "papyan.table1.hessian.outliers": "G in H",
            "papyan.table1.gradients.outliers": "class in G",
            "papyan.table1.gradients.mini-bulk": "cross in rest",
            "papyan.s1-11.top-outlier": "global in G",
        }
        return {
            **{
                id: self.scores[name].mass_subtracted
                for id, name in scores.items()
                if name in self.scores
            },
            "papyan.table1.hessian.bulk": self.bulk,
            "papyan.table1.gradients.bulk": self.left,
            "papyan.table1.gradients.same": self.change,
        }


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Knock parts out of H and G of every network, at the end of training."""
    found = [
        _look(networks, seed, setting.options, is_first=seed == networks.cast.seeds[0])
        for networks in casts.best_of(workshop, setting.casts)
        for seed in networks.cast.seeds
    ]
    numbers = [one.measured() for one in found]
    measured = {
        id: Measured.over([one[id] for one in numbers if id in one])
        for id in dict.fromkeys(id for one in numbers for id in one)
    }
    pictures = [
        picture
        for place, one in enumerate(one for one in found if one.spectra)
        for picture in (_log_picture(one, place), _scores_picture(one, place))
    ]
    products = sum(a.num_products for one in found for a in one.scores.values())
    return Outcome(measured, tuple(pictures), (_sheet(found),), (), products)


def _look(networks: Networks, seed: int, options: Mapping[str, int], *, is_first: bool) -> _Found:
    risk = networks.risk(seed)
    C, n = networks.data.num_classes or 2, risk.space.size
    gradients = ClassGradients(risk, max_bytes=options["max_bytes"])
    G = formed(gradients.total)
    whole, parts = hessian_parts(risk, G), gradient_parts(gradients, G)
    knocked = {
        "G": G,
        "G − class": _less(G, parts["class"]),
        "G − cross": _less(G, parts["cross"]),
        "G − within": _less(G, parts["within"]),
        "G − same": _less(G, parts["same"]),
    }
    jobs = {
        "G in H": (whole["H"], whole["G"], C),
        "class in G": (G, parts["class"], C),
        "cross in rest": (knocked["G − class"], parts["cross"], C * (C - 2)),
        "global in G": (G, parts["global"], 1),
    }
    scores = {
        name: attribution(
            A, B, num_outliers=k, which="largest", tolerance=1e-3, num_draws=options["num_draws"]
        )
        for name, (A, B, k) in jobs.items()
        if 0 < k < n - 1
    }
    means = [take_spectrum(whole[name], C).bulk_mean() for name in "GH"]
    squares = min(C * C, n - 1)
    trace = float(G.to_dense().trace()) if isinstance(G, Dense) else total_trace(risk)
    top, without, rest = (_top(knocked[k], squares) for k in ("G", "G − same", "G − within"))
    kept = sum(gradients.traces()[name] for name in ("class", "cross", "same")) - float(rest.sum())
    left = 1.0 - kept / max(trace - float(top.sum()), 1e-300)
    spectra = {name: take_spectrum(A, C) for name, A in knocked.items()} if is_first else {}
    change = float(((top - without).abs() / top.clamp_min(1e-300)).max())
    return _Found(networks, seed, scores, 1.0 - means[0] / means[1], left, change, spectra)


def _less(A: LinearOperator, B: LinearOperator) -> LinearOperator:
    if isinstance(A, Dense) and isinstance(B, Dense):
        return Dense(A.to_dense() - B.to_dense())
    return A - B


def _top(operator: LinearOperator, count: int) -> torch.Tensor:
    if isinstance(operator, Dense):
        values: torch.Tensor = torch.linalg.eigvalsh(operator.to_dense()).flip(0)[:count].cpu()
        return values
    return eigsh(operator, num_pairs=count, tolerance=1e-3).values.cpu().double()


def _log_picture(found: _Found, place: int) -> Picture:
    top = float(found.spectra["G"].top[0])
    low, high = 1e-7 * top, 2.0 * top
    colours = ("gauss_newton", "first", "third", "fourth", "sixth")
    base = found.spectra["G"].log_curve(low, high)
    panels = []
    for (name, spectrum), colour in zip(found.spectra.items(), colours, strict=True):
        x, y = spectrum.log_curve(low, high)
        marks = [Line(rounded(x, 4), rounded(y, 3), colour, None)]
        if name != "G":
            marks.insert(0, Line(rounded(base[0], 4), rounded(base[1], 3), "muted", "G"))
        tall = Axis("eigenvalues a decade", log=True, limits=(0.3, 3.0 * float(base[1].max())))
        panels.append(Panel(marks, Axis("|λ|", log=True, limits=(low, high)), tall, name))
    return Picture(
        f"fig5-{place + 1}",
        f"Fig. 5: log-spectrum of G and its knockouts, {found.networks.cast.label}",
        panels,
        shows="Without G_class the outliers on the right shrink; without G_within all but C² "
        "eigenvalues are gone; G_{c=c'} changes little. Negative eigenvalues, which a knockout may "
        "leave, show by their size.",
    )


def _scores_picture(found: _Found, place: int) -> Picture:
    panels = []
    for name, score in found.scores.items():
        k = score.num_outliers
        x = tuple(float(i) for i in range(1, k + 2))
        marks = [
            Points(x, rounded(score.before), "muted", "before"),
            Points(x, rounded(score.subtracted), "second", "subtracted"),
            Points(x, rounded(score.projected), "first", "projected", hollow=True),
        ]
        title = f"{name}: {100 * score.mass_subtracted:.0f} % gone"
        panels.append(Panel(marks, Axis("index", whole=True), Axis("λ"), title))
    return Picture(
        f"knockouts-{place + 1}",
        f"Table 1: the top eigenvalues before and after knockouts, {found.networks.cast.label}",
        panels,
        shows="An outlier is due to a matrix if it goes with it. The title says how much of the "
        "outliers' mass above the bulk's edge the subtraction takes.",
    )


def _sheet(found: list[_Found]) -> Sheet:
    names = ["network", "seed", "cause and matrix", "k", "mass subtracted", "gap subtracted"]
    names += ("mass projected", "gap projected", "random mass", "random mass projected")
    rows = []
    for one in found:
        for name, a in one.scores.items():
            null = a.null.mean(0).tolist() if len(a.null) else [None] * 4
            start = (one.networks.cast.label, one.seed, name, a.num_outliers)
            shares = (a.mass_subtracted, a.gap_subtracted, a.mass_projected, a.gap_projected)
            rows.append((*start, *shares, null[0], null[2]))
    return sheet("knockouts", "Shares that disappear with a knockout", names, rows)


STUDY = Study(
    name="papyan-attribution",
    paper="Papyan",
    where="Table 1; Figs 4, 5; §1.11, §5.1, §6.1",
    title="Which matrix causes which outliers and bulks of H and G?",
    settings={
        "laptop": Setting(casts.SMALL, {"max_bytes": 2**32, "num_draws": 1}, note=casts.NOTE),
        "paper": Setting(
            casts.VGG_FEW,
            {"max_bytes": 24 * 10**9, "num_draws": 1},
            note=f"{casts.NOTE} {casts.FIRST}",
        ),
    },
    measure=measure,
    claims=_CLAIMS,
)
