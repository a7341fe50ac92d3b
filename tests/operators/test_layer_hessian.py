"""Layer blocks: fallbacks, checks and refusals. The numbers are in `tests/contracts`."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape.errors import (
    InvalidArgumentError,
    NonFiniteError,
    SubstitutionWarning,
    UnknownNameError,
    UnsupportedModelError,
    WrongTypeError,
)
from eigenscape.linalg import certify, eigsh
from eigenscape.losses import BinaryCrossEntropy, CrossEntropy, SquaredError
from eigenscape.operators import (
    Hessian,
    KroneckerHessian,
    LayerHessian,
    _layer_costs,
    _layer_factors,
    _product_plan,
)
from eigenscape.operators._layer_costs import Place, Sizes, Work, stored_candidates
from eigenscape.operators._layer_plan import Candidate, choose
from eigenscape.operators._machine import Machine, machine_of
from eigenscape.risk import EmpiricalRisk
from eigenscape.testing import check_operator
from tests.cases import case, mlp
from tests.oracles.memory import peak_bytes

X = torch.randn(11, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(11) % 3


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
            self.calls += 1
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


def relu_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, (2, 3), stride=(1, 2), padding=(1, 0)), nn.BatchNorm2d(3), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(3, 4, 2, padding=1), nn.LeakyReLU(0.1), nn.AvgPool2d((1, 2)),
        nn.Flatten(), nn.Linear(16, 6), nn.Hardtanh(), nn.Linear(6, 3, bias=False),
    )  # fmt: skip


def image_risk(batch_size: int | None = 4, loss: object = None) -> EmpiricalRisk:
    torch.manual_seed(1)
    x, y = torch.randn(11, 2, 5, 7), torch.arange(11) % 3
    return EmpiricalRisk(relu_net(), loss or CrossEntropy(), (x, y), batch_size=batch_size)


@pytest.mark.parametrize("batch_size", [1, 4, None])
@pytest.mark.parametrize("representation", ["factors", "streamed", "dense", "tail", "auto"])
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
    risk = EmpiricalRisk(Fork(), CrossEntropy(), (late, Y), batch_size=4)
    operator = LayerHessian(risk, "fc1", representation="factors")
    with pytest.raises(UnsupportedModelError, match=r"Tanh.*representation='tail'"):
        operator @ torch.ones(operator.space.size)


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


# --- streamed ---


def test_one_table_of_rates_serves_all_plans() -> None:
    assert _layer_costs.machine_of is _product_plan.machine_of is machine_of
    moved = Candidate("streamed", moved=machine_of("cuda").transfer)
    assert moved.seconds(3, machine_of("cuda")) == 3.0


def test_on_a_processor_factors_are_streamed_only_if_asked_for() -> None:
    risk = image_risk()
    plan = LayerHessian(risk, "8").plan
    assert "the device's" in str(plan.candidate("streamed").obstacle)
    operator = LayerHessian(risk, "8", representation="streamed")
    assert operator.plan.candidate("streamed").obstacle is None
    weights = torch.randn(33, 2)
    factors = LayerHessian(risk, "8", representation="factors")
    torch.testing.assert_close(operator.row_gram(), factors.row_gram())
    torch.testing.assert_close(operator.combined_rows(weights), factors.combined_rows(weights))


def test_factors_that_exceed_a_gpu_are_streamed_and_then_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = Sizes(N=10**6, P=1, C=10, n=400, m=100, q=40_000, given=1600, kept=1600, size=4,
                  storage=4, copies=1)  # fmt: skip
    work = Work(flops=1e13, graph=1e7, product=1e7, forward=1e7, back=2e7, num_batches=1000,
                batch_share=1e-3, num_roots=10)  # fmt: skip

    def chosen(budget: int) -> str:
        place = Place("cuda", budget, 4)
        tail = _layer_costs.tail_candidate(work, place, sizes.q, is_fixed=True)
        return choose(
            "fc",
            (*stored_candidates(sizes, work, place, asked="auto"), tail),
            num_products=100,
            memory_budget=budget,
            machine=machine_of("cuda"),
        ).chosen

    monkeypatch.setattr(_layer_costs, "host_budget", lambda: 10**11)
    assert sizes.held == 1e6 * (1600 + 4000)
    assert chosen(10**10) == "factors"
    assert chosen(4 * 10**9) == "streamed"
    assert chosen(10**7) == "tail"
    monkeypatch.setattr(_layer_costs, "host_budget", lambda: 10**9)
    assert chosen(4 * 10**9) == "tail"


# --- rounded storage ---


@pytest.mark.parametrize("representation", ["factors", "streamed"])
@pytest.mark.parametrize("storage", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("layer", ["4", "8"])
def test_rounded_factors_are_one_symmetric_matrix_near_the_block(
    layer: str, storage: torch.dtype, representation: str
) -> None:
    risk = image_risk()
    exact = Hessian(risk)[layer].to_dense()
    options = {"representation": representation, "storage": storage}
    operator = LayerHessian(risk, layer, **options)
    found = operator.to_dense()
    # Products of rounded factors are in float64: symmetric, and convex, to its rounding.
    assert float((found - found.T).norm()) <= 1e-14 * float(found.norm())
    assert float(torch.linalg.eigvalsh(found)[0]) >= -1e-13 * float(found.norm())
    error = float((found - exact).norm() / exact.norm())
    eps = torch.finfo(storage).eps
    assert 0.01 * eps < error < 2 * eps
    probe = operator._probes()[0]
    expected = float(((found - exact) @ probe).norm() / (exact @ probe).norm())
    assert operator.storage_error == pytest.approx(expected, rel=1e-6)
    assert error / 10 < operator.storage_error < 10 * error
    assert f"{operator.storage_error:.2g}" in operator.plan.explain()
    wide = LayerHessian(risk, layer, representation=representation)
    assert (wide.storage_error, wide.plan.note) == (0.0, "")
    _ = wide @ torch.ones(wide.space.size)
    assert operator.kept_bytes * torch.float64.itemsize == wide.kept_bytes * storage.itemsize
    assert operator.kept_bytes == operator.plan.candidate(representation).nbytes


def test_sums_of_rounded_factors_are_not_rounded() -> None:
    """A float32 model: rounding a sum to bfloat16 would leave 4e-3, and to float32 1e-7."""
    risk = image_risk()
    model = risk.module.float()
    data = [(b.args[0].float(), b.target) for b in risk.batches]
    single = EmpiricalRisk(model, CrossEntropy(), data)
    operator = LayerHessian(single, "8", representation="factors", storage=torch.bfloat16)
    stored = operator._current()
    assert stored.inputs.dtype == stored.roots.dtype == torch.bfloat16
    exact = _layer_factors.Factors(
        operator._layer, stored.inputs.double(), stored.roots.double()
    ).product(torch.eye(operator.space.size))
    found = operator.to_dense()
    assert found.dtype == torch.float32
    assert float((found * single.divisor - exact).norm() / exact.norm()) < 1e-6


def test_pairs_of_rounded_factors_are_certified_by_the_exact_operator() -> None:
    risk = image_risk()
    exact = Hessian(risk)["8"].to_dense()
    rounded = LayerHessian(risk, "8", representation="factors", storage=torch.bfloat16)
    pairs = eigsh(rounded, num_pairs=3, tolerance=1e-9)
    honest = certify(LayerHessian(risk, "8"), pairs.vectors)
    V = honest.vectors
    dense = (exact @ V - V * honest.values).norm(dim=0)
    torch.testing.assert_close(honest.residuals, dense, rtol=1e-6, atol=1e-12)
    bound = pairs.residuals.max() + rounded.storage_error * exact.norm()
    assert bool((honest.residuals <= bound).all())
    assert float(honest.residuals.max()) > 100 * float(
        pairs.residuals.max()
    )  # and it is not silent


def test_rounding_is_measured_again_for_moved_parameters() -> None:
    risk = image_risk()
    operator = LayerHessian(risk, "8", representation="factors", storage=torch.bfloat16)
    before = operator.storage_error
    with torch.no_grad():
        risk.module[10].weight.add_(0.1)
    _ = operator @ torch.ones(operator.space.size)
    assert operator.storage_error != before
    assert f"{operator.storage_error:.2g}" in operator.plan.explain()


def test_storage_that_rounds_nothing_or_overflows_is_refused() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"torch.float32, torch.bfloat16.*got torch.int8"
    ):
        LayerHessian(image_risk(), "8", storage=torch.int8)
    model = nn.Sequential(nn.Linear(4, 3)).float()
    risk = EmpiricalRisk(model, SquaredError(), (1e6 * X.float(), X[:, :3].float()))
    with pytest.raises(InvalidArgumentError, match=r"got torch\.float64"):
        LayerHessian(risk, "0", storage=torch.float64)
    with pytest.raises(NonFiniteError, match="bfloat16"):
        LayerHessian(risk, "0", representation="factors", storage=torch.float16)
    wide = LayerHessian(risk, "0", representation="factors", storage=torch.bfloat16)
    assert 0.0 < wide.storage_error < 1e-2


# --- embeddings ---


class Lookup(nn.Module):
    """Five positions of one or two embeddings, and a tail that is linear on pieces."""

    def __init__(
        self, padding: int | None, *, vocabulary: int = 7, with_places: bool = False
    ) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocabulary, 4, padding_idx=padding)
        self.places = nn.Embedding(5, 4) if with_places else None
        self.fc1, self.fc2 = nn.Linear(20, 6), nn.Linear(6, 3)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.emb(input=ids)
        if self.places is not None:
            h = h + self.places(torch.arange(5, device=ids.device))
        return self.fc2(torch.relu(self.fc1(h.flatten(1))))


def lookup_risk(padding: int | None = None, **options: int) -> EmpiricalRisk:
    ids = torch.randint(0, 7, (11, 5))
    ids[:, 0] = ids[:, 1]  # a sample may pick a row twice
    model = Lookup(padding, **options)
    return EmpiricalRisk(model, CrossEntropy(), (ids, Y), batch_size=4)


@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("representation", ["factors", "streamed", "dense", "tail"])
def test_embeddings_are_gathered_and_added(representation: str, padding: int | None) -> None:
    risk = lookup_risk(padding)
    exact = Hessian(risk)["emb"].to_dense()
    assert padding is None or not exact[4 * padding : 4 * padding + 4].any()
    operator = LayerHessian(risk, "emb", representation=representation)
    check_operator(operator, exact, rtol=1e-12)
    if representation == "factors":
        assert operator.kept_bytes == operator.plan.candidate("factors").nbytes
        assert operator.kept_bytes == 11 * 5 * (8 + 3 * 4 * 8)  # no one-hot vector


@pytest.mark.parametrize(("vocabulary", "by_pairs"), [(7, False), (40, True)])
def test_rows_of_embeddings(
    vocabulary: int, by_pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RRᵀ from rows, or from pairs of positions that pick the same row."""
    risk = lookup_risk(2, vocabulary=vocabulary)
    operator = LayerHessian(risk, "emb", representation="factors")
    R = operator.combined_rows(torch.eye(33)).T
    torch.testing.assert_close(R.T @ R, Hessian(risk)["emb"].to_dense())
    monkeypatch.setattr(_layer_factors, "_matrices" if by_pairs else "_contracted", None)
    torch.testing.assert_close(operator.row_gram(), R @ R.T)


