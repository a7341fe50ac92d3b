"""Sentences that say what the numbers say."""

import dataclasses

import pytest
import torch

import eigenscape as es
from eigenscape.analyses import analyze, outliers
from eigenscape.analyses.whole import findings
from eigenscape.analyses.whole._subsample import Subsample
from tests.analyses.whole.test_outliers import pairs_of
from tests.small_net import X, Y, net


@pytest.fixture(scope="module")
def analysis() -> es.Analysis:
    model = net().double()
    return analyze(es.EmpiricalRisk(model, es.CrossEntropy(), (X, Y)), budget="quick")


def test_the_point(analysis: es.Analysis) -> None:
    text = findings.describe_point(dataclasses.replace(analysis.point, loss=0.5, accuracy=0.25))
    assert "The loss is 0.5 (accuracy 25.0 %)" in text
    assert "accuracy" not in findings.describe_point(
        dataclasses.replace(analysis.point, accuracy=None)
    )


def test_the_ends(analysis: es.Analysis) -> None:
    hessian = dataclasses.replace(
        analysis.hessian, largest=pairs_of([4.0, 1.0], 0.1), smallest=pairs_of([-1.0], 0.2)
    )
    text = findings.describe_ends(hessian)
    assert "4 ± 0.1" in text
    assert "overshoots with steps above 0.5" in text
    assert "curves downwards by up to 0.25 of λ₁" in text
    unsure = dataclasses.replace(hessian, smallest=pairs_of([-1.0], 2.0))
    assert "curve" not in findings.describe_ends(unsure).partition("The smallest")[2]
    upwards = dataclasses.replace(hessian, smallest=pairs_of([0.5], 0.1))
    assert "every direction curves upwards" in findings.describe_ends(upwards)
    concave = dataclasses.replace(hessian, largest=pairs_of([-1.0], 0.1))
    assert "steps above" not in findings.describe_ends(concave)
    assert "no direction curves upwards" in findings.describe_ends(concave)


@pytest.mark.parametrize(
    ("values", "classes", "words"),
    [
        ([9.0, 8.0, 1.0, 0.9], 3, "2 eigenvalues stand apart: the next is 8.0 times smaller. This"),
        ([9.0, 8.0, 1.0, 0.9], 3, "classes minus one"),
        ([9.0, 8.0, 1.0, 0.9], 2, "This is the number of classes."),
        ([9.0, 8.0, 1.0, 0.9], 7, "The data have 7 classes."),
        ([9.0, 8.0, 1.0, 0.9], None, "8.0 times smaller."),
        ([9.0, 1.0, 0.9, 0.8], None, "1 eigenvalue stands apart"),
        ([4.0, 3.5, 3.0, 2.7], 4, "after C − 1 = 3 of them the ratio is 1.11"),
        ([4.0, 3.5, 3.0, 2.7], None, "No gap stands out among the 4 largest eigenvalues."),
    ],
)
def test_outliers(values: list[float], classes: int | None, words: str) -> None:
    assert words in findings.describe_outliers(outliers(pairs_of(values), num_classes=classes))


def test_outliers_within_the_residuals_are_none() -> None:
    record = outliers(pairs_of([9.0, 2.0, 1.9], residual=4.0))
    assert "No gap stands out" in findings.describe_outliers(record)


def test_ratios_beside_what_is_not_positive_are_not_written() -> None:
    record = outliers(pairs_of([4.0, 3.5, -1.0, -2.0]), num_classes=3)
    assert findings.describe_outliers(record) == (
        "No gap stands out among the 4 largest eigenvalues."
    )


def test_fewer_pairs_than_classes() -> None:
    record = outliers(pairs_of([4.0, 3.5, 3.0, 2.7]), num_classes=100)
    assert findings.describe_outliers(record).endswith("fewer than the 100 classes.")


