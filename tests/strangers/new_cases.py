"""Functions that nobody has reported: what real code does at the borders of a model."""

import copy
import functools
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

import eigenscape as es
from tests.strangers.named_cases import Activation, classified, net
from tests.strangers.oracle import Case, case_list

CASES, case = case_list()


def labels(n: int = 10, c: int = 4) -> Tensor:
    return torch.randint(0, c, (n,))


def plain(model: nn.Module, **options: Any) -> Case:
    return classified(model, torch.randn(10, 3), y=labels(), **options)


# --- what a model returns ---


@dataclass
class Out:
    logits: Tensor
    hidden: Tensor


class ReturnsDataclass(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 7), nn.Linear(7, 4)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        return Out(self.b(h), h)


@case()
def dataclass_output():
    m, X, y = ReturnsDataclass(), torch.randn(10, 3), labels()
    return Case(
        m,
        es.CrossEntropy(),
        (X, y),
        output=lambda: m(X).logits,
        of_output=lambda z: F.cross_entropy(z, y),
    )


@case("linearised")
def dataclass_output_with_a_loss_of_its_own():
    """The loss wants the object, not the logits in it."""
    m, X, y = ReturnsDataclass(), torch.randn(10, 3), labels()
    loss = lambda o, t: F.cross_entropy(o.logits, t) + o.hidden.square().mean()
    return Case(m, loss, (X, y), value=lambda: loss(m(X), y))


class ReturnsDict(ReturnsDataclass):
    def forward(self, x):
        out = super().forward(x)
        return {"logits": out.logits, "hidden": out.hidden}


@case("linearised")
def dict_output_with_a_loss_of_its_own():
    m, X, y = ReturnsDict(), torch.randn(10, 3), labels()
    loss = lambda o, t: F.cross_entropy(o["logits"], t) + o["hidden"].square().mean()
    return Case(m, loss, (X, y), value=lambda: loss(m(X), y))


class ReturnsTuple(ReturnsDataclass):
    def forward(self, x):
        out = super().forward(x)
        return out.logits, out.hidden.square().mean()


@case("linearised", "batch_size=4")
def tuple_output_with_an_auxiliary_loss():
    m, X, y = ReturnsTuple(), torch.randn(10, 3), labels()
    loss = lambda o, t: F.cross_entropy(o[0], t) + 0.3 * o[1] ** 2
    return Case(m, loss, (X, y), value=lambda: loss(m(X), y))


class ReturnsDistribution(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = net(3, 7, 4)

    def forward(self, x):
        mean, scale = self.body(x).chunk(2, dim=1)
        return torch.distributions.Normal(mean, F.softplus(scale))


@case("linearised")
def distribution_output():
    m, X, y = ReturnsDistribution(), torch.randn(10, 3), torch.randn(10, 2)
    loss = lambda d, t: -d.log_prob(t).sum(1).mean()
    return Case(m, loss, (X, y), value=lambda: loss(m(X), y))


class Attends(nn.Module):
    """Keeps what the loss wants as an attribute."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 7), nn.Linear(7, 4)
        self.penalty = None

    def forward(self, x):
        h = torch.tanh(self.a(x))
        self.penalty = h.square().mean(1)
        return self.b(h)


@case("linearised")
def loss_that_reads_an_attribute_of_the_model():
    m, X, y = Attends(), torch.randn(10, 3), labels()
    loss = lambda z, t: F.cross_entropy(z, t) + m.penalty.mean()
    return Case(m, loss, (X, y), value=lambda: loss(m(X), y))


@case("linearised")
def loss_that_reads_what_a_hook_kept():
    m, X, y = net(3, 7, 6, 4), torch.randn(10, 3), labels()
    kept: dict[str, Tensor] = {}
    m[2].register_forward_hook(lambda mod, args, out: kept.update(h=out))
    loss = lambda z, t: F.cross_entropy(z, t) + kept["h"].square().sum(1).mean()
    return Case(m, loss, (X, y), value=lambda: loss(m(X), y))


@case()
def hook_that_changes_the_output():
    m = net(3, 7, 6, 4)
    m[1].register_forward_hook(lambda mod, args, out: out * 1.7 + out.pow(2))
    m[2].register_forward_pre_hook(lambda mod, args: (args[0] - 0.3,))
    return plain(m)


@case("all")
def tensor_hook_that_scales_gradients():
    """Gradient reversal by a hook: autograd's derivative is not the function's."""

    class Reversed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 7), nn.Linear(7, 4)

        def forward(self, x):
            h = torch.tanh(self.a(x))
            if h.requires_grad:
                h.register_hook(lambda g: -0.5 * g)
            return self.b(h)

    return plain(Reversed())


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g


@case("all")
def gradient_reversal():
    return plain(
        nn.Sequential(nn.Linear(3, 7), nn.Tanh(), Activation(Reversal.apply), nn.Linear(7, 4))
    )


class Ste(nn.Module):
    def __init__(self, bits=3):
        super().__init__()
        self.a, self.b, self.bits = nn.Linear(3, 7), nn.Linear(7, 4), bits

    def forward(self, x):
        W = self.a.weight
        scale = 2**self.bits
        q = W + ((W * scale).round() / scale - W).detach()
        return self.b(torch.tanh(F.linear(x, q, self.a.bias)))


@case("all")
def straight_through_quantisation():
    return plain(Ste())


@case()
def straight_through_quantisation_on_purpose():
    return plain(Ste(), detached="constant")


class HardGumbel(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 5), nn.Linear(5, 4)

    def forward(self, x):
        g = torch.Generator().manual_seed(3)
        noise = -torch.log(-torch.log(torch.rand(x.shape[0], 5, generator=g)))
        soft = (self.a(x) + noise).softmax(1)
        hard = F.one_hot(soft.argmax(1), 5).to(soft)
        return self.b(hard - soft.detach() + soft)


@case("all")
def gumbel_straight_through():
    c = plain(HardGumbel())
    c.batch_sizes = ()
    return c


class Ema(nn.Module):
    """Updates a running mean in eval, and uses it."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 7), nn.Linear(7, 4)
        self.register_buffer("mean", torch.zeros(7))

    def forward(self, x):
        h = self.a(x)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)
        return self.b(torch.tanh(h - self.mean))


