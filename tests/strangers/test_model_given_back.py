"""The user's model is given back exactly as it came, however a question about it ends.

Not "equal": the same objects, with the same bits, so that an optimiser made before goes on.
"""

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import eigenscape as es
from eigenscape.errors import EigenscapeError

X, Y = torch.randn(12, 3, dtype=torch.float64), torch.randint(0, 4, (12,))


class Household(nn.Module):
    """All that a model may hold: one module under three names, buffers, hooks, a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.all = nn.ModuleList([self.a, nn.Linear(3, 5)])
        self.norm, self.drop = nn.BatchNorm1d(5), nn.Dropout(0.3)
        self.spectral = parametrizations.spectral_norm(nn.Linear(5, 5))
        self.tied = nn.Linear(5, 5, bias=False)
        self.tied.weight = self.spectral.parametrizations.weight.original
        self.out = nn.Linear(5, 4)
        self.named = nn.ModuleDict({"again": self.a, "last": self.out})
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("scale", torch.tensor(0.7), persistent=False)
        self.kept: Tensor | None = None
        self.table, self.calls, self.counts = torch.ones(5), 0, True

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.counts:
            self.seen += 1
        h = torch.tanh(self.all[1](torch.tanh(self.all[0](self.a(x)))))
        self.kept = h
        h = self.tied(torch.tanh(self.spectral(self.drop(self.norm(h) * self.table))))
        return self.scale * self.named["last"](h)


def lived_in(*, counts: bool = True) -> nn.Module:
    """A model amid its training: gradients, frozen parts, hooks, modes of its own."""
    torch.manual_seed(0)
    model = Household()
    model.counts = counts
    model.all[1].bias.requires_grad_(False)
    model.norm.register_forward_hook(lambda module, args, out: 1.1 * out)
    model.out.register_forward_pre_hook(lambda module, args: (args[0] + 0.1,))
    model.a.weight.register_hook(lambda gradient: 2 * gradient)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    trained(model, optimiser, steps=2)
    model.norm.eval()
    model.out.bias.grad = None
    return model


def trained(model: nn.Module, optimiser: torch.optim.Optimizer, *, steps: int) -> None:
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        optimiser.step()


def bits(tensor: Tensor | None) -> Any:
    return None if tensor is None else (tensor.dtype, tensor.detach().numpy().tobytes())


def everything(model: nn.Module) -> list[Any]:
    """Write down every object that a model holds, and the bits of every tensor."""
    found: list[Any] = [
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        bits(torch.get_rng_state()),
    ]
    for path, part in model.named_modules(remove_duplicate=False):
        for key, value in vars(part).items():
            entries = value.items() if isinstance(value, dict) else [("", value)]
            # A dict that stayed the same object may hold others.
            found.append((path, key, id(value) if isinstance(value, dict) else None))
            for name, item in entries:
                found.append((path, key, name, id(item), type(item)))
                if isinstance(item, Tensor):
                    grad = item.grad if item.is_leaf else None
                    found += [bits(item), item.requires_grad, item.data_ptr(), id(grad), bits(grad)]
    return found


# --- how a question may end ---


class Refused(nn.Module):
    """A part that autograd does not see, so that matrices are refused."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        z = self.model(x)
        return z * z.detach()


