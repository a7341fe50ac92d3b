import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import nn

from eigenscape.errors import UnsupportedModelError
from eigenscape_papers.datasets import DataSet
from eigenscape_papers.runner import (
    Cast,
    Networks,
    Own,
    Setting,
    Study,
    StudyResult,
    Workshop,
    run_study,
)
from eigenscape_papers.runner.orders import gap_place
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.wu import gap_size
from papers.tests.conftest import TINY, TINY_CONV, TINY_RANDOM, block, inputs_of, numbers_of

NAME = "wu-spectra"


def output_values(networks: Networks, epoch: int) -> torch.Tensor:
    return torch.linalg.eigvalsh(block(networks, 0, "fc1.bias", epoch=epoch)).flip(0)


def test_gaps(ran: Callable[[str], StudyResult], tiny: Networks, shop: Workshop) -> None:
    ours = numbers_of(ran(NAME))
    places, sizes = {}, {}
    for epoch in (0, 1, 2):
        values = output_values(tiny, epoch)
        ratios = values[:-1] / values[1:].clamp_min(1e-300)  # the first one after one eigenvalue
        places[epoch] = int(ratios[1:].argmax()) + 2
        sizes[epoch] = float(ratios[[8, 9]].max() / ratios[[5, 6, 7, 10]].max())
    assert ours["wu.fig4a.initial.gap"] == pytest.approx(sizes[0], rel=1e-6)
    assert ours["wu.fig4b.minimum.gap"] == pytest.approx(sizes[2], rel=1e-6)
    near = [place - 10 in (-1, 0) for place in places.values()]
    assert ours["wu.fig19.outliers-along"] == pytest.approx(sum(near) / 3)
    random, true = (output_values(n, 2) for n in (shop.networks(TINY_RANDOM), tiny))
    expected = float((random[8] / random[9]) / (true[8] / true[9]))
    assert ours["wu.fig4c.random-labels.no-gap"] == pytest.approx(expected, rel=1e-6)


def test_inputs_along_training(ran: Callable[[str], StudyResult], tiny: Networks) -> None:
    found = []
    for epoch in (0, 1, 2):
        x = inputs_of(tiny, 0, "fc2", epoch)
        values = torch.linalg.eigvalsh(x.T @ x)
        found.append(float(values[-1] / values[-2]))
    table = ran(NAME).sheets[0].columns
    assert table["epoch"] == (0, 1, 2)
    assert table["λ₁/λ₂ of E[xxᵀ]"] == pytest.approx(found, rel=1e-5)
    assert numbers_of(ran(NAME))["wu.fig18.rank-one-along"] == pytest.approx(min(found))


def test_every_claim_is_measured(ran: Callable[[str], StudyResult]) -> None:
    claims = STUDIES[NAME].claims
    assert numbers_of(ran(NAME)).keys() == {c.id for c in claims if "laptop" in c.scales}


def test_the_followed_network_has_its_own_gaps(shop: Workshop) -> None:
    outcome = STUDIES[NAME].measure(Setting((TINY, TINY_RANDOM, TINY_CONV)), shop)
    assert outcome.measured.keys() == {claim.id for claim in STUDIES[NAME].claims}
    conv = shop.networks(TINY_CONV)
    layer = next(name for name in outcome.sheets[0].columns["layer of E[M]"])
    values = torch.linalg.eigvalsh(block(conv, 0, f"{layer}.bias")).flip(0)
    size = gap_size(values, (9, 10))
    assert outcome.measured["wu.fig4b.minimum.gap.lenet5"].ours == pytest.approx(size, rel=1e-6)
    assert len({picture.name for picture in outcome.pictures}) == 3


def test_another_network_does_not_pass_for_one_of_random_labels(shop: Workshop) -> None:
    outcome = STUDIES[NAME].measure(Setting((TINY, TINY_CONV)), shop)
    assert "wu.fig4c.random-labels.no-gap" not in outcome.measured
    assert "wu.fig4b.minimum.gap.lenet5" in outcome.measured


