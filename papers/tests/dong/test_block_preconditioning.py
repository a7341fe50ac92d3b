"""Errors of approximations and condition numbers, against dense matrices."""

import math

import pytest
import torch
from torch import nn

from eigenscape.curvature import GaussNewton, Hessian, KroneckerHessian
from eigenscape.errors import (
    ConvergenceWarning,
    InvalidArgumentError,
    NotSymmetricError,
    ShapeError,
    TooLargeError,
    WrongTypeError,
)
from eigenscape.operator import Dense
from eigenscape.records import Points
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape.space import ParamSpace, Partition
from eigenscape.structure import squared_block_norms
from eigenscape.testing import dense_hessian, matrix_with_spectrum
from eigenscape_papers.dong import adam_diagonal, block_preconditioning
from eigenscape_papers.networks import build
from tests.small_net import X, Y, net

SPACE = ParamSpace({"a": (4,), "b": (7,), "c": (2,)})


def positive(seed=0, low=0.01):
    values = torch.logspace(math.log10(low), 1, 13, dtype=torch.float64)
    A = matrix_with_spectrum(values, seed=seed).double()
    return (A + A.T) / 2


def kept(A, partition):
    mask = torch.zeros_like(A, dtype=torch.bool)
    for block in partition:
        mask[block.index()[:, None], block.index()] = True
    return A * mask


def by_hand(A, B, damping):
    """All six numbers from dense matrices, by another route: eigenvalues of M⁻¹ (A + δ)."""
    eye = torch.eye(len(A), dtype=torch.float64)
    delta = damping * torch.linalg.eigvalsh(A).abs().max()
    scale = (A * B).sum() / B.square().sum()
    values, V = torch.linalg.eigh(B)
    M = scale * V @ torch.diag(values.abs()) @ V.T + delta * eye
    before = torch.linalg.eigvalsh(A + delta * eye).abs()
    after = torch.linalg.eigvals(torch.linalg.solve(M, A + delta * eye)).abs()
    return {
        "error": (A - B).norm() / A.norm(),
        "scale": scale,
        "scaled_error": (A - scale * B).norm() / A.norm(),
        "condition_before": before.max() / before.min(),
        "condition": after.max() / after.min(),
        "effective_before": before.max() / before.mean(),
        "effective": after.max() / after.mean(),
    }


def agrees(found, expected, rel=1e-6):
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(float(value), rel=rel, abs=1e-9), name


@pytest.mark.parametrize("damping", [1e-6, 1e-2])
@pytest.mark.parametrize("indefinite", [False, True])
def test_blocks_of_a_matrix(damping, indefinite) -> None:
    A = positive() - (2.0 if indefinite else 0.0) * torch.eye(13).double()
    partition = Partition.by_tensor(SPACE)
    operator = Dense(A, space=SPACE)
    found = block_preconditioning(operator, partition, damping=damping)
    expected = by_hand(A, kept(A, partition), damping)
    agrees(found, expected)
    assert found.scale == pytest.approx(1.0)
    assert found.is_indefinite == indefinite
    assert found.is_exact
    assert found.num_products == 13
    assert found.relative_damping == damping
    assert found.damping == pytest.approx(damping * float(torch.linalg.eigvalsh(A).abs().max()))
    # The same error follows from the norms of the blocks.
    E = squared_block_norms(operator, partition, num_products=13).values
    assert found.error == pytest.approx(math.sqrt(1 - float(E.trace() / E.sum())))


def test_a_block_diagonal_matrix_is_made_round() -> None:
    A = kept(positive(), Partition.by_tensor(SPACE))
    found = block_preconditioning(Dense(A, space=SPACE), Partition.by_tensor(SPACE))
    assert found.error == pytest.approx(0.0, abs=1e-12)
    assert found.condition == pytest.approx(1.0)
    assert found.effective == pytest.approx(1.0)
    assert found.condition_before > 50


def test_a_partition_that_does_not_cover() -> None:
    A, partition = positive(), Partition.by_tensor(SPACE, ["a", "c"])
    found = block_preconditioning(Dense(A, space=SPACE), partition)
    agrees(found, by_hand(A, kept(A, partition), 1e-3))


