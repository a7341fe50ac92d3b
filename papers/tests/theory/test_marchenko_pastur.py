"""The generalised Marchenko–Pastur law: closed forms, symmetries, and simulated eigenvalues."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eigenscape import errors
from eigenscape_papers.theory import (
    SpectralLaw,
    marchenko_pastur,
    spectral_law,
    spectral_moments,
    stieltjes_transform,
)

F64 = torch.float64
ONE = torch.ones(1, dtype=F64)
MIXED = torch.tensor([-1.0, 0.3, 2.0, 0.0], dtype=F64)


def classical_density(x: Tensor, y: float, variance: float) -> Tensor:
    """Dong's MP(y, σ²), without its atom."""
    low, high = (variance * (1.0 + sign * math.sqrt(y)) ** 2 for sign in (-1, 1))
    return ((high - x) * (x - low)).clamp_min(0.0).sqrt() / (2.0 * math.pi * variance * y * x)


def integral(law: SpectralLaw, power: int) -> float:
    return float((law.points**power * law.density * law.quadrature).sum())


# --- closed forms --------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.25, 1.0, 2.5])
def test_equal_weights_have_the_classical_law(gamma: float) -> None:
    law = spectral_law(ONE, ratio=gamma, num_points=100)
    expected = classical_density(law.points, gamma, 1.0)
    torch.testing.assert_close(law.density, expected, rtol=1e-6, atol=1e-6)
    assert law.lower == pytest.approx((1.0 - math.sqrt(gamma)) ** 2, abs=1e-14)
    assert law.upper == pytest.approx((1.0 + math.sqrt(gamma)) ** 2, rel=1e-14)
    assert law.zero_mass == pytest.approx(max(0.0, 1.0 - 1.0 / gamma))
    assert law.mass == pytest.approx(1.0, abs=1e-7)
    assert law.status.converged


@pytest.mark.parametrize(("share", "gamma"), [(0.5, 0.3), (0.25, 0.3), (0.25, 0.1)])
def test_indicators_have_the_laws_of_dongs_proposition_6(share: float, gamma: float) -> None:
    masses = torch.tensor([1.0 - share, share], dtype=F64)
    law = spectral_law(torch.tensor([0.0, 1.0]), ratio=gamma, masses=masses, num_points=100)
    expected = classical_density(law.points, gamma / share, share)
    torch.testing.assert_close(law.density, expected, rtol=1e-5, atol=1e-6)
    assert law.zero_mass == pytest.approx(max(0.0, 1.0 - share / gamma))


def test_the_transform_solves_the_quadratic_equation() -> None:
    y, variance = 0.4, 3.0
    z = torch.tensor([0.1 + 1e-6j, 2.0 + 0.01j, -5.0 + 1j, 9.0 + 30j], dtype=torch.complex128)
    s = stieltjes_transform(z, torch.tensor([variance]), ratio=y)
    left = y * z * variance * s**2 + (z - variance * (1.0 - y)) * s + 1.0
    torch.testing.assert_close(left, torch.zeros_like(left), atol=1e-12, rtol=0.0)
    assert bool((s.imag > 0.0).all())
    # The other solution of the quadratic is below the axis.
    assert bool((1.0 / (y * z * variance * s)).imag.lt(0.0).all())


def test_moments_by_hand() -> None:
    gamma = 0.7
    k1, k2, k3 = (gamma ** (k - 1) * float(MIXED.pow(k).mean()) for k in (1, 2, 3))
    found = spectral_moments(MIXED, ratio=gamma, order=3).tolist()
    assert found == pytest.approx([k1, k2 + k1**2, k3 + 3 * k1 * k2 + k1**3], rel=1e-14)


# --- weights of either sign ----------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.1, 0.5, 0.75, 1.0, 3.0])
def test_densities_have_the_moments(gamma: float) -> None:
    law = spectral_law(MIXED, ratio=gamma, num_points=600)
    found = [integral(law, k) for k in range(1, 5)]
    expected = spectral_moments(MIXED, ratio=gamma).tolist()
    assert found == pytest.approx(expected, rel=1e-3)
    assert law.mass == pytest.approx(1.0, abs=1e-3)


def test_negative_weights_mirror_the_law() -> None:
    weights = torch.tensor([0.1, 0.5, 2.0], dtype=F64)
    law, mirrored = (spectral_law(t, ratio=0.3, num_points=50) for t in (weights, -weights))
    torch.testing.assert_close(mirrored.points, -law.points.flip(0))
    torch.testing.assert_close(mirrored.density, law.density.flip(0), rtol=1e-6, atol=1e-9)
    assert (mirrored.lower, mirrored.upper) == (-law.upper, -law.lower)


@pytest.mark.parametrize("gamma", [0.2, 0.9, 2.0])
def test_ends_are_where_the_density_ends(gamma: float) -> None:
    weights = torch.tensor([0.2, 1.0, 5.0], dtype=F64)
    law = spectral_law(weights, ratio=gamma)
    lower, upper = law.lower, law.upper
    x = torch.tensor([0.999 * lower, 1.001 * lower, 0.999 * upper, 1.001 * upper], dtype=F64)
    z = torch.complex(x, torch.full((4,), 1e-12, dtype=F64))
    outside, inside, inside_too, outside_too = stieltjes_transform(z, weights, ratio=gamma).imag
    assert max(float(outside), float(outside_too)) < 1e-4
    assert min(float(inside), float(inside_too)) > 1e-3


