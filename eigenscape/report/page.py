"""The report: one HTML file that opens from disk, with no network, on any screen and on paper."""

import json
import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, singledispatch
from pathlib import Path
from typing import Any

from eigenscape.errors import (
    InvalidArgumentError,
    UnknownNameError,
    WrongTypeError,
    near_matches,
    require_packages,
)
from eigenscape.records import Picture, Record, Table, seconds, short, table_of, write_bytes
from eigenscape.report._plotly import palettes, plots
from eigenscape.report.figures import ENDINGS
from eigenscape.runs import FIGURES, commit, device_of, kind_of, now, seconds_of, versions

_HERE = Path(__file__).parent
_SHOWN = 20
_ROWS = 200  # of tables that stand alone
_MOST_CARDS = 8
_ERRORS = ("residual", "s.e.", "stderr")


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
class Section:
    """A part of the page: figures, and a table below them where one is wanted.

    Attributes:
        title: Its title; its anchor follows from it.
        pictures: The figures, each with the words around it.
        sheet: A table of all rows.
    """

    title: str
    pictures: Sequence[Picture]
    sheet: Sheet | None = None

    @property
    def key(self) -> str:
        """Its anchor."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")


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
        failed: Names of what failed; the sheet "failed" says why.
        untested: Doubts about matrices; the sheet "self-test" has all verdicts.
        provenance: Facts for its end, beside those of every record.
        defines_all: Whether all definitions stand on it, or those only that its figures name.
    """

    title: str
    kicker: str
    facts: dict[str, str]
    findings: Sequence[str]
    cards: list[Card]
    sections: list[Section]
    sheets: list[Sheet] = field(default_factory=list)
    failed: Sequence[str] = ()
    untested: Sequence[str] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    defines_all: bool = False


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
        record: Any record.
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
    kind = " ".join(kind_of(record).split("-"))
    pictures = [
        replace(
            picture,
            shows=picture.shows or f"{picture.title}.",
            sure=picture.sure or str(record.status),
            cost=picture.cost or f"{short(record.num_products)} products",
        )
        for picture in record.pictures()
    ]
    return Page(
        title=str(getattr(record, "title", "") or kind.capitalize()),
        kicker="Report",
        facts={},
        findings=record.remarks(),
        cards=_cards_of_values(record),
        sections=sections_of(pictures),
        sheets=[Sheet("numbers", "Numbers", table_of(record))],
    )


def sections_of(pictures: Sequence[Picture]) -> list[Section]:
    """Return pictures by the sections they name, in their order; "Figures" where they name none."""
    titles = dict.fromkeys(picture.section or "Figures" for picture in pictures)
    return [
        Section(title, [p for p in pictures if (p.section or "Figures") == title])
        for title in titles
    ]


@cache
def definitions() -> dict[str, dict[str, str]]:
    """Return what the words of a report mean, each with its name, formula and source, by key."""
    entries = tomllib.loads((_HERE / "definitions.toml").read_text(encoding="utf-8"))
    return {key: {"key": key, **entry} for key, entry in entries.items()}


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


def _render(page: Page, record: Record, folder: Path, settings: dict[str, Any]) -> str:
    """Fill the template; everything that comes from records is escaped by it."""
    require_packages("write_report(...)", "plotly", "jinja2")
    import jinja2
    from plotly.offline import get_plotlyjs

    pictures = [picture for section in page.sections for picture in section.pictures]
    for picture in pictures:
        _require_words(picture)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    terms = {term for picture in pictures for term in picture.terms}
    return environment.get_template("report.html").render(
        parts=page,
        sections=[
            {
                "key": section.key,
                "title": section.title,
                "figures": [_figure(picture, folder) for picture in section.pictures],
                "sheet": section.sheet and _laid_out(section.sheet),
            }
            for section in page.sections
        ],
        record=record,
        poor=[picture for picture in pictures if not picture.converged],
        sheets=[_laid_out(sheet, _ROWS) for sheet in page.sheets if any(sheet.table.values())],
        definitions=[d for d in definitions().values() if page.defines_all or d["key"] in terms],
        provenance=_provenance(record) | dict(page.provenance),
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


def _require_words(picture: Picture) -> None:
    """Refuse a figure that says nothing about itself, or needs a word that is not defined."""
    missing = [name for name in ("shows", "cost") if not getattr(picture, name)]
    if missing:
        raise InvalidArgumentError(
            f"A page needs words around each figure; '{picture.name}' has no {missing[0]!r}. Give "
            f"`Picture({picture.name!r}, ..., {missing[0]}=...)` where it is made."
        )
    for term in picture.terms:
        if term not in definitions():
            raise UnknownNameError(
                f"`Picture({picture.name!r}, terms=...)` must name definitions of a report; got "
                f"{term!r}. {near_matches(term, definitions())}"
            )


def _figure(picture: Picture, folder: Path) -> dict[str, Any]:
    """Return what the template needs of a figure beside the picture."""
    files = [f"{FIGURES}/{picture.name}.{ending}" for ending in ENDINGS]
    return {
        "picture": picture,
        "sizes": [(plot["height"], plot["width"]) for plot in plots(picture)],
        "groups": picture.groups() if picture.pick else [],
        "table": cells(picture.table),
        "files": [name for name in files if (folder / name).is_file()],
        "links": [(term, definitions()[term]["name"]) for term in picture.terms],
    }


def _laid_out(sheet: Sheet, shown: int | None = None) -> dict[str, Any]:
    """Return a table for the template, all its rows or so many."""
    rows = max((len(column) for column in sheet.table.values()), default=0)
    return {
        "key": sheet.key,
        "title": sheet.title,
        "cells": cells(sheet.table, shown=rows if shown is None else shown),
    }


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


def _provenance(record: Record) -> dict[str, str]:
    facts = {
        "written": now().replace("T", " ").replace("+00:00", " UTC"),
        "device": device_of(record),
        "seed": str(record.seed),
        "products": short(record.num_products),
        "time": seconds(seconds_of(record)),
        **versions(),
    }
    if (head := commit()) is not None:
        facts["commit"] = head
    return facts


def _json(value: Any) -> str:
    """Return JSON that can stand inside a script element: no `<` at all, so no end tag either."""
    from markupsafe import Markup

    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))
