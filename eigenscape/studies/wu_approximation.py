"""Wu Figs 2 and 29: eigenvalues and eigenspaces of a layer's Hessian from its Kronecker factors.

E[M] ⊗ E[xxᵀ] beside what bounds it: its own eigenvectors with the best eigenvalues (EKFAC), and the
nearest of all Kronecker products.
"""

from eigenscape.analyses import KroneckerFit, kronecker_fit
from eigenscape.report import Axis, Line, Panel, Picture, Points
from eigenscape.studies import wu_casts as casts
from eigenscape.studies._draw import curve, indices, rounded
from eigenscape.studies._tables import sheet
from eigenscape.studies.claim import Claim, Measured
from eigenscape.studies.portrait import matrix_layers
from eigenscape.studies.study import Outcome, Setting, Study
from eigenscape.studies.workshop import Workshop

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
    Claim(
        "wu.eq7.spectral-error",
        "(7), decoupling conjecture",
        "‖H − E[M] ⊗ E[xxᵀ]‖/‖H‖, mean over the layers of the first network",
        "small; no number is given",
        high=0.5,
        why="Below what leaving half of the top direction out would cost.",
    ),
)


def measure(setting: Setting, workshop: Workshop) -> Outcome:
    """Fit every layer of the first network of each cast."""
    pictures: list[Picture] = []
    rows, products = [], 0
    fits: dict[str, list[KroneckerFit]] = {}
    classes = 10
    for cast in setting.casts:
        networks = workshop.networks(cast)
        classes = networks.data.num_classes or classes
        risk = networks.risk(cast.seeds[0])
        values, overlaps = [], []
        for layer in matrix_layers(risk):
            fit = kronecker_fit(risk, f"{layer}.weight", num_pairs=setting.options["num_pairs"])
            products += fit.num_products
            fits.setdefault(cast.label, []).append(fit)
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
    return Outcome(_measured(setting, fits, classes - 1), tuple(pictures), (table,), (), products)


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


def _measured(
    setting: Setting, fits: dict[str, list[KroneckerFit]], place: int
) -> dict[str, Measured]:
    def overlap(fit: KroneckerFit) -> float:
        kept = fit.approximations[0].overlaps
        return float(kept[min(place, len(kept)) - 1])

    first = fits[setting.casts[0].label]
    ratios = [float(f.approximations[0].values[0] / f.values[0]) for f in first]
    errors = [f.approximations[0].spectral_error for f in first]
    found = {
        "wu.fig2.eigenvalue": Measured(max(ratios, key=lambda r: max(r, 1 / r))),
        "wu.fig2.overlap": Measured(min(overlap(f) for f in first)),
        "wu.eq7.spectral-error": Measured(sum(errors) / len(errors)),
    }
    plain = [cast for cast in setting.casts if not cast.model.endswith("-BN")]
    normed = [cast for cast in setting.casts if cast.model.endswith("-BN")]
    twins = [(p, n) for n in normed for p in plain if n.model == f"{p.model}-BN"]
    if twins:
        # The first layer has no BatchNorm in front of it.
        gaps = [
            overlap(with_it) - overlap(without)
            for p, n in twins
            for without, with_it in zip(fits[p.label][1:], fits[n.label][1:], strict=True)
        ]
        found["wu.fig29.batchnorm.overlap"] = Measured(sum(gaps) / len(gaps))
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
