"""What stands in the middle of a network: features (…, F) in, features (…, F') out.

Healthy pieces must be answered. A piece with a defect may be refused, and must never be answered
wrongly: its truth is `honest`, the same numbers with nothing hidden from autograd.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

from tests.fuzz.draws import NO_SECOND_DERIVATIVE, Draw, Lambda, Part, activation
from tests.oracles.saved_swish import SavedSwish


def dense(d: Draw, width: int) -> Part:
    new = d.size()
    return Part(nn.Sequential(nn.Linear(width, new), activation(d)), new, ["linear"])


def act(d: Draw, width: int) -> Part:
    return Part(activation(d), width, ["activation"])


class Residual(nn.Module):
    def __init__(self, d: Draw, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.act = nn.Linear(width, inner), activation(d)
        self.down = nn.Linear(inner, width, bias=False)
        self.scale = nn.Parameter(torch.ones(width)) if d.chance(0.3) else 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.down(self.act(self.up(x)))


def residual(d: Draw, width: int) -> Part:
    return Part(Residual(d, width, d.pick((2, 3))), width, ["residual"])


def norm(d: Draw, width: int) -> Part:
    kind = d.pick(("LayerNorm", "RMSNorm", "normalise", "own RMS"))
    if kind == "LayerNorm":
        module: nn.Module = nn.LayerNorm(width, elementwise_affine=d.chance(0.8))
    elif kind == "RMSNorm":
        module = nn.RMSNorm(width)
    elif kind == "normalise":
        module = Lambda(lambda x: F.normalize(x, dim=-1) * 2)
    else:
        module = OwnNorm(width)
    return Part(module, width, [kind])


class OwnNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3) * self.gain


# --- modules and parameters with several names or unusual owners ---


class Shared(nn.Module):
    """One module under two names, called twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.all = nn.ModuleList([self.first])
        self.act = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.all[0](self.act(self.first(x))))


class Tied(nn.Module):
    """A weight that is used again, as a parameter of another module or by a function."""

    def __init__(self, width: int, inner: int, how: str) -> None:
        super().__init__()
        self.down, self.how = nn.Linear(width, inner), how
        if how == "parameter":
            self.again = nn.Linear(width, inner)
            self.again.weight = self.down.weight

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.down(x))
        if self.how == "function":
            return x + F.linear(h, self.down.weight.T)
        return torch.sigmoid(self.again(x)) * h


