"""Kept graphs, linearised and compiled products are one matrix, or one is not used."""

import copy
import shutil
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from eigenscape.curvature import Fisher, GaussNewton, Hessian, Residual
from eigenscape.curvature.products.linearised import Program
from eigenscape.curvature.products.network import REPRESENTATIONS, Work, quickest
from eigenscape.errors import InvalidArgumentError, SubstitutionWarning, UnsupportedModelError
from eigenscape.linalg import eigsh
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape.testing import check_operator
from eigenscape.tracing.passes import _is_pointwise, _is_view, smallest_cut
from eigenscape.tracing.staged import Staged
from tests.cases import TABLE, case, mlp
from tests.oracles.memory import Live

RTOL = 1e-10
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(11, 4, generator=GENERATOR, dtype=torch.float64)
Y = torch.arange(11) % 3


def close(found: Tensor, expected: Tensor, scale: Tensor | None = None) -> None:
    size = expected.norm() if scale is None else scale.norm()
    assert float((found - expected).norm()) <= RTOL * float(size)


def risk_of(model: Any, **options: Any) -> EmpiricalRisk:
    return EmpiricalRisk(model, CrossEntropy(), (X, Y), **options)


def prefer_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a plan believe that each product takes seconds."""
    monkeypatch.setattr(
        "eigenscape.curvature.products.network.quickest",
        lambda work, count, device: quickest(Work(1e12, 1e9, 1, 1), count, device),
    )
    monkeypatch.setattr("eigenscape.curvature.products.network._TINY_BYTES", 0)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """Every trace that is made in a test."""
    made: list[Program] = []
    trace = Program.__init__

    def noted(self: Program, *args: Any, **options: Any) -> None:
        trace(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(Program, "__init__", noted)
    return made


# --- the same matrix ---

# Forward mode moves the row of an embedding that reverse mode holds at zero: the two disagree.
TRACEABLE = [name for name in TABLE if name != "embedding-padding"]


@pytest.mark.parametrize("name", TRACEABLE)
def test_linearised_hessian(name: str) -> None:
    c = case(name)
    check_operator(Hessian(c.risk(7), representation="linearised"), c.hessian(), rtol=RTOL)


@pytest.mark.parametrize("name", [name for name in TRACEABLE if not name.startswith("custom")])
def test_linearised_parts(name: str) -> None:
    c = case(name)
    H, G, risk = c.hessian(), c.gauss_newton(), c.risk(7)
    close(GaussNewton(risk, representation="linearised").to_dense(), G)
    close(Residual(risk, representation="linearised").to_dense(), H - G, scale=H)
    grams = c.term_gradients().T @ c.term_gradients() / c.count
    close(Fisher(risk, kind="empirical", representation="linearised").to_dense(), grams)


def test_sampled_labels_belong_to_samples_and_not_to_a_trace() -> None:
    c = case("mlp-relu")
    kept = Fisher(c.risk(7), kind="sampled", num_samples=3, representation="graph").to_dense()
    for batch_size in (2, 7, None):
        F = Fisher(
            c.risk(batch_size), kind="sampled", num_samples=3, representation="linearised"
        ).to_dense()
        close(F, kept)


needs_compiler = pytest.mark.skipif(
    shutil.which("c++") is None, reason="torch.compile needs a C++ compiler"
)


@pytest.mark.parametrize(
    "representation",
    [
        pytest.param(name, marks=[pytest.mark.slow, needs_compiler] if name == "compiled" else [])
        for name in REPRESENTATIONS
    ],
)
@pytest.mark.parametrize("name", ["mlp-relu", "attention-fused"])
def test_every_representation_is_the_hessian(name: str, representation: str) -> None:
    c = case(name)
    H = Hessian(c.risk(), representation=representation)
    close(H @ torch.eye(H.shape[0], dtype=torch.float64)[:, :3], c.hessian()[:, :3])
    assert H.plan.chosen == representation
    assert set(H.plan.seconds) == {candidate.representation for candidate in H.plan.candidates}


# --- what moves ---


@pytest.mark.parametrize("operator", [Hessian, GaussNewton, Residual])
def test_moved_parameters_need_no_new_trace(
    operator: Callable[..., Any], programs: list[Program]
) -> None:
    model = mlp(4, 5, 3)
    risk = risk_of(model, batch_size=7)
    A = operator(risk, representation="linearised")
    before = A.to_dense()
    traces = list(programs)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.3)
    close(A.to_dense(), operator(risk, representation="graph").to_dense())
    assert float((A.to_dense() - before).norm()) > 1e-3
    assert programs == traces


def test_replaced_and_rewritten_buffers_are_seen() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()
    risk = risk_of(model)
    H = Hessian(risk, representation="linearised")
    H.to_dense()
    model[1].running_var.mul_(2.0)
    close(H.to_dense(), Hessian(risk, representation="graph").to_dense())
    model[1].running_mean = torch.full((5,), 0.3, dtype=torch.float64)
    close(H.to_dense(), Hessian(risk, representation="graph").to_dense())


def test_nothing_kept_is_made_anew() -> None:
    c = case("mlp-relu")
    H = Hessian(c.risk(4), representation="linearised", memory_budget=0)
    close(H.to_dense(), c.hessian())
    assert H.kept_bytes == 0
    rich = Hessian(c.risk(4), representation="linearised")
    close(rich.to_dense(), c.hessian())
    assert rich.kept_bytes > 0


def test_it_is_interrupted_nowhere_in_an_algorithm() -> None:
    c = case("mlp-relu")
    found = eigsh(Hessian(c.risk(4), representation="linearised"), num_pairs=3)
    expected = torch.linalg.eigvalsh(c.hessian()).flip(0)[:3]
    torch.testing.assert_close(found.values, expected, rtol=1e-8, atol=0)


# --- what is not trusted ---


def spoilt(self: Program, *args: Any, **options: Any) -> list[Tensor | None]:
    parts = RIGHT(self, *args, **options)
    return [None if part is None else part * (1 + 1e-6) for part in parts]


RIGHT = Program.pull


def test_padding_rows_count_as_constants_in_every_representation() -> None:
    c = case("embedding-padding")
    for representation in ("graph", "linearised"):
        close(Hessian(c.risk(7), representation=representation).to_dense(), c.hessian())


def test_a_product_that_disagrees_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Program, "pull", spoilt)
    c = case("mlp-relu")
    with pytest.raises(UnsupportedModelError, match="disagrees with double backward"):
        Hessian(c.risk(), representation="linearised") @ torch.ones(c.hessian().shape[0]).double()
    prefer_traces(monkeypatch)
    H = Hessian(c.risk())
    assert H.plan.chosen != "graph"
    with pytest.warns(SubstitutionWarning, match="disagrees with double backward"):
        close(H.to_dense(), c.hessian())
    assert H.plan.chosen == "graph"
    assert "disagrees" in H.plan.explain()


def test_columns_that_disagree_with_single_ones_are_multiplied_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together = []

    def spoilt_together(
        self: Program, *args: Any, batched: bool, **options: Any
    ) -> list[Tensor | None]:
        together.append(batched)
        return (spoilt if batched else RIGHT)(self, *args, batched=batched, **options)

    monkeypatch.setattr(Program, "pull", spoilt_together)
    c = case("mlp-relu")
    H = Hessian(c.risk(), representation="linearised")
    close(H.to_dense(), c.hessian())
    assert H.plan.chosen == "linearised"
    assert sum(together) == 1  # tried once, and never again


class Checkpointed(nn.Module):
    """Evaluates its middle again during the backward pass, which no trace can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 5), nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(lambda t: torch.tanh(self.b(t)), torch.tanh(self.a(x)), use_reentrant=False)
        return self.c(h)


