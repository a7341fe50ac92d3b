"""The words of an analysis' report: what each figure shows, what it cost, how sure it is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from eigenscape.analyses import Analysis, GradientOverlap, LayerCurvature, MatrixSpectrum, Outliers
from eigenscape.linalg import BlockNorms
from eigenscape.records import Picture, Record, Table, seconds, short


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
    """Return the key numbers that are there, with the error of each."""
    point, H, outliers = analysis.point, analysis.hessian, analysis.outliers
    cards = []
    if point is not None:
        cards.append(Card("loss", short(point.loss), f"{short(point.num_samples)} samples"))
        if point.accuracy is not None:
            cards.append(Card("accuracy", f"{point.accuracy:.2%}", "on the data analysed"))
        cards.append(Card("‖gradient‖", short(point.gradient_norm)))
    if H is not None:
        cards += _spectrum_cards(H)
    if outliers is not None:
        classes = outliers.num_classes
        note = "no classes" if classes is None else f"{classes} classes"
        if outliers.num_outliers:
            note = f"gap ×{outliers.gap:.2f}, {note}"
        cards.append(Card("outliers", short(outliers.num_outliers), note))
    return cards


def _spectrum_cards(H: MatrixSpectrum) -> list[Card]:
    cards = []
    if len(H.largest):
        residual = float(H.largest.residuals[0])
        cards.append(Card("λ₁", short(float(H.largest.values[0]), 5), f"± {short(residual, 2)}"))
    if len(H.smallest):
        residual = float(H.smallest.residuals[-1])
        value = short(float(H.smallest.values[-1]), 5)
        cards.append(Card("λ min", value, f"± {short(residual, 2)}"))
    cards.append(Card("trace", short(H.trace), _error(H.trace_stderr)))
    return [*cards, Card("‖H‖ Frobenius", short(H.frobenius), _error(H.frobenius_stderr))]


def _error(stderr: float) -> str:
    if math.isnan(stderr):
        return "one probe, no error"
    return "exact" if stderr == 0 else f"± {short(stderr, 2)} s.e."


def sections_of(analysis: Analysis) -> list[Section]:
    """Return every figure of an analysis with its words, in the report's order."""
    whole_matrix = Section("whole", "The whole matrix")
    layers = Section("layer-by-layer", "Layer by layer")
    cost = Section("cost-section", "What it cost")
    homes = {"layers": layers, "kronecker": layers, "input-output-spectra": layers}
    homes |= {"block-norms": layers, "cost": cost}
    words = _words_of(analysis)
    for picture in analysis.pictures():
        block = Block(picture, words[picture.name])
        homes.get(picture.name, whole_matrix).blocks.append(block)
    return [section for section in (whole_matrix, layers, cost) if section.blocks]


def _words_of(analysis: Analysis) -> dict[str, Words]:
    """Return the words of all parts that are there, by the names of their pictures."""
    words = {"cost": _cost(analysis)}
    spectra = analysis.spectra()
    if analysis.hessian is not None:
        words["hessian-spectrum"] = _spectrum(analysis.hessian)
    if spectra:
        words |= {"log-spectrum": _log(spectra), "three-matrices": _three(spectra)}
    if analysis.outliers is not None:
        words["top-eigenvalues"] = _scree(analysis.outliers)
    if analysis.gradient_overlap is not None:
        words["gradient-overlap"] = _gradient(analysis.gradient_overlap)
    if analysis.layers is not None:
        words |= {"layers": _sizes(analysis.layers), "kronecker": _kronecker(analysis.layers)}
        words["input-output-spectra"] = _factors()
    if analysis.blocks is not None:
        words["block-norms"] = _blocks(analysis.blocks, analysis.stage_seconds.get("block norms"))
    return words


def _spent(products: int, wall: float | None) -> str:
    return f"{short(products)} products, {seconds(wall)}"


