"""How layer blocks are stored: streamed, rounded, looked up; and the memory that plans predict."""

import pytest
import torch
from torch import Tensor, nn

from eigenscape.curvature import Hessian, KroneckerHessian, LayerHessian
from eigenscape.curvature.layers import costs as _layer_costs
from eigenscape.curvature.layers import factors as _layer_factors
from eigenscape.curvature.layers.costs import Limits, Sizes, Work, stored_candidates
from eigenscape.curvature.products import network as _network
from eigenscape.curvature.products.plan import Candidate, choose
from eigenscape.curvature.products.trust import probe_rows
from eigenscape.errors import (
    InvalidArgumentError,
    NonFiniteError,
    SubstitutionWarning,
    UnsupportedModelError,
)
from eigenscape.linalg import certify, eigsh
from eigenscape.parallel.machine import machine_of
from eigenscape.risk import CrossEntropy, EmpiricalRisk, SquaredError
from eigenscape.testing import check_operator
from tests.contracts.layer_cases import X, Y, image_risk
from tests.oracles.memory import peak_bytes

# --- streamed ---


def test_one_table_of_rates_serves_all_plans() -> None:
    assert _layer_costs.machine_of is _network.machine_of is machine_of
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
    sizes = Sizes(N=10**6, P=1, C=10, n=400, m=100, q=40_000, made=1600, kept=1600, size=4,
                  storage=4, copies=1)  # fmt: skip
    work = Work(flops=1e13, graph=1e7, product=1e7, forward=1e7, back=2e7, num_batches=1000,
                batch_share=1e-3, num_roots=10)  # fmt: skip

    def chosen(budget: int) -> str:
        place = Limits("cuda", budget, 4)
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
    probe = probe_rows(operator.risk)[0]
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
    stored = operator._stored()
    assert stored.inputs.dtype == stored.roots.dtype == torch.bfloat16
    exact = _layer_factors.Factors(
        operator._layer_choice.layer, stored.inputs.double(), stored.roots.double()
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
    assert taken >= 15e6
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
