"""What products take, learnt on few samples."""

import pytest

import eigenscape as es
from eigenscape.analyses.whole._timing import few_samples, guessed_rates, rates
from tests.small_net import X, Y, net


def risk_of() -> es.EmpiricalRisk:
    return es.EmpiricalRisk(net(), es.CrossEntropy(), (X, Y), batch_size=35)


def test_quick_gradients_need_no_fewer_samples() -> None:
    risk = risk_of()
    few = few_samples(risk, 0.01)
    assert few.risk is risk
    assert (few.scale, few.batch_scale) == (1.0, 1.0)


def test_slow_gradients_are_timed_on_fewer_samples_and_scaled() -> None:
    few = few_samples(risk_of(), 1.5)  # 0.15 of 1.5 seconds: a tenth
    assert few.risk.num_samples == 7
    assert few.scale == 10.0
    assert few.batch_scale == 35 / max(batch.size for batch in few.risk.batches)


def test_rates_count_their_products() -> None:
    few = few_samples(risk_of(), 0.01)
    found = rates(es.Hessian(few.risk), few, 4)
    assert found.first > 0
    assert 0 < found.shared <= found.first + found.alone
    # One first, one alone at least, and four that share at least.
    assert found.num_products >= 6


def test_what_cannot_be_timed_is_guessed() -> None:
    few = few_samples(risk_of(), 2.0)
    assert guessed_rates(few).alone == pytest.approx(5.0)
    assert guessed_rates(few).num_products == 0
