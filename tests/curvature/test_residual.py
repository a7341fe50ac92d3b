"""The residual H − G: what is special about it. The numbers are in `tests/contracts`."""

import pytest
import torch
from torch import nn

from eigenscape.curvature import Residual
from eigenscape.errors import WrongTypeError
from eigenscape.risk import CrossEntropy, EmpiricalRisk, SquaredError
from tests.cases import case, mlp

X = torch.randn(11, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_a_perfect_fit_leaves_none() -> None:
    model = mlp(4, 5, 3)
    risk = EmpiricalRisk(model, SquaredError(), (X, model(X).detach()), batch_size=4)
    assert Residual(risk).to_dense().norm() < 1e-14


def test_a_linear_model_has_none() -> None:
    risk = EmpiricalRisk(nn.Linear(4, 3), CrossEntropy(), (X, torch.arange(11) % 3))
    assert not Residual(risk).to_dense().any()


def test_diagonal_blocks_vanish_where_the_tail_is_piecewise_linear() -> None:
    """In a ReLU network a layer's block of H is that of G; only pairs of layers differ."""
    c = case("mlp-relu")
    E, space = Residual(c.risk(7)), c.risk().space
    for layer in ("0", "2", "4"):
        assert E[space.block(layer)].to_dense().norm() < 1e-14
    assert E["0", "2"].to_dense().norm() > 1e-3


def test_models_must_return_one_tensor() -> None:
    pair = lambda p, x: (x @ p["w"], x)
    risk = EmpiricalRisk(pair, lambda z, y: z[0].mean(), (X, X), params={"w": torch.ones(4, 3)})
    with pytest.raises(WrongTypeError, match="`Residual` needs a model that returns one tensor"):
        Residual(risk) @ torch.ones(12)
