import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch

from eigenscape_papers.runner import Measured, Outcome, Workshop, run_study, write_result
from eigenscape_papers.studies import STUDIES
from tests.cli.conftest import Cli

CLAIMS = [claim for study in STUDIES.values() for claim in study.claims]
COUNTED = [claim for claim in CLAIMS if claim.kind == "measured"]
FAILS = "thesis.theorem4.4.2.rows"
PASSES = "wu.theorem4.1.space"


@pytest.fixture
def records(cli: Cli, tmp_path: Path) -> Path:
    """Write a result of wu-two-layer in which one claim passes and one fails."""
    numbers = {PASSES: Measured(0.9995, 0.0001), FAILS: Measured(0.83)}
    study = dataclasses.replace(
        STUDIES["wu-two-layer"], measure=lambda setting, shop: Outcome(numbers)
    )
    result = run_study(study, Workshop(tmp_path, torch.device("cpu")), scale="paper")
    write_result(result, "papers/results/studies")
    return tmp_path / "papers" / "results" / "studies"


def test_every_claim_is_listed(cli: Cli, records: Path) -> None:
    result = cli("claims")
    assert result.exit_code == 0
    for claim in CLAIMS:
        assert re.search(rf"^ *{re.escape(claim.id)} ", result.stdout, re.MULTILINE), claim.id
    assert f"measured: 1 pass, 1 fail, {len(COUNTED) - 2} not run" in result.stdout
    for kind in ("revised", "identity", "ours"):
        count = sum(claim.kind == kind for claim in CLAIMS)
        assert f"{kind}: 0 pass, 0 fail, {count} not run" in result.stdout


def test_json_is_complete_and_valid(cli: Cli, records: Path) -> None:
    found = json.loads(
        cli("claims", "--json").stdout, parse_constant=lambda name: pytest.fail(f"{name}")
    )
    assert [entry["id"] for entry in found] == [claim.id for claim in CLAIMS]
    keys = {"id", "paper", "where", "theirs", "ours", "spread", "status", "scale", "reason"}
    assert all(keys <= entry.keys() for entry in found)
    assert [entry["kind"] for entry in found] == [claim.kind for claim in CLAIMS]
    by_id = {entry["id"]: entry for entry in found}
    assert by_id[PASSES]["status"] == "pass"
    assert (by_id[PASSES]["ours"], by_id[PASSES]["spread"]) == (0.9995, 0.0001)
    assert by_id[PASSES]["scale"] == "paper"
    assert by_id[FAILS]["status"] == "fail"
    assert "errata" in by_id[FAILS]["reason"] + by_id[FAILS]["known"]


def test_failed_and_paper_choose(cli: Cli, records: Path) -> None:
    failed = json.loads(cli("claims", "--failed", "--json").stdout)
    assert [entry["id"] for entry in failed] == [FAILS]
    for paper in ("wu", "Thesis"):
        chosen = json.loads(cli("claims", "--paper", paper, "--json").stdout)
        expected = [c.id for c in CLAIMS if c.id.startswith(f"{paper.lower()}.")]
        assert [entry["id"] for entry in chosen] == expected
    assert json.loads(cli("claims", "--paper", "wu", "--failed", "--json").stdout) == []
    nothing = cli("claims", "--paper", "wu", "--failed")
    assert nothing.exit_code == 0
    assert "measured: 0 pass, 0 fail, 0 not run" in nothing.stdout


def test_unknown_papers_are_refused(cli: Cli) -> None:
    result = cli("claims", "--paper", "thesys")
    assert result.exit_code == 2
    assert "'thesis'" in result.stderr


def test_results_may_lie_elsewhere(cli: Cli, records: Path) -> None:
    records.rename(records.parent / "other")
    result = cli("claims", "--results", "papers/results/other", "--failed", "--json")
    assert [entry["id"] for entry in json.loads(result.stdout)] == [FAILS]
    empty = cli("claims", "--results", "nowhere")
    assert empty.exit_code == 0
    assert f"measured: 0 pass, 0 fail, {len(COUNTED)} not run" in empty.stdout


def test_damaged_results_are_refused(cli: Cli, records: Path) -> None:
    next(records.glob("*.json")).write_text("{")
    result = cli("claims")
    assert result.exit_code == 2
    assert "wu-two-layer-paper.json is no result of a study" in result.stderr


def test_the_pages_are_written(cli: Cli, records: Path) -> None:
    result = cli("claims", "--page", "docs/papers")
    assert result.exit_code == 0, result.output
    assert result.stdout == "Scoreboard: docs/papers/index.md\n"
    text = Path("docs/papers/index.md").read_text()
    assert "**2 claims were measured: 1 agree, 1 differ;**" in text
    assert f"| `{FAILS}`" in Path("docs/papers/wu-two-layer.md").read_text()


def test_a_study_is_chosen_and_judged(cli: Cli, records: Path) -> None:
    chosen = json.loads(cli("claims", "wu-two-layer", "--json").stdout)
    assert {entry["id"] for entry in chosen} == {c.id for c in STUDIES["wu-two-layer"].claims}
    refused = cli("claims", "wu-two-layers")
    assert (refused.exit_code, "'wu-two-layer'" in refused.stderr) == (2, True)
    # None of its claims says where its number stands, and the record has no table.
    before = (records / "wu-two-layer-paper.json").read_text()
    text = " ".join(cli("claims", "wu-two-layer", "--judge").stdout.split())
    assert "No claim was judged" in text
    assert "it has no `number`; tables: none; no table has a number for each layer" in text
    assert (records / "wu-two-layer-paper.json").read_text() == before
    assert json.loads(cli("claims", "wu-two-layer", "--judge", "--json").stdout) == chosen


def test_help_has_an_example(cli: Cli) -> None:
    text = cli("claims", "--help").stdout
    assert re.search(r"Examples:\n    eigenscape claims", text)
