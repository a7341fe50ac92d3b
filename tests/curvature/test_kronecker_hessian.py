"""E[M] ⊗ E[x̃x̃ᵀ]: its factors against dense second derivatives, and when nothing is lost."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import eigenscape as es
from eigenscape.curvature import KroneckerHessian, OutputHessian
from eigenscape.errors import (
    ConvergenceWarning,
    InvalidArgumentError,
    ShapeError,
    UnknownNameError,
    UnsupportedModelError,
)
from eigenscape.risk import find_layer
from eigenscape.testing import check_operator

N, CLASSES = 7, 4


def fully_connected(*, bias: bool = True) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(5, 3, bias=bias), nn.ReLU(), nn.Linear(3, 6, bias=bias), nn.ReLU(),
        nn.Linear(6, CLASSES, bias=bias),
    )  # fmt: skip


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, (2, 3), stride=(1, 2), padding=(1, 0)), nn.ReLU(),
        nn.Conv2d(3, 5, 2, dilation=(2, 1), padding="same", padding_mode="circular"), nn.ReLU(),
        nn.Flatten(), nn.LazyLinear(CLASSES),
    )  # fmt: skip


def risk_of(model: nn.Module, x: Tensor, **settings: object) -> es.EmpiricalRisk:
    model(x)  # lazy layers take their shape
    y = torch.randint(0, CLASSES, (len(x),))
    return es.EmpiricalRisk(model, es.CrossEntropy(), (x, y), **settings)


def dense_factors(model: nn.Sequential, index: int, x: Tensor, patches: Tensor) -> tuple:
    """Form E[M] position by position with `autograd.functional.hessian`, one sample at a time."""
    head, tail = model[: index + 1], model[index + 1 :]
    z = head(x).detach()
    conv = z.ndim == 4
    M = torch.zeros(z.shape[1], z.shape[1])
    for sample in z:

        def loss(flat: Tensor, shape: torch.Size = sample.shape) -> Tensor:
            logits = tail(flat.reshape(1, *shape))
            return logits.logsumexp(1).sum()  # the labels' part is linear in the logits

        H = torch.autograd.functional.hessian(loss, sample.flatten())
        m, P = z.shape[1], sample.numel() // z.shape[1]
        H = H.reshape(m, P, m, P) if conv else H.reshape(m, 1, m, 1)
        M += torch.einsum("apbp->ab", H)
    return M / len(z), torch.einsum("npi,npj->ij", patches, patches) / patches[..., 0].numel()


@pytest.mark.parametrize("batch_size", [None, 1, 3])
@pytest.mark.parametrize("index", [0, 2, 4])
def test_factors_of_linear_layers(index: int, batch_size: int | None) -> None:
    model, x = fully_connected(), torch.randn(N, 5)
    K = KroneckerHessian(risk_of(model, x, batch_size=batch_size), str(index))
    inputs = torch.cat([model[:index](x), torch.ones(N, 1)], dim=1)[:, None]
    M, A = dense_factors(model, index, x, inputs)
    torch.testing.assert_close(K.output_factor, M)
    torch.testing.assert_close(K.input_factor, A)
    assert (K.num_positions, K.num_samples) == (1, None)


@pytest.mark.parametrize("index", [0, 2])
def test_factors_of_convolutions(index: int) -> None:
    model, x = convolutional(), torch.randn(N, 2, 5, 7)
    K = KroneckerHessian(risk_of(model, x, batch_size=3), str(index))
    # The patch at a position is the gradient of the output there with respect to any filter.
    layer, before = model[index], model[:index](x).detach()
    weight = layer.weight.detach()

    def first_channel(w: Tensor) -> Tensor:
        return torch.func.functional_call(
            layer, {"weight": torch.cat([w[None], weight[1:]]), "bias": layer.bias}, (before,)
        )[:, 0]

    patches = torch.func.jacrev(first_channel)(weight[0]).flatten(3).flatten(1, 2)
    patches = torch.cat([patches, torch.ones(*patches.shape[:2], 1)], dim=2).detach()
    M, A = dense_factors(model, index, x, patches)
    torch.testing.assert_close(K.output_factor, M)
    torch.testing.assert_close(K.input_factor, A)
    assert K.num_positions == patches.shape[1] > 1
    # Parameters are (channels, inputs and kernel) and then biases: rows of the kron in that order.
    m, n = len(M), len(A)
    rows = torch.arange(m * n).reshape(m, n)
    order = torch.cat([rows[:, :-1].flatten(), rows[:, -1]])
    torch.testing.assert_close(K.to_dense(), torch.kron(M, A)[order][:, order])


@pytest.mark.parametrize("layer", ["0", "2", "2.weight", "4"])
def test_one_sample_loses_nothing(layer: str) -> None:
    # H = M ⊗ x̃x̃ᵀ holds for every single sample of a network of ReLUs, biases included.
    risk = risk_of(fully_connected(), torch.randn(1, 5))
    K, H = KroneckerHessian(risk, layer), es.LayerHessian(risk, layer)
    assert K.space.names == H.space.names
    torch.testing.assert_close(K.to_dense(), H.to_dense())


def test_the_last_layer_under_squared_error_loses_nothing() -> None:
    model, x = fully_connected(), torch.randn(N, 5)
    risk = es.EmpiricalRisk(model, es.SquaredError(), (x, torch.randn(N, CLASSES)))
    K, H = KroneckerHessian(risk, "4"), es.LayerHessian(risk, "4")
    torch.testing.assert_close(K.to_dense(), H.to_dense())


def test_the_operator_keeps_its_contract() -> None:
    K = KroneckerHessian(risk_of(fully_connected(), torch.randn(N, 5)), "2")
    dense = torch.kron(K.output_factor, K.input_factor)  # parameters in the order m × (n, bias)
    order = K.from_matrices(torch.arange(24.0).reshape(1, 6, 4))[:, 0].long()
    check_operator(K, dense[order][:, order])
    V = K.to_matrices(torch.arange(24.0)[:, None])[0]
    assert V[:, :-1].flatten().tolist() == list(range(18))  # the weight, row by row
    assert V[:, -1].tolist() == list(range(18, 24))  # the bias


@pytest.mark.parametrize("bias", [True, False])
def test_top_pairs_are_those_of_the_dense_matrix(bias: bool) -> None:
    K = KroneckerHessian(risk_of(fully_connected(bias=bias), torch.randn(N, 5)), "2")
    pairs, n = K.top_pairs(5), K.space.size
    assert pairs.space == K.space
    values = torch.linalg.eigvalsh(K.to_dense()).flip(0)
    torch.testing.assert_close(pairs.values, values[:5])
    assert float(pairs.residuals.max()) < 1e-14
    torch.testing.assert_close(pairs.vectors.T @ pairs.vectors, torch.eye(5))
    torch.testing.assert_close(K @ pairs.vectors, pairs.vectors * pairs.values)
    torch.testing.assert_close(K.top_pairs(n).values, values, atol=1e-15, rtol=1e-9)
    with pytest.raises(InvalidArgumentError, match="num_pairs"):
        K.top_pairs(n + 1)


def test_drawn_targets_are_unbiased_and_do_not_depend_on_batches() -> None:
    model, x = fully_connected(), torch.randn(N, 5)
    y = torch.randint(0, CLASSES, (N,))

    def factor(batch_size: int | None, num_samples: int | None, seed: int = 0) -> Tensor:
        risk = es.EmpiricalRisk(model, es.CrossEntropy(), (x, y), batch_size=batch_size)
        return KroneckerHessian(risk, "2", num_samples=num_samples, seed=seed).output_factor

    torch.testing.assert_close(factor(2, 3), factor(None, 3))
    exact = factor(None, None)
    draws = torch.stack([factor(None, 4, seed) for seed in range(200)])
    stderr = draws.std(0) / 200**0.5
    assert bool(((draws.mean(0) - exact).abs() <= 5.0 * stderr + 1e-15).all())
    assert float(stderr.max()) < 0.2 * float(exact.abs().max())  # or the line above says nothing


def test_too_many_outputs_are_drawn_and_said_to_be() -> None:
    """65 positions of 4 classes are 260 numbers a sample; each position alone has 4."""
    x, y = torch.randn(N, 65, 3), torch.randint(0, CLASSES, (N, 65))
    risk = es.EmpiricalRisk(Tagger(mixes=False), es.CrossEntropy(), (x, y))
    with pytest.warns(ConvergenceWarning, match=r"`KroneckerHessian` draws 16.*not exact"):
        K = KroneckerHessian(risk, "first")
    assert (K.num_positions, K.num_samples, bool(K.status)) == (65, 16, False)
    assert bool(KroneckerHessian(risk, "first", num_samples=2).status)  # as asked
    flat = es.EmpiricalRisk(risk.module, es.CrossEntropy(), (x.flatten(0, 1), y.flatten()))
    exact = KroneckerHessian(flat, "first")
    assert (exact.num_samples, bool(exact.status)) == (None, True)
    torch.testing.assert_close(K.input_factor, exact.input_factor)
    error = (K.output_factor - exact.output_factor).norm() / exact.output_factor.norm()
    assert float(error) < 0.3
    short = es.EmpiricalRisk(risk.module, es.CrossEntropy(), (x[:, :64], y[:, :64]))
    assert KroneckerHessian(short, "first").num_samples is None  # 256 numbers


# --- outputs of any shape ---


class Mixed(nn.Sequential):
    """A head on top of layers whose positions see each other."""

    def forward(self, x: Tensor) -> Tensor:
        a = torch.tanh(self[0](x))
        return self[1](a + a.cumsum(-1).mul(0.3))


def pixels() -> Mixed:
    return Mixed(nn.Conv2d(2, 3, 2), nn.Conv2d(3, CLASSES, 1, stride=(2, 1)))


def tokens(width: int = CLASSES) -> Mixed:
    return Mixed(nn.Linear(2, 3), nn.Linear(3, width))


class Scalars(Mixed):
    """One number a sample, without a dimension of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, 0]