def test_rounded_embeddings() -> None:
    risk = lookup_risk(2)
    operator = LayerHessian(risk, "emb", representation="factors", storage=torch.bfloat16)
    assert operator.kept_bytes == 11 * 5 * (8 + 3 * 4 * 2)
    error = (operator.to_dense() - (exact := Hessian(risk)["emb"].to_dense())).norm()
    assert 1e-4 < float(error / exact.norm()) < 1e-2


def test_embeddings_without_samples_have_no_factors() -> None:
    risk = lookup_risk(with_places=True)
    operator = LayerHessian(risk, "places")
    assert operator.representation == "tail"
    assert "5 rows for 4 samples" in operator.plan.explain()
    torch.testing.assert_close(operator.to_dense(), Hessian(risk)["places"].to_dense())
    with pytest.raises(UnsupportedModelError, match="no linear layer or convolution"):
        KroneckerHessian(risk, "emb")


def test_an_embedding_that_does_more_than_look_up_is_caught() -> None:
    class Scaled(nn.Embedding):
        def forward(self, input: Tensor) -> Tensor:
            return 3.0 * super().forward(input)

    risk = lookup_risk()
    risk.module.emb = Scaled(7, 4)
    scaled = EmpiricalRisk(
        risk.module, CrossEntropy(), [(b.args[0], b.target) for b in risk.batches]
    )
    with pytest.warns(SubstitutionWarning, match="disagrees"):
        operator = LayerHessian(scaled, "emb", representation="factors")
    assert operator.representation == "tail"
    torch.testing.assert_close(operator.to_dense(), Hessian(scaled)["emb"].to_dense())


