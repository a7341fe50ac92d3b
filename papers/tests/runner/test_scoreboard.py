import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from eigenscape.records import Status
from eigenscape_papers.runner import (
    Claim,
    Measured,
    Sheet,
    Study,
    StudyResult,
    read_results,
    results_folder,
    scoreboard,
    write_pages,
)
from eigenscape_papers.studies import STUDIES
from papers.tests.runner.test_results import STUDY, result_of

BARS = Claim(
    "wu.d.x",
    "Fig. 4",
    "mean of |a − b| < 1",
    "a|b",
    high=0,
    reason="|x| is no number",
    known="|x| < 1",
)
CHECK = Claim("wu.e.x", "Fig. 5", "e", "(our check)", low=0, reason="exact", kind="ours")


def wide(result: StudyResult) -> StudyResult:
    """Add a second picture, and a claim that would break a table."""
    panels = result.figures[0].panels
    more = dataclasses.replace(result.figures[0], name="q", title="Q", panels=panels * 2)
    measured = {**result.measured, "wu.d.x": Measured(1.0)}
    return dataclasses.replace(result, figures=(*result.figures, more), measured=measured)


def pages(
    folder: Path, results: list[StudyResult], *more: Claim, studies: Sequence[Study] = ()
) -> tuple[str, Path]:
    """Return the scoreboard as text, and the page of the study."""
    study = dataclasses.replace(STUDY, claims=(*STUDY.claims, *more))
    index = write_pages(studies or [study], results, folder / "docs" / "papers")
    return index.read_text(), index.with_name("wu-x.md")


BOTH = (result_of("laptop", a=3.0, b=11.0), wide(result_of("paper", a=4.0)))


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return pages(tmp_path, list(BOTH), BARS)[1]


def cells(page: Path) -> dict[str, list[str]]:
    """Return the cells of each claim's row, split as markdown does."""
    rows = [line for line in page.read_text().splitlines() if line.startswith("| `")]
    split = [re.split(r"(?<!\\)\|", row)[1:-1] for row in rows]
    return {row[0].split("`")[1]: [cell.strip() for cell in row] for row in split}


def test_every_claim_has_a_whole_row(page: Path) -> None:
    found = cells(page)
    assert list(found) == ["wu.a.x", "wu.b.x", "wu.d.x", "thesis.c.x"]
    assert [len(row) for row in found.values()] == [7, 7, 7, 4]
    assert found["wu.a.x"][1:] == ["3", "4 ± 0.5", "3 to 3", "**differs**", "measured", "paper"]
    assert found["wu.b.x"][2:] == ["11 ± 0.5", "≥ 10", "agrees", "measured", "laptop"]
    assert found["wu.d.x"][:2] == [r"`wu.d.x` (Fig. 4): mean of \|a − b\| &lt; 1", r"a\|b"]


def test_the_scoreboard_counts_measured_claims_and_has_a_row_for_each_figure(
    tmp_path: Path,
) -> None:
    more = dataclasses.replace(CHECK, id="wu.f.x", where="Fig. 4")
    again = dataclasses.replace(BARS, id="wu.g.x", theirs="b")
    text, _ = pages(tmp_path, list(BOTH), BARS, again, more)
    assert "**3 claims were measured: 1 agree, 2 differ;** 2 more were not run." in text
    assert "| ours | not the paper's: our correction, control or finding | 0 | 0 | 1 |" in text
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if "](wu-x.md)" in line]
    assert rows[0] == ["[wu-x](wu-x.md)", "X?", "1", "2", "2", "–", "–", "–"]
    assert rows[1] == [
        *("Fig. 1", "3", "4 ± 0.5", "**differs**", "paper", "measured", "[wu-x](wu-x.md)")
    ]
    assert [row[0] for row in rows[1:]] == ["Fig. 1", "Fig. 2", "Fig. 3", "Fig. 4", "Fig. 4"]
    assert rows[4][1:4] == [r"a\|b; b", "1; –", "**1 differs, 1 not run**"]
    assert rows[5][5] == "ours"


def test_long_cells_of_the_scoreboard_are_cut(tmp_path: Path) -> None:
    text, _ = pages(tmp_path, [], dataclasses.replace(BARS, theirs="long " * 30))
    (cell,) = re.findall(r"\| (long [^|]*) \|", text)
    assert cell.endswith("long…")
    assert len(cell) <= 60


def folds(page: Path) -> dict[str, str]:
    """Return what is folded away, by its title."""
    pattern = r"<details markdown=\"1\">\n<summary>(.*?)</summary>\n\n(.*?)\n\n</details>\n"
    return dict(re.findall(pattern, page.read_text(), re.DOTALL))


def test_differences_are_explained_below_the_table(page: Path) -> None:
    text = page.read_text()
    known = "\n- `wu.a.x`: not explained yet\n- `wu.d.x`: \\|x\\| &lt; 1\n"
    assert f"What is known about the differences:\n{known}" in text
    assert text.index("| `wu.d.x`") < text.index("What is known") < text.index("<details")


def test_what_was_not_run_is_folded_away(page: Path, tmp_path: Path) -> None:
    title = "1 claim was not run: not measured by what was run"
    assert folds(page)[title].splitlines()[2:] == [
        "| `thesis.c.x` (Fig. 3): c | 0 | ≤ 0 | measured |"
    ]
    _, laptop = pages(tmp_path / "laptop", [result_of("laptop", a=3.0)])
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
    _, page = pages(tmp_path, [], CHECK)
    assert "- `wu.a.x`, `wu.e.x`: exact" in folds(page)["Reasons for what is expected"]


