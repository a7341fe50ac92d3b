"""The report: one HTML file that opens from disk, with no network, on any screen and on paper."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eigenscape.analyses import Analysis
from eigenscape.errors import WrongTypeError
from eigenscape.files import write_bytes
from eigenscape.records import Record
from eigenscape.report._definitions import DEFINITIONS, NAMES
from eigenscape.report._folder import FIGURES
from eigenscape.report._marks import Table
from eigenscape.report._numbers import seconds, short, size
from eigenscape.report._pictures import pictures_of
from eigenscape.report._plotly import palettes, plots
from eigenscape.report._provenance import commit, device_of, now, seconds_of, versions
from eigenscape.report._sections import (
    Block,
    Card,
    Section,
    Words,
    cards_of,
    facts_of,
    failures_of,
    sections_of,
    tests_of,
)
from eigenscape.report.figures import ENDINGS
from eigenscape.report.study_result import StudyResult
from eigenscape.train import Training

_HERE = Path(__file__).parent
_SHOWN = 20
_ROWS = 200  # of tables that stand alone
_ERRORS = ("residual", "s.e.", "stderr")


@dataclass(frozen=True)
class _Parts:
    """Everything that the template lays out."""

    title: str
    kicker: str
    facts: dict[str, str]
    findings: Sequence[str]
    cards: list[Card]
    sections: list[Section]


def has_report(record: Record) -> bool:
    """Say whether there is a report of this kind of record."""
    return isinstance(record, Analysis | Training | StudyResult)


def write_report(
    analysis: Record,
    path: str | os.PathLike[str],
    *,
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """Write the report of an analysis, a training or a study as one self-contained HTML file.

    It holds plotly.js itself (about 5 MB) and loads nothing. Where `figures/` stands beside it, as
    in a run folder, each figure links to its PNG and PDF.

    Args:
        analysis: The result of `analyze`, of `fit` or of a study.
        path: The file to write; its folder is made if it is not there.
        settings: Plain values to note under "Provenance", e.g. the command line.

    Returns:
        The path.

    Raises:
        WrongTypeError: If it is another kind of record.
    """
    if not isinstance(analysis, Analysis | Training | StudyResult):
        raise WrongTypeError(
            f"`write_report(analysis)` must be an analysis, a training or a study; got "
            f"{type(analysis).__name__}. `write_figures` draws other records."
        )
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(analysis, Analysis):
        parts = _analysis_parts(analysis)
    elif isinstance(analysis, Training):
        parts = _small_parts(analysis)
    else:
        parts = _study_parts(analysis)
    html = _render(parts, analysis, place.parent, dict(settings or {}))
    write_bytes(place, html.encode())
    return place


def _analysis_parts(analysis: Analysis) -> _Parts:
    return _Parts(
        title=analysis.title or "Curvature",
        kicker="Curvature report",
        facts=facts_of(analysis),
        findings=analysis.findings,
        cards=cards_of(analysis),
        sections=sections_of(analysis),
    )


def _small_parts(training: Training) -> _Parts:
    cards = [Card("epochs", short(training.epochs_done)), Card("seeds", short(len(training.seeds)))]
    for name in ("train_loss", "train_accuracy", "test_loss", "test_accuracy"):
        curve = getattr(training, name)
        if curve is not None and curve.numel():
            known = curve[~curve.isnan().any(1)] if curve.ndim == 2 else curve
            if len(known):
                spread = f"{short(float(known[-1].min()), 3)} to {short(float(known[-1].max()), 3)}"
                note = spread if len(training.seeds) > 1 else ""
                value = short(float(known[-1].mean()))
                cards.append(Card(f"last {name.replace('_', ' ')}", value, note))
    shows = "Loss and accuracy after each epoch, one curve a seed."
    wall = f"{seconds(training.seconds)} on {training.device}"
    words = Words(shows, wall, training.status.text, bool(training.status))
    blocks = [Block(picture, words) for picture in pictures_of(training)]
    return _Parts(
        "Training",
        "Training report",
        {"recipe": training.recipe},
        [training.status.text],
        cards,
        [Section("course", "Course of the training", blocks)],
    )


def _study_parts(result: StudyResult) -> _Parts:
    words = [finding.verdict for finding in result.findings]
    cards = [Card(word, short(words.count(word))) for word in dict.fromkeys(sorted(words))]
    cards.append(Card("scale", result.scale))
    wall = f"{seconds(result.seconds or None)} on {result.device}"
    blocks = [
        Block(picture, Words(picture.shows or picture.title, wall, "; ".join(picture.notes)))
        for picture in result.pictures
    ]
    return _Parts(
        title=result.title,
        kicker=f"{result.paper}, {result.where}",
        facts={name: str(value) for name, value in result.settings.items()},
        findings=[result.status.text, *result.notes],
        cards=cards,
        sections=[Section("figures", "Figures", blocks)],
    )


def _sheets(record: Record) -> list[dict[str, Any]]:
    """Return the tables after the figures: a study's, or what failed and what was tested."""
    sheets: list[tuple[str, str, Table]] = []
    if isinstance(record, Analysis):
        sheets = [("failed", "What failed", failures_of(record))]
        sheets.append(("self-test", "Is it the matrix of your function?", tests_of(record)))
    if isinstance(record, StudyResult):
        claims = {name: list(column) for name, column in record.columns().items()}
        sheets = [("claims", "Claims of the paper", claims)] if record.findings else []
        sheets += [
            (s.name, s.title, {n: list(c) for n, c in s.columns.items()}) for s in record.sheets
        ]
    return [
        {"key": key, "title": title, "cells": cells(table, shown=_ROWS)}
        for key, title, table in sheets
        if any(table.values())
    ]