def test_the_size_of_a_gap() -> None:
    values = torch.tensor([80.0, 40.0, 20.0, 16.0, 4.0, 3.0, 2.0])
    assert gap_size(values, (3, 4)) == pytest.approx(4 / 2)  # 16/4 over 80/40
    assert gap_size(values, (4,)) == pytest.approx(4 / 2)
    assert gap_size(values, (5, 6)) == pytest.approx((3 / 2) / 4)
    assert gap_size(torch.arange(9.0, 0.0, -1.0).exp(), (1,)) == pytest.approx(1.0)
    assert gap_size(values, (7, 8)) is None  # nothing follows
    assert gap_size(values[:2], (1,)) is None  # nothing around


def test_the_place_of_a_gap() -> None:
    assert gap_place(torch.tensor([100.0, 10.0, 9.0, 1.0, 0.9])) == 3
    assert gap_place(torch.tensor([1.0, 0.9, 0.8, 0.0])) == 3  # to zero is the largest of all
    assert gap_place(torch.tensor([9.0, 8.0, 7.0, 1.0]), most=2) == 2
    assert [gap_place(torch.ones(n)) for n in (1, 2)] == [1, 2]


def test_narrow_networks_have_no_place_for_the_gap(shop: Workshop) -> None:
    narrow = [dataclasses.replace(c, model="F-6^2") for c in (TINY, TINY_RANDOM)]
    study = STUDIES[NAME]
    setting = dataclasses.replace(study.settings["laptop"], casts=tuple(narrow))
    result = run_study(dataclasses.replace(study, settings={"laptop": setting}), shop)
    assert "wu.fig4c.random-labels.no-gap" not in numbers_of(result)


def own_cast(**layers: nn.Module) -> Cast:
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    data = DataSet("x", x, x.argmax(1), 3)

    def build(seed: int) -> nn.Module:
        return nn.Sequential(OrderedDict({n: copy.deepcopy(layer) for n, layer in layers.items()}))

    own = Own(build, data)
    return dataclasses.replace(TINY, model="my.py:build", data="x", samples=None, own=own)


def test_one_layer_is_refused(small_study: Callable[[str], Study], empty_shop: Workshop) -> None:
    with pytest.raises(UnsupportedModelError, match="second layer"):
        run_study(small_study(NAME), empty_shop, own=own_cast(fc=nn.Linear(3, 3)))
    trained = list((empty_shop.folder / "networks").iterdir())
    assert len(trained) == 1  # it was refused before random labels were learned


def test_own_networks_have_their_control_and_their_name(
    small_study: Callable[[str], Study], empty_shop: Workshop
) -> None:
    """Names begin with fc in the first layer alone."""
    cast = own_cast(fc=nn.Linear(3, 6), act=nn.ReLU(), out=nn.Linear(6, 3))
    result = run_study(small_study(NAME), empty_shop, own=cast)
    random = dataclasses.replace(cast, labels="random", seeds=(0,), keep_epochs=())
    values = [
        torch.linalg.eigvalsh(block(empty_shop.networks(each), 0, "fc.bias")).flip(0)
        for each in (random, cast)
    ]
    sizes = [float(each[1] / each[2]) for each in values]
    ours = numbers_of(result)["wu.fig4c.random-labels.no-gap"]
    assert ours == pytest.approx(sizes[0] / sizes[1], rel=1e-6)
    assert [panel.title for panel in result.pictures()[0].panels][-1] == "minimum, random labels"
    assert any("my.py:build (x, random labels): loss" in note for note in result.notes)
    table = result.sheets[0].columns
    assert (table["epoch"], table["layer"]) == ((0, 1, 2), ("out",) * 3)
    says = {finding.id: finding.says for finding in result.findings}
    assert says["wu.fig4a.initial.gap"].endswith("first layer of my.py:build at the start")
    assert "my.py:build at a minimum" in says["wu.fig4b.minimum.gap"]
    names = [picture.name for picture in result.pictures()]
    assert names == ["spectra-my-py-build", "along-training"]


def test_the_papers_network_keeps_its_name(ran: Callable[[str], StudyResult]) -> None:
    says = {finding.id: finding.says for finding in ran(NAME).findings}
    assert says["wu.fig4a.initial.gap"].endswith("first layer of F-200² at the start")