class Interrupts:
    """A loss that stops at one of its evaluations, as Ctrl-C and bugs do."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self.left, self.error = at, error

    def __call__(self, z: Tensor, y: Tensor) -> Tensor:
        self.left -= 1
        if self.left < 0:
            raise self.error("stopped")
        return F.cross_entropy(z, y)


def product(matrix: Any) -> None:
    matrix @ torch.ones(matrix.shape[0])


QUESTIONS: dict[str, Callable[[es.EmpiricalRisk], object]] = {
    "value": lambda risk: (risk.value(), risk.gradient()),
    "Hessian": lambda risk: product(es.Hessian(risk)),
    "linearised": lambda risk: product(es.Hessian(risk, representation="linearised")),
    "GaussNewton": lambda risk: product(es.GaussNewton(risk)),
    "LayerHessian": lambda risk: product(es.LayerHessian(risk, "all.1")),
    "KroneckerHessian": lambda risk: product(es.KroneckerHessian(risk, "all.1.weight")),
    "eigsh": lambda risk: es.eigsh(es.Hessian(risk), num_pairs=2),
}


def asked(model: nn.Module, question: str, loss: Any = None, **options: Any) -> None:
    """Ask, and pass over what comes of it."""
    risk = es.EmpiricalRisk(model, loss or es.CrossEntropy(), (X, Y), **options)
    QUESTIONS[question](risk)


def asked_until(loss: Interrupts, model: nn.Module, question: str) -> None:
    """Ask again and again, until the loss stops it."""
    while True:
        asked(model, question, loss, check_deterministic=False)


@pytest.fixture(autouse=True)
def _no_warnings(recwarn: pytest.WarningsRecorder) -> Iterator[None]:
    """What is said on the way is told elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("question", QUESTIONS)
def test_after_an_answer(question: str) -> None:
    model = lived_in(counts=question != "linearised")  # a trace cannot write
    before = everything(model)
    asked(model, question)
    assert everything(model) == before


@pytest.mark.parametrize("question", ["Hessian", "linearised", "GaussNewton"])
def test_after_a_refusal(question: str) -> None:
    model = Household().eval()
    wrapped = Refused(model)
    before = everything(wrapped)
    with pytest.raises(EigenscapeError):
        asked(wrapped, question)
    assert everything(wrapped) == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("at", [0, 3, 8, 12, 16, 25])
@pytest.mark.parametrize("question", ["Hessian", "linearised", "LayerHessian"])
def test_after_an_error_at_any_time(question: str, at: int, error: type[BaseException]) -> None:
    model = lived_in()
    before = everything(model)
    loss = Interrupts(at, error)
    with pytest.raises((error, EigenscapeError)):
        asked_until(loss, model, question)
    assert everything(model) == before


@pytest.mark.parametrize("question", QUESTIONS)
def test_training_goes_on_as_if_nobody_had_asked(question: str) -> None:
    model, twin = (lived_in(counts=False) for _ in range(2))
    optimisers = [torch.optim.AdamW(m.parameters(), lr=0.05) for m in (model, twin)]
    for m, optimiser in zip((model, twin), optimisers, strict=True):
        torch.manual_seed(7)
        trained(m, optimiser, steps=1)
        if m is model:
            asked(model, question)
        trained(m, optimiser, steps=3)
    for (name, one), other in zip(
        model.state_dict().items(), twin.state_dict().values(), strict=True
    ):
        assert bits(one) == bits(other), name


@pytest.mark.parametrize("at", [None, 5, 40])
def test_after_an_analysis(at: int | None) -> None:
    model = lived_in(counts=False)
    before = everything(model)
    if at is None:
        risk = es.EmpiricalRisk(model, es.CrossEntropy(), (X, Y))
        es.analyze(risk, budget="quick", stages=["Hessian", "layers"])
    else:
        with pytest.raises(KeyboardInterrupt):
            es.analyze(es.EmpiricalRisk(model, Interrupts(at, KeyboardInterrupt), (X, Y)))
    assert everything(model) == before


def test_a_model_kept_in_train_mode_keeps_its_buffers() -> None:
    spectral = parametrizations.spectral_norm(nn.Linear(5, 4))
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), spectral)
    before = everything(model)
    # Spectral norm takes its vectors for constants while it improves them.
    risk = es.EmpiricalRisk(model, es.CrossEntropy(), (X, Y), mode="keep", detached="constant")
    product(es.Hessian(risk))
    product(es.LayerHessian(risk, "0"))
    assert everything(model) == before


def test_an_equal_model_is_another_one() -> None:
    model = Household()
    assert everything(copy.deepcopy(model)) != everything(model)
    before = everything(model)
    with torch.no_grad():
        model.out.bias[0] = -model.out.bias[0]
    assert everything(model) != before
