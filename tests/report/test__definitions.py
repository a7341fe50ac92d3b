"""Every word of the report is defined once, and every definition is of use."""

import html
import re

import pytest

from eigenscape.report._definitions import DEFINITIONS, NAMES, Definition
from eigenscape.report._sections import sections_of
from tests.report import samples


def complaints(definitions: tuple[Definition, ...], wanted: set[str]) -> list[str]:
    """Say what is wrong with definitions for a page that needs some."""
    keys = [definition.key for definition in definitions]
    return [
        *(f"{key} twice" for key in set(keys) if keys.count(key) > 1),
        *(f"{key} missing" for key in wanted - set(keys)),
        *(f"{key} for nothing" for key in set(keys) - wanted),
        *(f"{key} is no anchor" for key in keys if not re.fullmatch(r"[a-z]+(-[a-z]+)*", key)),
        *(
            f"{d.key}: {name} is empty or padded"
            for d in definitions
            for name in ("name", "text", "formula", "source")
            if not getattr(d, name) or getattr(d, name) != getattr(d, name).strip()
        ),
        *(f"{d.key}: no sentence" for d in definitions if not d.text.endswith(".")),
        *(f"{d.key}: no year" for d in definitions if not re.search(r"\b(19|20)\d\d\b", d.source)),
        *(f"{d.key}: {d.formula!r} is no line" for d in definitions if "\n" in d.formula),
    ]


def wanted() -> set[str]:
    sections = sections_of(samples.analysis(n=40))
    return {key for section in sections for block in section.blocks for key in block.words.keys}


def test_what_figures_need_is_defined_once_and_nothing_else() -> None:
    assert complaints(DEFINITIONS, wanted()) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ((*DEFINITIONS, DEFINITIONS[0]), "hessian twice"),
        (DEFINITIONS[1:], "hessian missing"),
        ((*DEFINITIONS, Definition("new", "N", "T.", "f", "A, 2020")), "new for nothing"),
        ((*DEFINITIONS, Definition("Ü x", "N", "T.", "f", "A, 2020")), "Ü x is no anchor"),
        ((*DEFINITIONS[1:], Definition("hessian", "", "T.", "f", "A, 2020")), "name is empty"),
        ((*DEFINITIONS[1:], Definition("hessian", "N", "T", "f", "A")), "no year"),
    ],
)
def test_every_complaint_is_made(changed: tuple[Definition, ...], said: str) -> None:
    assert any(said in complaint for complaint in complaints(changed, wanted()))


def test_names_are_found_by_key() -> None:
    assert len(NAMES) == len(DEFINITIONS)
    for definition in DEFINITIONS:
        assert NAMES[definition.key] == definition.name


def test_texts_are_plain_and_not_escaped_twice() -> None:
    for definition in DEFINITIONS:
        for text in (definition.name, definition.text, definition.formula, definition.source):
            assert html.unescape(text) == text
