"""Stored factors against rows of the Jacobian that plain autograd gives."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape.curvature.layers import factors as module
from eigenscape.curvature.layers.factors import (
    Factors,
    all_factors,
    batch_factors,
    factors_obstacle,
    symmetrise,
)
from eigenscape.errors import UnsupportedModelError
from eigenscape.risk import CrossEntropy, EmpiricalRisk, Layer, capture_tail, find_layer
from tests.contracts.layer_cases import X, Y, image_risk


class Lookup(nn.Module):
    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        self.emb, self.fc = nn.Embedding(6, 4, padding_idx=padding), nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(F.relu(self.emb(ids)).sum(1))


def lookup_risk(padding: int | None = None) -> EmpiricalRisk:
    ids = torch.arange(11 * 3).view(11, 3) * 7 % 6
    return EmpiricalRisk(Lookup(padding), CrossEntropy(), (ids, Y), batch_size=4)


RISKS = {
    "0": image_risk,  # a convolution with strides and padding
    "4": image_risk,
    "4.weight": image_risk,
    "8": image_risk,
    "10": image_risk,  # no bias
    "emb": lookup_risk,
}


def restricted(name: str, risk: EmpiricalRisk | None = None) -> tuple[EmpiricalRisk, Layer]:
    risk = RISKS[name]() if risk is None else risk
    layer = find_layer(risk, name)
    return risk.restricted(layer.params), layer


def rows_of(risk: EmpiricalRisk) -> Tensor:
    """√p_j ∂(z_j − Σ p_i z_i)/∂θ for each sample and class j, in plain PyTorch: (N·C, q)."""
    risk.module.eval()
    z = risk.module(torch.cat([batch.args[0] for batch in risk.batches]))
    p = z.detach().softmax(1)
    heads = p.sqrt() * (z - (p * z).sum(1, keepdim=True))
    parameters = [dict(risk.module.named_parameters())[name] for name in risk.space.names]
    slopes = [torch.autograd.grad(head, parameters, retain_graph=True) for head in heads.flatten()]
    return torch.stack([torch.cat([s.reshape(-1) for s in slope]) for slope in slopes])


def check(result: Tensor, truth: Tensor) -> None:
    assert result.shape == truth.shape
    assert (result - truth).norm() <= 1e-12 * truth.norm()


@pytest.mark.parametrize("name", RISKS)
def test_rows_are_those_of_the_jacobian(name: str) -> None:
    risk, layer = restricted(name)
    rows = torch.cat(list(all_factors(risk, layer).jacobian_rows()))
    truth = rows_of(risk)
    check(rows, truth)
    with pytest.raises(AssertionError):
        check(rows, truth.roll(1, 0))


@pytest.mark.parametrize("name", RISKS)
def test_products_sums_and_inner_products_need_no_rows(name: str) -> None:
    risk, layer = restricted(name)
    factors, R = all_factors(risk, layer), rows_of(risk)
    V, W = torch.randn(5, R.shape[1]), torch.randn(R.shape[0], 2)
    check(factors.product(V), V @ R.T @ R)
    check(factors.combinations(W), W.T @ R)
    check(factors.gram(), R @ R.T)
    block = torch.eye(R.shape[1])
    factors.add_to(block)
    check(block, torch.eye(R.shape[1]) + R.T @ R)


@pytest.mark.parametrize("name", RISKS)
def test_small_chunks_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    risk, layer = restricted(name)
    factors, R = all_factors(risk, layer), rows_of(risk)
    for limit in ("CACHE_BYTES", "ROWS_BYTES"):
        monkeypatch.setattr(module, limit, 900)
    V, W = torch.randn(5, R.shape[1]), torch.randn(R.shape[0], 2)
    check(factors.product(V), V @ R.T @ R)
    check(factors.combinations(W), W.T @ R)
    check(factors.gram(), R @ R.T)
    assert len(list(factors.jacobian_rows())) > 1
    block = torch.zeros(R.shape[1], R.shape[1])
    factors.add_to(block)
    check(block, R.T @ R)


@pytest.mark.parametrize(("samples", "positions", "n", "m"), [(9, 1, 7, 5), (3, 13, 2, 3)])
def test_both_ways_to_inner_products_agree_with_the_rows(
    samples: int, positions: int, n: int, m: int
) -> None:
    # Few positions make pairs of parts cheap; with many of them rows are formed.
    layer = Layer("0", nn.Linear(n, m, bias=False), ("0.weight",), ("weight",), None)
    x, b = torch.randn(samples, positions, n), torch.randn(samples, 2, positions, m)
    R = torch.einsum("njpm,npi->njmi", b, x).reshape(samples * 2, m * n)
    check(Factors(layer, x, b).gram(), R @ R.T)


def test_padding_has_no_gradient() -> None:
    risk, layer = restricted("emb", lookup_risk(padding=2))
    with torch.no_grad():
        layer.module.weight[2] = 1.0  # it would have one, if it counted
    rows = torch.cat(list(all_factors(risk, layer).jacobian_rows()))
    check(rows, rows_of(risk))
    assert not rows.view(-1, 6, 4)[:, 2].any()


def test_a_batch_has_its_own_factors() -> None:
    risk, layer = restricted("8")
    stored = all_factors(risk, layer)
    first = 0
    for batch in risk.batches:
        alone = batch_factors(risk, layer, batch)
        assert len(alone.inputs) == batch.size
        check(alone.roots, stored.roots[first : first + batch.size])
        first += batch.size
    assert first == 11


def test_rounded_factors_take_less_and_make_one_symmetric_matrix() -> None:
    risk, layer = restricted("4")
    exact, rounded = all_factors(risk, layer), all_factors(risk, layer, storage=torch.bfloat16)
    assert rounded.nbytes == exact.nbytes / 4
    eye = torch.eye(risk.space.size)
    H, truth = rounded.product(eye), exact.product(eye)
    check(H, H.T.clone())
    error = float((H - truth).norm() / truth.norm())
    assert 1e-5 < error < math.sqrt(2) * 2**-7


def test_what_is_not_piecewise_linear_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    risk, layer = restricted("0", EmpiricalRisk(model, CrossEntropy(), (X, Y)))
    with pytest.raises(UnsupportedModelError, match=r"'0' cannot be stored.*piecewise linear"):
        all_factors(risk, layer)


def test_obstacles_are_named() -> None:
    def obstacle(loss: object) -> str | None:
        net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
        risk, layer = restricted("0", EmpiricalRisk(net, loss, (X, Y)))
        with torch.enable_grad(), risk.evaluating():
            tail = capture_tail(risk, layer, next(iter(risk.batches)))
        return factors_obstacle(risk, layer, tail)

    assert obstacle(CrossEntropy()) is None
    assert "a loss of your own" in str(obstacle(lambda z, y: F.cross_entropy(z, y)))


@pytest.mark.parametrize("limit", [1, 300, 10**6])
def test_a_matrix_is_made_symmetric_in_its_place(limit: int) -> None:
    A = torch.randn(7, 7)
    expected = (A + A.T) / 2
    address = A.data_ptr()
    symmetrise(A, limit)
    assert A.data_ptr() == address
    assert torch.equal(A, A.T)
    check(A, expected)
