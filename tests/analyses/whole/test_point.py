"""Loss, gradient and accuracy at a point."""

import pytest
import torch
from torch import nn

import eigenscape as es
from eigenscape.analyses import point
from tests.small_net import LOADER, X, Y, net

MODEL = net().double()


@pytest.mark.parametrize("batch_size", [None, 7])
def test_loss_gradient_and_accuracy(batch_size: int | None) -> None:
    here = point(es.EmpiricalRisk(MODEL, es.CrossEntropy(), (X, Y), batch_size=batch_size))
    loss = nn.functional.cross_entropy(MODEL(X), Y)
    gradient = torch.autograd.grad(loss, list(MODEL.parameters()))
    flat = torch.cat([g.flatten() for g in gradient])
    assert here.loss == pytest.approx(loss.item())
    torch.testing.assert_close(here.gradient, flat)
    assert here.gradient_norm == pytest.approx(flat.norm().item())
    assert here.accuracy == pytest.approx((MODEL(X).argmax(1) == Y).double().mean().item())
    assert (here.num_samples, here.num_classes) == (len(X), MODEL(X).shape[1])
    weights = torch.cat([p.flatten() for p in MODEL.parameters()])
    assert here.parameter_norm == pytest.approx(weights.norm().item())


def test_a_loader_gives_the_same() -> None:
    whole = point(es.EmpiricalRisk(MODEL, es.CrossEntropy(), (X, Y)))
    parts = point(es.EmpiricalRisk(MODEL, es.CrossEntropy(), LOADER))
    assert (parts.loss, parts.accuracy) == pytest.approx((whole.loss, whole.accuracy))


def test_ignored_terms_do_not_count() -> None:
    Z = Y.clone()
    Z[: len(Y) // 2] = -100
    here = point(es.EmpiricalRisk(MODEL, es.CrossEntropy(), (X, Z)))
    kept = slice(len(Y) // 2, None)
    assert here.accuracy == pytest.approx((MODEL(X[kept]).argmax(1) == Y[kept]).double().mean())
    assert here.num_terms == len(Y) - len(Y) // 2


def test_positions_of_a_sequence_are_terms() -> None:
    model = nn.Linear(3, 4)
    x, y = torch.randn(5, 6, 3), torch.randint(0, 4, (5, 6))
    here = point(es.EmpiricalRisk(model, es.CrossEntropy(), (x, y)))
    assert here.accuracy == pytest.approx((model(x).argmax(2) == y).double().mean().item())
    assert (here.num_terms, here.num_classes) == (30, 4)


def test_regression_has_no_classes() -> None:
    here = point(es.EmpiricalRisk(nn.Linear(3, 2), es.SquaredError(), (X[:, :3], X[:, :2])))
    assert (here.accuracy, here.num_classes) == (None, None)


def test_soft_targets_have_classes_and_no_accuracy() -> None:
    soft = torch.softmax(torch.randn(len(X), MODEL(X).shape[1]), 1)
    here = point(es.EmpiricalRisk(MODEL, es.CrossEntropy(), (X, soft)))
    assert here.accuracy is None
    assert here.num_classes == soft.shape[1]
