"""Differences of functions whose derivatives are known, and how far they say they may be off."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eigenscape.selftest import central_difference

EPS = {torch.float64: 2.3e-16, torch.float32: 1.2e-7}
STEPS = {torch.float64: (1e-4, 1e-5, 1e-6, 1e-7), torch.float32: (1e-1, 3e-2, 1e-2, 3e-3, 1e-3)}

SMOOTH: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "cube": (lambda t: (2 + t) ** 3, 12.0),
    "exponential": (lambda t: torch.exp(3 * t), 3.0),
    "small slope on a large value": (lambda t: 1000 + torch.sin(t), 1.0),
    "large third derivative": (lambda t: torch.sin(40 * t), 40.0),
    "constant": (lambda t: 0 * t + 5.0, 0.0),
}


def at(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Callable[[float], Tensor]:
    return lambda t: function(torch.tensor(t, dtype=dtype))


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("name", SMOOTH)
def test_the_stated_error_holds(name: str, dtype: torch.dtype) -> None:
    function, slope = SMOOTH[name]
    found = central_difference(at(function, dtype), STEPS[dtype], eps=EPS[dtype], goal=1e-6)
    assert abs(found.value.item() - slope) <= found.errors.item()
    assert found.errors.item() < 0.1 * max(slope, 1.0)  # and it is not stated too wide


def test_float64_has_more_digits_than_float32() -> None:
    function, _ = SMOOTH["exponential"]
    errors = [
        central_difference(at(function, dtype), STEPS[dtype], eps=EPS[dtype], goal=1e-9).errors
        for dtype in (torch.float64, torch.float32)
    ]
    assert errors[0] < 1e-3 * errors[1]


@pytest.mark.parametrize("place", [0.0, 1e-8, 3e-5])
def test_kinks_are_seen(place: float) -> None:
    kinked = lambda t: torch.tensor(abs(t - place))
    found = central_difference(kinked, (1e-4, 1e-5, 1e-6), eps=2.3e-16, goal=1e-6)
    slope = math.copysign(1.0, -place) if place else math.nan
    assert found.errors.item() > 0.5 or abs(found.value.item() - slope) < 1e-6


def test_randomness_is_no_derivative() -> None:
    noisy = lambda t: torch.tensor(t) + 1e-3 * torch.rand(())
    found = central_difference(noisy, (1e-4, 1e-5, 1e-6), eps=2.3e-16, goal=1e-6)
    assert found.errors.item() > 1.0


def test_parts_have_their_own_errors() -> None:
    both = lambda t: torch.tensor([3 * t, 4 * t, abs(t)])
    found = central_difference(both, (1e-4, 1e-5), eps=2.3e-16, goal=1e-6, sizes=(2, 1))
    assert found.errors.shape == (2,)
    assert found.errors[0] < 1e-9 < 0.5 < found.errors[1]
    torch.testing.assert_close(found.value[:2], torch.tensor([3.0, 4.0]))


def test_the_better_of_the_steps_is_taken_for_each_part() -> None:
    both = lambda t: torch.tensor([1e6 + t, math.sin(1e3 * t)])  # rounding, and a bend
    found = central_difference(both, (1e-2, 1e-3, 1e-6, 1e-7), eps=2.3e-16, goal=0.0, sizes=(1, 1))
    assert (found.value - torch.tensor([1.0, 1e3])).abs().le(found.errors).all()
    assert found.errors[0] < 1e-4
    assert found.errors[1] < 1e-1


def test_it_stops_at_the_first_steps_that_agree() -> None:
    asked: list[float] = []

    def line(t: float) -> Tensor:
        asked.append(t)
        return torch.tensor([2 * t, -t])

    central_difference(line, (1e-2, 1e-3, 1e-4, 1e-5), eps=2.3e-16, goal=1e-6)
    assert asked == [0.0, 1e-2, -1e-2, 1e-3, -1e-3]


def test_what_is_not_finite_has_no_finite_error() -> None:
    for bad in (math.nan, math.inf):
        found = central_difference(
            lambda t, bad=bad: torch.tensor(bad + t), (1e-4, 1e-5), eps=2.3e-16, goal=1e-6
        )
        assert not found.errors.isfinite().any()


def test_one_step_has_nothing_to_agree_with() -> None:
    with pytest.raises(ValueError, match="two steps"):
        central_difference(lambda t: torch.tensor(t), (1e-4,), eps=2.3e-16, goal=1e-6)
