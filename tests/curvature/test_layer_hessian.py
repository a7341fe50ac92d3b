"""Layer blocks: fallbacks, checks and refusals. The numbers are in `tests/contracts`."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape.curvature import Hessian, LayerHessian
from eigenscape.curvature.layers import factors as _layer_factors
from eigenscape.curvature.layers.costs import REPRESENTATIONS
from eigenscape.curvature.products.plan import Candidate, choose
from eigenscape.errors import (
    NonFiniteError,
    SubstitutionWarning,
    UnknownNameError,
    UnsupportedModelError,
    WrongTypeError,
)
from eigenscape.parallel.machine import Machine, machine_of
from eigenscape.risk import BinaryCrossEntropy, CrossEntropy, EmpiricalRisk, SquaredError
from eigenscape.testing import check_operator
from tests.cases import case, mlp
from tests.contracts.layer_cases import X, Y, image_risk, relu_net


def test_closed_form_of_the_last_layer() -> None:
    """Softmax regression: mean (diag p − ppᵀ) ⊗ aaᵀ."""
    risk = EmpiricalRisk(
        nn.Sequential(nn.Linear(4, 3, bias=False)), CrossEntropy(), (X, Y), batch_size=4
    )
    p = risk.module(X).softmax(1).detach()
    M = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    expected = torch.einsum("nab,ni,nj->aibj", M, X, X).reshape(12, 12) / 11
    check_operator(LayerHessian(risk, "0"), expected, rtol=1e-12)


def test_nothing_before_the_layer_is_evaluated_again() -> None:
    class Head(nn.Module):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            type(self).calls += 1  # what a module keeps in itself is put back
            return torch.tanh(self.fc(x))

    head = Head()
    model = nn.Sequential(head, nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    risk = EmpiricalRisk(model, CrossEntropy(), (X, Y), batch_size=4)
    block = LayerHessian(risk, "1")
    block @ torch.ones(36)
    before = head.calls
    block @ torch.ones(36, 3)
    assert head.calls == before


class UsedElsewhere(nn.Module):
    """A weight that the model also reads behind the module's back."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(F.linear(self.fc(x), self.fc.weight)))