def test_parts_gradient_and_blocks(analysis: es.Analysis) -> None:
    half = dataclasses.replace(analysis.residual, frobenius=analysis.hessian.frobenius / 2)
    assert "‖H − G‖ is 0.5 of ‖H‖" in findings.describe_parts(analysis.hessian, half)
    more = dataclasses.replace(analysis.residual, frobenius=2 * analysis.hessian.frobenius)
    assert "no approximation" in findings.describe_parts(analysis.hessian, more)
    none = dataclasses.replace(analysis.residual, frobenius=0.0)
    assert "up to rounding" in findings.describe_parts(analysis.hessian, none)
    overlap = dataclasses.replace(
        analysis.gradient_overlap,
        shares=torch.tensor([0.1, 0.2, 0.75, 0.9]),
        chance=torch.tensor([0.01, 0.02, 0.03, 0.04]),
    )
    assert findings.describe_gradient(overlap, 3).startswith("75 % of the squared gradient")
    assert "the 4 top" in findings.describe_gradient(overlap, None)
    blocks = dataclasses.replace(analysis.blocks, values=torch.tensor([[3.0, 1.0], [1.0, 5.0]]))
    assert findings.describe_blocks(blocks).startswith("94 %")  # (9 + 25)/36


def test_layers(analysis: es.Analysis) -> None:
    first, last = analysis.layers.layers
    sharp = dataclasses.replace(
        first, values=first.values + 100.0, trace=30.0, kronecker_overlap=torch.tensor([1.0, 0.5])
    )
    plain = dataclasses.replace(last, trace=10.0, kronecker_overlap=torch.tensor([1.0, 0.9]))
    layers = dataclasses.replace(analysis.layers, layers=(sharp, plain))
    text = findings.describe_layers(layers)
    assert f"sharpest layer is {first.name}, with 75 % of the trace" in text
    assert f"50 % ({first.name}) to 90 % ({last.name})" in text
    alone = dataclasses.replace(
        layers, layers=(dataclasses.replace(sharp, kronecker_overlap=None),)
    )
    assert findings.describe_layers(alone) == f"The sharpest layer is {first.name}."


def test_shares_of_a_trace_that_may_be_negative_are_not_written(analysis: es.Analysis) -> None:
    first, last = analysis.layers.layers
    sharp = dataclasses.replace(first, values=first.values + 100.0, trace=30.0, trace_stderr=0.5)
    negative = dataclasses.replace(last, trace=-20.0)
    layers = dataclasses.replace(analysis.layers, layers=(sharp, negative))
    text = findings.describe_layers(layers)
    assert f"sharpest layer is {first.name} (trace 30 ± 0.5)" in text
    assert "% of the trace" not in text


def test_what_is_missing_is_not_described(analysis: es.Analysis) -> None:
    alone = dataclasses.replace(
        analysis, hessian=None, outliers=None, gradient_overlap=None, layers=None, blocks=None
    )
    assert findings.describe(alone) == (findings.describe_point(analysis.point),)


def test_a_zero_hessian(analysis: es.Analysis) -> None:
    nothing = pairs_of([0.0, 0.0])
    nodes = torch.zeros_like(analysis.hessian.density.nodes)
    density = dataclasses.replace(analysis.hessian.density, nodes=nodes)
    zero = dataclasses.replace(
        analysis.hessian, largest=nothing, smallest=nothing, density=density, frobenius=0.0
    )
    assert findings.describe_ends(zero) == "All eigenvalues of the Hessian are zero."
    assert findings.describe_parts(zero, analysis.residual).startswith("The Hessian is zero, and")


def test_a_subsample_is_named_and_not_judged_alone() -> None:
    chosen = Subsample(3, 64, torch.tensor([4, 17, 60]), 0)
    assert "3 of 64 samples, drawn with seed 0: 4, 17, 60" in findings.describe_subsample(
        chosen, None
    )
    assert "is not known" in findings.describe_subsample(chosen, None)
