"""Each layer's input, as in the tables of the first version."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from eigenscape_papers.runner import (
    Measured,
    Networks,
    Setting,
    StudyResult,
    Workshop,
    all_findings,
    printed,
    read_results,
    results_folder,
)
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.wu import autocorrelation_part
from eigenscape_papers.wu import layers_study as wu_2020_layers
from papers.tests.conftest import TINY, inputs_of

NAME = "wu-2020-layers"


def test_the_ratio_is_that_of_the_layers_input(
    ran: Callable[[str], StudyResult], tiny: Networks
) -> None:
    columns = ran(NAME).sheets[0].columns
    place = columns["layer"].index("fc2")
    ratios, inner = [], []
    for seed in tiny.cast.seeds:
        x = inputs_of(tiny, seed, "fc2").numpy()
        mean = x.mean(0)
        first = np.linalg.eigh(x.T @ x)[1][:, -1]
        ratios.append(mean @ mean / np.linalg.eigvalsh(np.cov(x.T, bias=True))[-1])
        inner.append(abs(first @ mean) / np.linalg.norm(mean))
    assert columns["‖E[x]E[x]ᵀ‖/‖Σ‖"][place] == pytest.approx(np.mean(ratios), rel=1e-5)
    assert columns["|v₁ᵀÊ[x]|"][place] == pytest.approx(np.mean(inner), rel=1e-5)


def test_ids_are_plain_and_every_row_has_its_claims() -> None:
    ids = [claim.id for claim in STUDIES[NAME].claims]
    assert len(ids) == len(set(ids)) == 2 * (3 + 5 + 5 + 3 + 5)
    assert "wu.2020.lenet5fc180.fc2.norm-ratio" in ids
    assert "wu.2020.f200x2.fc3.inner-product" in ids
    assert "wu.2020.lenet5bn.conv2.inner-product" in ids


@pytest.mark.parametrize(
    ("claim", "ours", "status"),
    [
        ("f200x2bn.fc2.inner-product", 0.35, "pass"),
        ("f200x2bn.fc2.inner-product", 0.9999, "fail"),  # as without BatchNorm
        ("f200x2bn.fc1.inner-product", 0.99, "fail"),  # images, which no training touches
        ("lenet5bn.fc1.inner-product", 0.0, "pass"),
        ("lenet5bn.fc1.norm-ratio", 0.24, "fail"),
    ],
)
def test_what_chance_decides_has_room(claim: str, ours: float, status: str) -> None:
    (found,) = (each for each in STUDIES[NAME].claims if each.id == f"wu.2020.{claim}")
    assert found.where.startswith("Wu-2020 Table 8")
    assert found.judge(Measured(ours), scale="paper").status == status


def test_every_difference_is_explained_or_said_not_to_be() -> None:
    found = all_findings([STUDIES[NAME]], read_results(results_folder()))
    assert all(finding.known for finding in found if finding.status == "fail")


def test_what_is_kept_of_a_cast_needs_no_networks(
    ran: Callable[[str], StudyResult], shop: Workshop, tmp_path: Path
) -> None:
    autocorrelation_part(TINY, dataclasses.replace(shop, parts=tmp_path / "measured"))
    gone = Workshop(tmp_path / "gone", shop.device, parts=tmp_path / "measured")
    columns = wu_2020_layers.measure(Setting((TINY,)), gone).sheets[0].columns
    count = len(columns["layer"])
    whole = ran(NAME).sheets[0].columns
    assert {name: whole[name][:count] for name in columns} == columns
    assert not gone.folder.exists()  # nothing was trained


def test_their_numbers_stand_beside_ours(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {"fc1": (3.0, 0.9), "fc2": (4.0, 0.8), "fc3": (5.0, 0.7)}
    for layer, numbers in theirs.items():
        for name, number in zip(("norm-ratio", "inner-product"), numbers, strict=True):
            monkeypatch.setitem(printed(NAME), f"wu.2020.f12x2.{layer}.{name}", number)
    outcome = wu_2020_layers.measure(Setting((TINY,)), shop)
    assert outcome.sheets[0].columns["Tables 6, 8"] == (3.0, 4.0, 5.0)
    assert outcome.sheets[0].columns["Tables 7, 8"] == (0.9, 0.8, 0.7)
    (panel,) = outcome.pictures[0].panels
    assert [name for _, name in panel.x.ticks] == ["fc1", "fc2", "fc3"]
    ours, theirs_drawn = panel.marks
    assert theirs_drawn.y == (3.0, 4.0, 5.0)
    assert ours.y == pytest.approx(outcome.sheets[0].columns["‖E[x]E[x]ᵀ‖/‖Σ‖"], rel=1e-5)
