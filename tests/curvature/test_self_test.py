"""A matrix that is not that of the user's own function is refused before its first number.

Each wrong function here looks right to PyTorch: plain double backward gives a symmetric matrix,
and it is another function's.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import eigenscape as es
from eigenscape.errors import EigenscapeError, SelfTestError
from tests.oracles.saved_swish import SavedSwish

X = torch.linspace(-2, 2, 200, dtype=torch.float64).view(40, 5).sin() * 2
Y = torch.arange(40) % 3
dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
Made = Callable[[torch.dtype], es.EmpiricalRisk]

MATRICES: dict[str, Callable[[es.EmpiricalRisk], Any]] = {
    "Hessian": es.Hessian,
    "GaussNewton": es.GaussNewton,
    "Fisher": es.Fisher,
    "LayerHessian": lambda risk: es.LayerHessian(risk, "first"),
    "block": lambda risk: es.Hessian(risk)["first.weight"],
}


class Net(nn.Module):
    def __init__(self, act: Callable[[Tensor], Tensor] = torch.tanh) -> None:
        super().__init__()
        self.first, self.last, self.act = nn.Linear(5, 4), nn.Linear(4, 3), act

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(x)))


def risk_of(
    model: nn.Module, dtype: torch.dtype = torch.float64, loss: Any = None, **options: Any
) -> es.EmpiricalRisk:
    return es.EmpiricalRisk(model.to(dtype), loss or es.CrossEntropy(), (X, Y), **options)


def half_hidden(h: Tensor) -> Tensor:
    return h * torch.sigmoid(h).detach()


def by_numpy(h: Tensor) -> Tensor:
    return h * torch.from_numpy(torch.sigmoid(h).detach().numpy().copy())


def rounded(h: Tensor) -> Tensor:
    return h + ((4 * h).round() / 4 - h).detach()


def copied(dtype: torch.dtype) -> es.EmpiricalRisk:
    """A loss that holds a stale copy of the parameters where it should have held them."""
    model = Net().to(dtype)

    def loss(z: Tensor, y: Tensor) -> Tensor:
        penalty = sum(torch.tensor(p.tolist()).square().sum() for p in model.parameters())
        return F.cross_entropy(z, y, reduction="none") + penalty

    return risk_of(model, dtype, loss)


FALSE_GRADIENT: dict[str, Made] = {
    "detach": lambda dtype: risk_of(Net(half_hidden), dtype),
    "numpy": lambda dtype: risk_of(Net(by_numpy), dtype),
    "straight through": lambda dtype: risk_of(Net(rounded), dtype),
    "numbers in the loss": copied,
}


@dtypes
@pytest.mark.parametrize("name", FALSE_GRADIENT)
@pytest.mark.parametrize("matrix", ["Hessian", "LayerHessian", "block"])
def test_what_autograd_does_not_see_is_found(matrix: str, name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    risk = FALSE_GRADIENT[name](dtype)

    def multiply() -> None:
        operator = MATRICES[matrix](risk)
        operator @ torch.ones(operator.shape[1], dtype=dtype)

    with pytest.raises(SelfTestError, match="not that of the loss") as caught:
        multiply()
    assert "detached='constant'" in str(caught.value)


@dtypes
def test_a_false_second_derivative_is_found(dtype: torch.dtype) -> None:
    H = es.Hessian(risk_of(Net(SavedSwish.apply), dtype))
    with pytest.raises(SelfTestError, match="would not be the matrix of your function"):
        H @ torch.ones(H.shape[1], dtype=dtype)


@dtypes
@pytest.mark.parametrize("matrix", MATRICES)
def test_right_matrices_pass_and_say_to_how_many_digits(matrix: str, dtype: torch.dtype) -> None:
    operator = MATRICES[matrix](risk_of(Net(), dtype))
    operator @ torch.ones(operator.shape[1], dtype=dtype)
    test = operator.self_test
    assert test.verdict == "passed"
    assert {check.is_wrong for check in test.checks} == {False}
    assert "Agrees with differences of the function itself" in str(test)


@dtypes
@pytest.mark.parametrize("act", [F.relu, F.gelu, F.silu, torch.abs, F.hardtanh])
def test_kinks_are_no_alarm(act: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    H = es.Hessian(risk_of(Net(act), dtype))
    H @ torch.ones(H.shape[1], dtype=dtype)
    assert H.self_test.verdict in ("passed", "unresolved")


def test_a_loss_that_holds_the_model_is_differentiated_through_it() -> None:
    model = Net().double()

    def loss(z: Tensor, y: Tensor) -> Tensor:
        penalty = sum(p.square().sum() for p in model.parameters())
        return F.cross_entropy(z, y, reduction="none") + 0.5 * penalty

    H = es.Hessian(risk_of(model, loss=loss))
    plain = es.Hessian(risk_of(model))
    v = torch.ones(H.shape[1])
    torch.testing.assert_close(H @ v, plain @ v + v)
    assert H.self_test.verdict == "passed"


# --- what is asked for ---


def test_it_may_be_left_out_and_that_is_recorded() -> None:
    H = es.Hessian(risk_of(Net(SavedSwish.apply), self_test=False))
    pairs = es.eigsh(H, num_pairs=1)
    assert H.self_test.verdict == pairs.self_test.verdict == "off"
    assert "self_test=False" in str(pairs)


def test_values_that_are_detached_may_be_constants() -> None:
    model = Net(half_hidden)
    H = es.Hessian(risk_of(model, detached="constant"))
    v = torch.randn(H.shape[1])
    params = list(model.parameters())
    slopes = torch.autograd.grad(F.cross_entropy(model(X), Y), params, create_graph=True)
    slope = torch.cat([s.flatten() for s in slopes]) @ v
    plain = torch.cat([g.flatten() for g in torch.autograd.grad(slope, params)])
    torch.testing.assert_close(H @ v, plain)
    assert H.self_test.verdict == "unresolved"
    assert "constants" in str(H.self_test)


def test_the_verdict_reaches_records_made_with_the_matrix() -> None:
    pairs = es.eigsh(es.Hessian(risk_of(Net())), num_pairs=1)
    assert pairs.self_test.verdict == "passed"


class Choosy(Net):
    """It runs no fewer samples than there are."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) != len(X):
            raise ValueError("all samples, please")
        return super().forward(x)


