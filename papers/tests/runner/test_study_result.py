"""A study's report, and what its pictures need that others do not: matrices and many panels."""

import dataclasses
import json
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from eigenscape.records import Axis, Line, Panel, Picture, Raster, Status
from eigenscape.records.pictures import raster_limits
from eigenscape.report import write_report
from eigenscape.report._matplotlib import make_figure, size_of
from eigenscape.report._plotly import plots
from eigenscape.runs import read_run
from eigenscape_papers.runner import Measured, Sheet, StudyResult
from tests.report.samples import NASTY
from tests.report.test_page import Page

PASSES, FAILS = "wu.fig20.logit-clusters", "wu.fig20.centres"
VALUES = ((1.0, 10.0, 100.0), (0.0, math.nan, -5.0))


def line(title: str = "") -> Panel:
    return Panel([Line((1.0, 2.0), (3.0, 4.0), "hessian", "mean")], Axis("k"), Axis("y"), title)


def matrix(**options: object) -> Panel:
    return Panel([Raster(VALUES, "share", **options)], Axis("i"), Axis("j", downward=True), "M")


def study(**changes: object) -> StudyResult:
    result = StudyResult(
        status=Status(True, "Everything converged."),
        num_products=7,
        seed=0,
        study="wu-clusters",
        paper="Wu",
        where="Figs 1, 2",
        title="Is it so?",
        scale="paper",
        settings={"num_pairs": 60, "networks 1": "F-12^2"},
        measured={PASSES: Measured(0.9), FAILS: Measured(0.1, 0.02)},
        figures=(
            Picture("curve", "A curve", (line("a"), matrix(limits=(0.0, 1.0))), shows="It rises."),
        ),
        sheets=(Sheet("layers", "Every layer", {"layer": ("fc1", "fc2"), "sd": (0.25, None)}),),
        notes=("Smaller than in the paper.",),
        seconds=2.0,
        device="CPU",
    )
    return dataclasses.replace(result, **changes)


# --- the record and its report -------------------------------------------------------------------


def test_a_row_for_each_claim() -> None:
    table = {name: list(column) for name, column in study().columns().items()}
    assert table["id"][:2] == [PASSES, FAILS]
    assert table["verdict"] == ["agrees", "differs", "not run", "not run", "not run"]
    assert table["ours"] == [0.9, 0.1, None, None, None]
    assert table["spread"][:2] == [None, 0.02]
    assert table["kind"][:2] == ["measured", "measured"]
    assert [bool(text) for text in table["explanation"]] == [False, True, False, False, False]
    assert all(table["says"])
    assert list(study().to_frame()["id"]) == table["id"]
    assert study().summary == "1 of 2 claims that were measured agree with the paper."


def test_a_study_that_no_claims_are_known_of_is_still_a_record() -> None:
    record = study(study="mine-x")
    assert record.findings == ()
    assert record.measured[PASSES] == Measured(0.9)


def test_the_report_holds_claims_tables_and_pictures(tmp_path: Path) -> None:
    page = Page(write_report(study(), tmp_path / "report.html", settings={"scale": "laptop"}))
    text = page.text
    for words in (
        "Is it so?",
        "Wu, Figs 1, 2",
        "1 of 2 claims that were measured agree",
        "Smaller than in the paper.",
        "wu.fig21.class-clusters",
        "mean cosine of the logit centres",
        "≥ 0.5",
        "Every layer",
        "A curve",
        "It rises.",
        "F-12^2",
    ):
        assert words in text, words
    assert "None" not in text
    assert page.data["figures"].keys() == {"curve"}
    assert len(page.data["figures"]["curve"]) == 2
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert len(set(page.ids)) == len(page.ids)
    assert page.loads == []


def test_text_is_escaped(tmp_path: Path) -> None:
    panel = dataclasses.replace(line(NASTY), marks=[Raster(VALUES, NASTY)])
    record = study(
        where=NASTY,
        title=NASTY,
        notes=(NASTY,),
        settings={NASTY: NASTY},
        figures=(Picture("p", NASTY, (panel,), shows=NASTY),),
        sheets=(Sheet("s", NASTY, {NASTY: (NASTY,)}),),
    )
    path = write_report(record, tmp_path / "report.html")
    source = path.read_text(encoding="utf-8")
    assert "<script>alert" not in source
    assert source.count("</script>") == 3
    assert Page(path).text.count(NASTY) > 6


def test_a_study_without_pictures_or_claims_has_a_report(tmp_path: Path) -> None:
    record = study(study="mine-x", figures=(), sheets=(), notes=())
    page = Page(write_report(record, tmp_path / "report.html"))
    assert "Claims of the paper" not in page.text
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)


