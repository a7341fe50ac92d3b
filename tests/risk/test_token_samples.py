"""Tokens as samples: the same risk, and what needs samples of one class against plain autograd."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import eigenscape as es
from eigenscape.errors import (
    EmptySelectionError,
    InvalidArgumentError,
    ShapeError,
    UnsupportedModelError,
    WrongTypeError,
)
from eigenscape.risk import token_samples
from eigenscape.structure import class_span
from eigenscape_papers.papyan import KhatriRao, backpropagated_errors, kronecker_spectra

N, T, V, D = 4, 5, 6, 3
CE = es.CrossEntropy()
PARTS = ("class", "cross", "same", "within")


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.gru = nn.Embedding(V, D), nn.GRU(D, 4, batch_first=True)
        self.out = nn.Linear(4, V)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(self.emb(x))[0])


class Causal(nn.Module):
    """A transformer's block of features (N, T, D)."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D, bias=False) for _ in range(3))
        self.ln, self.fc, self.out = nn.LayerNorm(D), nn.Linear(D, 4), nn.Linear(4, V)

    def forward(self, h: Tensor) -> Tensor:
        u = self.ln(h)
        seen = torch.ones(h.shape[1], h.shape[1]).tril() > 0
        mix = (self.q(u) @ self.k(u).mT).masked_fill(~seen, float("-inf")).softmax(-1)
        return self.out(torch.tanh(self.fc(h + mix @ self.v(u))))


def transformer() -> nn.Module:
    return nn.Sequential(nn.Embedding(V, D), Causal())


def words() -> tuple[Tensor, Tensor]:
    """Sequences with their labels; a whole sequence and parts of others have none."""
    x, y = torch.randint(0, V, (N, T)), torch.randint(0, V - 1, (N, T))  # the last never occurs
    y[0, 3:] = y[2] = y[3, 0] = -100
    return x, y


def token_risk(model: nn.Module, x: Tensor, y: Tensor, **settings: Any) -> es.EmpiricalRisk:
    module, data = token_samples(model, x, y, **settings)
    return es.EmpiricalRisk(module, CE, data, batch_size=5)


def close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    size = float(theirs.norm())
    assert size > 0
    assert float((ours - theirs).norm()) < 1e-10 * size


# --- what plain autograd says --------------------------------------------------------------------


def each_token(model: nn.Module, layer: str, x: Tensor, y: Tensor) -> Any:
    """Labels and p; by token and candidate label, gradients of the parameters and of the layer."""
    labels, p, gradients, slopes, inputs = [], [], [], [], []
    for row, position in (y != -100).nonzero().tolist():
        caught: dict[str, Tensor] = {}

        def shift(
            _: nn.Module, args: tuple[Tensor], output: Tensor, caught: Any = caught
        ) -> Tensor:
            caught["input"], caught["zero"] = args[0], torch.zeros_like(output, requires_grad=True)
            return output + caught["zero"]

        hook = model.get_submodule(layer).register_forward_hook(shift)
        z = model(x[row : row + 1])[0, position]
        hook.remove()
        leaves = [*model.parameters(), caught["zero"]]
        found = [
            torch.autograd.grad(-z.log_softmax(0)[label], leaves, retain_graph=True)
            for label in range(V)
        ]
        gradients.append(torch.stack([torch.cat([g.flatten() for g in f[:-1]]) for f in found]))
        slopes.append(torch.stack([f[-1][0] for f in found]))
        inputs.append(caught["input"][0].detach())
        labels.append(int(y[row, position]))
        p.append(z.detach().softmax(0))
    return torch.tensor(labels), *map(torch.stack, (p, gradients, slopes, inputs))


def dense_parts(labels: Tensor, p: Tensor, g: Tensor) -> dict[str, Tensor]:
    """G and its parts from extended gradients g (K, V, n) with weights p/K, Papyan §6."""
    w = p / len(p)
    second = lambda weights, rows: torch.einsum("...,...i,...j->ij", weights, rows, rows)
    W, M = torch.zeros(V, V), torch.zeros(V, V, g.shape[2])
    for c in labels.unique().tolist():
        own = labels == c
        W[c] = w[own].sum(0)
        M[c] = (w[own, :, None] * g[own]).sum(0) / W[c][:, None]
    off = W * (1 - torch.eye(V))
    means = (off[..., None] * M).sum(1) / off.sum(1).clamp_min(1e-300)[:, None]
    found = {
        "G": second(w, g),
        "class": second(off.sum(1), means),
        "cross": second(off, M - means[:, None]),
        "same": second(W.diagonal(), M[range(V), range(V)]),
    }
    found["within"] = second(w, g - M[labels])
    return found