class Gated(nn.Module):
    """A mixture from a ModuleDict and a ParameterList."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.experts = nn.ModuleDict({"a": nn.Linear(width, 3), "b": nn.Linear(width, 3)})
        self.gains = nn.ParameterList([nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(()))])
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(x.sum(-1, keepdim=True) * self.gains[1])
        a, b = (self.experts[k](x) for k in ("a", "b"))
        return torch.tanh(gate * a * self.gains[0] + (1 - gate) * b)


def shared(d: Draw, width: int) -> Part:
    return Part(Shared(width), width, ["shared module"])


def tied(d: Draw, width: int) -> Part:
    how = d.pick(("function", "parameter"))
    return Part(Tied(width, 3, how), width if how == "function" else 3, [f"tied by {how}"])


def gated(d: Draw, width: int) -> Part:
    return Part(Gated(width), 3, ["ModuleDict"])


class Exponential(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return F.softplus(weight) - 0.5


class NormedRows(nn.Module):
    """What `weight_norm` computes, with all of its derivatives."""

    def forward(self, size: Tensor, direction: Tensor) -> Tensor:
        return size * direction / direction.square().sum(1, keepdim=True).sqrt()

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return weight.square().sum(1, keepdim=True).sqrt(), weight


def parametrized(d: Draw, width: int) -> Part:
    linear = nn.Linear(width, 3)
    kind = d.pick(("own", "spectral", "weight norm", "orthogonal"))
    if kind == "own":
        parametrize.register_parametrization(linear, "weight", Exponential())
    elif kind == "spectral":
        parametrizations.spectral_norm(linear)
    elif kind == "weight norm" and not d.honest:
        parametrizations.weight_norm(linear)
    elif kind == "weight norm":
        parametrize.register_parametrization(linear, "weight", NormedRows())
    else:
        parametrizations.orthogonal(linear, orthogonal_map="cayley")
    defect = "weight_norm of PyTorch" if kind == "weight norm" else ""
    return Part(nn.Sequential(linear, nn.Tanh()), 3, [f"parametrized {kind}"], defect)


# --- things that forward passes do ---


class Checkpointed(nn.Module):
    def __init__(self, width: int, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = nn.Linear(width, 3), reentrant

    def _body(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(x)) ** 2

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return self._body(x)
        return checkpoint(self._body, x, use_reentrant=self.reentrant)


def checkpointed(d: Draw, width: int) -> Part:
    reentrant = d.chance(0.25)
    module = Checkpointed(width, None if d.honest else reentrant)  # type: ignore[arg-type]
    return Part(module, 3, ["reentrant checkpoint" if reentrant else "checkpoint"])


class Counting(nn.Module):
    """It writes to itself: a number, a buffer, a list; none of them reaches its output."""

    def __init__(self, width: int, what: str) -> None:
        super().__init__()
        self.inner, self.what, self.calls = nn.Linear(width, 3), what, 0
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("number", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inner(x))
        self.calls += 1
        if self.what == "buffers":
            with torch.no_grad():
                self.mean.mul_(0.5).add_(h.detach().flatten(0, -2).mean(0))
                self.number += 1
        elif self.what == "exchanged":
            self.mean = h.detach().flatten(0, -2).mean(0)
        elif self.what == "attribute":
            self.last = h
        return h


def counting(d: Draw, width: int) -> Part:
    what = d.pick(("number", "buffers", "exchanged", "attribute"))
    return Part(Counting(width, what), 3, [f"writes {what}"])


class Branching(nn.Module):
    """Control flow: on a parameter, on each sample, or on all samples together (a defect)."""

    def __init__(self, width: int, on: str) -> None:
        super().__init__()
        self.a, self.b, self.on = nn.Linear(width, 3), nn.Linear(width, 3), on

    def forward(self, x: Tensor) -> Tensor:
        if self.on == "parameter":
            return torch.tanh(self.a(x)) if float(self.a.bias.detach().sum()) > 0 else self.b(x)
        if self.on == "samples":
            rows = [self.a(r).tanh() if bool(r.sum() > 0) else self.b(r).sin() for r in x]
            return torch.stack(rows)
        # Not at 0: behind a norm over the batch the sign of the sum would be that of rounding.
        return torch.tanh(self.a(x)) if bool(x.sum() > 0.1) else torch.sin(self.b(x))


def branching(d: Draw, width: int) -> Part:
    on = d.pick(("parameter", "samples", "batch"))
    return Part(Branching(width, on), 3, [f"branch on {on}"], (on == "batch" and "mixes") or "")


class Mixing(nn.Module):
    """Features minus the mean over the batch, and the like: samples see each other."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "mean":
            return x - x.mean(0, keepdim=True)
        if self.kind == "batch norm":
            flat = x.flatten(0, -2)
            return F.batch_norm(flat, None, None, training=True).reshape(x.shape)
        return x * torch.softmax(x, 0)


def mixing(d: Draw, width: int) -> Part:
    kind = d.pick(("mean", "batch norm", "softmax"))
    return Part(Mixing(kind), width, [f"{kind} over the batch"], "mixes")


# --- operations ---


def _distances(x: Tensor) -> Tensor:
    place = torch.full((1, 1, x.shape[-1]), 3.0, dtype=x.dtype)
    return torch.cdist(x.reshape(-1, 1, x.shape[-1]), place).reshape(*x.shape[:-1], 1) + x


def _plain_distances(x: Tensor) -> Tensor:
    return (x - 3.0).square().sum(-1, keepdim=True).sqrt() + x


def _plain_logcumsumexp(x: Tensor) -> Tensor:
    # PyTorch's has a gradient whose derivative by what comes in is NaN where that is zero.
    return torch.stack([x[..., : k + 1].logsumexp(-1) for k in range(x.shape[-1])], -1)


PLAIN = {"distance": _plain_distances, "logcumsumexp": _plain_logcumsumexp}
OPERATIONS: dict[str, Any] = {
    "cumsum": lambda x: x.cumsum(-1),
    "sort": lambda x: x.sort(-1).values,
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "cumprod": lambda x: (1 + x.tanh() / 2).cumprod(-1),
    "softmax gate": lambda x: x * x.softmax(-1),
    "fourier": lambda x: torch.fft.rfft(x).abs().sum(-1, keepdim=True) + x,
    "clamp": lambda x: x.clamp(-0.5, 1.5),
    "where": lambda x: torch.where(x > 0, x.square(), x.exp()),
    "einsum": lambda x: torch.einsum("...i,...j->...i", x, x) / 3,
    "roll": lambda x: x * x.roll(1, -1),
    "top": lambda x: x * x.topk(2, -1).values.sum(-1, keepdim=True),
    "norm": lambda x: x / (1 + x.norm(dim=-1, keepdim=True)),
    "in place": lambda x: (x * 1.5).mul_(2).add_(x).tanh_(),
    "index": lambda x: x[..., torch.arange(x.shape[-1] - 1, -1, -1)] * x,
    "variance": lambda x: x * x.var(-1, keepdim=True),
    "erf": lambda x: torch.erf(x) + torch.special.i0e(x),
    "outer": lambda x: (x.unsqueeze(-1) * x.unsqueeze(-2)).diagonal(dim1=-2, dim2=-1) + x,
    "distance": _distances,
    "logsumexp": lambda x: x - x.logsumexp(-1, keepdim=True),
    "atan2": lambda x: torch.atan2(x, 2 + x.square()),
    "jvp": lambda x: torch.func.jvp(torch.sin, (x,), (x,))[1],
    "vmap": lambda x: torch.func.vmap(lambda r: torch.tanh(r) * r.sum())(x),
    "linalg": lambda x: torch.linalg.vector_norm(x, 3, dim=-1, keepdim=True) * x,
    "pow": lambda x: (x.square() + 0.1).pow(0.75),
    "slope": lambda x: torch.func.grad(lambda r: r.sin().prod(-1).sum())(x),
}  # fmt: skip