def test_a_study_is_saved_and_read_as_a_run(tmp_path: Path) -> None:
    record = study()
    record.save(tmp_path / "run")
    again = read_run(tmp_path / "run").record
    assert isinstance(again, StudyResult)
    assert again.measured == record.measured
    assert again.findings == record.findings
    assert again.sheets == record.sheets
    assert (tmp_path / "run" / "figures" / "curve.png").is_file()


# --- matrices ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (-5.0, 100.0)),
        ({"log": True}, (1.0, 100.0)),
        ({"limits": (0.0, 1.0)}, (0.0, 1.0)),
        ({"limits": (0.1, 10.0), "log": True}, (0.1, 10.0)),
    ],
)
def test_colours_span_what_is_shown(
    options: dict[str, object], expected: tuple[float, float]
) -> None:
    panel = matrix(**options)
    assert raster_limits(panel.marks[0]) == expected
    picture = Picture("m", "M", (panel,))
    figure = make_figure(picture)
    figure.draw_without_rendering()
    image = figure.axes[0].images[0]
    assert isinstance(image.norm, LogNorm) == bool(options.get("log"))
    assert image.get_clim() == expected
    np.testing.assert_array_equal(np.ma.getdata(image.get_array()), VALUES)
    assert figure.axes[1].get_ylabel() == "share"
    plt.close(figure)
    (trace,) = plots(picture)[0]["data"]
    ends = [math.log10(v) for v in expected] if options.get("log") else list(expected)
    assert [trace["zmin"], trace["zmax"]] == ends
    assert trace["type"] == "heatmap"
    if options.get("log"):
        assert trace["z"] == [[0.0, 1.0, 2.0], [None, None, None]]
    else:
        assert trace["z"] == [[1.0, 10.0, 100.0], [0.0, None, -5.0]]
    json.dumps(plots(picture), allow_nan=False)


@pytest.mark.parametrize("values", [((2.0, 2.0),), ((math.nan,),), ((0.0, 0.0),)])
@pytest.mark.parametrize("log", [False, True])
def test_matrices_of_one_value_or_none_are_drawn(
    values: tuple[tuple[float, ...], ...], log: bool
) -> None:
    mark = Raster(values, "share", log=log)
    low, high = raster_limits(mark)
    assert low < high
    picture = Picture("m", "M", (Panel([mark], Axis(), Axis()),))
    make_figure(picture).draw_without_rendering()
    plt.close("all")
    json.dumps(plots(picture), allow_nan=False)


def test_the_first_row_is_on_top() -> None:
    picture = Picture("m", "M", (matrix(),))
    bottom, top = make_figure(picture).axes[0].get_ylim()
    plt.close("all")
    assert bottom > top
    assert plots(picture)[0]["layout"]["yaxis"]["autorange"] == "reversed"


# --- many panels ---------------------------------------------------------------------------------


def rows_of(figure: Figure) -> list[int]:
    """Return how many panels stand in each row, from the top."""
    figure.draw_without_rendering()
    heights = [round(axes.get_position().y1, 2) for axes in figure.axes]
    return [heights.count(y) for y in sorted(set(heights), reverse=True)]


@pytest.mark.parametrize(
    ("count", "rows"),
    [(1, [1]), (3, [3]), (4, [2, 2]), (5, [3, 2]), (6, [3, 3]), (7, [3, 3, 1]), (10, [2] * 5)],
)
def test_more_than_three_panels_wrap_into_rows(count: int, rows: list[int]) -> None:
    picture = Picture("p", "P", tuple(line(f"panel {i}") for i in range(count)))
    figure = make_figure(picture)
    assert rows_of(figure) == rows
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [panel.title for panel in picture.panels]
    plt.close(figure)
    assert len(plots(picture)) == count


def test_pairs_of_panels_stand_side_by_side() -> None:
    pairs = tuple(line(f"layer {i // 2}") for i in range(6))
    for picture in (Picture("p", "P", pairs), Picture("p", "P", (line(),) * 6, across=2)):
        figure = make_figure(picture)
        assert rows_of(figure) == [2, 2, 2]


def test_more_rows_are_higher_and_no_wider() -> None:
    sizes = [size_of(Picture("p", "P", (line(),) * count)) for count in (3, 6, 9)]
    assert len({width for width, _ in sizes}) == 1
    heights = [height for _, height in sizes]
    assert heights[0] < heights[1] < heights[2]
    assert heights[1] > 1.5 * heights[0]
