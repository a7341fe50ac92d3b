"""The same answers on a GPU: operators against the dense oracle, probes, solvers, TF32 kept out."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eigenscape import (
    CrossEntropy,
    EmpiricalRisk,
    Fisher,
    GaussNewton,
    Hessian,
    LayerHessian,
    Residual,
    eigsh,
    spectral_density,
    trace,
)
from eigenscape.curvature.layers import costs as _layer_costs
from eigenscape.linalg import draw_probes
from eigenscape.operator import Dense
from eigenscape.testing import check_operator, dense_hessian

pytestmark = pytest.mark.gpu
CUDA = "cuda"


class Net(nn.Module):
    """Convolution, frozen BatchNorm, fused attention and LayerNorm, of unequal sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, (3, 2))
        self.norm = nn.BatchNorm2d(6)
        self.ln = nn.LayerNorm(6)
        self.out = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        h = F.scaled_dot_product_attention(h, h, h)
        return self.out(self.ln(h).mean(1))


def problem(dtype: torch.dtype, **options: object) -> tuple[nn.Module, EmpiricalRisk, Tensor]:
    torch.manual_seed(0)
    model = Net().to(dtype)
    x, y = torch.randn(11, 3, 5, 4, dtype=dtype), torch.randint(0, 5, (11,))
    model = model.to(CUDA)
    with pytest.warns(UserWarning, match="math kernel"):
        risk = EmpiricalRisk(model, CrossEntropy(), (x, y), **options)
    model.eval()

    def loss(params: dict[str, Tensor]) -> Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            output = torch.func.functional_call(model, params, x.to(CUDA, torch.float64))
        return F.cross_entropy(output, y.to(CUDA))

    model.double()
    params = {name: p.detach() for name, p in model.named_parameters()}
    dense = dense_hessian(loss, params)
    model.to(dtype)
    return model, risk, dense


@pytest.mark.parametrize("batch_size", [1, 4, 11])
def test_operators_agree_with_the_dense_oracle(batch_size: int) -> None:
    _, risk, dense = problem(torch.float64, batch_size=batch_size)
    check_operator(Hessian(risk), dense)
    total = GaussNewton(risk).to_dense() + Residual(risk).to_dense()
    torch.testing.assert_close(total, dense, rtol=0, atol=1e-11)
    for layer in ("conv", "norm", "ln", "out"):
        index = risk.space.block(layer).index(CUDA)
        block = dense[index][:, index]
        torch.testing.assert_close(LayerHessian(risk, layer).to_dense(), block, rtol=0, atol=1e-11)


