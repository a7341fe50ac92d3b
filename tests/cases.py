"""Small networks with their losses and data, each with an oracle that knows nothing of the package.

A case's oracle is the whole data set in one forward pass, in plain PyTorch: `forward` gives the
output z as a function of the parameters, `mean_loss` the loss as a function of z. All sizes are
unequal and no power of two where that is possible, so that a transposed or mixed-up dimension
cannot hide; 11 samples make batches of 7 ragged. Everything is float64.
"""

import copy
import functools
import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from eigenscape.errors import SubstitutionWarning
from eigenscape.risk import BinaryCrossEntropy, CrossEntropy, EmpiricalRisk, SquaredError
from eigenscape.testing import dense_hessian

N = 11
BATCH_SIZES = (1, 7, None)
Params = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Case:
    """A model with loss and data, and what it computes in plain PyTorch.

    Attributes:
        model: A module (left in train mode on purpose) or a function of (params, inputs).
        loss: What the user would pass.
        data: What the user would pass.
        forward: Parameters to the output of all data.
        mean_loss: Output of all data to the loss.
        terms: Output of all data to single loss terms (T,), as the empirical Fisher counts them.
        count: What the sum of the terms is divided by.
        params: Parameters of a function; None for a module.
    """

    model: Any
    loss: Any
    data: Any
    forward: Callable[[Params], Tensor]
    mean_loss: Callable[[Tensor], Tensor]
    terms: Callable[[Tensor], Tensor]
    count: float
    params: Params | None = None
    _memory: dict[str, Tensor] = field(default_factory=dict)

    def risk(self, batch_size: int | None = None, **options: Any) -> EmpiricalRisk:
        if self.params is not None:
            options.setdefault("params", self.params)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SubstitutionWarning)
            return EmpiricalRisk(self.model, self.loss, self.data, batch_size=batch_size, **options)

    def theta(self) -> Params:
        if self.params is not None:
            return {name: p.detach() for name, p in self.params.items()}
        return {n: p.detach() for n, p in self.model.named_parameters() if p.requires_grad}

    def hessian(self) -> Tensor:
        """The dense Hessian of the oracle."""
        return self._once("hessian", lambda: dense_hessian(self._oracle, self.theta()))

    def gauss_newton(self) -> Tensor:
        """JᵀBJ with both factors from plain autograd."""

        def compute() -> Tensor:
            z = self.forward(self.theta()).detach()
            flat = lambda p: self.mean_loss(p["z"].reshape(z.shape))
            B = dense_hessian(flat, {"z": z.reshape(-1)})
            J = self.jacobian()
            return J.T @ B @ J

        return self._once("gauss_newton", compute)

    def jacobian(self) -> Tensor:
        """∂z/∂θ, one row per entry of the output."""
        return self._once("jacobian", lambda: rows_of(self.forward, self.theta()))

    def term_gradients(self) -> Tensor:
        """∂ℓ/∂θ, one row per loss term."""
        return self._once(
            "terms", lambda: rows_of(lambda p: self.terms(self.forward(p)), self.theta())
        )

    def _oracle(self, params: Params) -> Tensor:
        return self.mean_loss(self.forward(params))

    def _once(self, key: str, compute: Callable[[], Tensor]) -> Tensor:
        if key not in self._memory:
            self._memory[key] = compute()
        return self._memory[key]


def rows_of(function: Callable[[Params], Tensor], params: Params) -> Tensor:
    """The gradient of every entry of a tensor-valued function, as rows (entries, n)."""
    leaves = {name: p.detach().clone().requires_grad_() for name, p in params.items()}
    rows = []
    for entry in function(leaves).reshape(-1):
        found = torch.autograd.grad(
            entry, list(leaves.values()), retain_graph=True, allow_unused=True
        )
        pairs = zip(found, leaves.values(), strict=True)
        rows.append(torch.cat([(x * 0 if g is None else g).reshape(-1) for g, x in pairs]))
    return torch.stack(rows).detach()


