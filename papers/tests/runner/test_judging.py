"""A new claim is judged from the tables of our own records, in copies of them."""

import dataclasses
import json
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch

from eigenscape.errors import FileError
from eigenscape_papers.runner import (
    Measured,
    Sheet,
    Study,
    Workshop,
    all_findings,
    judge_stored,
    parse_claims,
    read_result,
    read_results,
    results_folder,
    run_study,
)
from eigenscape_papers.runner.tables import read_number
from eigenscape_papers.studies import STUDIES
from papers.tests.conftest import shrunk_study

NAME = "dong-binary"
NEW = """
[[claim]]
id = "dong.fig10.mse.start"
kind = "measured"
where = "Fig. 10"
says = "ratio of the blocks with squared errors, at the start"
theirs = "about 0.3"
low = 0.01
reason = "made up"
number = { table = "scores", column = "hidden: off / diagonal", rows = ROWS, take = "mean" }

[[claim]]
id = "dong.fig10.none"
kind = "measured"
where = "Fig. 10"
says = "ratio of each layer"
theirs = "1"
low = 0.5
reason = "made up"
"""
ROWS = '{ loss = "squared errors", passes = 0 }'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in results_folder().glob(f"{NAME}*.json"):
        shutil.copy(path, tmp_path)
    return tmp_path


def with_claims(more: str, rows: str = ROWS) -> Study:
    """Return the study as a copy of its file with more claims makes it."""
    file = files("eigenscape_papers") / "dong" / "claims" / f"{NAME}.toml"
    claims = parse_claims(file.read_text("utf-8") + more.replace("ROWS", rows), "copy.toml")
    return dataclasses.replace(STUDIES[NAME], claims=claims)


def content(folder: Path, scale: str = "paper") -> Any:
    return json.loads((folder / f"{NAME}-{scale}.json").read_text("utf-8"))


def test_a_new_claim_is_judged_from_the_tables_of_each_record(folder: Path) -> None:
    study, before = with_claims(NEW), content(folder)
    outcomes = {(one.id, one.record): one for one in judge_stored(study, folder)}
    for scale in ("laptop", "paper"):
        result = read_result(folder / f"{NAME}-{scale}.json", pictures=False)
        columns = result.sheets[0].columns
        rows = zip(*columns.values(), strict=True)
        start = [row[3] for row in rows if row[:2] == ("squared errors", 0)]
        assert len(start) == 5  # one for each seed
        expected = torch.tensor(start, dtype=torch.float64)
        mine = result.measured["dong.fig10.mse.start"]
        assert mine == Measured(float(expected.mean()), float(expected.std()))
        assert outcomes["dong.fig10.mse.start", f"{NAME}-{scale}"].measured == mine
        missing = outcomes["dong.fig10.none", f"{NAME}-{scale}"]
        assert missing.measured is None
        lacks = "tables: scores; no table has a number for each layer"
        assert missing.why == f"it has no `number`; {lacks}"
    after = content(folder)
    entry = after.pop("judged")["dong.fig10.mse.start"]
    assert after == before  # provenance, numbers and tables are those of the run
    assert entry.keys() == {"ours", "spread", "says", "number", "date", "commit"}
    assert entry["says"] == "ratio of the blocks with squared errors, at the start"
    (finding, other) = all_findings([study], read_results(folder, pictures=False))[-2:]
    assert (finding.status, finding.scale, other.status) == ("pass", "paper", "not run")


def test_what_was_judged_is_judged_anew_only_where_the_claim_asks_for_something_else(
    folder: Path,
) -> None:
    judge_stored(with_claims(NEW), folder)
    first = content(folder)
    assert [one.id for one in judge_stored(with_claims(NEW), folder)] == ["dong.fig10.none"] * 2
    assert content(folder) == first
    judge_stored(with_claims(NEW, '{ loss = "cross-entropy", passes = 0 }'), folder)
    second = content(folder)
    entries = [each["judged"]["dong.fig10.mse.start"] for each in (first, second)]
    assert entries[0]["ours"] != entries[1]["ours"]
    assert second["result"] == first["result"]


def test_what_the_study_measured_itself_goes_before_what_was_judged(folder: Path) -> None:
    path = folder / f"{NAME}-paper.json"
    ours = read_result(path, pictures=False).measured
    known = next(iter(ours))
    changed = content(folder) | {"judged": {known: {"ours": 99.0, "spread": None}}}
    path.write_text(json.dumps(changed))
    assert read_result(path, pictures=False).measured == ours


def test_a_study_takes_the_number_from_its_tables_when_it_runs(empty_shop: Workshop) -> None:
    wrong = NEW.replace("hidden: off", "hidden: of").replace("mse.start", "mse.typo")
    claims = with_claims(NEW.rpartition("[[claim]]")[0] + wrong.rpartition("[[claim]]")[0]).claims
    result = run_study(dataclasses.replace(shrunk_study(NAME), claims=claims), empty_shop)
    columns = result.sheets[0].columns
    start = columns["hidden: off / diagonal"][:2]
    assert (columns["loss"][:2], columns["passes"][:2]) == (("squared errors",) * 2, (0, 0))
    number = result.measured["dong.fig10.mse.start"]
    assert number == Measured.over(start)
    (note,) = [note for note in result.notes if "typo" in note]
    assert "dong.fig10.mse.typo was not measured: the table 'scores' has no" in note


TABLE = Sheet("t", "T", {"layer": ("a", "a", "b"), "x": (1.0, 3.0, 5), "y": (1.0, None, 2.0)})


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        ({"rows": {"layer": "b"}}, Measured(5.0)),
        ({"rows": {"layer": "a"}, "take": "mean"}, Measured.over([1.0, 3.0])),
        ({"rows": {"layer": "a"}, "take": "least"}, Measured(1.0)),
        ({"take": "largest"}, Measured(5.0)),
    ],
)
def test_numbers_in_tables(number: dict[str, Any], expected: Measured) -> None:
    assert read_number([TABLE], {"table": "t", "column": "x", **number}) == expected


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ({"table": "s"}, r"no table 's' among \['t'\]"),
        ({"column": "z"}, r"has no \['z'\], but \['layer', 'x', 'y'\]"),
        ({"rows": {"seed": 1}}, r"has no \['seed'\]"),
        ({"rows": {"layer": "c"}}, r"must be numbers; there are \[\]"),
        ({"column": "y", "take": "mean"}, r"must be numbers; there are \[1.0, None, 2.0\]"),
        ({"rows": {"layer": "a"}}, "must be one row; there are 2. Give `take`"),
    ],
)
def test_where_no_number_stands(number: dict[str, Any], words: str) -> None:
    with pytest.raises(FileError, match=words):
        read_number([TABLE], {"table": "t", "column": "x", **number})


def test_what_studies_keep_has_the_name_that_they_say() -> None:
    parts = results_folder().parent / "parts" / "measured"
    assert {path.name for path in parts.iterdir()} <= {study.keeps for study in STUDIES.values()}
