import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from eigenscape_papers.runner import StudyResult
from eigenscape_papers.stepsize import Tasks, descend, draw_tasks, learn_step_size
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.thesis import stepsize_tasks_study as stepsize_tasks
from eigenscape_papers.thesis.stepsize_tasks_study import (
    _contraction,
    _figures,
    _slope,
    _two_thirds,
)
from papers.tests.conftest import numbers_of

NAME = "thesis-stepsize-tasks"
pytestmark = pytest.mark.filterwarnings("ignore::eigenscape.errors.ConvergenceWarning")


def gap(noise: float, n: int) -> float:
    setting = {"num_samples": n, "dimension": 24, "noise": noise, "num_steps": 40, "num_tasks": 12}
    train, valid = (learn_step_size(name, **setting) for name in ("training", "validation"))
    return float(train.test_rmse.mean() - valid.test_rmse.mean())


def test_every_claim_of_any_size_is_measured(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    expected = {claim.id for claim in STUDIES[NAME].claims if "laptop" in claim.scales}
    assert ours.keys() == expected
    assert all(math.isfinite(value) for value in ours.values())


def test_gaps_are_those_of_the_library(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    one, two = gap(1.0, 12), gap(2.0, 12)
    assert ours["thesis.figure5.2.validation-wins"] == pytest.approx(min(one, two / 2))
    assert ours["thesis.figure5.2.gap-grows"] == pytest.approx((two - one) / one)
    assert ours["thesis.figure5.2.flips"] == pytest.approx(gap(0.5, 12))
    assert ours["thesis.figure5.3.flips"] == pytest.approx(gap(1.0, 96))
    assert ours["thesis.figure5.3.gap-shrinks"] == pytest.approx(gap(1.0, 96) - one)  # two n alone


def test_a_gap_that_rises_on_its_way_does_not_shrink() -> None:
    (claim,) = (c for c in STUDIES[NAME].claims if c.id == "thesis.figure5.3.gap-shrinks")
    for gaps, rise in (
        ((0.05, 0.19, 0.41, 0.13, -0.03), 0.22),
        ((0.41, 0.19, 0.13, 0.05, -0.03), -0.06),
    ):
        errors = {(1.0, n): value for n, value in zip((6, 12, 24, 48, 96), gaps, strict=True)}
        errors |= {(0.5, 12): 0.0, (2.0, 12): 1.0}
        found = {
            key: (
                SimpleNamespace(train_rmse=torch.zeros(3), test_rmse=torch.full((3,), 1 + value)),
                SimpleNamespace(train_rmse=torch.zeros(3), test_rmse=torch.ones(3)),
            )
            for key, value in errors.items()
        }
        measured = _figures(found, 24)[claim.id]
        assert measured.ours == pytest.approx(rise)
        assert claim.judge(measured, scale="laptop").status == ("fail" if rise > 0 else "pass")
    assert "n = d" in claim.known


def test_the_objective_at_two_thirds_is_that_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    d, n = 2, 80
    tasks, shares = draw_tasks(100, n, d, noise=1.0), []
    for t in (5, 40):
        parts = []
        for X, y, truth in zip(tasks.inputs, tasks.targets, tasks.truths, strict=True):
            H, fit = X.T @ X / n, torch.linalg.pinv(X) @ y
            left = torch.linalg.matrix_power(torch.eye(d) - 2 / 3 * H, t) @ fit
            noise = y - X @ truth
            unseen = noise - X @ torch.linalg.pinv(X) @ noise
            parts.append(left @ H @ left / 2 + unseen.square().sum() / (2 * n))
        allowed = 20 * (2 / 3) ** (2 * t) + d / (20 * n)
        excess = (torch.stack(parts) - (n - d) / (2 * n)) / allowed
        shares.append((float(excess.mean()), float(excess.std()) / 10))
    found = _two_thirds(d, 100)
    assert (found.ours, found.spread) == pytest.approx(max(shares))

    def short(tasks: Tasks, _: float, *, num_steps: int) -> torch.Tensor:
        return descend(tasks, 0.01, num_steps=num_steps)

    monkeypatch.setattr(stepsize_tasks, "descend", short)
    assert _two_thirds(d, 100).ours > 50  # another step size is not allowed for


def test_theorems_without_constants_of_size(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    assert ours["thesis.lemma5.4.3.monotone"] == 0
    assert 0 < ours["thesis.lemma5.4.3.bound"] < 1
    assert ours["thesis.section5.4.closed-form"] < 5
    assert ours["thesis.lemmad.2.22.moments"] < 0.3


def test_slopes_are_of_logarithms() -> None:
    curves = [(float(t), 5.0, 3.0 / t) for t in (2, 4, 16)]
    assert _slope(curves, 1) == pytest.approx(0.0, abs=1e-12)
    assert _slope(curves, 2) == pytest.approx(-1.0)


def test_the_contraction_lies_between_its_bounds() -> None:
    assert 0 < _contraction(20, 400, 30).ours < 1


def test_pictures_hold_both_ways(ran: Callable[[str], StudyResult]) -> None:
    figures, steps = ran(NAME).pictures()
    assert [panel.x.label for panel in figures.panels] == ["noise σ", "samples n"]
    lines = [mark.label for mark in figures.panels[0].marks if getattr(mark, "label", None)]
    assert lines == ["TbT, test", "TbT, train", "TbV, test", "TbV, train"]
    marks = steps.panels[0].marks
    assert [mark.label for mark in marks] == ["TbT", "TbV", "1/t", "constant"]
    assert all(torch.tensor(mark.y).gt(0).all() for mark in marks)
