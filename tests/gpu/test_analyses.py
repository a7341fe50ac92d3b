"""An analysis on a GPU: the numbers of the CPU, in host memory."""

import copy

import pytest
import torch
from torch import nn

import eigenscape as es
from eigenscape.records import pack
from tests.small_net import X, Y

pytestmark = pytest.mark.gpu


def network() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 5, 2, padding=1), nn.BatchNorm2d(5), nn.ReLU(),
        nn.Flatten(), nn.Linear(45, 8), nn.ReLU(), nn.Linear(8, 3),
    )  # fmt: skip


def test_an_analysis_agrees_with_the_cpu() -> None:
    model = network()
    moved = copy.deepcopy(model).cuda()
    here = es.analyze(es.EmpiricalRisk(model, es.CrossEntropy(), (X, Y)), budget="quick")
    there = es.analyze(es.EmpiricalRisk(moved, es.CrossEntropy(), (X, Y)), budget="quick")
    for one, other in zip(here.columns()["value"], there.columns()["value"], strict=True):
        assert one == pytest.approx(other, rel=1e-6, abs=1e-9)
    for layer, twin in zip(here.layers.layers, there.layers.layers, strict=True):
        assert layer.trace == pytest.approx(twin.trace, rel=1e-6)
        if layer.kronecker_error is not None:
            assert layer.kronecker_error == pytest.approx(twin.kronecker_error, rel=1e-6)
    _, tensors = pack(there)
    assert {tensor.device.type for tensor in tensors.values()} == {"cpu"}


def test_single_questions_answer_on_the_device() -> None:
    risk = es.EmpiricalRisk(network().cuda(), es.CrossEntropy(), (X, Y))
    spectrum = es.matrix_spectrum(es.GaussNewton(risk), "G", num_pairs=4, num_smallest=0)
    assert es.outliers(spectrum.largest).values.numel() == 4
    assert es.gradient_overlap(es.point(risk).gradient, spectrum.largest).shares.numel() == 4
    pairs = es.eigsh(es.LayerHessian(risk, "5"), num_pairs=3)
    kron = es.KroneckerHessian(risk, "5").top_pairs(3)
    assert 0.0 < float(es.eigenspace_overlap(pairs, kron).overlaps[-1]) <= 1.0 + 1e-9
    assert torch.isfinite(kron.residuals).all()
