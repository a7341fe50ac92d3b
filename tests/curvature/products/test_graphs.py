"""Kept graphs of one batch against dense matrices from plain double backward."""

import pytest
import torch
from torch import Tensor, nn

from eigenscape.curvature.products.graphs import (
    HessianGraph,
    JacobianGraph,
    count_nodes,
    gradients,
    output_of,
)
from eigenscape.curvature.products.representation import BatchProduct, join_rows, split_rows
from eigenscape.errors import UnsupportedModelError, WrongTypeError
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from tests.cases import Case, N, case, mlp, normal

NAMES = ["mlp-tanh", "conv1d", "soft-targets", "binary-weighted", "two-inputs"]


def summed(risk: EmpiricalRisk, graphs: list[BatchProduct], *, batched: bool) -> Tensor:
    """The matrix that graphs of all batches add up to."""
    eye = torch.eye(risk.space.size)
    rows = [eye] if batched else [row[None] for row in eye]
    with risk.evaluating():
        products = [graph.product(row, batched=batched) for graph in graphs for row in rows]
    return torch.cat(products).view(len(graphs), *eye.shape).sum(0)


def hessians(risk: EmpiricalRisk) -> list[BatchProduct]:
    return [HessianGraph(risk, batch) for batch in risk.batches]


def jacobians(risk: EmpiricalRisk) -> list[BatchProduct]:
    curvature = lambda z, batch: risk.loss.hessian_at(z, batch.target)
    return [JacobianGraph(risk, batch, curvature, "GaussNewton") for batch in risk.batches]


def residuals(risk: EmpiricalRisk) -> list[BatchProduct]:
    return [HessianGraph(risk, batch, fixed_output_gradient=True) for batch in risk.batches]


def check(matrix: Tensor, truth: Tensor, scale: float) -> None:
    assert (matrix - truth).norm() <= 1e-11 * scale


def truths(c: Case) -> dict[str, Tensor]:
    H, G = c.hessian() * c.count, c.gauss_newton() * c.count
    return {"hessians": H, "jacobians": G, "residuals": H - G}


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("kind", [hessians, jacobians, residuals])
@pytest.mark.parametrize("name", NAMES)
def test_batches_add_up_to_the_dense_matrix(name: str, kind: object, batched: bool) -> None:
    c = case(name)
    risk = c.risk(7)
    truth = truths(c)[kind.__name__]
    check(summed(risk, kind(risk), batched=batched), truth, float(truth.norm()) + 1e-3)


def test_the_comparison_tells_the_three_matrices_apart() -> None:
    c = case("mlp-tanh")
    matrix = summed(c.risk(7), hessians(c.risk(7)), batched=True)
    for other in ("jacobians", "residuals"):
        with pytest.raises(AssertionError):
            check(matrix, truths(c)[other], float(matrix.norm()))


def test_outputs_that_no_parameter_reaches_give_zeros() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.gain = nn.Linear(4, 3), nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x)

    risk = EmpiricalRisk(Fixed(), CrossEntropy(), (normal(N, 4), torch.arange(N) % 3))
    rows = torch.zeros(3, risk.space.size)
    rows[:, risk.space.block("gain").index()] = torch.randn(3, 2)
    for graphs in (hessians(risk), jacobians(risk)):
        with risk.evaluating():
            assert not graphs[0].product(rows, batched=True).any()


@pytest.mark.parametrize("count", [1, 3])
def test_rows_are_cut_into_tensors_and_joined_again(count: int) -> None:
    leaves = [torch.zeros(2, 3), torch.zeros(()), torch.zeros(5)]
    rows = torch.arange(12.0 * count).view(count, 12)
    cut = split_rows(rows, leaves)
    assert [tuple(t.shape) for t in cut] == [
        ((count,) if count > 1 else ()) + tuple(leaf.shape) for leaf in leaves
    ]
    assert torch.equal(join_rows(cut, rows, leaves), rows)
    without = join_rows([cut[0], None, cut[2]], rows, leaves)
    expected = rows.clone()
    expected[:, 6] = 0
    assert torch.equal(without, expected)


def test_gradients_take_the_heads_that_have_a_graph() -> None:
    x, y = torch.randn(3, requires_grad=True), torch.randn(4, requires_grad=True)
    heads, seeds = [x.square(), None, torch.ones(3)], [torch.ones(3) * 2, None, torch.ones(3)]
    slope, nothing = gradients(heads, [x, y], seeds)
    torch.testing.assert_close(slope, 4 * x.detach())
    assert nothing is None
    assert gradients([torch.ones(2), None], [x, y], [torch.ones(2), None]) == [None, None]


def test_gradients_take_many_seeds_at_once() -> None:
    x = torch.randn(3, requires_grad=True)
    seeds = torch.randn(5, 3)
    (slopes,) = gradients(x.sin(), [x], seeds, batched=True)
    torch.testing.assert_close(slopes, seeds * x.detach().cos())


def test_nodes_are_counted_once() -> None:
    x = torch.randn(3, requires_grad=True)
    sine = x.sin()
    # sin, mul, add, and what accumulates the leaf's gradient.
    assert count_nodes([sine * sine + x, None, torch.ones(2)]) == 4
    assert count_nodes([torch.ones(2), None]) == 0


def test_an_output_that_is_no_tensor_is_refused() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.fc(x), x

    data = (normal(N, 4), normal(N, 3))
    risk = EmpiricalRisk(Pair(), lambda z, y: (z[0] - y).square().mean(), data)
    batch = next(iter(risk.batches))
    with risk.evaluating(), pytest.raises(WrongTypeError, match=r"`Thing` needs .* got tuple"):
        output_of(risk, risk.leaves(), batch, "Thing")


def test_a_penalty_inside_the_loss_is_refused() -> None:
    model = mlp(4, 5, 3)

    def penalised(z: Tensor, y: Tensor) -> Tensor:
        return (z - y).square().mean() + model[2].weight.square().sum()

    risk = EmpiricalRisk(model, penalised, (normal(N, 4), normal(N, 3)))
    batch = next(iter(risk.batches))
    words = r"`Thing` needs a loss.*'2\.weight' directly"
    with risk.evaluating(), pytest.raises(UnsupportedModelError, match=words):
        output_of(risk, risk.leaves(), batch, "Thing")