def quartic(output: Tensor, target: Tensor) -> tuple[Tensor, int]:
    """A convex loss that joins the outputs of a sample."""
    return (output - target).square().flatten(1).sum(1).square().sum(), len(output)


def labels(*shape: int) -> Tensor:
    y = torch.randint(0, CLASSES, shape)
    y.view(-1)[::5] = -100
    return y


SHAPES = {
    "pixels": (pixels, (2, 4, 4), labels(N, 2, 3), es.CrossEntropy()),
    "weighted pixels": (
        pixels, (2, 4, 4), labels(N, 2, 3),
        es.CrossEntropy(torch.tensor([1.0, 0.5, 2.0, 3.0]), label_smoothing=0.1),
    ),
    "distributions": (
        pixels, (2, 4, 4), torch.rand(N, CLASSES, 2, 3), es.CrossEntropy(class_dim=1),
    ),
    "tokens": (tokens, (5, 2), labels(N, 5), es.CrossEntropy()),
    "next tokens": (tokens, (5, 2), labels(N, 5), es.CrossEntropy(next_token=True)),
    "squares": (tokens, (5, 2), torch.randn(N, 5, CLASSES), es.SquaredError()),
    "bits": (
        pixels, (2, 4, 4), torch.rand(N, CLASSES, 2, 3), es.BinaryCrossEntropy(average="samples"),
    ),
    "own": (tokens, (5, 2), torch.randn(N, 5, CLASSES), quartic),
    "scalars": (lambda: Scalars(nn.Linear(2, 3), nn.Linear(3, 1)), (2,), torch.randn(N),
                es.SquaredError()),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("layer", ["0", "1"])
def test_outputs_of_any_shape_are_exact(name: str, layer: str) -> None:
    """The output factor against Σ_n GᵀAG, A_n the dense Hessian of one sample's loss."""
    make, shape, y, loss = SHAPES[name]
    model, x = make(), torch.randn(N, *shape)
    risk = es.EmpiricalRisk(model, loss, (x, y), batch_size=4)
    K = KroneckerHessian(risk, layer)
    assert (K.num_samples, bool(K.status)) == (None, True)
    expected = own_blocks(model, int(layer), risk.loss, x, y) / risk.divisor
    torch.testing.assert_close(K.output_factor, expected, rtol=1e-11, atol=1e-14)
    twin = OutputHessian(risk, layer)
    torch.testing.assert_close(twin.matrix * K.num_positions, K.output_factor)


def own_blocks(model: Mixed, index: int, loss: Any, x: Tensor, y: Tensor) -> Tensor:
    layer, total = model[index], 0.0
    for n in range(N):
        seen: list[Tensor] = []

        def tail(shift: Tensor, n: int = n, seen: list[Tensor] = seen) -> Tensor:
            hook = layer.register_forward_hook(
                lambda *call: seen.append(call[-1]) or call[-1] + shift
            )
            try:
                return model(x[n : n + 1])
            finally:
                hook.remove()

        z = tail(torch.zeros(())).detach()
        zero = torch.zeros_like(seen[0])
        G = torch.autograd.functional.jacobian(tail, zero).reshape(z.numel(), zero.numel())
        A = torch.autograd.functional.hessian(
            lambda flat, n=n, z=z: loss.total(flat.view_as(z), y[n : n + 1])[0], z.flatten()
        )
        M = G.T @ A @ G
        if isinstance(layer, nn.Conv2d):
            m, P = zero.shape[1], zero[0, 0].numel()
            total = total + torch.einsum("apbp->ab", M.view(m, P, m, P))
        else:
            m, P = zero.shape[-1], zero.numel() // zero.shape[-1]
            total = total + torch.einsum("papb->ab", M.view(P, m, P, m))
    return total


# --- ignored targets ---


def ignoring(model: nn.Module, x: Tensor, y: Tensor, **settings: object) -> es.EmpiricalRisk:
    return es.EmpiricalRisk(model, es.CrossEntropy(**settings), (x, y), batch_size=4)


@pytest.mark.parametrize("layer", ["0", "2", "2.weight", "4"])
def test_one_sample_beside_an_ignored_one_loses_nothing(layer: str) -> None:
    risk = ignoring(fully_connected(), torch.randn(2, 5), torch.tensor([1, -100]))
    K, G = KroneckerHessian(risk, layer), es.GaussNewton(risk)[layer].to_dense()
    assert float((K.to_dense() - G).norm()) < 1e-14 * float(G.norm())
    assert float(G.norm()) > 0.01


@pytest.mark.parametrize("num_samples", [None, 3])
@pytest.mark.parametrize("index", [0, 2])
def test_ignored_samples_do_not_count(index: int, num_samples: int | None) -> None:
    model, x = convolutional(), torch.randn(N, 2, 5, 7)
    x[[0, 1], :, :3] = -9.0
    with torch.no_grad():
        model[0].weight.abs_()
    model(x)
    # There all units are off, and slopes zero: in a sample that is kept they count all the same.
    assert not bool((model[:2](x)[:2, :, 1, 1] > 0).any())
    y = torch.tensor([3, -7, 0, 0, 1, -7, 2])
    kept = y >= 0
    risk = ignoring(model, x, y, ignore_index=-7)
    found = KroneckerHessian(risk, str(index), num_samples=num_samples)
    alone = KroneckerHessian(ignoring(model, x[kept], y[kept]), str(index))
    assert found.num_positions == alone.num_positions > 1
    torch.testing.assert_close(found.input_factor, alone.input_factor, rtol=1e-13, atol=1e-15)
    if num_samples is None:
        torch.testing.assert_close(found.output_factor, alone.output_factor)


class Tagger(nn.Module):
    """Logits for every position; with `mixes` they depend on all earlier ones too."""

    def __init__(self, *, mixes: bool, flattens: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, CLASSES)
        self.mixes, self.flattens = mixes, flattens

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x.flatten(0, 1)).view(*x.shape[:2], 4) if self.flattens else self.first(x)
        return self.second(torch.tanh(a.cumsum(1) if self.mixes else a))