def of_module(
    model: nn.Module,
    loss: Any,
    data: Any,
    mean_loss: Callable[[Tensor], Tensor],
    terms: Callable[[Tensor], Tensor],
    count: float,
) -> Case:
    """A case whose oracle calls a copy of the module in eval mode with the math attention."""
    model = model.double().train()
    twin = copy.deepcopy(model).eval()
    inputs = data[:-1] if isinstance(data, tuple) else ()
    kwargs = {k: v for k, v in data.items() if k != "labels"} if isinstance(data, dict) else {}

    def forward(params: Params) -> Tensor:
        with sdpa_kernel([SDPBackend.MATH]):
            z = torch.func.functional_call(twin, params, inputs, kwargs)
        return z if isinstance(z, Tensor) else z.logits

    return Case(model, loss, data, forward, mean_loss, terms, count)


def classification(
    model: nn.Module, inputs: tuple[Tensor, ...], classes: int, **settings: Any
) -> Case:
    """A module with one class index per sample and the loss settings of `F.cross_entropy`."""
    y = torch.arange(N) * 5 % classes
    weight = settings.get("weight")
    count = float(N if weight is None else weight[y].sum())
    return of_module(
        model,
        CrossEntropy(weight, label_smoothing=settings.get("label_smoothing", 0.0)),
        (*inputs, y),
        lambda z: F.cross_entropy(z, y, **settings),
        lambda z: F.cross_entropy(z, y, reduction="none", **settings),
        count,
    )


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


# --- networks ------------------------------------------------------------------------------------


class Attention(nn.Module):
    """A language model of one block with tied embeddings, by module or by fused function."""

    def __init__(self, *, fused: bool, causal: bool = True) -> None:
        super().__init__()
        self.fused, self.causal = fused, causal
        self.emb = nn.Embedding(7, 6)
        self.ln1, self.ln2 = nn.LayerNorm(6), nn.LayerNorm(6)
        if fused:
            self.qkv, self.out = nn.Linear(6, 18), nn.Linear(6, 6, bias=False)
        else:
            self.attn = nn.MultiheadAttention(6, 2, batch_first=True)
        self.fc = nn.Linear(6, 5)
        self.proj = nn.Linear(5, 6)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
        x = self.emb(ids)
        h = self.ln1(x)
        length = ids.shape[1]
        if self.fused:
            q, k, v = self.qkv(h).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            x = x + self.out(mixed.transpose(1, 2).flatten(2))
        else:
            mask = torch.full((length, length), float("-inf"), dtype=x.dtype).triu(1)
            x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        if keep is not None:
            x = x * keep.unsqueeze(-1)
        return self.head(x + self.proj(F.gelu(self.fc(self.ln2(x)))))


class HuggingFaceStyle(nn.Module):
    """Keyword inputs, and an object with `.logits`."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Attention(fused=True, causal=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.body(input_ids, attention_mask.double()))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn, self.head = kind(2, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.fc = nn.Embedding(6, 4, padding_idx=2), nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(torch.tanh(self.emb(ids).mean(1)))


class UnusedAndFrozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.never, self.fc2 = nn.Linear(4, 5), nn.Linear(2, 2), nn.Linear(5, 3)
        self.scale = nn.Parameter(torch.tensor(1.7), requires_grad=False)
        self.fc2.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.tanh(self.scale * self.fc1(x)))


class TwoInputs(nn.Module):
    """A bilinear layer, and a module that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.pair = nn.Linear(3, 3), nn.Bilinear(3, 2, 4)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.pair(torch.tanh(self.twice(torch.tanh(self.twice(a)))), b)


def mlp(*sizes: int, act: Callable[[], nn.Module] = nn.Tanh) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        layers += [act()] * (i > 0) + [nn.Linear(a, b)]
    return nn.Sequential(*layers)


def shaken(norm: nn.Module) -> nn.Module:
    """Give a normalisation layer parameters and running statistics that are not 1 and 0."""
    with torch.no_grad():
        for p in norm.parameters():
            p.copy_(torch.randn_like(p) / 3 + 1)
        for name, buffer in norm.named_buffers():
            if "running" in name:
                buffer.copy_(torch.rand_like(buffer) + 0.5)
    return norm


def token_targets(length: int) -> Tensor:
    """Targets (N, length) with other numbers of valid tokens per sample; one sample has none."""
    y = torch.randint(0, 7, (N, length))
    valid = torch.tensor([4, 1, 3, 2, 4, 0, 1, 3, 4, 2, 1]).clamp(max=length)
    return y.where(torch.arange(length) < valid[:, None], torch.full_like(y, -100))


