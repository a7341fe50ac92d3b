"""The report as text: self-contained, escaped, complete, whatever the analysis lacks."""

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from eigenscape.errors import WrongTypeError
from eigenscape.linalg import trace
from eigenscape.operator import Dense
from eigenscape.report import cells, write_figures, write_report
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
