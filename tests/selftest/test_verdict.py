"""What is right passes, what is wrong is found, and what cannot be told is said to be so.

The functions are small networks whose own parameters are moved, as a user's are.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eigenscape.records import Check, SelfTest
from eigenscape.selftest import compare, displaced
from tests.oracles.saved_swish import SavedSwish

SETTINGS: dict[torch.dtype, dict[str, Any]] = {
    torch.float64: {"steps": (1e-4, 1e-5, 1e-6, 1e-7), "eps": 2.3e-16, "floor": 1e-5},
    torch.float32: {"steps": (1e-1, 3e-2, 1e-2, 3e-3, 1e-3), "eps": 1.2e-7, "floor": 2e-3},
}
both_dtypes = pytest.mark.parametrize("dtype", SETTINGS)


Act = Callable[[Tensor], Tensor]
swish: Act = lambda h: h * torch.sigmoid(h)
half_hidden: Act = lambda h: h * torch.sigmoid(h).detach()


class Subject:
    """The loss of a network along a line of its own parameters."""

    def __init__(self, act: Act, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)).to(dtype)
        self.params, self.act = list(self.model.parameters()), act
        self.x, self.y = torch.randn(8, 4, dtype=dtype), torch.randint(0, 3, (8,))
        self.way = [0.3 * torch.randn_like(p) for p in self.params]

    def loss(self) -> Tensor:
        z = self.model[1](self.act(self.model[0](self.x)))
        return nn.functional.cross_entropy(z, self.y)

    def gradient(self, *, create_graph: bool = False) -> Tensor:
        parts = torch.autograd.grad(self.loss(), self.params, create_graph=create_graph)
        return torch.cat([part.flatten() for part in parts])

    def flat_way(self) -> Tensor:
        return torch.cat([way.flatten() for way in self.way])

    def product(self) -> Tensor:
        slope = self.gradient(create_graph=True) @ self.flat_way()
        return torch.cat([p.flatten() for p in torch.autograd.grad(slope, self.params)])

    @contextmanager
    def along(self, what: Callable[[], Tensor]) -> Iterator[Callable[[float], Tensor]]:
        with displaced(self.params) as move:

            def at(step: float) -> Tensor:
                move(self.way, step)
                return what().detach()

            yield at


def first_order(subject: Subject, dtype: torch.dtype) -> Check:
    believed = subject.gradient() @ subject.flat_way()
    with subject.along(subject.loss) as at:
        return compare("slope", at, believed, **SETTINGS[dtype])


def second_order(subject: Subject, dtype: torch.dtype, believed: Tensor | None = None) -> Check:
    believed = subject.product() if believed is None else believed
    with subject.along(subject.gradient) as at:
        return compare("product", at, believed, **SETTINGS[dtype])


@both_dtypes
@pytest.mark.parametrize("act", [torch.tanh, swish])
def test_right_derivatives_pass(act: Act, dtype: torch.dtype) -> None:
    for check in (
        first_order(Subject(act, dtype), dtype),
        second_order(Subject(act, dtype), dtype),
    ):
        assert check.is_resolved
        assert not check.is_wrong


@both_dtypes
def test_a_wrong_gradient_is_found(dtype: torch.dtype) -> None:
    assert first_order(Subject(half_hidden, dtype), dtype).is_wrong


@both_dtypes
def test_a_wrong_product_under_a_right_gradient_is_found(dtype: torch.dtype) -> None:
    subject = Subject(SavedSwish.apply, dtype)
    assert not first_order(subject, dtype).is_wrong
    assert second_order(subject, dtype).is_wrong


@both_dtypes
def test_the_derivative_of_another_function_is_found(dtype: torch.dtype) -> None:
    subject, other = Subject(swish, dtype), Subject(torch.tanh, dtype)
    assert second_order(subject, dtype, other.product()).is_wrong


def test_one_part_that_is_wrong_is_not_lost_among_large_right_ones() -> None:
    both = lambda t: torch.tensor([1e6 * t, 1e6 * t, 3 * t])
    believed = torch.tensor([1e6, 1e6, 3.3])
    settings = SETTINGS[torch.float64]
    assert not compare("all at once", both, believed, **settings).is_wrong
    parts = {"sizes": (2, 1), "noise": (0.0, 0.0), "scales": (0.0, 0.0)}
    assert compare("by parts", both, believed, **settings, **parts).is_wrong


def test_a_part_that_hardly_counts_need_not_have_its_own_digits() -> None:
    tiny, believed = lambda t: torch.tensor([1e-6 * t]), torch.tensor([1.5e-6])
    settings = SETTINGS[torch.float64]
    assert compare("alone", tiny, believed, **settings).is_wrong
    assert not compare("beside larger ones", tiny, believed, scales=(1.0,), **settings).is_wrong


def test_noise_of_what_is_believed_is_not_held_against_it() -> None:
    line, believed = lambda t: torch.tensor([t]), torch.tensor([1.01])
    settings = SETTINGS[torch.float64]
    assert compare("exact", line, believed, **settings).is_wrong
    assert not compare("noisy", line, believed, noise=(0.005,), **settings).is_wrong


@pytest.mark.parametrize("believed", [math.nan, math.inf])
def test_a_belief_that_is_not_finite_is_not_passed(believed: float) -> None:
    check = compare(
        "slope", lambda t: torch.tensor([t]), torch.tensor([believed]), **SETTINGS[torch.float64]
    )
    assert check.is_wrong or not check.is_resolved


@pytest.mark.parametrize(
    "function",
    [
        lambda t: torch.tensor([abs(t)]),
        lambda t: torch.tensor([math.floor(1e3 * t) / 1e3]),
        lambda t: torch.rand(1),
        lambda t: torch.tensor([math.nan]),
    ],
    ids=["kink", "steps", "random", "nan"],
)
def test_what_cannot_be_told_is_neither_right_nor_wrong(
    function: Callable[[float], Tensor],
) -> None:
    check = compare("slope", function, torch.tensor([0.3]), **SETTINGS[torch.float64])
    assert not check.is_resolved
    assert not check.is_wrong
    verdict = SelfTest.of([check])
    assert verdict.verdict == "unresolved"
    assert str(verdict).startswith("Unresolved, because differences")


def test_a_function_without_a_slope_is_right_to_be_zero() -> None:
    flat = compare("slope", lambda t: torch.ones(2), torch.zeros(2), **SETTINGS[torch.float64])
    assert not flat.is_wrong
    wrong = compare("slope", lambda t: torch.ones(2), torch.ones(2), **SETTINGS[torch.float64])
    assert wrong.is_wrong


def test_the_verdict_says_what_agreed_and_to_how_many_digits() -> None:
    good = compare("slope", lambda t: torch.tensor([t]), torch.ones(1), **SETTINGS[torch.float64])
    verdict = SelfTest.of([good])
    assert verdict.verdict == "passed"
    assert "slope to 1e-06" in str(verdict)
    assert SelfTest.of([good], "one batch cannot run alone").verdict == "unresolved"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_parameters_come_back_where_the_function_fails(error: type[BaseException]) -> None:
    subject = Subject(torch.tanh, torch.float64)
    before = [p.detach().clone() for p in subject.params]
    calls = iter(range(3))

    def interrupted() -> Tensor:
        if next(calls) == 2:
            raise error
        return subject.loss()

    run = partial(compare, "slope", believed=torch.zeros(1), **SETTINGS[torch.float64])
    with pytest.raises(error), subject.along(interrupted) as at:
        run(function=at)
    assert all(map(torch.equal, subject.params, before))
