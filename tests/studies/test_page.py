import dataclasses
import re
from pathlib import Path

import pytest

from eigenscape.records import Status
from eigenscape.report import Sheet, StudyResult
from eigenscape.studies import STUDIES, Claim, Measured, write_page
from tests.studies.test_results import STUDY, result_of

BARS = Claim(
    "wu.d.x",
    "Fig. 4",
    "mean of |a − b| < 1",
    "a|b",
    high=0,
    why="|x| is no number",
    known="|x| < 1",
)
CHECK = Claim("wu.e.x", "Fig. 5", "e", "(our check)", low=0, why="exact")


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
    assert list(found) == ["wu.a.x", "wu.b.x", "wu.d.x", "thesis.c.x"]
    assert [len(row) for row in found.values()] == [6, 6, 6, 3]
    assert found["wu.a.x"][1:] == ["3", "4 ± 0.5", "3 to 3", "**differs**", "paper"]
    assert found["wu.b.x"][2:] == ["11 ± 0.5", "≥ 10", "agrees", "laptop"]
    assert found["wu.d.x"][:2] == [r"`wu.d.x` (Fig. 4): mean of \|a − b\| &lt; 1", r"a\|b"]


def test_contents_count_the_claims_of_each_study(page: Path) -> None:
    (row,) = [line for line in page.read_text().splitlines() if "](#wu-x)" in line]
    assert row.endswith("| 1 | 2 | 1 | – |")
    assert "\n## wu-x\n" in page.read_text()


def folds(page: Path) -> dict[str, str]:
    """Return what is folded away, by its title."""
    pattern = r"<details markdown=\"1\">\n<summary>(.*?)</summary>\n\n(.*?)\n\n</details>\n"
    return dict(re.findall(pattern, page.read_text(), re.DOTALL))


def test_differences_are_explained_below_the_table(page: Path) -> None:
    text = page.read_text()
    known = "\n- `wu.a.x`: not explained yet\n- `wu.d.x`: \\|x\\| &lt; 1\n"
    assert f"What is known about the differences:\n{known}" in text
    assert "4 claims: 1 agree, 2 differ, 1 have not been run.\n" in text
    assert text.index("| `wu.d.x`") < text.index("What is known") < text.index("<details")


def test_what_was_not_run_is_folded_away(page: Path, tmp_path: Path) -> None:
    title = "1 claim was not run: not measured by what was run"
    assert folds(page)[title].splitlines()[2:] == ["| `thesis.c.x` (Fig. 3): c | 0 | ≤ 0 |"]
    laptop = write_page([STUDY], [result_of("laptop", a=3.0)], tmp_path / "laptop.md")
    words = "2 claims were not run: 1 at a scale that was not run, 1 not measured by what was run"
    assert words in folds(laptop)
    assert "What is known" not in laptop.read_text()


def test_every_tolerance_has_its_reason(page: Path) -> None:
    assert folds(page)["Reasons for what is expected"].splitlines() == [
        "- `wu.a.x`: exact",
        "- `wu.b.x`: round",
        "- `thesis.c.x`: sign",
        r"- `wu.d.x`: \|x\| is no number",
    ]


def test_a_reason_of_several_claims_is_given_once(tmp_path: Path) -> None:
    study = dataclasses.replace(STUDY, claims=(*STUDY.claims, CHECK))
    page = write_page([study], [], tmp_path / "page.md")
    assert "- `wu.a.x`, `wu.e.x`: exact" in folds(page)["Reasons for what is expected"]


def test_checks_of_our_own_are_counted_apart(tmp_path: Path) -> None:
    study = dataclasses.replace(STUDY, claims=(*STUDY.claims, CHECK))
    result = result_of("paper", a=3.0)
    held = CHECK.judge(Measured(1.0), scale="paper")
    result = dataclasses.replace(result, findings=(*result.findings, held))
    page = write_page([study], [result], tmp_path / "page.md")
    text = page.read_text()
    assert (
        "3 claims: 1 agree, 0 differ, 2 have not been run. "
        "1 checks of our own: 1 hold, 0 do not, 0 have not been run." in text
    )
    assert "| 1 | 0 | 2 | 1 of 1 |" in text
    assert cells(page)["wu.e.x"][4] == "holds"
    assert "agree with the paper; 1 of 1 checks of our own hold. Measured" in text