def tokens(model: nn.Module, *, wrapped: bool = False, next_token: bool = False) -> Case:
    ids, y = torch.randint(0, 7, (N, 4)), token_targets(4)
    if next_token:
        y = ids.where(y != -100, y)
    mask = torch.rand(N, 4) > 0.2
    data = {"input_ids": ids, "attention_mask": mask, "labels": y} if wrapped else (ids, y)

    def shifted(z: Tensor) -> tuple[Tensor, Tensor]:
        if next_token:
            return z[:, :-1].reshape(-1, 7), y[:, 1:].reshape(-1)
        return z.reshape(-1, 7), y.reshape(-1)

    count = float((shifted(torch.zeros(N, 4, 7))[1] != -100).sum())
    return of_module(
        model,
        CrossEntropy(next_token=next_token),
        data,
        lambda z: F.cross_entropy(*shifted(z)),
        lambda z: F.cross_entropy(*shifted(z), reduction="none"),
        count,
    )


def regression(loss: SquaredError, *, dims: tuple[int, ...] = (3,)) -> Case:
    x, y = normal(N, *dims[:-1], 4), normal(N, *dims)
    divisor = float(N if loss.average == "samples" else y.numel())
    return of_module(
        mlp(4, 5, dims[-1]),
        loss,
        (x, y),
        lambda z: loss.factor * F.mse_loss(z, y, reduction="sum") / divisor,
        lambda z: loss.factor * (z - y).square().reshape(N, -1).sum(1),
        divisor,
    )


def binary(weight: Tensor | None, average: str) -> Case:
    x, y = normal(N, 4), (torch.rand(N, 3) > 0.6).double()
    divisor = 3.0 * N if average == "elements" else float(N)

    def elements(z: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(z, y, pos_weight=weight, reduction="none")

    return of_module(
        mlp(4, 5, 3),
        BinaryCrossEntropy(weight, average=average),
        (x, y),
        lambda z: elements(z).mean() * (3 if average == "samples" else 1),
        lambda z: elements(z).sum(1),
        divisor,
    )


def custom(kind: str) -> Case:
    """A loss of our own, log cosh of the difference, in the three forms that a user may write."""
    x, y = normal(N, 4), normal(N, 3)

    def single(z: Tensor, target: Tensor) -> Tensor:
        return torch.log(torch.cosh(z - target)).sum(1)

    losses: dict[str, Callable[[Tensor, Tensor], object]] = {
        "mean": lambda z, t: single(z, t).mean(),
        "per_sample": single,
        "pair": lambda z, t: (single(z, t).sum(), len(t)),
    }
    terms = lambda z: single(z, y)
    return of_module(mlp(4, 5, 3), losses[kind], (x, y), lambda z: terms(z).mean(), terms, float(N))


def pure_function() -> Case:
    x, y = normal(N, 4), torch.arange(N) % 3
    params = {"W": normal(5, 4), "deep": normal(3, 5), "gain": normal(1).squeeze()}

    def apply(p: Params, inputs: Tensor) -> Tensor:
        return torch.tanh(inputs @ p["W"].T * p["gain"]) @ p["deep"].T

    return Case(
        apply,
        CrossEntropy(),
        (x, y),
        lambda p: apply(p, x),
        lambda z: F.cross_entropy(z, y),
        lambda z: F.cross_entropy(z, y, reduction="none"),
        float(N),
        params,
    )


def soft_targets() -> Case:
    x, q, w = normal(N, 4), normal(N, 3).softmax(1), torch.tensor([0.5, 2.0, 1.2]).double()
    settings: Any = {"weight": w, "label_smoothing": 0.15}
    return of_module(
        mlp(4, 5, 3),
        CrossEntropy(w, label_smoothing=0.15),
        (x, q),
        lambda z: F.cross_entropy(z, q, **settings),
        lambda z: F.cross_entropy(z, q, reduction="none", **settings),
        float(N),
    )


def dense_prediction() -> Case:
    """Class scores for every position of a signal, classes second as PyTorch has them."""
    x, y = normal(N, 2, 5), torch.randint(0, 3, (N, 5))
    y[3, :4] = y[8] = -100
    net = nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.Tanh(), nn.ConvTranspose1d(3, 3, 1))
    return of_module(
        net,
        nn.CrossEntropyLoss(),
        (x, y),
        lambda z: F.cross_entropy(z, y),
        lambda z: F.cross_entropy(z, y, reduction="none").reshape(-1),
        float((y != -100).sum()),
    )