def operation(d: Draw, width: int) -> Part:
    name = d.pick(sorted(OPERATIONS))
    function = PLAIN.get(name, OPERATIONS[name]) if d.honest else OPERATIONS[name]
    defect = NO_SECOND_DERIVATIVE if name in PLAIN else ""
    return Part(Lambda(function), width, [name], defect)


class Slope(nn.Module):
    """It differentiates within itself, as networks for differential equations do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x if x.requires_grad else x.detach().requires_grad_()
            y = torch.tanh(self.inner(x)).sum(-1)
            (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return slope


def slope(d: Draw, width: int) -> Part:
    return Part(Slope(width), width, ["autograd.grad inside"])


class Hooked(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 3)
        self.inner.register_forward_hook(lambda module, args, out: out * torch.sigmoid(out))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def hooked(d: Draw, width: int) -> Part:
    return Part(Hooked(width), 3, ["forward hook"])


# --- custom functions ---


class RightSwish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * (s + x * s * (1 - s))


class OnceSwish(RightSwish):
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * (s + x * s * (1 - s))


class HalfSwish(RightSwish):
    """Its gradient is wrong: a term is missing."""

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * torch.sigmoid(x)


def function(d: Draw, width: int) -> Part:
    cls = d.pick((RightSwish, RightSwish, SavedSwish, OnceSwish, HalfSwish))
    module = Lambda(F.silu if d.honest and cls is not RightSwish else cls.apply)
    defect = "" if cls is RightSwish else "custom Function"
    return Part(module, width, [cls.__name__], defect)


# --- hidden from autograd ---


class Hiding(nn.Module):
    """x · sigmoid(x) with a part of it hidden from autograd in one of many ways."""

    def __init__(self, width: int, how: str, honest: bool) -> None:
        super().__init__()
        self.inner, self.how, self.honest = nn.Linear(width, 3), how, honest

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        if self.how == "straight-through":
            rounded = (2 * h).round() / 2
            return torch.sin(h) + (0 * h if self.honest else h - h.detach()) + rounded.detach()
        gate = torch.sigmoid(h)
        if self.honest:
            return h * gate
        if self.how == "no_grad":
            with torch.no_grad():
                gate = torch.sigmoid(self.inner(x))
        elif self.how == "numpy":
            gate = torch.from_numpy(gate.detach().numpy().copy())
        elif self.how == "list":
            gate = torch.tensor(gate.tolist(), dtype=h.dtype)
        elif self.how == "data":
            gate = gate.data
        else:
            gate = gate.detach()
        return h * gate


def hiding(d: Draw, width: int) -> Part:
    how = d.pick(("detach", "no_grad", "numpy", "list", "data", "straight-through"))
    return Part(Hiding(width, how, d.honest), 3, [how], "hidden")


class Dropped(nn.Module):
    """Dropout or Gumbel noise."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.dropout, self.kind = nn.Dropout(0.4), kind

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "gumbel":
            return F.gumbel_softmax(x, dim=-1)
        if self.kind == "gumbel in training" and self.training:
            return F.gumbel_softmax(x, dim=-1)
        return self.dropout(x).softmax(-1) if self.kind != "dropout" else self.dropout(x)


def dropped(d: Draw, width: int) -> Part:
    kind = d.pick(("dropout", "dropout", "gumbel in training", "gumbel"))
    defect = "random" if kind == "gumbel" else "random in training"
    return Part(Dropped(kind), width, [kind], defect)


HEALTHY = (
    dense, dense, dense, act, residual, residual, norm, norm, shared, tied, gated, parametrized,
    checkpointed, counting, counting, branching, operation, operation, operation, slope, hooked,
    function,
)  # fmt: skip
DEFECTIVE = (mixing, hiding, hiding, dropped, function, parametrized, branching, checkpointed)
