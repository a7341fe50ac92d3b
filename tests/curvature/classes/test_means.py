"""Means of extended gradients where C² of them do not fit, against all of them at once."""

import pytest
import torch
from torch import Tensor, nn

import eigenscape as es
from eigenscape.curvature import ClassGradients, GaussNewton
from eigenscape.errors import NonDeterministicRiskError, TooLargeError
from tests.curvature.test_class_gradients import (
    LOW_RANK,
    PARTS,
    Positions,
    close,
    dense_parts,
    gradients_with_every_label,
    multiplies,
    risk_of,
    summed,
)
from tests.oracles.memory import Live

C = 5  # classes of the small case, with 1 to 7 samples
LABELS = torch.tensor([0, 3, 0, 1, 4, 0, 2, 0, 3, 0, 2, 3, 0, 0])
WIDE = ("cross", "between")


def perceptron() -> tuple[nn.Module, Tensor]:
    """Tensors of 54, 9, 45 and 5 numbers, in all 113: more than C² = 25 cells."""
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, C))
    return model, torch.randn(len(LABELS), 6)


def has_spectrum(found: ClassGradients, dense: dict[str, Tensor]) -> None:
    """Compare eigenvalues, traces and eigenpairs of all parts with those of dense matrices."""
    n, many = found.risk.space.size, len(found.classes)
    traces = found.traces()
    assert tuple(traces) == LOW_RANK
    for part in LOW_RANK:
        values = torch.linalg.eigvalsh(dense[part]).flip(0)
        mine = found.eigenvalues(part)
        most = {"global": 1, "cross": many * (many - 1), "between": many**2}.get(part, many)
        assert len(mine) == min(most, n)
        torch.testing.assert_close(mine, values[: len(mine)], rtol=1e-9, atol=1e-14)
        assert float(values[len(mine) :].abs().sum()) < 1e-13
        assert traces[part] == pytest.approx(float(dense[part].trace()), rel=1e-10, abs=1e-15)
        pairs = found.top_pairs(part)
        close(pairs.vectors.T @ pairs.vectors, torch.eye(len(pairs)), torch.eye(len(pairs)))
        close(dense[part] @ pairs.vectors, pairs.vectors * pairs.values, dense[part], 1e-9)
        assert float(pairs.values.sum()) == pytest.approx(traces[part], rel=1e-9)


def test_the_helper_sees_a_difference() -> None:
    model, x = perceptron()
    g, p = gradients_with_every_label(model, x)
    dense = dense_parts(g, p / len(LABELS), LABELS)
    found = ClassGradients(risk_of(model, x, LABELS))
    has_spectrum(found, dense)
    with pytest.raises(AssertionError):
        has_spectrum(found, {**dense, "cross": dense["cross"] * (1 + 1e-6)})


# --- a hundred classes ---


def factors(g: Tensor, w: Tensor, y: Tensor, C: int) -> dict[str, Tensor]:
    """The same as `dense_parts` for many classes: rows whose squares add up to the parts."""
    W = torch.zeros(C, C).index_add_(0, y, w)
    means = torch.zeros(C, C, g.shape[2]).index_add_(0, y, w[..., None] * g)
    means /= W.where(W > 0, torch.ones(()))[..., None]
    other = W * (1 - torch.eye(C))
    w_c = other.sum(1)
    g_c = torch.einsum("cl,cla->ca", other, means) / w_c.where(w_c > 0, torch.ones(()))[:, None]
    g_G = w_c @ g_c / w_c.sum()
    return {
        "global": w_c.sum().sqrt() * g_G[None],
        "centred": w_c.sqrt()[:, None] * (g_c - g_G),
        "class": w_c.sqrt()[:, None] * g_c,
        "cross": (other.sqrt()[..., None] * (means - g_c[:, None])).flatten(0, 1),
        "same": W.diagonal().sqrt()[:, None] * means[range(C), range(C)],
        "between": (W.sqrt()[..., None] * means).flatten(0, 1),
    }


