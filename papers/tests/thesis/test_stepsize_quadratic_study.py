import math
from collections.abc import Callable

import pytest
import torch

from eigenscape_papers.runner import StudyResult
from eigenscape_papers.stepsize import (
    Quadratic,
    meta_descent,
    meta_gradient,
    meta_objective,
    optimal_step_size,
    random_quadratic,
)
from eigenscape_papers.studies import STUDIES
from eigenscape_papers.thesis import CELLS, least_rise
from papers.tests.conftest import numbers_of

NAME = "thesis-stepsize-quadratic"


def test_every_claim_is_measured_and_every_bound_holds(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    assert ours.keys() == {claim.id for claim in STUDIES[NAME].claims}
    assert 0 < ours["thesis.theorem5.3.1.vanishes"] <= 1
    assert ours["thesis.theorem5.3.1.explodes"] >= 1
    assert ours["thesis.theorem5.3.1.convex"] > 1e-3
    assert ours["thesis.claimd.1.1.signs"] == 0
    assert 0 < ours["thesis.claimd.1.2.bounded"] <= 1
    assert ours["thesis.claimd.1.3.not-flat"] >= 1
    assert ours["thesis.theorem5.3.2.quadrature"] < 1e-9


def test_numbers_of_the_only_draw(ran: Callable[[str], StudyResult]) -> None:
    ours = numbers_of(ran(NAME))
    q = Quadratic.of(*random_quadratic())
    best = optimal_step_size(q, num_steps=40)
    assert ours["thesis.figure5.1.best"] == pytest.approx(best, rel=1e-5)
    power = float(meta_objective(q, 0.1, num_steps=80)) * 80 / math.log(10)
    assert ours["thesis.corollary5.3.3.range"] == pytest.approx(power)
    path = meta_descent(q, num_steps=80, start=0.1, num_meta_steps=300)
    off = abs(float(path[-1]) / optimal_step_size(q, num_steps=80) - 1)
    assert ours["thesis.figure5.1.converges"] == pytest.approx(off)


@pytest.mark.parametrize("t", [1, 10, 40])
def test_the_measure_of_convexity_can_fail(t: int) -> None:
    q = Quadratic.of(*random_quadratic())
    eta = torch.linspace(0.05, 6.0, 400) / q.smoothness
    values = meta_objective(q, eta, num_steps=t, log=False)
    middle = meta_objective(q, (eta[:-2] + eta[2:]) / 2, num_steps=t, log=False)
    assert bool((middle < (values[:-2] + values[2:]) / 2).all())  # by the definition
    assert least_rise(meta_gradient(q, eta, num_steps=t, log=False)) > 1e-3
    assert least_rise(meta_gradient(q, eta, num_steps=t)) < -1e-3  # the logarithm's is none


def test_the_closed_form_has_no_more_steps_than_its_rivals(
    ran: Callable[[str], StudyResult],
) -> None:
    q, found = Quadratic.of(*random_quadratic()), []
    for _, t, start, _ in CELLS:
        path = meta_descent(q, num_steps=t, start=start, num_meta_steps=150)  # as in this small run
        best = optimal_step_size(q, num_steps=t)
        found.append(abs(float(path[-100:].mean()) / best - 1) < 0.25)
    assert ran(NAME).sheets[0].columns["closed form"] == tuple(found)
    assert not all(found)  # in 1000 steps all converge


def test_tables_are_laid_out_as_in_the_thesis(ran: Callable[[str], StudyResult]) -> None:
    result = ran(NAME)
    columns = result.sheets[0].columns
    assert len(columns["t"]) == len(CELLS)
    assert columns["thesis: RMSprop"] == tuple(cell[3] for cell in CELLS)
    ours = numbers_of(result)
    agree = [a == b for a, b in zip(columns["RMSprop"], columns["thesis: RMSprop"], strict=True)]
    assert ours["thesis.tabled.rmsprop"] == sum(agree) / len(agree)
    assert ours["thesis.tabled.ours"] == sum(columns["closed form"]) / len(CELLS)
    assert ours["thesis.tabled.descent"] == 1 - sum(columns["descent"]) / len(CELLS)