class Penalised(nn.Linear):
    """A linear layer in name only."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.weight.square().sum()


def test_the_check_catches_what_the_layer_does_not_say() -> None:
    odd = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), Penalised(5, 3))
    for model, layer in ((UsedElsewhere(), "fc"), (odd, "2")):
        risk = EmpiricalRisk(model, CrossEntropy(), (X, Y), batch_size=4)
        with pytest.warns(SubstitutionWarning, match="disagrees with double backward") as caught:
            operator = LayerHessian(risk, layer)
        assert caught[0].filename == __file__
        assert operator.representation == "full"
        check_operator(operator, Hessian(risk)[layer].to_dense())


def test_parts_of_a_layer() -> None:
    c = case("cnn-batchnorm")
    risk = c.risk(4)
    for name in ("1.weight", "4.bias", "7.weight"):
        index = risk.space.block(name).index()
        operator = LayerHessian(risk, name)
        assert operator.space.names == (name,)
        check_operator(operator, c.hessian()[index][:, index], atol=1e-12)


def test_frozen_parts_are_left_out() -> None:
    model = mlp(4, 5, 3)
    model[2].bias.requires_grad_(False)
    risk = EmpiricalRisk(model, CrossEntropy(), (X, Y))
    operator = LayerHessian(risk, "2")
    assert operator.space.names == ("2.weight",)
    check_operator(operator, Hessian(risk)["2.weight"].to_dense())


def test_the_budget_changes_no_answer() -> None:
    c = case("conv1d")
    index = c.risk().space.block("0").index()
    for budget in (0, 2000):
        operator = LayerHessian(c.risk(3), "0", memory_budget=budget)
        check_operator(operator, c.hessian()[index][:, index])


def test_a_linear_loss_has_no_curvature() -> None:
    risk = EmpiricalRisk(nn.Sequential(nn.Linear(4, 3)), lambda z, y: (z * y).mean(), (X, X[:, :3]))
    assert not LayerHessian(risk, "0").to_dense().any()
    squared = EmpiricalRisk(nn.Sequential(nn.Linear(4, 3)), SquaredError(), (X, X[:, :3]))
    assert LayerHessian(squared, "0").to_dense().any()


def test_refusals() -> None:
    risk = case("mlp-tanh").risk()
    with pytest.raises(UnknownNameError, match="no layer of that name"):
        LayerHessian(risk, "1")
    with pytest.raises(WrongTypeError, match="needs the name of a layer"):
        LayerHessian(risk, 0)


# --- representations ---


@pytest.mark.parametrize("batch_size", [1, 4, None])
@pytest.mark.parametrize("representation", [*REPRESENTATIONS, "auto"])
@pytest.mark.parametrize("layer", ["0", "4", "4.weight", "8", "10"])
def test_representations_are_one_matrix(
    layer: str, representation: str, batch_size: int | None
) -> None:
    risk = image_risk(batch_size)
    operator = LayerHessian(risk, layer, representation=representation)
    assert representation in (operator.representation, "auto")
    assert operator.plan.chosen == operator.representation
    index = risk.space.block(layer).index()
    check_operator(operator, Hessian(risk).to_dense()[index][:, index], rtol=1e-11)


@pytest.mark.parametrize("loss", [SquaredError(), BinaryCrossEntropy()])
def test_representations_with_other_losses(loss: object) -> None:
    x = torch.randn(9, 4)
    y = torch.rand(9, 3)
    risk = EmpiricalRisk(
        nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), loss, (x, y), batch_size=4
    )
    expected = Hessian(risk)["0"].to_dense()
    for representation in ("factors", "dense"):
        operator = LayerHessian(risk, "0", representation=representation)
        torch.testing.assert_close(operator.to_dense(), expected)


@pytest.mark.parametrize("representation", ["factors", "streamed", "dense"])
def test_moved_parameters_are_noticed(representation: str) -> None:
    risk = image_risk()
    operator = LayerHessian(risk, "8", representation=representation)
    before = operator.to_dense()
    with torch.no_grad():
        risk.module[10].weight.mul_(1.5)
    after = operator.to_dense()
    assert (after - before).norm() > 0.1 * before.norm()
    torch.testing.assert_close(after, Hessian(risk)["8"].to_dense())


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda h: torch.tanh(h), "Tanh"),
        (lambda h: h * h, "Mul"),
        (lambda h: 1.0 / (h.abs() + 1.0), "Reciprocal"),
        (lambda h: torch.ones_like(h) / (h.abs() + 1.0), "Div"),
        (lambda h: nn.functional.layer_norm(h, h.shape[1:]), "NativeLayerNorm"),
        (lambda h: h**2, "Pow"),
        (lambda h: h.softmax(1), "Softmax"),
    ],
)
def test_what_is_curved_is_not_taken_for_linear(change, name: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc2(change(self.fc1(x)))

    risk = EmpiricalRisk(Net(), CrossEntropy(), (X, Y))
    operator = LayerHessian(risk, "fc1")
    assert operator.representation == "tail"
    assert f"({name})" in operator.plan.explain()
    with pytest.raises(UnsupportedModelError, match=f"piecewise linear .{name}"):
        LayerHessian(risk, "fc1", representation="factors")


def test_batchnorm_in_train_mode_is_curved() -> None:
    model = relu_net().train()
    risk = EmpiricalRisk(model, CrossEntropy(), (torch.randn(11, 2, 5, 7), Y), mode="keep")
    operator = LayerHessian(risk, "0")
    assert operator.representation == "tail"
    assert "BatchNorm" in operator.plan.explain()


def test_shortcuts_and_constants_are_linear() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2, self.fc3 = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(10, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.fc1(x)
            h = h + 2.0 * torch.relu(self.fc2(h)) / 3.0 - h.abs().clamp(max=0.5)
            return self.fc3(torch.cat([h, h.flip(1)], dim=1)) + x[:, :3] ** 2

    risk = EmpiricalRisk(Net(), CrossEntropy(), (X, Y))
    operator = LayerHessian(risk, "fc1", representation="factors")
    torch.testing.assert_close(operator.to_dense(), Hessian(risk)["fc1"].to_dense())


def test_a_model_that_takes_another_road_later_is_refused() -> None:
    class Fork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.fc1(x)
            return self.fc2(torch.tanh(h) if float(x[0, 0]) > 5.0 else torch.relu(h))

    late = X.clone()
    late[4:, 0] = 9.0
    batches = [(late[:4], Y[:4]), (late[4:], Y[4:])]
    risk = EmpiricalRisk(Fork(), CrossEntropy(), batches, sample_dim=None)
    with pytest.raises(UnsupportedModelError, match=r"Tanh.*representation='tail'"):
        LayerHessian(risk, "fc1", representation="factors")


def test_a_loss_that_is_not_convex_has_no_factors() -> None:
    def odd(z: Tensor, y: Tensor) -> Tensor:
        return z.pow(3).sum() / z.shape[0]

    risk = EmpiricalRisk(nn.Sequential(nn.Linear(4, 3)), odd, (X, Y))
    operator = LayerHessian(risk, "0")
    assert operator.representation == "tail"
    assert "may not be convex" in operator.plan.explain()
    torch.testing.assert_close(operator.to_dense(), Hessian(risk).to_dense())


def test_the_plan_weighs_products_and_memory() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(),
                          nn.Linear(60, 3))  # fmt: skip
    risk = EmpiricalRisk(model, CrossEntropy(), (torch.randn(500, 4), torch.arange(500) % 3))
    few, many = (LayerHessian(risk, "0", num_products=count).plan for count in (1, 10**6))
    assert few.chosen == "tail"
    assert many.chosen == "dense"  # 300 parameters
    costs = many.candidate("dense"), many.candidate("tail")
    seconds = [c.seconds(10**6, machine_of("cpu")) for c in costs]
    assert seconds[0] < seconds[1]
    small = LayerHessian(risk, "0", num_products=10**6, memory_budget=1000)
    assert small.representation == "tail"
    assert "exceed the memory budget" in small.plan.explain()


def test_the_quickest_usable_candidate_wins() -> None:
    machine = Machine(flops=1e9, bandwidth=1e9, pass_seconds=0.1)
    slow = Candidate("tail", product_flops=1e9, nbytes=5.0, passes=2)
    quick = Candidate("factors", build_flops=3e9, product_flops=1e8, traffic=1e8, nbytes=9.0)
    plan = choose("fc", (quick, slow), num_products=10, memory_budget=10, machine=machine)
    assert plan.chosen == "factors"  # 3 + 10 · 0.2 s against 10 · 1.2 s
    assert "5 s for 10 products" in plan.explain()
    assert choose(
        "fc", (quick, slow), num_products=1, memory_budget=10, machine=machine
    ).chosen == ("tail")
    tight = choose("fc", (quick, slow), num_products=10, memory_budget=8, machine=machine)
    assert (tight.chosen, tight.reason) == ("tail", "nothing else can be used")


def test_planned_memory_is_what_factors_hold() -> None:
    risk = image_risk()
    for layer in ("0", "8"):
        operator = LayerHessian(risk, layer, representation="factors")
        _ = operator @ torch.ones(operator.space.size)
        assert operator.kept_bytes == operator.plan.candidate("factors").nbytes


@pytest.mark.parametrize("representation", ["factors", "dense"])
def test_stored_products_in_float32_are_as_good_as_the_others(representation: str) -> None:
    risk = image_risk()
    exact = Hessian(risk)["8"].to_dense()
    risk.module.float()
    data = [tuple(t.float() if t.is_floating_point() else t for t in (b.args[0], b.target))
            for b in risk.batches]  # fmt: skip
    single = EmpiricalRisk(risk.module, CrossEntropy(), data)
    found = LayerHessian(single, "8", representation=representation).to_dense()
    assert found.dtype == torch.float32
    assert float((found - exact).norm() / exact.norm()) < 2e-6


@pytest.mark.parametrize("representation", ["factors", "streamed", "dense", "tail"])
def test_vectors_that_are_not_finite_are_refused(representation: str) -> None:
    operator = LayerHessian(image_risk(), "8", representation=representation)
    bad = torch.zeros(operator.space.size)
    bad[3] = float("nan")
    with pytest.raises(NonFiniteError, match="NaN"):
        operator @ bad


def test_unknown_representations_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="factors"):
        LayerHessian(image_risk(), "8", representation="factor")


# --- rows ---


@pytest.mark.parametrize("nbytes", [1, 2**12, 2**26])
@pytest.mark.parametrize("layer", ["0", "4.weight", "8", "10"])
def test_rows_make_the_block(layer: str, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """RᵀR is the block, whatever the parts in which RRᵀ is filled."""
    monkeypatch.setattr(_layer_factors, "ROWS_BYTES", nbytes)
    risk = image_risk()
    operator = LayerHessian(risk, layer, representation="factors")
    assert operator.num_rows == 33
    R = operator.combined_rows(torch.eye(33)).T
    torch.testing.assert_close(R.T @ R, Hessian(risk)[layer].to_dense())
    torch.testing.assert_close(operator.row_gram(), R @ R.T)
    weights = torch.randn(33, 5)
    torch.testing.assert_close(operator.combined_rows(weights), R.T @ weights)


def test_a_formed_block_is_returned_without_products(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = LayerHessian(image_risk(), "8", representation="dense")
    expected = operator @ torch.eye(operator.space.size)
    monkeypatch.setattr(LayerHessian, "matmat", None)
    found = operator.to_dense()
    assert torch.equal(found, expected)
    found.zero_()
    assert operator.to_dense().any()


@pytest.mark.parametrize("lengths", [(5, 1), (1, 5), (4, 5), (2, 1, 6)])
@pytest.mark.parametrize("representation", ["auto", "factors", "streamed", "dense", "tail"])
def test_batches_of_other_lengths(lengths: tuple[int, ...], representation: str) -> None:
    """One position of a later batch was once taken for each of the first batch's five."""

    class Averaged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 7), nn.Linear(7, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.relu(self.a(x)).mean(1))

    torch.manual_seed(0)
    data = [(torch.randn(4, n, 3), torch.randint(0, 4, (4,))) for n in lengths]
    risk = EmpiricalRisk(Averaged().double(), CrossEntropy(), data)
    expected = Hessian(risk, representation="graph")["a"].to_dense()
    found = LayerHessian(risk, "a", representation=representation).to_dense()
    torch.testing.assert_close(found, expected)
