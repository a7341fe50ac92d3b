import dataclasses
from collections.abc import Callable

import pytest
import torch

from eigenscape.report import StudyResult
from eigenscape.studies import Networks, Study, Workshop, run_study, wu_rank
from eigenscape.studies.wu_rank import _chance
from tests.studies.conftest import TINY, block, numbers_of, top_vectors

NAME = "wu-rank"


def test_shares(
    small_study: Callable[[str], Study],
    shop: Workshop,
    tiny: Networks,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wu_rank, "_HALF", 0.9)  # nearly all are above 0.5 here
    result = run_study(small_study(NAME), shop, own=TINY)
    means, every = [], []
    for layer, m, n in (("fc1", 12, 64), ("fc2", 12, 12), ("fc3", 10, 12)):
        tops = []
        for seed in (0, 1):
            vectors = top_vectors(block(tiny, seed, f"{layer}.weight"), m)
            leading = torch.linalg.svdvals(vectors.T.reshape(m, m, n))[:, 0]
            every.append(leading)
            tops.append(leading.mean())
        means.append(torch.stack(tops))
    usual = (torch.cat(every) > 0.9).double().mean()
    assert 0 < usual < 1
    assert numbers_of(result)["wu.fig22.rank-one.top"] == pytest.approx(float(usual))
    assert result.sheets[0].columns["mean of first m"] == pytest.approx(
        [float(tops.mean()) for tops in means], abs=1e-5
    )


def test_what_chance_shows() -> None:
    # Marchenko–Pastur: the norm of (m, n) is √m + √n, its Frobenius norm √(mn).
    assert _chance(100, 400) == pytest.approx((10 + 20) / 200, rel=0.05)
    assert _chance(1, 9) == pytest.approx(1.0)


def test_singular_values_of_the_first_eigenvectors(
    ran: Callable[[str], StudyResult], tiny: Networks
) -> None:
    picture = ran(NAME).pictures[1]
    assert picture.name.startswith("singular-values-")
    marks = picture.panels[0].marks
    assert [mark.label for mark in marks] == ["h_1", "h_2", "h_3", "h_4"]
    vectors = top_vectors(block(tiny, 0, "fc1.weight"), 4)
    expected = torch.linalg.svdvals(vectors.T.reshape(4, 12, 64))[:, :10]
    for mark, row in zip(marks, expected, strict=True):
        assert mark.y == pytest.approx(row.tolist(), abs=1e-4)


def test_one_seed_is_enough(small_study: Callable[[str], Study], shop: Workshop) -> None:
    result = run_study(small_study(NAME), shop, own=dataclasses.replace(TINY, seeds=(0,)))
    chance = max(_chance(12, 64), _chance(12, 12), _chance(10, 12))
    assert numbers_of(result)["wu.fig22.rank-one.random"] == pytest.approx(chance)
