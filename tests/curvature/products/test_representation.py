"""A representation as a newcomer writes one; what the driver and sums over batches do with it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eigenscape.curvature import (
    BatchProduct,
    Candidate,
    Choice,
    Maker,
    Memory,
    NetworkMatrix,
    OverBatches,
    Plan,
    Representation,
    loss_curvature,
)
from eigenscape.errors import NonFiniteError
from eigenscape.linalg import eigsh
from eigenscape.risk import Batch, CrossEntropy, EmpiricalRisk, OutputProduct
from eigenscape.testing import check_operator, check_representation
from tests.cases import mlp
from tests.small_net import oracle

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(11, 4, generator=GENERATOR, dtype=torch.float64)
Y = torch.arange(11) % 3


def risk_of(model: nn.Module, **options: Any) -> EmpiricalRisk:
    return EmpiricalRisk(model, CrossEntropy(), (X, Y), **options)


def gradient_of(risk: EmpiricalRisk, batch: Batch) -> tuple[Tensor, list[Tensor]]:
    leaves = risk.leaves()
    (total, *_) = risk.total(leaves, batch)
    slopes = torch.autograd.grad(total, list(leaves.values()), create_graph=True)
    return torch.cat([slope.flatten() for slope in slopes]), list(leaves.values())


class WrittenDown(Representation):
    """A third way to multiply: the matrix, row by row of the gradient, once and for all."""

    def __init__(self, risk: EmpiricalRisk) -> None:
        self._risk, self._matrix = risk, None

    def multiply(self, rows: Tensor) -> Tensor:
        if self._matrix is None:
            self.num_evaluations += 1
            self._matrix = sum(map(self._of, self._risk.batches)) / self._risk.divisor
        return rows @ self._matrix

    def memory(self, num_columns: int) -> Memory:
        n = self._risk.space.size
        return Memory(0 if self._matrix is None else 8 * n * n, 8 * n * num_columns)

    def forget(self) -> None:
        self._matrix = None

    def _of(self, batch: Batch) -> Tensor:
        with torch.enable_grad(), self._risk.evaluating():
            gradient, leaves = gradient_of(self._risk, batch)
            rows = [torch.autograd.grad(g, leaves, retain_graph=True) for g in gradient]
        return torch.stack([torch.cat([t.flatten() for t in row]) for row in rows])


class Anyhow(Choice):
    """The choice of somebody who knows only one way."""

    name, kind, budget = "MyHessian", "hessian", 2**30
    settings = ()
    plan = Plan(
        "MyHessian",
        (Candidate("written down"),),
        "written down",
        1,
        "the only one",
        {"written down": 0.1},
    )

    def __init__(self, risk: EmpiricalRisk, representation: type[Any] = WrittenDown) -> None:
        self.risk, self._kind = risk, representation
        self.made: list[Representation] = []

    def representation(self) -> Representation:
        self.made.append(self._kind(self.risk))
        return self.made[-1]

    def product_on(self, batch: Batch, row: Tensor) -> Tensor:
        return row @ WrittenDown(self.risk)._of(batch)

    def curvature_at(self, output: Tensor, batch: Batch) -> OutputProduct:
        return loss_curvature(self.risk, output, batch)

    def restricted(self, names: tuple[str, ...]) -> None:
        return None


class MyHessian(NetworkMatrix):
    """The Hessian, multiplied anyhow."""


@pytest.mark.parametrize("batch_size", [None, 7])
def test_a_third_representation_is_three_methods(batch_size: int | None) -> None:
    model = mlp(4, 5, 3)
    risk = risk_of(model, batch_size=batch_size)
    H = MyHessian(Anyhow(risk))
    check_operator(H, oracle(model, X, Y), rtol=1e-10)
    assert H.self_test.verdict == "passed"
    assert eigsh(H, num_pairs=2).status.converged
    assert "written down" in H.plan.explain()


def test_it_keeps_the_contract_of_representations() -> None:
    model = mlp(4, 5, 3)

    def moved() -> Tensor:
        with torch.no_grad():
            model[0].weight.mul_(1.5)
        return oracle(model, X, Y)

    representation = WrittenDown(risk_of(model, batch_size=7))
    check_representation(representation, oracle(model, X, Y), moved=moved)


def test_what_is_kept_follows_the_parameters_and_the_function() -> None:
    model = mlp(4, 5, 3)
    choice = Anyhow(risk_of(model))
    H, v = MyHessian(choice), torch.ones(choice.risk.space.size, dtype=torch.float64)
    assert (H.kept_bytes, H.working_bytes(3)) == (0, 0)
    first = H @ v
    n = len(v)
    assert (H.kept_bytes, H.working_bytes(3)) == (8 * n * n, 24 * n)
    with torch.no_grad():
        model[0].weight.mul_(1.5)
    assert not torch.allclose(H @ v, first)
    torch.testing.assert_close(H @ v, oracle(model, X, Y) @ v, rtol=1e-10, atol=1e-12)
    assert len(choice.made) == 1  # it forgot, and went on
    model[1] = nn.Sigmoid()
    torch.testing.assert_close(H @ v, oracle(model, X, Y) @ v, rtol=1e-10, atol=1e-12)
    assert len(choice.made) == 2  # another function: nothing of the old one is used


def test_a_product_that_is_not_finite_is_refused() -> None:
    choice = Anyhow(risk_of(mlp(4, 5, 3)))
    H = MyHessian(choice)
    v = torch.full((choice.risk.space.size,), float("inf"), dtype=torch.float64)
    with pytest.raises(NonFiniteError, match="A product with MyHessian is NaN or infinite"):
        H @ v


# --- sums over batches ---


class Fixed(BatchProduct):
    """A matrix that a test knows."""

    def __init__(self, matrix: Tensor, nbytes: float, can_batch: bool) -> None:
        self._matrix, self.nbytes, self._can_batch = matrix, nbytes, can_batch

    def product(self, rows: Tensor, *, batched: bool) -> Tensor:
        if batched and not self._can_batch:
            raise RuntimeError("no batching rule")
        return rows @ self._matrix


class Counted(Maker):
    """Counts how often it is asked."""

    def __init__(self, size: int, nbytes: float = 100.0, can_batch: bool = True) -> None:
        self.made, self.forgotten = 0, 0
        self._size, self._nbytes, self._can_batch = size, nbytes, can_batch

    def make(self, batch: Batch) -> BatchProduct:
        self.made += 1
        matrix = batch.size * torch.eye(self._size, dtype=torch.float64)
        return Fixed(matrix, self._nbytes * batch.size, self._can_batch)

    def forget(self) -> None:
        self.forgotten += 1


def test_batches_count_for_what_they_hold_and_are_made_once() -> None:
    risk = risk_of(mlp(4, 5, 3), batch_size=4)  # 4, 4 and 3 samples
    maker = Counted(risk.space.size)
    sums = OverBatches(risk, maker, 2**20)
    rows = torch.randn(3, risk.space.size, generator=GENERATOR, dtype=torch.float64)
    for _ in range(2):
        torch.testing.assert_close(sums.multiply(rows), rows)  # 11 / 11
    assert (maker.made, sums.num_evaluations) == (3, 3)
    assert sums.memory(2) == Memory(kept=1100, working=800)
    sums.forget()
    assert (sums.memory(2).kept, maker.forgotten) == (0, 1)
    sums.multiply(rows)
    assert maker.made == 6


def test_what_exceeds_the_budget_is_made_anew() -> None:
    risk = risk_of(mlp(4, 5, 3), batch_size=4)
    maker = Counted(risk.space.size)
    sums = OverBatches(risk, maker, 850)  # two batches of 4
    rows = torch.ones(1, risk.space.size, dtype=torch.float64)
    for _ in range(3):
        torch.testing.assert_close(sums.multiply(rows), rows)
    assert maker.made == 3 + 1 + 1
    assert sums.memory(1).kept == 800


def test_rows_without_a_batching_rule_go_one_by_one() -> None:
    risk = risk_of(mlp(4, 5, 3), batch_size=4)
    sums = OverBatches(risk, Counted(risk.space.size, can_batch=False), 2**20)
    rows = torch.randn(3, risk.space.size, generator=GENERATOR, dtype=torch.float64)
    torch.testing.assert_close(sums.multiply(rows), rows)