def _spectrum(H: MatrixSpectrum) -> Words:
    shows = (
        f"How the {short(H.size)} eigenvalues of H are distributed. The curve is the bulk, drawn "
        f"with a width of σ = {short(H.density.sigma, 2)}; its band is two standard errors. Stems "
        "are single eigenvalues, each with its certificate and as high as one eigenvalue counts. "
        "The vertical axis is logarithmic; on a linear one only the peak would be visible."
    )
    return Words(
        shows,
        _spent(H.num_products, H.seconds),
        *_trust([H]),
        ("hessian", "density", "certificate"),
    )


def _trust(spectra: Sequence[MatrixSpectrum]) -> tuple[str, bool]:
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
        bands.append(f"{probes} probe{'s' if probes > 1 else ''} of {steps} steps")
    text = f"Largest residual of the eigenpairs: {', '.join(worst)}. "
    text += f"Density from {'; '.join(dict.fromkeys(bands))}."
    return " ".join([*poor, text]), not poor


def _log(spectra: Sequence[MatrixSpectrum]) -> Words:
    shows = (
        "The same eigenvalues by magnitude, each density one of log |λ|, drawn with a width of "
        f"σ = {short(spectra[0].log_density.sigma, 2)}. Discs are the largest eigenvalues, "
        "circles the smallest. Eigenvalues below the resolution of the method form one peak "
        "at the left end of a curve, whose weight is right and whose position is not."
    )
    total, wall = sum(s.num_products for s in spectra), sum(s.seconds for s in spectra)
    name = LETTERS.get(spectra[0].matrix, spectra[0].matrix)
    cost = f"no further product for {name}; {_spent(total, wall)} for all of them"
    return Words(shows, cost, *_trust(spectra), ("density", "gauss-newton", "residual-matrix"))


def _three(spectra: Sequence[MatrixSpectrum]) -> Words:
    shows = (
        "H is the sum of G, which the linearised network has, and of H − G, which the network's "
        "own curvature adds. On the same axes one sees which of the two makes the outliers, and "
        "which the negative eigenvalues. Zooming one panel zooms all."
    )
    total, wall = sum(s.num_products for s in spectra), sum(s.seconds for s in spectra)
    keys = ("hessian", "gauss-newton", "residual-matrix")
    return Words(shows, _spent(total, wall), *_trust(spectra), keys)


def _scree(outliers: Outliers) -> Words:
    shows = "The largest eigenvalues by rank, their residuals as error bars."
    if outliers.num_classes is not None:
        shows += (
            " Dotted lines stand after C − 1 and C eigenvalues, where classifiers often have a gap."
        )
    good, sure = bool(outliers.status), outliers.status.text
    if not outliers.num_outliers:
        shows += " No gap stands out, so nothing is called an outlier."
    else:
        shows += (
            f" The widest gap, a factor {outliers.gap:.2f}, comes after {outliers.num_outliers}."
        )
        good = good and outliers.is_certain
        certain, touch = ("", "do not touch") if outliers.is_certain else ("not ", "touch")
        sure = f"The gap is {certain}certain: the intervals λ ± residual on its two sides {touch}."
    return Words(shows, _reused(outliers.num_products), sure, good, ("outliers", "certificate"))


def _reused(products: int) -> str:
    return f"{short(products)} products" if products else "no further product"


def _gradient(overlap: GradientOverlap) -> Words:
    shows = (
        "How much of the gradient lies in the space of the first j eigenvectors of H; the dashed "
        "line is what a random direction would have."
    )
    sure = overlap.status.text
    keys = ("gradient-overlap",)
    return Words(shows, _reused(overlap.num_products), sure, bool(overlap.status), keys)


def _layer_trust(layers: LayerCurvature) -> tuple[str, bool]:
    poor = [row.name for row in layers.layers if not row.converged]
    if poor:
        shown = ", ".join(poor[:5]) + (", …" if len(poor) > 5 else "")
        return f"{len(poor)} of {len(layers.layers)} layers did not converge: {shown}.", False
    return layers.status.text, bool(layers.status)


