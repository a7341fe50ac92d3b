"""The words of an analysis' report: what each figure shows, what it cost, how sure it is."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from eigenscape.analyses import Analysis, MatrixSpectrum
from eigenscape.report._marks import Picture
from eigenscape.report._numbers import seconds, short
from eigenscape.report._pictures import pictures_of


@dataclass(frozen=True)
class Card:
    """One key number.

    Attributes:
        name: What it is.
        value: The number as text.
        note: How far to trust it, or what to compare it with.
    """

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Words:
    """What stands around one figure.

    Attributes:
        shows: A sentence or two on what is seen.
        cost: What it cost.
        sure: How sure it is.
        converged: Whether all of it reached what was asked for.
        keys: Definitions that it needs.
    """

    shows: str
    cost: str
    sure: str
    converged: bool = True
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Block:
    """A figure with its words."""

    picture: Picture
    words: Words


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    key: str
    title: str
    blocks: list[Block] = field(default_factory=list)


LETTERS = {"Hessian": "H", "Gauss-Newton": "G", "residual": "H − G"}


def cards_of(analysis: Analysis) -> list[Card]:
    """Return the key numbers, with the error of each."""
    point, H, outliers = analysis.point, analysis.hessian, analysis.outliers
    cards = [Card("loss", short(point.loss), f"{short(point.num_samples)} samples")]
    if point.accuracy is not None:
        cards.append(Card("accuracy", f"{point.accuracy:.2%}", "on the data analysed"))
    cards.append(Card("‖gradient‖", short(point.gradient_norm)))
    if len(H.largest):
        residual = float(H.largest.residuals[0])
        cards.append(Card("λ₁", short(float(H.largest.values[0]), 5), f"± {short(residual, 2)}"))
    if len(H.smallest):
        residual = float(H.smallest.residuals[-1])
        value = short(float(H.smallest.values[-1]), 5)
        cards.append(Card("λ min", value, f"± {short(residual, 2)}"))
    cards.append(Card("trace", short(H.trace), _error(H.trace_stderr)))
    cards.append(Card("‖H‖ Frobenius", short(H.frobenius), _error(H.frobenius_stderr)))
    classes = outliers.num_classes
    note = "no classes" if classes is None else f"{classes} classes"
    if outliers.num_outliers:
        note = f"gap ×{outliers.gap:.2f}, {note}"
    return [*cards, Card("outliers", short(outliers.num_outliers), note)]


def _error(stderr: float) -> str:
    if math.isnan(stderr):
        return "one probe, no error"
    return "exact" if stderr == 0 else f"± {short(stderr, 2)} s.e."


def sections_of(analysis: Analysis) -> list[Section]:
    """Return every figure of an analysis with its words, in the report's order."""
    pictures = {picture.name: picture for picture in pictures_of(analysis)}
    whole = Section("whole", "The whole matrix")
    layers = Section("layer-by-layer", "Layer by layer")
    cost = Section("cost-section", "What it cost")
    homes = {"layers": layers, "kronecker": layers, "input-output-spectra": layers}
    homes |= {"block-norms": layers, "cost": cost}
    for name, picture in pictures.items():
        words = _WORDS.get(name, _spectrum)(analysis)
        homes.get(name, whole).blocks.append(Block(picture, words))
    return [section for section in (whole, layers, cost) if section.blocks]


def _spectra(analysis: Analysis) -> list[MatrixSpectrum]:
    found = (analysis.hessian, analysis.gauss_newton, analysis.residual)
    return [spectrum for spectrum in found if spectrum is not None]


def _spent(products: int, wall: float | None) -> str:
    return f"{short(products)} products, {seconds(wall)}"


def _spectrum(analysis: Analysis) -> Words:
    H = analysis.hessian
    shows = (
        f"How the {short(H.size)} eigenvalues of H are distributed. The curve is the bulk, drawn "
        f"with a width of σ = {short(H.density.sigma, 2)}; its band is two standard errors. Stems "
        "are single eigenvalues, each with its certificate and as high as one eigenvalue counts. "
        "The vertical axis is logarithmic, or nothing but the peak would be seen."
    )
    return Words(
        shows,
        _spent(H.num_products, H.seconds),
        *_trust([H]),
        ("hessian", "density", "certificate"),
    )


