"""The parts of G by class, against gradients of single samples with every label, one by one."""

import functools
import itertools
import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import eigenscape as es
from eigenscape.curvature import ClassGradients, ClassParts, GaussNewton
from eigenscape.errors import (
    InvalidArgumentError,
    NonDeterministicRiskError,
    ShapeError,
    TooLargeError,
    UnknownNameError,
    UnsupportedModelError,
    WrongTypeError,
)
from eigenscape.testing import check_operator
from tests.oracles.memory import Live

PARTS = ("class", "cross", "same", "within")
LOW_RANK = ("global", "centred", "class", "cross", "same", "between")
RTOL = 1e-10


def perceptron() -> tuple[nn.Module, Tensor, Tensor]:
    """Three classes with 6, 1 and 4 samples."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    return model, torch.randn(11, 4), torch.tensor([0, 2, 0, 0, 2, 1, 0, 0, 2, 0, 2])


def convolutional() -> tuple[nn.Module, Tensor, Tensor]:
    """Four classes with 5, 2, 0 and 3 samples: one of them is empty."""
    model = nn.Sequential(
        nn.Conv2d(2, 3, (2, 3), padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(12, 4),
    )  # fmt: skip
    y = torch.tensor([0, 3, 0, 1, 0, 0, 3, 1, 0, 3])
    return model, torch.randn(10, 2, 4, 4), y


CASES = {"mlp": perceptron, "conv": convolutional}


def gradients_with_every_label(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return g (N, C, n) and p (N, C) by one backward pass for each sample and label."""
    model.eval()
    params = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for sample in x:
        z = model(sample[None])[0]
        losses = [F.cross_entropy(z[None], torch.tensor([k])) for k in range(len(z))]
        found = [torch.autograd.grad(loss, params, retain_graph=True) for loss in losses]
        rows.append(torch.stack([torch.cat([part.flatten() for part in g]) for g in found]))
    return torch.stack(rows), model(x).softmax(1).detach()


