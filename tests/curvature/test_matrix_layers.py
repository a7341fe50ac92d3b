"""What is made of a layer's inputs and slopes is right for any model, or refused."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from eigenscape.analyses import kronecker_fit
from eigenscape.curvature import (
    ClassKronecker,
    GaussNewton,
    KroneckerHessian,
    LayerHessian,
    OutputHessian,
)
from eigenscape.errors import InvalidArgumentError, UnsupportedModelError
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape.structure import class_span
from eigenscape_papers.papyan import KhatriRao, backpropagated_errors
from eigenscape_papers.wu import logit_gradients, output_space_overlap

WIDTH = 4  # of all layers and of the batch: PyTorch tells what it saved apart by shapes alone
MANY = {
    "KroneckerHessian": lambda r: KroneckerHessian(r, "f").to_dense(),
    "ClassKronecker": lambda r: ClassKronecker(r, "f").to_dense(),
    "KhatriRao": lambda r: KhatriRao(r, ["f", "o"]).to_dense(),
    "backpropagated_errors": lambda r: backpropagated_errors(r, "f").errors,
    "OutputHessian": lambda r: OutputHessian(r, "f").matrix,
    "OutputHessian, second derivatives": lambda r: OutputHessian(r, "f", kind="hessian").matrix,
    "OutputHessian of two": lambda r: OutputHessian(r, ["f", "o"]).matrix,
    "logit_gradients": lambda r: torch.tensor(logit_gradients(r, "f").second_moment),
    "output_space_overlap": lambda r: output_space_overlap(r, "f", space="gradients").values,
    "kronecker_fit": lambda r: kronecker_fit(r, "f").values,
    "LayerHessian": lambda r: LayerHessian(r, "f").to_dense(),
}


class Blocks(nn.Module):
    """Three layers; the middle one, or the first two, are evaluated again on the way back."""

    def __init__(self, again: str = "") -> None:
        super().__init__()
        self.f, self.g = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.o, self.again = nn.Linear(WIDTH, 3), again

    def forward(self, x: Tensor) -> Tensor:
        if self.again == "first":
            return self.o(checkpoint(lambda t: self.below(self.f(t)), x, use_reentrant=False))
        h = self.f(x)
        if self.again == "middle":
            return self.o(checkpoint(self.below, h, use_reentrant=False))
        return self.o(self.below(h))

    def below(self, h: Tensor) -> Tensor:
        return torch.tanh(self.g(torch.tanh(h)))


def risk_of(model: nn.Module, samples: int = WIDTH) -> EmpiricalRisk:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(samples, WIDTH, generator=draw, dtype=torch.float64)
    return EmpiricalRisk(model.double(), CrossEntropy(), (x, torch.arange(samples) % 3))


def twins(again: str) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    one, two = Blocks(again), Blocks()
    two.load_state_dict(one.state_dict())
    return one, two


@pytest.mark.parametrize("samples", [1, WIDTH, WIDTH + 3])
@pytest.mark.parametrize("what", MANY)
def test_checkpointing_behind_a_layer_changes_nothing(what: str, samples: int) -> None:
    function: Callable[[EmpiricalRisk], Tensor] = MANY[what]
    one, two = twins("middle")
    torch.testing.assert_close(function(risk_of(one, samples)), function(risk_of(two, samples)))


def test_checkpointing_behind_layers_that_are_joined() -> None:
    one, two = (risk_of(model).restricted(["f", "o"]) for model in twins("middle"))
    torch.testing.assert_close(*(class_span(risk).eigenvalues("between") for risk in (one, two)))


@pytest.mark.parametrize("what", [what for what in MANY if what != "LayerHessian"])
def test_a_layer_that_is_evaluated_again_is_refused(what: str) -> None:
    one, _ = twins("first")
    with pytest.raises(UnsupportedModelError, match="evaluated again by activation checkpointing"):
        MANY[what](risk_of(one))


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, 3 * self.weight, self.bias)


class Standardised(nn.Conv1d):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2), keepdim=True)
        return F.conv1d(x, weight / weight.std((1, 2), keepdim=True), self.bias)


class Twice(nn.Module):
    """Uses a weight again, by another name than its layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.f, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(F.linear(torch.tanh(self.f(x)), self.f.weight))


def odd_models() -> dict[str, nn.Module]:
    def stack(first: nn.Module) -> nn.Module:
        model = nn.Sequential()
        model.add_module("f", first)
        model.add_module("tanh", nn.Tanh())
        model.add_module("o", nn.Linear(WIDTH, 3))
        return model

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f, self.o = Standardised(1, 2, 3), nn.Linear(2 * (WIDTH - 2), 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.o(torch.tanh(self.f(x[:, None])).flatten(1))

    hooked = stack(nn.Linear(WIDTH, WIDTH))
    hooked.f.register_forward_hook(lambda module, args, output: 2 * output)
    return {
        "scaled": stack(Scaled(WIDTH, WIDTH)),
        "standardised": Rows(),
        "hooked": hooked,
        "twice": Twice(),
    }


@pytest.mark.parametrize("which", odd_models())
@pytest.mark.parametrize(
    "what",
    [
        "KroneckerHessian",
        "ClassKronecker",
        "KhatriRao",
        "backpropagated_errors",
        "logit_gradients",
        "kronecker_fit",
    ],
)
def test_layers_that_are_no_plain_matrix_are_refused(which: str, what: str) -> None:
    torch.manual_seed(0)
    risk = risk_of(odd_models()[which], 7)
    with pytest.raises(UnsupportedModelError, match="than autograd"):
        MANY[what](risk)


@pytest.mark.parametrize(
    "what", ["KroneckerHessian", "ClassKronecker", "KhatriRao", "backpropagated_errors"]
)
def test_layers_on_which_nothing_depends_are_refused(what: str) -> None:
    class Cut(Blocks):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach()

    with pytest.raises(UnsupportedModelError, match="Nothing that can be differentiated"):
        MANY[what](risk_of(Cut()))


def test_what_is_advised_takes_them() -> None:
    torch.manual_seed(0)
    risk = risk_of(odd_models()["scaled"], 7).restricted(["f"])
    block = LayerHessian(risk, "f").to_dense()
    torch.testing.assert_close(block, block.T)
    assert float(block.norm()) > 0


def test_plain_subclasses_pass_and_are_exact_for_one_sample() -> None:
    class Plain(nn.Linear):
        pass

    torch.manual_seed(0)
    model = nn.Sequential(Plain(WIDTH, 5), nn.Tanh(), nn.Linear(5, 3))
    risk = risk_of(model, 1)
    expected = GaussNewton(risk.restricted(["0"])).to_dense()
    torch.testing.assert_close(KroneckerHessian(risk, "0").to_dense(), expected)


def test_a_layer_is_named_once() -> None:
    with pytest.raises(InvalidArgumentError, match="Name each once"):
        KhatriRao(risk_of(Blocks()), ["f", "f.weight"])
