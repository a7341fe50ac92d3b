"""Σ_c π_c Δ_c ⊗ H_c: its factors against plain autograd, and when nothing is lost."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import eigenscape as es
from eigenscape.curvature import ClassKronecker, GaussNewton, KroneckerHessian
from eigenscape.errors import InvalidArgumentError, UnknownNameError, UnsupportedModelError
from eigenscape.testing import check_operator
from tests.oracles.memory import Live

CLASSES = 4
# Sizes 5, 2, 3 and 0: neither balanced nor all there.
LABELS = torch.tensor([0, 2, 0, 1, 2, 0, 0, 2, 1, 0])
N = len(LABELS)


def network(*, bias: bool = True) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(5, 3, bias=bias), nn.Tanh(), nn.Linear(3, 6, bias=bias), nn.ReLU(),
        nn.Linear(6, CLASSES, bias=bias),
    )  # fmt: skip


def convolutional() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 3, (2, 3), stride=(1, 2), padding=(1, 0)), nn.ReLU(), nn.Flatten(),
        nn.Linear(54, CLASSES),
    )  # fmt: skip


class Split(nn.Module):
    """Its layer sees half of the input, what follows sees the rest too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other, self.last = nn.Linear(3, 5), nn.Linear(2, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.layer(x[:, :3]) + self.other(x[:, 3:])))


def risk_of(
    model: nn.Module,
    x: Tensor,
    y: Tensor = LABELS,
    batch_size: int | None = None,
    **settings: object,
) -> es.EmpiricalRisk:
    return es.EmpiricalRisk(model, es.CrossEntropy(**settings), (x, y), batch_size=batch_size)


def errors_and_inputs(model: nn.Sequential, index: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """δ (N, C, m) by differentiating with every label, x̃ (N, n) and p (N, C)."""
    inputs = model[:index](x).detach()
    z = model[index](inputs).detach().requires_grad_()
    found = []
    for label in range(CLASSES):
        loss = F.cross_entropy(model[index + 1 :](z), torch.full((len(x),), label), reduction="sum")
        found.append(torch.autograd.grad(loss, z)[0])
    p = model(x).softmax(1).detach()
    return torch.stack(found, 1), torch.cat([inputs, torch.ones(len(x), 1)], 1), p


def layer_block(risk: es.EmpiricalRisk, layer: str) -> Tensor:
    return es.GaussNewton(risk)[layer].to_dense()


@pytest.mark.parametrize("batch_size", [None, 1, 3])
@pytest.mark.parametrize("index", [0, 2, 4])
def test_factors_are_moments_of_errors_with_every_label(index: int, batch_size: int | None) -> None:
    model, x = network(), torch.randn(N, 5)
    K = ClassKronecker(risk_of(model, x, batch_size=batch_size), str(index))
    errors, inputs, p = errors_and_inputs(model, index, x)
    assert K.classes.tolist() == [0, 1, 2]
    torch.testing.assert_close(K.weights, torch.tensor([0.5, 0.2, 0.3]))
    m, n = errors.shape[2], inputs.shape[1]
    expected = torch.zeros(m * n, m * n)
    for number in range(3):
        mine = number == LABELS
        left = torch.einsum("nc,nca,ncb->ab", p[mine], errors[mine], errors[mine]) / mine.sum()
        right = inputs[mine].T @ inputs[mine] / mine.sum()
        torch.testing.assert_close(K.output_factors[number], left)
        torch.testing.assert_close(K.input_factors[number], right)
        expected += K.weights[number] * torch.kron(left, right)
    where = torch.arange(m * n).view(m, n)  # of the weights, then of the biases
    order = torch.cat([where[:, :-1].flatten(), where[:, -1]])
    check_operator(K, expected[order][:, order])


def test_a_class_of_a_convolution_has_the_factors_of_its_samples() -> None:
    model, x = convolutional(), torch.randn(N, 2, 5, 7)
    K = ClassKronecker(risk_of(model, x, batch_size=4), "0")
    for number in range(3):
        mine = number == LABELS
        alone = KroneckerHessian(risk_of(model, x[mine], LABELS[mine]), "0")
        assert alone.num_positions > 1
        torch.testing.assert_close(K.output_factors[number], alone.output_factor)
        torch.testing.assert_close(K.input_factors[number], alone.input_factor)
    parts = [
        weight * torch.kron(left, right)
        for weight, left, right in zip(K.weights, K.output_factors, K.input_factors, strict=True)
    ]
    where = torch.arange(39).view(3, 13)
    order = torch.cat([where[:, :-1].flatten(), where[:, -1]])
    check_operator(K, torch.stack(parts).sum(0)[order][:, order])


@pytest.mark.parametrize("layer", ["layer", "layer.weight"])
@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 2.0, 1.5, 1.0])])
def test_inputs_constant_within_classes_lose_nothing(layer: str, weights: Tensor | None) -> None:
    """Errors still differ within a class: what follows the layer sees more of the sample."""
    x = torch.cat([torch.randn(CLASSES, 3)[LABELS], torch.randn(N, 2)], dim=1)
    risk = risk_of(Split(), x, batch_size=3, class_weights=weights)
    K, G = ClassKronecker(risk, layer), layer_block(risk, layer)
    assert float((K.to_dense() - G).norm()) < 1e-13 * float(G.norm())
    blurred = KroneckerHessian(risk, layer).to_dense()
    assert float((blurred - G).norm()) > 0.05 * float(G.norm())


