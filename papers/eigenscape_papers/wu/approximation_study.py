"""Wu Figs 2 and 29: eigenvalues and eigenspaces of a layer's Hessian from its Kronecker factors.

E[M] ⊗ E[xxᵀ] beside what bounds it: its own eigenvectors with the best eigenvalues (EKFAC), and the
nearest of all Kronecker products.
"""

from collections.abc import Sequence
from statistics import fmean

from eigenscape.analyses import KroneckerFit, kronecker_fit
from eigenscape.records import Panel, Picture
from eigenscape_papers.runner import (
    Cast,
    Measured,
    Outcome,
    Setting,
    Study,
    Workshop,
    curve,
    matrix_layers,
    overlaps_panel,
    picture,
    table,
    values_panel,
)
from eigenscape_papers.wu import networks as casts

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
                    *(cast.label, layer, each.name, each.spectral_error, each.frobenius_error),
                    float(each.values[0] / fit.values[0]),
                    float(each.overlaps[min(classes - 1, len(each.overlaps)) - 1]),
                )
                for each in fit.approximations
            ]
        pictures += [
            picture("wu-approximation.approximation-values", values, cast),
            picture("wu-approximation.approximation-overlaps", overlaps, cast),
        ]
    fits = table("wu-approximation.fits", rows, top=classes - 1)
    return Outcome(measured_of(setting.casts, rows), tuple(pictures), (fits,), (), products)


_TINTS = ("gauss_newton", "residual", "fourth")


def _values(layer: str, fit: KroneckerFit) -> Panel:
    tinted = zip(fit.approximations, _TINTS, strict=False)
    return values_panel(fit.values, [(one.name, one.values, tint) for one, tint in tinted], layer)


def _overlaps(layer: str, fit: KroneckerFit) -> Panel:
    lines = [
        curve(each.overlaps, tint, each.name, dashed=each.name == "ekfac")
        for tint, each in zip(_TINTS, fit.approximations, strict=False)
    ]
    return overlaps_panel(lines, layer)


def measured_of(casts: Sequence[Cast], rows: Sequence[_Row]) -> dict[str, Measured]:
    """Return the numbers for the claims, which are all in the table.

    Args:
        casts: The networks, the first one first.
        rows: The table.

    Returns:
        A number for each claim that these networks can answer, by its id.
    """

    def column(cast: Cast, index: int) -> list[float]:
        mine = [row for row in rows if row[0] == cast.label and row[2] == "kronecker"]
        return [float(row[index]) for row in mine]

    ratios = column(casts[0], _RATIO)
    numbers = {
        "wu.fig2.eigenvalue": Measured(max(ratios, key=lambda r: max(r, 1 / r))),
        "wu.fig2.overlap": Measured(min(column(casts[0], _OVERLAP))),
    }
    for norm, index in _ERRORS.items():
        numbers[f"wu.eq7.{norm}-error"] = Measured(fmean(column(casts[0], index)))
    for cast in casts:
        if cast.model == "LeNet5":
            for norm, index in _ERRORS.items():
                numbers[f"wu.eq7.lenet5.{norm}-error"] = Measured(fmean(column(cast, index)))
    twins = [(p, n) for n in casts for p in casts if n.model == f"{p.model}-BN"]
    if twins:
        errors = {f"{norm}-error": index for norm, index in _ERRORS.items()}
        for name, index in (errors | {"overlap": _OVERLAP}).items():
            # The first layer has no BatchNorm in front of it.
            gaps = [
                with_it - without
                for p, n in twins
                for without, with_it in zip(column(p, index)[1:], column(n, index)[1:], strict=True)
            ]
            numbers[f"wu.fig29.batchnorm.{name}"] = Measured(fmean(gaps))
    return numbers


STUDY = Study.of(
    "wu-approximation",
    measure,
    {
        "laptop": (casts.SMALL_MLP, casts.SMALL_MLP_BN),
        "paper": (casts.MLP, casts.LENET, casts.LENET_BN),
    },
)
