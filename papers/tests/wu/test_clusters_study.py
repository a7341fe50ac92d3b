from collections.abc import Callable

import pytest
import torch

from eigenscape_papers.runner import Networks, Setting, StudyResult, Workshop
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.wu import logit_gradients
from papers.tests.conftest import TINY, TINY_CONV, numbers_of

NAME = "wu-clusters"


def test_the_claims(ran: Callable[[str], StudyResult], tiny: Networks) -> None:
    start, end = (
        logit_gradients(tiny.risk(0, epoch), "fc1.weight", variable="output") for epoch in (0, 2)
    )
    ours = numbers_of(ran(NAME))
    assert ours["wu.fig20.logit-clusters"] == pytest.approx(start.logit_share)
    assert ours["wu.fig21.class-clusters"] == pytest.approx(end.class_share)
    assert start.center_cosines is not None
    assert ours["wu.fig20.centres"] == pytest.approx(float(start.center_cosines.mean()))
    assert ours.keys() == {c.id for c in STUDIES[NAME].claims if "laptop" in c.scales}


def test_the_second_network_is_that_of_the_first_version(shop: Workshop) -> None:
    outcome = STUDIES[NAME].measure(Setting((TINY, TINY_CONV)), shop)
    assert outcome.measured.keys() == {claim.id for claim in STUDIES[NAME].claims}
    layer = dict(zip(*(outcome.sheets[0].columns[n] for n in ("network", "layer")), strict=True))
    risk = shop.networks(TINY_CONV).risk(0)
    end = logit_gradients(risk, f"{layer[TINY_CONV.label]}.weight", variable="output", tsne=False)
    ours = outcome.measured["wu.2020.fig20.class-clusters"].ours
    assert ours == pytest.approx(end.class_share)
    assert len({picture.name for picture in outcome.pictures}) == 2


def test_every_logit_or_class_has_its_points(
    ran: Callable[[str], StudyResult], tiny: Networks
) -> None:
    panels = ran(NAME).pictures()[0].panels
    assert [panel.title for panel in panels] == [
        "Δ, start, by logit",
        "Γ, start, by logit",
        "Δ, minimum, by class",
        "Γ, minimum, by class",
    ]
    for panel in panels:
        *clusters, centres = panel.marks
        assert [len(mark.x) for mark in clusters] == [10] * 10
        assert len({(mark.colour, mark.hollow) for mark in clusters}) == 10
        assert [mark.label for mark in clusters] == [str(i) for i in range(10)]
        assert len(centres.x) == 10
    end = logit_gradients(tiny.risk(0), "fc1.weight", variable="output")
    assert end.coordinates is not None
    third = end.coordinates[(end.point_classes == 3) & (end.point_logits >= 0)]
    torch.testing.assert_close(torch.tensor(panels[3].marks[3].x), third[:, 0], rtol=1e-5, atol=0)
