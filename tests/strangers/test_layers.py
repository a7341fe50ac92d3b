"""Layers of all kinds, and what models do with their weights: right beside plain torch, or refused.

The truth is the user's own loss differentiated twice by `torch.autograd.grad`; of an operation that
PyTorch cannot differentiate twice, the same function written out.
"""

import contextlib
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import eigenscape as es
from eigenscape.analyses import exact_trace
from eigenscape.curvature import OutputHessian
from eigenscape.errors import EigenscapeError, EigenscapeWarning, UnsupportedModelError
from tests.strangers.oracle import Case, direction, gauss_newton_product, hessian_product

N, CLASSES = 10, 3
REPRESENTATIONS = ("auto", "tail", "factors", "dense", "streamed", "full")


def labels() -> Tensor:
    return torch.arange(N) % CLASSES


def cased(model: nn.Module, x: Tensor, twin: Callable[[], Tensor] | None = None) -> Case:
    """A classifier; `twin` gives its output where plain torch cannot differentiate it twice."""
    y, own = labels(), twin or (lambda: model(x))
    return Case(
        model,
        es.CrossEntropy(),
        [(x[:4], y[:4]), (x[4:], y[4:])],
        output=own,
        of_output=lambda z: F.cross_entropy(z, y),
    )


def blocks(case: Case, layer: str, ways: Sequence[str] = ("auto", "full")) -> dict[str, float]:
    """Compare products with a layer's block in those representations that can be had."""
    own = [p for name, p in case.named().items() if name.rpartition(".")[0] == layer]
    v = direction(sum(p.numel() for p in own)).to(own[0])
    truth = hessian_product(case, own, v)
    risk, errors = case.risk(), {}
    for way in ways:
        with contextlib.suppress(UnsupportedModelError):
            H = es.LayerHessian(risk, layer, representation=way)
            errors[way] = float((H @ v - truth).norm() / truth.norm())
    assert {"auto"} < set(errors)
    return errors


def true_trace(case: Case) -> float:
    """Return tr JᵀBJ, J formed row by row, B the dense Hessian of the loss at the output."""
    assert case.output is not None
    assert case.of_output is not None
    z, params = case.output(), list(case.named().values())
    rows = [torch.autograd.grad(entry, params, retain_graph=True) for entry in z.flatten()]
    J = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    of_output = case.of_output
    B = torch.autograd.functional.hessian(lambda flat: of_output(flat.view_as(z)), z.flatten())
    return float(torch.trace(J.T @ B.detach() @ J))


# --- layers ---


