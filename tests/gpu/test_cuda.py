"""The same answers on a GPU: operators against the dense oracle, probes, solvers, TF32 kept out."""

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
from eigenscape.linalg import draw_probes
from eigenscape.operators import Dense
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
    assert {type(replay).__name__ for replay in A._replays.values()} == {"Replay"}
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.1)
    agrees()


def test_results_of_recorded_products_are_not_overwritten() -> None:
    _, risk, dense = problem(torch.float64)
    H = Hessian(risk, representation="linearised")
    columns = [H @ column for column in torch.eye(H.shape[0], dtype=torch.float64, device=CUDA)]
    torch.testing.assert_close(torch.stack(columns, dim=1), dense, rtol=0, atol=1e-11)
