"""Linearised products against dense matrices from plain double backward."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from eigenscape.curvature.products.linearised import (
    LinearisedGraph,
    Program,
    has_only_tensors,
    signature,
)
from eigenscape.errors import WrongTypeError
from eigenscape.risk import Batch, CrossEntropy, EmpiricalRisk
from tests.cases import Case, N, case, mlp, normal

NAMES = ["mlp-tanh", "conv1d", "layernorm", "squared-positions", "unused-frozen"]
KINDS = ["hessian", "gauss-newton", "residual"]


def curvature_of(risk: EmpiricalRisk) -> Any:
    return lambda z, batch: risk.loss.hessian_at(z, batch.target)


def graphs_of(risk: EmpiricalRisk, kind: str) -> list[LinearisedGraph]:
    """One program for each shape of batch, and one graph for each batch."""
    programs: dict[object, Program] = {}
    graphs = []
    with risk.evaluating():
        for batch in risk.batches:
            key = signature(batch)
            if key not in programs:
                programs[key] = Program(risk, batch, kind, "Thing")
            graphs.append(LinearisedGraph(programs[key], risk, batch, curvature_of(risk)))
    return graphs


def product(risk: EmpiricalRisk, kind: str, rows: Tensor, *, batched: bool) -> Tensor:
    with risk.evaluating():
        return sum(graph.product(rows, batched=batched) for graph in graphs_of(risk, kind))


def truth_of(c: Case, kind: str) -> Tensor:
    H, G = c.hessian() * c.count, c.gauss_newton() * c.count
    return {"hessian": H, "gauss-newton": G, "residual": H - G}[kind]


def check(matrix: Tensor, truth: Tensor) -> None:
    assert (matrix - truth).norm() <= 1e-11 * (truth.norm() + 1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_batches_add_up_to_the_dense_matrix(name: str, kind: str) -> None:
    c = case(name)
    risk = c.risk(4)  # 4, 4 and 3: two batches share a program
    rows = torch.randn(3, risk.space.size)
    check(product(risk, kind, rows, batched=True), rows @ truth_of(c, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_one_row_alone_gives_the_same(kind: str) -> None:
    c = case("mlp-tanh")
    risk = c.risk(7)
    row = torch.randn(1, risk.space.size)
    check(product(risk, kind, row, batched=False), row @ truth_of(c, kind))


def test_the_comparison_tells_the_kinds_apart() -> None:
    c = case("mlp-tanh")
    row = torch.randn(1, c.risk().space.size)
    matrix = product(c.risk(), "hessian", row, batched=False)
    for kind in KINDS[1:]:
        with pytest.raises(AssertionError):
            check(matrix, row @ truth_of(c, kind))


class Products(TorchDispatchMode):
    """Count matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func._schema.name in ("aten::mm", "aten::addmm", "aten::addmm_")
        return func(*args, **(kwargs or {}))


def test_a_product_repeats_nothing_of_the_forward_pass() -> None:
    risk = EmpiricalRisk(mlp(4, 6, 5, 3), CrossEntropy(), (normal(N, 4), torch.arange(N) % 3))
    (graph,) = graphs_of(risk, "gauss-newton")
    with risk.evaluating(), Products() as products:
        graph.product(torch.randn(1, risk.space.size), batched=False)
    # ż: X V₁ᵀ; h V₂ᵀ and ḣ W₂ᵀ; two more. Back: three slopes of weights, two of layers.
    assert products.count == 1 + 2 + 2 + 3 + 2


def test_what_is_kept_is_counted_without_parameters_and_data() -> None:
    # Kept: tanh' or tanh of the hidden layer, (11, 5); at the output p, (11, 3).
    risk = EmpiricalRisk(mlp(4, 5, 3), CrossEntropy(), (normal(N, 4), torch.arange(N) % 3))
    (graph,) = graphs_of(risk, "gauss-newton")
    assert graph.nbytes == 8 * (N * 5 + N * 3)


def test_a_product_writes_over_nothing_that_is_kept() -> None:
    c = case("layernorm")
    risk = c.risk()
    rows = torch.randn(2, risk.space.size)
    (graph,) = graphs_of(risk, "hessian")
    with risk.evaluating():
        first, second = (graph.product(rows, batched=True) for _ in range(2))
    assert torch.equal(first, second)
    check(second, rows @ truth_of(c, "hessian"))


def test_signatures_tell_shapes_and_settings_apart_and_not_values() -> None:
    y = torch.arange(3)
    same = [Batch((torch.randn(3, 4), "mean"), {"k": 2}, y, 3) for _ in range(2)]
    assert signature(same[0]) == signature(same[1])
    others = [
        Batch((torch.randn(4, 3), "mean"), {"k": 2}, y, 4),
        Batch((torch.randn(3, 4).float(), "mean"), {"k": 2}, y, 3),
        Batch((torch.randn(3, 4), "sum"), {"k": 2}, y, 3),
        Batch((torch.randn(3, 4), "mean"), {"k": 3}, y, 3),
        Batch((torch.randn(3, 4), "mean"), {"j": 2}, y, 3),
    ]
    assert len({signature(batch) for batch in (same[0], *others)}) == 6


def test_objects_that_a_trace_cannot_see_into_are_told() -> None:
    y = torch.arange(3)
    x = torch.randn(3, 4)
    assert has_only_tensors(Batch((x, None, [1.5, "a"]), {"flag": True}, y, 3))
    assert not has_only_tensors(Batch((x, object()), {}, y, 3))
    assert not has_only_tensors(Batch((x.to_sparse(),), {}, y, 3))
    mark = object()
    assert signature(Batch((mark,), {}, y, 3)) == signature(Batch((mark,), {}, y, 3))
    assert signature(Batch((mark,), {}, y, 3)) != signature(Batch((object(),), {}, y, 3))


def test_an_output_that_is_no_tensor_is_refused() -> None:
    def pair(params: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        return x @ params["W"], x

    risk = EmpiricalRisk(
        pair,
        lambda z, y: (z[0] - y).square().mean(),
        (normal(N, 4), normal(N, 3)),
        params={"W": normal(4, 3)},
    )
    with risk.evaluating(), pytest.raises(WrongTypeError, match=r"`Thing` needs .* got tuple"):
        Program(risk, next(iter(risk.batches)), "hessian", "Thing")
