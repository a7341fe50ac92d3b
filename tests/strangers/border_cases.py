"""Functions at further borders: other representations of a model, aliases of weights, losses."""

import copy
import threading
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.strangers.named_cases import net
from tests.strangers.new_cases import Inside, labels, plain
from tests.strangers.oracle import Case, case_list

CASES, case = case_list()


def of_loss(loss: Any, target: Tensor, width: int = 4) -> Case:
    """A net under a loss of the user's own."""
    model, X = net(3, 7, width), torch.randn(len(target), 3)
    return Case(
        model, loss, (X, target), output=lambda: model(X), of_output=lambda z: loss(z, target)
    )


# --- what PyTorch makes of a model ---


@case()
def traced_model() -> Case:
    c = plain(torch.jit.trace(net(3, 7, 4), torch.randn(2, 3)))
    c.layers = ()
    return c


@case("linearised")
def scripted_model() -> Case:
    c = plain(torch.jit.script(net(3, 7, 4)))
    c.layers = ()
    return c


@case()
def graph_module() -> Case:
    return plain(torch.fx.symbolic_trace(net(3, 7, 4)))


@case()
def exported_model() -> Case:
    c = plain(torch.export.export(net(3, 7, 4), (torch.randn(10, 3),)).module())
    c.batch_sizes = ()  # it was exported for ten samples
    return c


# --- randomness that is none ---


@case("linearised")
def a_mask_from_a_fixed_seed() -> Case:
    def run(m: Inside, x: Tensor) -> Tensor:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            mask = (torch.rand(7, 7) > 0.3).double()
        return m.c(torch.tanh(F.linear(torch.tanh(m.a(x)), m.b.weight * mask)))

    return plain(Inside(run))


@case("batch_size=4")
def a_factor_for_each_place_in_the_batch() -> Case:
    def run(m: Inside, x: Tensor) -> Tensor:
        return m.c(torch.tanh(m.a(x))) * torch.linspace(0.5, 1.5, len(x))[:, None]

    return plain(Inside(run))


@case("batch_size=4")
def samples_mixed_with_their_neighbours() -> Case:
    def run(m: Inside, x: Tensor) -> Tensor:
        return m.c(torch.tanh(m.a(0.7 * x + 0.3 * x.roll(1, 0))))

    return plain(Inside(run))


@case("batch_size=4")
def samples_in_another_order() -> Case:
    return plain(Inside(lambda m, x: m.c(torch.tanh(m.a(x[x[:, 0].argsort()])))))


# --- weights by other names ---


@case()
def a_copy_of_the_first_weights() -> Case:
    """The distance from the start: what was copied when the model was made is a constant."""
    model = Inside(None)
    start = model.a.weight.detach().clone()
    model.run = lambda m, x: m.c(torch.tanh(m.a(x))) + (m.a.weight - start).square().sum()
    return plain(model)


@case("all")
def a_detached_view_of_a_weight() -> Case:
    """It shares memory with the weight, so that it moves when the weight does."""
    model = Inside(None)
    view = model.a.weight.detach()
    model.run = lambda m, x: m.c(torch.tanh(m.a(x)) * view.norm())
    return plain(model)


@case("all")
def a_numpy_view_of_a_weight() -> Case:
    model = Inside(None)
    view = model.a.weight.detach().numpy()
    model.run = lambda m, x: m.c(torch.tanh(m.a(x)) * float((view**2).sum()))
    return plain(model)


class Twice(nn.Module):
    """A student beside a frozen teacher that shares its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.student = net(3, 7, 4)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        pairs = zip(self.teacher.parameters(), self.student.parameters(), strict=True)
        for theirs, ours in pairs:
            theirs.data = ours.data

    def forward(self, x: Tensor) -> Tensor:
        return self.student(x) * self.teacher(x)


@case("all")
def a_teacher_that_shares_the_students_memory() -> Case:
    return plain(Twice())


@case()
def a_module_that_a_function_captured() -> Case:
    captured = nn.Linear(7, 7)
    return plain(Inside(lambda m, x: m.c(torch.tanh(captured(torch.tanh(m.a(x)))))))


class Hyper(nn.Module):
    """Weights that are made by a network."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.maker, self.out = (
            nn.Parameter(torch.randn(4)),
            nn.Linear(4, 21),
            nn.Linear(7, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(x @ self.maker(self.code).view(3, 7)))


