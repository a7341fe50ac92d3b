"""Predicted costs against what is counted by hand, and against what a layer really takes."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from eigenscape.curvature import LayerHessian
from eigenscape.curvature.layers.costs import (
    Limits,
    Live,
    Sizes,
    Work,
    plan_layer,
    stored_candidates,
    tail_candidate,
)
from eigenscape.curvature.products.plan import Plan
from eigenscape.risk import CrossEntropy, EmpiricalRisk, find_layer
from tests.contracts.layer_cases import X, Y, image_risk

BUDGET = 2**30
CPU = Limits("cpu", BUDGET, 8)


def plan_of(
    risk: EmpiricalRisk, name: str, *, obstacle: str | None = None, machine: Limits = CPU
) -> tuple[Plan, Work | None]:
    layer = find_layer(risk, name)
    restricted = risk.restricted(layer.params)
    return plan_layer(
        restricted,
        layer,
        machine,
        torch.randn(1, restricted.space.size),
        obstacle=obstacle,
        num_products=100,
        storage=8,
        asked="auto",
    )


def dense_risk(batch_size: int | None = None, act: type[nn.Module] = nn.ReLU) -> EmpiricalRisk:
    model = nn.Sequential(nn.Linear(4, 6), act(), nn.Linear(6, 3))
    return EmpiricalRisk(model, CrossEntropy(), (X, Y), batch_size=batch_size)


# --- memory that lives ---------------------------------------------------------------------------


def test_memory_is_counted_while_it_lives() -> None:
    before = torch.ones(50)
    with Live() as live:
        first = before * 2  # 400 bytes
        second = first + 1  # 800
        del first
        third = second.sum()  # 408
        view = second[3:]
        fourth = torch.ones(10)  # 488
    assert live.now == 488
    assert live.peak == 800
    del second, third, fourth
    assert live.now == 400  # the view keeps what it looks at
    del view
    assert live.now == 0


def test_memory_from_before_is_nobodys() -> None:
    before = torch.ones(50)
    with Live() as live:
        before.mul_(2)
        view = before.view(5, 10)
    assert live.now == live.peak == 0
    assert view.shape == (5, 10)


# --- counted by hand -----------------------------------------------------------------------------


def test_work_of_a_small_tail_is_what_it_is_by_hand() -> None:
    plan, work = plan_of(dense_risk(), "0")
    assert work is not None
    # ż = X Vᵀ, then through W₂ and back to the layer's output; X, V and W̃ again: 2 N m n each.
    assert work.flops == 2 * 11 * 4 * 6 * 2 + 2 * 11 * 6 * 3 * 2
    assert (work.num_batches, work.batch_share, work.num_roots) == (1, 1.0, 3)
    assert [c.representation for c in plan.candidates] == [
        "factors", "streamed", "dense", "full", "tail",
    ]  # fmt: skip


def test_sizes_are_read_off_the_layer() -> None:
    plan, _ = plan_of(dense_risk(), "0")
    factors, dense = plan.candidate("factors"), plan.candidate("dense")
    held = 8 * 11 * (5 + 3 * 6)  # x̃ with its 1, and three roots of length 6
    assert factors.nbytes == held
    assert factors.product_flops == 4 * 11 * 6 * (5 + 3)
    assert dense.nbytes == 8 * 30**2
    assert dense.product_flops == 2 * 30**2
    assert factors.build_passes == dense.build_passes == 3


def test_factors_take_what_was_predicted() -> None:
    for name, batch_size in (("0", 4), ("4", 3), ("8", None)):
        risk = image_risk(batch_size)
        predicted = plan_of(risk, name)[0].candidate("factors").nbytes
        operator = LayerHessian(risk, name, representation="factors")
        operator @ torch.ones(operator.shape[0])
        assert operator.kept_bytes == predicted


def test_smaller_numbers_take_less() -> None:
    sizes = Sizes(N=70, P=3, C=5, n=11, m=7, q=77, made=88, kept=88, size=8, storage=8, copies=1)
    work = Work(1e6, 1e4, 1e3, 1e4, 2e4, num_batches=2, batch_share=0.5, num_roots=5)
    exact = stored_candidates(sizes, work, CPU, asked="auto")[0]
    rounded = replace(sizes, kept=22, storage=2)
    assert stored_candidates(rounded, work, CPU, asked="auto")[0].nbytes == exact.nbytes / 4


# --- what can be used ----------------------------------------------------------------------------


def test_an_obstacle_leaves_the_full_product() -> None:
    plan, work = plan_of(dense_risk(), "0", obstacle="because")
    assert (plan.chosen, work) == ("full", None)
    assert {c.obstacle for c in plan.candidates[:-1]} == {"because"}


def test_a_curved_tail_leaves_the_tail() -> None:
    plan, work = plan_of(dense_risk(act=nn.Tanh), "0")
    assert plan.chosen == "tail"
    assert work is not None
    assert work.num_roots is None
    for name in ("factors", "streamed", "dense"):
        assert "piecewise linear" in str(plan.candidate(name).obstacle)


def test_streaming_needs_two_memories() -> None:
    plan, _ = plan_of(dense_risk(), "0")
    assert plan.candidate("streamed").obstacle == "the host's memory is the device's"


def test_kept_graphs_are_those_that_fit() -> None:
    work = Work(1e6, 1000.0, 100.0, 500.0, 700.0, num_batches=4, batch_share=0.25, num_roots=None)
    each = 100.0 + 30 * (8 + 8)
    tried = 1000.0 + 100 + 30 * (3 * 8 + 8)  # two vectors and a product, and one in float64
    for budget, graphs in ((4000, 4), (3999, 4), (2000, 3), (1, 1)):
        candidate = tail_candidate(work, replace(CPU, budget=budget), 30, is_fixed=True)
        # One that is not kept is there beside the others.
        assert candidate.peak == max(graphs * 1000 + each, tried)
        assert candidate.nbytes == 4000
    assert tail_candidate(work, CPU, 30, is_fixed=False).peak == tried
    assert tail_candidate(work, CPU, 30, is_fixed=True).passes == 8


def test_ragged_batches_count_by_the_largest() -> None:
    uncut, cut = (plan_of(dense_risk(size), "2")[1] for size in (None, 4))
    assert uncut is not None
    assert cut is not None
    assert (cut.num_batches, cut.batch_share) == (3, 4 / 11)
    assert cut.flops == uncut.flops
    assert cut.graph < uncut.graph


def test_a_plan_leaves_the_model_as_it_is() -> None:
    risk = dense_risk()
    with torch.no_grad():
        value = float(F.cross_entropy(risk.module(X), Y))
    before = [p.clone() for p in risk.module.parameters()]
    plan_of(risk, "0")
    assert all(torch.equal(p, q) for p, q in zip(risk.module.parameters(), before, strict=True))
    assert float(risk.value()) == pytest.approx(value)
