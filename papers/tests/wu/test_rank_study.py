import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import nn

from eigenscape_papers.datasets import DataSet
from eigenscape_papers.runner import (
    Cast,
    Networks,
    Own,
    Study,
    StudyResult,
    Workshop,
    portrait,
    run_study,
)
from eigenscape_papers.wu import rank_study as wu_rank
from eigenscape_papers.wu.rank_study import _chance
from papers.tests.conftest import TINY, block, numbers_of, top_vectors

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
    picture = ran(NAME).pictures()[1]
    assert picture.name.startswith("singular-values-")
    marks = picture.panels[0].marks
    assert [mark.label for mark in marks] == ["h_1", "h_2", "h_3", "h_4"]
    vectors = top_vectors(block(tiny, 0, "fc1.weight"), 4)
    expected = torch.linalg.svdvals(vectors.T.reshape(4, 12, 64))[:, :10]
    for mark, row in zip(marks, expected, strict=True):
        assert mark.y == pytest.approx(row.tolist(), abs=1e-4)


def test_one_seed_is_enough(small_study: Callable[[str], Study], shop: Workshop) -> None:
    study = small_study(NAME)
    one = dataclasses.replace(TINY, seeds=(0,))
    setting = dataclasses.replace(study.settings["laptop"], casts=(one,))
    result = run_study(dataclasses.replace(study, settings={"laptop": setting}), shop)
    chance = max(_chance(12, 64), _chance(12, 12), _chance(10, 12))
    assert numbers_of(result)["wu.fig22.rank-one.random"] == pytest.approx(chance)


@pytest.fixture
def wide() -> Cast:
    """Layers of (20, 12) and (3, 20): more outputs than the 15 pairs of the setting."""
    x = torch.randn(40, 12, generator=torch.Generator().manual_seed(0)) + 0.5

    def build(seed: int) -> nn.Module:
        return nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 3))

    own = Own(build, DataSet("x", x, x[:, :3].argmax(1), 3))
    return dataclasses.replace(TINY, model="net.py:build", samples=None, own=own)


def test_of_own_layers_all_m_are_looked_at(
    small_study: Callable[[str], Study], empty_shop: Workshop, wide: Cast
) -> None:
    result = run_study(small_study(NAME), empty_shop, own=wide)
    means = []
    for seed in (0, 1):
        vectors = top_vectors(block(empty_shop.networks(wide), seed, "0.weight"), 20)
        means.append(torch.linalg.svdvals(vectors.T.reshape(20, 20, 12))[:, 0].mean())
    table = result.sheets[0].columns
    assert table["mean of first m"][0] == pytest.approx(float(sum(means) / 2), abs=1e-5)
    assert len(result.pictures()[0].panels[0].marks[1].y) == 24


def test_where_fewer_than_m_were_taken_nothing_is_said_of_m(
    small_study: Callable[[str], Study],
    empty_shop: Workshop,
    wide: Cast,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(portrait, "_MOST_NUMBERS", 0)
    result = run_study(small_study(NAME), empty_shop, own=wide)
    table = result.sheets[0].columns
    assert table["mean of first m"][0] is table["smallest of first m"][0] is None
    assert numbers_of(result)["wu.fig22.rank-one.top"] == 1.0  # of the other layer
    words = "Of 0 of net.py:build (digits) 15 eigenvectors were taken, and m = 20: nothing is said"
    assert any(note.startswith(words) for note in result.notes)


def test_the_shapes_of_ones_own_layers_are_not_judged(
    small_study: Callable[[str], Study], empty_shop: Workshop, wide: Cast
) -> None:
    result = run_study(small_study(NAME), empty_shop, own=wide)
    status = {finding.id: finding.status for finding in result.findings}
    assert status["wu.fig22.rank-one.random"] == "not run"
    assert _chance(3, 20) > 0.5 > _chance(20, 12)
    assert result.notes[-1] == (
        "Random matrices of the shape of 2 (3 × 20) are above 0.5 too: there rank one says little."
    )


def test_shapes_of_the_papers_layers_are(ran: Callable[[str], StudyResult]) -> None:
    assert "wu.fig22.rank-one.random" in numbers_of(ran(NAME))
    assert not [note for note in ran(NAME).notes if "says little" in note]