def test_a_model_that_cannot_run_a_few_samples_is_unresolved_and_answered() -> None:
    H = es.Hessian(risk_of(Choosy(), sample_dim=None))
    H @ torch.ones(H.shape[1])
    assert H.self_test.verdict in ("passed", "unresolved")
    assert H.self_test.verdict == "passed" or str(H.self_test).startswith("Unresolved, because")


# --- what it does to the user's model ---


class Watched(Net):
    """It remembers all parameters that it was called with, and may fail on a later call."""

    def __init__(self, fail_at: int = -1, error: type[BaseException] = ValueError) -> None:
        super().__init__()
        self.fail_at, self.error = fail_at, error

    def forward(self, x: Tensor) -> Tensor:
        SEEN.append((len(x), self.first.weight.detach().clone()))
        if len(SEEN) == self.fail_at:
            raise self.error
        return super().forward(x)


SEEN: list[tuple[int, Tensor]] = []


def bits(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone().view(torch.int64) for p in model.parameters()]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("calls", [2, 5, 9])
def test_parameters_are_bit_for_bit_as_before_after(error: type[BaseException], calls: int) -> None:
    model = Watched(error=error)
    risk = risk_of(model)
    before, objects = bits(model), [id(p) for p in model.parameters()]
    SEEN.clear()
    model.fail_at = calls
    H = es.Hessian(risk)
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            H @ torch.ones(H.shape[1])
    else:  # the test alone fails: the matrix itself can be had, and says what is not known
        H @ torch.ones(H.shape[1])
    assert all(map(torch.equal, bits(model), before))
    assert [id(p) for p in model.parameters()] == objects
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_a_refusal_leaves_parameters_as_they_were() -> None:
    model = Net(half_hidden)
    risk, before = risk_of(model), bits(model)
    with pytest.raises(EigenscapeError):
        es.Hessian(risk) @ torch.ones(risk.space.size)
    assert all(map(torch.equal, bits(model), before))


def test_the_users_own_parameters_are_what_moves() -> None:
    model = Watched()
    risk = risk_of(model)
    SEEN.clear()
    _ = es.Hessian(risk).self_test
    moved: Sequence[Tensor] = [weight for _, weight in SEEN]
    assert any(not torch.equal(weight, model.first.weight) for weight in moved)


def test_it_runs_once_for_a_risk_and_costs_at_most_three_gradients() -> None:
    model = Watched()
    x, y = X.repeat(10, 1), Y.repeat(10)
    risk = es.EmpiricalRisk(model, es.CrossEntropy(), (x, y))
    SEEN.clear()
    _ = es.Hessian(risk).self_test
    # A gradient is a forward pass and a backward pass of twice its cost.
    assert 0 < sum(size for size, _ in SEEN) <= 3 * 3 * len(x)
    assert max(size for size, _ in SEEN) <= 32
    SEEN.clear()
    _ = es.Hessian(risk).self_test
    assert not SEEN