def _trust(spectra: list[MatrixSpectrum]) -> tuple[str, bool]:
    """Return how sure spectra are, in words, and whether all parts converged."""
    worst, poor, bands = [], [], []
    for spectrum in spectra:
        letter = LETTERS.get(spectrum.matrix, spectrum.matrix)
        ends = [pairs for pairs in (spectrum.largest, spectrum.smallest) if len(pairs)]
        residual = max((float(pairs.residuals.max()) for pairs in ends), default=0.0)
        worst.append(f"{letter} {short(residual, 2)}")
        statuses = [spectrum.status, *(pairs.status for pairs in ends)]
        texts = dict.fromkeys(status.text for status in statuses if not status)
        poor += [f"{letter}: {text}" for text in texts]
        probes, steps = spectrum.density.nodes.shape
        band = f"{probes} probe{'s' if probes > 1 else ''} of {steps} steps"
        bands.append(band if probes > 1 else f"{band}, so there is no band")
    text = f"Largest residual of the ends: {', '.join(worst)}. "
    text += f"Density from {'; '.join(dict.fromkeys(bands))}."
    return " ".join([*poor, text]), not poor


def _log(analysis: Analysis) -> Words:
    spectra = _spectra(analysis)
    shows = (
        "The same eigenvalues by magnitude, each density one of log |λ|, drawn with a width of "
        f"σ = {short(analysis.hessian.log_density.sigma, 2)}. Discs are the largest eigenvalues, "
        "circles the smallest. What lies below the resolution of the method gathers in a lump at "
        "the left end of a curve; its place says little, its weight is right."
    )
    total, wall = sum(s.num_products for s in spectra), sum(s.seconds for s in spectra)
    cost = f"no further product for H; {_spent(total, wall)} for all of them"
    return Words(shows, cost, *_trust(spectra), ("density", "gauss-newton", "residual-matrix"))


def _three(analysis: Analysis) -> Words:
    spectra = _spectra(analysis)
    shows = (
        "H is the sum of G, which the linearised network has, and of H − G, which the network's "
        "own curvature adds. On the same axes one sees which of the two makes the outliers, and "
        "which the negative eigenvalues. Zooming one panel zooms all."
    )
    total, wall = sum(s.num_products for s in spectra), sum(s.seconds for s in spectra)
    keys = ("hessian", "gauss-newton", "residual-matrix")
    return Words(shows, _spent(total, wall), *_trust(spectra), keys)


def _scree(analysis: Analysis) -> Words:
    outliers = analysis.outliers
    shows = "The largest eigenvalues by rank, their residuals as error bars."
    if outliers.num_classes is not None:
        shows += (
            " Dotted lines stand after C − 1 and C eigenvalues, where classifiers often have a gap."
        )
    if outliers.num_outliers:
        shows += (
            f" The widest gap, a factor {outliers.gap:.2f}, comes after {outliers.num_outliers}."
        )
    else:
        shows += " No gap reaches a factor 1.5, so nothing is called an outlier."
    if outliers.num_outliers == 0:
        sure = outliers.status.text
    elif outliers.is_certain:
        sure = "The gap is certain: the intervals λ ± residual on its two sides do not touch."
    else:
        sure = "The gap is not certain: the intervals λ ± residual on its two sides touch."
    good = bool(outliers.status) and (outliers.is_certain or outliers.num_outliers == 0)
    return Words(shows, _reused(outliers.num_products), sure, good, ("outliers", "certificate"))


def _reused(products: int) -> str:
    return f"{short(products)} products" if products else "no further product"


def _gradient(analysis: Analysis) -> Words:
    overlap = analysis.gradient_overlap
    shows = (
        "How much of the gradient lies in the space of the first j eigenvectors of H; the dashed "
        "line is what a random direction would have."
    )
    sure = overlap.status.text
    keys = ("gradient-overlap",)
    return Words(shows, _reused(overlap.num_products), sure, bool(overlap.status), keys)


