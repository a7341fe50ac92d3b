"""More functions that nobody has reported: parameters, data and losses of unusual kinds."""

import copy
import functools

import torch
import torch.nn.functional as F
from torch import nn

import eigenscape as es
from tests.strangers.named_cases import Activation, classified, net
from tests.strangers.new_cases import Inside, labels, plain
from tests.strangers.oracle import Case, case_list

CASES, case = case_list()


# --- parameters ---


class Shared(nn.Module):
    """One module under three names."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.all = nn.ModuleList([self.a])
        self.named = nn.ModuleDict({"first": self.a, "last": nn.Linear(3, 4)})

    def forward(self, x):
        return self.named["last"](torch.tanh(self.all[0](torch.tanh(self.a(x)))))


@case()
def a_module_under_three_names():
    return plain(Shared())


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.ws = nn.ParameterList([torch.randn(3, 5), torch.randn(5, 4)])
        self.bs = nn.ParameterDict({"one": torch.randn(5), "two": torch.randn(4)})

    def forward(self, x):
        return torch.tanh(x @ self.ws[0] + self.bs["one"]) @ self.ws[1] + self.bs["two"]


@case()
def lists_and_dicts_of_parameters():
    return plain(Lists())


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mid, self.out = (
            nn.Embedding(11, 6),
            nn.Linear(6, 6),
            nn.Linear(6, 11, bias=False),
        )
        self.out.weight = self.embed.weight

    def forward(self, ids):
        return self.out(torch.tanh(self.mid(self.embed(ids).mean(1))))


@case()
def tied_weights():
    return classified(Tied(), torch.randint(0, 11, (10, 5)), y=labels(10, 11))


@case()
def frozen_parts():
    m = net(3, 7, 6, 4)
    m[0].requires_grad_(False)
    m[2].bias.requires_grad_(False)
    return plain(m)


@case("all")
def weights_that_share_memory():
    """Two parameters that are views of one tensor: a step moves both."""
    m = net(3, 5, 5, 4)
    whole = torch.randn(5, 5)
    m[2].weight = nn.Parameter(whole)
    m[4].weight = nn.Parameter(whole[:4])
    return plain(m)


@case()
def parameters_as_views_of_one_buffer():
    """As DDP, FSDP and flat optimisers make them: apart, but in one storage."""
    m = net(3, 5, 4)
    flat = torch.cat([p.detach().flatten() for p in m.parameters()])
    start = 0
    for p in m.parameters():
        p.data = flat[start : start + p.numel()].view_as(p)
        start += p.numel()
    return plain(m)


@case()
def an_expanded_parameter():
    m = net(3, 5, 4)
    m[0].bias = nn.Parameter(torch.randn(1).expand(5))
    return plain(m)


@case()
def a_parameter_that_is_not_contiguous():
    m = net(3, 5, 4)
    m[0].weight = nn.Parameter(torch.randn(3, 5).mT)
    return plain(m)


class Empty(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.none, self.scale = (
            net(3, 5, 4),
            nn.Parameter(torch.zeros(0, 4)),
            nn.Parameter(torch.tensor(1.3)),
        )

    def forward(self, x):
        return self.body(x) * self.scale + self.none.sum(0)


@case()
def empty_and_scalar_parameters():
    return plain(Empty())


class ComplexWeights(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.out = nn.Parameter(torch.randn(3, 5, dtype=torch.complex128)), nn.Linear(5, 4)

    def forward(self, x):
        return self.out((x.to(self.w.dtype) @ self.w).abs())


@case()
def complex_parameters_left_out():
    c = plain(ComplexWeights(), params=["out.weight", "out.bias"])
    c.model.w.requires_grad_(False)
    return c


@case()
def complex_in_between():
    def run(m, x):
        h = torch.fft.rfft(torch.tanh(m.a(x)))
        return m.c(torch.cat([h.real, h.imag], 1)[:, :7])

    return plain(Inside(run))


@case()
def a_copied_model():
    m = net(3, 7, 4)
    m.train()
    return plain(copy.deepcopy(m).eval())


@case()
def data_parallel_wrapper():
    return plain(nn.DataParallel(net(3, 7, 4)))


@case()
def a_parameter_that_is_not_used():
    m = Inside(lambda m, x: m.c(torch.tanh(m.a(x))))
    return plain(m)


@case()
def a_tensor_subclass_as_input():
    class Named(torch.Tensor):
        pass

    m, X, y = net(3, 7, 4), torch.randn(10, 3), labels()
    return Case(
        m,
        es.CrossEntropy(),
        (X.as_subclass(Named), y),
        output=lambda: m(X),
        of_output=lambda z: F.cross_entropy(z, y),
    )


# --- data ---


@case()
def batches_without_a_target_that_counts():
    m, X, y = net(3, 7, 4), torch.randn(12, 3), labels(12)
    y[:4] = y[8:] = -100
    return classified(m, X, y=y, data=[(X[:4], y[:4]), (X[4:8], y[4:8]), (X[8:], y[8:])])


@case()
def ragged_last_batch_of_one():
    m, X, y = net(3, 7, 4), torch.randn(11, 3), labels(11)
    return classified(m, X, y=y, data=[(X[:5], y[:5]), (X[5:10], y[5:10]), (X[10:], y[10:])])


@case()
def batches_of_different_lengths():
    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.e, self.out = nn.Embedding(11, 5), nn.Linear(5, 4)

        def forward(self, ids, mask):
            m = mask[..., None]
            return self.out(torch.tanh((self.e(ids) * m).sum(1) / m.sum(1)))

    m, y = Mean(), labels(12)
    parts = [(torch.randint(0, 11, (4, n)), torch.ones(4, n)) for n in (3, 5, 7)]
    for _, mask in parts:
        mask[2:, 2:] = 0
    data = [(*p, y[4 * i : 4 * i + 4]) for i, p in enumerate(parts)]
    return Case(
        m,
        es.CrossEntropy(),
        data,
        output=lambda: torch.cat([m(*p) for p in parts]),
        of_output=lambda z: F.cross_entropy(z, y),
        batch_sizes=(3,),
    )


@case("linearised")
def a_mask_that_only_later_batches_need():
    """The first batch has nothing to mask, and the model asks whether there is."""

    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 7), nn.Linear(7, 4)

        def forward(self, x, mask):
            h = torch.tanh(self.a(x))
            if not bool(mask.all()):
                h = h * mask[:, None]
            return self.b(h)

    m, X, y, mask = Asks(), torch.randn(12, 3), labels(12), torch.ones(12)
    mask[7:] = 0
    return classified(m, X, mask, y=y, data=[(X[:6], mask[:6], y[:6]), (X[6:], mask[6:], y[6:])])


@case()
def a_length_given_as_a_number():
    class Cuts(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 7), nn.Linear(7, 4)

        def forward(self, x, length, kind):
            h = torch.tanh(self.a(x[:, :length])).mean(1)
            return self.b(h) * (2.0 if kind == "strong" else 1.0)

    m, X, y = Cuts(), torch.randn(12, 5, 3), labels(12)
    args = [(2, "weak"), (4, "weak"), (4, "strong")]
    data = [(X[4 * i : 4 * i + 4], *a, y[4 * i : 4 * i + 4]) for i, a in enumerate(args)]
    return Case(
        m,
        es.CrossEntropy(),
        data,
        output=lambda: torch.cat([m(b[0], b[1], b[2]) for b in data]),
        of_output=lambda z: F.cross_entropy(z, y),
        batch_sizes=(),
    )


@case()
def a_function_among_the_inputs():
    class Uses(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 7), nn.Linear(7, 4)

        def forward(self, x, act):
            return self.b(act(self.a(x)))

    m, X, y = Uses(), torch.randn(12, 3), labels(12)
    acts = (torch.tanh, functools.partial(F.elu, alpha=0.3))
    data = [(X[:6], acts[0], y[:6]), (X[6:], acts[1], y[6:])]
    return Case(
        m,
        es.CrossEntropy(),
        data,
        output=lambda: torch.cat([m(b[0], b[1]) for b in data]),
        of_output=lambda z: F.cross_entropy(z, y),
        batch_sizes=(),
    )


@case("linearised")
def sparse_adjacency_in_a_buffer():
    class Gcn(nn.Module):
        def __init__(self, A):
            super().__init__()
            self.register_buffer("A", A)
            self.a, self.b = nn.Linear(3, 7), nn.Linear(7, 4)

        def forward(self, x):
            return self.A @ self.b(torch.tanh(self.A @ self.a(x)))

    A = (torch.rand(10, 10) < 0.3).double().to_sparse()
    c = plain(Gcn(A))
    c.batch_sizes = ()
    return c


@case("all")
def embedding_bag_with_offsets():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag, self.out = nn.EmbeddingBag(17, 6, mode="mean"), nn.Linear(6, 4)

        def forward(self, ids, offsets):
            return self.out(torch.tanh(self.bag(ids, offsets)))

    m, ids, offsets, y = (
        Bag(),
        torch.randint(0, 17, (30,)),
        torch.tensor([0, 3, 9, 14, 22]),
        labels(5),
    )
    return Case(
        m,
        es.CrossEntropy(),
        [((ids, offsets), y)],
        output=lambda: m(ids, offsets),
        of_output=lambda z: F.cross_entropy(z, y),
        batch_sizes=(),
    )


@case("linearised")
def nested_tensor_inputs():
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 7), nn.Linear(7, 4)

        def forward(self, x):
            return self.b(torch.tanh(torch.stack([self.a(part).mean(0) for part in x.unbind()])))

    parts = [torch.randn(n, 3) for n in (2, 4, 3, 5)]
    m, y = Nested(), labels(4)
    X = torch.nested.nested_tensor(parts, layout=torch.jagged)
    return Case(
        m,
        es.CrossEntropy(),
        [(X, y)],
        output=lambda: m(X),
        of_output=lambda z: F.cross_entropy(z, y),
        batch_sizes=(),
    )


# --- losses ---


@case("batch_size=4")
def canonical_correlation():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = net(3, 6, 2), net(4, 5, 2)

        def forward(self, x, y):
            return torch.cat([self.a(x), self.b(y)], 1)

    def loss(z, _):
        a, b = z.chunk(2, 1)
        a, b = a - a.mean(0), b - b.mean(0)
        eye = 0.1 * torch.eye(2)
        A = torch.linalg.cholesky(a.mT @ a / len(a) + eye)
        B = torch.linalg.cholesky(b.mT @ b / len(b) + eye)
        C = torch.linalg.solve_triangular(A, a.mT @ b / len(a), upper=False)
        return -torch.linalg.solve_triangular(B, C.mT, upper=False).square().sum()

    m, X, Y = Two(), torch.randn(12, 3), torch.randn(12, 4)
    return Case(
        m, loss, [((X, Y), None)], output=lambda: m(X, Y), of_output=lambda z: loss(z, None)
    )


@case()
def label_smoothing_and_class_weights():
    m, X, y = net(3, 7, 4), torch.randn(10, 3), labels()
    y[2] = -100
    w = torch.tensor([0.3, 1.0, 2.5, 0.7])
    of = nn.CrossEntropyLoss(weight=w, label_smoothing=0.2)
    return Case(m, of, (X, y), output=lambda: m(X), of_output=lambda z: of(z, y))


@case("all")
def ctc_loss():
    m, X = net(3, 7, 5), torch.randn(6, 8, 3)
    y, n = torch.randint(1, 5, (6, 3)), torch.full((6,), 8)

    def loss(z, t):
        return F.ctc_loss(
            z.movedim(0, 1).log_softmax(2),
            t,
            n[: len(t)],
            torch.full((len(t),), 3),
            reduction="none",
        )

    return Case(m, loss, (X, y), value=lambda: loss(m(X), y).mean())


@case("all")
def cdist_in_a_loss():
    m, X, y = net(3, 7, 4), torch.randn(10, 3), torch.randn(10, 4)
    loss = lambda z, t: torch.cdist(z[:, None], t[:, None])[:, 0, 0]
    return Case(m, loss, (X, y), value=lambda: loss(m(X), y).mean())


@case()
def a_loss_module_with_parameters_of_its_own():
    """They belong to the loss: constants."""

    class Uncertain(nn.Module):
        def __init__(self):
            super().__init__()
            self.log = nn.Parameter(torch.tensor(0.4))

        def forward(self, z, y):
            return (
                F.cross_entropy(z, y, reduction="none") * torch.exp(-self.log) + self.log
            ).mean()

    m, X, y = net(3, 7, 4), torch.randn(10, 3), labels()
    loss = Uncertain()
    return Case(m, loss, (X, y), output=lambda: m(X), of_output=lambda z: loss(z, y))


@case("linearised")
def arcface_head_inside_the_loss():
    """The last weight lives in the model, and the loss uses it through a bound method."""

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.w = net(3, 7, 5), nn.Parameter(torch.randn(4, 5))

        def forward(self, x):
            return F.normalize(self.body(x), dim=1)

        def margin(self, z, y):
            c = z @ F.normalize(self.w, dim=1).mT
            return F.cross_entropy(4 * (c - 0.2 * F.one_hot(y, 4)), y)

    m, X, y = Head(), torch.randn(10, 3), labels()
    return Case(m, m.margin, (X, y), value=lambda: m.margin(m(X), y))


@case("all")
def distillation_from_the_student_itself():
    m, X, y = net(3, 7, 4), torch.randn(10, 3), labels()

    def loss(z, t):
        with torch.no_grad():
            teacher = m(X[: len(z)]).softmax(1)
        return F.cross_entropy(z, t) + F.kl_div(
            z.log_softmax(1), 0.9 * teacher + 0.025, reduction="batchmean"
        )

    c = Case(m, loss, (X, y), value=lambda: loss(m(X), y), batch_sizes=())
    return c


@case()
def distillation_from_a_copy():
    m, X, y = net(3, 7, 4), torch.randn(10, 3), labels()
    teacher = copy.deepcopy(m).requires_grad_(False)

    class Distil(nn.Module):
        def __init__(self):
            super().__init__()
            self.student, self.teacher = m, teacher

        def forward(self, x):
            return torch.stack([self.student(x), self.teacher(x) * 0.7], 1)

    both = Distil()
    loss = lambda z, t: (
        F.cross_entropy(z[:, 0], t, reduction="none") + (z[:, 0] - z[:, 1]).square().sum(1)
    )
    return Case(both, loss, (X, y), output=lambda: both(X), of_output=lambda z: loss(z, y).mean())


@case()
def hard_labels_from_the_model():
    """Pseudo-labels move only at jumps: constants, but for the jumps. Answered."""
    m, X = net(3, 7, 4), torch.randn(10, 3)
    loss = lambda z, _: F.cross_entropy(z, z.argmax(1))
    return Case(m, loss, X, output=lambda: m(X), of_output=lambda z: loss(z, None))


@case("all")
def focal_weight_detached():
    m, X, y = net(3, 7, 4), torch.randn(10, 3), labels()

    def loss(z, t):
        each = F.cross_entropy(z, t, reduction="none")
        return (1 - torch.exp(-each)).detach().square() * each

    return Case(m, loss, (X, y), output=lambda: m(X), of_output=lambda z: loss(z, y).mean())


@case("all")
def sinkhorn_with_detached_potentials():
    m, X, y = net(3, 7, 4), torch.randn(8, 3), torch.randn(8, 4)

    def loss(z, t):
        C = (z[:, None] - t[None]).square().sum(-1)
        f = g = torch.zeros(len(z))
        with torch.no_grad():
            for _ in range(5):
                f = -torch.logsumexp(g[None] - C, 1)
                g = -torch.logsumexp(f[:, None] - C, 0)
        return ((f[:, None] + g[None] - C).exp() * C).sum()

    return Case(
        m, loss, (X, y), output=lambda: m(X), of_output=lambda z: loss(z, y), batch_sizes=()
    )


@case("linearised")
def per_sample_gradients_inside_the_loss():
    """Jacobian penalty: autograd inside forward."""

    class Smooth(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = net(3, 7, 1)

        def forward(self, x):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                (g,) = torch.autograd.grad(self.body(x).sum(), x, create_graph=True)
            return g

    m, X, y = Smooth(), torch.randn(10, 3), torch.randn(10, 3)
    return Case(
        m,
        es.SquaredError(),
        (X, y),
        output=lambda: m(X),
        of_output=lambda z: 0.5 * (z - y).square().sum(1).mean(),
    )


@case()
def functional_derivatives_inside():
    class Pinn(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = net(2, 7, 1)

        def forward(self, x):
            u = lambda p: self.body(p)[0]
            return torch.func.vmap(torch.func.grad(u))(x)

    m, X, y = Pinn(), torch.randn(10, 2), torch.randn(10, 2)
    return Case(
        m,
        es.SquaredError(),
        (X, y),
        output=lambda: m(X),
        of_output=lambda z: 0.5 * (z - y).square().sum(1).mean(),
    )


@case("linearised")
def integer_outputs():
    m, X, y = (
        nn.Sequential(net(3, 7, 4), Activation(lambda z: (10 * z).long())),
        torch.randn(10, 3),
        torch.randint(0, 3, (10, 4)),
    )
    return Case(
        m,
        lambda z, t: (z - t).abs().double().sum(1),
        (X, y),
        value=lambda: (m(X) - y).abs().double().sum(1).mean(),
    )


@case()
def scalar_output():
    class Energy(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = net(3, 7, 1)

        def forward(self, x, y):
            return (self.body(x) - y).square().mean()

    m, X, y = Energy(), torch.randn(10, 3), torch.randn(10, 1)
    return Case(
        m, lambda z, _: z, [((X, y), torch.zeros(10))], value=lambda: m(X, y), batch_sizes=()
    )


@case()
def chunked_head_and_running_sum():
    def run(m, x):
        h = torch.tanh(m.a(x))
        out = [m.c(torch.tanh(m.b(part))) for part in h.split(3)]
        return torch.cat(out).cumsum(1)

    return plain(Inside(run))


@case("linearised")
def compiled_part():
    m = net(3, 7, 6, 4)
    m[2] = torch.compile(m[2], backend="eager")
    return plain(m)


@case()
def scripted_part():
    m = nn.Sequential(nn.Linear(3, 7), nn.Tanh(), torch.jit.script(nn.Linear(7, 4)))
    return plain(m)


@case("all")
def stop_gradient_by_requires_grad_inside():
    """Freezes a part in its own forward: GAN code does."""

    def run(m, x):
        m.b.requires_grad_(False)
        z = m.c(torch.tanh(m.b(torch.tanh(m.a(x)))))
        m.b.requires_grad_(True)
        return z

    c = plain(Inside(run))
    return c
