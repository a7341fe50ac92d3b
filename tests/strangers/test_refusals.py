"""What cannot be had is refused in our words: what was expected, what came, what to do."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import eigenscape as es
from eigenscape.errors import EigenscapeError
from tests.strangers.named_cases import net
from tests.strangers.oracle import Case, direction, hessian_product

Question = Callable[[], object]
REFUSED: dict[str, tuple[Question, str]] = {}


def refused(words: str) -> Callable[[Question], Question]:
    """List a question and what its refusal says."""

    def listed(question: Question) -> Question:
        REFUSED[question.__name__] = question, words
        return question

    return listed


def samples(n: int = 10) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 3), torch.randint(0, 4, (n,))


def product(matrix: Any) -> Tensor:
    return matrix @ torch.ones(matrix.shape[0], dtype=matrix.dtype)


def hessian(model: Any, data: Any = None, loss: Any = None, **options: Any) -> Tensor:
    data = samples() if data is None else data
    return product(es.Hessian(es.EmpiricalRisk(model, loss or es.CrossEntropy(), data, **options)))


@refused(r"target")
def batches_without_targets() -> object:
    """The second of two unlabelled batches is no target."""
    return hessian(net(3, 7, 3), [torch.randn(10, 3), torch.randn(10, 3)], es.SquaredError())


@refused(r"complex")
def a_complex_parameter() -> object:
    model = net(3, 7, 4)
    model.register_parameter("extra", nn.Parameter(torch.randn(3, dtype=torch.complex128)))
    return hessian(model)


@refused(r"inference_mode")
def a_model_made_in_inference_mode() -> object:
    with torch.inference_mode():
        model = net(3, 7, 4)
    return hessian(model)


@refused(r"weight_norm|second derivative")
def a_layer_with_weight_norm() -> object:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(7, 4))
    with torch.no_grad():
        layer.parametrizations.weight.original0.mul_(1.7)
    return hessian(nn.Sequential(nn.Linear(3, 7), nn.Tanh(), layer))


@refused(r"embedding_bag|EmbeddingBag")
def bags_of_embeddings() -> object:
    model = nn.Sequential(nn.EmbeddingBag(17, 6), nn.Tanh(), nn.Linear(6, 4))
    return hessian(model, (torch.randint(0, 17, (10, 3)), torch.randint(0, 4, (10,))))


@refused(r"cdist")
def distances_in_a_loss() -> object:
    loss = lambda z, t: torch.cdist(z[:, None], t[:, None])[:, 0, 0]
    return hessian(net(3, 7, 4), (torch.randn(10, 3), torch.randn(10, 4)), loss)


@refused(r"random|dropout|mode")
def dropout_that_is_left_on() -> object:
    model = nn.Sequential(nn.Linear(3, 7), nn.Dropout(0.5), nn.Linear(7, 4))
    return hessian(model, mode="keep")


@refused(r"no loss term|ignored")
def targets_that_are_all_ignored() -> object:
    X, y = samples()
    return hessian(net(3, 7, 4), (X, y.fill_(-100)))


@refused(r"NaN|nan|finite")
def weights_that_are_not_finite() -> object:
    model = net(3, 7, 4)
    model[0].weight.data[0, 0] = float("nan")
    return hessian(model)


@refused(r"batch")
def statistics_of_each_batch() -> object:
    model = nn.Sequential(nn.Linear(3, 7), nn.BatchNorm1d(7), nn.Linear(7, 4))
    return hessian(model, mode="keep", batch_size=5)


@refused(r"sample_dim|cut")
def time_first_in_batches() -> object:
    model = net(3, 7, 4)
    center = lambda z, t: F.cross_entropy(z - z.mean(0), t)
    return hessian(model, loss=center, batch_size=5)


@refused(r"detach|autograd")
def a_detached_value() -> object:
    model = net(3, 7, 4)
    return hessian(lambda p, x: z(model, p, x), params=dict(model.named_parameters()))


def z(model: nn.Module, params: dict[str, Tensor], x: Tensor) -> Tensor:
    out = torch.func.functional_call(model, params, (x,))
    return out * out.detach()


@refused(r"multi_margin|MultiMargin|derivative")
def a_margin_without_second_derivative() -> object:
    X, y = samples()
    risk = es.EmpiricalRisk(net(3, 7, 4), nn.MultiMarginLoss(p=2), (X, y))
    return product(es.GaussNewton(risk))


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_words(name: str) -> None:
    question, words = REFUSED[name]
    with pytest.raises(EigenscapeError) as caught:
        question()
    assert re.search(words, str(caught.value))
    assert len(str(caught.value)) > 40  # more than a name: what to do


# --- what was refused, or crashed, without need ---------------------------------------------------


def check(case: Case) -> None:
    """Compare Hv with double backward of the user's own line."""
    params = list(case.named().values())
    v = direction(sum(p.numel() for p in params)).double()
    truth = hessian_product(case, params, v)
    torch.testing.assert_close(es.Hessian(case.risk()) @ v, truth, rtol=1e-9, atol=1e-12)


def test_sparse_inputs() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Linear(3, 7), nn.Linear(7, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.tanh(torch.sparse.mm(x, self.into.weight.T)))

    model, (X, y) = Model(), samples()
    S = (X * (X > 0)).to_sparse()
    check(Case(model, es.CrossEntropy(), [(S, y)], value=lambda: F.cross_entropy(model(S), y)))


def test_layers_under_vmap() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net(3, 7, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.func.vmap(self.body)(x)

    model, (X, y) = Model(), samples()
    check(Case(model, es.CrossEntropy(), (X, y), value=lambda: F.cross_entropy(model(X), y)))


def test_class_weights_that_change_in_place() -> None:
    model, (X, y) = net(3, 7, 4), samples()
    weight = torch.tensor([0.3, 1.0, 2.5, 0.7])
    loss = nn.CrossEntropyLoss(weight=weight)
    risk = es.EmpiricalRisk(model, loss, (X, y))
    H = es.Hessian(risk)
    product(H)
    weight[0] = 5.0
    params = list(model.parameters())
    v = direction(H.shape[0]).double()
    case = Case(model, loss, (X, y), value=lambda: loss(model(X), y))
    torch.testing.assert_close(H @ v, hessian_product(case, params, v), rtol=1e-9, atol=1e-12)


def test_a_physics_network() -> None:
    """Derivatives by inputs inside forward, by `autograd.grad`."""

    class Heat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net(2, 7, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.body(x).sum(), x, create_graph=True)
            (bend,) = torch.autograd.grad(slope[:, 0].sum(), x, create_graph=True)
            return slope[:, 1:] - bend[:, :1]

    model, X, y = Heat(), torch.randn(10, 2), torch.zeros(10, 1)
    check(Case(model, es.SquaredError(), (X, y), value=lambda: 0.5 * model(X).square().mean()))