@case()
def weights_made_by_a_network() -> Case:
    return plain(Hyper())


# --- unusual ways to compute ---


class FixedPoint(torch.autograd.Function):
    """Solves for an equilibrium, and for its derivative: right, with a graph of its own."""

    @staticmethod
    def forward(ctx: Any, W: Tensor, h: Tensor) -> Tensor:
        z = torch.zeros_like(h)
        for _ in range(60):
            z = torch.tanh(0.2 * z @ W + h)
        ctx.save_for_backward(W, h, z)
        return z

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        W, _, z = ctx.saved_tensors
        slope, u = 1 - z**2, g
        for _ in range(60):
            u = g + 0.2 * (u * slope) @ W.T
        return 0.2 * z.T @ (u * slope), u * slope


@case("linearised")
def an_implicit_layer() -> Case:
    return plain(Inside(lambda m, x: m.c(FixedPoint.apply(m.b.weight, m.a(x)))))


@case("linearised")
def threads_inside() -> Case:
    def run(m: Inside, x: Tensor) -> Tensor:
        found: dict[int, Tensor] = {}

        def part(number: int, piece: Tensor) -> None:
            found[number] = m.c(torch.tanh(m.a(piece)))

        threads = [threading.Thread(target=part, args=pair) for pair in enumerate(x.chunk(2))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return torch.cat([found[0], found[1]])

    c = plain(Inside(run))
    c.batch_sizes = ()
    return c


@case()
def singular_values_inside() -> Case:
    def run(m: Inside, x: Tensor) -> Tensor:
        return m.c(torch.linalg.svdvals(m.a(x)[:, :, None] * m.b.weight))

    return plain(Inside(run))


@case()
def a_model_that_uses_no_parameter() -> Case:
    c = plain(Inside(lambda m, x: x @ torch.ones(3, 4)))
    c.layers = ()
    return c


# --- losses ---


@case("batch_size=4")
def root_of_a_mean() -> Case:
    return of_loss(lambda z, t: F.mse_loss(z, t).sqrt(), torch.randn(10, 4))


@case("batch_size=4")
def sum_that_is_taken_for_a_mean() -> Case:
    return of_loss(lambda z, t: F.cross_entropy(z, t, reduction="sum"), labels())


@case("batch_size=4")
def cox_partial_likelihood() -> Case:
    def loss(z: Tensor, t: Tensor) -> Tensor:
        risks = z[t.argsort(descending=True), 0]
        return -(risks - risks.logcumsumexp(0)).mean()

    return of_loss(loss, torch.rand(12), width=1)


@case("batch_size=4")
def weights_of_samples_in_a_closure() -> Case:
    w = torch.rand(10)

    def loss(z: Tensor, t: Tensor) -> Tensor:
        return (F.cross_entropy(z, t, reduction="none") * w[: len(t)]).sum() / w.sum()

    return of_loss(loss, labels())


@case()
def divergence_with_its_batch_mean() -> Case:
    own = nn.KLDivLoss(reduction="batchmean")
    return of_loss(lambda z, t: own(z.log_softmax(1), t), torch.rand(10, 4).softmax(1))


class Centring(nn.Module):
    """Moves its centre with what it sees, as self-distillation does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(4))

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        self.centre = 0.9 * self.centre + 0.1 * z.detach().mean(0)
        return F.cross_entropy(z - self.centre, y)


@case("all")
def a_loss_that_moves_its_centre() -> Case:
    model, X, y, loss = net(3, 7, 4), torch.randn(10, 3), labels(), Centring()

    def value() -> Tensor:
        before = loss.centre
        found = loss(model(X), y)
        loss.centre = before
        return found

    return Case(model, loss, (X, y), value=value)
