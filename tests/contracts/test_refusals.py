"""Randomness and misuse: what has no Hessian is refused, with what to do."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from eigenscape.curvature import GaussNewton, Hessian
from eigenscape.errors import (
    EmptySelectionError,
    NonDeterministicRiskError,
    NonFiniteError,
    ShapeError,
    UnknownNameError,
    UnsupportedModelError,
    WrongTypeError,
)
from eigenscape.risk import CrossEntropy, EmpiricalRisk, SquaredError
from eigenscape.testing import dense_hessian
from tests.cases import mlp
from tests.small_net import LOADER, X, Y, close, net, oracle

# --- randomness ---


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return X[i] + 0.1 * torch.randn(4), Y[i]


def test_dropout_is_off_in_eval_and_refused_in_keep_mode() -> None:
    model = net(nn.Dropout(), nn.Tanh()).train()
    risk = EmpiricalRisk(model, CrossEntropy(), LOADER)
    close(Hessian(risk).to_dense(), oracle(model.eval()))
    model.train()
    with pytest.raises(NonDeterministicRiskError, match="The model gave two results"):
        EmpiricalRisk(model, CrossEntropy(), LOADER, mode="keep")
    EmpiricalRisk(model, CrossEntropy(), (X, Y), mode="keep", check_deterministic=False)


def test_dropout_is_refused_whatever_the_model_returns() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net(nn.Dropout())

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.body(x), x

    loss = lambda z, y: F.cross_entropy(z[0], y)
    EmpiricalRisk(Pair(), loss, (X, Y))
    with pytest.raises(NonDeterministicRiskError):
        EmpiricalRisk(Pair().train(), loss, (X, Y), mode="keep")


def test_shuffling_is_accepted_and_random_data_are_refused() -> None:
    model = net()
    shuffled = DataLoader(TensorDataset(X, Y), batch_size=32, shuffle=True)
    for keep in (10**9, 0):
        risk = EmpiricalRisk(model, CrossEntropy(), shuffled, keep_data_bytes=keep)
        close(Hessian(risk).to_dense(), oracle(model))
    with pytest.raises(NonDeterministicRiskError, match="random augmentation"):
        EmpiricalRisk(model, CrossEntropy(), DataLoader(Augmented(), batch_size=32))
    dropping = DataLoader(TensorDataset(X, Y), batch_size=32, shuffle=True, drop_last=True)
    with pytest.raises(NonDeterministicRiskError, match="drop_last"):
        EmpiricalRisk(model, CrossEntropy(), dropping)
    kept = EmpiricalRisk(model, CrossEntropy(), list(dropping))  # one draw, fixed
    assert kept.num_samples == 64


def test_batch_statistics_over_several_batches_are_refused() -> None:
    model = net(nn.BatchNorm1d(5), nn.Tanh()).train()
    EmpiricalRisk(model, CrossEntropy(), LOADER)
    with pytest.raises(
        UnsupportedModelError, match="`1` normalises by the statistics of its batch"
    ):
        EmpiricalRisk(model, CrossEntropy(), LOADER, mode="keep")
    bare = net(nn.BatchNorm1d(5, track_running_stats=False), nn.Tanh())
    with pytest.raises(UnsupportedModelError, match="statistics of its batch"):
        EmpiricalRisk(bare, CrossEntropy(), LOADER)


# --- refusals ---


class One(nn.Module):
    """A model around one parameter."""

    def __init__(self, parameter: nn.Parameter | None, extra: Tensor | None = None) -> None:
        super().__init__()
        self.p, self.fc = parameter, nn.Linear(4, 3)
        if extra is not None:
            self.register_buffer("extra", extra)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


def constant(value: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda z, y: z.sum() * 0 + value


IDS = torch.randint(0, 6, (5, 3))
META = nn.Parameter(torch.empty(2, dtype=torch.float64, device="meta"))
REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "complex": (
        lambda: (One(nn.Parameter(torch.ones(2) * 1j)),),
        WrongTypeError,
        "'p' must be a real",
    ),
    "integer": (
        lambda: (One(nn.Parameter(torch.ones(2).long(), requires_grad=False)), {"params": "*"}),
        WrongTypeError,
        "got torch.int64",
    ),
    "mixed dtypes": (
        lambda: (One(nn.Parameter(torch.ones(2).float())),),
        WrongTypeError,
        "share one dtype",
    ),
    "other device": (lambda: (One(META),), WrongTypeError, "float64 on cpu, torch.float64 on meta"),
    "no values": (lambda: (net().to("meta"),), WrongTypeError, "'meta', which holds no values"),
    "no parameters": (lambda: (nn.ReLU(),), EmptySelectionError, "no parameters"),
    "all frozen": (lambda: (net().requires_grad_(False),), EmptySelectionError, "All 4 parameters"),
    "unknown name": (
        lambda: (net(), {"params": "0.wieght"}),
        UnknownNameError,
        "Nearest: '0.weight'",
    ),
    "no match": (lambda: (net(), {"params": ["conv*"]}), EmptySelectionError, "matches none"),
    "no name": (lambda: (net(), {"params": []}), EmptySelectionError, "no pattern"),
    "number": (lambda: (net(), {"params": 3}), WrongTypeError, "names or patterns .* got 3"),
    "numbers": (lambda: (net(), {"params": [0]}), WrongTypeError, r"got \[0\]"),
    "mapping": (lambda: (net(), {"params": {"a": X}}), WrongTypeError, "takes names or patterns"),
    "function alone": (lambda: (lambda p, x: x,), WrongTypeError, "needs `params=` as a dict"),
    "nothing": (lambda: (None,), WrongTypeError, "must be an nn.Module or a function"),
    "entries": (
        lambda: (lambda p, x: x[:, :3], {"params": {"a": torch.zeros(0, 3)}}),
        EmptySelectionError,
        "no entries",
    ),
    "mode": (lambda: (net(), {"mode": "train"}), UnknownNameError, "'eval', 'keep'"),
    "reduction": (lambda: (net(), {"reduction": "none"}), UnknownNameError, "'mean', 'sum'"),
    "nan": (lambda: (net(), {"loss": constant(math.nan)}), NonFiniteError, "The loss is nan"),
    "infinity": (lambda: (net(), {"loss": constant(math.inf)}), NonFiniteError, "The loss is inf"),
    "nan data": (lambda: (net(), {"data": (X * math.nan, Y)}), NonFiniteError, "loss is nan"),
    "ignored": (
        lambda: (net(), {"data": (X, Y * 0 - 100)}),
        EmptySelectionError,
        "every target is ignored",
    ),
    "empty": (lambda: (net(), {"data": (X[:0], Y[:0])}), EmptySelectionError, "gave no batch"),
    "generator": (
        lambda: (net(), {"data": (b for b in LOADER)}),
        WrongTypeError,
        "walked only once",
    ),
    "complex loss": (
        lambda: (net(), {"loss": lambda z, y: z.sum() * 1j}),
        ShapeError,
        "one real number",
    ),
    "matrix in a pair": (
        lambda: (net(), {"loss": lambda z, y: (z, 3)}),
        ShapeError,
        "one real number",
    ),
    "sparse": (
        lambda: (
            nn.Sequential(nn.Embedding(6, 4, sparse=True), nn.Flatten(), nn.Linear(12, 3)),
            {"data": (IDS, Y[:5])},
        ),
        UnsupportedModelError,
        r"cannot be differentiated twice .* `model.0.sparse = False`",
    ),
    "max_norm": (
        lambda: (
            nn.Sequential(nn.Embedding(6, 4, max_norm=1.0), nn.Flatten(), nn.Linear(12, 3)),
            {"data": (IDS, Y[:5])},
        ),
        UnsupportedModelError,
        "moves its weights",
    ),
}


@pytest.mark.parametrize(("make", "error", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals(make: Callable[[], Any], error: type[Exception], text: str) -> None:
    model, *rest = make()
    options = rest[0] if rest else {}
    loss, data = options.pop("loss", CrossEntropy()), options.pop("data", (X, Y))
    with pytest.raises(error, match=text):
        EmpiricalRisk(model, loss, data, **options)


def test_a_vector_that_overflows_is_refused() -> None:
    risk = EmpiricalRisk(net(), CrossEntropy(), (X, Y))
    with pytest.raises(NonFiniteError, match="product with Hessian is NaN or infinite"):
        Hessian(risk) @ torch.full((43,), math.inf)


def test_a_gradient_that_is_not_finite_is_refused() -> None:
    root = lambda p, x: (p["w"] * x[:, :1]).abs().sqrt()
    risk = EmpiricalRisk(root, SquaredError(), (X, X[:, :1] * 0), params={"w": torch.zeros(1)})
    assert risk.value() == 0.0
    with pytest.raises(NonFiniteError, match="gradient has NaN"):
        risk.gradient()


def test_logits_are_found_in_what_models_return() -> None:
    for wrap in (lambda z: {"logits": z}, lambda z: SimpleNamespace(logits=z), lambda z: z):
        function = lambda p, x, wrap=wrap: wrap(x @ p["w"])
        risk = EmpiricalRisk(function, CrossEntropy(), (X, Y), params={"w": torch.ones(4, 3)})
        assert risk.value() == pytest.approx(math.log(3))
    pair = EmpiricalRisk(
        lambda p, x: (x @ p["w"], x), lambda z, y: F.cross_entropy(z[0], y), (X, Y),
        params={"w": torch.ones(4, 3)},
    )  # fmt: skip
    assert Hessian(pair).to_dense().isfinite().all()
    with pytest.raises(WrongTypeError, match=r"returns one tensor .* got tuple"):
        GaussNewton(pair).to_dense()


def test_inputs_alone_and_losses_without_target() -> None:
    model = mlp(4, 5, 2)
    risk = EmpiricalRisk(model, lambda z, _: z.square().sum(1), X, batch_size=32)
    theta = {name: p.detach() for name, p in model.named_parameters()}
    energy = lambda p: torch.func.functional_call(model, p, (X,)).square().sum(1).mean()
    close(Hessian(risk).to_dense(), dense_hessian(energy, theta))


def test_a_loader_that_changes_later_is_noticed() -> None:
    class Shrinking:
        def __init__(self) -> None:
            self.batches = [(X[:40], Y[:40]), (X[40:], Y[40:])]

        def __iter__(self) -> Any:
            return iter(self.batches)

    data = Shrinking()
    H = Hessian(EmpiricalRisk(net(), CrossEntropy(), data, keep_data_bytes=0))
    v = torch.ones(H.shape[0])
    H @ v
    for left in (1, 0):
        data.batches = data.batches[:left]
        with pytest.raises(NonDeterministicRiskError, match="was made for 70"):
            H @ v
