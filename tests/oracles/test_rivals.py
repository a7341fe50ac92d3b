"""Other packages as further oracles, on networks and batches where they are right.

Both are optional (`pip install eigenscape[bench]`); without them the tests are skipped.
"""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eigenscape.curvature import Fisher, GaussNewton, Hessian
from eigenscape.risk import CrossEntropy, EmpiricalRisk, SquaredError

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(12) % 3
# Batches of one size: equal and unequal weighting of batches are then the same thing.
BATCHES = [(X[i : i + 4], Y[i : i + 4]) for i in range(0, 12, 4)]


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def columns(operator: Any, n: int) -> Tensor:
    """The dense form of a rival's operator, column by column, whatever it calls its products."""
    return torch.stack([torch.as_tensor(operator @ e) for e in torch.eye(n)], dim=1)


@pytest.fixture
def curvlinops() -> Any:
    return pytest.importorskip("curvlinops", reason="curvlinops is not installed")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("HessianLinearOperator", Hessian),
        ("GGNLinearOperator", GaussNewton),
        ("EFLinearOperator", lambda risk: Fisher(risk, kind="empirical")),
    ],
)
@pytest.mark.parametrize("kind", ["classes", "squares"])
def test_curvlinops(curvlinops: Any, theirs: str, ours: Any, kind: str) -> None:
    model = net()
    if kind == "classes":
        loss, mine, data = nn.CrossEntropyLoss(), CrossEntropy(), BATCHES
    else:
        if theirs == "EFLinearOperator":
            pytest.skip("per-element means make its empirical Fisher another matrix")
        loss, mine = nn.MSELoss(), SquaredError(factor=1.0, average="elements")
        data = [(x, x[:, :3].tanh()) for x, _ in BATCHES]
    params = dict(model.named_parameters())
    make = getattr(curvlinops, theirs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs
        try:
            rival = make(model, loss, params, data)
        except (TypeError, AttributeError):  # before 3.0 it took a list
            rival = make(model, loss, list(params.values()), data)
        expected = columns(rival, sum(p.numel() for p in params.values()))
    found = ours(EmpiricalRisk(model, mine, data)).to_dense()
    torch.testing.assert_close(found, expected.to(found), rtol=1e-8, atol=1e-10)


def test_pyhessian() -> None:
    pyhessian = pytest.importorskip("pyhessian", reason="PyHessian is not installed")
    model = net().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs
        rival = pyhessian.hessian(model, nn.CrossEntropyLoss(), data=(X, Y), cuda=False)
        values, _ = rival.eigenvalues(maxIter=2000, tol=1e-12, top_n=1)
    model = model.requires_grad_(True)
    spectrum = torch.linalg.eigvalsh(
        Hessian(EmpiricalRisk(model, CrossEntropy(), (X, Y))).to_dense()
    )
    top = spectrum[spectrum.abs().argmax()]
    assert values[0] == pytest.approx(top.item(), rel=1e-4)
