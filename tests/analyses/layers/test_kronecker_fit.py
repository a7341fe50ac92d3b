"""Kronecker approximations of a layer's block against dense matrices."""

import pytest
import torch
from torch import nn

from eigenscape.analyses import kronecker_fit
from eigenscape.curvature import Hessian, KroneckerHessian, LayerHessian
from eigenscape.errors import InvalidArgumentError, UnsupportedModelError
from eigenscape.records import pack, unpack
from eigenscape.risk import CrossEntropy, EmpiricalRisk, SquaredError


def made(model, x, classes=3, **options):
    y = torch.arange(len(x)) * 2 % classes
    return EmpiricalRisk(model.double(), CrossEntropy(), (x, y), **options)


def relu_net():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    return model, torch.randn(11, 5, dtype=torch.float64) + 0.5


def tanh_net():
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    return model, torch.randn(11, 5, dtype=torch.float64)


def conv_net():
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Conv2d(3, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    )
    return model, torch.randn(7, 2, 4, 3, dtype=torch.float64)


CASES = {
    "relu-first": (relu_net, "0"),
    "relu-second": (relu_net, "2"),
    "relu-weight": (relu_net, "2.weight"),
    "tanh": (tanh_net, "0"),
    "conv": (conv_net, "0"),
    "conv-second": (conv_net, "2"),
}


def oracle(risk, layer):
    """H, the three approximations and their top vectors, all dense, in the order of parameters."""
    K = KroneckerHessian(risk, layer)
    block = Hessian(risk)[risk.space.block(*K.space.names)]
    H = block.to_dense()
    m, n = len(K.output_factor), len(K.input_factor)
    # P turns parameters (weight, then bias) into the row-major m × n matrix.
    P = K.to_matrices(torch.eye(m * n, dtype=torch.float64)).flatten(1).T
    G = P @ H @ P.T
    B, A = K.output_factor, K.input_factor
    U, V = torch.linalg.eigh(B).eigenvectors, torch.linalg.eigh(A).eigenvectors
    Q = torch.kron(U, V)
    rearranged = G.reshape(m, n, m, n).permute(0, 2, 1, 3).reshape(m * m, n * n)
    left, size, right = torch.linalg.svd(rearranged)
    pair = torch.kron(left[:, 0].reshape(m, m), right[0].reshape(n, n)) * size[0]
    found = [torch.kron(B, A), Q @ torch.diag((Q.T @ G @ Q).diag()) @ Q.T, pair]
    return H, [P.T @ X @ P for X in found]


def top_space(X, k):
    return torch.linalg.eigh((X + X.T) / 2).eigenvectors[:, -k:]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("batch_size", [None, 3])