# --- memory ---


def linear_risk(samples: int, width: int, batch_size: int) -> EmpiricalRisk:
    model = nn.Sequential(nn.Linear(9, width), nn.ReLU(), nn.Linear(width, width + 7), nn.ReLU(),
                          nn.Linear(width + 7, 5))  # fmt: skip
    data = torch.randn(samples, 9), torch.arange(samples) % 5
    return EmpiricalRisk(model, CrossEntropy(), data, batch_size=batch_size)


def conv_risk(samples: int, width: int, batch_size: int) -> EmpiricalRisk:
    model = nn.Sequential(nn.Conv2d(3, width, 5), nn.ReLU(), nn.Conv2d(width, 16, (3, 2)),
                          nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(5))  # fmt: skip
    images = torch.randn(samples, 3, 15, 16)
    model(images[:1])
    data = images, torch.arange(samples) % 5
    return EmpiricalRisk(model, CrossEntropy(), data, batch_size=batch_size)


@pytest.mark.parametrize(
    ("risk_of", "sizes", "representation"),
    [
        (linear_risk, (3000, 250, 700), "factors"),
        (linear_risk, (3000, 250, 3000), "factors"),
        (linear_risk, (100, 44, 30), "dense"),
        (linear_risk, (4000, 200, 900), "tail"),
        (linear_risk, (3000, 200, 3000), "tail"),
        (conv_risk, (250, 8, 60), "factors"),
        (conv_risk, (100, 18, 30), "dense"),
        (conv_risk, (300, 8, 80), "tail"),
    ],
)
def test_predicted_memory_is_what_is_taken(risk_of, sizes, representation: str) -> None:
    operator = LayerHessian(risk_of(*sizes), "2", representation=representation)
    vector = torch.randn(operator.space.size)
    taken = peak_bytes(lambda: operator @ vector)
    predicted = operator.plan.candidate(representation).peak
    assert taken >= 20e6
    assert abs(predicted - taken) <= 0.25 * taken, (predicted, taken)
    assert f"at most {predicted / 2**20:.3g}" in operator.plan.explain()


