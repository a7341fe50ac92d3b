"""What eigenvectors of layers are made of."""

import pytest
import torch
from torch import nn

import eigenscape as es
from eigenscape.curvature import KroneckerHessian, LayerHessian
from eigenscape.errors import InvalidArgumentError, ShapeError
from eigenscape_papers.wu import eigenvector_correspondence

N = 9


def layer(name: str) -> tuple[LayerHessian, KroneckerHessian]:
    model = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4))
    data = (torch.randn(N, 5), torch.arange(N) % 4)
    risk = es.EmpiricalRisk(model, es.CrossEntropy(), data)
    return LayerHessian(risk, name), KroneckerHessian(risk, name)


@pytest.mark.parametrize("name", ["2", "2.weight"])
def test_the_definition_one_entry_at_a_time(name: str) -> None:
    H, K = layer(name)
    pairs = es.eigsh(H, num_pairs=5)
    found = eigenvector_correspondence(pairs, K)
    m, n, k = 6, 4 if name == "2" else 3, 5
    assert found.output.shape == (m, k)
    assert found.input.shape == (n, k)
    U = torch.linalg.eigh(K.output_factor).eigenvectors.flip(1)
    V = torch.linalg.eigh(K.input_factor).eigenvectors.flip(1)
    for i, Mat in enumerate(K.to_matrices(pairs.vectors)):
        for j in range(m):
            assert float(found.output[j, i]) == pytest.approx(float((Mat.T @ U[:, j]).norm() ** 2))
        for j in range(n):
            assert float(found.input[j, i]) == pytest.approx(float((Mat @ V[:, j]).norm() ** 2))
    torch.testing.assert_close(found.output.sum(0), torch.ones(k))
    torch.testing.assert_close(found.input.sum(0), torch.ones(k))


def test_kronecker_products_have_one_partner_on_each_side() -> None:
    _, K = layer("2")
    found = eigenvector_correspondence(K.top_pairs(7), K)
    for matrix in (found.output, found.input):
        torch.testing.assert_close(matrix.amax(0), torch.ones(7))
    tau = torch.linalg.eigvalsh(K.output_factor).flip(0)
    gamma = torch.linalg.eigvalsh(K.input_factor).flip(0)
    table = found.columns()
    products = [
        float(tau[u - 1] * gamma[v - 1])
        for u, v in zip(table["output"], table["input"], strict=True)
    ]
    torch.testing.assert_close(torch.tensor(products), K.top_pairs(7).values)


def test_bases_of_ones_own() -> None:
    H, K = layer("2.weight")
    pairs = es.eigsh(H, num_pairs=4)
    U = torch.linalg.eigh(K.output_factor).eigenvectors.flip(1)
    V = torch.linalg.eigh(K.input_factor).eigenvectors.flip(1)
    whole = eigenvector_correspondence(pairs, K)
    part = eigenvector_correspondence(pairs.vectors, (U[:, :2], V[:, :1]))
    torch.testing.assert_close(part.output, whole.output[:2])
    torch.testing.assert_close(part.input, whole.input[:1])


def test_refusals() -> None:
    h = torch.eye(6)[:, :2]
    with pytest.raises(ShapeError, match="2 × 2 = 4"):
        eigenvector_correspondence(h, (torch.eye(2), torch.eye(2)))
    with pytest.raises(InvalidArgumentError, match=r"V` needs orthonormal"):
        eigenvector_correspondence(h, (torch.eye(2), 2 * torch.eye(3)))
    with pytest.raises(ShapeError, match="U with columns"):
        eigenvector_correspondence(h, (torch.ones(2), torch.eye(3)))
    with pytest.raises(ShapeError, match="needs vectors"):
        eigenvector_correspondence(h[:, 0], (torch.eye(2), torch.eye(3)))
    with pytest.raises(ShapeError, match="24 = 6 × 4"):
        eigenvector_correspondence(h, layer("2")[1])
