"""Wu Figs 2 and 29: eigenvalues and eigenspaces of a layer's Hessian from its Kronecker factors.

E[M] ⊗ E[xxᵀ] beside what bounds it: its own eigenvectors with the best eigenvalues (EKFAC), and the
nearest of all Kronecker products.
"""

from collections.abc import Sequence
from statistics import fmean

from eigenscape.analyses import KroneckerFit, kronecker_fit
from eigenscape.report import Axis, Line, Panel, Picture, Points
from eigenscape.studies import wu_casts as casts
from eigenscape.studies._draw import curve, indices, rounded
from eigenscape.studies._tables import sheet
from eigenscape.studies.cast import Cast
from eigenscape.studies.claim import Claim, Measured
from eigenscape.studies.portrait import matrix_layers
from eigenscape.studies.study import Outcome, Setting, Study
from eigenscape.studies.workshop import Workshop

_NORMS = {
    "spectral": "‖H − E[M] ⊗ E[xxᵀ]‖/‖H‖",
    "frobenius": "‖H − E[M] ⊗ E[xxᵀ]‖_F/‖H‖_F",
}
_SMALL = 0.5
_WHY = {
    "spectral": "Below what leaving half of the top direction out would cost.",
    "frobenius": "A quarter of the squared norm at most is missed.",
}
_CLAIMS = (
    Claim(
        "wu.fig2.eigenvalue",
        "Fig. 2",
        "top eigenvalue of E[M] ⊗ E[xxᵀ] over that of H, furthest from 1 over the layers of the "
        "first network",
        "works reasonably well for the top eigenvalues",
        low=0.5,
        high=2.0,
        why="“Reasonably well”: within a factor of two.",
    ),
    Claim(
        "wu.fig2.overlap",
        "Fig. 2",
        "overlap of the top c − 1 eigenspaces of H and E[M] ⊗ E[xxᵀ], smallest over the layers of "
        "the first network",
        "works reasonably well for the top eigenspaces",
        low=0.5,
        why="More than half of the space in common.",
    ),
    Claim(
        "wu.fig29.batchnorm.overlap",
        "Fig. 29, App. F.4",
        "the same overlap with BatchNorm less that without, mean over layers behind BatchNorm",
        "worse with BatchNorm, still highly nontrivial",
        high=0.0,
        why="“Worse” is a negative difference.",
    ),
    *(
        Claim(
            f"wu.fig29.batchnorm.{norm}-error",
            "Fig. 29, App. F.4",
            f"{words}, with BatchNorm less without, mean over layers behind BatchNorm",
            "worse with BatchNorm",
            low=0.0,
            why="“Worse” is a positive difference.",
        )
        for norm, words in _NORMS.items()
    ),
    *(
        Claim(
            f"wu.eq7.{norm}-error",
            "(7), decoupling conjecture",
            f"{words}, mean over the layers of the first network",
            "small; no number is given",
            high=_SMALL,
            why=_WHY[norm],
        )
        for norm, words in _NORMS.items()
    ),
    *(
        Claim(
            f"wu.eq7.lenet5.{norm}-error",
            "(7), decoupling conjecture",
            f"{words}, mean over the layers of LeNet5",
            "small; no number is given",
            high=_SMALL,
            why=_WHY[norm],
            known="Figs 2 and 3 are about the top of the spectrum, whose vectors the product has: "
            "overlaps of the top 9 are 0.74 to 0.89. Its λ₁ is 0.28 (conv1) to 1.32 (fc1) times "
            "the true one. With the same vectors and the best eigenvalues the errors are 0.40 and "
            "0.46 in Frobenius norm; the nearest of all Kronecker products has 0.23 and 0.28.",
            scales=("paper",),
        )
        for norm, words in _NORMS.items()
    ),
)