def _sizes(layers: LayerCurvature) -> Words:
    shows = (
        "Each layer's own block of the Hessian: its largest eigenvalue with its residual, its "
        "trace with two standard errors, and about how many eigenvalues of that size it holds."
    )
    keys = ("hessian", "certificate", "stable-rank")
    cost = _spent(layers.num_products, layers.seconds)
    return Words(shows, cost, *_layer_trust(layers), keys)


def _kronecker(layers: LayerCurvature) -> Words:
    shows = (
        "How near each block is to the Kronecker product of its output and input statistics: the "
        "overlap of their top eigenspaces, the relative error of the whole matrix, and how near "
        "the top eigenvectors (the first one filled) are to rank one. Colours run from the first "
        "layer to the last."
    )
    sure, good = _layer_trust(layers)
    keys = ("kronecker", "overlap", "rank-one")
    return Words(shows, "part of the layers' cost", sure, good, keys)


def _factors() -> Words:
    shows = (
        "Eigenvalues of the two Kronecker factors of each layer. One large eigenvalue of E[xxᵀ] "
        "means that the inputs have a large mean; E[M] has about as many large ones as there are "
        "classes. Colours run from the first layer to the last."
    )
    sure = "Both matrices are formed and diagonalised exactly, up to rounding."
    return Words(shows, "part of the layers' cost", sure, True, ("inputs", "outputs"))


def _blocks(blocks: BlockNorms, wall: float | None) -> Words:
    shows = (
        "How strongly the parameters of one layer are coupled with those of another, on a "
        "logarithmic ramp of colours. The diagonal holds the layers' own blocks."
    )
    relative = (blocks.stderr / blocks.values)[blocks.values > 0]
    worst = float(relative.max()) if relative.numel() else 0.0
    sure = blocks.status.text
    if worst > 0 and math.isfinite(worst):
        sure += f" The largest standard error is {worst:.0%} of its norm."
    cost = _spent(blocks.num_products, wall) if wall else _reused(blocks.num_products)
    return Words(shows, cost, sure, bool(blocks.status), ("block-norms", "standard-error"))


def _cost(analysis: Analysis) -> Words:
    total = sum(analysis.stage_seconds.values())
    planned = sum(stage.seconds for stage in analysis.plan.stages)
    limits = "".join(f" {limit}" for limit in analysis.plan.limits)
    shows = (
        f"Seconds that were predicted before it ran, and seconds it took: {seconds(planned)} "
        f"planned, {seconds(total)} measured, on {analysis.plan.device}.{limits}"
    )
    sure = "Predictions come from a few timed products; wall time depends on the machine's load."
    return Words(shows, _spent(analysis.num_products, total), sure, True, ("product",))


def facts_of(analysis: Analysis) -> dict[str, str]:
    """Return facts about model and data for the head of the page."""
    facts = dict(analysis.description)
    facts.setdefault("parameters", short(analysis.plan.num_parameters))
    if analysis.subsample is not None:
        facts["looked at"] = str(analysis.subsample)
    if analysis.point is not None:
        facts.setdefault("samples", short(analysis.point.num_samples))
    return facts


def failures_of(analysis: Analysis) -> Table:
    """Return the parts that failed, with the reasons."""
    return {"part": list(analysis.failures), "reason": list(analysis.failures.values())}


def tests_of(analysis: Analysis) -> Table:
    """Return what the comparison of each matrix with differences of the function said."""
    records: dict[str, Record | None] = {
        LETTERS.get(record.matrix, record.matrix): record for record in analysis.spectra()
    }
    records["blocks of layers"] = analysis.layers
    records["norms between layers"] = analysis.blocks
    records["H of other samples"] = analysis.other_samples
    there = {name: record for name, record in records.items() if record is not None}
    rows = [(name, test) for name, record in there.items() for test in record.self_tests]
    return {
        "matrix": [name for name, _ in rows],
        "verdict": [test.verdict for _, test in rows],
        "reason": [test.text for _, test in rows],
    }