def test_the_tail_that_is_made_anew_takes_less() -> None:
    risk = linear_risk(4000, 200, 500)
    budget = 10 * 10**6
    operator = LayerHessian(risk, "2", representation="tail", memory_budget=budget)
    vector = torch.randn(operator.space.size)
    taken = peak_bytes(lambda: operator @ vector)
    predicted = operator.plan.candidate("tail")
    assert predicted.peak < 0.8 * predicted.nbytes
    assert abs(predicted.peak - taken) <= 0.25 * taken


def test_what_exceeds_the_budget_only_while_it_is_made_is_not_made() -> None:
    risk = linear_risk(500, 10, 200)
    plan = LayerHessian(risk, "2", num_products=10**6).plan
    dense = plan.candidate("dense")
    assert plan.chosen == "dense"
    assert dense.nbytes < dense.peak
    between = int(dense.nbytes + dense.peak) // 2
    tight = LayerHessian(risk, "2", num_products=10**6, memory_budget=between)
    assert tight.representation != "dense"
    assert "exceed the memory budget" in str(tight.plan.candidate("dense").obstacle)


def test_memory_is_counted_while_it_lives() -> None:
    old = torch.ones(50)
    with _layer_costs.Live() as live:
        view = old[:10]
        first = old + 1.0
        total = (first * 2.0).sum()
        assert (live.now, live.peak) == (408, 808)  # 50 numbers, 50 more for a while, and a sum
    del view, first, total
    assert live.now == 0
