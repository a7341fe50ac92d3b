import math
from collections.abc import Callable

import pytest
import torch

from eigenscape.report import StudyResult
from eigenscape.stepsize import learn_step_size
from eigenscape.studies import STUDIES
from eigenscape.studies.stepsize_tasks import _contraction, _slope
from tests.studies.conftest import numbers_of

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
    assert ours["thesis.figure5.3.gap-shrinks"] == pytest.approx(gap(1.0, 96) - one)


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
    figures, steps = ran(NAME).pictures
    assert [panel.x.label for panel in figures.panels] == ["noise σ", "samples n"]
    lines = [mark.label for mark in figures.panels[0].marks if getattr(mark, "label", None)]
    assert lines == ["TbT, test", "TbT, train", "TbV, test", "TbV, train"]
    marks = steps.panels[0].marks
    assert [mark.label for mark in marks] == ["TbT", "TbV", "1/t", "constant"]
    assert all(torch.tensor(mark.y).gt(0).all() for mark in marks)
