"""Features and errors with every label, against plain autograd and against the curvature."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import eigenscape as es
from eigenscape.errors import (
    InvalidArgumentError,
    TooLargeError,
    UnknownNameError,
    UnsupportedModelError,
)
from eigenscape_papers.papyan import backpropagated_errors
from tests.curvature.classes.test_moments import LAYOUTS, OTHER_ROWS, Bag, Mixing, bag_risk

LABELS = torch.tensor([0, 2, 0, 1, 2, 0, 0, 2, 1, 0])
N, CLASSES = len(LABELS), 4


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 6), nn.ReLU(inplace=True), nn.Linear(6, CLASSES)
    )


def risk_of(
    model: nn.Module, x: Tensor, y: Tensor = LABELS, **settings: object
) -> es.EmpiricalRisk:
    return es.EmpiricalRisk(model, es.CrossEntropy(**settings), (x, y), batch_size=4)


@pytest.mark.parametrize("index", [0, 2, 4])
def test_errors_times_features_are_gradients_with_that_label(index: int) -> None:
    model, x = network(), torch.randn(N, 5)
    found = backpropagated_errors(risk_of(model, x), str(index))
    layer = model[index]
    assert found.features.shape == (N, layer.in_features)
    assert found.errors.shape == (N, CLASSES, layer.out_features)
    torch.testing.assert_close(found.features, model[:index](x).detach())
    torch.testing.assert_close(found.probabilities, model(x).softmax(1).detach())
    assert torch.equal(found.classes, LABELS)
    for sample, label in [(0, 0), (3, 2), (9, 1)]:
        loss = F.cross_entropy(model(x[sample : sample + 1]), torch.tensor([label]))
        weight, bias = torch.autograd.grad(loss, [layer.weight, layer.bias])
        torch.testing.assert_close(found.errors[sample, label], bias)
        torch.testing.assert_close(
            torch.outer(found.errors[sample, label], found.features[sample]), weight
        )


def test_their_weighted_second_moment_is_the_output_hessian() -> None:
    risk = risk_of(network(), torch.randn(N, 5), label_smoothing=0.2)
    found = backpropagated_errors(risk, "2")
    torch.testing.assert_close(found.weights.sum(), torch.tensor(1.0))
    moment = torch.einsum("nc,nca,ncb->ab", found.weights, found.errors, found.errors)
    torch.testing.assert_close(moment, es.OutputHessian(risk, "2").matrix)
    # Errors of one sample with all labels add up to zero by their probabilities.
    mean = torch.einsum("nc,nca->na", found.probabilities, found.errors)
    assert float(mean.abs().max()) < 1e-15


def test_convolutions_are_flattened() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 4), nn.Tanh(), nn.Flatten(), nn.Linear(15, CLASSES))
    x = torch.randn(N, 2, 8)
    found = backpropagated_errors(risk_of(model, x), "0")
    torch.testing.assert_close(found.features, x.flatten(1))
    z = model[0](x).detach().requires_grad_()
    loss = F.cross_entropy(model[1:](z), torch.full((N,), 3), reduction="sum")
    (expected,) = torch.autograd.grad(loss, z)
    torch.testing.assert_close(found.errors[:, 3], expected.flatten(1))


def test_ignored_samples_are_left_out() -> None:
    model, x, y = network(), torch.randn(N, 5), LABELS.clone()
    y[:5] = -100
    found = backpropagated_errors(risk_of(model, x, y), "2")
    alone = backpropagated_errors(risk_of(model, x[5:], y[5:]), "2")
    assert torch.equal(found.classes, y[5:])
    torch.testing.assert_close(found.errors, alone.errors)
    torch.testing.assert_close(found.features, alone.features)


def test_one_row_for_each_class() -> None:
    found = backpropagated_errors(risk_of(network(), torch.randn(N, 5)), "2")
    table = found.columns()
    assert (table["class"], table["samples"]) == ([0, 1, 2], [5, 2, 3])
    mine = found.classes == 1
    squares = (found.probabilities[mine, :, None] * found.errors[mine].square()).sum((1, 2))
    assert table["errors"][1] == pytest.approx(float(squares.mean().sqrt()))
    assert table["features"][1] == pytest.approx(
        float(found.features[mine].norm(dim=1).square().mean().sqrt())
    )


def test_refusals() -> None:
    x = torch.randn(N, 5)
    with pytest.raises(UnsupportedModelError, match="without class weights"):
        backpropagated_errors(risk_of(network(), x, class_weights=torch.ones(CLASSES)), "2")
    squares = es.EmpiricalRisk(network(), es.SquaredError(), (x, torch.randn(N, CLASSES)))
    with pytest.raises(UnsupportedModelError, match="SquaredError"):
        backpropagated_errors(squares, "2")
    # 8 bytes for 3 features, 4 · 6 errors, 4 probabilities and a class of each of ten samples.
    assert backpropagated_errors(risk_of(network(), x), "2", max_bytes=2560) is not None
    with pytest.raises(TooLargeError, match=r"keeps 2\.56e\+03 bytes"):
        backpropagated_errors(risk_of(network(), x), "2", max_bytes=2559)
    with pytest.raises(InvalidArgumentError, match="max_bytes"):
        backpropagated_errors(risk_of(network(), x), "2", max_bytes=0)
    with pytest.raises(UnknownNameError, match=r"`backpropagated_errors\(risk, 'zz'\)` found no"):
        backpropagated_errors(risk_of(network(), x), "zz")


def test_room_is_asked_for_before_the_first_sample_that_counts() -> None:
    """Of ten samples the first batch of four is ignored: 256 bytes for each of the other six."""
    x, y = torch.randn(N, 5), LABELS.clone()
    y[:4] = -100
    found = backpropagated_errors(risk_of(network(), x, y), "2", max_bytes=6 * 256)
    tensors = found.classes, found.features, found.errors, found.probabilities
    assert sum(t.numel() * t.element_size() for t in tensors) == 6 * 256
    with pytest.raises(TooLargeError, match=r"keeps 1\.54e\+03 bytes for 6 samples"):
        backpropagated_errors(risk_of(network(), x, y), "2", max_bytes=6 * 256 - 1)


@pytest.mark.parametrize(("layout", "positions"), LAYOUTS)
def test_rows_that_are_not_samples_are_refused(layout: str, positions: int) -> None:
    with pytest.raises(UnsupportedModelError, match=OTHER_ROWS):
        backpropagated_errors(bag_risk(Bag(layout), positions), "fc")
    whole, parts = (
        backpropagated_errors(bag_risk(Bag(layout), 5, s), "out") for s in [(6,), (4, 2)]
    )
    assert whole.errors.shape == parts.errors.shape == (6, 3, 3)  # behind the positions all is well


@pytest.mark.parametrize("sizes", [(6,), (1, 5)])
def test_samples_that_mix_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedModelError, match="samples change each other's outputs"):
        backpropagated_errors(bag_risk(Mixing(), 5, sizes), "fc")