def _layer_trust(analysis: Analysis) -> tuple[str, bool]:
    layers = analysis.layers
    if layers is None:
        return "", True
    poor = [row.name for row in layers.layers if not row.converged]
    if poor:
        shown = ", ".join(poor[:5]) + (", …" if len(poor) > 5 else "")
        return f"{len(poor)} of {len(layers.layers)} layers did not converge: {shown}.", False
    return layers.status.text, bool(layers.status)


def _sizes(analysis: Analysis) -> Words:
    layers = analysis.layers
    cost = "" if layers is None else _spent(layers.num_products, layers.seconds)
    shows = (
        "Each layer's own block of the Hessian: its largest eigenvalue with its residual, its "
        "trace with two standard errors, and about how many eigenvalues of that size it holds."
    )
    keys = ("hessian", "certificate", "stable-rank")
    return Words(shows, cost, *_layer_trust(analysis), keys)


def _kronecker(analysis: Analysis) -> Words:
    shows = (
        "How near each block is to the Kronecker product of its output and input statistics: the "
        "overlap of their top eigenspaces, the relative error of the whole matrix, and how near "
        "the top eigenvectors (the first one filled) are to rank one. Colours run from the first "
        "layer to the last."
    )
    sure, good = _layer_trust(analysis)
    keys = ("kronecker", "overlap", "rank-one")
    return Words(shows, "part of the layers' cost", sure, good, keys)


def _factors(analysis: Analysis) -> Words:
    shows = (
        "Eigenvalues of the two Kronecker factors of each layer. One large eigenvalue of E[xxᵀ] "
        "means that the inputs have a large mean; E[M] has about as many large ones as there are "
        "classes. Colours run from the first layer to the last."
    )
    sure = "Both matrices are formed and diagonalised exactly, up to rounding."
    return Words(shows, "part of the layers' cost", sure, True, ("inputs", "outputs"))


def _blocks(analysis: Analysis) -> Words:
    blocks = analysis.blocks
    shows = (
        "How strongly the parameters of one layer are coupled with those of another, on a "
        "logarithmic ramp of colours. The diagonal holds the layers' own blocks."
    )
    relative = (blocks.stderr / blocks.values)[blocks.values > 0]
    worst = float(relative.max()) if relative.numel() else 0.0
    sure = blocks.status.text
    if worst > 0 and math.isfinite(worst):
        sure += f" The largest standard error is {worst:.0%} of its norm."
    wall = analysis.stage_seconds.get("block norms")
    cost = _spent(blocks.num_products, wall) if wall else _reused(blocks.num_products)
    return Words(shows, cost, sure, bool(blocks.status), ("block-norms", "standard-error"))


def _cost(analysis: Analysis) -> Words:
    total = sum(analysis.stage_seconds.values())
    planned = sum(stage.seconds for stage in analysis.plan.stages)
    shows = (
        f"Seconds that were predicted before it ran, and seconds it took: {seconds(planned)} "
        f"planned, {seconds(total)} measured, on {analysis.plan.device}."
    )
    sure = "Predictions come from a few timed products; wall time depends on the machine's load."
    return Words(shows, _spent(analysis.num_products, total), sure, True, ("product",))


_WORDS: dict[str, Callable[[Analysis], Words]] = {
    "hessian-spectrum": _spectrum,
    "log-spectrum": _log,
    "three-matrices": _three,
    "top-eigenvalues": _scree,
    "gradient-overlap": _gradient,
    "layers": _sizes,
    "kronecker": _kronecker,
    "input-output-spectra": _factors,
    "block-norms": _blocks,
    "cost": _cost,
}


def facts_of(analysis: Analysis) -> dict[str, str]:
    """Return facts about model and data for the head of the page."""
    facts = dict(analysis.description)
    point = analysis.point
    facts.setdefault("parameters", short(point.num_parameters))
    facts.setdefault("samples", short(point.num_samples))
    return facts
