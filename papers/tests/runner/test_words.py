import pytest

from eigenscape.errors import FileError
from eigenscape.records import Axis, Panel
from eigenscape_papers.runner import parse_claims, picture, table
from eigenscape_papers.runner.claims import study_file
from eigenscape_papers.studies import STUDIES
from papers.tests.conftest import TINY

PANEL = Panel([], Axis("x"), Axis("y"), "one")


def test_names_stand_in_the_words_of_a_picture() -> None:
    of_cast = picture("wu-spectra.spectra", [PANEL], TINY, layer="fc1")
    assert of_cast.name == "spectra-f-12x2"
    assert of_cast.title == "Spectra of E[M] and of the layer's Hessian, fc1 of F-12^2 (digits)"
    assert of_cast.shows.startswith("The two spectra fall alike")
    assert of_cast.panels == (PANEL,)
    assert picture("wu-rank.rank", [PANEL], TINY).name == f"rank-{TINY.key[:-11]}"
    labelled = picture("papyan-kronecker.spectra", [PANEL], "A-1 (b)")
    assert (labelled.name, labelled.title[-7:]) == ("spectra-a1b", "A-1 (b)")
    assert picture("wu-inputs.inputs", []).name == "inputs"
    with pytest.raises(KeyError, match="layer"):
        picture("wu-spectra.spectra", [], TINY)


def test_a_table_has_a_cell_for_each_column() -> None:
    columns = table("wu-approximation.fits", [range(7)], top=9).columns
    assert [*columns][-1] == "overlap of top 9"
    assert columns["networks"] == (0,)
    with pytest.raises(ValueError, match="zip"):
        table("wu-approximation.fits", [range(6)], top=9)


@pytest.mark.parametrize("name", STUDIES)
def test_words_of_pictures_and_tables_are_complete(name: str) -> None:
    words = study_file(name)
    for entry in words.get("pictures", {}).values():
        assert entry["title"]
        assert entry["shows"].endswith((".", "$grey"))
    for entry in words.get("tables", {}).values():
        assert entry["title"]
        assert len(set(entry["columns"])) == len(entry["columns"])


@pytest.mark.parametrize("kind", ["pictures", "tables"])
def test_other_words_are_refused(kind: str) -> None:
    with pytest.raises(FileError, match=rf"x.toml, \[{kind}.a\]: a key must be .*'caption'"):
        parse_claims(f"[{kind}.a]\ncaption = 'b'", "x.toml")