def test_doubts_about_a_result_stay_with_it(tmp_path: Path) -> None:
    status = Status(False, "7 of 9 claims agree. Not everything converged: 2 pairs are poor.")
    result = dataclasses.replace(result_of("paper", a=3.0), status=status)
    text = write_page([STUDY], [result], tmp_path / "page.md").read_text()
    assert "with the paper. Not everything converged: 2 pairs are poor. Measured" in text
    assert "7 of 9" not in text


def sheet_of(rows: int, columns: int) -> Sheet:
    values = {f"c|{j}": tuple(j + i / 3 for i in range(rows)) for j in range(columns)}
    return Sheet("s", "Numbers", values)


@pytest.mark.parametrize(
    ("rows", "columns", "title"),
    [
        (40, 9, None),
        (41, 2, "Numbers (paper scale): the first 40 of 41 rows"),
        (3, 10, "Numbers (paper scale)"),
    ],
)
def test_short_tables_are_shown_and_long_ones_folded(
    tmp_path: Path, rows: int, columns: int, title: str | None
) -> None:
    result = dataclasses.replace(result_of("paper", a=3.0), sheets=(sheet_of(rows, columns),))
    page = write_page([STUDY], [result], tmp_path / "page.md")
    table = (
        folds(page)[title] if title else page.read_text().partition("*Numbers (paper scale)*")[2]
    )
    lines = [line for line in table.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + min(rows, 40)
    assert lines[0].startswith(r"| c\|0 | c\|1 |")
    assert lines[3].startswith("| 0.3333 | 1.333 |")


def test_tables_say_what_is_not_there(page: Path) -> None:
    assert "*S (paper scale)*\n\n| layer | sd |\n| --- | --- |\n| fc1 | – |\n| fc2 | 0.1 |" in (
        page.read_text()
    )


def test_images_are_there_and_each_is_shown_once(page: Path) -> None:
    shown = re.findall(r"!\[.*\]\((.*)\)", page.read_text())
    assert shown == [f"images/reproduction/wu-x-paper/{name}.png" for name in ("p", "q")]
    files = {p.relative_to(page.parent).as_posix() for p in page.parent.rglob("*.p*")}
    assert files == set(shown)


def test_figures_that_paper_scale_has_none_of_are_those_of_laptop_scale(tmp_path: Path) -> None:
    def named(scale: str, *names: str) -> StudyResult:
        result = result_of(scale, a=4.0)
        (picture,) = result.pictures
        each = (dataclasses.replace(picture, name=name) for name in names)
        return dataclasses.replace(result, pictures=tuple(each))

    results = [named("laptop", "fig1-small", "fig2"), named("paper", "fig1-large")]
    page = write_page([STUDY], results, tmp_path / "page.md")
    shown = re.findall(r"reproduction/(.*)\.png", page.read_text())
    assert shown == ["wu-x-paper/fig1-large", "wu-x-laptop/fig2"]
    assert {f"{p.parent.name}/{p.stem}" for p in tmp_path.rglob("*.png")} == set(shown)


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
    words = "claims that were measured agree with the paper. Measured on CPU in 1 s."
    assert f"*laptop*: 2 of 2 {words}" in text
    assert f"*paper*: 0 of 2 {words}" in text
    assert "> a note" in text
    assert "*P (paper scale).* It." in text


def test_what_was_put_together_has_no_time(tmp_path: Path) -> None:
    result = dataclasses.replace(result_of("paper", a=4.0), seconds=0.0, device="CPU, GPU")
    text = write_page([STUDY], [result], tmp_path / "page.md").read_text()
    assert "Measured on CPU, GPU in several runs." in text


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
    assert widths == {5, 9}