class Conv1D(nn.Module):
    """As GPT-2 has it: linear, with a weight (inputs, outputs)."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, self.nx), self.weight).view(*x.shape[:-1], self.nf)


def network(
    layer: nn.Module, x: Tensor, act: type[nn.Module] = nn.ReLU
) -> tuple[nn.Module, Tensor]:
    return nn.Sequential(layer, act(), nn.Flatten(), nn.Linear(layer(x)[0].numel(), CLASSES)), x


LAYERS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "gpt2": lambda: network(Conv1D(4, 3), torch.randn(N, 2, 3)),
    "1d": lambda: network(
        nn.Conv1d(2, 3, 3, 2, 1, 2, padding_mode="circular"), torch.randn(N, 2, 9)
    ),
    "2d": lambda: network(nn.Conv2d(2, 3, (2, 3), (2, 1), (1, 0)), torch.randn(N, 2, 4, 5)),
    "same": lambda: network(nn.Conv2d(2, 2, (2, 4), padding="same"), torch.randn(N, 2, 3, 3)),
    "3d": lambda: network(nn.Conv3d(2, 3, 2, padding=(1, 0, 0)), torch.randn(N, 2, 2, 3, 3)),
    "transposed 1d": lambda: network(
        nn.ConvTranspose1d(2, 3, 3, stride=2, padding=1, output_padding=1), torch.randn(N, 2, 4)
    ),
    "transposed 2d": lambda: network(
        nn.ConvTranspose2d(2, 3, (3, 2), (2, 1), (2, 3), dilation=(2, 3), bias=False),
        torch.randn(N, 2, 4, 5),
    ),
    "transposed 3d": lambda: network(nn.ConvTranspose3d(2, 2, 2, 2), torch.randn(N, 2, 1, 2, 2)),
    "channels last": lambda: network(
        nn.Conv2d(2, 3, 2), torch.randn(N, 2, 3, 3).to(memory_format=torch.channels_last)
    ),
}


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", LAYERS)
def test_matrix_layers_are_right_in_every_representation(name: str) -> None:
    case = cased(*LAYERS[name]())
    found = blocks(case, "0", REPRESENTATIONS)
    assert set(found) == set(REPRESENTATIONS)
    assert max(found.values()) < 1e-12
    own = es.KroneckerHessian(case.risk(), "0")
    twin = OutputHessian(case.risk(), "0")
    torch.testing.assert_close(own.output_factor, twin.matrix * own.num_positions)


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", LAYERS)
def test_matrix_layers_have_an_exact_trace(name: str) -> None:
    case = cased(*LAYERS[name]())
    found = exact_trace(case.risk())
    assert found.trace == pytest.approx(true_trace(case), rel=1e-11)
    assert found.equals_hessian


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_a_kronecker_product_is_exact_under_a_quadratic_loss_of_a_layer(kind: Any) -> None:
    """One position, so that E[M ⊗ xxᵀ] with M = 1 falls apart; the order of the weight shows."""
    layer = kind(3, 2, 1)
    x, y = torch.randn(N, 3, 1, 1), torch.randn(N, 2, 1, 1)
    risk = es.EmpiricalRisk(nn.Sequential(layer), es.SquaredError(), (x, y))
    K, H = es.KroneckerHessian(risk, "0"), es.Hessian(risk)
    torch.testing.assert_close(K.to_dense(), H.to_dense())


GROUPED = {
    "depthwise": lambda: network(nn.Conv2d(4, 4, 2, groups=4), torch.randn(N, 4, 3, 3)),
    "transposed": lambda: network(
        nn.ConvTranspose1d(4, 6, 3, stride=2, groups=2), torch.randn(N, 4, 3)
    ),
}


@pytest.mark.parametrize("name", GROUPED)
def test_groups_are_several_matrices(name: str) -> None:
    case = cased(*GROUPED[name]())
    assert max(blocks(case, "0").values()) < 1e-12
    assert exact_trace(case.risk()).trace == pytest.approx(true_trace(case), rel=1e-11)
    with pytest.raises(UnsupportedModelError, match="groups"):
        es.KroneckerHessian(case.risk(), "0")


NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.LayerNorm((4, 3, 3)),
    "group": lambda: nn.GroupNorm(2, 4),
    "instance": lambda: nn.InstanceNorm2d(4, affine=True),
    "batch": lambda: nn.BatchNorm2d(4).eval(),
    "rms": lambda: nn.RMSNorm(3),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", NORMS)
def test_norms_are_right(name: str, layout: torch.memory_format) -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 1), NORMS[name](), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)
    )
    case = cased(model, torch.randn(N, 2, 3, 3).to(memory_format=layout))
    assert max(blocks(case, "1").values()) < 1e-12
    assert exact_trace(case.risk()).trace == pytest.approx(true_trace(case), rel=1e-11)


CRASH = """
import torch
from torch import nn
import eigenscape as es
x = torch.randn(6, 4, 3, 3).to(memory_format=torch.channels_last)
norm = nn.GroupNorm(2, 4)
{what}
print("alive")
"""
OURS = """
risk = es.EmpiricalRisk(nn.Sequential(norm, nn.Flatten()), es.CrossEntropy(), (x, torch.arange(6)))
es.LayerHessian(risk, "0").to_dense()
"""


@pytest.mark.parametrize("what", [OURS, "norm(x).sum().backward()"])
def test_a_backward_pass_that_crashes_pytorch_is_avoided(what: str) -> None:
    """In a process of its own: the second, in plain torch, dies, or the care is not needed."""
    done = subprocess.run(
        [sys.executable, "-c", CRASH.format(what=what)], capture_output=True, text=True, timeout=120
    )
    crashes = torch.__version__.startswith("2.13") and what is not OURS
    assert (done.stdout.strip() == "alive") == (not crashes), done.stderr[-2000:]


# --- activations ---

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    kind.__name__: kind
    for kind in (
        nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.Hardtanh, nn.Hardswish,
        nn.Hardshrink, nn.Softshrink, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish,
        nn.Softplus, nn.Softsign, nn.LogSigmoid, nn.Tanhshrink, nn.Sigmoid, nn.Tanh,
    )
} | {
    "Threshold": lambda: nn.Threshold(0.1, -0.3),
    "Softmax": lambda: nn.Softmax(1),
    "Softmin": lambda: nn.Softmin(1),
    "LogSoftmax": lambda: nn.LogSoftmax(1),
    "GELU tanh": lambda: nn.GELU("tanh"),
    "in place": lambda: nn.ReLU(inplace=True),
}  # fmt: skip
PIECEWISE = {
    "ReLU", "ReLU6", "LeakyReLU", "PReLU", "RReLU", "Hardtanh", "Hardshrink", "Softshrink",
    "Threshold", "in place",
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_right(name: str) -> None:
    model = nn.Sequential(nn.Linear(4, 6), ACTIVATIONS[name](), nn.Linear(6, CLASSES)).eval()
    case = cased(model, 1.5 * torch.randn(N, 4))
    found = blocks(case, "0", ("auto", "tail", "factors"))
    assert max(found.values()) < 1e-12
    assert ("factors" in found) == (name in PIECEWISE)
    params = list(case.named().values())
    v = direction(sum(p.numel() for p in params))
    expected = gauss_newton_product(case, params, v)
    torch.testing.assert_close(es.GaussNewton(case.risk()) @ v, expected)


@pytest.mark.parametrize("inplace", [False, True])
def test_hardsigmoid_which_pytorch_cannot_differentiate_twice_is_right(inplace: bool) -> None:
    first, last = nn.Linear(4, 6), nn.Linear(6, CLASSES)
    x = 6 * torch.randn(N, 4)
    model = nn.Sequential(first, nn.Hardsigmoid(inplace), last)
    case = cased(model, x, lambda: last((first(x) / 6 + 0.5).clamp(0, 1)))
    inside = int((first(x).abs() < 3).sum())
    assert 5 < inside < 6 * N - 5
    assert set(found := blocks(case, "0", REPRESENTATIONS)) == set(REPRESENTATIONS)
    assert max(found.values()) < 1e-12
    params = list(case.named().values())
    v = direction(sum(p.numel() for p in params))
    slope = torch.autograd.grad(model(x).sum(), first.weight, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="not implemented"):  # or the care is not needed
        torch.autograd.grad(slope.square().sum(), first.weight)
    torch.testing.assert_close(es.Hessian(case.risk()) @ v, hessian_product(case, params, v))
    torch.testing.assert_close(
        es.GaussNewton(case.risk()) @ v, gauss_newton_product(case, params, v)
    )
    assert exact_trace(case.risk()).equals_hessian


class Relu(torch.autograd.Function):
    """Named like an operation of PyTorch, and another: x²."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * slope


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(Relu.apply(self.a(x)))