def test_float32_stays_float32_where_the_user_allows_tf32() -> None:
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    try:
        _, risk, dense = problem(torch.float32)
        found = Hessian(risk).to_dense().double()
        # TF32 keeps 10 bits: it would leave errors near 1e-3.
        assert (found - dense).norm() / dense.norm() < 2e-6
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_probes_and_labels_are_those_of_the_cpu() -> None:
    on_cpu, on_gpu = (Dense(torch.eye(9, device=device)) for device in ("cpu", CUDA))
    for kind in ("rademacher", "gaussian", "sphere"):
        a = draw_probes(on_cpu, 3, seed=5, kind=kind)
        b = draw_probes(on_gpu, 3, seed=5, kind=kind)
        torch.testing.assert_close(a, b.cpu(), rtol=0, atol=0)
    model, risk, _ = problem(torch.float64)
    fisher = Fisher(risk, kind="sampled", num_samples=3).to_dense()
    x, y = next((b.args[0].cpu(), b.target.cpu()) for b in risk.batches)
    with pytest.warns(UserWarning, match="math kernel"):
        host = EmpiricalRisk(model.cpu(), CrossEntropy(), (x, y))
    torch.testing.assert_close(
        Fisher(host, kind="sampled", num_samples=3).to_dense(), fisher.cpu(), rtol=0, atol=1e-11
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_solvers(dtype: torch.dtype) -> None:
    _, risk, dense = problem(dtype)
    H = Hessian(risk)
    exact = torch.linalg.eigvalsh(dense)
    pairs = eigsh(H, num_pairs=4, which="both", tolerance=1e-5)
    slack = 50 * torch.finfo(dtype).eps * float(exact.abs().max())
    assert (pairs.values[:4] - exact.flip(0)[:4]).abs().max() < 1e-8 + slack
    assert (pairs.values[4:] - exact.flip(0)[-4:]).abs().max() < 1e-8 + slack
    rho = spectral_density(H, num_steps=20, num_probes=6)
    mean, stderr = rho.moment(1)
    assert abs(mean - exact.mean().item()) < 5 * stderr
    assert abs(rho.integral() - 1) < 1e-2
    estimate = trace(H, num_products=40)
    assert abs(estimate.value - exact.sum().item()) < 5 * estimate.stderr


def test_recurrent_networks() -> None:
    torch.manual_seed(0)

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(3, 4, batch_first=True)
            self.out = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            hidden: Tensor = self.rnn(x)[0]
            return self.out(hidden[:, -1])

    model = Recurrent().to(CUDA, torch.float64)
    x, y = torch.randn(7, 5, 3), torch.randint(0, 2, (7,))
    on_gpu = Hessian(EmpiricalRisk(model, CrossEntropy(), (x, y))).to_dense().cpu()
    model.cpu()
    on_cpu = Hessian(EmpiricalRisk(model, CrossEntropy(), (x, y))).to_dense()
    torch.testing.assert_close(on_gpu, on_cpu, rtol=0, atol=1e-11)


@pytest.mark.parametrize("operator", [Hessian, GaussNewton, Residual])
def test_recorded_products_are_the_same_and_follow_the_parameters(operator: type[Hessian]) -> None:
    model, risk, _ = problem(torch.float64, batch_size=4)
    A = operator(risk, representation="linearised")
    generator = torch.Generator().manual_seed(0)

    def agrees() -> None:
        kept = operator(risk, representation="graph")
        for columns in (1, 3, 1, 3, 1, 3):  # a shape is recorded when it comes again
            X = torch.randn(A.shape[0], columns, generator=generator, dtype=torch.float64).to(CUDA)
            torch.testing.assert_close(A @ X, kept @ X, rtol=0, atol=1e-12)

    agrees()
    assert {type(replay).__name__ for replay in A._representation._replays.values()} == {"Replay"}
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.1)
    agrees()


@pytest.mark.parametrize("batch_size", [None, 4])
def test_wide_networks_are_multiplied_column_by_column(
    monkeypatch: pytest.MonkeyPatch, batch_size: int | None
) -> None:
    monkeypatch.setattr("eigenscape.curvature.products.representation._CUDA_SHARED_PARAMETERS", 1)
    _, risk, dense = problem(torch.float64, batch_size=batch_size)
    H = Hessian(risk, representation="linearised")
    generator = torch.Generator().manual_seed(0)
    for columns in (3, 1, 3, 1, 2):
        X = torch.randn(len(dense), columns, generator=generator, dtype=torch.float64).to(CUDA)
        torch.testing.assert_close(H @ X, dense @ X, rtol=0, atol=1e-11)
    assert {shape[0] for shape in H._representation._replays} == {1}  # one recording does for all


def test_results_of_recorded_products_are_not_overwritten() -> None:
    _, risk, dense = problem(torch.float64)
    H = Hessian(risk, representation="linearised")
    columns = [H @ column for column in torch.eye(H.shape[0], dtype=torch.float64, device=CUDA)]
    torch.testing.assert_close(torch.stack(columns, dim=1), dense, rtol=0, atol=1e-11)


# --- stored representations of a layer's block ---


def relu_risk(samples: int, width: int, batch_size: int, dtype: torch.dtype) -> EmpiricalRisk:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(9, width), nn.ReLU(), nn.Linear(width, width + 7), nn.ReLU(),
                          nn.Linear(width + 7, 5)).to(CUDA, dtype)  # fmt: skip
    data = torch.randn(samples, 9, dtype=dtype), torch.arange(samples) % 5
    return EmpiricalRisk(model, CrossEntropy(), data, batch_size=batch_size)


def conv_risk(samples: int, width: int, batch_size: int, dtype: torch.dtype) -> EmpiricalRisk:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, width, 5), nn.ReLU(), nn.Conv2d(width, 16, (3, 2)),
                          nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(320, 5))  # fmt: skip
    data = torch.randn(samples, 3, 15, 16, dtype=dtype), torch.arange(samples) % 5
    model = model.to(CUDA, dtype)
    return EmpiricalRisk(model, CrossEntropy(), data, batch_size=batch_size)


