"""The Hessian: memory, kept graphs, unusual models. The numbers are in `tests/contracts`."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from eigenscape.curvature import (
    Fisher,
    GaussNewton,
    Hessian,
    KroneckerHessian,
    LayerHessian,
    Residual,
)
from eigenscape.errors import (
    InvalidArgumentError,
    NonFiniteError,
    SelfTestError,
    SubstitutionWarning,
    UnsupportedModelError,
    WrongTypeError,
)
from eigenscape.risk import CrossEntropy, EmpiricalRisk, SquaredError
from eigenscape.space import Block
from eigenscape.testing import check_operator, dense_hessian
from tests.cases import case, mlp

X = torch.randn(11, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(11) % 3


def risk_of(model: nn.Module, **options: Any) -> EmpiricalRisk:
    return EmpiricalRisk(model, CrossEntropy(), (X, Y), **options)


def oracle(model: nn.Module) -> Tensor:
    theta = {name: p.detach() for name, p in model.named_parameters()}
    call = torch.func.functional_call
    return dense_hessian(lambda p: F.cross_entropy(call(model, p, (X,)), Y), theta)


# --- memory ---


@pytest.mark.parametrize("name", ["mlp-tanh", "attention-module", "lstm", "pure-function"])
@pytest.mark.parametrize("budget", [0, 3000, 10**5])
def test_the_budget_changes_no_answer(name: str, budget: int) -> None:
    c = case(name)
    X = torch.randn(c.hessian().shape[0], 3)
    for operator, dense in (
        (Hessian(c.risk(3), memory_budget=budget), c.hessian()),
        (GaussNewton(c.risk(3), memory_budget=budget), c.gauss_newton()),
    ):
        for _ in range(2):
            torch.testing.assert_close(operator @ X, dense @ X, rtol=1e-10, atol=1e-12)


def test_what_fits_is_kept_and_used_again() -> None:
    model = CountedCalls()
    risk = risk_of(model, batch_size=4)
    kept, fresh = Hessian(risk), Hessian(risk, memory_budget=0)
    x = torch.ones(risk.space.size)
    for operator, again in ((kept, 0), (fresh, 3)):
        operator @ x
        before = model.calls
        operator @ x
        assert model.calls - before == again


class CountedCalls(nn.Module):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(4, 5, 3)

    def forward(self, x: Tensor) -> Tensor:
        CountedCalls.calls += 1  # what a module keeps in itself is put back
        return self.body(x)


@pytest.mark.parametrize(
    "make",
    [
        Hessian,
        GaussNewton,
        Residual,
        Fisher,
        lambda risk: Fisher(risk, kind="sampled"),
        lambda risk: LayerHessian(risk, "body.0"),
    ],
    ids=["hessian", "gauss-newton", "residual", "fisher", "sampled", "layer"],
)
def test_graphs_are_freed_with_their_operator(make: Callable[[EmpiricalRisk], Any]) -> None:
    outputs: list[weakref.ref[Tensor]] = []

    class Watched(CountedCalls):
        def forward(self, x: Tensor) -> Tensor:
            z = super().forward(x)
            outputs.append(weakref.ref(z))
            return z

    risk = risk_of(Watched(), batch_size=4)
    operator = make(risk)
    gc.collect()
    gc.disable()  # what is freed below is freed by its last reference, not by the collector
    try:
        result = operator @ torch.ones(operator.shape[1], 2)
        assert result.grad_fn is None
        del operator, result
        alive = [ref for ref in outputs if ref() is not None]
        assert not alive
    finally:
        gc.enable()


# --- models that other tools stumble over ---


class Checkpointed(nn.Module):
    """Three layers, the middle one evaluated again during every backward pass."""

    use = True

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 5), nn.Linear(5, 6), nn.Linear(6, 3)
        self.drop = nn.Dropout()

    def inner(self, h: Tensor) -> Tensor:
        return self.drop(torch.tanh(self.middle(torch.tanh(h))))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = checkpoint(self.inner, h, use_reentrant=False) if self.use else self.inner(h)
        return self.last(h)


@pytest.mark.parametrize("budget", [None, 0])
def test_activation_checkpointing_is_exact(budget: int | None) -> None:
    model = Checkpointed().eval()
    model.use = False
    H = oracle(model)
    model.use = True
    model.train()  # recomputation must see the mode of the risk, not that of the model
    for batch_size in (4, None):
        risk = risk_of(model, batch_size=batch_size)
        check_operator(Hessian(risk, memory_budget=budget), H)
        found = GaussNewton(risk).to_dense() + Residual(risk).to_dense()
        torch.testing.assert_close(found, H, atol=1e-13, rtol=1e-10)
        for layer, block in (("first", slice(0, 25)), ("last", slice(61, 82))):
            found = LayerHessian(risk, layer).to_dense()
            torch.testing.assert_close(found, H[block, block], atol=1e-13, rtol=1e-10)
    with pytest.warns(
        SubstitutionWarning, match="'middle' is evaluated again by activation checkpointing"
    ):
        inside = LayerHessian(risk, "middle")
    torch.testing.assert_close(inside.to_dense(), H[25:61, 25:61], atol=1e-13, rtol=1e-10)
    with pytest.raises(UnsupportedModelError, match="activation checkpointing"):
        KroneckerHessian(risk, "middle")


def test_an_operation_without_a_second_derivative_is_named() -> None:
    risk = EmpiricalRisk(
        mlp(4, 5, 3), nn.MultiMarginLoss(), (torch.randn(5, 4), torch.arange(5) % 3)
    )
    with pytest.raises(UnsupportedModelError, match="no second derivative of `multi_margin_loss`"):
        Hessian(risk).to_dense()


class Cut(nn.Module):
    """Two layers, and no derivative leads to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x).detach()))


