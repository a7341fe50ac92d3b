"""Exponents of tails that are known, from eigenvalues and from densities."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from eigenscape.errors import (
    InvalidArgumentError,
    NonFiniteError,
    ShapeError,
    UnknownNameError,
    WrongTypeError,
)
from eigenscape.linalg import Kernel, spectral_density
from eigenscape.operator import Dense
from eigenscape.records import pack, unpack
from eigenscape_papers.papyan import PowerTail, power_tail


def quantiles(exponent: float, count: int) -> Tensor:
    """Return quantiles of the law with φ = (b − 1) λ^−b above 1."""
    u = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return (1.0 - u).pow(-1.0 / (exponent - 1.0))


def two_sided() -> Tensor:
    """Three quarters fall off with 2.7 above zero, one quarter with 3.5 below."""
    return torch.cat([quantiles(2.7, 30_000), -quantiles(3.5, 10_000)])


@pytest.mark.parametrize(("scale", "room"), [("log", 0.02), ("linear", 0.1)])
def test_either_side_has_its_own_exponent(scale: str, room: float) -> None:
    found = power_tail(two_sided(), low=1.0, high=8.0, scale=scale)
    assert found.positive is not None
    assert found.negative is not None
    assert found.positive.exponent == pytest.approx(2.7, abs=room)
    assert found.negative.exponent == pytest.approx(3.5, abs=room)
    assert 2.7 < found.both.exponent < 3.5
    assert found.positive.log_exponent == pytest.approx(1.7, abs=room)
    # φ = 0.75 · 1.7 λ^−2.7, and the middles of bins add a few per cent.
    assert found.positive.coefficient == pytest.approx(0.75 * 1.7, rel=0.1)
    assert found.positive.mass == pytest.approx(0.75 * (1 - 8**-1.7), abs=1e-3)
    assert found.positive.r_squared > 0.998
    assert found.positive.stderr < room
    assert list(found.to_frame()["side"]) == ["both", "positive", "negative"]


def test_a_density_of_quadrature_has_the_exponent_too() -> None:
    values = torch.cat([quantiles(2.7, 900), -quantiles(2.7, 900)])
    A = Dense(torch.diag(values))
    rho = spectral_density(A, num_steps=80, num_probes=4, kernel=Kernel(width=0.3), scale="log")
    smooth = power_tail(rho, low=2.0, high=15.0)
    assert smooth.both.exponent == pytest.approx(2.7, abs=0.15)
    assert smooth.both.r_squared > 0.98
    assert smooth.positive is not None
    assert smooth.positive.mass == pytest.approx(0.5 * (2**-1.7 - 15**-1.7), rel=0.25)
    # Drawn along λ with a narrow kernel it is the same law, read less precisely.
    flat = power_tail(rho, low=2.0, high=15.0, scale="linear")
    assert flat.both.exponent == pytest.approx(2.7, abs=0.6)


def test_smoothing_along_the_logarithm_keeps_a_power() -> None:
    values = quantiles(3.0, 2000)
    rho = spectral_density(Dense(torch.diag(values)), num_steps=3, num_probes=1, scale="log")
    # Nodes of our own: exact eigenvalues with equal weights.
    weights = torch.full((1, 2000), 1 / 2000, dtype=torch.float64)
    exact = dataclasses.replace(rho, nodes=values[None], weights=weights, sigma=0.1)
    found = power_tail(exact, low=1.5, high=8.0)
    assert found.both.exponent == pytest.approx(3.0, abs=0.01)
    assert found.both.coefficient == pytest.approx(2.0 * 1.02, rel=0.03)  # e^(σ²(b−1)²/2)
    assert found.negative is None


def test_a_density_is_not_read_between_nodes_far_apart() -> None:
    rho = spectral_density(Dense(torch.diag(quantiles(3.0, 50))), num_steps=3, num_probes=1)
    nodes = torch.tensor([[1.0, 1.2, 1.4, 9.0]], dtype=torch.float64)
    weights = torch.full((1, 4), 0.25, dtype=torch.float64)
    sparse = dataclasses.replace(rho, nodes=nodes, weights=weights, sigma=0.05, scale="log")
    found = power_tail(sparse, low=1.0, high=10.0, num_points=60)
    assert bool(((found.both.places < 1.6) | (found.both.places > 8.0)).all())
    assert f"{len(found.both.places)} of 60" in str(found.status)


def test_an_exponential_is_no_power() -> None:
    u = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    values = -torch.log(1.0 - u)
    near, far = (power_tail(values, low=a, high=b) for a, b in ((0.5, 1.5), (2.0, 6.0)))
    assert far.both.exponent > near.both.exponent + 1.5
    assert far.both.stderr > 0.1
    assert far.both.r_squared < 0.98


def test_empty_bins_are_left_out_and_a_side_without_values_has_no_fit() -> None:
    found = power_tail(torch.tensor([1.0, 2.0, 4.0, 8.0, 0.0]), low=0.9, high=9.0, num_points=9)
    assert found.negative is None
    assert len(found.both.places) == 4
    assert found.both.mass == pytest.approx(0.8)
    assert list(found.to_frame()["side"]) == ["both", "positive"]


def test_a_record_can_be_kept() -> None:
    found = power_tail(quantiles(2.0, 100), low=1.0, high=5.0)
    again = unpack(*pack(found))
    assert isinstance(again, PowerTail)
    assert again.both.exponent == found.both.exponent
    assert again.negative is None


def test_refusals() -> None:
    values = quantiles(2.0, 100)
    words: Any = [1.0, 2.0]
    with pytest.raises(InvalidArgumentError, match="low < high"):
        power_tail(values, low=2.0, high=1.0)
    with pytest.raises(InvalidArgumentError, match="Choose another range"):
        power_tail(values, low=1e-6, high=1e-3)
    with pytest.raises(WrongTypeError, match="list"):
        power_tail(words, low=1.0, high=2.0)
    with pytest.raises(ShapeError, match="eigenvalues"):
        power_tail(torch.eye(3), low=1.0, high=2.0)
    for lost in (torch.nan, torch.inf, -torch.inf):
        with pytest.raises(NonFiniteError, match="1 of 101 are NaN or infinite"):
            power_tail(torch.cat([values, torch.tensor([lost])]), low=1.0, high=5.0)
    with pytest.raises(UnknownNameError, match="scale"):
        power_tail(values, low=1.0, high=2.0, scale="cubic")