@pytest.mark.parametrize("representation", ["factors", "streamed", "dense", "tail"])
@pytest.mark.parametrize("risk_of", [relu_risk, conv_risk])
def test_layer_representations_are_one_matrix(risk_of: Callable[..., EmpiricalRisk],
                                              representation: str) -> None:  # fmt: skip
    risk = risk_of(11, 6, 4, torch.float64)
    operator = LayerHessian(risk, "2", representation=representation)
    exact = Hessian(risk)["2"].to_dense()
    torch.testing.assert_close(operator.to_dense(), exact, rtol=0, atol=1e-11)


@pytest.mark.parametrize("storage", [None, torch.bfloat16])
def test_factors_come_in_many_chunks(
    storage: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streamed and kept factors are the same numbers: a copy that came late would show."""
    monkeypatch.setattr(_layer_costs, "GPU_BYTES", 2**20)
    risk = relu_risk(20_000, 100, 4000, torch.float32)
    kept, streamed = (
        LayerHessian(risk, "2", representation=name, storage=storage)
        for name in ("factors", "streamed")
    )
    for columns in (1, 5, 1):
        X = torch.randn(kept.shape[0], columns, device=CUDA, dtype=torch.float32)
        expected = kept @ X
        found = streamed @ X
        assert (found - expected).norm() <= 1e-5 * expected.norm()
    assert (streamed.kept_bytes, streamed._representation.factors.roots.is_pinned()) == (0, True)


def test_factors_beyond_the_budget_are_streamed() -> None:
    risk = relu_risk(60_000, 200, 4000, torch.float32)
    needs = LayerHessian(risk, "2").plan.candidate("factors").nbytes
    operator = LayerHessian(risk, "2", num_products=10**6, memory_budget=int(needs) // 2)
    assert operator.plan.candidate("factors").obstacle is not None
    assert operator.plan.candidate("streamed").obstacle is None, operator.plan.explain()


def test_rounded_factors_on_the_gpu() -> None:
    risk = relu_risk(3000, 40, 700, torch.float32)
    operator = LayerHessian(risk, "2", representation="factors", storage=torch.bfloat16)
    exact = Hessian(risk)["2"].to_dense().double()
    found = operator.to_dense().double()
    assert operator.to_dense().dtype == torch.float32
    assert (found - found.T).norm() < 1e-6 * found.norm()  # sums are not rounded to bfloat16
    assert 1e-4 < (found - exact).norm() / exact.norm() < 1e-2
    assert 1e-5 < operator.storage_error < 2e-2


def test_embeddings_from_factors() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4, padding_idx=2), nn.Flatten(), nn.Linear(20, 6),
                          nn.ReLU(), nn.Linear(6, 3)).to(CUDA, torch.float64)  # fmt: skip
    data = torch.randint(0, 7, (11, 5)), torch.arange(11) % 3
    risk = EmpiricalRisk(model, CrossEntropy(), data, batch_size=4)
    exact = Hessian(risk)["0"].to_dense()
    for name in ("factors", "streamed", "dense"):
        found = LayerHessian(risk, "0", representation=name).to_dense()
        torch.testing.assert_close(found, exact, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("risk_of", "sizes", "representation"),
    [
        (relu_risk, (30_000, 250, 7000), "factors"),
        (relu_risk, (3000, 60, 700), "dense"),
        (relu_risk, (40_000, 200, 9000), "tail"),
        (conv_risk, (3000, 8, 700), "factors"),
        (conv_risk, (3000, 30, 700), "dense"),
        (conv_risk, (3000, 8, 700), "tail"),
    ],
)
def test_predicted_memory_is_what_is_taken(
    risk_of: Callable[..., EmpiricalRisk], sizes: tuple[int, int, int], representation: str
) -> None:
    operator = LayerHessian(risk_of(*sizes, torch.float32), "2", representation=representation)
    vector = torch.randn(operator.shape[0], device=CUDA, dtype=torch.float32)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    _ = operator @ vector
    torch.cuda.synchronize()
    taken = torch.cuda.max_memory_allocated() - before
    predicted = operator.plan.candidate(representation).peak
    assert taken >= 20e6
    assert abs(predicted - taken) <= 0.25 * taken, (predicted, taken)