def test_what_is_ours_holds_or_does_not(tmp_path: Path) -> None:
    result = result_of("paper", a=3.0)
    result.measured["wu.e.x"] = Measured(1.0)
    _, page = pages(tmp_path, [result], CHECK)
    assert cells(page)["wu.e.x"][4:6] == ["holds", "ours"]
    assert "agree with the paper; 1 of 1 checks of our own hold. Measured" in page.read_text()


def test_what_was_checked_at_first_stands_beside_a_revised_claim(tmp_path: Path) -> None:
    was = {"says": "the largest", "low": 0.5, "ours": 0.49}
    _, page = pages(tmp_path, [], dataclasses.replace(BARS, kind="revised", was=was))
    assert "- `wu.d.x`: the largest; ≥ 0.5; ours was 0.49\n" in page.read_text()


def test_doubts_about_a_result_stay_with_it(tmp_path: Path) -> None:
    status = Status(False, "Not everything converged: 2 pairs are poor.")
    result = dataclasses.replace(result_of("paper", a=3.0), status=status)
    text = pages(tmp_path, [result])[1].read_text()
    assert "with the paper. Not everything converged: 2 pairs are poor. Measured" in text


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
    _, page = pages(tmp_path, [result])
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
    assert shown == [f"../images/reproduction/wu-x-paper/{name}.png" for name in ("p", "q")]
    docs = page.parent.parent
    files = {f"../{p.relative_to(docs).as_posix()}" for p in docs.rglob("*.p*")}
    assert files == set(shown)


def test_figures_that_paper_scale_has_none_of_are_those_of_laptop_scale(tmp_path: Path) -> None:
    def named(scale: str, *names: str) -> StudyResult:
        result = result_of(scale, a=4.0)
        (picture,) = result.figures
        each = (dataclasses.replace(picture, name=name) for name in names)
        return dataclasses.replace(result, figures=tuple(each))

    results = [named("laptop", "fig1-small", "fig2"), named("paper", "fig1-large")]
    _, page = pages(tmp_path, results)
    shown = re.findall(r"reproduction/(.*)\.png", page.read_text())
    assert shown == ["wu-x-paper/fig1-large", "wu-x-laptop/fig2"]
    assert {f"{p.parent.name}/{p.stem}" for p in tmp_path.rglob("*.png")} == set(shown)


def test_figures_of_an_earlier_page_are_removed(page: Path) -> None:
    docs = page.parent.parent
    old = docs / "images" / "reproduction" / "wu-old-paper" / "p.png"
    old.parent.mkdir()
    old.write_bytes(b"")
    pages(docs.parent, [result_of("paper", a=4.0)])
    assert not old.exists()
    assert [p.name for p in docs.rglob("*.png")] == ["p.png"]


def test_the_same_inputs_give_the_same_bytes(page: Path, tmp_path: Path) -> None:
    _, other = pages(tmp_path / "other", list(BOTH), BARS)
    first, second = (
        {p.relative_to(path.parents[1]): p.read_bytes() for p in path.parents[1].rglob("*.*")}
        for path in (page, other)
    )
    assert first == second
    assert len(first) == 4


def test_notes_and_both_scales_are_told(page: Path) -> None:
    text = page.read_text()
    words = "claims that were measured agree with the paper. Measured on CPU in 1 s."
    assert f"*laptop*: 2 of 2 {words}" in text
    assert f"*paper*: 0 of 2 {words}" in text
    assert "> a note" in text
    assert "*P (paper scale).* It." in text


def test_what_was_put_together_has_no_time(tmp_path: Path) -> None:
    result = dataclasses.replace(result_of("paper", a=4.0), seconds=0.0, device="CPU, GPU")
    text = pages(tmp_path, [result])[1].read_text()
    assert "Measured on CPU, GPU in several runs." in text


def test_networks_of_users_are_not_on_the_pages(tmp_path: Path) -> None:
    text, page = pages(tmp_path, [result_of("own", a=3.0)])
    assert "3 more were not run" in text
    assert not list(tmp_path.rglob("*.png"))
    assert "*own*" not in page.read_text()


def test_other_pages_of_the_folder_are_left_alone(page: Path) -> None:
    (page.parent / "errata.md").write_text("by hand")
    pages(page.parents[2], [])
    assert (page.parent / "errata.md").read_text() == "by hand"


def test_the_pages_of_all_studies_without_results(tmp_path: Path) -> None:
    text, page = pages(tmp_path, [], studies=list(STUDIES.values()))
    for study in STUDIES.values():
        assert f"]({study.name}.md)" in text
        lines = page.with_name(f"{study.name}.md").read_text()
        assert lines.startswith(f"# {study.name}\n")
        assert [*cells(page.with_name(f"{study.name}.md"))] == [c.id for c in study.claims]
    widths = {len(re.split(r"(?<!\\)\|", line)) for line in text.splitlines() if line[:1] == "|"}
    assert widths == {7, 9, 10}


DOCS = Path(__file__).parents[3] / "docs" / "papers"


def test_our_pages_are_of_the_claims_and_records_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoreboard, "write_figures", lambda *_: ())
    results = read_results(results_folder())
    index = write_pages(list(STUDIES.values()), results, tmp_path / "docs" / "papers")
    for path in index.parent.glob("*.md"):
        assert (DOCS / path.name).read_text("utf-8") == path.read_text("utf-8"), path.name


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.stem)
def test_our_pages_are_short_and_their_figures_there(path: Path) -> None:
    assert len(path.read_bytes()) < 60_000
    for image in re.findall(r"!\[.*\]\((.*)\)", path.read_text("utf-8")):
        assert (path.parent / image).is_file(), image