def test_a_layer_that_no_derivative_leads_to_has_a_block_of_zeros() -> None:
    with pytest.raises(SelfTestError, match="autograd does not see"):
        Hessian(risk_of(Cut())).to_dense()
    risk = risk_of(Cut(), detached="constant")
    with pytest.warns(SubstitutionWarning, match="Nothing that can be differentiated"):
        block = LayerHessian(risk, "first")
    assert not block.to_dense().any()
    with pytest.raises(UnsupportedModelError, match="its block is zero"):
        KroneckerHessian(risk, "first")


@pytest.mark.parametrize("names", [["first"], ["middle.weight", "last"]])
def test_activation_checkpointing_with_some_of_the_parameters(names: list[str]) -> None:
    model = Checkpointed().eval()
    model.use = False
    H = oracle(model)
    model.use = True
    risk = risk_of(model, params=names)
    index = risk_of(model).space.block(*names).index()
    torch.testing.assert_close(Hessian(risk).to_dense(), H[index][:, index], atol=1e-13, rtol=1e-10)
    assert all(p.requires_grad for p in model.parameters())


def test_layers_that_write_in_place() -> None:
    model = nn.Sequential(
        nn.Linear(4, 5),
        nn.ReLU(inplace=True),
        nn.Linear(5, 6),
        nn.SiLU(inplace=True),
        nn.Linear(6, 3),
    )
    H, risk = oracle(model), risk_of(model, batch_size=4)
    check_operator(Hessian(risk), H)
    for layer in "024":
        block = risk.space.block(layer).index()
        check_operator(LayerHessian(risk, layer), H[block][:, block])