def test_weights_that_spread_over_decades() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(300, generator=generator, dtype=F64).mul(2.0).exp()
    law = spectral_law(weights, ratio=0.4, num_points=300)
    assert law.residual < 1e-10
    assert law.mass == pytest.approx(1.0, abs=2e-3)


# --- simulation ----------------------------------------------------------------------------------


def eigenvalues(weights: Tensor, d: int, seed: int) -> Tensor:
    x = torch.randn(len(weights), d, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return torch.linalg.eigvalsh(x.T @ (weights[:, None] * x) / len(weights))


@pytest.mark.parametrize(("d", "N"), [(40, 100), (30, 20)], ids=["d < N", "d > N"])
def test_eigenvalues_of_larger_matrices_come_closer(d: int, N: int) -> None:
    law = spectral_law(MIXED, ratio=d / N, num_points=500)
    distances = [
        sum(
            law.wasserstein(eigenvalues(MIXED.repeat(N * k // 4), d * k, seed)) for seed in range(4)
        )
        / 4
        for k in (1, 2, 8)
    ]
    spread = law.upper - law.lower
    assert distances[0] > 1.4 * distances[1] > 3.0 * distances[2]
    assert distances[2] < 0.005 * spread
    # The law of another ratio is not taken for this one.
    other = spectral_law(MIXED, ratio=1.3 * d / N, num_points=500)
    assert other.wasserstein(eigenvalues(MIXED.repeat(2 * N), 8 * d, 0)) > 4 * distances[2]


def test_distances_of_known_distributions() -> None:
    law = spectral_law(ONE, ratio=0.25, num_points=50)
    share = law.density * law.quadrature
    centre = float((law.points * share).sum() / share.sum())
    # From a point that lies left of the law, the distance is that of the means.
    assert law.wasserstein(torch.tensor([-3.0])) == pytest.approx(centre + 3.0)
    # Zeros are at the law's atom already: the rest has to be moved there.
    atom = spectral_law(ONE, ratio=2.5, num_points=50)
    assert atom.wasserstein(torch.zeros(7)) == pytest.approx(integral(atom, 1), rel=1e-6)


# --- how it is computed --------------------------------------------------------------------------


def test_the_map_takes_over_where_newton_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    z = torch.tensor([0.2 + 0.5j, 1.0 + 1j], dtype=torch.complex128)
    expected = stieltjes_transform(z, MIXED, ratio=0.6)
    steps: list[int] = []

    def count(s: Tensor, *rest: object) -> Tensor:
        steps.append(len(s))
        return iterate(s, *rest)

    iterate = marchenko_pastur._iterate
    monkeypatch.setattr(marchenko_pastur, "_newton", lambda s, *_: s.conj().resolve_conj())
    monkeypatch.setattr(marchenko_pastur, "_iterate", count)
    torch.testing.assert_close(stieltjes_transform(z, MIXED, ratio=0.6), expected)
    assert steps


def test_parts_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = spectral_law(MIXED, ratio=0.6, num_points=31)
    monkeypatch.setattr(marchenko_pastur, "_PART", 4 * len(MIXED))
    parts = spectral_law(MIXED, ratio=0.6, num_points=31)
    torch.testing.assert_close(parts.density, whole.density, rtol=1e-9, atol=1e-12)


def test_too_few_points_are_a_warning() -> None:
    with pytest.warns(errors.ConvergenceWarning, match="num_points"):
        law = spectral_law(torch.tensor([0.01, 1.0, 30.0]), ratio=0.9, num_points=6)
    assert not law.status.converged
    assert list(law.columns()) == ["point", "density"]


REFUSALS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "ratio": (lambda: spectral_law(ONE, ratio=0.0), errors.InvalidArgumentError, "above 0"),
    "no tensor": (lambda: spectral_law([1.0], ratio=1.0), errors.WrongTypeError, "real tensor"),
    "matrix": (
        lambda: spectral_law(torch.ones(2, 2), ratio=1.0),
        errors.ShapeError,
        "two vectors of one length",
    ),
    "masses of another length": (
        lambda: spectral_moments(ONE, ratio=1.0, masses=torch.ones(2)),
        errors.ShapeError,
        r"got \(1,\) and \(2,\)",
    ),
    "zero weights": (
        lambda: spectral_law(torch.zeros(3), ratio=1.0),
        errors.InvalidArgumentError,
        "not all zero",
    ),
    "negative masses": (
        lambda: spectral_law(MIXED, ratio=1.0, masses=-torch.ones(4)),
        errors.InvalidArgumentError,
        "0 or more",
    ),
    "points": (
        lambda: spectral_law(ONE, ratio=1.0, num_points=1),
        errors.InvalidArgumentError,
        "at least 2",
    ),
    "below the axis": (
        lambda: stieltjes_transform(torch.tensor([1.0 - 1j]), ONE, ratio=1.0),
        errors.InvalidArgumentError,
        "above the real axis",
    ),
    "order": (
        lambda: spectral_moments(ONE, ratio=1.0, order=0),
        errors.InvalidArgumentError,
        "at least 1",
    ),
}


@pytest.mark.parametrize(("call", "error", "words"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refusals(call: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
