from collections.abc import Callable

import pytest
import torch
from torch import nn

from eigenscape.data import DataSet
from eigenscape.report import StudyResult
from eigenscape.studies import STUDIES, Cast, Networks, Own, Study, Workshop, run_study
from tests.studies.conftest import RECIPE, TINY, block, numbers_of, top_vectors

NAME = "wu-output-space"


def overlap(networks: Networks, seed: int, epoch: int) -> float:
    """Return the overlap of fc1: the top of E[M] with the rows of W₃W₂ less their mean."""
    model = networks.model(seed, epoch)
    S = (model.fc3.weight @ model.fc2.weight).detach()
    rows = torch.linalg.svd(S - S.mean(0)).Vh[:9].T
    top = top_vectors(block(networks, seed, "fc1.bias", epoch=epoch), 9)
    return float((top.T @ rows).square().sum() / 9)


def test_first_layer(ran: Callable[[str], StudyResult], tiny: Networks) -> None:
    start, end = ([overlap(tiny, seed, epoch) for seed in (0, 1)] for epoch in (0, 2))
    assert numbers_of(ran(NAME))["wu.sec4.4.initial"] == pytest.approx(sum(start) / 2)
    table = ran(NAME).sheets[0].columns
    assert table["network"][0] == TINY.label
    assert table["overlap at the minimum"][0] == pytest.approx(sum(end) / 2, rel=1e-5)
    assert table["sd over seeds"][0] == pytest.approx(abs(end[0] - end[1]) / 2, rel=1e-4)


def test_last_layer(ran: Callable[[str], StudyResult]) -> None:
    assert numbers_of(ran(NAME))["wu.table10.last-layer"] == pytest.approx(1.0)


def test_the_papers_network_has_its_claims(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch, small_study: Callable[[str], Study]
) -> None:
    from eigenscape.studies import wu_output_space

    monkeypatch.setitem(wu_output_space._TABLE, (TINY.model, TINY.data, "true"), (1.0, 1.0, 1.0))
    setting = small_study(NAME).settings["laptop"]
    measured = wu_output_space.measure(setting, shop).measured
    stems = {f"wu.table10.f-12^2.digits.true.{layer}" for layer in ("fc1", "fc2", "fc3")}
    assert measured.keys() - {claim.id for claim in STUDIES[NAME].claims} == stems


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x)) * torch.sigmoid(x.sum(1, keepdim=True))


def test_networks_without_a_chain_have_nothing_to_say(
    small_study: Callable[[str], Study], empty_shop: Workshop
) -> None:
    x = torch.randn(20, 3)
    own = Own(lambda seed: Gated(), DataSet("x", x, (x[:, 0] > 0).long(), 2))
    cast = Cast("gated", "x", RECIPE, own=own)
    result = run_study(small_study(NAME), empty_shop, own=cast)
    assert numbers_of(result).keys() <= {"wu.table10.last-layer", "wu.sec4.4.initial"}
