"""Random networks are answered rightly or refused; and the fuzzer sees what is wrong.

The long test runs five minutes; more: `python -m tests.fuzz.run --count 10000`.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import eigenscape as es
from tests.fuzz.draws import Draw
from tests.fuzz.networks import draw
from tests.fuzz.objectives import of_module
from tests.fuzz.outcomes import difference, state
from tests.fuzz.run import campaign, examine
from tests.fuzz.truth import group_norm

QUICK = range(20)
# Seeds that no other test uses; a failure names its own.
LONG = itertools.count(1_000_000)


def test_twenty_networks_have_no_silent_error() -> None:
    found = campaign(QUICK)
    assert not found.failures, "\n".join(found.failures)
    assert found.networks["right"] + found.networks["partly refused"] >= 15


@pytest.mark.slow
def test_five_minutes_of_networks_have_no_silent_error() -> None:
    found = campaign(LONG, seconds=300)
    assert not found.failures, "\n".join([str(found), *found.failures])
    answered = found.networks["right"] + found.networks["partly refused"]
    assert answered > 0.8 * sum(found.networks.values())


# --- a network is the same whenever it is drawn, and its truth is its own ---


@pytest.mark.parametrize("seed", [0, 9, 13, 31])
def test_a_seed_gives_one_network(seed: int) -> None:
    first, second = draw(seed), draw(seed)
    assert first.describe() == second.describe()
    for one, other in zip(first.user.calls, second.user.calls, strict=True):
        assert all(map(torch.equal, one.inputs, other.inputs))
    named = second.user.named()
    assert all(torch.equal(p, named[name]) for name, p in first.user.named().items())


def test_truth_and_user_have_the_same_numbers() -> None:
    for seed in QUICK:
        case = draw(seed)
        truth = case.truth.named()
        for name, p in case.user.named().items():
            if "parametrizations" not in name:
                torch.testing.assert_close(p.double(), truth[name], rtol=0, atol=0)


@pytest.mark.parametrize("seed", [43212, 49257])
def test_a_draw_that_pytorch_refuses_is_given_up_for_the_truth_too(seed: int) -> None:
    """First comes an InstanceNorm over one place, which the norm written out would take."""
    case = draw(seed)
    assert list(case.user.named()) == list(case.truth.named())


def _second_derivative(loss: Callable[[Tensor], Tensor], at: float) -> float:
    z = torch.tensor(at, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(z), z, create_graph=True)
    return float(torch.autograd.grad(slope, z)[0])


def test_the_soft_margin_of_the_truth_is_right_where_exponentials_are_large() -> None:
    draws = (Draw(seed, honest=True, dtype=torch.float64) for seed in itertools.count())
    objectives = (of_module(d, torch.zeros(1, 1), "flat", False) for d in draws)
    objective = next(each for each in objectives if each.name == "soft margin")
    ones = torch.ones(1, 1)
    right = lambda z: objective.terms(z.expand(1, 1), ones)[0]
    assert _second_derivative(right, -500.0) == pytest.approx(0.0, abs=1e-15)
    assert _second_derivative(right, -1.0) == pytest.approx(0.25 / math.cosh(0.5) ** 2, rel=1e-14)
    # The formula of books: σ(1 - σ) is 0 there, and double backward says 1.
    assert _second_derivative(lambda z: torch.log1p(torch.exp(-z)), -500.0) > 0.9


@pytest.mark.parametrize("shape", [(5, 6, 4), (2, 6, 2, 3), (2, 6, 2, 3, 4)])
def test_group_norm_by_formula_is_that_of_pytorch(shape: tuple[int, ...]) -> None:
    x, weight, bias = torch.randn(shape), torch.randn(6), torch.randn(6)
    torch.testing.assert_close(group_norm(x, 3, weight, bias), F.group_norm(x, 3, weight, bias))
    torch.testing.assert_close(group_norm(x, 2, eps=0.1), F.group_norm(x, 2, eps=0.1))


# --- it can fail: each of these is a defect put into the library ---


def _off(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, **kwargs: function(*args, **kwargs) * (1 + 1e-6)


def _transposed_gradient(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, **kwargs: function(*args, **kwargs).flip(0)


def _leaky(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def evaluate(self: Any, *args: Any, **kwargs: Any) -> Tensor:
        for p in self.own_parameters().values():
            p.data.add_(1e-9)
        return function(self, *args, **kwargs)

    return evaluate


def _raw(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def fail(*args: Any, **kwargs: Any) -> Tensor:
        raise IndexError("list index out of range")

    return fail


DEFECTS: dict[str, tuple[type, str, Callable[..., Any], str]] = {
    "a product a millionth off": (es.Hessian, "matmat", _off, "wrong: Hessian"),
    "a gradient in another order": (es.EmpiricalRisk, "gradient", _transposed_gradient, "gradient"),
    "a parameter that moves": (es.EmpiricalRisk, "gradient", _leaky, "wrong: state"),
    "an error of Python's own": (es.Hessian, "matmat", _raw, "raw: Hessian"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, method, spoil, words = DEFECTS[name]
    monkeypatch.setattr(owner, method, spoil(getattr(owner, method)))
    found = campaign(range(3))
    assert found.networks["failed"] >= 2
    assert any(words in line for line in found.failures)


def test_a_refusal_without_need_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise es.errors.UnsupportedModelError("no")

    monkeypatch.setattr(es.Hessian, "matmat", refuse)
    answers = [answer for _, each in (examine(seed) for seed in range(3)) for answer in each]
    assert any(answer.is_failure and answer.verdict == "refused" for answer in answers)


def test_a_stale_graph_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that remembers its first answer is found by asking again after a change."""
    kept: dict[Any, Tensor] = {}
    fresh = es.Hessian.matmat

    def stale(self: Any, X: Tensor) -> Tensor:
        key = (id(self), tuple(X.shape), float(X.double().sum()))
        kept.setdefault(key, fresh(self, X))
        kept[self] = kept[key]  # so that no other operator gets this `id`
        return kept[key]

    monkeypatch.setattr(es.Hessian, "matmat", stale)
    found = campaign(range(6))
    assert any("after a change of" in line for line in found.failures)


def test_changes_of_what_the_user_owns_are_named() -> None:
    problem = draw(0).user
    before = state(problem)
    assert difference(before, state(problem)) is None
    first = next(iter(problem.model.parameters()))
    first.requires_grad_(not first.requires_grad)
    assert difference(before, state(problem)) is not None
    first.requires_grad_(not first.requires_grad)
    first.data[(0,) * first.ndim] += 1e-15
    assert "Parameter" in (difference(before, state(problem)) or "")
