"""Plans: what will run, before it runs."""

import pytest

import eigenscape as es
from eigenscape.analyses import BUDGETS, analyze, num_pairs, plan_analysis
from eigenscape.errors import UnknownNameError, WrongTypeError
from tests.small_net import X, Y, net


def risk_of() -> es.EmpiricalRisk:
    return es.EmpiricalRisk(net(), es.CrossEntropy(), (X, Y))


def test_a_plan_names_every_stage_that_then_runs() -> None:
    risk = risk_of()
    plan = plan_analysis(risk, budget="quick")
    analysis = analyze(risk, budget="quick", plan=plan)
    assert [stage.name for stage in plan.stages] == list(analysis.stage_seconds)
    assert analysis.plan is plan
    assert plan.seconds == pytest.approx(sum(stage.seconds for stage in plan.stages))
    assert "minutes" in str(plan)


def test_predicted_products_are_near_those_spent() -> None:
    # Wide enough that eigenvalues are not all of a tiny matrix; a factor of two is what a plan is
    # for: minutes or hours.
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 40), nn.Tanh(), nn.Linear(40, 3))
    risk = es.EmpiricalRisk(model, es.CrossEntropy(), (X, Y))
    plan = plan_analysis(risk)
    analysis = analyze(risk, plan=plan)
    predicted = {stage.name: stage.num_products for stage in plan.stages}
    for spectrum in analysis.spectra():
        assert 0.5 < spectrum.num_products / predicted[spectrum.matrix] < 2.0
    assert 0.3 < analysis.layers.num_products / predicted["layers"] < 2.0
    assert plan.memory_bytes > 0
    arrays = [s.largest.vectors.numel() + s.smallest.vectors.numel() for s in analysis.spectra()]
    assert 8 * sum(arrays) <= plan.disk_bytes <= 8 * sum(arrays) + 8 * risk.space.size


def test_enough_pairs_for_the_classes() -> None:
    quick = BUDGETS["quick"]
    assert num_pairs("Hessian", quick, None) == (8, 1)
    assert num_pairs("Hessian", quick, 10) == (14, 1)
    assert num_pairs("Gauss-Newton", quick, 18) == (22, 0)
    assert num_pairs("residual", BUDGETS["thorough"], 10) == (4, 4)


def test_budgets_grow() -> None:
    small, middle, large = (BUDGETS[name] for name in ("quick", "standard", "thorough"))
    for field in ("num_pairs", "num_smallest", "num_steps", "num_probes", "num_layer_pairs"):
        assert getattr(small, field) < getattr(middle, field) < getattr(large, field)
    assert small.tolerance > middle.tolerance > large.tolerance


def test_refusals() -> None:
    with pytest.raises(UnknownNameError, match="quick"):
        plan_analysis(risk_of(), budget="fast")
    with pytest.raises(WrongTypeError, match="Budget"):
        plan_analysis(risk_of(), budget=3)
