"""The page of an analysis: facts, key numbers, what failed and what was not tested."""

import dataclasses
import math

from eigenscape.analyses import Analysis, MatrixSpectrum, letter_of
from eigenscape.records import Record, Table, short, size, table_of
from eigenscape.report.page import Card, Page, Section, Sheet, page_of, sections_of


@page_of.register
def _(analysis: Analysis) -> Page:
    return Page(
        title=analysis.title or "Curvature",
        kicker="Curvature report",
        facts=facts_of(analysis),
        findings=analysis.findings,
        cards=cards_of(analysis),
        sections=[_with_layers(section, analysis) for section in sections_of(analysis.pictures())],
        sheets=[
            Sheet("failed", "What failed", failures_of(analysis)),
            Sheet("self-test", "Is it the matrix of your function?", verdicts_of(analysis)),
        ],
        failed=list(analysis.failures),
        untested=analysis.remarks()[1:],
        provenance=provenance_of(analysis),
        defines_all=True,
    )


def _with_layers(section: Section, analysis: Analysis) -> Section:
    """Put the table of all layers below the figures of layers."""
    layers = analysis.layers
    if layers is None or not any(picture.name == "layers" for picture in section.pictures):
        return section
    return dataclasses.replace(section, sheet=Sheet("layer-table", "All layers", table_of(layers)))


def provenance_of(analysis: Analysis) -> dict[str, str]:
    """Return what was planned to be spent."""
    budget = analysis.plan.budget
    return {
        "budget": (
            f"{budget.name}: {budget.num_pairs} largest and {budget.num_smallest} smallest pairs, "
            f"{budget.num_probes} probes of {budget.num_steps} steps"
        ),
        "planned memory": size(analysis.plan.memory_bytes),
    }


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


def verdicts_of(analysis: Analysis) -> Table:
    """Return what the comparison of each matrix with differences of the function said."""
    records: dict[str, Record | None] = {letter_of(record): record for record in analysis.spectra()}
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
