"""The predicted overlap, against matrices that are Kronecker products."""

import pytest
import torch
from torch import Tensor, nn

import eigenscape as es
from eigenscape.analyses import eigenspace_overlap
from eigenscape.curvature import KroneckerHessian
from eigenscape.errors import InvalidArgumentError, NonFiniteError, ShapeError
from eigenscape_papers.wu import overlap_prediction

M, N = 6, 5
TAUS = {
    "flat": ([3.0, 2.9, 2.7, 2.5, 2.2, 2.0], [5.0, 4.9, 4.7, 4.5, 4.3, 4.1]),
    "spiked": ([9.1, 8.3, 0.53, 0.41, 0.29, 0.19], [7.3, 6.1, 0.67, 0.59, 0.23, 0.11]),
    "heavy": ([1 / i for i in range(1, 7)], [1.1 / i**1.1 for i in range(1, 7)]),
}
GAMMAS = [
    [20.0, 4.17, 0.531, 0.297, 0.113],
    [30.0, 6.37, 1.51, 0.217, 0.127],
]  # no two products equal


def spectra(kind: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return τ and γ of one network, then of the other."""
    (one, two), (gamma, other) = TAUS[kind], GAMMAS
    return torch.tensor(one), torch.tensor(gamma), torch.tensor(two), torch.tensor(other)


def orthogonal(n: int) -> Tensor:
    Q, R = torch.linalg.qr(torch.randn(n, n))
    return Q * R.diagonal().sign()


def eigenvectors(R: Tensor, tau: Tensor, T: Tensor, gamma: Tensor) -> Tensor:
    """Diagonalise the Kronecker product as one matrix."""
    A = torch.kron(R @ torch.diag(tau) @ R.T, T @ torch.diag(gamma) @ T.T)
    return torch.linalg.eigh(A).eigenvectors.flip(1)


@pytest.mark.parametrize("is_output_layer", [False, True])
@pytest.mark.parametrize("kind", list(TAUS))
def test_explicit_kronecker_products(kind: str, is_output_layer: bool) -> None:
    one, gamma, two, other = spectra(kind)
    T, S = orthogonal(N), orthogonal(N)
    found = overlap_prediction(
        (one, gamma, T), (two, other, S),
        num_vectors=M * N, num_inputs=N, is_output_layer=is_output_layer,
    )  # fmt: skip
    runs = []
    for _ in range(1 if is_output_layer else 200):
        R = orthogonal(M)
        Q = R if is_output_layer else orthogonal(M)
        first, second = eigenvectors(R, one, T, gamma), eigenvectors(Q, two, S, other)
        runs.append(eigenspace_overlap(first, second).overlaps)
    if is_output_layer:
        torch.testing.assert_close(found.overlaps, runs[0])
        return
    stderr = torch.stack(runs).std(0) / len(runs) ** 0.5
    error = (torch.stack(runs).mean(0) - found.overlaps).abs()
    assert bool((error <= 4.5 * stderr + 1e-12).all())
    assert float(stderr.max()) < 0.02  # or the line above says nothing


def test_the_rest_counts_as_random() -> None:
    one, gamma, two, other = spectra("spiked")
    t, s = orthogonal(N)[:, 0], orthogonal(N)[:, 0]
    found = overlap_prediction((one, gamma, t), (two, other, s), num_vectors=M * N)

    def completed(v: Tensor) -> Tensor:
        """Complete to a basis whose other vectors are random."""
        return torch.linalg.qr(torch.cat([v[:, None], torch.randn(N, N - 1)], dim=1)).Q

    runs = []
    for _ in range(600):
        T, S = completed(t), completed(s)
        known = overlap_prediction(
            (one, gamma, T), (two, other, S), num_vectors=M * N, num_inputs=N
        )
        runs.append(known.overlaps)
    stderr = torch.stack(runs).std(0) / len(runs) ** 0.5
    error = (torch.stack(runs).mean(0) - found.overlaps).abs()
    assert bool((error <= 4.5 * stderr + 1e-12).all())
    assert float(found.overlaps[-1]) == pytest.approx(1.0)


def test_theorem_f1() -> None:
    m, n = 40, 30
    tau, gamma = torch.linspace(2.0, 1.0, m), torch.tensor([10.0, 1.0, *[0.1] * (n - 2)])
    t, s = orthogonal(n)[:, 0].abs(), orthogonal(n)[:, 0].abs()
    found = overlap_prediction((tau, gamma, t), (3 * tau, gamma, s), num_vectors=m + 20)
    k = torch.arange(1.0, m + 1)
    torch.testing.assert_close(found.overlaps[:m], k / m * (t @ s) ** 2)
    assert (found.regime, found.reach, found.peak, found.rank) == ("linear growth", m, m, m)
    assert found.alignment == pytest.approx(float((t @ s) ** 2))
    assert bool((found.overlaps[m:].diff() < 0).all())  # F.3.1
    assert found.shares[:, m - 1].tolist() == [1.0, 1.0]
    last = overlap_prediction((tau, gamma, t), (3 * tau, gamma, s), is_output_layer=True)
    torch.testing.assert_close(last.overlaps[:m], torch.full((m,), float((t @ s) ** 2)))
    assert last.regime == "constant"


def test_an_early_peak_as_in_fc2_of_f200() -> None:
    # Nine large τ, γ₂ = γ₁/10, (t·t')² = 0.25: Wu F.3.3 has 0.012 at dimension 9.
    tau = torch.cat([torch.linspace(1.0, 0.4, 9), 0.02 / torch.arange(1.0, 192)])
    gamma = torch.cat([torch.ones(1), 0.1 / torch.arange(1.0, 200)])
    t, s = torch.eye(200)[0], torch.zeros(200)
    s[0], s[1] = 0.5, 0.75**0.5
    found = overlap_prediction((tau, gamma, t), (tau, gamma, s), num_vectors=40)
    assert (found.regime, found.reach, found.peak) == ("early peak", 9, 9)
    assert float(found.overlaps[8]) == pytest.approx(0.012, abs=0.001)
    assert float(found.overlaps[18]) < 0.7 * float(found.overlaps[8])
    assert "dimension 9" in str(found)


def test_a_delayed_peak() -> None:
    m = 50
    tau = 1 / torch.arange(1.0, m + 1)
    gamma = torch.tensor([1.0, 0.3, 0.01, 0.01, 0.01])
    t = torch.eye(5)[0]
    found = overlap_prediction((tau, gamma, t), (tau, gamma, t))
    assert found.regime == "delayed peak"
    assert found.reach == 3
    assert m < found.peak < 1.4 * m
    assert len(found.overlaps) == 2 * m


def test_from_two_networks() -> None:
    x = torch.rand(13, 5) + 0.5
    nets = []
    for _ in range(2):
        model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4))
        risk = es.EmpiricalRisk(model, es.CrossEntropy(), (x, torch.arange(13) % 4))
        nets.append((KroneckerHessian(risk, "0.weight"), KroneckerHessian(risk, "2.weight")))
    first, second = nets[0][0], nets[1][0]
    found = overlap_prediction(first, second)
    assert found.alignment == pytest.approx(1.0)  # the same data go into both first layers
    spectra = [
        (torch.linalg.eigvalsh(K.output_factor), torch.linalg.eigvalsh(K.input_factor).flip(0),
         torch.linalg.eigh(K.input_factor).eigenvectors[:, -1])
        for K in (first, second)
    ]  # fmt: skip
    torch.testing.assert_close(overlap_prediction(*spectra).overlaps, found.overlaps)
    last = overlap_prediction(nets[0][1], nets[1][1], is_output_layer=True)
    assert last.rank == 3  # softmax: adding the same to all outputs changes nothing
    assert {len(list(column)) for column in last.columns().values()} == {8}


def test_refusals() -> None:
    tau, gamma, t = torch.ones(2), torch.ones(3), torch.eye(3)[0]
    good = (tau, gamma, t)
    with pytest.raises(ShapeError, match="one shape"):
        overlap_prediction(good, (torch.ones(4), gamma, t))
    with pytest.raises(ShapeError, match="num_inputs = 2"):
        overlap_prediction(good, good, num_inputs=2)
    with pytest.raises(InvalidArgumentError, match="orthonormal"):
        overlap_prediction(good, (tau, gamma, 2 * t))
    with pytest.raises(InvalidArgumentError, match="num_vectors"):
        overlap_prediction(good, good, num_vectors=7)
    for wrong in (torch.nan, torch.inf):
        for bad in ((tau * wrong, gamma, t), (tau, gamma * wrong, t)):
            with pytest.raises(NonFiniteError, match="eigenvalues that are NaN or infinite"):
                overlap_prediction(good, bad)