# --- the same risk -------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [None, torch.linspace(0.5, 2.0, V, dtype=torch.float64)])
@pytest.mark.parametrize("make", [Recurrent, transformer])
def test_risk_and_gauss_newton_matrix_stay(make: Any, weights: Tensor | None) -> None:
    model, (x, y) = make(), words()
    loss = es.CrossEntropy(class_weights=weights)
    whole = es.EmpiricalRisk(model, loss, (x, y))
    module, data = token_samples(model, x, y)
    tokens = es.EmpiricalRisk(module, loss, data, batch_size=5)
    assert tokens.num_samples == 12
    assert tokens.value() == pytest.approx(whole.value(), rel=1e-13)
    close(tokens.gradient(), whole.gradient())
    close(es.GaussNewton(tokens).to_dense(), es.GaussNewton(whole).to_dense())
    assert module.model is model
    assert list(tokens.space.names) == [f"model.{name}" for name in whole.space.names]


@pytest.mark.parametrize("layer", ["gru", "out"])
def test_hessians_of_a_recurrent_network_stay(layer: str) -> None:
    model, (x, y) = Recurrent(), words()
    whole = es.Hessian(es.EmpiricalRisk(model, CE, (x, y)))[layer]
    close(es.Hessian(token_risk(model, x, y))[f"model.{layer}"].to_dense(), whole.to_dense())


@pytest.mark.parametrize("make", [Recurrent, transformer])
def test_class_gradients_of_tokens_and_of_positions_agree(make: Any) -> None:
    model, (x, y) = make(), words()
    whole = es.ClassGradients(es.EmpiricalRisk(model, CE, (x, y)))
    tokens = es.ClassGradients(token_risk(model, x, y))
    close(tokens.weights, whole.weights)
    for name in PARTS:
        close(tokens.part(name).to_dense(), whole.part(name).to_dense())


# --- what needs samples of one class each --------------------------------------------------------


@pytest.mark.parametrize(("make", "layer"), [(Recurrent, "out"), (transformer, "1.fc")])
def test_factors_by_class_are_moments_over_tokens_and_their_positions(
    make: Any, layer: str
) -> None:
    model, (x, y) = make(), words()
    labels, p, _, slopes, inputs = each_token(model, layer, x, y)
    K = es.ClassKronecker(token_risk(model, x, y), f"model.{layer}")
    assert K.classes.tolist() == labels.unique().tolist()
    lifted = torch.cat([inputs, torch.ones(len(inputs), T, 1)], 2)
    expected = 0
    for number, c in enumerate(K.classes.tolist()):
        own = labels == c
        left = torch.einsum("ic,icta,ictb->ab", p[own], slopes[own], slopes[own]) / own.sum()
        right = torch.einsum("ita,itb->ab", lifted[own], lifted[own]) / (T * own.sum())
        close(K.output_factors[number], left)
        close(K.input_factors[number], right)
        expected += own.sum() / len(own) * torch.kron(left, right)
    close(K.to_dense(), in_order(expected, slopes.shape[3], lifted.shape[2]))


def in_order(block: Tensor, m: int, n: int) -> Tensor:
    """Bring (output) ⊗ (input with a 1) into the order of the parameters: weights, then biases."""
    where = torch.arange(m * n).view(m, n)
    order = torch.cat([where[:, :-1].flatten(), where[:, -1]])
    return block[order][:, order]


