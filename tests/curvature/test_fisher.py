"""The Fisher matrices: draws and refusals. The numbers are in `tests/contracts`."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from eigenscape.curvature import Fisher
from eigenscape.errors import (
    InvalidArgumentError,
    UnknownNameError,
    UnsupportedModelError,
    WrongTypeError,
)
from eigenscape.risk import CrossEntropy, EmpiricalRisk, SquaredError
from eigenscape.testing import check_operator
from tests.cases import case

N = 600  # more than two blocks of the noise
X = torch.randn(N, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(N) % 3


def dense(seed: int, batch_size: int | None = None, **options: int) -> torch.Tensor:
    model = nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.copy_(torch.arange(6.0).view(3, 2) / 6)
        model.bias.zero_()
    risk = EmpiricalRisk(model, CrossEntropy(), (X, Y), batch_size=batch_size)
    return Fisher(risk, kind="sampled", seed=seed, **options).to_dense()


def test_draws_belong_to_samples_and_not_to_batches() -> None:
    whole = dense(3)
    for batch_size in (255, 256, 257, 100):
        torch.testing.assert_close(dense(3, batch_size), whole, rtol=1e-12, atol=1e-15)
    assert not torch.allclose(dense(4), whole, rtol=1e-3)


def test_draws_of_one_operator_do_not_change_between_products() -> None:
    c = case("mlp-tanh")
    for budget in (None, 0):
        F = Fisher(c.risk(4), kind="sampled", memory_budget=budget)
        assert torch.equal(F @ torch.ones(83), F @ torch.ones(83))


def test_large_seeds_differ() -> None:
    assert not torch.equal(dense(2**70), dense(2**70 + 1))
    assert torch.equal(dense(2**70), dense(2**70))


def test_empirical_fisher_of_a_scalar_output() -> None:
    """With ½(wᵀx − y)² a sample's gradient is (wᵀx − y) x."""
    model = nn.Linear(2, 1, bias=False)
    flat = nn.Sequential(model, nn.Flatten(0))
    y = X[:, 0] ** 2
    risk = EmpiricalRisk(flat, SquaredError(), (X, y), batch_size=100)
    g = (flat(X).detach() - y)[:, None] * X
    check_operator(Fisher(risk, kind="empirical"), g.T @ g / N)


def test_refusals() -> None:
    risk = case("mlp-tanh").risk()
    with pytest.raises(UnknownNameError, match="'exact', 'sampled', 'empirical'; got 'mc'"):
        Fisher(risk, kind="mc")
    with pytest.raises(
        InvalidArgumentError, match=r"Fisher\(num_samples=...\)` must be at least 1"
    ):
        Fisher(risk, kind="sampled", num_samples=0)
    with pytest.raises(InvalidArgumentError, match=r"Fisher\(seed=...\)"):
        Fisher(risk, kind="sampled", seed=-1)
    with pytest.raises(WrongTypeError, match=r"Fisher\(seed=...\)"):
        Fisher(risk, kind="sampled", seed=1.5)
    with pytest.raises(UnsupportedModelError, match=r"Use `Fisher.*empirical"):
        Fisher(case("custom-mean").risk())


def test_sampled_labels_need_a_fixed_order() -> None:
    data = TensorDataset(torch.randn(12, 3), torch.randint(0, 2, (12,)))
    loader = DataLoader(data, batch_size=4, shuffle=True)
    risk = EmpiricalRisk(nn.Linear(3, 2), CrossEntropy(), loader, keep_data_bytes=0)
    Fisher(risk, kind="exact")
    with pytest.raises(UnsupportedModelError, match="keep_data_bytes"):
        Fisher(risk, kind="sampled")