@pytest.mark.parametrize("next_token", [False, True])
@pytest.mark.parametrize("flattens", [False, True])
def test_ignored_positions_do_not_count(flattens: bool, next_token: bool) -> None:
    """A last position that is compared with nothing is one whose target is ignored."""
    model, x = Tagger(mixes=False, flattens=flattens), torch.randn(6, 5, 3)
    y = torch.randint(0, CLASSES, (6, 5))
    y[1], y[0, 2], y[3, :2] = -100, -100, -100
    risk = ignoring(model, x, y, next_token=next_token)
    K = KroneckerHessian(risk, "first")
    own = F.pad(y[:, 1:], (0, 1), value=-100) if next_token else y
    vectors = torch.cat([x[own >= 0], torch.ones(int((own >= 0).sum()), 1)], dim=1)
    torch.testing.assert_close(K.input_factor, vectors.T @ vectors / len(vectors))
    shifted = KroneckerHessian(ignoring(model, x, own), "first")
    torch.testing.assert_close(K.input_factor, shifted.input_factor)


def test_inputs_of_ignored_positions_count_where_other_terms_depend_on_them() -> None:
    model, x = Tagger(mixes=True), torch.randn(6, 5, 3)
    y = torch.randint(0, CLASSES, (6, 5))
    y[:, 0] = -100  # a question that is not to be learnt, but is read
    y[2, 1:] = -100  # an answer that is missing: all of its sample is
    y[4, 2:] = -100  # what nothing comes after
    K = KroneckerHessian(ignoring(model, x, y), "first")
    matters = torch.ones(6, 5, dtype=torch.bool)
    matters[2], matters[4, 2:] = False, False
    vectors = torch.cat([x[matters], torch.ones(int(matters.sum()), 1)], dim=1)
    torch.testing.assert_close(K.input_factor, vectors.T @ vectors / len(vectors))


