import json
import math
import re
import tomllib
from pathlib import Path

import pytest
import torch

from eigenscape.errors import FileError
from eigenscape_papers.runner import (
    KINDS,
    SCALES,
    Claim,
    Measured,
    all_findings,
    claims_of,
    counts,
    parse_claims,
    read_results,
    results_folder,
    summary,
)
from eigenscape_papers.studies import STUDIES

CLAIM = Claim("wu.table6.x.ratio", "Table 6", "the ratio", "12.3", low=9.5, high=16, reason="range")
ALL = [claim for study in STUDIES.values() for claim in study.claims]
GOLDEN = Path(__file__).parent / "verdicts.json"
ENTRY = """
[texts]
round = "All printed digits."

[[claim]]
id = "wu.table6.x.ratio"
kind = "measured"
where = "Table 6"
says = "the ratio"
theirs = "12.3"
low = 9.5
high = 16
reason = { text = "round" }
known = "another seed"
scales = ["paper"]
"""


# --- judging -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "status"), [(9.5, "pass"), (16, "pass"), (9.49, "fail"), (16.01, "fail")]
)
def test_both_ends_agree(ours: float, status: str) -> None:
    finding = CLAIM.judge(Measured(ours, 0.5), scale="laptop")
    assert (finding.status, finding.ours, finding.spread) == (status, ours, 0.5)
    assert (finding.id, finding.paper, finding.where) == (CLAIM.id, "wu", "Table 6")
    assert (finding.says, finding.theirs, finding.expected) == ("the ratio", "12.3", "9.5 to 16")
    assert (finding.scale, finding.reason, finding.kind) == ("laptop", "range", "measured")


@pytest.mark.parametrize("measured", [None, Measured(math.nan, 0.1), Measured(math.inf)])
def test_what_was_not_measured_is_not_run(measured: Measured | None) -> None:
    finding = CLAIM.judge(measured, scale="paper")
    assert (finding.status, finding.ours, finding.spread) == ("not run", None, None)
    assert finding.reason == "range"


def test_a_claim_is_judged_only_where_it_is_meant_to_hold() -> None:
    claim = Claim("wu.x", "Fig. 1", "s", "t", low=0, scales=("paper",))
    assert claim.judge(Measured(1.0), scale="paper").status == "pass"
    for scale in ("laptop", "own"):
        assert claim.judge(Measured(1.0), scale=scale).status == "not run"
    assert Claim("wu.x", "Fig. 1", "s", "t").judge(Measured(1.0), scale="own").status == "pass"


@pytest.mark.parametrize(
    ("low", "high", "text", "ours"),
    [
        (-math.inf, math.inf, "any", -1e9),
        (0.25, math.inf, "≥ 0.25", 1e9),
        (-math.inf, 2.0, "≤ 2", -1e9),
        (-1, 0, "-1 to 0", -0.5),
        (25.1415, 25.1425, "25.1415 to 25.1425", 25.142),
        (1 / 3, 1 / 3, "0.3333 to 0.3333", 1 / 3),
        (1 / 3, 2 / 3, "0.3333 to 0.6667", 0.5),
    ],
)
def test_infinite_ends(low: float, high: float, text: str, ours: float) -> None:
    claim = Claim("wu.x", "Fig. 1", "s", "t", low=low, high=high)
    assert claim.expected() == text
    assert claim.judge(Measured(ours), scale="paper").status == "pass"


def test_numbers_over_seeds() -> None:
    assert Measured.over([2.0]) == Measured(2.0, None)
    over_two = Measured.over(torch.tensor([1.0, 3.0], dtype=torch.float32))
    assert (over_two.ours, over_two.spread) == pytest.approx((2.0, math.sqrt(2.0)))
    assert (str(Measured(2.0)), str(over_two)) == ("2", "2 ± 1.4")


@pytest.mark.parametrize(
    ("ours", "scale", "kind", "words"),
    [
        (12, "paper", "measured", "agrees"),
        (1, "laptop", "revised", "differs"),
        (12, "paper", "identity", "holds"),
        (1, "paper", "ours", "does not hold"),
        (12, "own", "measured", "holds"),
        (1, "own", "measured", "does not hold for this network"),
        (None, "own", "measured", "not run"),
    ],
)
def test_verdicts(ours: float | None, scale: str, kind: str, words: str) -> None:
    claim = Claim("wu.x", "Fig. 1", "s", "t", low=9.5, kind=kind)
    measured = None if ours is None else Measured(ours)
    assert claim.judge(measured, scale=scale).verdict == words


def test_differences_are_explained_where_there_are_some() -> None:
    claim = Claim("wu.x", "Fig. 1", "s", "t", low=0, known="another seed")
    assert claim.judge(Measured(-1.0), scale="paper").explanation == "another seed"
    assert claim.judge(Measured(1.0), scale="paper").explanation == ""
    assert claim.judge(Measured(-1.0), scale="own").explanation == ""
    assert CLAIM.judge(Measured(0.0), scale="paper").explanation == "not explained yet"


def test_a_users_network_takes_the_place_of_the_one_that_a_claim_names() -> None:
    claim = Claim("wu.x", "Fig. 4", "a gap of F-200²", "t", low=0, network="F-200²")
    assert claim.judge(Measured(1.0), scale="own", network="mine").says == "a gap of mine"
    assert claim.judge(Measured(1.0), scale="paper").says == "a gap of F-200²"


