"""What a run folder holds for people: a record of a user's own is drawn and has a page, too."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from eigenscape.errors import EigenscapeWarning
from eigenscape.records import Axis, Line, Panel, Picture, Record, Status
from eigenscape.report import write_files
from eigenscape.runs import read_run


@dataclass(frozen=True, eq=False)
class Course(Record):
    """A record as somebody else would write one."""

    losses: tuple[float, ...] = ()

    def pictures(self) -> tuple[Picture, ...]:
        line = Line(list(range(len(self.losses))), self.losses, "first", "loss")
        panel = Panel([line], Axis("step"), Axis("loss"))
        return (Picture("course", "Losses", [panel], {"loss": list(self.losses)}),)


@dataclass(frozen=True, eq=False)
class Plain(Record):
    """A record without a picture."""

    number: float = 0.5


def course() -> Course:
    return Course(Status(True, "Fine."), 0, 0, losses=(3.0, 2.0, 1.5))


def test_a_users_own_record_is_saved_with_its_figure_and_page(tmp_path: Path) -> None:
    folder = course().save(tmp_path / "run")
    assert {path.name for path in (folder / "figures").iterdir()} == {"course.png", "course.pdf"}
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Losses" in page
    assert read_run(folder).record.losses == (3.0, 2.0, 1.5)


def test_a_users_own_record_is_plotted() -> None:
    assert course().plot().get_ylabel() == "loss"


def test_a_record_without_pictures_has_a_page_of_its_numbers(tmp_path: Path) -> None:
    write_files(Plain(Status(True, "Fine."), 0, 0, number=0.125), tmp_path, {})
    assert not (tmp_path / "figures").exists()
    assert "0.125" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("absent", "missing"), [("matplotlib", "figures"), ("jinja2", "report.html")]
)
def test_what_cannot_be_drawn_is_left_out_with_a_word(
    absent: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.warns(
        EigenscapeWarning, match=rf"needs the package {absent}; .*eigenscape\[report\]"
    ):
        write_files(course(), tmp_path, {})
    assert not (tmp_path / missing).exists()
