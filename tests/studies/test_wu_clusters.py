from collections.abc import Callable

import pytest

from eigenscape.analyses import logit_gradients
from eigenscape.report import StudyResult
from eigenscape.studies import STUDIES, Networks
from tests.studies.conftest import numbers_of

NAME = "wu-clusters"


def test_the_claims(ran: Callable[[str], StudyResult], tiny: Networks) -> None:
    start, end = (
        logit_gradients(tiny.risk(0, epoch), "fc1.weight", variable="output") for epoch in (0, 2)
    )
    ours = numbers_of(ran(NAME))
    assert ours["wu.fig20.logit-clusters"] == pytest.approx(start.logit_share)
    gain = end.class_share - start.class_share - end.logit_share + start.logit_share
    assert ours["wu.fig21.class-clusters"] == pytest.approx(gain)
    assert start.center_cosines is not None
    assert ours["wu.fig20.centres"] == pytest.approx(float(start.center_cosines.mean()))
    assert ours.keys() == {claim.id for claim in STUDIES[NAME].claims}


def test_every_logit_has_its_points(ran: Callable[[str], StudyResult]) -> None:
    panels = ran(NAME).pictures[0].panels
    assert [panel.title for panel in panels] == [
        "Δ (parameters), start",
        "Γ (outputs), start",
        "Δ (parameters), minimum",
        "Γ (outputs), minimum",
    ]
    for panel in panels:
        assert [len(mark.x) for mark in panel.marks] == [10] * 10  # a point for each class
        assert len({(mark.colour, mark.hollow) for mark in panel.marks}) == 10