class Squashed(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return torch.tanh(weight) * weight.norm()


def test_weights_behind_a_parametrization() -> None:
    model = mlp(4, 5, 3)
    nn.utils.parametrize.register_parametrization(model[0], "weight", Squashed())
    risk = risk_of(model, batch_size=4)
    expected = dense_hessian(
        lambda p: F.cross_entropy(torch.func.functional_call(model, p, (X,)), Y), risk.parameters()
    )
    check_operator(Hessian(risk), expected)
    name = "0.parametrizations.weight"
    with pytest.warns(SubstitutionWarning, match="not known to be linear"):
        block = LayerHessian(risk, name)
    index = risk.space.block(name).index()
    check_operator(block, expected[index][:, index])


def test_wrong_second_derivatives_are_noticed_where_they_break_symmetry() -> None:
    model = mlp(4, 5, 3)
    nn.utils.parametrizations.weight_norm(model[0])
    weight = {"v": torch.randn(5, 4, requires_grad=True), "g": torch.rand(5, 1, requires_grad=True)}
    right = torch.autograd.gradgradcheck(
        lambda v, g: torch._weight_norm(v, g, 0), tuple(weight.values()), raise_exception=False
    )
    risk = risk_of(model, batch_size=4)
    if right:  # this PyTorch has it right
        H = Hessian(risk).to_dense()
        torch.testing.assert_close(H, H.T)
        return
    with pytest.raises(UnsupportedModelError, match="would not be the matrix of your function"):
        Hessian(risk) @ torch.ones(risk.space.size)
    assert (GaussNewton(risk) @ torch.ones(risk.space.size)).isfinite().all()


def test_operations_without_a_batching_rule_are_looped() -> None:
    class Odd(torch.autograd.Function):
        """x³ by hand, which knows nothing of batched gradients."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            if g.ndim != 2:
                raise RuntimeError("needs two dimensions")
            return 3 * g * x**2

    function = lambda p, x: Odd.apply(x @ p["w"])
    params = {"w": torch.randn(4, 2)}
    risk = EmpiricalRisk(function, SquaredError(), (X, X[:, :2]), params=params, batch_size=4)
    loss = lambda p: 0.5 * ((X @ p["w"]) ** 3 - X[:, :2]).square().sum() / 11
    check_operator(Hessian(risk), dense_hessian(loss, params))


def test_models_that_ignore_their_parameters() -> None:
    function = lambda p, x: x[:, :3]
    risk = EmpiricalRisk(
        function, CrossEntropy(), (X, Y), params={"a": torch.ones(2), "b": torch.ones(())}
    )
    for kind in (Hessian, GaussNewton, Residual, Fisher):
        check_operator(kind(risk), torch.zeros(3, 3), atol=1e-300)
    assert not risk.gradient().any()


def test_many_columns_and_scalar_parameters() -> None:
    c = case("pure-function")
    X = torch.randn(36, 150)
    torch.testing.assert_close(Hessian(c.risk(7)) @ X, c.hessian() @ X, rtol=1e-10, atol=1e-12)


# --- refusals ---


@pytest.mark.parametrize("kind", [Hessian, GaussNewton, Residual, Fisher])
def test_refusals(kind: Any) -> None:
    with pytest.raises(
        WrongTypeError, match=rf"`{kind.__name__}\(risk\)` needs an EmpiricalRisk; got Seq"
    ):
        kind(mlp(4, 5, 3))
    risk = risk_of(mlp(4, 5, 3))
    with pytest.raises(InvalidArgumentError, match=rf"{kind.__name__}\(memory_budget=...\)"):
        kind(risk, memory_budget=-1)
    with pytest.raises(WrongTypeError, match=r"memory_budget=...\)` must be an integer"):
        kind(risk, memory_budget="1G")


def test_rounding_is_not_asymmetry() -> None:
    """A bias before a normalisation has no curvature at all; what is left is rounding."""
    model = nn.Sequential(
        nn.Linear(4, 5), nn.LayerNorm(5, elementwise_affine=False), nn.Linear(5, 3)
    )
    with torch.no_grad():
        model[0].weight.copy_(model[0].weight[:1].expand(5, 4))  # all outputs move together
    risk = risk_of(model, params="0", batch_size=4)
    for kind in (Hessian, GaussNewton, Residual):
        assert (kind(risk) @ torch.ones(25)).isfinite().all()
    still = EmpiricalRisk(
        lambda p, x: x[:, :3] + (p["a"] - p["a"]),
        CrossEntropy(),
        (X, Y),
        params={"a": torch.ones(3)},
    )
    assert Hessian(still).to_dense().norm() < 1e-15


# --- what a product asks of its device ---


class HostReads(TorchDispatchMode):
    """Counts what a host waits for: numbers read from tensors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.count = 0
        monkeypatch.setattr(Tensor, "tolist", self._counting(Tensor.tolist))

    def _counting(self, method: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        def counted(tensor: Tensor) -> Any:
            self.count += 1
            return method(tensor)

        return counted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # `aten.equal` compares what is on the host already, or else reads a number, too.
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_host_reads_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    with HostReads(monkeypatch) as reads:
        x = torch.ones(2)
        assert float(x[0]) == x.sum().item() / 2 == x.tolist()[0]
        assert bool((x > 0).all())
        assert torch.equal(x, x)
    assert reads.count == 4


def relu_risk() -> EmpiricalRisk:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.BatchNorm1d(5), nn.Linear(5, 3)).eval()
    return EmpiricalRisk(model, CrossEntropy(), (X, Y))


WAYS: dict[str, Callable[[EmpiricalRisk], Any]] = {
    "graph": lambda risk: Hessian(risk, representation="graph"),
    "linearised": lambda risk: Hessian(risk, representation="linearised"),
    "tail": lambda risk: LayerHessian(risk, "0", representation="tail"),
    "factors": lambda risk: LayerHessian(risk, "0", representation="factors"),
    "dense": lambda risk: LayerHessian(risk, "0", representation="dense"),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_a_product_waits_for_its_device_once(way, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = way(relu_risk())
    v = torch.randn(operator.space.size)
    expected = operator @ v
    reads = HostReads(monkeypatch)
    with reads:
        again = operator @ v
    assert reads.count == 1
    assert torch.equal(again, expected)


def written(model: nn.Module) -> None:
    model[3].weight.data.mul_(1.5)


def turned(model: nn.Module) -> None:
    weight = model[3].weight.data
    weight.copy_(weight.flip(0))


def stepped(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    F.cross_entropy(model(X), Y).backward()
    optimizer.step()


@pytest.mark.parametrize("change", [written, turned, stepped])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_moved_parameters_are_noticed_by_a_single_product(way, change) -> None:
    risk = relu_risk()
    operator = way(risk)
    v = torch.randn(operator.space.size)
    before = operator @ v
    snapshot, places = risk.snapshot(), risk.places()
    change(risk.module)
    assert risk.places() == places
    # PyTorch does not count the others
    assert snapshot.is_counted_as_changed() == (change is stepped)
    after = operator @ v
    assert (after - before).norm() > 0.01 * before.norm()
    torch.testing.assert_close(after, way(risk) @ v)
    torch.testing.assert_close(operator @ v, after, rtol=0, atol=0)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_parameters_that_become_nan_are_refused_and_forgotten(way) -> None:
    risk = relu_risk()
    operator = way(risk)
    v = torch.randn(operator.space.size)
    before = operator @ v
    kept = risk.module[3].weight.detach().clone()
    risk.module[3].weight.data[0, 0] = torch.nan
    for _ in range(2):
        # A trace that was asked for is compared with double backward first, and NaN disagrees.
        with pytest.raises((NonFiniteError, UnsupportedModelError)):
            operator @ v
    risk.module[3].weight.data.copy_(kept)
    torch.testing.assert_close(operator @ v, before)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@pytest.mark.parametrize("is_list", [False, True])
def test_data_that_are_written_to_are_noticed(way, is_list: bool) -> None:
    x, y, model = X.clone(), Y.clone(), relu_risk().module
    data = [(x[:4], y[:4]), (x[4:], y[4:])] if is_list else (x, y)
    risk = EmpiricalRisk(model, CrossEntropy(), data)
    operator = way(risk)
    v = torch.randn(operator.space.size)
    before = operator @ v
    x.mul_(2.0)
    y.copy_(y.flip(0))
    found = operator @ v
    assert not torch.allclose(found, before)
    torch.testing.assert_close(found, way(risk) @ v)


def test_entries_that_go_by_a_tensors_name_are_themselves() -> None:
    H = Hessian(risk_of(mlp(4, 5, 3)))
    full, bias = H.to_dense(), H.space.names[1]
    size = H.space.block(bias).size
    start = H.space.block(bias).spans[0].start
    other = Block(bias, (range(size),))
    turned_round = Block(bias, (range(start + 1, start + size), range(start, start + 1)))
    for block in (other, turned_round):
        i = block.index()
        torch.testing.assert_close(H[block].to_dense(), full[i][:, i])
    part = H[other, turned_round]
    assert not part.is_symmetric
    expected = full[other.index()][:, turned_round.index()]
    torch.testing.assert_close(part.to_dense(), expected)
    assert isinstance(H[bias], Hessian)  # the whole tensor alone is differentiated


@pytest.mark.parametrize("kind", [Hessian, GaussNewton, Residual])
def test_parameters_that_share_their_memory_can_be_linearised(kind) -> None:
    model = mlp(4, 5, 3)
    flat = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    nn.utils.vector_to_parameters(flat, model.parameters())
    risk = risk_of(model)
    torch.testing.assert_close(
        kind(risk, representation="linearised").to_dense(),
        kind(risk, representation="graph").to_dense(),
    )