def dense_parts(g: Tensor, w: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Papyan §6, cell by cell, with g_c subtracted in the cross part."""
    C = g.shape[1]
    cells = list(itertools.product(range(C), repeat=2))
    W = {(c, k): float(w[y == c, k].sum()) for c, k in cells}
    zero = torch.zeros(g.shape[2])
    mean = {
        (c, k): torch.einsum("i,ia->a", w[y == c, k], g[y == c, k]) / W[c, k] if W[c, k] else zero
        for c, k in cells
    }
    others = {c: [k for k in range(C) if k != c] for c in range(C)}
    w_c = {c: sum(W[c, k] for k in others[c]) for c in others}
    g_c = {
        c: sum((W[c, k] * mean[c, k] for k in others[c]), start=zero) / (w_c[c] or 1.0)
        for c in others
    }
    whole = sum(w_c.values())
    g_G = sum((w_c[c] * g_c[c] for c in others), start=zero) / whole
    square = lambda v: torch.outer(v, v)
    deviations = torch.stack(
        [torch.stack([g[i, k] - mean[int(y[i]), k] for k in range(C)]) for i in range(len(y))]
    )
    return {
        "global": whole * square(g_G),
        "centred": sum(w_c[c] * square(g_c[c] - g_G) for c in others),
        "class": sum(w_c[c] * square(g_c[c]) for c in others),
        "cross": sum(W[c, k] * square(mean[c, k] - g_c[c]) for c in others for k in others[c]),
        "same": sum(W[c, c] * square(mean[c, c]) for c in others),
        "between": sum(W[cell] * square(mean[cell]) for cell in cells),
        "within": torch.einsum("ik,ika,ikb->ab", w, deviations, deviations),
    }


def close(found: Tensor, expected: Tensor, scale: Tensor, rtol: float = RTOL) -> None:
    error, limit = float((found - expected).norm()), rtol * float(scale.norm())
    assert error <= limit, f"error {error:.2g}, allowed {limit:.2g}"


def multiplies(A: es.LinearOperator, dense: Tensor, scale: Tensor, k: int = 3) -> None:
    """Compare products with a few random columns; a whole matrix by streaming takes seconds."""
    X = torch.randn(len(dense), k)
    close(A @ X, dense @ X, scale @ X)


def test_the_helper_sees_a_difference() -> None:
    A = torch.eye(9)
    with pytest.raises(AssertionError, match="allowed"):
        multiplies(es.Dense(A * (1 + 1e-8)), A, A)


def summed(found: ClassGradients) -> es.LinearOperator:
    first, *others = (found.part(part) for part in PARTS)
    return functools.reduce(operator.add, others, first)


def risk_of(model: nn.Module, x: Any, y: Tensor, **settings: Any) -> es.EmpiricalRisk:
    return es.EmpiricalRisk(model, es.CrossEntropy(), (x, y), **settings)


# --- the parts, and their sum ---


@pytest.mark.parametrize("weighting", ["probabilities", "roots"])
@pytest.mark.parametrize("max_bytes", [2**30, 0])  # stored, streamed
@pytest.mark.parametrize("name", CASES)
def test_parts_and_identity(name: str, max_bytes: int, weighting: str) -> None:
    model, x, y = CASES[name]()
    risk = risk_of(model, x, y, batch_size=4)  # ragged: 11 = 4 + 4 + 3
    g, p = gradients_with_every_label(model, x)
    w = p / len(y)
    if weighting == "roots":
        g, w = g * p.sqrt()[..., None], torch.full_like(p, 1 / len(y))
    dense = dense_parts(g, w, y)
    found = ClassGradients(risk, weighting=weighting, max_bytes=max_bytes)
    assert found.is_stored == (max_bytes > 0)
    G = GaussNewton(risk).to_dense()
    for part in (*LOW_RANK, "within"):
        multiplies(found.part(part), dense[part], G)
    multiplies(summed(found), G, G, k=5)
    close(sum(dense[part] for part in PARTS), G, G)
    close(found.total.to_dense(), G, G)


@pytest.mark.parametrize("batch_size", [1, 3, None])
@pytest.mark.parametrize("name", CASES)
def test_batches_change_nothing(name: str, batch_size: int | None) -> None:
    model, x, y = CASES[name]()
    first = ClassGradients(risk_of(model, x, y))
    found = ClassGradients(risk_of(model, x, y, batch_size=batch_size))
    for part in LOW_RANK:
        expected = first.part(part).to_dense()
        close(found.part(part).to_dense(), expected, expected, 1e-12)


@pytest.mark.parametrize("max_bytes", [2**30, 0])
def test_parts_keep_the_contract(max_bytes: int) -> None:
    model, x, y = perceptron()
    found = ClassGradients(risk_of(model, x, y, batch_size=4), max_bytes=max_bytes)
    g, p = gradients_with_every_label(model, x)
    dense = dense_parts(g, p / len(y), y)
    for part in ("cross", "within"):
        check_operator(found.part(part), dense[part], rtol=RTOL, atol=1e-14)


def test_it_is_what_class_structure_finds() -> None:
    model, x, y = perceptron()
    g, p = gradients_with_every_label(model, x)
    structure = es.class_structure(g, classes=y, weights=p / len(y))
    found = ClassGradients(risk_of(model, x, y, batch_size=4))
    torch.testing.assert_close(found.weights, structure.weights, rtol=1e-12, atol=0)
    for part in LOW_RANK:
        values = structure.eigenvalues[part]
        torch.testing.assert_close(found.eigenvalues(part), values, rtol=1e-9, atol=1e-15)
        assert found.traces()[part] == pytest.approx(structure.traces[part], rel=1e-10)
    for c, k in itertools.product(range(3), repeat=2):
        close(found.mean(c, k), structure.means[c, k], structure.means)
        close(found.mean(c), structure.class_means[c], structure.means)
    close(found.mean(), structure.global_mean, structure.means)


def test_at_a_minimum_of_each_class_same_is_the_gradient() -> None:
    """The mean of g_{c,c} with equal probabilities is the gradient of the class's loss."""
    model, x, y = perceptron()
    with torch.no_grad():
        for p in model[2].parameters():
            p.zero_()
    found = ClassGradients(risk_of(model, x, y))
    own = risk_of(model, x[y == 2], y[y == 2]).gradient()
    close(found.mean(2, 2), own, own)


@pytest.mark.parametrize("part", LOW_RANK)
def test_the_maps_of_parts_are_transposes(part: str) -> None:
    parts = ClassParts(torch.rand(4, 4), extended=True)
    T = torch.randn(4, 4, 2)
    rows = parts.columns(part, T)
    Y = torch.randn(rows.shape)
    torch.testing.assert_close((rows * Y).sum(), (T * parts.spread(part, Y)).sum())


# --- eigenpairs ---


@pytest.mark.parametrize("max_bytes", [2**30, 9 * 20 * 8])  # the latter: tensor by tensor
@pytest.mark.parametrize("part", LOW_RANK)
def test_eigenpairs(part: str, max_bytes: int) -> None:
    model, x, y = perceptron()
    found = ClassGradients(risk_of(model, x, y, batch_size=4), max_bytes=max_bytes)
    assert found.is_stored == (max_bytes == 2**30)
    dense = found.part(part).to_dense()
    values, _ = torch.linalg.eigh(dense)
    values = values.flip(0)
    mine = found.eigenvalues(part)
    assert len(mine) == {"global": 1, "cross": 6, "between": 9}.get(part, 3)
    torch.testing.assert_close(mine, values[: len(mine)], rtol=1e-9, atol=1e-14)
    assert float(values[len(mine) :].abs().max()) < 1e-13
    pairs = found.top_pairs(part)
    rank = int((values > 1e-12 * values[0]).sum())
    assert len(pairs) == rank
    k = len(pairs)
    close(pairs.vectors.T @ pairs.vectors, torch.eye(k), torch.eye(k))
    close(dense @ pairs.vectors, pairs.vectors * pairs.values, dense)
    assert float(pairs.residuals.max()) < 1e-12
    with pytest.raises(InvalidArgumentError, match="num_pairs"):
        found.top_pairs(part, rank + 1)
    assert torch.equal(found.top_pairs(part, 1).values, pairs.values[:1])


def test_two_classes_have_no_cross_part() -> None:
    model, x, y = nn.Linear(4, 2), torch.randn(7, 4), torch.arange(7) % 2
    found = ClassGradients(risk_of(model, x, y))
    assert float(found.eigenvalues("cross").abs().max()) < 1e-30
    pairs = found.top_pairs("cross")
    assert pairs.space == found.risk.space
    assert float(pairs.residuals.max()) < 1e-15


# --- layers, classes, weights, many terms ---


@pytest.mark.parametrize("max_bytes", [2**30, 0])
def test_layers(max_bytes: int) -> None:
    model, x, y = convolutional()
    risk = risk_of(model, x, y, batch_size=3)
    whole = ClassGradients(risk)
    for names in ("5", "0.weight", ["0", "5.bias"]):
        found = ClassGradients(risk, names, max_bytes=max_bytes)
        blocks = [names] if isinstance(names, str) else names
        block = risk.space.block(*blocks)
        for part in PARTS:
            expected = block.take(block.take(whole.part(part).to_dense()).T).T
            multiplies(found.part(part), expected, expected)


def test_class_weights_smoothing_ignored_targets_and_sums() -> None:
    model, x, y = perceptron()
    y[[1, 3]] = -7
    loss = es.CrossEntropy(torch.tensor([1.0, 0.5, 3.0]), ignore_index=-7, label_smoothing=0.1)
    for reduction in ("mean", "sum"):
        settings: Any = dict(batch_size=4, reduction=reduction)
        risk = es.EmpiricalRisk(model, loss, (x, y), **settings)
        G = GaussNewton(risk).to_dense()
        for max_bytes in (2**30, 0):
            found = ClassGradients(risk, max_bytes=max_bytes)
            multiplies(summed(found), G, G)
            kept = y >= 0
            g, p = gradients_with_every_label(model, x[kept])
            s = 0.9 * torch.tensor([1.0, 0.5, 3.0])[y[kept]] + 0.1 * 1.5
            dense = dense_parts(g, s[:, None] * p / risk.divisor, y[kept])
            for part in PARTS:
                multiplies(found.part(part), dense[part], G)


class Positions(nn.Module):
    """Logits (N, T, V) for every position, which depend on all earlier ones."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(6, 3), nn.Linear(3, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embed(tokens).cumsum(1).tanh())


@pytest.mark.parametrize("next_token", [False, True])
def test_some_classes_of_a_language_model(next_token: bool) -> None:
    model, x, y = Positions(), torch.randint(0, 6, (5, 4)), torch.randint(0, 6, (5, 4))
    loss = es.CrossEntropy(next_token=next_token)
    risk = es.EmpiricalRisk(model, loss, (x, y), batch_size=2)
    # Every position as a sample of its own.
    params = list(model.parameters())
    z = model(x)[:, :-1].flatten(0, 1) if next_token else model(x).flatten(0, 1)
    labels = (y[:, 1:] if next_token else y).flatten()
    term = lambda i, k: torch.autograd.grad(-z[i].log_softmax(0)[k], params, retain_graph=True)
    flat = lambda parts: torch.cat([part.flatten() for part in parts])
    g = torch.stack([torch.stack([flat(term(i, k)) for k in range(6)]) for i in range(len(z))])
    w = z.softmax(1).detach() / len(z)
    G = GaussNewton(risk).to_dense()
    for classes in (None, [4, 0, 1]):
        chosen = list(range(6)) if classes is None else classes
        numbers = torch.tensor([chosen.index(int(c)) if int(c) in chosen else -1 for c in labels])
        kept = numbers >= 0
        dense = dense_parts(g[kept][:, chosen], w[kept][:, chosen], numbers[kept])
        for max_bytes in (2**30, 0):
            found = ClassGradients(risk, classes=classes, max_bytes=max_bytes)
            for part in LOW_RANK:
                multiplies(found.part(part), dense[part], G)
            multiplies(summed(found), G, G)
            if found.is_stored:
                assert torch.linalg.eigvalsh(found.part("within").to_dense())[0] > -1e-13


# --- how it gets there ---


def count_forwards(model: nn.Module) -> list[int]:
    sizes: list[int] = []
    model.register_forward_hook(lambda module, args, output: sizes.append(len(output)))
    return sizes


def test_samples_of_a_class_come_together() -> None:
    model, x, y = perceptron()
    risk = risk_of(model, x, y, batch_size=4, self_test=False)
    sizes = count_forwards(model)
    ClassGradients(risk)
    # One to count classes, three to weigh cells, two to try; then classes of 6, 1 and 4 samples.
    assert sizes == [4, 4, 4, 3, 4, 2, 3, 3, 1, 4]


def test_a_model_that_mixes_its_batch_is_not_regrouped() -> None:
    model, x, y = convolutional()
    model.train()
    risk = risk_of(model, x, y, mode="keep", batch_size=len(y))
    sizes = count_forwards(model)
    found = ClassGradients(risk)
    assert sizes[-3:] == [10] * 3  # one of the four classes is empty
    G = GaussNewton(risk).to_dense()
    multiplies(summed(found), G, G)
    streamed = ClassGradients(risk, max_bytes=0)
    for part in LOW_RANK:
        multiplies(streamed.part(part), found.part(part).to_dense(), G)


def test_batches_of_several_lengths() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.embed(tokens).tanh().mean(1))

    model = Pooled()
    lengths = [(3, 2), (4, 5), (3, 5), (2, 2)]
    data = [(torch.randint(0, 5, size), torch.randint(0, 3, size[:1])) for size in lengths]
    risk = es.EmpiricalRisk(model, es.CrossEntropy(), data)
    found, streamed = ClassGradients(risk), ClassGradients(risk, max_bytes=0)
    G = GaussNewton(risk).to_dense()
    for part in PARTS:
        multiplies(streamed.part(part), found.part(part).to_dense(), G)


def test_streaming_takes_no_memory_of_means() -> None:
    model = nn.Sequential(nn.Linear(50, 60), nn.ReLU(), nn.Linear(60, 12))
    x, y = torch.randn(24, 50), torch.arange(24) % 12
    risk = risk_of(model, x, y, batch_size=8)
    n = risk.space.size
    with Live() as live:
        part = ClassGradients(risk, max_bytes=0).part("cross")
        part @ torch.randn(n)
    assert live.peak < 20 * n * 8  # the means take 144 n
    with Live() as live:
        ClassGradients(risk)
    assert 144 * n * 8 < live.peak < 190 * n * 8


def test_memory_is_the_means_once_and_one_class_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """By this count VGG11 of 28M parameters with 10 classes stays under 20 GB."""
    C = 7
    model = nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, C)).float()
    x, y = torch.randn(21, 200, dtype=torch.float32), torch.arange(21) % C
    risk = risk_of(model, x, y, batch_size=9)
    n = risk.space.size
    means, vector = C * C * n * 4, n * 4
    with Live() as live:
        found = ClassGradients(risk, memory_budget=0)
    # One copy of the parameters is kept, to notice that they change.
    assert live.peak < means + C * n * 8 + 3 * vector
    chunk = 8 * 2**14  # so many numbers go to float64 at a time
    monkeypatch.setattr("eigenscape.curvature.classes.means._CHUNK", 2**14)
    with Live() as live:
        values = found.eigenvalues("cross")
        found.traces()
    assert live.peak < 5 * chunk < 3 * vector
    assert len(values) == C * (C - 1)
    # Three vectors of Lanczos, the columns before and after, some in float64; no basis, no means.
    within = found.part("within")
    within @ torch.zeros(n, dtype=torch.float32)  # it is compared with the function once
    with Live() as live:
        es.spectral_density(within, num_steps=5, num_probes=1, reorthogonalise=False)
    assert live.peak < 16 * vector < means // 3


def test_single_precision_and_tiny_probabilities() -> None:
    model, x, y = perceptron()
    with torch.no_grad():
        model[2].weight.mul_(200)
    g, p = gradients_with_every_label(model, x)
    dense = dense_parts(g, p / len(y), y)
    found = ClassGradients(risk_of(model.float(), x.float(), y, batch_size=4))
    assert found.weights.dtype == torch.float64
    assert float(found.weights.min()) < 1e-12
    G = sum(dense[part] for part in PARTS)
    for part in PARTS:
        close(found.part(part).to_dense().double(), dense[part], G, 1e-4)
    pairs = found.top_pairs("class")
    assert pairs.vectors.dtype == torch.float32
    assert pairs.residuals.max() < 1e-4 * pairs.values[0]


def test_old_parameters_are_refused() -> None:
    model, x, y = perceptron()
    found = ClassGradients(risk_of(model, x, y))
    part = found.part("within")
    part @ torch.randn(part.shape[1])
    with torch.no_grad():
        model[0].weight.mul_(1.1)
    with pytest.raises(NonDeterministicRiskError, match="model changed"):
        part @ torch.randn(part.shape[1])


@pytest.mark.parametrize("max_bytes", [0, 2**30])
@pytest.mark.parametrize("name", ["0.weight", "1.running_mean"])
def test_writes_that_pytorch_does_not_count_are_refused_too(name: str, max_bytes: int) -> None:
    model, x, y = convolutional()
    found = ClassGradients(risk_of(model, x, y), max_bytes=max_bytes)
    part = found.part("within")
    v = torch.randn(part.shape[1])
    before = part @ v
    state = model.state_dict()[name]
    old = state.clone()
    state.data.mul_(3.0).add_(5.0)
    for matrix in (found.part("class"), part):
        with pytest.raises(NonDeterministicRiskError, match="model changed"):
            matrix @ v
    state.data.copy_(old)  # the same point again
    torch.testing.assert_close(part @ v, before)


def test_refusals() -> None:
    model, x, y = perceptron()
    risk = risk_of(model, x, y)
    with pytest.raises(WrongTypeError, match="EmpiricalRisk"):
        ClassGradients(model)
    with pytest.raises(UnsupportedModelError, match="CrossEntropy"):
        ClassGradients(es.EmpiricalRisk(model, es.SquaredError(), (x, torch.randn(11, 3))))
    with pytest.raises(UnsupportedModelError, match="class indices"):
        ClassGradients(risk_of(model, x, torch.randn(11, 3).softmax(1)))
    for classes in ([0], [], [0, 0, 1], [-1, 2], [0, 3]):
        with pytest.raises(InvalidArgumentError, match="classes"):
            ClassGradients(risk, classes=classes)
    with pytest.raises(ShapeError, match=r"in one list; got shape \(2, 2\).*for c, _ in pairs"):
        ClassGradients(risk, classes=[(0, 6), (2, 4)])
    mask = torch.tensor([True, False, True])
    for classes, got in (
        ([0.5, 1.5], "torch.float64"),
        (mask, "torch.bool"),
        (mask.tolist(), "torch.bool"),
        ("01", "got str"),
        (["0", "1"], "got list of str"),
        ({0, 1}, "got set"),
    ):
        with pytest.raises(WrongTypeError, match=rf"classes=.*list or a tensor of integers.*{got}"):
            ClassGradients(risk, classes=classes)
    for classes in ((0, 2), range(0, 3, 2), mask.nonzero()[:, 0], torch.tensor([0, 2]).byte()):
        assert ClassGradients(risk, classes=classes).classes.tolist() == [0, 2]
    found = ClassGradients(risk)
    with pytest.raises(UnknownNameError, match="'within'"):
        found.part("among")
    with pytest.raises(UnknownNameError, match="'same'"):
        found.eigenvalues("within")
    with pytest.raises(InvalidArgumentError, match="row"):
        found.mean(label=1)
    with pytest.raises(InvalidArgumentError, match="from 0 to 2"):
        found.mean(3)
    with pytest.raises(TooLargeError, match=r"'cross'.*C² × C²: 6\.5e.*needs no matrix"):
        ClassGradients(risk, max_bytes=8).eigenvalues("cross")
    with pytest.raises(TooLargeError, match="n × n: 72 bytes"):  # three biases, nine cells
        ClassGradients(risk, "2.bias", max_bytes=8).top_pairs("between")
    assert "3 classes, 43 params, stored" in repr(found)
