"""E[xxᵀ] of layers: against plain sums, and how close to rank one it is."""

import math

import pytest
import torch
from torch import Tensor, nn

import eigenscape as es
from eigenscape.analyses import autocorrelation, autocorrelations
from eigenscape.curvature import KroneckerHessian
from eigenscape.errors import EmptySelectionError, UnknownNameError, UnsupportedModelError
from eigenscape.records import pack, unpack

N, CLASSES = 11, 4


def fully_connected() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3), nn.ReLU(), nn.Linear(3, 4))


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, (2, 3), stride=(1, 2)), nn.ReLU(), nn.Conv2d(3, 2, 2), nn.Flatten(),
        nn.LazyLinear(CLASSES),
    )  # fmt: skip


def risk_of(model: nn.Module, x: Tensor, **settings: object) -> es.EmpiricalRisk:
    model(x)  # lazy layers take their shape
    return es.EmpiricalRisk(
        model, es.CrossEntropy(), (x, torch.arange(len(x)) % CLASSES), **settings
    )


@pytest.mark.parametrize("batch_size", [None, 1, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_against_plain_sums(bias: bool, batch_size: int | None) -> None:
    model, x = fully_connected(), torch.randn(N, 5)
    risk = risk_of(model, x, batch_size=batch_size)
    found = autocorrelation(risk, "2", bias=bias)
    inputs = model[:2](x).detach()
    if bias:
        inputs = torch.cat([inputs, torch.ones(N, 1)], dim=1)
    mean = inputs.mean(0)
    covariance = torch.cov(inputs.T, correction=0)
    torch.testing.assert_close(found.matrix, inputs.T @ inputs / N)
    torch.testing.assert_close(found.mean, mean)
    torch.testing.assert_close(found.covariance, covariance)
    values, vectors = torch.linalg.eigh(inputs.T @ inputs / N)
    torch.testing.assert_close(found.values, values.flip(0))
    torch.testing.assert_close(found.vector.abs(), vectors[:, -1].abs())
    assert found.alignment == pytest.approx(float((vectors[:, -1] @ mean / mean.norm()) ** 2))
    assert found.ratio == pytest.approx(float(values[-1] / values[-2]))
    norm = float(torch.linalg.matrix_norm(covariance, 2))
    assert found.dominance == pytest.approx(float(mean @ mean) / norm)
    assert (found.bias, found.num_vectors, found.num_positions) == (bias, N, 1)
    name = "2" if bias else "2.weight"
    torch.testing.assert_close(found.matrix, KroneckerHessian(risk, name).input_factor)


def test_convolutions_have_a_mean_at_each_position() -> None:
    model, x = convolutional(), torch.randn(N, 2, 4, 7) + 0.5
    risk = risk_of(model, x, batch_size=4)
    found = autocorrelation(risk, "0")
    X = nn.functional.unfold(x, (2, 3), stride=(1, 2))  # (N, n, P)
    P = X.shape[2]
    assert (found.num_positions, found.num_vectors) == (P, N * P)
    torch.testing.assert_close(found.matrix, torch.einsum("nap,nbp->ab", X, X) / (N * P))
    torch.testing.assert_close(found.means, X.mean(0))
    torch.testing.assert_close(found.mean, X.mean((0, 2)))
    centred = X - X.mean(0)
    Sigma = torch.einsum("nap,nbp->ab", centred, centred) / (N * P)
    torch.testing.assert_close(found.covariance, Sigma)
    left = torch.linalg.svd(X.mean(0)).U[:, 0]
    torch.testing.assert_close(found.direction.abs(), left.abs())
    first = torch.linalg.eigh(found.matrix).eigenvectors[:, -1]
    assert found.alignment == pytest.approx(float((first @ left) ** 2))
    large = float(torch.linalg.matrix_norm(X.mean(0), 2)) ** 2 / P
    assert found.dominance == pytest.approx(large / float(torch.linalg.matrix_norm(Sigma, 2)))
    torch.testing.assert_close(found.matrix, KroneckerHessian(risk, "0.weight").input_factor)


def test_all_layers_in_one_pass() -> None:
    model, x = convolutional(), torch.randn(N, 2, 4, 7)
    calls = []
    model[0].register_forward_pre_hook(lambda *_: calls.append(1))
    risk = risk_of(model, x, batch_size=4)
    calls.clear()
    record = autocorrelations(risk)
    assert len(calls) == 3
    assert [entry.layer for entry in record.layers] == ["0", "2", "4"]
    for entry in record.layers:
        torch.testing.assert_close(entry.matrix, autocorrelation(risk, entry.layer).matrix)
    table = record.columns()
    assert {len(list(column)) for column in table.values()} == {3}
    assert list(table["inputs"]) == [12, 12, model[4].in_features]
    assert not model[2]._forward_hooks
    again = unpack(*pack(record))
    assert torch.equal(again.layers[1].matrix, record.layers[1].matrix)


def test_the_ratio_is_at_least_the_dominance() -> None:
    # λ₁ ≥ ‖E[x]E[x]ᵀ‖ and λ₂ ≤ ‖Σ‖: one better than Wu (52).
    for shift in (0.0, 0.3, 1.0, 3.0):
        found = autocorrelation(risk_of(fully_connected(), torch.randn(N, 5) + shift), "0")
        assert found.ratio >= found.dominance
    assert found.alignment > 0.95
    assert found.ratio > 5.0


def test_inputs_without_mean_or_without_spread() -> None:
    x = torch.randn(N, 5)
    centred = autocorrelation(risk_of(fully_connected(), torch.cat([x, -x])), "0")
    assert centred.dominance < 1e-20
    constant = autocorrelation(risk_of(fully_connected(), torch.ones(1, 5).expand(N, 5)), "0")
    assert constant.alignment == pytest.approx(1.0)
    assert constant.ratio > 1e12
    zero = autocorrelation(risk_of(fully_connected(), torch.zeros(N, 5)), "0")
    assert (zero.alignment, zero.dominance) == (0.0, math.inf)


class Recurrent(nn.Module):
    """A layer that runs several times, one that never runs, and a normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.never = nn.Linear(3, 3), nn.Linear(2, 2)
        self.norm, self.head = nn.LayerNorm(3), nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.step(self.step(input=x)))).mean(1)


def test_sequences_and_repeated_layers_count_every_vector() -> None:
    model, x = Recurrent(), torch.randn(N, 6, 3)
    risk = risk_of(model, x, batch_size=4)
    inputs = torch.cat([x, model.step(x)]).detach().flatten(0, 1)
    found = autocorrelation(risk, "step")
    torch.testing.assert_close(found.matrix, inputs.T @ inputs / len(inputs))
    assert (found.num_vectors, found.num_positions) == (2 * 6 * N, 1)


def test_refusals() -> None:
    risk = risk_of(Recurrent(), torch.randn(N, 6, 3))
    with pytest.raises(UnsupportedModelError, match="no linear layer"):
        autocorrelation(risk, "norm")
    with pytest.raises(UnsupportedModelError, match="did not run"):
        autocorrelation(risk, "never")
    with pytest.raises(UnknownNameError, match=r"`autocorrelation\(risk, 'nver'\)` found no layer"):
        autocorrelation(risk, "nver")
    with pytest.raises(EmptySelectionError, match="no linear layer"):
        autocorrelations(risk.restricted(["norm"]))
    images = [(torch.randn(2, 1, s, s), torch.zeros(2).long()) for s in (4, 5)]
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    sizes = es.EmpiricalRisk(model, es.CrossEntropy(), images)
    with pytest.raises(UnsupportedModelError, match="4 and 9 positions"):
        autocorrelation(sizes, "0")