def test_without_ignored_targets_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit what it was when no input was ever left out."""
    cases = [
        (fully_connected(), torch.randn(N, 5), "2", (N,)),
        (convolutional(), torch.randn(N, 2, 5, 7), "2", (N,)),
        (Tagger(mixes=True), torch.randn(N, 6, 3), "first", (N, 6)),
    ]
    for model, x, layer, shape in cases:
        model(x)
        risk = ignoring(model, x, torch.randint(0, CLASSES, shape))
        found = KroneckerHessian(risk, layer)
        with monkeypatch.context() as patch:
            module = "eigenscape.curvature.kronecker_hessian"
            patch.setattr(f"{module}.have_terms", lambda *_: None)
            before = KroneckerHessian(risk, layer)
        assert torch.equal(found.input_factor, before.input_factor)
        assert torch.equal(found.output_factor, before.output_factor)


@pytest.mark.parametrize(
    ("model", "layer", "words"),
    [
        (nn.Sequential(nn.Linear(5, CLASSES), nn.LayerNorm(CLASSES)), "1", "no linear layer"),
        (
            nn.Sequential(nn.Unflatten(1, (5, 1)), nn.Conv1d(5, 10, 1, groups=5), nn.Flatten()),
            "1",
            "5 groups",
        ),
        (nn.Sequential(nn.Linear(5, CLASSES)), "0.bias", "weight is not among"),
    ],
)
def test_refusals(model: nn.Module, layer: str, words: str) -> None:
    risk = risk_of(model.double(), torch.randn(N, 5))
    assert find_layer(risk, layer)
    with pytest.raises(UnsupportedModelError, match=words):
        KroneckerHessian(risk, layer)


def test_unknown_layers_are_refused_with_this_call() -> None:
    risk = risk_of(fully_connected(), torch.randn(N, 5))
    with pytest.raises(UnknownNameError, match=r"`KroneckerHessian\(risk, '2.wieght'\)`.*Nearest"):
        KroneckerHessian(risk, "2.wieght")


def test_columns_of_another_length_are_refused() -> None:
    K = KroneckerHessian(risk_of(fully_connected(), torch.randn(N, 5)), "2")
    with pytest.raises(ShapeError, match="24 = 6 × 4"):
        K.to_matrices(torch.zeros(23, 1))


class Centred(nn.Sequential):
    """Samples change each other's outputs behind the first layer."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self[0](x))
        return self[1](h - 0.5 * h.mean(0))


def test_samples_that_mix_behind_the_layer_need_drawn_targets() -> None:
    x, model = torch.randn(N, 5), Centred(nn.Linear(5, 3), nn.Linear(3, CLASSES))
    risk = risk_of(model, x)
    with pytest.raises(UnsupportedModelError, match=r"behind '0' they do.*`num_samples=16`"):
        KroneckerHessian(risk, "0")
    KroneckerHessian(risk, "1")  # nothing mixes behind it

    def outputs(z: Tensor) -> Tensor:
        h = torch.tanh(z)
        return model[1](h - 0.5 * h.mean(0))

    z = model[0](x).detach()
    J, p = torch.autograd.functional.jacobian(outputs, z), outputs(z).softmax(1).detach()
    A = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    expected = torch.einsum("icnm,icd,idnk->mk", J, A, J) / N
    drawn = KroneckerHessian(risk, "0", num_samples=4000).output_factor
    # 28 000 targets: a relative error of 0.02 or so; the roots of all samples at once are 0.7 off.
    assert float((drawn - expected).norm() / expected.norm()) < 0.1