class Branching(nn.Module):
    """Looks at the values of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        is_large = float(self.a.weight.detach().sum()) > 0
        return torch.tanh(self.a(x) if is_large else self.b(x))


@pytest.mark.parametrize("kind", [Checkpointed, Branching])
def test_models_that_cannot_be_traced_are_multiplied_by_graphs(
    kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = kind().double()
    risk = risk_of(model, batch_size=4)
    expected = Hessian(risk, representation="graph").to_dense()
    prefer_traces(monkeypatch)
    H = Hessian(risk)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(H.to_dense(), expected)


def test_unknown_representations_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"Hessian\(representation=\.\.\.\)"):
        Hessian(risk_of(mlp(4, 5, 3)), representation="liniarised")
    with pytest.raises(InvalidArgumentError, match=r"GaussNewton\(num_products=\.\.\.\)"):
        GaussNewton(risk_of(mlp(4, 5, 3)), num_products=0)


# --- the plan ---


def test_small_work_is_not_prepared_and_heavy_work_is() -> None:
    light, heavy = Work(1e6, 1e5, 60, 1), Work(1e11, 1e9, 60, 10)
    assert quickest(light, 100, "cpu") == "graph"
    assert quickest(heavy, 1, "cpu") == "graph"
    assert quickest(heavy, 100, "cpu") == "linearised"
    assert quickest(heavy, 10**6, "cuda") == "compiled"
    # Starting operations is what costs on a GPU; a recorded product starts none.
    assert quickest(Work(1e6, 1e5, 60, 100), 100, "cuda") == "linearised"


def test_the_plan_is_the_same_every_time_and_explains_itself() -> None:
    assert "too small" in Hessian(risk_of(mlp(4, 5, 3))).plan.explain()
    risk = risk_of(mlp(4, 4001, 3))
    plans = [Hessian(risk, num_products=n).plan for n in (100, 100, 7)]
    assert plans[0] == plans[1] != plans[2]
    text = plans[0].explain()
    assert text.splitlines()[0] == "Hessian: graph (the quickest)"
    assert "→ graph" in text
    assert "linearised" in text
    assert "100 products" in text


# --- the trace ---


def test_stages_hold_only_what_depends_on_their_inputs() -> None:
    calls = []

    def function(fixed: list[Tensor], moving: list[Tensor]) -> list[Tensor]:
        calls.append(1)
        return [(fixed[0] @ fixed[1]).tanh() @ moving[0]]

    a, b, v = X[:3], X[:4, :4].clone(), X[5, :4].clone()
    staged = Staged(function, [[a, b], [v]])
    (name,) = staged.outputs
    known = staged.run(0, [a, b], {})
    expected = (a @ b).tanh()
    for scale in (1.0, -3.0):
        torch.testing.assert_close(staged.run(1, [scale * v], known)[name], expected @ (scale * v))
    stack = torch.stack([v, 2 * v])
    both = staged.run(1, [stack], known, columns=frozenset())[name]
    torch.testing.assert_close(both, torch.stack([expected @ v, expected @ (2 * v)]))
    assert calls == [1]
    assert [str(n.target) for n in staged._modules[1].graph.nodes if n.op == "call_function"] == [
        "aten.mv.default"
    ]


def test_values_that_are_kept_are_never_written_over() -> None:
    """What a function writes in place is new at each run."""

    def function(fixed: list[Tensor], moving: list[Tensor]) -> list[Tensor]:
        total = fixed[0] * 2
        total.add_(moving[0])
        total[0] = moving[0][1]
        return [total.mul_(moving[0])]

    a, v = X[0].clone(), X[1].clone()
    staged = Staged(function, [[a], [v]])
    known = staged.run(0, [a], {})
    for scale in (1.0, 2.0, 1.0):
        (expected,) = function([a], [scale * v])
        torch.testing.assert_close(staged.run(1, [scale * v], known)[staged.outputs[0]], expected)
    assert torch.equal(a, X[0])


# --- what is kept ---


def gelu_and_norm() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 5),
        nn.GELU(),
        nn.LayerNorm(5),
        nn.Linear(5, 6),
        nn.Softmax(-1),
        nn.Linear(6, 3),
    ).double()


@pytest.mark.parametrize("operator", [Hessian, GaussNewton, Residual])
def test_recomputing_changes_no_bit_and_keeps_less(
    operator: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    risk = risk_of(gelu_and_norm())
    v = torch.randn(risk.space.size, generator=GENERATOR, dtype=torch.float64)
    found = {}
    for again in (1 / 4, 4.0):  # as a rule, and never but for views
        monkeypatch.setattr("eigenscape.tracing.staged._AGAIN", again)
        A = operator(risk, representation="linearised")
        found[again] = (A @ v, A.kept_bytes)
    assert torch.equal(found[1 / 4][0], found[4.0][0])
    assert found[1 / 4][1] < found[4.0][1]


def test_what_is_computed_again_is_cheap(programs: list[Program]) -> None:
    """In stages of a product, whatever needs no vector works on single entries or is a view."""
    risk = risk_of(gelu_and_norm())
    H = Hessian(risk, representation="linearised")
    H @ torch.ones(H.shape[0], dtype=torch.float64)
    (program,) = programs
    again = []
    for stage in (2, 3):
        moving = {node.name for own in program._staged._own[2:] for node in own}
        moving |= set(program._staged._gives[2])
        for node in program._staged._modules[stage].graph.nodes:
            if node.op == "call_function":
                if any(a.name in moving for a in node.all_input_nodes):
                    moving.add(node.name)
                else:
                    again.append(node)
    assert again
    assert all(_is_view(node) or _is_pointwise(node) for node in again)


def test_the_smallest_cut_weighs_bytes_against_work() -> None:
    """x (4 numbers) leads by two operations to y (16 numbers), which is wanted."""

    def function(x: Tensor) -> Tensor:
        return (x[:, None] * x).exp()

    traced = make_fx(function, tracing_mode="fake")(torch.ones(4))
    nodes = [node for node in traced.graph.nodes if node.op != "output"]
    x, y = nodes[0], nodes[-1]
    assert smallest_cut(nodes, [y], again=0.25) == {x}  # 4 + (16 + 16) / 4 < 16
    assert smallest_cut(nodes, [y], again=0.5) == {y}
    assert smallest_cut(nodes, [y], again=0.5, free=[x]) == {y}
    assert smallest_cut(nodes, [y], again=0.5, movable=nodes[1:]) == {x}


def test_one_column_of_a_product_takes_no_more_than_twice_what_is_kept() -> None:
    """While it is set up, too: no two columns at a time, and nothing is held twice."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(8)])
    x = torch.randn(512, 32, generator=GENERATOR)
    risk = EmpiricalRisk(model, CrossEntropy(), (x, torch.arange(512) % 32), batch_size=512)
    H = Hessian(risk, representation="linearised")
    v = torch.ones(risk.space.size)
    with Live() as live:
        H @ v
    assert live.peak < 4 * H.kept_bytes
    with Live() as live:
        H @ v
    assert live.peak < 2 * H.kept_bytes