def test_joined_layers_have_moments_of_what_a_token_sends_back_in_all() -> None:
    model, (x, y) = transformer(), words()
    labels, p, _, slopes, inputs = each_token(model, "1.fc", x, y)
    sums, means = slopes.sum(2), torch.cat([inputs.mean(1), torch.ones(len(inputs), 1)], 1)
    expected = 0
    for c in labels.unique().tolist():
        own = labels == c
        left = torch.einsum("ic,ica,icb->ab", p[own], sums[own], sums[own]) / len(own)
        expected += torch.kron(left, means[own].T @ means[own] / own.sum())
    K = KhatriRao(token_risk(model, x, y), ["model.1.fc"])
    close(K.to_dense(), in_order(expected, sums.shape[2], means.shape[1]))


@pytest.mark.parametrize(("make", "layer"), [(Recurrent, "out"), (transformer, "1.fc")])
def test_backpropagated_errors_are_those_of_each_token(make: Any, layer: str) -> None:
    model, (x, y) = make(), words()
    labels, p, _, slopes, inputs = each_token(model, layer, x, y)
    found = backpropagated_errors(token_risk(model, x, y), f"model.{layer}")
    assert found.classes.tolist() == labels.tolist()
    close(found.probabilities, p)
    close(found.errors, slopes.flatten(2))
    close(found.features, inputs.flatten(1))


def test_the_span_of_a_transformer_has_all_eigenvalues() -> None:
    model, (_, y) = Causal(), words()
    x = torch.randn(N, T, D)
    labels, p, gradients, _, _ = each_token(model, "fc", x, y)
    expected = dense_parts(labels, p, gradients)
    found = class_span(token_risk(model, x, y))
    assert found.num_parameters == gradients.shape[2]
    assert found.class_sizes.tolist() == labels.bincount(minlength=V).tolist()
    for name, dense in expected.items():
        values = torch.linalg.eigvalsh(dense).flip(0)[: len(found.values)]
        close(torch.linalg.eigvalsh(found.part(name).to_dense()).flip(0), values)


def test_spectra_are_those_of_the_whole_model() -> None:
    model, (x, y) = transformer(), words()
    block = es.GaussNewton(es.EmpiricalRisk(model, CE, (x, y)))["1.fc"].to_dense()
    found = kronecker_spectra(token_risk(model, x, y), "model.1.fc", num_values=4)
    close(found.values, torch.linalg.eigvalsh(block).flip(0)[:4])


# --- which tokens, of which models ---------------------------------------------------------------


@pytest.mark.parametrize("classes", [[4, 1], torch.tensor([1, 4]), (1, 4, 5)])
def test_classes_keep_their_tokens_and_all_words(classes: Any) -> None:
    model, (x, y) = Recurrent(), words()
    places = [(n, t) for n in range(N) for t in range(T) if int(y[n, t]) in (1, 4)]
    assert 0 < len(places) < 12
    module, (sequences, positions, labels) = token_samples(model, x, y, classes=classes)
    assert torch.equal(sequences, x[[n for n, _ in places]])
    assert positions.tolist() == [t for _, t in places]
    assert labels.tolist() == [int(y[place]) for place in places]
    losses = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none").view(N, T)
    mean = sum(float(losses[place].detach()) for place in places) / len(places)
    risk = es.EmpiricalRisk(module, CE, (sequences, positions, labels))
    assert risk.value() == pytest.approx(mean, rel=1e-13)


def test_labels_to_ignore_and_their_kind() -> None:
    x, y = words()
    padded = y.where(y != -100, 0)
    *_, labels = token_samples(Recurrent(), x, padded.int(), ignore_index=0)[1]
    assert labels.dtype == torch.long
    assert labels.tolist() == padded[padded != 0].tolist()


def test_labels_that_are_not_shifted_yet() -> None:
    model, (x, _) = transformer(), words()
    whole = es.EmpiricalRisk(model, es.CrossEntropy(next_token=True), (x, x))
    tokens = token_risk(model, x[:, :-1], x[:, 1:])
    assert tokens.value() == pytest.approx(whole.value(), rel=1e-13)


