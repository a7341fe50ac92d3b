"""The report as text: self-contained, escaped, complete, whatever the analysis lacks."""

import dataclasses
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from eigenscape.errors import InvalidArgumentError, UnknownNameError, WrongTypeError
from eigenscape.linalg import trace
from eigenscape.operator import Dense
from eigenscape.records import Axis, Panel, Picture, Record, Status
from eigenscape.report import Page as PageOf
from eigenscape.report import Section, cells, page_of, write_figures, write_report
from eigenscape.report.page import definitions
from tests.report import samples


class Page(HTMLParser):
    """Collects ids, links, text and the embedded data of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(path.read_text(encoding="utf-8"))
        self.data = json.loads(self.scripts[0])
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self._inside = tag
        if "id" in values:
            self.ids.append(values["id"] or "")
        if tag == "a":
            self.links.append(values["href"] or "")
        self.loads += [values[name] or "" for name in ("src", "srcset", "poster") if name in values]
        if tag == "link":
            self.loads.append(values.get("href") or "")
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    folder = tmp_path_factory.mktemp("page")
    record = samples.analysis(n=40)
    path = write_report(record, folder / "new" / "report.html", settings={"command": "<b>&"})
    torch.set_default_dtype(before)
    return Page(path)


def test_nothing_is_loaded_from_anywhere(page: Page) -> None:
    assert page.loads == []
    assert all(link.startswith("#") for link in page.links)
    assert len(page.scripts) == 3


def test_every_anchor_resolves_and_every_id_is_unique(page: Page) -> None:
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert len(set(page.ids)) == len(page.ids)


def test_the_verdict_comes_first_and_every_figure_has_its_words(page: Page) -> None:
    text = page.text
    verdict = text.index("The loss is nearly flat but for 9 directions")
    assert verdict < text.index("accuracy") < text.index("The whole matrix")
    figures = page.data["figures"]
    assert len(figures) == 10
    for word in ("How sure", "Cost", "Defined", "Numbers"):
        assert page.texts.count(word) == 10, word
    assert "<b>&" in text  # the settings, escaped on the way


def test_key_numbers_carry_their_errors(page: Page) -> None:
    assert re.search(r"λ₁ 11 ± \S+", page.text)
    assert "98.70%" in page.text
    assert "gap ×3.20, 10 classes" in page.text
    assert "trace" in page.text


def test_colours_of_both_themes_are_known(page: Page) -> None:
    text = json.dumps(page.data["figures"])
    used = {token.split("/")[0] for token in re.findall(r'"@([^"]+)"', text)}
    assert used
    for theme in ("light", "dark"):
        assert used <= set(page.data["palettes"][theme])


def test_text_of_records_is_escaped_everywhere(tmp_path: Path) -> None:
    nasty = samples.NASTY
    record = samples.analysis(n=40, names=[nasty, "b"], title=nasty, findings=(nasty,))
    record = dataclasses.replace(record, description={nasty: nasty})
    path = write_report(record, tmp_path / "report.html", settings={nasty: nasty})
    source = path.read_text(encoding="utf-8")
    assert "<script>alert" not in source
    assert source.count("</script>") == 3
    found = Page(path)
    assert found.text.count(nasty) > 8
    ticks = found.data["figures"]["layers"][0]["layout"]["yaxis"]["ticktext"]
    assert ticks[0].startswith("&lt;script&gt;")


@pytest.mark.parametrize("make", [samples.tiny, samples.training])
def test_what_is_missing_is_left_out(make: object, tmp_path: Path) -> None:
    found = Page(write_report(make(), tmp_path / "report.html"))
    assert {link[1:] for link in found.links if link.startswith("#")} <= set(found.ids)
    assert "None" not in found.text
    assert "nan" not in found.text.split()


def test_doubts_are_marked(tmp_path: Path) -> None:
    record = samples.analysis(n=40)
    poor = dataclasses.replace(record.hessian.largest, status=samples.POOR)
    record = dataclasses.replace(record, hessian=dataclasses.replace(record.hessian, largest=poor))
    text = Page(write_report(record, tmp_path / "report.html")).text
    assert "Not everything reached what was asked for" in text
    assert "H: 2 of 5 residuals are above the tolerance." in text


def test_layers_that_did_not_converge_are_named(tmp_path: Path) -> None:
    record = samples.analysis(n=40, layers=samples.layer_curvature(["x", "y"], converged=False))
    assert (
        "2 of 2 layers did not converge: x, y."
        in Page(write_report(record, tmp_path / "r.html")).text
    )


def test_files_are_linked_where_they_are(tmp_path: Path) -> None:
    record = samples.tiny()
    write_figures(record, tmp_path / "figures")
    found = Page(write_report(record, tmp_path / "report.html"))
    files = [link for link in found.links if not link.startswith("#")]
    assert len(files) == 12
    assert all((tmp_path / link).is_file() for link in files)


def test_tables_show_twenty_rows_and_count_the_rest() -> None:
    table = cells({"rank": list(range(23)), "name": ["x"] * 23, "residual": [1.23456e-7] * 23})
    assert (len(table["rows"]), table["left"]) == (20, 3)
    assert table["numeric"] == [True, False, True]
    assert table["rows"][1] == ["1", "x", "1.2 × 10⁻⁷"]
    assert cells({})["rows"] == []


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongTypeError, match="must be a record; got dict"):
        write_report({}, tmp_path / "r.html")


def test_every_record_has_a_page(tmp_path: Path) -> None:
    path = write_report(trace(Dense(torch.eye(2)), num_products=2), tmp_path / "r.html")
    page = path.read_text(encoding="utf-8")
    assert "Trace estimate" in page
    assert "Numbers" in page


# --- words around a figure -----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Speechless(Record):
    """A record with a page of its own whose one figure is as it is handed in."""

    picture: Picture


@page_of.register
def _(record: Speechless) -> PageOf:
    return PageOf("T", "K", {}, [], [], [Section("Figures", [record.picture])])


PLAIN = Picture("dots", "Dots", [Panel([], Axis(), Axis())])


@pytest.mark.parametrize("words", [{}, {"shows": "Dots."}, {"cost": "1 product"}])
def test_a_figure_without_words_is_refused(words: dict[str, str], tmp_path: Path) -> None:
    record = Speechless(Status(True, "Good."), 0, 0, dataclasses.replace(PLAIN, **words))
    missing = "cost" if "shows" in words else "shows"
    with pytest.raises(InvalidArgumentError, match=rf"'dots' has no '{missing}'. Give `Picture"):
        write_report(record, tmp_path / "r.html")


def test_a_term_that_nobody_defined_is_refused(tmp_path: Path) -> None:
    picture = dataclasses.replace(PLAIN, shows="Dots.", cost="None.", terms=("hesian",))
    record = Speechless(Status(True, "Good."), 0, 0, picture)
    with pytest.raises(UnknownNameError, match=r"got 'hesian'.*hessian"):
        write_report(record, tmp_path / "r.html")


def test_a_figure_that_says_nothing_has_the_title_and_the_status_of_its_record() -> None:
    record = trace(Dense(torch.eye(2)), num_products=2)
    (section,) = page_of(record).sections
    (picture,) = section.pictures
    assert (section.title, section.key) == ("Figures", "figures")
    assert (picture.shows, picture.cost) == (f"{picture.title}.", f"{record.num_products} products")
    assert picture.sure == str(record.status)


def complaints(entries: dict[str, dict[str, str]], wanted: set[str]) -> list[str]:
    """Say what is wrong with definitions for a page that needs some."""
    fields = {"key", "name", "text", "formula", "source"}
    return [
        *(f"{key} missing" for key in wanted - set(entries)),
        *(f"{key} for nothing" for key in set(entries) - wanted),
        *(f"{key} is no anchor" for key in entries if not re.fullmatch(r"[a-z]+(-[a-z]+)*", key)),
        *(f"{key}: {odd}" for key, entry in entries.items() if (odd := set(entry) ^ fields)),
        *(
            f"{key}: {name} is empty, padded or escaped"
            for key, entry in entries.items()
            for name, value in entry.items()
            if not value or value != value.strip() or html.unescape(value) != value
        ),
        *(f"{key}: no sentence" for key, d in entries.items() if not d["text"].endswith(".")),
        *(
            f"{key}: no year"
            for key, d in entries.items()
            if not re.search(r"\b(19|20)\d\d\b", d["source"])
        ),
        *(f"{key}: no line" for key, d in entries.items() if "\n" in d["formula"]),
    ]


def wanted() -> set[str]:
    return {term for picture in samples.analysis(n=40).pictures() for term in picture.terms}


def test_what_figures_need_is_defined_once_and_nothing_else() -> None:
    assert complaints(definitions(), wanted()) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hessian": None}, "hessian missing"),
        ({"new": {}}, "new for nothing"),
        ({"Ü x": {}}, "Ü x is no anchor"),
        ({"hessian": {"name": ""}}, "name is empty"),
        ({"hessian": {"text": "&amp;."}}, "text is empty, padded or escaped"),
        ({"hessian": {"source": "A"}}, "no year"),
        ({"hessian": {"text": "T"}}, "no sentence"),
        ({"hessian": {"more": "T"}}, "hessian: {'more'}"),
    ],
)
def test_every_complaint_is_made(changed: dict[str, dict[str, str] | None], said: str) -> None:
    entries = dict(definitions())
    for key, fields in changed.items():
        if fields is None:
            entries.pop(key)
        else:
            base = {"key": key, "name": "N", "text": "T.", "formula": "f", "source": "A, 2020"}
            entries[key] = base | fields
    assert any(said in complaint for complaint in complaints(entries, wanted()))
