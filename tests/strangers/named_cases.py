"""Functions that were once answered wrongly without a word, one for each way to be wrong."""

import functools
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import eigenscape as es
from tests.strangers.oracle import Case, case_list

CASES, case = case_list()


def net(*sizes: int, act: Callable[[], nn.Module] = nn.Tanh) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


def classified(model: Any, *inputs: Any, y: Tensor, data: Any = None, **options: Any) -> Case:
    """A model that gives logits, under cross-entropy."""
    return Case(
        model,
        es.CrossEntropy(),
        (*inputs, y) if data is None else data,
        output=lambda: model(*inputs),
        of_output=lambda z: F.cross_entropy(z, y),
        options=options,
    )


# --- 1. traces trusted by shape ---


class PaddedText(nn.Module):
    """Mean of embeddings of the tokens that are no padding."""

    def __init__(self, words: int = 23, width: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=0)
        self.body = net(width, 11, 5, act=nn.GELU)

    def forward(self, ids: Tensor) -> Tensor:
        return self.body(self.embed(ids).mean(1))


def padded_ids(samples: int = 14, length: int = 9, words: int = 23) -> Tensor:
    ids = torch.randint(1, words, (samples, length))
    ids[samples // 2 :, length // 2 :] = 0
    return ids


@case()
def padding_in_later_batches() -> Case:
    model, ids, y = PaddedText(), padded_ids(), torch.randint(0, 5, (14,))
    batches = [(ids[:7], y[:7]), (ids[7:], y[7:])]
    return classified(model, ids, y=y, data=batches)


@case()
def padding_in_later_samples() -> Case:
    return classified(PaddedText(), padded_ids(), y=torch.randint(0, 5, (14,)))


class Weighted(nn.Module):
    """A model with an argument that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.body = net(3, 7, 4)

    def forward(self, x: Tensor, how: Any) -> Tensor:
        return self.body(x) * how.factor


class Setting:
    """An object that prints alike whatever it holds."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __repr__(self) -> str:
        return "Setting"


@case()
def objects_that_print_alike() -> Case:
    model, X, y = Weighted(), torch.randn(12, 3), torch.randint(0, 4, (12,))
    one, two = Setting(1.0), Setting(3.0)
    return Case(
        model,
        es.CrossEntropy(),
        [(X[:6], one, y[:6]), (X[6:], two, y[6:])],
        output=lambda: torch.cat([model(X[:6], one), model(X[6:], two)]),
        of_output=lambda z: F.cross_entropy(z, y),
        batch_sizes=(),
    )


class Graph(nn.Module):
    """Averages over neighbours that a sparse matrix of SciPy names."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(3, 7), nn.Linear(7, 4)

    def forward(self, x: Tensor, adjacency: Any) -> Tensor:
        A = torch.as_tensor(adjacency.toarray())
        return self.out(A @ torch.tanh(self.into(x)))


@case()
def sparse_matrices_of_scipy() -> Case:
    from scipy.sparse import random as random_matrix

    model, X, y = Graph(), torch.randn(12, 3), torch.randint(0, 4, (12,))
    graphs = [random_matrix(6, 6, density=0.5, format="csr", random_state=s) for s in (0, 1)]
    return Case(
        model,
        es.CrossEntropy(),
        [(X[:6], graphs[0], y[:6]), (X[6:], graphs[1], y[6:])],
        output=lambda: torch.cat([model(X[:6], graphs[0]), model(X[6:], graphs[1])]),
        of_output=lambda z: F.cross_entropy(z, y),
        batch_sizes=(),
    )


# --- 2. the first dimension is no samples, or samples interact ---


class Recurrent(nn.Module):
    """Time first, as PyTorch's recurrent layers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTM(3, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cell(x)[0])


@case("batch_size=4")
def time_first() -> Case:
    model, X, y = Recurrent(), torch.randn(9, 6, 3), torch.randint(0, 4, (9, 6))
    return Case(
        model,
        lambda z, t: F.cross_entropy(z.flatten(0, 1), t.flatten()),
        (X, y),
        output=lambda: model(X),
        of_output=lambda z: F.cross_entropy(z.flatten(0, 1), y.flatten()),
    )


class Centred(nn.Module):
    """Subtracts the mean of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body = net(3, 7, 4)

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        return z - z.mean(0)


@case("batch_size=4")
def features_without_their_mean() -> Case:
    return classified(Centred(), torch.randn(10, 3), y=torch.randint(0, 4, (10,)))


class BatchNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(3, 7), nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        z = F.batch_norm(self.into(x), None, None, training=True)
        return self.out(torch.tanh(z))


@case("batch_size=4")
def functional_batch_norm() -> Case:
    return classified(BatchNormed(), torch.randn(10, 3), y=torch.randint(0, 4, (10,)))


def contrastive(z: Tensor, _: Any) -> Tensor:
    unit = F.normalize(z, dim=1)
    similar = unit @ unit.T / 0.5
    return F.cross_entropy(similar, torch.arange(len(z)).roll(1))


@case("batch_size=4")
def contrastive_loss() -> Case:
    model, X = net(3, 7, 4), torch.randn(10, 3)
    return Case(
        model,
        contrastive,
        X,
        output=lambda: model(X),
        of_output=lambda z: contrastive(z, None),
    )


def dice(z: Tensor, y: Tensor) -> Tensor:
    p = z.sigmoid()
    return 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)


@case("batch_size=4")
def dice_over_the_batch() -> Case:
    model, X, y = net(3, 7, 4), torch.randn(10, 3), torch.randint(0, 2, (10, 4)).double()
    return Case(model, dice, (X, y), output=lambda: model(X), of_output=lambda z: dice(z, y))


def triplets(z: Tensor, y: Tensor) -> Tensor:
    away = (z[:, None] - z[None]).square().sum(-1)
    same = y[:, None] == y[None]
    return torch.logsumexp(torch.where(same, away, -away).flatten(), 0)


@case("batch_size=4")
def triplets_in_the_batch() -> Case:
    model, X, y = net(3, 7, 4), torch.randn(10, 3), torch.randint(0, 3, (10,))
    return Case(
        model, triplets, (X, y), output=lambda: model(X), of_output=lambda z: triplets(z, y)
    )


@case("batch_size=4")
def softmax_over_the_samples() -> Case:
    model, X, y = net(3, 7, 4), torch.randn(10, 3), torch.rand(10, 4)
    loss = lambda z, t: -(z.log_softmax(0) * t).sum(1).mean()
    return Case(model, loss, (X, y), output=lambda: model(X), of_output=lambda z: loss(z, y))


@case("batch_size=50")
def many_samples_that_interact() -> Case:
    """So many that data which came at once would be cut without being asked."""
    case = classified(Centred(), torch.randn(9000, 3), y=torch.randint(0, 4, (9000,)))
    case.batch_sizes = (50,)
    return case


# --- 4. a loss that holds parameters ---


@case("linearised")
def weight_decay_in_the_loss() -> Case:
    model, X, y = net(3, 7, 4), torch.randn(10, 3), torch.randint(0, 4, (10,))

    def loss(z: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(z, t) + 0.5 * sum(p.square().sum() for p in model.parameters())

    return Case(model, loss, (X, y), value=lambda: loss(model(X), y), layers=())


class Penalised(nn.Module):
    """A loss module that owns the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        decay = sum(p.abs().pow(1.7).sum() for p in self.model.parameters())
        return F.cross_entropy(z, y) + 0.1 * decay


@case("linearised")
def loss_module_that_owns_the_model() -> Case:
    model, X, y = net(3, 7, 4), torch.randn(10, 3), torch.randint(0, 4, (10,))
    loss = Penalised(model)
    return Case(model, loss, (X, y), value=lambda: loss(model(X), y))


def tied_penalty(z: Tensor, y: Tensor, *, weight: Tensor) -> Tensor:
    return F.cross_entropy(z, y) + (weight @ weight.T).square().sum()


@case("linearised")
def weight_in_a_partial() -> Case:
    model, X, y = net(3, 7, 4), torch.randn(10, 3), torch.randint(0, 4, (10,))
    loss = functools.partial(tied_penalty, weight=model[0].weight)
    return Case(model, loss, (X, y), value=lambda: loss(model(X), y))


class Likelihood(nn.Module):
    """What a model returns when it gives a distribution: an object that evaluates it later."""

    def __init__(self) -> None:
        super().__init__()
        self.body = net(3, 7, 1)

    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(log_prob=lambda y: -(self.body(x) - y).square().mean())


@case("linearised")
def output_that_evaluates_the_model_later() -> Case:
    model, X, y = Likelihood(), torch.randn(10, 3), torch.randn(10, 1)
    loss = lambda out, t: -out.log_prob(t)
    return Case(model, loss, (X, y), value=lambda: loss(model(X), y))


# --- 5. a first batch that contributes nothing ---


@case("all")
def weight_norm_behind_ignored_targets() -> Case:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(7, 4))
    with torch.no_grad():
        layer.parametrizations.weight.original0.mul_(1.7)
    model = nn.Sequential(nn.Linear(3, 7), nn.Tanh(), layer)
    X, y = torch.randn(12, 3), torch.randint(0, 4, (12,))
    y[:6] = -100
    batches = [(X[:6], y[:6]), (X[6:], y[6:])]
    return Case(
        model,
        es.CrossEntropy(),
        batches,
        value=lambda: F.cross_entropy(model(X), y),
        layers=(),
    )


