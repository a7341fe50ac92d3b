"""The row space of the weights above a layer against the top eigenspace of its output Hessian."""

import pytest
import torch
from torch import nn

from eigenscape.analyses import eigenspace_overlap, output_space_overlap
from eigenscape.errors import EmptySelectionError, InvalidArgumentError, UnsupportedModelError
from eigenscape.losses import CrossEntropy, SquaredError
from eigenscape.operators import KroneckerHessian
from eigenscape.risk import EmpiricalRisk


def made(model, x, classes=3, loss=None, **options):
    y = torch.arange(len(x)) % classes
    if loss is not None:
        y = torch.randn(len(x), classes, dtype=torch.float64)
    return EmpiricalRisk(model.double(), loss or CrossEntropy(), (x, y), **options)


def mlp(*sizes):
    layers = []
    for i in range(len(sizes) - 1):
        layers += [nn.ReLU()] * (i > 0) + [nn.Linear(sizes[i], sizes[i + 1])]
    return nn.Sequential(*layers)


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(11, 5, dtype=torch.float64)


@pytest.mark.parametrize("batch_size", [None, 4])
def test_weights_are_multiplied_and_compared_as_written(x, batch_size) -> None:
    model = mlp(5, 7, 6, 3)
    risk = made(model, x, batch_size=batch_size)
    found = output_space_overlap(risk, "0")
    S = (model[4].weight @ model[2].weight).detach()
    spread = (torch.eye(3) - 1 / 3).double() @ S
    basis = torch.linalg.qr(spread.T[:, :2]).Q  # two rows of a matrix of rank two
    M = KroneckerHessian(risk, "0").output_factor
    top = torch.linalg.eigh(M).eigenvectors[:, -2:]
    assert found.dimension == 2
    torch.testing.assert_close(found.overlap, float((top.T @ basis).square().sum()) / 2)
    torch.testing.assert_close(found.trace_share, float((basis.T @ M @ basis).trace() / M.trace()))
    torch.testing.assert_close(found.chance, 2 / 7)
    s = S.sum(0)
    rest = torch.linalg.qr((S - torch.outer(S @ s, s) / (s @ s)).T[:, :2]).Q
    removed = eigenspace_overlap(top, rest).overlaps[-1]
    torch.testing.assert_close(found.overlap_removed, float(removed))
    assert abs(found.overlap - found.overlap_removed) > 1e-4


def test_two_readings_agree_for_orthogonal_rows_and_linear_tails_are_exact(x) -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    with torch.no_grad():
        model[1].weight.copy_(torch.linalg.qr(torch.randn(7, 3)).Q.T)
    found = output_space_overlap(made(model, x), "0")
    torch.testing.assert_close(found.overlap, 1.0)  # E[M] = SᵀE[A]S
    torch.testing.assert_close(found.overlap_removed, 1.0)
    torch.testing.assert_close(found.trace_share, 1.0)
    assert list(found.columns()["layer"]) == ["0"]


def test_gradients_of_a_linear_tail_are_its_weights(x) -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 4), nn.Linear(4, 3))
    risk = made(model, x)
    first, second = (output_space_overlap(risk, "0", space=s) for s in ("weights", "gradients"))
    torch.testing.assert_close(first.overlap, second.overlap)
    torch.testing.assert_close(first.overlap_removed, second.overlap_removed)


def test_a_convolution_has_gradients_but_no_chain() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(2, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(30, 3))
    risk = made(model, torch.randn(6, 2, 4, 3, dtype=torch.float64))
    assert 0 < output_space_overlap(risk, "0", space="gradients").overlap < 1
    with pytest.raises(UnsupportedModelError, match="30 inputs follows 5"):
        output_space_overlap(risk, "0")


def test_squared_error_compares_all_of_the_row_space(x) -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    found = output_space_overlap(made(model, x, loss=SquaredError()), "0")
    assert found.dimension == 3
    torch.testing.assert_close(found.overlap, 1.0)


def test_a_layer_narrower_than_the_classes_is_all_space(x) -> None:
    found = output_space_overlap(made(mlp(5, 2, 6), x, classes=6), "0")
    assert found.dimension == 2
    torch.testing.assert_close(found.overlap, 1.0)


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = self.one(x)
        return self.head(h + torch.relu(self.two(h)))


def test_what_is_no_chain_is_refused(x) -> None:
    with pytest.raises(UnsupportedModelError, match="way round"):
        output_space_overlap(made(Skip(), x), "one")
    norm = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(UnsupportedModelError, match="BatchNorm1d follows"):
        output_space_overlap(made(norm, x), "0")
    with pytest.raises(UnsupportedModelError, match="needs a linear layer"):
        output_space_overlap(made(norm, x), "1")
    with pytest.raises(InvalidArgumentError, match="space="):
        output_space_overlap(made(norm, x), "0", space="rows")
    zero = mlp(5, 4, 3)
    with torch.no_grad():
        zero[2].weight.zero_()
    with pytest.raises(EmptySelectionError, match="S is zero"):
        output_space_overlap(made(zero, x), "0")
