"""The report: one HTML file that opens from disk, with no network, on any screen and on paper."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch
from pathlib import Path
from typing import Any

from eigenscape.analyses import Analysis
from eigenscape.errors import WrongTypeError, require_packages
from eigenscape.records import Record, Table, seconds, short, size, table_of, write_bytes
from eigenscape.report._definitions import DEFINITIONS, NAMES
from eigenscape.report._plotly import palettes, plots
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
from eigenscape.runs import FIGURES, commit, device_of, kind_of, now, seconds_of, versions

_HERE = Path(__file__).parent
_SHOWN = 20
_ROWS = 200  # of tables that stand alone
_MOST_CARDS = 8
_ERRORS = ("residual", "s.e.", "stderr")


@dataclass(frozen=True)
class Sheet:
    """A table that stands alone, after the figures.

    Attributes:
        key: Its anchor.
        title: What it shows.
        table: Columns of equal length.
    """

    key: str
    title: str
    table: Table


@dataclass(frozen=True)
class Page:
    """Everything that the template lays out.

    Attributes:
        title: What the page is about.
        kicker: What kind of page it is.
        facts: Facts for its head, by name.
        findings: Sentences.
        cards: Key numbers.
        sections: Figures with their words.
        sheets: Tables after the figures.
    """

    title: str
    kicker: str
    facts: dict[str, str]
    findings: Sequence[str]
    cards: list[Card]
    sections: list[Section]
    sheets: list[Sheet] = field(default_factory=list)


def write_report(
    record: Record,
    path: str | os.PathLike[str],
    *,
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """Write the page of a record as one self-contained HTML file.

    It holds plotly.js itself (about 5 MB) and loads nothing. Where `figures/` stands beside it, as
    in a run folder, each figure links to its PNG and PDF.

    Args:
        record: Any record; that of `analyze` has words around each figure.
        path: The file to write; its folder is made if it is not there.
        settings: Plain values to note under "Provenance", e.g. the command line.

    Returns:
        The path.

    Raises:
        WrongTypeError: If it is no record.
    """
    if not isinstance(record, Record):
        raise WrongTypeError(
            f"`write_report(record)` must be a record; got {type(record).__name__}."
        )
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    html = _render(page_of(record), record, file.parent, dict(settings or {}))
    write_bytes(file, html.encode())
    return file


@singledispatch
def page_of(record: Record) -> Page:
    """Return the page of a record; `page_of.register` gives a class of records one of its own."""
    words = Words("", f"{short(record.num_products)} products", str(record.status))
    kind = " ".join(kind_of(record).split("-"))
    blocks = [
        Block(picture, replace(words, shows=picture.shows or f"{picture.title}."))
        for picture in record.pictures()
    ]
    return Page(
        title=str(getattr(record, "title", "") or kind.capitalize()),
        kicker="Report",
        facts={},
        findings=record.remarks(),
        cards=_cards_of_values(record),
        sections=[Section("figures", "Figures", blocks)] if blocks else [],
        sheets=[Sheet("numbers", "Numbers", table_of(record))],
    )


def _cards_of_values(record: Record) -> list[Card]:
    """Return the numbers of a record that has one row of them."""
    table = table_of(record)
    if any(len(column) != 1 for column in table.values()):
        return []
    return [
        Card(name.replace("_", " "), short(value))
        for name, (value,) in table.items()
        if isinstance(value, int | float)
    ][:_MOST_CARDS]


@page_of.register
def _(analysis: Analysis) -> Page:
    return Page(
        title=analysis.title or "Curvature",
        kicker="Curvature report",
        facts=facts_of(analysis),
        findings=analysis.findings,
        cards=cards_of(analysis),
        sections=sections_of(analysis),
        sheets=[
            Sheet("failed", "What failed", failures_of(analysis)),
            Sheet("self-test", "Is it the matrix of your function?", tests_of(analysis)),
        ],
    )


def _render(page: Page, record: Record, folder: Path, settings: dict[str, Any]) -> str:
    """Fill the template; everything that comes from records is escaped by it."""
    require_packages("write_report(...)", "plotly", "jinja2")
    import jinja2
    from plotly.offline import get_plotlyjs

    pictures = [block.picture for section in page.sections for block in section.blocks]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    used = {
        key for section in page.sections for block in section.blocks for key in block.words.keys
    }
    return environment.get_template("report.html").render(
        parts=page,
        sections=[
            {"key": section.key, "title": section.title, "figures": _figures(section, folder)}
            for section in page.sections
        ],
        record=record,
        poor=_doubts(page.sections),
        failed=list(record.failures) if isinstance(record, Analysis) else [],
        untested=record.remarks()[1:] if isinstance(record, Analysis) else [],
        layers=_layer_table(record),
        sheets=[
            {"key": sheet.key, "title": sheet.title, "cells": cells(sheet.table, shown=_ROWS)}
            for sheet in page.sheets
            if any(sheet.table.values())
        ],
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
    entries = []
    for block in section.blocks:
        picture = block.picture
        files = [f"{FIGURES}/{picture.name}.{ending}" for ending in ENDINGS]
        entries.append(
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
    return entries


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
    packages = {name: version for name, version in versions().items()}
    facts = {
        "written": now().replace("T", " ").replace("+00:00", " UTC"),
        "device": device_of(record),
        "seed": str(record.seed),
        "products": short(record.num_products),
        "time": seconds(seconds_of(record)),
        **packages,
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
