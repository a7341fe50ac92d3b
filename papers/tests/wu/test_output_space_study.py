from collections.abc import Callable

import pytest
import torch
from torch import nn

from eigenscape_papers.datasets import DataSet
from eigenscape_papers.runner import (
    Cast,
    Networks,
    Own,
    Setting,
    Study,
    StudyResult,
    Workshop,
    printed,
    run_study,
)
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.wu import output_space_overlap
from papers.tests.conftest import RECIPE, TINY, TINY_CONV, block, numbers_of, top_vectors

NAME = "wu-output-space"


def overlap(networks: Networks, seed: int, epoch: int, *, firing: bool = False) -> float:
    """Return the overlap of fc1: the top of E[M] with the rows of W₃W₂ less their mean."""
    model = networks.model(seed, epoch)
    x = networks.data.inputs.flatten(1)
    below = model.fc1(x)
    rates = [(below > 0).double().mean(0), (model.fc2(below.relu()) > 0).double().mean(0)]
    first, second = rates if firing else [torch.ones_like(rate) for rate in rates]
    S = ((model.fc3.weight * second) @ (model.fc2.weight * first)).detach()
    rows = torch.linalg.svd(S - S.mean(0)).Vh[:9].T
    top = top_vectors(block(networks, seed, "fc1.bias", epoch=epoch), 9)
    return float((top.T @ rows).square().sum() / 9)


def test_first_layer(ran: Callable[[str], StudyResult], tiny: Networks) -> None:
    start, end = ([overlap(tiny, seed, epoch) for seed in (0, 1)] for epoch in (0, 2))
    rates = [overlap(tiny, seed, 0, firing=True) for seed in (0, 1)]
    ours = numbers_of(ran(NAME))
    assert ours["wu.sec4.4.initial.mlp"] == pytest.approx(sum(start) / 2)
    assert ours["wu.sec4.4.initial.mlp.firing"] == pytest.approx(sum(rates) / 2)
    table = ran(NAME).sheets[0].columns
    assert table["network"][0] == TINY.label
    assert table["overlap at the minimum"][0] == pytest.approx(sum(end) / 2, rel=1e-5)
    assert table["sd over seeds"][0] == pytest.approx(abs(end[0] - end[1]) / 2**0.5, rel=1e-4)
    values = [torch.linalg.eigvalsh(block(tiny, s, "fc1.bias", epoch=2)).flip(0) for s in (0, 1)]
    gap = sum(float(v[8] / v[9]) for v in values) / 2
    assert table["λ_d/λ_{d+1} of E[M]"][0] == pytest.approx(gap, rel=1e-5)
    assert table["λ_d/λ_{d+1} of E[M]"][2] is None  # of the last layer all others are zero


def test_all_readings_of_s_stand_in_the_table(
    ran: Callable[[str], StudyResult], tiny: Networks
) -> None:
    table = ran(NAME).sheets[0].columns
    found = [output_space_overlap(tiny.risk(seed), "fc1", space="gradients") for seed in (0, 1)]
    mean = sum(record.overlap for record in found) / 2
    assert table["with E[∂z/∂output]"][0] == pytest.approx(mean, rel=1e-5)
    less = [output_space_overlap(tiny.risk(seed), "fc1").overlap_removed for seed in (0, 1)]
    assert table["R(S) less Sᵀ1"][0] == pytest.approx(sum(less) / 2, rel=1e-5)
    panel = ran(NAME).pictures()[0].panels[0]
    assert [name for _, name in panel.x.ticks] == ["fc1", "fc2", "fc3"]
    by_label = {mark.label: mark.y[0] for mark in panel.marks}
    assert by_label["E[∂z/∂output], minimum"] == pytest.approx(mean, rel=1e-5)
    assert by_label["weights, start"] == pytest.approx(table["at the start"][0], rel=1e-5)


def test_the_last_layer_has_all_of_it_by_construction(ran: Callable[[str], StudyResult]) -> None:
    """S = I and E[A]·1 = 0: it tells nothing of a network, and claims on it say so."""
    table = ran(NAME).sheets[0].columns
    last = [place for place, layer in enumerate(table["layer"]) if layer == "fc3"]
    assert [table["overlap at the minimum"][place] for place in last] == pytest.approx([1.0, 1.0])
    claims = {claim.id: claim.reason for claim in STUDIES[NAME].claims}
    told = {name for name, why in claims.items() if "by construction" in why}
    assert told == {
        name for name in claims if name.startswith("wu.table10.lenet5.") and "fc3" in name
    }
    assert len(told) == 4


def test_the_papers_network_has_its_claims(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch, small_study: Callable[[str], Study]
) -> None:
    from eigenscape_papers.wu import output_space_study as wu_output_space

    # The table has fewer layers than the network, as with F-1500^3.
    for layer, number in (("fc1", 0.3), ("fc2", 0.4)):
        monkeypatch.setitem(printed(NAME), f"wu.table10.f-12x2.digits.true.{layer}", number)
    outcome = wu_output_space.measure(small_study(NAME).settings["laptop"], shop)
    assert "wu.table10.f-12x2.digits.true.fc1" in outcome.by_name
    (theirs,) = (m for m in outcome.pictures[0].panels[0].marks if m.label == "Table 10")
    assert list(theirs.y) == [0.3, 0.4]
    assert [round(place) for place in theirs.x] == [1, 2]


def test_every_column_of_table_10_has_claims() -> None:
    ids = {claim.id for claim in STUDIES[NAME].claims}
    assert sum(name.startswith("wu.table10.") for name in ids) == 8 * 3
    assert "wu.table10.f-1500x3.cifar10.random.fc2" in ids


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
    assert numbers_of(result).keys() <= {
        "wu.sec4.4.initial.mlp",
        "wu.sec4.4.initial.mlp.firing",
    }


def test_convolutions_are_left_out(shop: Workshop) -> None:
    from eigenscape_papers.wu import output_space_study as wu_output_space

    table = wu_output_space.measure(Setting((TINY_CONV,)), shop).sheets[0].columns
    names = table["layer"]
    assert names
    assert not any(name.startswith("conv") for name in names)