def test_kinds_are_counted_apart() -> None:
    check = Claim("wu.y", "§ 2", "s", "(our check) 1", low=0, kind="ours")
    passed, failed = (CLAIM.judge(Measured(v), scale="paper") for v in (12.0, 1.0))
    held, missing = check.judge(Measured(1.0), scale="paper"), check.judge(None, scale="paper")
    assert summary([passed, failed, held, missing]) == (
        "1 of 2 claims that were measured agree with the paper; 1 of 1 checks of our own hold."
    )
    assert summary([missing]) == "No claim is judged at this scale."
    own = [CLAIM.judge(Measured(v), scale="own") for v in (12.0, 1.0)]
    assert summary(own) == "1 of 2 claims that were measured hold for this network."
    by_kind = counts([passed, failed, held, missing])
    assert list(by_kind) == list(KINDS)
    assert by_kind["measured"] == {"pass": 1, "fail": 1, "not run": 0}
    assert by_kind["ours"] == {"pass": 1, "fail": 0, "not run": 1}


# --- files ---------------------------------------------------------------------------------------


def test_claims_are_read_with_shared_texts() -> None:
    (claim,) = parse_claims(ENTRY, "x.toml")
    assert claim == Claim(
        "wu.table6.x.ratio",
        "Table 6",
        "the ratio",
        "12.3",
        low=9.5,
        high=16,
        reason="All printed digits.",
        known="another seed",
        scales=("paper",),
    )


def test_an_end_that_is_absent_is_infinite() -> None:
    (claim,) = parse_claims(ENTRY.replace("high = 16\n", ""), "x.toml")
    assert (claim.low, claim.high) == (9.5, math.inf)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("low = 9.5", "low = ", r"x\.toml must be TOML; at .*line 11.* Mend it there"),
        ("[[claim]]", "[[claims]]", r"'claim', 'texts'\]; got 'claims'. Nearest: 'claim'"),
        (
            "[texts]",
            "[study]\nkept = 1\n[texts]",
            r"\[study\]: a key must be .*; got 'kept'. Nearest",
        ),
        ("[texts]", "[settings.desk]\n[texts]", r"\[settings\]: a key must be .*; got 'desk'"),
        ("theirs =", "their =", r"claim 1: a key must be .*; got 'their'. Nearest: 'theirs'"),
        ('theirs = "12.3"\n', "", r"ratio\) must have .*; \['theirs'\] are missing. Add them"),
        ('"measured"', '"mesured"', r"`kind` must be .*; got 'mesured'. Nearest: 'measured'"),
        ('["paper"]', '["papers"]', r"`scales` must be .*; got 'papers'. Nearest: 'paper'"),
        ('["paper"]', '"paper"', r"`scales` must be a list of scales; got 'paper'. Mend it"),
        ("low = 9.5", 'low = "9.5"', r"`low` must be a number; got '9.5'"),
        ("low = 9.5", "low = 17", r"with low ≤ high; got 17 and 16. Say what agrees"),
        ("low = 9.5\nhigh = 16\n", "", r"must have `low`, `high` or both"),
        ('"round" }', '"rounds" }', r"`reason`: a text must be .*; got 'rounds'. Nearest: 'round'"),
        ('theirs = "12.3"', "theirs = 12.3", r"`theirs` must be text; got 12.3"),
        ("low = 9.5", "low = 9.5\nwas = { low = 9 }", r"`was` is for .* 'revised'; got 'measured'"),
        ("low = 9.5", "low = 9.5\nwas = { lo = 9 }", r"`was`: a key must be .*Nearest: 'low'"),
        ("[texts]", ENTRY.partition("\n\n")[2] + "[texts]", r"\['wu.table6.x.ratio'\] stand there"),
    ],
)
def test_bad_files_are_refused_with_words(old: str, new: str, words: str) -> None:
    with pytest.raises(FileError, match=words):
        parse_claims(ENTRY.replace(old, new, 1), "x.toml")


def test_a_file_without_claims_is_refused() -> None:
    with pytest.raises(FileError, match=r"has none\. Write one"):
        parse_claims("", "x.toml")


def test_a_study_without_a_file_has_no_claims() -> None:
    assert claims_of("wu-none") == ()


# --- the claims of the papers --------------------------------------------------------------------


def test_every_study_has_claims_and_every_file_a_study() -> None:
    package = Path(__file__).parents[2] / "eigenscape_papers"
    files = {path.stem for path in package.glob("*/claims/*.toml")}
    assert files == STUDIES.keys()
    assert all(study.claims for study in STUDIES.values())


def test_ids_are_unique_and_say_whose_they_are() -> None:
    ids = [claim.id for claim in ALL]
    assert len(set(ids)) == len(ids)
    for id in ids:
        assert re.fullmatch(r"(wu|thesis|dong|papyan)(\.[a-z0-9-]+){2,}", id), id


def test_claims_are_complete() -> None:
    for claim in ALL:
        assert claim.kind in KINDS, claim.id
        assert claim.scales, claim.id
        assert set(claim.scales) <= {*SCALES, "own"}
        assert not claim.network or claim.network in claim.says, claim.id
        assert not claim.theirs.startswith("(our") or claim.kind == "ours", claim.id


def test_shared_texts_are_used() -> None:
    package = Path(__file__).parents[2] / "eigenscape_papers"
    for path in package.glob("*/claims/*.toml"):
        text = path.read_text("utf-8")
        for name in tomllib.loads(text).get("texts", {}):
            assert f'{{ text = "{name}" }}' in text, (path.name, name)


def test_verdicts_on_our_records_are_as_they_were() -> None:
    """A claim or a record that changes a verdict changes this file, too, and is looked at."""
    findings = all_findings(STUDIES.values(), read_results(results_folder()))
    verdicts = {f.id: [f.kind, f.status, f.scale] for f in findings}
    assert verdicts == json.loads(GOLDEN.read_text("utf-8"))