class Masked(nn.Module):
    """Two inputs, and an object with logits."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Causal()

    def forward(self, x: Tensor, keep: Tensor) -> Any:
        return SimpleNamespace(logits=self.body(x * keep[..., None]))


class InDict(Recurrent):
    def forward(self, x: Tensor) -> Any:
        return {"logits": super().forward(x), "loss": torch.zeros(())}


def test_several_inputs_and_outputs_that_hold_logits() -> None:
    model, (x, y) = Masked(), words()
    inputs = torch.randn(N, T, D), (torch.rand(N, T) > 0.3).double()
    whole = es.EmpiricalRisk(model, CE, (*inputs, y))
    module, data = token_samples(model, inputs, y)
    assert [len(part) for part in data] == [12] * 4
    assert es.EmpiricalRisk(module, CE, data).value() == pytest.approx(whole.value(), rel=1e-13)
    model = InDict()
    whole = es.EmpiricalRisk(model, CE, (x, y))
    assert token_risk(model, x, y).value() == pytest.approx(whole.value(), rel=1e-13)


def test_a_model_keeps_its_mode_and_its_statistics() -> None:
    norm = nn.BatchNorm1d(T)
    model = nn.Sequential(nn.Embedding(V, D), norm, nn.Dropout(), nn.Linear(D, V)).train()
    model[2].eval()
    token_samples(model, *words())
    assert [part.training for part in model] == [True, True, False, True]
    assert int(norm.num_batches_tracked) == 0


# --- what is refused -----------------------------------------------------------------------------


class Turned(Recurrent):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).mT


class Last(Recurrent):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[:, -1]


class Flat(Recurrent):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flatten(0, 1)


class Pair(Recurrent):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Turned, r"\(N, T, V\).*got \(1, 6, 5\) for one sequence with 5.*`logits.mT`"),
        (Last, r"got \(1, 6\).*a sequence is a sample as it is"),
        (Flat, r"got \(5, 6\).*logits of every position"),
        (Pair, r"got tuple.*logits of every position, and them alone"),
        (lambda: nn.Linear(7, V), r"cannot run a batch.*\(1, 5\)"),
    ],
)
def test_outputs_that_are_not_of_tokens(model: Any, words: str) -> None:
    x, y = torch.zeros(N, T, dtype=torch.long), torch.zeros(N, T, dtype=torch.long)
    with pytest.raises(UnsupportedModelError, match=words):
        token_samples(model(), x, y)


def test_refusals() -> None:
    model, (x, y) = Recurrent(), words()
    wrong: Any
    for given, words_ in (
        ((model.forward, x, y), "needs an nn.Module; got method"),
        ((model, x.tolist(), y), r"got list as inputs. Pass `torch.as_tensor\(inputs\)`"),
        ((model, x, y.numpy()), r"got ndarray as targets. Pass `torch.as_tensor\(targets\)`"),
    ):
        wrong = given
        with pytest.raises(WrongTypeError, match=words_):
            token_samples(*wrong)
    for targets, words_ in (
        (y[:, 0], r"targets \(N, T\).*got \(4,\) of torch.int64"),
        (y.double(), r"got \(4, 5\) of torch.float64"),
        (y[:3], "for each row of targets.*got 4 and 3"),
    ):
        with pytest.raises(ShapeError, match=words_):
            token_samples(model, x, targets)
    with pytest.raises(UnsupportedModelError, match=r"got \(1, 5, 6\).*Give a target for each"):
        token_samples(model, x, y[:, 1:])
    for targets in (y.where(y != 1, V), y.where(y != 1, -1)):
        with pytest.raises(InvalidArgumentError, match=r"targets\)` needs.*from 0 to 5, or -100"):
            token_samples(model, x, targets)
    with pytest.raises(EmptySelectionError, match=r"no token with a label in.*\(4, 5\)"):
        token_samples(model, x, torch.full_like(y, -100))
    for classes in ([5], []):
        with pytest.raises(EmptySelectionError, match="no token with a label among `classes`"):
            token_samples(model, x, y, classes=classes)
    with pytest.raises(InvalidArgumentError, match=r"classes=...\)` needs.*0 to 5.*got 1 to 6"):
        token_samples(model, x, y, classes=[1, 6])
    with pytest.raises(ShapeError, match=r"in one list; got shape \(2, 2\).*for c, _ in pairs"):
        token_samples(model, x, y, classes=[(1, 9), (2, 4)])
    for wrong, got in (({1, 2}, "set"), ([0.5, 1.0], "numbers of torch.float64")):
        with pytest.raises(WrongTypeError, match=rf"list or a tensor of integers; got {got}"):
            token_samples(model, x, y, classes=wrong)