def unmoved(model: nn.Module, name: str) -> Callable[[Tensor], Tensor]:
    """Call a model that changes itself, and undo the change: what it is a function of."""

    def call(x):
        before = copy.deepcopy(getattr(model, name))
        z = model(x)
        setattr(model, name, before)
        return z

    return call


@case(
    "Hessian",
    "linearised",
    "batch_size=4",
    "GaussNewton",
    "Fisher",
    "params=",
    "H[",
    "LayerHessian(a)",
)
def running_mean_updated_in_eval():
    c = plain(Ema())
    c.output = lambda: unmoved(c.model, "mean")(c.data[0])
    return c


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.calls = net(3, 7, 4), 0

    def forward(self, x):
        self.calls += 1
        return self.body(x) * (1 + 0.1 * self.calls)


@case()
def a_counter_that_changes_the_function():
    """Every evaluation starts from the model as it was given: the same number each time."""
    c = plain(Counts())
    c.output = lambda: unmoved(c.model, "calls")(c.data[0])
    return c


CALLS = {"n": 0}


def counted_global(z, t):
    CALLS["n"] += 1
    return F.cross_entropy(z * (1 + 0.1 * CALLS["n"]), t)


@case("all", "gradient")
def a_global_counter_in_the_loss():
    m, X, y = net(3, 7, 4), torch.randn(10, 3), labels()
    CALLS["n"] = 0
    return Case(m, counted_global, (X, y), value=lambda: F.cross_entropy(m(X), y))


class Lazy(nn.Module):
    """Makes a table when it first runs."""

    def __init__(self):
        super().__init__()
        self.body, self.table = net(3, 7, 4), None

    def forward(self, x):
        if self.table is None or self.table.shape[0] != x.shape[0]:
            self.table = torch.linspace(0.5, 1.5, x.shape[0])[:, None]
        return self.body(x * self.table)


@case("batch_size=4")
def table_made_for_each_batch_size():
    return plain(Lazy())


@functools.lru_cache(maxsize=4)
def positions(n: int, width: int) -> Tensor:
    return torch.sin(torch.arange(n)[:, None] * torch.arange(1.0, width + 1))


