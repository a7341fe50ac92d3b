"""The row space of the weights above a layer against the top eigenspace of its output Hessian."""

import pytest
import torch
from torch import nn

from eigenscape.analyses import eigenspace_overlap
from eigenscape.curvature import KroneckerHessian
from eigenscape.errors import EmptySelectionError, InvalidArgumentError, UnsupportedModelError
from eigenscape.risk import CrossEntropy, EmpiricalRisk, SquaredError
from eigenscape_papers.wu import output_space_overlap


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
    first, second, third = (
        output_space_overlap(risk, "0", space=s) for s in ("weights", "gradients", "firing")
    )
    for other in (second, third):
        torch.testing.assert_close(first.overlap, other.overlap)
        torch.testing.assert_close(first.overlap_removed, other.overlap_removed)


@pytest.mark.parametrize("batch_size", [None, 4])
def test_firing_rates_stand_between_the_weights(x, batch_size) -> None:
    model = mlp(5, 7, 6, 3)
    risk = made(model, x, batch_size=batch_size)
    below = model[0](x)
    rates = (below > 0).double().mean(0), (model[2](below.relu()) > 0).double().mean(0)
    S = (model[4].weight * rates[1]) @ (model[2].weight * rates[0])
    basis = torch.linalg.qr((S - S.mean(0)).detach().T[:, :2]).Q
    M = KroneckerHessian(risk, "0").output_factor
    top = torch.linalg.eigh(M).eigenvectors[:, -2:]
    found = output_space_overlap(risk, "0", space="firing")
    torch.testing.assert_close(found.overlap, float((top.T @ basis).square().sum()) / 2)
    torch.testing.assert_close(found.values, torch.linalg.eigvalsh(M).flip(0))
    assert abs(found.overlap - output_space_overlap(risk, "0").overlap) > 1e-3


def test_lists_give_the_same_in_one_pass(x) -> None:
    model = mlp(5, 7, 6, 3)
    risk = made(model, x, batch_size=4)
    layers, spaces = ("0", "2", "4"), ("weights", "firing", "gradients")
    expected = {
        (layer, space): output_space_overlap(risk, layer, space=space)
        for layer in layers
        for space in spaces
    }
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    found = output_space_overlap(risk, layers, space=spaces)
    assert found.keys() == expected.keys()
    for key, record in expected.items():
        assert (found[key].layer, found[key].space) == key
        for name in ("overlap", "overlap_removed", "trace_share", "values"):
            torch.testing.assert_close(getattr(found[key], name), getattr(record, name))
    # Three batches, and looks at the first one: one for each layer and for each layer above it,
    # and two that hold all layers against autograd, of the first batch and of the last.
    assert len(calls) == 3 + (1 + 2) + (1 + 1) + 1 + 2 * 2


def test_inputs_by_keyword_and_in_place_activations_are_seen(x) -> None:
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.act, self.two = nn.Linear(5, 7), nn.ReLU(inplace=True), nn.Linear(7, 3)

        def forward(self, x):
            return self.two(input=self.act(self.one(x)))

    model = Keyword()
    found = output_space_overlap(made(model, x), "one", space="firing")
    rates = (model.one(x) > 0).double().mean(0)
    S = (model.two.weight * rates).detach()
    basis = torch.linalg.qr((S - S.mean(0)).T[:, :2]).Q
    top = torch.linalg.eigh(KroneckerHessian(made(model, x), "one").output_factor).eigenvectors
    torch.testing.assert_close(found.overlap, float((top[:, -2:].T @ basis).square().sum()) / 2)


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


def test_a_layer_that_runs_twice_or_too_many_outputs_are_refused(x) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(5, 5)

        def forward(self, x):
            return self.one(torch.relu(self.one(x)))

    with pytest.raises(UnsupportedModelError, match="ran 2 times"):
        output_space_overlap(made(Twice(), x, classes=5), "one", space="gradients")
    with pytest.raises(UnsupportedModelError, match="256 logits"):
        output_space_overlap(made(mlp(5, 4, 300), x, classes=3), "0", space="gradients")


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
    with pytest.raises(UnsupportedModelError, match="needs linear layers"):
        output_space_overlap(made(norm, x), "1")
    with pytest.raises(InvalidArgumentError, match="space="):
        output_space_overlap(made(norm, x), "0", space="rows")
    zero = mlp(5, 4, 3)
    with torch.no_grad():
        zero[2].weight.zero_()
    with pytest.raises(EmptySelectionError, match="S is zero"):
        output_space_overlap(made(zero, x), "0")


def test_a_layer_that_runs_twice_in_a_later_batch_is_refused(x) -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(5, 5), nn.Linear(5, 3)

        def forward(self, x):
            h = torch.relu(self.one(x))
            return self.two(h if len(x) == 4 else self.one(h))

    y = torch.arange(7) % 3
    batches = [(x[:4], y[:4]), (x[4:7], y[4:])]
    risk = EmpiricalRisk(Sometimes().double(), CrossEntropy(), batches, sample_dim=None)
    with pytest.raises(UnsupportedModelError, match="ran 2 times in one forward pass"):
        output_space_overlap(risk, "one", space="gradients")
