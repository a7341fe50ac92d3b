"""The span of extended gradients against dense matrices that are made sample by sample."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from eigenscape.curvature import ClassGradients
from eigenscape.errors import (
    InvalidArgumentError,
    NonFiniteError,
    TooLargeError,
    UnsupportedModelError,
    WrongTypeError,
)
from eigenscape.records import Progress, pack, unpack
from eigenscape.risk import CrossEntropy, EmpiricalRisk, SquaredError
from eigenscape.structure import ClassSpan, class_span
from eigenscape.structure.classes import _gradient_gram
from tests.cases import BATCH_SIZES, Case, N, case, classification, mlp, normal, shaken

C = 3
Y = torch.tensor([0, 1, 2, 0, 0, 1, 2, 1, 0, 1, 0])  # classes of unequal sizes
PARTS = ("class", "cross", "same", "within")


def relu_conv() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, (3, 2), padding=(1, 0), bias=False), shaken(nn.BatchNorm2d(4)),
        nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(4, 6, 2, groups=2), nn.Tanh(),
        nn.Flatten(), nn.Linear(12, C),
    )  # fmt: skip


def conv_case() -> Case:
    return classification(relu_conv(), (normal(N, 2, 6, 5),), C)


def with_labels(c: Case, loss: CrossEntropy | None = None) -> Case:
    """Return a case with the labels above."""
    return Case(
        c.model, loss or CrossEntropy(), (*c.data[:-1], Y), c.forward, c.mean_loss, c.terms, c.count
    )


def oracle(c: Case, class_weights: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return G and its parts from g and w, one by one (Papyan §6)."""
    J = c.jacobian().reshape(N, C, -1)
    p = c.forward(c.theta()).detach().softmax(1)
    s = torch.where(labels >= 0, class_weights[labels.clamp_min(0)], 0.0)
    w = s[:, None] * p / s.sum()
    g = torch.stack([J.transpose(1, 2) @ (p - torch.eye(C)[k])[:, :, None] for k in range(C)], 1)
    g = g[..., 0]  # (N, C, n)
    second = lambda weights, rows: torch.einsum("...,...i,...j->ij", weights, rows, rows)
    found = {"G": second(w, g)}
    W, M = torch.zeros(C, C), torch.zeros(C, C, g.shape[2])
    for c_, k in ((a, b) for a in range(C) for b in range(C)):
        own = labels == c_
        W[c_, k] = w[own, k].sum()
        M[c_, k] = (w[own, k, None] * g[own, k]).sum(0) / W[c_, k]
    off = W * (1 - torch.eye(C))
    means = (off[..., None] * M).sum(1) / off.sum(1)[:, None]
    found["class"] = second(off.sum(1), means)
    found["cross"] = second(off, M - means[:, None])
    found["same"] = second(W.diagonal(), M[range(C), range(C)])
    found["within"] = found["G"] - found["class"] - found["cross"] - found["same"]
    return found


def nonzero(M: Tensor, count: int) -> Tensor:
    return torch.linalg.eigvalsh(M).sort(descending=True).values[:count]


