import dataclasses
import re
from pathlib import Path

import pytest

from eigenscape.report import StudyResult
from eigenscape.studies import STUDIES, Claim, write_page
from tests.studies.test_results import STUDY, result_of

BARS = Claim("wu.d.x", "Fig. 4", "mean of |a − b| < 1", "a|b", high=0, why="|x| is no number")


def wide(result: StudyResult) -> StudyResult:
    """Add a second picture, and a claim that would break a table."""
    panels = result.pictures[0].panels
    more = dataclasses.replace(result.pictures[0], name="q", title="Q", panels=panels * 2)
    fails = BARS.judge(None, scale="paper")
    fails = dataclasses.replace(fails, ours=1.0, status="fail")
    return dataclasses.replace(
        result, pictures=(*result.pictures, more), findings=(*result.findings, fails)
    )


@pytest.fixture
def page(tmp_path: Path) -> Path:
    study = dataclasses.replace(STUDY, claims=(*STUDY.claims, BARS))
    results = [result_of("laptop", a=3.0, b=11.0), wide(result_of("paper", a=4.0))]
    return write_page([study], results, tmp_path / "docs" / "reproduction.md")


def cells(page: Path) -> dict[str, list[str]]:
    """Return the cells of each claim's row, split as markdown does."""
    rows = [line for line in page.read_text().splitlines() if line.startswith("| `")]
    split = [re.split(r"(?<!\\)\|", row)[1:-1] for row in rows]
    return {row[0].split("`")[1]: [cell.strip() for cell in row] for row in split}


def test_every_claim_has_a_whole_row(page: Path) -> None:
    found = cells(page)
    assert list(found) == ["wu.a.x", "wu.b.x", "thesis.c.x", "wu.d.x"]
    assert {len(row) for row in found.values()} == {6}
    assert found["wu.a.x"][1:4] == ["3", "4 ± 0.5", "3 to 3"]
    assert found["wu.b.x"][2:] == ["11 ± 0.5", "≥ 10", "agrees", "laptop"]
    assert found["thesis.c.x"][2:] == ["–", "≤ 0", "not run", "–"]
    assert found["wu.d.x"][:2] == [r"`wu.d.x` (Fig. 4): mean of \|a − b\| &lt; 1", r"a\|b"]


def test_contents_count_the_claims_of_each_study(page: Path) -> None:
    (row,) = [line for line in page.read_text().splitlines() if "](#wu-x)" in line]
    assert row.endswith("| 1 | 2 | 1 |")
    assert "\n## wu-x\n" in page.read_text()


def test_failing_claims_are_marked_and_carry_their_why(page: Path) -> None:
    assert cells(page)["wu.a.x"][4] == "**differs**: exact"
    assert cells(page)["wu.d.x"][4] == r"**differs**: \|x\| is no number"
    assert "4 claims: 1 agree, 2 differ, 1 have not been run." in page.read_text()


def test_images_are_there_and_each_is_shown_once(page: Path) -> None:
    shown = re.findall(r"!\[.*\]\((.*)\)", page.read_text())
    assert shown == [f"images/reproduction/wu-x-paper/{name}.png" for name in ("p", "q")]
    files = {p.relative_to(page.parent).as_posix() for p in page.parent.rglob("*.p*")}
    assert files == set(shown)


def test_figures_of_an_earlier_page_are_removed(page: Path) -> None:
    old = page.parent / "images" / "reproduction" / "wu-old-paper" / "p.png"
    old.parent.mkdir()
    old.write_bytes(b"")
    write_page([STUDY], [result_of("paper", a=4.0)], page)
    assert not old.exists()
    assert [p.name for p in page.parent.rglob("*.png")] == ["p.png"]


def test_the_same_inputs_give_the_same_bytes(page: Path, tmp_path: Path) -> None:
    study = dataclasses.replace(STUDY, claims=(*STUDY.claims, BARS))
    results = [result_of("laptop", a=3.0, b=11.0), wide(result_of("paper", a=4.0))]
    other = write_page([study], results, tmp_path / "other" / "reproduction.md")
    first = {p.relative_to(page.parent): p.read_bytes() for p in page.parent.rglob("*.*")}
    second = {p.relative_to(other.parent): p.read_bytes() for p in other.parent.rglob("*.*")}
    assert first == second
    assert len(first) == 3


def test_notes_and_both_scales_are_told(page: Path) -> None:
    text = page.read_text()
    assert "*laptop*: fine Measured on CPU in 1 s." in text
    assert "*paper*: fine" in text
    assert "> a note" in text
    assert "*P (paper scale).* It." in text


def test_networks_of_readers_are_not_on_the_page(tmp_path: Path) -> None:
    page = write_page([STUDY], [result_of("own", a=3.0)], tmp_path / "page.md")
    assert "3 have not been run" in page.read_text()
    assert not list(tmp_path.rglob("*.png"))
    assert "*own*" not in page.read_text()


def test_the_page_of_all_studies_without_results(tmp_path: Path) -> None:
    text = write_page(list(STUDIES.values()), [], tmp_path / "page.md").read_text()
    for study in STUDIES.values():
        assert f"## {study.name}\n" in text
        for claim in study.claims:
            assert f"| `{claim.id}` " in text
    widths = {len(re.split(r"(?<!\\)\|", line)) for line in text.splitlines() if line[:1] == "|"}
    assert widths == {8}