class Reuses(nn.Module):
    """Uses a layer's weight a second time, not through the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        return self.b(torch.tanh(F.linear(h, self.a.weight)))


@case()
def weight_used_twice_behind_ignored_targets() -> Case:
    model, X, y = Reuses(), torch.randn(12, 5), torch.randint(0, 4, (12,))
    y[:6] = -100
    case = classified(model, X, y=y, data=[(X[:6], y[:6]), (X[6:], y[6:])])
    case.layers = ("a", "b")
    return case


# --- 6. second derivatives that PyTorch has wrong ---


class SavesSigmoid(torch.autograd.Function):
    """A Swish whose backward pass uses a sigmoid that it saved without its graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        s = x.sigmoid()
        ctx.save_for_backward(x, s)
        return x * s

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        x, s = ctx.saved_tensors
        return g * (s + x * s * (1 - s))


class Activation(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@case("Hessian", "linearised", "batch", "params=", "H[", "LayerHessian(0)")
def function_that_saves_its_sigmoid() -> Case:
    model = nn.Sequential(nn.Linear(3, 7), Activation(SavesSigmoid.apply), nn.Linear(7, 4))
    return classified(model, torch.randn(10, 3), y=torch.randint(0, 4, (10,)))


class DetachedBackward(torch.autograd.Function):
    """A softplus whose backward pass knows only numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.slope = x.sigmoid().detach()
        return F.softplus(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.slope


@case("Hessian", "linearised", "batch", "params=", "H[", "LayerHessian(0)")
def function_with_a_detached_backward() -> Case:
    model = nn.Sequential(nn.Linear(3, 7), Activation(DetachedBackward.apply), nn.Linear(7, 4))
    return classified(model, torch.randn(10, 3), y=torch.randint(0, 4, (10,)))


class SimSiam(nn.Module):
    """Stops gradients on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = net(3, 7, 4), net(4, 6, 4)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        p, z = self.head(self.body(a)), self.body(b).detach()
        return 1 - F.cosine_similarity(p, z, dim=1)


@case("all")
def stopped_gradients() -> Case:
    model, A, B = SimSiam(), torch.randn(10, 3), torch.randn(10, 3)
    loss = lambda z, _: z
    return Case(model, loss, [((A, B), None)], value=lambda: model(A, B).mean(), batch_sizes=())


@case()
def stopped_gradients_on_purpose() -> Case:
    case = stopped_gradients()
    case.options = {"detached": "constant"}
    return case


# --- 7. zeros that are none ---


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.mid, self.out = nn.Linear(3, 7), nn.Linear(7, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.into(x))
        h = checkpoint(lambda a: torch.tanh(self.mid(a)), h, use_reentrant=True)
        return self.out(h)


@case("linearised")
def reentrant_checkpoint() -> Case:
    case = classified(Checkpointed(), torch.randn(10, 3), y=torch.randint(0, 4, (10,)))
    model = case.model
    plain = lambda: model.out(torch.tanh(model.mid(torch.tanh(model.into(case.data[0])))))
    case.output = plain
    case.layers = ("into", "mid", "out")
    return case


class Blind(nn.Module):
    """A part of the network that autograd does not see."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.into, self.mid, self.out = nn.Linear(3, 7), nn.Linear(7, 6), nn.Linear(6, 4)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.into(x))
        if self.how == "no_grad":
            with torch.no_grad():
                h = self.mid(h)
        elif self.how == "numpy":
            W = self.mid.weight.detach().numpy()
            h = h @ torch.as_tensor(W).T
        else:
            h = self.mid(h.data) if self.how == "data" else self.mid(h.detach())
        return self.out(torch.tanh(h))


@case("all")
def no_grad_inside() -> Case:
    return classified(Blind("no_grad"), torch.randn(10, 3), y=torch.randint(0, 4, (10,)))


@case("all")
def numpy_inside() -> Case:
    return classified(Blind("numpy"), torch.randn(10, 3), y=torch.randint(0, 4, (10,)))


@case("all")
def data_inside() -> Case:
    return classified(Blind("data"), torch.randn(10, 3), y=torch.randint(0, 4, (10,)))


# --- 11. the last operation without a forward derivative ---


@case()
def logcumsumexp_at_last() -> Case:
    model = nn.Sequential(net(3, 7, 4), Activation(functools.partial(torch.logcumsumexp, dim=1)))
    return classified(model, torch.randn(10, 3), y=torch.randint(0, 4, (10,)))


# --- 17. averages over something else than samples ---


@case("batch_size=4")
def mean_over_tokens_that_count() -> Case:
    model, X, y = net(3, 7, 4), torch.randn(10, 3), torch.randint(0, 4, (10,))
    y[:3] = -100
    loss = lambda z, t: F.cross_entropy(z, t)
    return Case(model, loss, (X, y), output=lambda: model(X), of_output=lambda z: loss(z, y))


@case("batch_size=4")
def mean_with_class_weights() -> Case:
    model, X, y = net(3, 7, 4), torch.randn(10, 3), torch.randint(0, 4, (10,))
    w = torch.tensor([0.3, 1.0, 2.5, 0.7])
    loss = lambda z, t: F.cross_entropy(z, t, weight=w)
    return Case(model, loss, (X, y), output=lambda: model(X), of_output=lambda z: loss(z, y))
