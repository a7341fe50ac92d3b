import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from eigenscape.records import Line
from eigenscape_papers.datasets import load
from eigenscape_papers.dong import beyond_study as dong_beyond
from eigenscape_papers.runner import StudyResult, Workshop
from eigenscape_papers.studies import STUDIES
from papers.tests.conftest import SMALL, numbers_of

NAME = "dong-beyond"


def rows_of(result: StudyResult, name: str) -> list[dict[str, float]]:
    (table,) = (sheet.columns for sheet in result.sheets if sheet.name == name)
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def test_every_claim_is_measured(ran: Callable[[str], StudyResult]) -> None:
    assert numbers_of(ran(NAME)).keys() == {claim.id for claim in STUDIES[NAME].claims}


def test_numbers_of_factors_are_those_of_the_table(ran: Callable[[str], StudyResult]) -> None:
    ours, rows = numbers_of(ran(NAME)), rows_of(ran(NAME), "factors")
    start = {(row["factor"], row["value"]): row["first layer, start"] for row in rows}
    end = {(row["factor"], row["value"]): row["first layer, end"] for row in rows}
    depth = start["depth", "2"] / start["depth", "1"]
    assert ours["dong.beyond.depth"] == pytest.approx(depth, rel=1e-4)
    width = start["width", "5"] / start["width", "4"]
    assert ours["dong.beyond.width"] == pytest.approx(width, rel=1e-4)
    larger = max(start["loss", "cross-entropy"], start["loss", "squared errors"])
    assert ours["dong.beyond.loss"] == pytest.approx(larger, rel=1e-4)
    noise = end["noise", "1.0"] / end["noise", "0.0"]
    assert ours["dong.beyond.label-noise"] == pytest.approx(noise, rel=1e-4)
    few, many = end["clusters", "10"], end["clusters", "20"]
    assert ours["dong.beyond.clusters"] == pytest.approx(max(few, many) / min(few, many), rel=1e-4)
    change = [math.log(end[key] / start[key]) for key in start]
    mean = math.exp(sum(change) / len(change))
    assert ours["dong.beyond.training"] == pytest.approx(mean, rel=1e-4)


def test_the_usual_network_is_the_same_in_every_factor(ran: Callable[[str], StudyResult]) -> None:
    rows = rows_of(ran(NAME), "factors")
    usual = {("depth", "1"), ("width", "5"), ("activation", "ReLU"), ("noise", "0.0")}
    found = {row["first layer, end"] for row in rows if (row["factor"], row["value"]) in usual}
    assert len(found) == 1
    tanh = [row["first layer, end"] for row in rows if row["value"] == "tanh"]
    assert not found & set(tanh)


def test_slopes_are_those_of_the_table(ran: Callable[[str], StudyResult]) -> None:
    ours, rows = numbers_of(ran(NAME)), rows_of(ran(NAME), "widths")
    r = {(row["n₁"], row["n₂"], row["C"]): row["r"] for row in rows}
    assert len(r) == 8
    slope = math.log(r[5, 9, 8] / r[5, 4, 8]) / math.log(9 / 4)
    assert ours["dong.app-a.fan-out.next"] == pytest.approx(slope, rel=1e-3)
    slope = math.log(r[5, 9, 8] / r[5, 9, 3]) / math.log(8 / 3)
    assert ours["dong.app-a.fan-out.classes"] == pytest.approx(slope, rel=1e-3)
    slope = math.log(r[5, 9, 8] / r[3, 9, 8]) / math.log(5 / 3)
    assert ours["dong.app-a.fan-out.own"] == pytest.approx(abs(slope), rel=1e-2)


def test_two_words_leave_no_blocks_in_the_head(ran: Callable[[str], StudyResult]) -> None:
    few, many = rows_of(ran(NAME), "vocabulary")
    assert (few["C"], many["C"]) == (2, 9)
    assert few["head"] == pytest.approx(1.0, rel=1e-4)  # H_12 = −H_11
    assert many["head"] < 0.5


def test_networks_of_the_sweep_have_the_layers_that_are_measured() -> None:
    data = load("digits").take(3)
    net = dong_beyond.sequential(dong_beyond.Network(depth=3, width=7), data, 0)
    shapes = [(i, tuple(m.weight.shape)) for i, m in enumerate(net) if isinstance(m, nn.Linear)]
    assert shapes == [(1, (7, 64)), (3, (7, 7)), (5, (7, 7)), (7, (10, 7))]
    again = dong_beyond.sequential(dong_beyond.Network(depth=3, width=7), data, 0)
    other = dong_beyond.sequential(dong_beyond.Network(depth=3, width=7), data, 1)
    assert torch.equal(net[5].weight, again[5].weight)
    assert not torch.equal(net[5].weight, other[5].weight)


def test_trainings_of_other_factors_have_other_folders(
    ran: Callable[[str], StudyResult], shop: Workshop
) -> None:
    ran(NAME)
    # Depth, width, activation, loss, noise and two clusters, beside the usual network.
    assert len(list(shop.folder.glob("networks/dong-beyond-*"))) == 8


def test_pictures_show_start_and_end(ran: Callable[[str], StudyResult]) -> None:
    (picture,) = (p for p in ran(NAME).pictures() if p.name == "factors")
    assert [panel.title for panel in picture.panels] == list(SMALL[NAME]["factors"])
    for panel in picture.panels:
        assert sum(isinstance(mark, Line) for mark in panel.marks) == 2