class Positional(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(13, 6), nn.Linear(6, 4)

    def forward(self, ids):
        h = self.embed(ids) + positions(ids.shape[1], 6)
        mask = torch.ones(ids.shape[1], ids.shape[1]).tril().log()
        a = (h @ h.mT + mask).softmax(-1) @ h
        return self.out(a.mean(1))


@case()
def cached_positions():
    positions.cache_clear()
    m, X, y = Positional(), torch.randint(0, 13, (10, 5)), labels()
    return classified(m, X, y=y)


@case()
def cached_positions_made_in_inference_mode():
    positions.cache_clear()
    with torch.inference_mode():
        positions(5, 6)
    m, X, y = Positional(), torch.randint(0, 13, (10, 5)), labels()
    return Case(
        m, es.CrossEntropy(), (X, y), output=lambda: m(X), of_output=lambda z: F.cross_entropy(z, y)
    )


class CachedWeight(nn.Module):
    """Caches a quantity made of parameters, until it is told that they moved."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.cache = nn.Linear(3, 7), nn.Linear(7, 4), None

    def forward(self, x):
        if self.cache is None:
            self.cache = self.a.weight / self.a.weight.norm()
        return self.b(torch.tanh(x @ self.cache.T))


@case("all", "gradient")
def cache_made_of_parameters():
    m = CachedWeight()
    m(torch.zeros(1, 3))
    c = plain(m)

    def fresh():
        m.cache = None
        return m(c.data[0])

    c.output = fresh
    return c


# --- parametrisations ---


@case()
def orthogonal_parametrisation():
    return plain(
        nn.Sequential(nn.Linear(3, 7), nn.Tanh(), parametrizations.orthogonal(nn.Linear(7, 4)))
    )


@case("Hessian", "linearised", "batch_size=4", "params=", "LayerHessian(2)")
def old_weight_norm():
    layer = nn.utils.weight_norm(nn.Linear(7, 4))
    return plain(nn.Sequential(nn.Linear(3, 7), nn.Tanh(), layer))


@case()
def spectral_norm_in_eval():
    m = nn.Sequential(nn.Linear(3, 7), nn.Tanh(), parametrizations.spectral_norm(nn.Linear(7, 4)))
    m(torch.randn(5, 3))
    return plain(m.eval())


class Symmetric(nn.Module):
    def forward(self, W):
        return W.triu() + W.triu(1).mT


@case()
def own_parametrisation():
    m = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 4))
    parametrize.register_parametrization(m[2], "weight", Symmetric())
    return plain(m)


@case()
def pruned_by_a_mask():
    from torch.nn.utils import prune

    m = net(3, 7, 4)
    prune.random_unstructured(m[0], "weight", amount=0.4)
    return plain(m)


# --- inside forward ---


class Inside(nn.Module):
    def __init__(self, run):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 7), nn.Linear(7, 7), nn.Linear(7, 4)
        self.run = run

    def forward(self, x):
        return self.run(self, x)


@case()
def in_place_operations():
    def run(m, x):
        h = m.a(x)
        h.mul_(1.3).add_(0.2).tanh_()
        h = m.b(h).clone()
        h[:, :3] *= 2
        return m.c(h.sigmoid_())

    return plain(Inside(run))


@case("linearised")
def non_reentrant_checkpoint():
    def run(m, x):
        h = checkpoint(lambda t: torch.tanh(m.a(t)), x, use_reentrant=False)
        return m.c(checkpoint(lambda t: torch.tanh(m.b(t)), h, use_reentrant=False))

    c = plain(Inside(run))
    c.layers = ("a", "b", "c")
    return c


@case("linearised")
def data_dependent_branch():
    def run(m, x):
        h = torch.tanh(m.a(x))
        if x[0, 0] > 0:
            h = m.b(h)
        return m.c(h * (2.0 if float(x.mean()) > 0 else 1.0))

    c = plain(Inside(run))
    c.batch_sizes = ()
    return c


@case()
def sort_and_top_k():
    def run(m, x):
        h = torch.tanh(m.a(x)).sort(1).values
        top, where = m.b(h).topk(3, dim=1)
        return m.c(torch.zeros_like(h).scatter(1, where, top.softmax(1)))

    return plain(Inside(run))


class TopOne(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(3, 5), nn.ModuleList(net(3, 6, 4) for _ in range(5))

    def forward(self, x):
        p = self.router(x).softmax(1)
        gate, who = p.topk(2, dim=1)
        z = x.new_zeros(len(x), 4)
        for number, expert in enumerate(self.experts):
            rows, slot = torch.where(who == number)
            if len(rows):
                z = z.index_add(0, rows, gate[rows, slot, None] * expert(x[rows]))
        return z


@case("linearised")
def mixture_of_experts():
    return plain(TopOne())


@case("all")
def detached_attention():
    def run(m, x):
        h = torch.tanh(m.a(x))
        attention = (h @ h.mT / 3).softmax(-1).detach()
        return m.c(attention @ m.b(h))

    return plain(Inside(run))


@case()
def constant_detached():
    """A stop-gradient on what depends on inputs alone: nothing is lost."""

    def run(m, x):
        s = (x.detach().square().mean(1, keepdim=True) + 1).sqrt()
        return m.c(torch.tanh(m.a(x / s)))

    return plain(Inside(run))


@case("all")
def detached_normaliser():
    def run(m, x):
        h = m.a(x)
        return m.c(torch.tanh(h / h.std(1, keepdim=True).detach()))

    return plain(Inside(run))


@case()
def detached_maximum():
    """A stop-gradient that changes nothing: the maximum cancels."""

    def run(m, x):
        h = m.b(torch.tanh(m.a(x)))
        e = (h - h.amax(1, keepdim=True).detach()).exp()
        return m.c(e / e.sum(1, keepdim=True))

    return plain(Inside(run))


@case("all")
def item_inside():
    def run(m, x):
        h = torch.tanh(m.a(x))
        return m.c(m.b(h) / (1 + m.a.weight.norm().item()))

    return plain(Inside(run))


@case("all")
def scipy_inside():
    def run(m, x):
        from scipy.special import erf

        h = m.a(x)
        return m.c(m.b(h) + torch.as_tensor(erf(h.detach().numpy())))

    return plain(Inside(run))


@case()
def bfloat16_island():
    def run(m, x):
        h = F.linear(x.bfloat16(), m.a.weight.bfloat16()).to(x.dtype)
        return m.c(torch.tanh(h))

    c = plain(Inside(run))
    c.layers, c.rtol = (), 4 * torch.finfo(torch.bfloat16).eps  # some roundings
    return c


@case()
def float32_island():
    def run(m, x):
        h = torch.tanh(m.a(x))
        return m.c(h / (h.float().square().mean(1, keepdim=True) + 1).sqrt().to(h.dtype))

    c = plain(Inside(run))
    c.rtol = 4 * torch.finfo(torch.float32).eps
    return c


@case("linearised")
def packed_sequences():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = nn.GRU(3, 6, batch_first=True), nn.Linear(6, 4)

        def forward(self, x, lengths):
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return self.out(self.rnn(packed)[1][-1])

    m, X, n, y = Packed(), torch.randn(10, 6, 3), torch.randint(1, 7, (10,)), labels()
    return classified(m, X, n, y=y)


@case("linearised")
def unpacked_sequences():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.out = nn.LSTM(3, 6, batch_first=True), nn.Linear(6, 4)

        def forward(self, x, lengths):
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            h, _ = pad_packed_sequence(
                self.rnn(packed)[0], batch_first=True, total_length=x.shape[1]
            )
            return self.out(h)

    m, X, n = Packed(), torch.randn(10, 6, 3), torch.randint(1, 7, (10,))
    y = torch.randint(0, 4, (10, 6))
    y[torch.arange(6)[None] >= n[:, None]] = -100
    return Case(
        m,
        es.CrossEntropy(),
        (X, n, y),
        output=lambda: m(X, n),
        of_output=lambda z: F.cross_entropy(z.flatten(0, 1), y.flatten()),
    )


@case()
def attention_with_key_padding():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(6, 2, 11, dropout=0.0, batch_first=True)
            self.out = nn.Linear(6, 4)

        def forward(self, x, pad):
            return self.out(self.layer(x, src_key_padding_mask=pad)[:, 0])

    pad = torch.zeros(10, 5, dtype=torch.bool)
    pad[6:, 3:] = True
    m, X, y = Masked().eval(), torch.randn(10, 5, 6), labels()
    return classified(m, X, pad, y=y)


@case()
def dicts_of_dicts():
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = net(5, 7, 4)

        def forward(self, views, extra):
            return self.body(torch.cat([views["a"]["x"], views["b"]], 1)) * extra["w"][0]

    m, A, B, y = Nested(), torch.randn(10, 3), torch.randn(10, 2), labels()
    w = torch.rand(10, 1) + 0.5
    batch = lambda s: {
        "views": {"a": {"x": A[s]}, "b": B[s]},
        "extra": {"w": (w[s], "name")},
        "labels": y[s],
    }
    both = [batch(slice(0, 7)), batch(slice(7, 10))]
    whole = batch(slice(None))
    return Case(
        m,
        es.CrossEntropy(),
        both,
        output=lambda: m(whole["views"], whole["extra"]),
        of_output=lambda z: F.cross_entropy(z, y),
        batch_sizes=(3,),
    )


Point = namedtuple("Point", "x w")


@case()
def named_tuples_and_sample_weights():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = net(3, 7, 4)

        def forward(self, p):
            return self.body(p.x)

    m, X, y, w = Model(), torch.randn(10, 3), labels(), torch.rand(10)
    data = [(Point(X[:6], w[:6]), (y[:6], w[:6])), (Point(X[6:], w[6:]), (y[6:], w[6:]))]
    loss = lambda z, t: ((F.cross_entropy(z, t[0], reduction="none") * t[1]).sum(), t[1].sum())
    return Case(
        m,
        loss,
        data,
        output=lambda: m(Point(X, w)),
        of_output=lambda z: (F.cross_entropy(z, y, reduction="none") * w).sum() / w.sum(),
        batch_sizes=(),
    )