def test_every_number_is_that_of_dense_matrices(case, batch_size) -> None:
    build, layer = CASES[case]
    risk = made(*build(), batch_size=batch_size)
    fit = kronecker_fit(risk, layer, num_pairs=3)
    H, dense = oracle(risk, layer)
    assert bool(fit.status)
    assert [a.name for a in fit.approximations] == ["kronecker", "ekfac", "best pair"]
    torch.testing.assert_close(fit.values, torch.linalg.eigvalsh(H).flip(0)[:3])
    torch.testing.assert_close(fit.frobenius_norm, float(H.norm()))
    torch.testing.assert_close(fit.spectral_norm, float(torch.linalg.matrix_norm(H, 2)))
    for found, X in zip(fit.approximations, dense, strict=True):
        torch.testing.assert_close(found.frobenius_error, float((H - X).norm() / H.norm()))
        far = torch.linalg.matrix_norm(H - X, 2) / torch.linalg.matrix_norm(H, 2)
        torch.testing.assert_close(found.spectral_error, float(far), rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(
            found.values, torch.linalg.eigvalsh(X).flip(0)[:3], rtol=1e-5, atol=1e-8
        )
        overlap = (top_space(H, 3).T @ top_space(X, 3)).square().sum() / 3
        torch.testing.assert_close(found.overlaps[-1], overlap, rtol=1e-4, atol=1e-6)
    first, second, third = (a.frobenius_error for a in fit.approximations)
    assert second < first
    assert third < first


@pytest.mark.parametrize("case", CASES)
def test_estimated_norms_agree_with_exact_ones(case) -> None:
    build, layer = CASES[case]
    risk = made(*build())
    exact = kronecker_fit(risk, layer, num_pairs=1)
    fit = kronecker_fit(risk, layer, num_pairs=1, num_probes=400, max_exact=1, seed=2)
    assert exact.method == ("gram" if case.startswith("conv") else "dense")
    assert fit.method == "probes"
    assert abs(fit.frobenius_norm - exact.frobenius_norm) < 5 * fit.frobenius_stderr
    assert len(fit.approximations) == (1 if case == "tanh" else 3)
    assert ("piecewise linear" in fit.status.text) == (case == "tanh")
    for found, true in zip(fit.approximations, exact.approximations, strict=False):
        assert 0 < found.frobenius_stderr < 0.05
        assert abs(found.frobenius_error - true.frobenius_error) < 5 * found.frobenius_stderr
    errors = [a.frobenius_error for a in fit.approximations]
    assert errors[0] == max(errors)


@pytest.mark.parametrize("case", ["relu-second", "conv"])
def test_factors_that_do_not_fit_in_memory_are_made_again(case, monkeypatch) -> None:
    build, layer = CASES[case]
    risk = made(*build(), batch_size=4)
    kept = kronecker_fit(risk, layer, num_pairs=1)
    monkeypatch.setattr(LayerHessian, "memory_budget", property(lambda self: 0))
    again = kronecker_fit(risk, layer, num_pairs=1)
    for one, other in zip(kept.approximations, again.approximations, strict=True):
        assert one.frobenius_error == other.frobenius_error


def test_a_kronecker_product_is_fitted_exactly() -> None:
    torch.manual_seed(0)
    x = torch.randn(9, 4, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)).double()
    risk = EmpiricalRisk(model, SquaredError(), (x, torch.randn(9, 3, dtype=torch.float64)))
    fit = kronecker_fit(risk, "0", num_pairs=2)  # M = WᵀW, whatever x is
    for found in fit.approximations:
        assert found.frobenius_error < 1e-7
        assert found.spectral_error < 1e-12
        torch.testing.assert_close(found.overlaps, torch.ones(2, dtype=torch.float64))
        torch.testing.assert_close(found.values, fit.values)
    assert bool(fit.status)


def test_the_record_is_a_table_and_survives_a_file() -> None:
    fit = kronecker_fit(made(*relu_net()), "2", num_pairs=2)
    table = fit.columns()
    assert list(table["approximation"]) == ["kronecker", "ekfac", "best pair"]
    assert len({len(list(column)) for column in table.values()}) == 1
    again = unpack(*pack(fit))
    assert again.approximations[1].frobenius_error == fit.approximations[1].frobenius_error


def test_what_does_not_fit_is_refused() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    risk = made(model, torch.randn(6, 5, dtype=torch.float64))
    with pytest.raises(UnsupportedModelError, match=r"kronecker_fit\(risk, '1'\)"):
        kronecker_fit(risk, "1")
    with pytest.raises(InvalidArgumentError, match="num_probes"):
        kronecker_fit(risk, "0", num_probes=1)


class Positions(nn.Module):
    """A layer that sees (samples, positions, features), or positions first."""

    def __init__(self, *, first: bool) -> None:
        super().__init__()
        self.fc, self.out, self.first = nn.Linear(5, 4), nn.Linear(4, 3), first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.first:
            return self.out(torch.relu(self.fc(x.transpose(0, 1))).mean(0))
        return self.out(torch.relu(self.fc(x)).mean(1))


def test_positions_first_is_right_or_refused() -> None:
    torch.manual_seed(5)
    here, there = Positions(first=True), Positions(first=False)
    there.load_state_dict(here.state_dict())
    x = torch.randn(6, 2, 5, dtype=torch.float64)
    ours, theirs = (kronecker_fit(made(model, x), "fc").approximations for model in (here, there))
    for one, other in zip(ours, theirs, strict=True):
        assert one.frobenius_error == pytest.approx(other.frobenius_error)
    # As many positions as samples: shapes do not tell them apart.
    with pytest.raises(UnsupportedModelError, match=r"kronecker_fit\(risk, 'fc'\).*one sample"):
        kronecker_fit(made(here, torch.randn(6, 6, 5, dtype=torch.float64)), "fc")
