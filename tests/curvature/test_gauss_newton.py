"""The Gauss-Newton matrix: what is special about it. The numbers are in `tests/contracts`."""

import pytest
import torch
from torch import Tensor, nn

from eigenscape.curvature import GaussNewton, Hessian, Residual
from eigenscape.errors import WrongTypeError
from eigenscape.risk import CrossEntropy, EmpiricalRisk, SquaredError
from eigenscape.testing import check_operator
from tests.cases import TABLE, case

X = torch.randn(11, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(11) % 3


@pytest.mark.parametrize("name", TABLE)
def test_positive_semidefinite_for_convex_losses(name: str) -> None:
    values = torch.linalg.eigvalsh(GaussNewton(case(name).risk(7)).to_dense())
    assert values[0] >= -1e-13 * values[-1]


def test_closed_form_of_a_linear_model() -> None:
    """Least squares with z = Wx has G = H = I ⊗ mean(x xᵀ)."""
    risk = EmpiricalRisk(
        nn.Linear(4, 3, bias=False), SquaredError(), (X, torch.randn(11, 3)), batch_size=4
    )
    expected = torch.kron(torch.eye(3), X.T @ X / 11)
    check_operator(GaussNewton(risk), expected, rtol=1e-13)
    check_operator(Hessian(risk), expected, rtol=1e-13)
    assert Residual(risk).to_dense().norm() < 1e-14


def test_rank_is_at_most_that_of_the_loss() -> None:
    model = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3))
    risk = EmpiricalRisk(model, CrossEntropy(), (X[:4], Y[:4]))
    values = torch.linalg.eigvalsh(GaussNewton(risk).to_dense())
    assert int((values > 1e-12 * values[-1]).sum()) == 4 * 2  # a softmax has rank c − 1


def test_models_must_return_one_tensor() -> None:
    pair = lambda p, x: (x @ p["w"], x)
    loss = lambda z, y: z[0].square().mean()
    risk = EmpiricalRisk(pair, loss, (X, Y), params={"w": torch.ones(4, 3)})
    with pytest.raises(
        WrongTypeError, match=r"`GaussNewton` needs a model that returns one tensor"
    ):
        GaussNewton(risk) @ torch.ones(12)


def test_convexity_is_not_needed() -> None:
    """A loss with negative curvature at the output gives JᵀBJ with that sign."""
    model = nn.Linear(4, 2, bias=False)
    loss = lambda z, y: (-z.square().sum(), len(z))
    risk = EmpiricalRisk(model, loss, (X, Y), batch_size=4)
    found: Tensor = GaussNewton(risk).to_dense()
    torch.testing.assert_close(found, -2 * torch.kron(torch.eye(2), X.T @ X / 11))