def test_inputs_that_vary_lose_something() -> None:
    risk = risk_of(Split(), torch.randn(N, 5))
    K, G = ClassKronecker(risk, "layer").to_dense(), layer_block(risk, "layer")
    assert float((K - G).norm()) > 0.01 * float(G.norm())
    torch.testing.assert_close(K, K.T)
    assert float(torch.linalg.eigvalsh(K)[0]) > -1e-14


@pytest.mark.parametrize("layer", ["0", "2.weight", "4"])
def test_a_single_class_is_the_kronecker_hessian(layer: str) -> None:
    risk = risk_of(network(), torch.randn(N, 5), torch.full((N,), 2), batch_size=3)
    K = ClassKronecker(risk, layer)
    assert K.classes.tolist() == [2]
    torch.testing.assert_close(K.to_dense(), KroneckerHessian(risk, layer).to_dense())


def test_classes_with_equal_factors_are_the_kronecker_hessian() -> None:
    x = torch.randn(3, 5)
    risk = risk_of(network(), x.repeat(4, 1), torch.tensor([0, 3, 1, 1]).repeat_interleave(3))
    K = ClassKronecker(risk, "2")
    assert K.weights.tolist() == [0.25, 0.5, 0.25]
    torch.testing.assert_close(K.to_dense(), KroneckerHessian(risk, "2").to_dense())


def test_ignored_samples_do_not_count() -> None:
    model, x, y = network(), torch.randn(N, 5), LABELS.clone()
    y[[1, 3, 5]] = -100
    kept = y >= 0
    found = ClassKronecker(risk_of(model, x, y, batch_size=4), "2")
    alone = ClassKronecker(risk_of(model, x[kept], y[kept]), "2")
    torch.testing.assert_close(found.weights, alone.weights)
    torch.testing.assert_close(found.to_dense(), alone.to_dense())
    first = risk_of(model, x, batch_size=4, ignore_index=0)
    assert ClassKronecker(first, "2").classes.tolist() == [1, 2]


def test_memory_is_that_of_the_classes_that_occur() -> None:
    many, m = 600, 40
    model = nn.Sequential(nn.Linear(30, m), nn.Tanh(), nn.Linear(m, many))
    y = torch.tensor([7, 599, 7, 42, 7, 599])
    risk = risk_of(model, torch.randn(6, 30), y, batch_size=2)
    assert GaussNewton(risk).self_test  # once for each risk; it holds several vectors
    with Live() as live:
        K = ClassKronecker(risk, "0", num_samples=16)
    assert K.classes.tolist() == [7, 42, 599]
    # Three classes, a few times over; all 600 would take 12 MB.
    assert live.peak < 600 * 2**10 < many * (m**2 + 31**2) * 8 / 20


def test_a_class_may_come_with_any_batch() -> None:
    model, x = network(), torch.randn(N, 5)
    whole = ClassKronecker(risk_of(model, x), "2")
    order = LABELS.argsort(descending=True, stable=True)  # class by class, the last one first
    sorted_ = ClassKronecker(risk_of(model, x[order], LABELS[order], batch_size=2), "2")
    assert sorted_.classes.tolist() == whole.classes.tolist() == [0, 1, 2]
    torch.testing.assert_close(sorted_.output_factors, whole.output_factors)
    torch.testing.assert_close(sorted_.input_factors, whole.input_factors)


