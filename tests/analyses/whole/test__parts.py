"""How parts of an analysis are computed, and what tells one analysis from another."""

import dataclasses

import pytest
import torch

import eigenscape as es
from eigenscape.analyses.whole import _parts
from eigenscape.analyses.whole._budget import BUDGETS
from eigenscape.errors import EmptySelectionError
from tests.small_net import X, Y, net

QUICK = BUDGETS["quick"]


def risk_of(model: torch.nn.Module | None = None) -> es.EmpiricalRisk:
    return es.EmpiricalRisk(model or net(), es.CrossEntropy(), (X, Y))


def test_another_network_budget_or_seed_is_another_analysis() -> None:
    model = net()
    key = _parts.key_of(risk_of(model), QUICK, 0)
    assert key == _parts.key_of(risk_of(model), QUICK, 0)
    others = [
        _parts.key_of(risk_of(net()), QUICK, 0),
        _parts.key_of(risk_of(model), dataclasses.replace(QUICK, num_pairs=9), 0),
        _parts.key_of(risk_of(model), QUICK, 1),
        _parts.key_of(es.EmpiricalRisk(model, es.CrossEntropy(), (X + 1, Y)), QUICK, 0),
    ]
    assert key not in others


def test_eigenvectors_that_are_too_large_are_left_out() -> None:
    found = _parts.Measure(risk_of(), QUICK, 0).spectrum("Hessian", 3, None, None)
    whole = found.largest.vectors.numel() * found.largest.vectors.element_size()
    assert _parts.slim(found, whole).largest.vectors.shape == found.largest.vectors.shape
    assert _parts.slim(found, whole - 1).largest.vectors.shape == (found.size, 0)
    assert _parts.slim(None, whole) is None


def test_other_samples_are_looked_at_as_the_first_were() -> None:
    budget = dataclasses.replace(QUICK, num_steps=43, num_probes=8, tolerance=1e-6)
    risk = risk_of()
    other = _parts.Measure(risk, budget, 0).others(30, None, None)
    chosen = other.subsample.numbers
    assert len(chosen) == 30
    own = es.EmpiricalRisk(risk.module, es.CrossEntropy(), (X[chosen], Y[chosen]))
    H = es.Hessian(own).to_dense()
    assert other.loss == pytest.approx(own.value())
    assert other.largest == pytest.approx(float(torch.linalg.eigvalsh(H)[-1]), rel=1e-6)
    assert abs(other.trace - float(H.trace())) <= 5 * other.trace_stderr


def test_where_all_samples_were_looked_at_there_are_no_others() -> None:
    with pytest.raises(EmptySelectionError, match="no other samples"):
        _parts.Measure(risk_of(), QUICK, 0).others(70, None, None)