def images(*layers: nn.Module) -> Case:
    return classification(nn.Sequential(*layers), (normal(N, 2, 7, 6),), 3)


CNN = (
    lambda: nn.Conv2d(2, 3, (3, 2), bias=False),
    lambda: shaken(nn.BatchNorm2d(3)),
    nn.ReLU,
    lambda: nn.MaxPool2d(2),
    lambda: nn.Conv2d(3, 2, 2),
    nn.Tanh,
    nn.Flatten,
    lambda: nn.Linear(2, 3),
)

TABLE: dict[str, Callable[[], Case]] = {
    "mlp-tanh": lambda: classification(mlp(4, 6, 5, 3), (normal(N, 4),), 3),
    "mlp-relu": lambda: classification(mlp(3, 6, 4, 5, act=nn.ReLU), (normal(N, 3),), 5),
    "cnn-batchnorm": lambda: images(*(make() for make in CNN)),
    "conv1d": lambda: classification(
        nn.Sequential(
            nn.Conv1d(2, 4, 3, stride=2, padding=1, groups=2),
            nn.Softplus(),
            nn.Flatten(),
            nn.Linear(12, 3),
        ),
        (normal(N, 2, 5),),
        3,
    ),
    "attention-module": lambda: tokens(Attention(fused=False)),
    "attention-fused": lambda: tokens(Attention(fused=True)),
    "huggingface": lambda: tokens(HuggingFaceStyle(), wrapped=True),
    "next-token": lambda: tokens(Attention(fused=True), next_token=True),
    "lstm": lambda: classification(Recurrent(nn.LSTM), (normal(N, 4, 2),), 3),
    "gru": lambda: classification(Recurrent(nn.GRU), (normal(N, 4, 2),), 3),
    "squared-samples": lambda: regression(SquaredError()),
    "squared-elements": lambda: regression(SquaredError(factor=1.3, average="elements")),
    "squared-positions": lambda: regression(SquaredError(), dims=(2, 3)),
    "binary": lambda: binary(None, "elements"),
    "binary-weighted": lambda: binary(torch.tensor([0.4, 3.0, 1.5]).double(), "samples"),
    "groupnorm": lambda: images(
        nn.Conv2d(2, 6, (3, 2), stride=2),
        shaken(nn.GroupNorm(3, 6)),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d((1, 2)),
        nn.Flatten(),
        nn.Linear(12, 3),
    ),
    "instancenorm": lambda: images(
        nn.Conv2d(2, 3, 3),
        shaken(nn.InstanceNorm2d(3, affine=True)),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d((2, 1)),
        nn.Flatten(),
        nn.Linear(6, 3),
    ),
    "rmsnorm": lambda: classification(
        nn.Sequential(nn.Linear(4, 5), shaken(nn.RMSNorm(5)), nn.SiLU(), nn.Linear(5, 3)),
        (normal(N, 4),),
        3,
    ),
    "layernorm": lambda: classification(
        nn.Sequential(nn.Linear(4, 5), shaken(nn.LayerNorm(5)), nn.Tanh(), nn.Linear(5, 3)),
        (normal(N, 4),),
        3,
    ),
    "embedding-padding": lambda: classification(Bag(), (torch.randint(0, 6, (N, 3)),), 3),
    "weights-smoothing": lambda: classification(
        mlp(4, 5, 3),
        (normal(N, 4),),
        3,
        weight=torch.tensor([0.3, 2.0, 1.1]).double(),
        label_smoothing=0.2,
    ),
    "soft-targets": soft_targets,
    "dense-prediction": dense_prediction,
    "custom-mean": lambda: custom("mean"),
    "custom-per-sample": lambda: custom("per_sample"),
    "custom-pair": lambda: custom("pair"),
    "pure-function": pure_function,
    "unused-frozen": lambda: classification(UnusedAndFrozen(), (normal(N, 4),), 3),
    "two-inputs": lambda: classification(TwoInputs(), (normal(N, 3), normal(N, 2)), 4),
}


@functools.cache
def case(name: str) -> Case:
    """Build a case, the same at every call, whatever was drawn before."""
    with torch.random.fork_rng():
        torch.manual_seed(sorted(TABLE).index(name))
        return TABLE[name]()
