import math

import pytest
import torch

from eigenscape.studies import Claim, Measured
from eigenscape.studies.claim import summary

CLAIM = Claim("wu.table6.x.ratio", "Table 6", "the ratio", "12.3", low=9.5, high=16, why="range")


@pytest.mark.parametrize(
    ("ours", "status"), [(9.5, "pass"), (16, "pass"), (9.49, "fail"), (16.01, "fail")]
)
def test_both_ends_agree(ours: float, status: str) -> None:
    found = CLAIM.judge(Measured(ours, 0.5), scale="laptop")
    assert (found.status, found.ours, found.spread) == (status, ours, 0.5)
    assert (found.id, found.paper, found.where) == (CLAIM.id, "wu", "Table 6")
    assert (found.says, found.theirs, found.expected) == ("the ratio", "12.3", "9.5 to 16")
    assert (found.scale, found.why) == ("laptop", "range")


@pytest.mark.parametrize("measured", [None, Measured(math.nan, 0.1), Measured(math.inf)])
def test_what_was_not_measured_is_not_run(measured: Measured | None) -> None:
    found = CLAIM.judge(measured, scale="paper")
    assert (found.status, found.ours, found.spread) == ("not run", None, None)
    assert found.why == "range"


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
    found = Measured.over(torch.tensor([1.0, 3.0], dtype=torch.float32))
    assert (found.ours, found.spread) == pytest.approx((2.0, math.sqrt(2.0)))


def test_what_is_known_goes_with_the_finding() -> None:
    claim = Claim("wu.x", "Fig. 1", "s", "t", low=0, known="their error")
    assert claim.judge(Measured(-1.0), scale="paper").known == "their error"
    assert CLAIM.judge(None, scale="paper").known == ""


def test_checks_of_our_own_are_counted_apart() -> None:
    check = Claim("wu.y", "§ 2", "s", "(ours) 1", low=0)
    passed, failed = (CLAIM.judge(Measured(v), scale="paper") for v in (12.0, 1.0))
    held, missing = check.judge(Measured(1.0), scale="paper"), check.judge(None, scale="paper")
    assert summary([passed, failed, held, missing]) == (
        "1 of 2 claims that were measured agree with the paper; 1 of 1 checks of our own hold."
    )
    assert summary([held]) == "1 of 1 checks of our own hold."
    assert summary([missing]) == "No claim is judged at this scale."
    own = [CLAIM.judge(Measured(v), scale="own") for v in (12.0, 1.0)]
    assert summary(own) == "1 of 2 claims that were measured hold for this network."
