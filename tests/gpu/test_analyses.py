"""An analysis on a GPU: the numbers of the CPU, in host memory."""

import copy

import pytest
import torch
from torch import nn

import eigenscape as es
from eigenscape.analyses import eigenspace_overlap, matrix_spectrum, outliers, point
from eigenscape.records import pack
from eigenscape.structure import class_span
from eigenscape_papers.papyan import separation
from eigenscape_papers.papyan.attribution import _rotation
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
    spectrum = matrix_spectrum(es.GaussNewton(risk), "G", num_pairs=4, num_smallest=0)
    assert outliers(spectrum.largest).values.numel() == 4
    assert es.gradient_overlap(point(risk).gradient, spectrum.largest).shares.numel() == 4
    pairs = es.eigsh(es.LayerHessian(risk, "5"), num_pairs=3)
    kron = es.KroneckerHessian(risk, "5").top_pairs(3)
    assert 0.0 < float(eigenspace_overlap(pairs, kron).overlaps[-1]) <= 1.0 + 1e-9
    assert torch.isfinite(kron.residuals).all()


def test_the_span_of_gradients_is_that_of_the_cpu() -> None:
    model = network().double()
    here = class_span(es.EmpiricalRisk(model, es.CrossEntropy(), (X.double(), Y)))
    moved = es.EmpiricalRisk(model.cuda(), es.CrossEntropy(), (X.double(), Y))
    there = class_span(moved)
    torch.testing.assert_close(there.values.cpu(), here.values, rtol=1e-9, atol=1e-14)
    for name in ("class", "cross", "within"):
        ours, theirs = (torch.linalg.eigvalsh(one.part(name).to_dense()) for one in (there, here))
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-8, atol=1e-13)


@pytest.mark.parametrize("d", [5, 40])  # fewer than samples, more
def test_separation_agrees_with_the_cpu(d: int) -> None:
    y = torch.arange(30) % 7 % 3
    h = torch.randn(30, d, dtype=torch.float64) + 2 * torch.randn(3, d, dtype=torch.float64)[y]
    others = {"one": h + 0.1}, y
    here = separation({"one": h}, y, held_out=others)
    there = separation({"one": h.cuda()}, y.cuda(), held_out=others)
    ours, theirs = here.columns(), there.columns()
    assert ours.pop("layer") == theirs.pop("layer")
    for name, column in ours.items():  # within a mapping `approx` would ask lists to be equal
        assert column == pytest.approx(theirs[name]), name


@pytest.mark.parametrize("n", [30, 28_157_706])  # the latter is VGG11's, which cuFFT refuses
def test_a_random_rotation_is_undone(n: int) -> None:
    class Nothing(es.LinearOperator):
        space = es.ParamSpace({"w": (n,)})
        dtype, device, is_symmetric = torch.float32, torch.device("cuda"), True

        def matmat(self, X: torch.Tensor) -> torch.Tensor:
            return X

    rotation = _rotation(Nothing(), 3, 0)
    X = torch.randn(n, 3, device="cuda")
    turned = rotation(X, False)
    torch.testing.assert_close(turned.norm(dim=0), X.norm(dim=0), rtol=1e-5, atol=0)
    torch.testing.assert_close(rotation(turned, True), X, rtol=0, atol=1e-5)
