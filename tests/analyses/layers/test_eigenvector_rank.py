"""How close matrices are to rank one."""

import pytest
import torch
from torch import nn

import eigenscape as es
from eigenscape.analyses import eigenvector_rank, rank_one_share
from eigenscape.curvature import KroneckerHessian, LayerHessian
from eigenscape.errors import ShapeError, UnsupportedModelError, WrongTypeError
from eigenscape.operator import Dense
from eigenscape.space import ParamSpace


def test_outer_products_are_rank_one() -> None:
    u, v = torch.randn(3, 4), torch.randn(3, 7)
    shares = rank_one_share(u[:, :, None] * v[:, None, :])
    torch.testing.assert_close(shares, torch.ones(3))


def test_it_is_the_first_singular_values_share() -> None:
    A = torch.randn(2, 5, 3)
    expected = torch.linalg.matrix_norm(A, 2) / torch.linalg.matrix_norm(A)
    torch.testing.assert_close(rank_one_share(A), expected)


def test_the_least_is_a_multiple_of_an_isometry() -> None:
    assert float(rank_one_share(torch.eye(4, 9)[None])) == pytest.approx(0.5)


def risk_of(model: nn.Module, x: torch.Tensor) -> es.EmpiricalRisk:
    return es.EmpiricalRisk(model, es.CrossEntropy(), (x, torch.arange(len(x)) % 4))


@pytest.mark.parametrize("name", ["2", "2.weight"])
def test_eigenvectors_of_a_layer(name: str) -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4))
    risk = risk_of(model, torch.randn(9, 5))
    K = KroneckerHessian(risk, name)
    pairs = es.eigsh(LayerHessian(risk, name), num_pairs=5)
    found = eigenvector_rank(pairs, K, num_values=2)
    singular = torch.linalg.svdvals(K.to_matrices(pairs.vectors))
    torch.testing.assert_close(found.singular, singular[:, :2])
    torch.testing.assert_close(found.shares, rank_one_share(K.to_matrices(pairs.vectors)))
    assert (found.num_outputs, found.num_inputs) == K.to_matrices(pairs.vectors)[0].shape
    assert torch.equal(eigenvector_rank(pairs, num_values=2).singular, found.singular)
    with pytest.raises(
        WrongTypeError, match="needs the block that the vectors belong to; got none"
    ):
        eigenvector_rank(pairs.vectors)
    same = eigenvector_rank(pairs.vectors, es.Hessian(risk)[name])
    torch.testing.assert_close(same.shares, found.shares)
    exact = eigenvector_rank(K.top_pairs(3), K)
    torch.testing.assert_close(exact.shares, torch.ones(3))
    assert {len(list(column)) for column in found.columns().values()} == {5}


def test_filters_are_rows() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, (2, 1)), nn.Flatten(), nn.Linear(18, 4))
    risk = risk_of(model, torch.randn(9, 2, 3, 3))
    found = eigenvector_rank(KroneckerHessian(risk, "0").top_pairs(4), LayerHessian(risk, "0"))
    torch.testing.assert_close(found.shares, torch.ones(4))
    assert (found.num_outputs, found.num_inputs) == (3, 5)


def test_the_null_is_what_random_vectors_have() -> None:
    m, n = 24, 30
    block = Dense(torch.eye(m * n), space=ParamSpace({"w": (m, n)}))
    found = eigenvector_rank(torch.randn(m * n, 200), block, seed=1)
    assert found.null == pytest.approx((m**0.5 + n**0.5) / (m * n) ** 0.5, rel=0.1)
    spread = found.shares.std() / 200**0.5
    assert abs(found.null - float(found.shares.mean())) < 4.5 * (found.null_stderr + float(spread))
    assert 0 < found.null_stderr < 0.02
    h = torch.randn(m * n, 1)
    assert eigenvector_rank(h, block, seed=1).null == found.null
    assert eigenvector_rank(h, block, seed=2).null != found.null


def test_refusals() -> None:
    bias = Dense(torch.eye(4), space=ParamSpace({"b": (4,)}))
    with pytest.raises(UnsupportedModelError, match="one weight matrix"):
        eigenvector_rank(torch.randn(4, 2), bias)
    with pytest.raises(ShapeError, match=r"\(4, k\)"):
        eigenvector_rank(torch.randn(5, 2), bias)
    other = Dense(torch.eye(9), space=ParamSpace({"w": (2, 3), "v": (3,)}))
    with pytest.raises(UnsupportedModelError, match="one weight matrix"):
        eigenvector_rank(torch.randn(9, 2), other)