def test_sums_are_as_large_as_sums() -> None:
    model, x = network(), torch.randn(N, 5)
    mean = ClassKronecker(risk_of(model, x), "2").to_dense()
    risk = es.EmpiricalRisk(model, es.CrossEntropy(), (x, LABELS), reduction="sum")
    torch.testing.assert_close(ClassKronecker(risk, "2").to_dense(), mean * N)


def test_soft_targets_count_for_their_mode() -> None:
    model, x = network(), torch.randn(N, 5)
    soft = 0.7 * F.one_hot(LABELS, CLASSES).double() + 0.3 / CLASSES
    found = ClassKronecker(risk_of(model, x, soft), "2")
    torch.testing.assert_close(found.to_dense(), ClassKronecker(risk_of(model, x), "2").to_dense())


def test_drawn_targets_are_unbiased_and_do_not_depend_on_batches() -> None:
    model, x = network(), torch.randn(N, 5)

    def factors(batch_size: int | None, num_samples: int | None, seed: int = 0) -> Tensor:
        risk = risk_of(model, x, batch_size=batch_size)
        K = ClassKronecker(risk, "2", num_samples=num_samples, seed=seed)
        assert K.num_samples == num_samples
        return K.output_factors

    torch.testing.assert_close(factors(3, 2), factors(None, 2))
    exact = factors(None, None)
    draws = torch.stack([factors(None, 4, seed) for seed in range(100)])
    stderr = draws.std(0) / 10
    assert bool(((draws.mean(0) - exact).abs() <= 5.0 * stderr + 1e-15).all())
    assert float(stderr.max()) < 0.2 * float(exact.abs().max())  # or the line above says nothing


def test_single_precision_is_accumulated_in_double() -> None:
    model, x = network(), torch.randn(N, 5)
    expected = ClassKronecker(risk_of(model, x), "2").to_dense()
    K = ClassKronecker(risk_of(model.float(), x.float()), "2")
    assert (K.output_factors.dtype, K.dtype) == (torch.float64, torch.float32)
    torch.testing.assert_close(K.to_dense().double(), expected, rtol=1e-4, atol=1e-6)


def test_refusals() -> None:
    x = torch.randn(N, 5)
    squares = es.EmpiricalRisk(network(), es.SquaredError(), (x, torch.randn(N, CLASSES)))
    with pytest.raises(UnsupportedModelError, match=r"'2'\)` needs the loss.*got SquaredError"):
        ClassKronecker(squares, "2")
    tokens = es.EmpiricalRisk(
        network(), es.CrossEntropy(), (torch.randn(3, 7, 5), torch.zeros(3, 7, dtype=torch.long))
    )
    with pytest.raises(
        UnsupportedModelError, match=r"output \(3, 7, 4\).*`token_samples\(model, x, y\)`"
    ):
        ClassKronecker(tokens, "2")
    pixels = nn.Sequential(nn.Conv2d(2, CLASSES, 1))
    maps = torch.randn(3, 2, 5, 6), torch.zeros(3, 5, 6, dtype=torch.long)
    with pytest.raises(UnsupportedModelError, match=r"\(3, 4, 5, 6\)\. `ClassGradients` takes"):
        ClassKronecker(es.EmpiricalRisk(pixels, es.CrossEntropy(), maps), "0")
    binary = es.EmpiricalRisk(network(), es.BinaryCrossEntropy(), (x, torch.ones(N, CLASSES)))
    with pytest.raises(UnsupportedModelError, match=r"Of one logit z return logits \(0, z\)"):
        ClassKronecker(binary, "2")
    with pytest.raises(UnknownNameError, match=r"`ClassKronecker\(risk, '3'\)` found no layer"):
        ClassKronecker(risk_of(network(), x), "3")
    normal = nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3), nn.Linear(3, CLASSES))
    with pytest.raises(UnsupportedModelError, match="LayerNorm"):
        ClassKronecker(risk_of(normal, x), "1")
    with pytest.raises(InvalidArgumentError, match="num_samples"):
        ClassKronecker(risk_of(network(), x), "2", num_samples=0)