# Networks, layer, approximation, both errors, λ₁ over the true one, overlap of the top c − 1.
_Row = tuple[str, str, str, float, float, float, float]
_ERRORS = {"spectral": 3, "frobenius": 4}
_RATIO, _OVERLAP = 5, 6


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Fit every layer of the first network of each cast."""
    pictures: list[Picture] = []
    rows: list[_Row] = []
    products, classes = 0, 10
    for cast in setting.casts:
        networks = workshop.networks(cast)
        classes = networks.data.num_classes or classes
        risk = networks.risk(cast.seeds[0])
        values, overlaps = [], []
        for layer in matrix_layers(risk):
            fit = kronecker_fit(risk, f"{layer}.weight", num_pairs=setting.options["num_pairs"])
            products += fit.num_products
            values.append(_values(layer, fit))
            overlaps.append(_overlaps(layer, fit))
            rows += [
                (
                    cast.label,
                    layer,
                    each.name,
                    each.spectral_error,
                    each.frobenius_error,
                    float(each.values[0] / fit.values[0]),
                    float(each.overlaps[min(classes - 1, len(each.overlaps)) - 1]),
                )
                for each in fit.approximations
            ]
        pictures += [
            Picture(
                f"approximation-values-{cast.key[:-11]}",
                f"Top eigenvalues of each layer and of its approximations, {cast.label}",
                tuple(values),
                shows="The line is the layer's Hessian, circles are its approximations.",
            ),
            Picture(
                f"approximation-overlaps-{cast.key[:-11]}",
                f"Overlap of top eigenspaces of each layer and its approximations, {cast.label}",
                tuple(overlaps),
                shows="1 means that the first k eigenvectors span the same space.",
            ),
        ]
    names = (
        "networks",
        "layer",
        "approximation",
        "spectral error",
        "Frobenius error",
        "λ₁ over true λ₁",
        f"overlap of top {classes - 1}",
    )
    table = sheet("fits", "Every layer and approximation", names, rows)
    return Outcome(measured_of(setting.casts, rows), tuple(pictures), (table,), (), products)


_TINTS = ("gauss_newton", "residual", "fourth")


def _values(layer: str, fit: KroneckerFit) -> Panel:
    """Draw eigenvalues: circles, and the true ones as a line on top, which nothing hides."""
    marks: list[Points | Line] = [
        Points(
            indices(len(each.values)),
            rounded(each.values),
            tint,
            each.name,
            hollow=True,
        )
        for tint, each in zip(_TINTS, fit.approximations, strict=False)
    ]
    marks.append(curve(fit.values, "hessian", "H"))
    return Panel(marks, Axis("index", whole=True), Axis("eigenvalue", log=True), layer)


def _overlaps(layer: str, fit: KroneckerFit) -> Panel:
    marks = [
        curve(each.overlaps, tint, each.name, dashed=each.name == "ekfac")
        for tint, each in zip(_TINTS, fit.approximations, strict=False)
    ]
    return Panel(marks, Axis("k", whole=True), Axis("overlap with H", limits=(0, 1.02)), layer)


def measured_of(casts: Sequence[Cast], rows: Sequence[_Row]) -> dict[str, Measured]:
    """Return the numbers for the claims, which are all in the table.

    Args:
        casts: The networks, the first one first.
        rows: The table.

    Returns:
        A number for each claim that these networks can answer, by its id.
    """

    def column(cast: Cast, place: int) -> list[float]:
        mine = [row for row in rows if row[0] == cast.label and row[2] == "kronecker"]
        return [float(row[place]) for row in mine]

    ratios = column(casts[0], _RATIO)
    found = {
        "wu.fig2.eigenvalue": Measured(max(ratios, key=lambda r: max(r, 1 / r))),
        "wu.fig2.overlap": Measured(min(column(casts[0], _OVERLAP))),
    }
    for norm, place in _ERRORS.items():
        found[f"wu.eq7.{norm}-error"] = Measured(fmean(column(casts[0], place)))
    for cast in casts:
        if cast.model == "LeNet5":
            for norm, place in _ERRORS.items():
                found[f"wu.eq7.lenet5.{norm}-error"] = Measured(fmean(column(cast, place)))
    twins = [(p, n) for n in casts for p in casts if n.model == f"{p.model}-BN"]
    if twins:
        errors = {f"{norm}-error": place for norm, place in _ERRORS.items()}
        for name, place in (errors | {"overlap": _OVERLAP}).items():
            # The first layer has no BatchNorm in front of it.
            gaps = [
                with_it - without
                for p, n in twins
                for without, with_it in zip(column(p, place)[1:], column(n, place)[1:], strict=True)
            ]
            found[f"wu.fig29.batchnorm.{name}"] = Measured(fmean(gaps))
    return found


STUDY = Study(
    name="wu-approximation",
    paper="Wu",
    where="Figs 2, 29; (7)",
    title="How close is a layer's Hessian to the Kronecker product of its factors?",
    settings={
        "laptop": Setting((casts.SMALL_MLP, casts.SMALL_MLP_BN), {"num_pairs": 40}),
        "paper": Setting((casts.MLP, casts.LENET, casts.LENET_BN), {"num_pairs": 100}),
    },
    measure=measure,
    claims=_CLAIMS,
)
