"""Each layer's input, as in the tables of the first version."""

from collections.abc import Callable

import numpy as np
import pytest

from eigenscape.report import StudyResult
from eigenscape.studies import STUDIES, Networks, Setting, Workshop, wu_2020_layers
from tests.studies.conftest import TINY, inputs_of


def test_the_ratio_is_that_of_the_layers_input(
    ran: Callable[[str], StudyResult], tiny: Networks
) -> None:
    columns = ran("wu-2020-layers").sheets[0].columns
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
    ids = [claim.id for claim in STUDIES["wu-2020-layers"].claims]
    assert len(ids) == len(set(ids)) == 2 * (3 + 5 + 5)
    assert "wu.2020.lenet5fc180.fc2.norm-ratio" in ids
    assert "wu.2020.f200x2.fc3.inner-product" in ids


def test_their_numbers_stand_beside_ours(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {"fc1": (3.0, 0.9), "fc2": (4.0, 0.8), "fc3": (5.0, 0.7)}
    monkeypatch.setitem(wu_2020_layers._TABLES, TINY.model, theirs)
    outcome = wu_2020_layers.measure(Setting((TINY,)), shop)
    assert outcome.sheets[0].columns["Table 6"] == (3.0, 4.0, 5.0)
    assert outcome.sheets[0].columns["Table 7"] == (0.9, 0.8, 0.7)
    (panel,) = outcome.pictures[0].panels
    assert [name for _, name in panel.x.ticks] == ["fc1", "fc2", "fc3"]
    ours, printed = panel.marks
    assert printed.y == (3.0, 4.0, 5.0)
    assert ours.y == pytest.approx(outcome.sheets[0].columns["‖E[x]E[x]ᵀ‖/‖Σ‖"], rel=1e-5)