def matrix_products(program: Program) -> int:
    names = [
        str(node.target)
        for stage in (2, 3)
        for node in program._staged._modules[stage].graph.nodes
        if node.op == "call_function"
    ]
    return sum(name.split(".")[1] in ("mm", "addmm", "bmm") for name in names)


def test_a_product_takes_no_more_matrix_products_than_counting_says(
    programs: list[Program],
) -> None:
    """Six for each layer and two for the first, whose input is constant; four and two for G."""
    risk = risk_of(mlp(4, 5, 6, 3))
    H, G = (A(risk, representation="linearised") for A in (Hessian, GaussNewton))
    for A in (H, G):
        A @ torch.ones(A.shape[0], dtype=torch.float64)
    assert [matrix_products(program) for program in programs] == [2 + 6 + 6, 2 + 4 + 4]


def test_a_diagonal_block_differentiates_nothing_else(programs: list[Program]) -> None:
    """Of the second of three layers: no zeros are pushed through the first."""
    risk = risk_of(mlp(4, 5, 6, 3))
    for operator in (Hessian, GaussNewton):
        A = operator(risk, representation="linearised")
        block = A["2"]
        assert isinstance(block, operator)
        rows = risk.space.block("2").index("cpu")
        dense = A.to_dense()
        close(block.to_dense(), dense[rows][:, rows])
        # Two with its own input; the last layer, whose weights stay, passes on forth and back.
        assert matrix_products(programs[-1]) == 4


def test_other_blocks_are_taken_out_of_the_whole() -> None:
    risk = risk_of(mlp(4, 5, 3))
    H = Hessian(risk)
    whole = H.to_dense()
    names = risk.space.names
    for a, b in ((names[0], names[2]), (names[1], names[0])):
        rows, columns = (risk.space.block(n).index("cpu") for n in (a, b))
        close(H[a, b].to_dense(), whole[rows][:, columns])


def test_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double().train()
    before = copy.deepcopy(model.state_dict())
    Hessian(risk_of(model), representation="linearised").to_dense()
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
