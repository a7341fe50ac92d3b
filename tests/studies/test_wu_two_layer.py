from collections.abc import Callable

import pytest

from eigenscape.report import StudyResult
from eigenscape.studies import STUDIES
from eigenscape.theory import finite_width_curve
from tests.studies.conftest import THEORY, numbers_of

NAME = "wu-two-layer"


def test_the_claims(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    options = {"num_classes": THEORY["num_classes"], "num_samples": THEORY["num_samples"]}
    gaussian, rectified = (
        finite_width_curve(THEORY["widths"], **options, seeds=range(2), inputs=inputs)
        for inputs in ("gaussian", "rectified")
    )
    gap = gaussian.ratios[1] / gaussian.ratios[0]
    assert ours["wu.theorem4.1.gap"] == pytest.approx(float(gap.mean()))
    assert ours["wu.theorem4.1.space"] == pytest.approx(float(gaussian.row_overlaps[1].mean()))
    rows = float(rectified.row_overlaps[1].mean())
    assert ours["thesis.theorem4.4.2.rows"] == pytest.approx(rows)
    assert ours["thesis.theorem4.4.2.plateau"] == pytest.approx(rows - 0.8290, abs=1e-3)
    firing = float(rectified.firing_overlaps[1].mean())
    assert ours["thesis.theorem4.4.2.corrected"] == pytest.approx(firing)
    assert ours.keys() == {claim.id for claim in STUDIES[NAME].claims}


def test_claims_of_the_thesis_are_not_wus() -> None:
    assert {claim.paper for claim in STUDIES[NAME].claims} == {"wu", "thesis"}


def test_spread_is_over_seeds(ran: Callable[[str], StudyResult]) -> None:
    spreads = {f.id: f.spread for f in ran(NAME).findings}
    assert spreads["wu.theorem4.1.space"] > 0
    assert spreads["thesis.theorem4.4.1.decoupling"] is None  # measured once