def with_every_label(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return g (N, C, n) and p (N, C) from Jacobians of single samples."""
    params = dict(model.named_parameters())
    logits = lambda params, x: torch.func.functional_call(model, params, (x,))
    slopes = torch.func.vmap(torch.func.jacrev(logits), in_dims=(None, 0))(params, x)
    J = torch.cat([part.flatten(2) for part in slopes.values()], 2).detach()
    p = model(x).softmax(1).detach()
    return torch.einsum("ik,ika->ia", p, J)[:, None] - J, p  # Jᵀ(p − e_k)


def test_factors_are_those_of_the_dense_parts() -> None:
    model, x = perceptron()
    g, p = gradients_with_every_label(model, x)
    for mine, theirs in zip(with_every_label(model, x), (g, p), strict=True):
        torch.testing.assert_close(mine, theirs)
    dense = dense_parts(g, p / len(LABELS), LABELS)
    for part, F in factors(g, p / len(LABELS), LABELS, C).items():
        close(F.T @ F, dense[part], dense[part])


def test_a_hundred_classes_are_streamed() -> None:
    """C² = 10⁴ means of the largest tensor alone take twenty times this budget."""
    C, N, budget = 100, 17, 2**20
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, C))
    x, y = torch.randn(N, 4), torch.arange(N) ** 2 % 5 * 20  # classes 0, 20, 80 of unequal sizes
    risk = risk_of(model, x, y, batch_size=12)
    found = ClassGradients(risk, max_bytes=budget)
    n = found.risk.space.size
    assert not found.is_stored
    expected = GaussNewton(risk).to_dense() @ (v := torch.randn(n, 2))
    close(summed(found) @ v, expected, expected)
    g, p = with_every_label(model, x)
    rows = factors(g, p / N, y, C)
    with Live() as live:
        small = {part: found.eigenvalues(part) for part in ("class", "same", "global", "centred")}
        pairs = found.top_pairs("class")
    assert live.peak < 6 * C * n * 8
    for part, values in small.items():
        expected = torch.linalg.svdvals(rows[part]).square()
        torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(pairs.values, small["class"][:3], rtol=1e-9, atol=0)
    assert float(pairs.residuals.max()) < 1e-12
    traces = found.traces()
    for part, F in rows.items():
        assert traces[part] == pytest.approx(float(F.square().sum()), rel=1e-10)
    # The 415 parameters are fewer than the cells, but their matrix does not fit either.
    with pytest.raises(TooLargeError, match=r"n × n: 1\.4e\+06 bytes"):
        found.eigenvalues("cross")
    values = ClassGradients(risk, max_bytes=2 * budget).eigenvalues("cross")
    expected = torch.linalg.eigvalsh(rows["cross"].T @ rows["cross"]).flip(0)
    torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-15)


def test_memory_is_that_of_as_many_gradients_as_classes() -> None:
    C = 24
    model = nn.Sequential(nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, C))
    x, y = torch.randn(9, 30), torch.arange(9) ** 2 % 5
    found = ClassGradients(risk_of(model, x, y), max_bytes=0)
    gradients = C * found.risk.space.size * 8
    with Live() as live:
        found.traces()
    assert live.peak < 6 * gradients < found._means.nbytes / 3


def test_products_of_a_hundred_classes_of_a_layer() -> None:
    C, N = 100, 17
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, C))
    x, y = torch.randn(N, 4), torch.arange(N) ** 2 % 5 * 20
    layer = ClassGradients(risk_of(model, x, y, batch_size=12), "0", max_bytes=2**16)
    assert not layer.is_stored
    g, p = with_every_label(model, x)
    g = g[..., :15]  # of the first layer
    dense = dense_parts(g, p / N, y)
    G = sum(dense[part] for part in PARTS)
    for part in (*PARTS, "global", "centred"):
        multiplies(layer.part(part), dense[part], G)
    for part in ("class", "cross"):
        values = torch.linalg.eigvalsh(dense[part]).flip(0)  # of 15 parameters
        torch.testing.assert_close(layer.eigenvalues(part), values, rtol=1e-9, atol=1e-15)


# --- by parts of tensors, by classes ---


@pytest.mark.parametrize(
    ("at_once", "weighting"),
    [(113, "probabilities"), (54, "probabilities"), (37, "roots"), (25, "probabilities")],
)
def test_tensors_are_cut_where_they_do_not_fit(at_once: int, weighting: str) -> None:
    """37 and 25: pieces begin and end inside of tensors. With 25, C² × C² numbers just fit."""
    model, x = perceptron()
    risk = risk_of(model, x, LABELS, batch_size=4)
    g, p = gradients_with_every_label(model, x)
    w = p / len(LABELS)
    if weighting == "roots":
        g, w = g * p.sqrt()[..., None], torch.full_like(p, 1 / len(LABELS))
    found = ClassGradients(risk, weighting=weighting, max_bytes=at_once * 25 * 8)
    assert found.is_stored == (at_once == 113)
    if not found.is_stored:
        sizes = [block.shape[2] for block in found._means.blocks()]
        assert sizes[0] == at_once
        assert sum(sizes) == 113
    has_spectrum(found, dense_parts(g, w, LABELS))


def test_pieces_are_never_more_than_classes() -> None:
    """C·n numbers are there whatever the budget is; less would cost passes over the data."""
    model, x = perceptron()
    found = ClassGradients(risk_of(model, x, LABELS), max_bytes=0)
    assert [block.shape[2] for block in found._means.blocks()] == [23, 23, 23, 23, 21]
    g, p = gradients_with_every_label(model, x)
    dense = dense_parts(g, p / len(LABELS), LABELS)
    for part, trace in found.traces().items():
        assert trace == pytest.approx(float(dense[part].trace()), rel=1e-10)


def passes(model: nn.Module) -> list[int]:
    """Count the samples that go backward through a model's last layer."""
    sizes: list[int] = []

    def listen(module: nn.Module, args: object, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda slope: sizes.append(len(slope)))

    model.register_forward_hook(listen)
    return sizes


def test_small_parts_take_two_backward_passes_and_traces_as_many_more_as_classes() -> None:
    model, x = perceptron()
    sizes = passes(model)
    risk = risk_of(model, x, LABELS, batch_size=4)
    ClassGradients(risk, max_bytes=0).traces()  # a first pass shows that the hook keeps a list
    found = ClassGradients(risk, max_bytes=0)
    sizes.clear()
    for part in ("class", "same", "global", "centred"):
        found.eigenvalues(part)
    assert sum(sizes) == 2 * len(LABELS)
    sizes.clear()
    found.traces()
    assert sum(sizes) == C * len(LABELS)
    sizes.clear()
    found.traces()
    assert not sizes


@pytest.mark.parametrize("max_bytes", [2**30, 12**2 * 8])
def test_fewer_parameters_than_cells(max_bytes: int) -> None:
    """12 < 25: the smaller side of the means has all of it."""
    model = nn.Sequential(nn.Linear(6, 1), nn.Tanh(), nn.Linear(1, C, bias=False), nn.Tanh())
    x = torch.randn(len(LABELS), 6)
    g, p = gradients_with_every_label(model, x)
    risk = risk_of(model, x, LABELS, batch_size=4)
    found = ClassGradients(risk, max_bytes=max_bytes)
    assert found.is_stored == (max_bytes == 2**30)
    assert found.risk.space.size == 12
    has_spectrum(found, dense_parts(g, p / len(LABELS), LABELS))


def test_few_parameters_make_no_matrix_of_cells() -> None:
    C = 30
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, C))
    risk = risk_of(model, torch.randn(9, 3), torch.arange(9) ** 2 % 5)
    for max_bytes in (2**30, 60**2 * 8):
        found = ClassGradients(risk, "2.weight", max_bytes=max_bytes)
        with Live() as live:
            values = [found.eigenvalues(part) for part in WIDE]
            found.top_pairs("cross", 3)
        assert [len(v) for v in values] == [60, 60]
        assert live.peak < C**4 * 8 / 20