def test_the_name_of_a_users_function_says_nothing() -> None:
    case = cased(Named(), torch.randn(N, 4))
    assert not exact_trace(case.risk()).equals_hessian
    assert set(found := blocks(case, "a", REPRESENTATIONS)) == {"auto", "tail", "full"}
    assert max(found.values()) < 1e-12


# --- weights that are used elsewhere ---


class Again(nn.Module):
    """Uses a weight beside its layer, in some batches."""

    def __init__(self, when: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.a, self.b, self.when = nn.Linear(4, 4), nn.Linear(4, CLASSES), when

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        if self.when(x):
            h = torch.tanh(F.linear(h, self.a.weight))
        return self.b(h)


def always(x: Tensor) -> bool:
    return True


def rarely(x: Tensor) -> bool:
    return bool(x[0, 0] > 0)


def hidden(when: Callable[[Tensor], bool]) -> Case:
    """The first batch has no target that counts, and does not use the weight again."""
    model, x, y = Again(when), torch.randn(N, 4), labels()
    x[:4, 0], x[4:, 0], y[:4] = -1.0, 1.0, -100
    data = [(x[:4], y[:4]), (x[4:], y[4:])]

    def output() -> Tensor:
        return torch.cat([model(x[:4]), model(x[4:])])

    return Case(
        model, es.CrossEntropy(), data, output=output, of_output=lambda z: F.cross_entropy(z, y)
    )


@pytest.mark.parametrize("when", [always, rarely])
def test_a_layer_used_again_gets_its_full_block(when: Callable[[Tensor], bool]) -> None:
    case = hidden(when)
    own = list(case.model.a.parameters())
    v = direction(sum(p.numel() for p in own))
    truth = hessian_product(case, own, v)
    with pytest.warns(EigenscapeWarning, match="uses the full product"):
        H = es.LayerHessian(case.risk(self_test=False), "a")
    torch.testing.assert_close(H @ v, truth)


@pytest.mark.parametrize("when", [always, rarely])
def test_formulas_for_a_layer_refuse_a_weight_that_is_used_again(
    when: Callable[[Tensor], bool],
) -> None:
    risk = hidden(when).risk(self_test=False)
    with pytest.raises(UnsupportedModelError, match="uses its weight elsewhere"):
        es.KroneckerHessian(risk, "a")
    with pytest.raises(UnsupportedModelError, match="uses it elsewhere"):
        exact_trace(risk)


# --- what cannot be differentiated ---


class Recomputed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.a, self.b, self.reentrant = nn.Linear(4, 5), nn.Linear(5, CLASSES), reentrant

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        return checkpoint(self.b, h, use_reentrant=self.reentrant)


class Distances(nn.Module):
    """`cdist`, whose backward pass has no derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.anchors = nn.Linear(4, 5), nn.Parameter(torch.randn(CLASSES, 5))

    def forward(self, x: Tensor) -> Tensor:
        return -torch.cdist(self.a(x), self.anchors)


QUESTIONS: dict[str, Callable[[es.EmpiricalRisk], object]] = {
    "Hessian": lambda r: es.Hessian(r) @ torch.ones(r.space.size),
    "GaussNewton": lambda r: es.GaussNewton(r) @ torch.ones(r.space.size),
    "LayerHessian": lambda r: es.LayerHessian(r, "a").to_dense(),
    "KroneckerHessian": lambda r: es.KroneckerHessian(r, "a").to_dense(),
    "OutputHessian": lambda r: OutputHessian(r, "a", kind="hessian"),
    "exact_trace": exact_trace,
}


def refused(question: str, make: Callable[[], es.EmpiricalRisk]) -> str:
    """Return what is said; raw exceptions pass through."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of ours, and of PyTorch about checkpoints
        try:
            QUESTIONS[question](make())
        except EigenscapeError as refusal:
            return str(refusal)
    return ""


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_operation_without_a_second_derivative_is_named_or_not_needed(question: str) -> None:
    data = torch.randn(N, 4), labels()
    said = refused(question, lambda: es.EmpiricalRisk(Distances(), es.CrossEntropy(), data))
    if question != "KroneckerHessian":  # it takes first derivatives alone
        assert "cdist" in said or "anchors" in said


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_of_either_kind_is_right(reentrant: bool) -> None:
    model, x = Recomputed(reentrant=reentrant), torch.randn(N, 4)
    case = cased(model, x, lambda: model.b(torch.tanh(model.a(x))))
    assert max(blocks(case, "a").values()) < 1e-12


# --- what is the user's stays as it is ---


@pytest.mark.parametrize("question", QUESTIONS)
def test_buffers_that_layers_write_to_are_left_alone(question: str) -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.utils.spectral_norm(nn.Linear(4, 5))
            self.norm, self.b = nn.BatchNorm1d(5), nn.Linear(5, CLASSES)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.seen += 1
            return self.b(torch.tanh(self.norm(self.a(x))))

    model = Writes().train()
    before = {name: b.clone() for name, b in model.named_buffers()}
    data = torch.randn(N, 4), labels()
    refused(question, lambda: es.EmpiricalRisk(model, es.CrossEntropy(), data, mode="keep"))
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name


# --- islands of float32 ---


class RMSNorm(nn.Module):
    """As language models have it: in float32, whatever comes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)
        return self.scale * y.to(x.dtype)


@pytest.mark.parametrize("seed", range(3))
def test_islands_of_float32_are_right_and_their_precision_is_stated(seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(4, 8), RMSNorm(8), nn.GELU(), nn.Linear(8, 8), RMSNorm(8), nn.Linear(8, CLASSES)
    )
    case = cased(model, torch.randn(N, 4))
    params = list(case.named().values())
    v = direction(sum(p.numel() for p in params))
    H = es.Hessian(case.risk())
    truth = hessian_product(case, params, v)
    assert float((H @ v - truth).norm() / truth.norm()) < 1e-5
    assert H.self_test.verdict == "passed"
    assert 1e-9 < H.noise < 1e-5
    assert max(blocks(case, "3").values()) < 1e-5


def test_a_model_of_one_precision_has_no_noise() -> None:
    risk = cased(nn.Sequential(nn.Linear(4, CLASSES)), torch.randn(N, 4)).risk()
    assert es.Hessian(risk).noise == 0.0