def _render(parts: _Parts, record: Record, folder: Path, settings: dict[str, Any]) -> str:
    """Fill the template; everything that comes from records is escaped by it."""
    import jinja2
    from plotly.offline import get_plotlyjs

    pictures = [block.picture for section in parts.sections for block in section.blocks]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    used = {
        key for section in parts.sections for block in section.blocks for key in block.words.keys
    }
    return environment.get_template("report.html").render(
        parts=parts,
        sections=[
            {"key": section.key, "title": section.title, "figures": _figures(section, folder)}
            for section in parts.sections
        ],
        record=record,
        poor=_doubts(parts.sections),
        failed=list(record.failures) if isinstance(record, Analysis) else [],
        untested=record.remarks()[1:] if isinstance(record, Analysis) else [],
        layers=_layer_table(record),
        sheets=_sheets(record),
        definitions=[d for d in DEFINITIONS if isinstance(record, Analysis) or d.key in used],
        provenance=_provenance(record),
        settings={name: json.dumps(value, ensure_ascii=False) for name, value in settings.items()},
        css=(_HERE / "report.css").read_text(encoding="utf-8"),
        script=(_HERE / "report.js").read_text(encoding="utf-8"),
        plotly=get_plotlyjs(),
        data=_json(
            {
                "figures": {picture.name: plots(picture) for picture in pictures},
                "palettes": palettes(pictures),
            }
        ),
    )


def _figures(section: Section, folder: Path) -> list[dict[str, Any]]:
    """Return what the template needs of each figure."""
    found = []
    for block in section.blocks:
        picture = block.picture
        files = [f"{FIGURES}/{picture.name}.{ending}" for ending in ENDINGS]
        found.append(
            {
                "name": picture.name,
                "title": picture.title,
                "words": block.words,
                "notes": picture.notes,
                "panels": [panel.title for panel in picture.panels],
                "sizes": [(plot["height"], plot["width"]) for plot in plots(picture)],
                "groups": picture.groups() if picture.pick else [],
                "linked": picture.linked,
                "table": cells(picture.table),
                "files": [name for name in files if (folder / name).is_file()],
                "links": [(key, NAMES[key]) for key in block.words.keys],
                "wide": len(picture.panels) == 1,
                "open": picture.name == "cost",
            }
        )
    return found


def cells(table: Table, shown: int = _SHOWN) -> dict[str, Any]:
    """Return the first rows of a table as text, and how many there are in all.

    Args:
        table: Columns of equal length.
        shown: Most rows to keep.

    Returns:
        A dict with `head`, `rows`, `numeric` (of each column) and `left` (rows not shown).
    """
    columns = list(table.values())
    count = max((len(column) for column in columns), default=0)
    return {
        "head": list(table),
        "rows": [
            [_cell(name, column[row]) for name, column in table.items()]
            for row in range(min(count, shown))
        ],
        "numeric": [
            all(value is None or isinstance(value, int | float) for value in column)
            for column in columns
        ],
        "left": max(count - shown, 0),
    }


def _cell(name: str, value: object) -> str:
    if isinstance(value, float) and math.isnan(value):
        return "–"
    # Nobody reads more than two digits of an error.
    return short(value, 2 if any(word in name for word in _ERRORS) else 5)


def _layer_table(record: Record) -> dict[str, Any] | None:
    if not isinstance(record, Analysis) or record.layers is None or not record.layers.layers:
        return None
    table = {name: list(column) for name, column in record.layers.columns().items()}
    return cells(table, shown=len(record.layers.layers))


def _doubts(sections: Sequence[Section]) -> list[tuple[str, str, str]]:
    """Return name, title and reason of each figure that did not reach what was asked for."""
    blocks = [block for section in sections for block in section.blocks]
    return [
        (block.picture.name, block.picture.title, block.words.sure)
        for block in blocks
        if not block.words.converged
    ]


def _provenance(record: Record) -> dict[str, str]:
    found = {name: version for name, version in versions().items()}
    facts = {
        "written": now().replace("T", " ").replace("+00:00", " UTC"),
        "device": device_of(record),
        "seed": str(record.seed),
        "products": short(record.num_products),
        "time": seconds(seconds_of(record)),
        **found,
    }
    if (head := commit()) is not None:
        facts["commit"] = head
    if isinstance(record, Analysis):
        budget = record.plan.budget
        facts["budget"] = (
            f"{budget.name}: {budget.num_pairs} largest and {budget.num_smallest} smallest pairs, "
            f"{budget.num_probes} probes of {budget.num_steps} steps"
        )
        facts["planned memory"] = size(record.plan.memory_bytes)
    return facts


def _json(value: Any) -> str:
    """Return JSON that can stand inside a script element: no `<` at all, so no end tag either."""
    from markupsafe import Markup

    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))