def test_a_diagonal_at_another_scale() -> None:
    A = positive()
    d = 1e-3 * A.diagonal().sqrt()
    found = block_preconditioning(Dense(A, space=SPACE), d, damping=1e-4)
    agrees(found, by_hand(A, torch.diag(d), 1e-4))
    assert found.scaled_error < found.error
    assert found.approximation == "diagonal"
    # c undoes the scale, so that condition numbers do not hang on it.
    other = block_preconditioning(Dense(A, space=SPACE), 50 * d, damping=1e-4)
    assert other.condition == pytest.approx(found.condition)


def test_an_operator_on_a_part_of_the_space() -> None:
    A, B = positive(), positive(seed=3)
    part = Dense(B[4:11, 4:11].contiguous(), space=ParamSpace({"b": (7,)}))
    whole = torch.zeros_like(A)
    whole[4:11, 4:11] = B[4:11, 4:11]
    agrees(block_preconditioning(Dense(A, space=SPACE), part), by_hand(A, whole, 1e-3))


def risk_of(model):
    return EmpiricalRisk(model, CrossEntropy(), (X, Y))


def test_kronecker_and_adam_on_a_network() -> None:
    torch.manual_seed(0)
    model = net(nn.ReLU()).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(20):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(X), Y).backward()
        optimiser.step()
    risk = risk_of(model)
    G = GaussNewton(risk)
    A = G.to_dense()
    factors = [KroneckerHessian(risk, layer) for layer in ("0", "2")]
    B = torch.block_diag(*(part.to_dense() for part in factors))
    found = block_preconditioning(G, factors, damping=1e-2)
    agrees(found, by_hand(A, (B + B.T) / 2, 1e-2), rel=1e-5)
    assert found.approximation == "KroneckerHessian"
    d = adam_diagonal(optimiser.state_dict(), risk.space)
    adam = block_preconditioning(G, d, damping=1e-2)
    agrees(adam, by_hand(A, torch.diag(d), 1e-2), rel=1e-5)
    layers = block_preconditioning(G, Partition.by_layer(G.space), damping=1e-2)
    neurons = block_preconditioning(G, Partition.by_output(G.space), damping=1e-2)
    # Finer partitions keep less.
    assert layers.error < neurons.error
    assert layers.error < found.scaled_error
    assert layers.condition < layers.condition_before


@pytest.mark.parametrize("kind", ["conv", "gpt"])
def test_hessians_of_other_networks(kind) -> None:
    torch.manual_seed(0)
    if kind == "conv":
        layers = nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)
        model, x = nn.Sequential(*layers).double(), X[:12].repeat(1, 3)[:, :9].view(12, 1, 3, 3)
        y = Y[:12]
    else:
        model = build("GPT-1x4x2", input_shape=(3,), num_classes=4).double()
        x, y = torch.randint(0, 4, (2, 4, 3)).unbind(0)
    H = Hessian(EmpiricalRisk(model, CrossEntropy(), (x, y)))
    partition = Partition.by_output(H.space) if kind == "conv" else Partition.by_head(H.space, 2)
    found = block_preconditioning(H, partition, damping=1e-2)

    def loss(params):
        logits = torch.func.functional_call(model, params, (x,))
        return nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten())

    A = dense_hessian(loss, {name: p.detach() for name, p in model.named_parameters()})
    agrees(found, by_hand((A + A.T) / 2, kept((A + A.T) / 2, partition), 1e-2), rel=1e-4)


def test_large_matrices_by_products_agree_with_dense_ones() -> None:
    n = 150
    space = ParamSpace({"a": (40,), "b": (70,), "c": (40,)})
    values = torch.cat([torch.linspace(0.0, 1.0, n - 3), torch.tensor([5.0, 8.0, 20.0])])
    A = matrix_with_spectrum(values, seed=0).double()
    parts = [A[i : i + s, i : i + s] for i, s in ((0, 40), (40, 70), (110, 40))]
    A = 0.3 * A + 3 * torch.block_diag(*parts)
    operator = Dense((A + A.T) / 2, space=space)
    partition = Partition.by_tensor(space)
    options = dict(damping=1e-2, num_probes=40, tolerance=1e-5)
    true = block_preconditioning(operator, partition, **options)
    found = block_preconditioning(operator, partition, **options, dense_limit=100)
    assert not found.is_exact
    assert not found.is_indefinite
    assert found.condition == pytest.approx(true.condition, rel=1e-3)
    assert found.condition_before == pytest.approx(true.condition_before, rel=1e-3)
    for name in ("error", "scaled_error", "effective"):
        told = getattr(found, f"{name}_stderr")
        assert 0 < told < 0.2 * getattr(true, name)
        assert abs(getattr(found, name) - getattr(true, name)) < 4 * told
    assert abs(found.effective_before - true.effective_before) < 4 * found.effective_before_stderr
    lower = Dense((A + A.T) / 2 - 2 * torch.eye(n).double(), space=space)
    indefinite = block_preconditioning(lower, partition, **options, dense_limit=100)
    assert indefinite.is_indefinite
    assert math.isnan(indefinite.condition)
    assert indefinite.effective > 1
    assert "indefinite" in str(indefinite.status)