def check(found: ClassSpan, expected: dict[str, Tensor]) -> None:
    G = expected["G"]
    values = torch.linalg.eigvalsh(G).flip(0)
    r = len(found.values)
    size = float(values[0])
    torch.testing.assert_close(found.values, values[:r], rtol=1e-10, atol=1e-12 * size)
    assert float(values[r:].abs().sum()) < 1e-11 * size
    assert found.num_parameters == len(G)
    for name in PARTS:
        ours, theirs = found.part(name).to_dense(), expected[name]
        assert torch.equal(ours, ours.T)
        assert float(ours.trace()) == pytest.approx(float(theirs.trace()), rel=1e-9, abs=1e-13)
        torch.testing.assert_close(nonzero(ours, r), nonzero(theirs, r), rtol=1e-9, atol=1e-12)
        # What is left when it is knocked out depends on directions, not on eigenvalues alone.
        left, rest = found.part("G").to_dense() - ours, G - theirs
        torch.testing.assert_close(left.square().sum(), rest.square().sum(), rtol=1e-9, atol=1e-13)
        torch.testing.assert_close(
            torch.linalg.eigvalsh(left).abs().sum(), torch.linalg.eigvalsh(rest).abs().sum(),
            rtol=1e-8, atol=1e-12,
        )  # fmt: skip
        assert found.traces()[name] == pytest.approx(float(theirs.trace()), rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("batch_size", BATCH_SIZES)
@pytest.mark.parametrize("make", [conv_case, lambda: case("mlp-tanh"), lambda: case("layernorm")])
def test_parts_are_those_of_dense_matrices(
    make: Callable[[], Case], batch_size: int | None
) -> None:
    c = with_labels(make())
    found = class_span(c.risk(batch_size))
    check(found, oracle(c, torch.ones(C), Y))
    assert found.class_sizes.tolist() == [5, 4, 2]


@pytest.mark.parametrize("most", [1, 10**9])
def test_both_ways_to_inner_products(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Rows that are written out, and pairs of positions, some at a time or all at once."""
    c = with_labels(conv_case())
    monkeypatch.setattr(_gradient_gram, "_MOST_NUMBERS", most)
    add_pairs, add_written = _gradient_gram._add_pairs, _gradient_gram._add_written
    expected = oracle(c, torch.ones(C), Y)
    used = []

    def pairs(found: Tensor, x: Tensor, s: Tensor, count: int) -> None:
        used.append("pairs")
        add_pairs(found, x, s, max(1, int(most**0.5) // (s.shape[1] * s.shape[2])))

    def written(found: Tensor, x: Tensor, s: Tensor, count: int) -> None:
        used.append("written")
        add_written(found, x, s, max(1, most // (len(x) * s.shape[1] * x.shape[2])))

    for way in (pairs, written):
        monkeypatch.setattr(_gradient_gram, "_add_pairs", way)
        monkeypatch.setattr(_gradient_gram, "_add_written", way)
        check(class_span(c.risk()), expected)
    assert set(used) == {"pairs", "written"}


def test_the_cheaper_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    monkeypatch.setattr(_gradient_gram, "_add_pairs", lambda *_: used.append("pairs"))
    monkeypatch.setattr(_gradient_gram, "_add_written", lambda *_: used.append("written"))
    K = torch.zeros(6, 6, dtype=torch.float64)
    _gradient_gram._add(K, torch.ones(3, 1, 50), torch.ones(3, 2, 1, 40))  # plain vectors
    _gradient_gram._add(K, torch.ones(3, 90, 2), torch.ones(3, 2, 90, 4))  # a first convolution
    assert used == ["pairs", "written"]


def test_weights_and_ignored_samples() -> None:
    weights = torch.tensor([1.0, 2.5, 0.5], dtype=torch.float64)
    labels = Y.clone()
    labels[3] = -100
    c = with_labels(case("mlp-tanh"), loss=CrossEntropy(class_weights=weights))
    c = Case(c.model, c.loss, (*c.data[:-1], labels), c.forward, c.mean_loss, c.terms, c.count)
    found = class_span(c.risk(7))
    check(found, oracle(c, weights, labels))
    assert found.class_sizes.tolist() == [4, 4, 2]
    assert float(found.class_traces.sum()) == pytest.approx(float(found.values.sum()), rel=1e-12)


def test_levels_of_classes_add_up_to_the_within_part() -> None:
    found = class_span(with_labels(conv_case()).risk())
    total = float((found.within_levels() * found.class_sizes).sum())
    assert total == pytest.approx(found.traces()["within"], rel=1e-10)


def test_it_has_what_class_gradients_have() -> None:
    c = with_labels(conv_case())
    found, others = class_span(c.risk()), ClassGradients(c.risk())
    torch.testing.assert_close(found.weights, others.weights)
    for name in ("global", "centred", "class", "cross", "same", "between"):
        ours, theirs = found.eigenvalues(name), others.eigenvalues(name)
        k = min(len(ours), len(theirs))
        torch.testing.assert_close(ours[:k], theirs[:k], rtol=1e-9, atol=1e-14)
        assert found.traces()[name] == pytest.approx(others.traces()[name], rel=1e-10)
    for row in range(C):
        assert float(found.mean(row).norm()) == pytest.approx(float(others.mean(row).norm()))


def test_float32_networks_have_small_eigenvalues_too() -> None:
    """Inner products are added up in float64, so that rounding of rows is squared."""
    net, x = relu_conv(), normal(N, 2, 6, 5)
    exact = class_span(EmpiricalRisk(net, CrossEntropy(), (x, Y)))
    rough = class_span(EmpiricalRisk(net.float(), CrossEntropy(), (x.float(), Y)))
    seen = exact.values > 1e-9 * exact.values[0]
    assert int(seen.sum()) > 15
    # Rows are off by a few roundings each, which partly cancel: one of the largest is enough.
    gap = (rough.values[: len(exact.values)][seen].sqrt() - exact.values[seen].sqrt()).abs()
    assert float(gap.max() / exact.values[0].sqrt()) < torch.finfo(torch.float32).eps


def test_a_record_can_be_kept_and_told() -> None:
    found = class_span(with_labels(case("mlp-tanh")).risk())
    again = unpack(*pack(found))
    torch.testing.assert_close(again.means, found.means)
    told = found.columns()
    assert told["matrix"] == ["G", "class", "cross", "same", "within"]
    assert sum(told["share"][1:]) == pytest.approx(1.0)


def test_progress_counts_layers() -> None:
    steps: list[Progress] = []
    class_span(with_labels(case("mlp-tanh")).risk(), progress=steps.append)
    assert (steps[-1].done, steps[-1].total) == (3, 3)


# --- what is refused ---


class Twice(nn.Module):
    """Uses a weight in a second place, which no hook sees."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, C)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.two(torch.tanh(self.one(x)) @ self.one.weight)
        return out


class Mixed(nn.Module):
    """Samples that see each other."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 5), nn.Linear(5, C)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.one(x))
        out: Tensor = self.two(h - 0.5 * h.mean(0))
        return out


@pytest.mark.parametrize(
    ("net", "words"),
    [(Twice(), "other gradients than autograd"), (Mixed(), "change each other's outputs")],
)
def test_gradients_that_are_not_of_layers_are_found(net: nn.Module, words: str) -> None:
    risk = EmpiricalRisk(net.double(), CrossEntropy(), (normal(N, 4), Y))
    with pytest.raises(UnsupportedModelError, match=words):
        class_span(risk)


def test_refusals() -> None:
    data = normal(N, 4), Y
    net = mlp(4, 5, C)
    risk = EmpiricalRisk(net, CrossEntropy(), data)
    with pytest.raises(WrongTypeError, match="EmpiricalRisk"):
        class_span(cast(Any, net))
    with pytest.raises(UnsupportedModelError, match="CrossEntropy"):
        class_span(EmpiricalRisk(net, SquaredError(), (data[0], normal(N, C))))
    for targets in (torch.eye(C)[Y], normal(N, C).softmax(1)):
        with pytest.raises(
            UnsupportedModelError, match=r"class indices.*Pass `target.argmax\(1\)`"
        ):
            class_span(EmpiricalRisk(net, CrossEntropy(), (data[0], targets)))
    sequences = normal(3, 5, 4), torch.zeros(3, 5, dtype=torch.long)
    with pytest.raises(UnsupportedModelError, match=r"\(3, 5, 3\).*`token_samples\(model, x, y\)`"):
        class_span(EmpiricalRisk(net, CrossEntropy(), sequences))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=4)
    anew = EmpiricalRisk(net, CrossEntropy(), loader, keep_data_bytes=0)
    with pytest.raises(UnsupportedModelError, match="in one order"):
        class_span(anew)
    with pytest.raises(TooLargeError, match="fewer samples"):
        class_span(risk, max_bytes=1000)
    with pytest.raises(InvalidArgumentError, match="max_bytes"):
        class_span(risk, max_bytes=0)
    params = {"w": normal(C, 4)}
    pure = EmpiricalRisk(lambda p, x: x @ p["w"].T, CrossEntropy(), data, params=params)
    with pytest.raises(WrongTypeError, match="pure function"):
        class_span(pure)
    single = mlp(4, 5, C).float()
    rounded = EmpiricalRisk(single, CrossEntropy(), (data[0].float(), Y), autocast=torch.bfloat16)
    with pytest.raises(UnsupportedModelError, match="rounds its forward pass"):
        class_span(rounded)
    table = nn.Sequential(nn.Embedding(3, C), nn.Flatten(0, 1)).double()
    with pytest.raises(UnsupportedModelError, match="a table"):
        class_span(EmpiricalRisk(table, CrossEntropy(), (Y[:, None], Y)))
    with pytest.raises(UnsupportedModelError, match="does not cover"):
        class_span(
            EmpiricalRisk(nn.Sequential(nn.PReLU(), nn.Linear(4, C)).double(), CrossEntropy(), data)
        )
    with pytest.raises(InvalidArgumentError, match="part"):
        class_span(risk).part("beyond")
    with torch.no_grad():
        net[0].weight[0, 0] = torch.nan
    with pytest.raises(NonFiniteError):
        class_span(risk)