def test_eigenvalues_need_no_eigenvectors(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = perceptron()
    found = ClassGradients(risk_of(model, x, LABELS))
    expected = {part: found.top_pairs(part) for part in LOW_RANK}

    def refuse(matrix: Tensor) -> None:
        raise AssertionError(f"eigenvectors of {tuple(matrix.shape)}")

    for module in ("class_gradients", "classes.parts"):
        monkeypatch.setattr(f"eigenscape.curvature.{module}.eigh", refuse)
    for part, pairs in expected.items():
        torch.testing.assert_close(found.eigenvalues(part)[: len(pairs)], pairs.values)
    with pytest.raises(AssertionError, match="eigenvectors of"):
        found.top_pairs("cross")


def test_a_solver_that_gives_up_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = perceptron()
    found = ClassGradients(risk_of(model, x, LABELS))
    expected = found.eigenvalues("cross")

    def give_up(matrix: Tensor) -> None:
        raise RuntimeError("linalg.eigh: The algorithm failed to converge")

    monkeypatch.setattr(torch.linalg, "eigvalsh", give_up)
    torch.testing.assert_close(found.eigenvalues("cross"), expected, rtol=1e-9, atol=1e-15)


# More parameters than nine cells, and fewer.
@pytest.mark.parametrize(("params", "least"), [(None, 8 * 9**2), ("2.bias", 8 * 5**2)])
@pytest.mark.parametrize("is_stored", [True, False])
def test_classes_that_do_not_occur_have_no_parts(
    params: str | None, least: int, is_stored: bool
) -> None:
    model, x = perceptron()
    risk = risk_of(model, x, LABELS.clamp(max=1), self_test=False)
    sizes = passes(model)
    max_bytes = 2**30 if is_stored else least
    found = ClassGradients(risk, params, classes=[4, 2, 3], max_bytes=max_bytes)
    assert found.is_stored == is_stored
    assert set(found.traces().values()) == {0.0}
    for part in LOW_RANK:
        assert not bool(found.eigenvalues(part).any())
    assert not sizes


# --- what cannot be brought together by class ---


class Mixing(nn.Module):
    """Samples of a batch that change each other's logits."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x - 0.5 * x.mean(0)).tanh()


def gradients_in_batches(model: nn.Module, parts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return g (N, C, n) and p (N, C) of samples among the others of their batch."""
    params = list(model.parameters())
    z = torch.cat([model(part) for part in parts])
    losses = -z.log_softmax(1).flatten()
    found = [torch.autograd.grad(loss, params, retain_graph=True) for loss in losses]
    g = torch.stack([torch.cat([part.flatten() for part in row]) for row in found])
    return g.reshape(*z.shape, -1), z.softmax(1).detach()


@pytest.mark.filterwarnings("ignore::eigenscape.errors.GroupingWarning")
@pytest.mark.parametrize("sizes", [(1, 13), (13, 1), (2, 5, 7), (1,) * 14])
def test_samples_that_mix_stay_in_their_batch(sizes: tuple[int, ...]) -> None:
    """A batch of one sample does not tell; where all have one, none are joined."""
    model, x = Mixing(), torch.randn(len(LABELS), 6)
    parts = x.split(sizes)
    risk = es.EmpiricalRisk(
        model, es.CrossEntropy(), list(zip(parts, LABELS.split(sizes), strict=True))
    )
    g, p = gradients_in_batches(model, parts)
    dense = dense_parts(g, p / len(LABELS), LABELS)
    for max_bytes in (2**30, 0):
        found = ClassGradients(risk, max_bytes=max_bytes)
        for part in PARTS:
            multiplies(found.part(part), dense[part], dense["between"])


def test_positions_of_a_language_model_are_streamed() -> None:
    model, x, y = Positions(), torch.randint(0, 6, (5, 4)), torch.randint(0, 6, (5, 4))
    risk = es.EmpiricalRisk(model, es.CrossEntropy(), (x, y), batch_size=2)
    for classes in (None, [4, 0, 1]):
        stored = ClassGradients(risk, classes=classes)
        dense = {part: stored.part(part).to_dense() for part in LOW_RANK}
        many = len(stored.classes)
        streamed = ClassGradients(risk, classes=classes, max_bytes=8 * many**4)
        assert (stored.is_stored, streamed.is_stored) == (True, False)
        has_spectrum(streamed, dense)


def test_single_precision_is_added_up_in_double() -> None:
    model, x = perceptron()
    g, p = gradients_with_every_label(model, x)
    dense = dense_parts(g, p / len(LABELS), LABELS)
    risk = risk_of(model.float(), x.float(), LABELS, batch_size=4)
    found = ClassGradients(risk, max_bytes=8 * C**4)
    assert not found.is_stored
    for part in LOW_RANK:
        values = found.eigenvalues(part)
        assert values.dtype == torch.float64
        expected = torch.linalg.eigvalsh(dense[part]).flip(0)[: len(values)]
        close(values, expected, expected, 1e-5)


def test_old_parameters_are_refused() -> None:
    model, x = perceptron()
    found = ClassGradients(risk_of(model, x, LABELS), max_bytes=8 * C**4)
    with torch.no_grad():
        model[0].weight.mul_(1.1)
    for ask in (found.traces, lambda: found.eigenvalues("class"), lambda: found.top_pairs("cross")):
        with pytest.raises(NonDeterministicRiskError, match="model changed"):
            ask()