def test_standard_errors_of_errors_are_true() -> None:
    space = ParamSpace({"a": (12,), "b": (18,)})
    A = torch.randn(30, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    operator = Dense(A + A.T + 12 * torch.eye(30).double(), space=space)
    diagonal = operator.to_dense().diagonal().abs() * 2
    true = block_preconditioning(operator, diagonal)
    runs = [
        block_preconditioning(
            operator, diagonal, num_probes=8, num_steps=3, tolerance=0.1, dense_limit=20, seed=s
        )
        for s in range(24)
    ]
    for name in ("error", "scaled_error"):
        values = torch.tensor([getattr(run, name) for run in runs])
        told = torch.tensor([getattr(run, f"{name}_stderr") for run in runs])
        assert 0.6 < float(told.square().mean().sqrt() / values.std()) < 1.7
        assert abs(float(values.mean()) - getattr(true, name)) < 0.8 * float(values.std())


def test_an_approximation_that_does_not_resemble_the_matrix() -> None:
    with pytest.warns(ConvergenceWarning, match="does not resemble"):
        found = block_preconditioning(Dense(positive(), space=SPACE), -torch.ones(13))
    assert not found.status
    assert found.scale < 0


def test_condition_numbers_are_drawn_at_both_ends() -> None:
    found = block_preconditioning(Dense(positive(), space=SPACE), Partition.by_tensor(SPACE))
    (picture,) = found.pictures()
    before, after = (mark for mark in picture.panels[0].marks if isinstance(mark, Points))
    assert list(before.x) == [found.condition_before, found.effective_before]
    assert list(after.x) == [found.condition, found.effective]
    assert f"error {found.scaled_error:.4f}" in picture.panels[0].title
    found.plot().figure.draw_without_rendering()


def test_columns() -> None:
    found = block_preconditioning(Dense(positive(), space=SPACE), torch.ones(13))
    columns = found.columns()
    assert columns["with it"] == [found.error, found.scaled_error, found.condition, found.effective]


def test_refusals() -> None:
    operator = Dense(positive(), space=SPACE)
    with pytest.raises(NotSymmetricError, match="symmetric"):
        block_preconditioning(Dense(positive().triu(), space=SPACE), torch.ones(13))
    with pytest.raises(ShapeError, match="13 finite numbers"):
        block_preconditioning(operator, torch.ones(12))
    with pytest.raises(ShapeError, match="own space"):
        block_preconditioning(operator, Partition.by_tensor(ParamSpace({"x": (13,)})))
    with pytest.raises(ShapeError, match="'x' of shape"):
        block_preconditioning(operator, Dense(torch.eye(3)))
    with pytest.raises(WrongTypeError, match="got str"):
        block_preconditioning(operator, ["a"])
    with pytest.raises(InvalidArgumentError, match="got none"):
        block_preconditioning(operator, [])
    with pytest.raises(InvalidArgumentError, match="twice"):
        block_preconditioning(operator, [Dense(torch.eye(4), space=ParamSpace({"a": (4,)}))] * 2)
    with pytest.raises(TooLargeError, match="at most 5 entries; got one of 7"):
        block_preconditioning(operator, Partition.by_tensor(SPACE), dense_limit=5)
    with pytest.raises(InvalidArgumentError, match="damping"):
        block_preconditioning(operator, torch.ones(13), damping=0.0)
    with pytest.raises(InvalidArgumentError, match="other than zero"):
        block_preconditioning(Dense(torch.zeros(13, 13), space=SPACE), torch.ones(13))
