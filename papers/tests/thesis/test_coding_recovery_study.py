from collections.abc import Callable

import pytest
import torch

from eigenscape.records import Line
from eigenscape_papers.representations import (
    initial_dictionary,
    learn_dictionary,
    random_dictionary,
    recovery_error,
    sparse_samples,
)
from eigenscape_papers.runner import StudyResult, Workshop
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.thesis import run_grid
from eigenscape_papers.thesis.coding_recovery_study import _difference, _scaled
from papers.tests.conftest import SMALL, numbers_of

NAME = "thesis-coding-recovery"
OPTIONS = {**SMALL[NAME], "noise": 0.1}


@pytest.mark.parametrize("start", ["sample", "local"])
def test_a_run_is_the_experiment_of_the_thesis(start: str, shop: Workshop) -> None:
    grid = run_grid([{"num_learned": 13}], OPTIONS, start, shop)
    assert grid.shape == (1, 2, 3)
    A = random_dictionary(8, 11, seed=1)
    Y, _ = sparse_samples(A, 53, sparsity=2, noise=0.1, seed=1)
    first = initial_dictionary(Y[40:], 13, seed=1)  # held out
    if start == "local":
        first = torch.cat([A, first[:5]])
    assert grid[0, 1, 0].item() == pytest.approx(recovery_error(A, first), abs=1e-12)
    for i, masked in enumerate((False, True)):
        learned = learn_dictionary(
            Y[:40].float(), first.float(), sparsity=2, masked=masked, epochs=3, seed=1
        )
        ours = recovery_error(A, learned.dictionary)
        assert grid[0, 1, i + 1].item() == pytest.approx(ours, abs=1e-9)


def test_the_claims(ran: Callable[[str], StudyResult], shop: Workshop) -> None:
    ours = numbers_of(ran(NAME))
    sizes = [{"num_learned": p} for p in (8, 16, 40)]
    sample, local = (run_grid(sizes, OPTIONS, s, shop) for s in ("sample", "local"))
    start, base, mask = sample.mean(1).T
    expected = {
        "sample.masking-wins": (base - mask).min(),
        "sample.gap-grows": (base - mask)[2] - (base - mask)[0],
        "sample.baseline-worsens": (base - start)[1:].min(),
        "sample.baseline-worsens-at-n": (base - start)[2],
        "sample.masking-improves": (mask - start)[:2].max(),
        "sample.masking-at-n": (mask - start)[2],
        "sample.first-step": max(base[1] - base[0], mask[1] - mask[0]),
    }
    _, base, mask = local.mean(1).T
    expected |= {
        "local.masking-wins": (base - mask).min(),
        "local.masking-flat": mask.max() - mask.min(),
        "local.baseline-grows": base[2] - base[0],
    }
    for name, value in expected.items():
        assert ours[f"thesis.fig2.1.{name}"] == pytest.approx(float(value), abs=1e-9), name
    noisy = run_grid(
        [{"noise": s, "num_learned": 40} for s in (0.01, 0.1)], OPTIONS, "sample", shop
    )
    _, base, mask = noisy.mean(1).T
    assert ours["thesis.fig2.3.quiet-equal"] == pytest.approx(float(base[0] - mask[0]), abs=1e-9)
    assert ours["thesis.fig2.3.quiet-perfect"] == pytest.approx(float(max(base[0], mask[0])))
    opened = float((base - mask)[1] - (base - mask)[0])
    assert ours["thesis.fig2.3.gap-opens"] == pytest.approx(opened, abs=1e-9)
    quiet, loud = (
        run_grid([{"noise": s, "num_learned": 40}], OPTIONS, "local", shop)[0].mean(0)
        for s in (0.01, 0.1)
    )
    same = float(quiet[1] - quiet[2])
    assert ours["thesis.fig2.3.local.quiet-equal"] == pytest.approx(same, abs=1e-9)
    opened = float(loud[1] - loud[2]) - same
    assert ours["thesis.fig2.3.local.gap-opens"] == pytest.approx(opened, abs=1e-9)
    _, base, mask = run_grid([_scaled(8), _scaled(12)], OPTIONS, "local", shop).mean(1).T
    wins = float((base - mask).min())
    assert ours["thesis.fig2.2.local.masking-wins"] == pytest.approx(wins, abs=1e-9)
    scaled = run_grid([_scaled(8), _scaled(12)], OPTIONS, "sample", shop).mean(1)
    assert ours["thesis.fig2.2.both-degrade"] == pytest.approx(
        float((scaled[1] - scaled[0])[1:].min()), abs=1e-9
    )
    all_but = {claim.id for claim in STUDIES[NAME].claims} - {"thesis.fig2.1.independent"}
    assert ours.keys() == all_but  # a small run is not the setting of the reference


def test_the_picture_tells_where_each_method_spoils_its_start(
    ran: Callable[[str], StudyResult],
) -> None:
    (picture,) = ran(NAME).pictures()
    assert [panel.title for panel in picture.panels[::3]] == [
        "from samples, p' varies",
        "from the truth, p' varies",
    ]
    away = wins = 0
    for panel in picture.panels[:3]:
        start, base, mask = (mark.y for mark in panel.marks if isinstance(mark, Line))
        away += sum(after > before for before, after in zip(start, base, strict=True))
        wins += sum(ours < theirs for theirs, ours in zip(base, mask, strict=True))
    assert f"it started at {away} of 7 points" in picture.shows
    assert f"than the baseline at {wins} of 7 points" in picture.shows


def test_scaled_settings_are_those_of_figure_2_2() -> None:
    assert _scaled(250) == {
        "dimension": 250,
        "num_atoms": 500,
        "num_learned": 1000,
        "sparsity": 12,
        "noise": pytest.approx(250**-0.5),
    }


def test_difference_from_the_reference() -> None:
    sample = torch.tensor([[[0.52, 0.492, 0.45]], [[0.445, 0.454, 0.398]], [[0.379, 0.544, 0.4]]])
    local = torch.tensor([[[0.0, 0.129, 0.153]], [[0, 0.158, 0.147]], [[0, 0.324, 0.157]]])
    assert _difference(sample, local, (200, 400, 1000)) == pytest.approx(0.0)
    local[1, 0, 2] += 0.03
    assert _difference(sample, local, (200, 400, 1000)) == pytest.approx(0.03)
    assert _difference(sample, local, (200, 400, 600)) is None
