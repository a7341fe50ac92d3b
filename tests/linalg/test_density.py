"""Spectral densities: against exact spectra, calibrated bands, and the same bits after a kill."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import wasserstein_distance
from torch import Tensor

from eigenscape.errors import (
    InvalidArgumentError,
    NonFiniteError,
    NotSymmetricError,
    UnknownNameError,
)
from eigenscape.linalg import Kernel, SpectralDensity, eigsh, spectral_density
from eigenscape.operator import Dense
from eigenscape.records import Progress
from tests.linalg.matrices import SPECTRA, Counting, with_spectrum


def distance(density: SpectralDensity, exact: Tensor) -> float:
    """Distance (1-Wasserstein) of the nodes and spikes to the exact spectrum, over its range."""
    nodes = density.nodes.flatten()
    weights = density.weights.flatten() / density.weights.shape[0]
    weights = weights * (1 - density.spikes.numel() / density.size)
    nodes = torch.cat([nodes, density.spikes])
    weights = torch.cat([weights, torch.full_like(density.spikes, 1 / density.size)])
    span = float(exact.max() - exact.min())
    return float(wasserstein_distance(exact.numpy(), nodes.numpy(), None, weights.numpy())) / span


def spiked_wishart(n: int) -> Tensor:
    """Papyan Fig. 15a: ZZᵀ/n with 5, 4, 3 added to the first entries of the diagonal."""
    Z = torch.from_numpy(np.random.default_rng(0).standard_normal((n, n)))
    Y = Z @ Z.T / n
    Y[range(3), range(3)] += torch.tensor([5.0, 4.0, 3.0])
    return (Y + Y.T) / 2


def heavy_tailed(n: int) -> Tensor:
    """Papyan Fig. 15b: ZᵀZ/n, entries of Z (n/2, n) Pareto with index 1; half of it is zero."""
    uniform = np.random.default_rng(1).uniform(size=(n // 2, n))
    Z = torch.from_numpy(1.0 / (1.0 - uniform))
    Y = Z.T @ Z / n
    return (Y + Y.T) / 2


def test_papyan_figure_15a() -> None:
    matrix = spiked_wishart(2000)
    exact = torch.linalg.eigvalsh(matrix)
    rho = spectral_density(Dense(matrix), num_steps=128, num_probes=10, kernel=Kernel(kappa=3.0))
    # Sampling moves the mean of the spectrum by its standard error, here 0.8 % of the mean, which
    # is 0.13 % of the range; three such errors bound the distance.
    assert distance(rho, exact) < 0.004
    assert rho.integral() == pytest.approx(1.0, abs=1e-6)
    spikes = eigsh(Dense(matrix), num_pairs=3)
    sharper = spectral_density(Dense(matrix), num_steps=128, num_probes=10, outliers=spikes)
    assert distance(sharper, exact) < 0.004
    assert sharper.count(4.2, 10.0) == (3.0, 0.0)
    # Marchenko–Pastur with ratio 1 ends at 4, where the largest bulk eigenvalue is.
    assert sharper.edges[1] == pytest.approx(float(exact[-4]), rel=1e-3)


def test_papyan_figure_15b() -> None:
    matrix = heavy_tailed(1000)
    exact = torch.linalg.eigvalsh(matrix).clamp_min(0.0)
    epsilon = 1e-6
    rho = spectral_density(
        Dense(matrix), num_steps=256, num_probes=10, scale="log", epsilon=epsilon
    )
    logs = (exact + epsilon).log()
    nodes = (rho.nodes.abs() + epsilon).log().flatten()
    moved = wasserstein_distance(logs.numpy(), nodes.numpy(), None, rho.weights.flatten().numpy())
    # Half the mass is at log ε; each probe gets it right to √(1/4 / (n/2)); three errors of the
    # mean of ten probes, over about half of the range, are 0.01.
    assert moved / float(logs.max() - logs.min()) < 0.01
    assert rho.integral() == pytest.approx(1.0, abs=1e-3)
    assert rho.scale == "log"


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize("name", SPECTRA)
def test_it_integrates_to_one(name: str, scale: str) -> None:
    matrix = with_spectrum(SPECTRA[name](120))
    rho = spectral_density(Dense(matrix), num_steps=20, num_probes=3, scale=scale)
    assert rho.integral() == pytest.approx(1.0, abs=2e-3)
    assert bool((rho.density >= 0).all())
    spikes = eigsh(Dense(matrix), num_pairs=5, which="magnitude")
    rho = spectral_density(Dense(matrix), num_steps=20, num_probes=3, scale=scale, outliers=spikes)
    assert rho.integral() == pytest.approx(1.0, abs=2e-3)
    assert torch.trapezoid(rho.density, rho.grid).item() == pytest.approx(1 - 5 / 120, abs=2e-3)


def test_moments_are_unbiased_and_their_errors_calibrated() -> None:
    values = SPECTRA["indefinite"](80)
    A = Dense(with_spectrum(values))
    errors, stderrs = [], []
    for seed in range(200):
        rho = spectral_density(A, num_steps=4, num_probes=10, seed=seed, num_points=2)
        mean, stderr = rho.moment(2)
        errors.append(mean - float((values**2).mean()))
        stderrs.append(stderr)
    error, stderr = torch.tensor(errors), torch.tensor(stderrs)
    # 4 standard errors of a mean of 200.
    assert abs(error.mean()) < 4 * error.std() / math.sqrt(200)
    # A variance from 10 probes has relative deviation √(2/9); averaged over 200 seeds, and with the
    # spread of the 200 errors themselves (√(2/200)), 4 deviations are 0.42.
    assert abs(stderr.square().mean() / error.var() - 1) < 0.42


def test_the_band_is_calibrated() -> None:
    values = SPECTRA["indefinite"](80)
    A = Dense(with_spectrum(values))
    points = torch.tensor([-0.5, 0.5, 1.5])
    kernel = Kernel(width=0.3)
    truth = torch.exp(-0.5 * ((points[:, None] - values) / 0.3) ** 2).mean(1) / (
        0.3 * math.sqrt(2 * math.pi)
    )
    errors, stderrs = [], []
    for seed in range(200):
        rho = spectral_density(A, num_steps=40, num_probes=10, kernel=kernel, seed=seed)
        density, stderr = rho.evaluate(points)
        errors.append(density - truth)
        stderrs.append(stderr)
    error, stderr = torch.stack(errors), torch.stack(stderrs)
    assert bool((error.mean(0).abs() < 4 * error.std(0) / math.sqrt(200)).all())
    assert bool(((stderr.square().mean(0) / error.var(0) - 1).abs() < 0.42).all())


def test_a_single_probe_has_an_honest_band() -> None:
    values = SPECTRA["indefinite"](80)
    A = Dense(with_spectrum(values))
    errors, stderrs = [], []
    for seed in range(200):
        rho = spectral_density(A, num_steps=8, num_probes=1, seed=seed, num_points=2)
        mean, stderr = rho.moment(1)
        errors.append(mean - float(values.mean()))
        stderrs.append(stderr)
    inside = torch.tensor(errors).abs() <= 2 * torch.tensor(stderrs)
    # 95.4 %, less 4 binomial deviations.
    assert float(inside.double().mean()) >= 0.954 - 4 * math.sqrt(0.954 * 0.046 / 200)
    assert spectral_density(Dense(torch.eye(9)), num_steps=3, num_probes=1).moment(1) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("low", "high", "num_steps"), [(-0.05, 0.05, 10), (0.5, 100.0, 10), (-1.0, 0.0, 4)]
)
def test_a_count_says_what_few_steps_cannot_resolve(
    low: float, high: float, num_steps: int
) -> None:
    values = SPECTRA["indefinite"](300)
    A = Dense(torch.diag(values))
    true = int(((values > low) & (values <= high)).sum())
    inside = 0
    for seed in range(100):
        rho = spectral_density(A, num_steps=num_steps, num_probes=2, seed=seed, num_points=2)
        count, stderr = rho.count(low, high)
        inside += abs(count - true) <= 2 * stderr
    assert inside >= 90


def test_a_count_between_two_nodes_is_not_zero_without_an_error() -> None:
    values = SPECTRA["indefinite"](300)
    rho = spectral_density(Dense(torch.diag(values)), num_steps=10, num_probes=4)
    gap = rho.nodes[0].sort().values[4:6].tolist()
    count, stderr = rho.count(gap[0] + 1e-3, gap[1] - 1e-3)
    assert stderr > 1.0
    true = int(((values > gap[0] + 1e-3) & (values <= gap[1] - 1e-3)).sum())
    assert abs(count - true) <= 2 * stderr


def test_a_space_that_is_exhausted_leaves_no_error_of_resolution() -> None:
    A = Dense(with_spectrum([1.0] * 20 + [2.0] * 20))
    rho = spectral_density(A, num_steps=10, num_probes=300)
    count, stderr = rho.count(1.5, 2.5)
    assert abs(count - 20.0) <= 3 * stderr
    # 40 · √(2 · ¼/42)/√300: what 300 probes leave.
    assert stderr == pytest.approx(40 * math.sqrt(0.5 / 42 / 300), rel=0.1)


def test_a_curve_that_steps_do_not_resolve_says_so() -> None:
    # On a logarithmic axis a few steps see nothing of what is near zero.
    values = torch.logspace(-6, 0, 200, dtype=torch.float64)
    A, points = Dense(torch.diag(values)), torch.log(torch.tensor([1e-4, 1e-2, 0.5]))
    kernel = Kernel(width=0.7)
    exact = torch.exp(-0.5 * ((points[:, None] - values.log()) / 0.7) ** 2).mean(1)
    exact /= 0.7 * math.sqrt(2 * math.pi)
    rho = spectral_density(A, num_steps=8, num_probes=50, scale="log", kernel=kernel)
    density, stderr = rho.evaluate(points)
    assert float((density - exact).abs().max()) > 0.03  # the error is there
    assert bool(((density - exact).abs() <= 3 * stderr).all())


def test_moments_beyond_numbers_are_refused() -> None:
    rho = spectral_density(Dense(1e200 * torch.eye(9, dtype=torch.float64)), num_steps=3)
    assert rho.moment(1)[0] == pytest.approx(1e200)
    with pytest.raises(NonFiniteError, match="Divide the operator"):
        rho.moment(2)


def test_counts() -> None:
    values = torch.cat([torch.zeros(60), torch.ones(30), torch.full((10,), 5.0)])
    matrix = with_spectrum(values)
    A = Dense(matrix)
    rho = spectral_density(A, num_steps=10, num_probes=64)
    for low, high, number in ((-0.5, 0.5, 60), (0.5, 1.5, 30), (4.0, 6.0, 10)):
        count, stderr = rho.count(low, high)
        assert abs(count - number) < 4 * stderr
        assert stderr < 5
    spikes = eigsh(A, num_pairs=10)
    exact = spectral_density(A, num_steps=10, num_probes=2, outliers=spikes)
    assert exact.count(4.0, 6.0) == (10.0, 0.0)


def test_memory_budget_and_probes_do_not_change_the_answer() -> None:
    A = Dense(with_spectrum(SPECTRA["decaying"](60)))
    wide = spectral_density(A, num_steps=9, num_probes=5)
    narrow = spectral_density(A, num_steps=9, num_probes=5, memory_budget=1)
    torch.testing.assert_close(wide.density, narrow.density, rtol=1e-9, atol=1e-12)
    assert wide.num_products == narrow.num_products == 45


def test_kernels() -> None:
    assert Kernel(width=0.25).sigma(3.0, 10) == 0.25
    assert Kernel(kappa=3.0).sigma(1.0, 101) == pytest.approx(
        2 / (100 * math.sqrt(8 * math.log(3.0)))
    )
    assert Kernel().sigma(2.0, 100) == pytest.approx(math.pi / 100)
    with pytest.raises(InvalidArgumentError, match="got both"):
        Kernel(width=1.0, kappa=3.0)
    with pytest.raises(InvalidArgumentError, match="exceed 1"):
        Kernel(kappa=1.0)


@pytest.mark.parametrize("matrix", [torch.zeros(4, 4), 3.0 * torch.eye(5), torch.eye(1)])
@pytest.mark.parametrize("scale", ["linear", "log"])
def test_degenerate_spectra(matrix: Tensor, scale: str) -> None:
    matrix = matrix.double()
    rho = spectral_density(Dense(matrix), num_steps=3, num_probes=2, scale=scale)
    assert bool(rho.density.isfinite().all())
    assert rho.integral() == pytest.approx(1.0, abs=1e-3)


class KilledError(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("budget", [10**9, 1])
def test_killed_and_resumed_it_gives_the_same_bits(tmp_path: Path, budget: int) -> None:
    matrix = with_spectrum(SPECTRA["indefinite"](50))
    options = {"num_steps": 23, "num_probes": 3, "memory_budget": budget, "seed": 2}
    whole = spectral_density(Dense(matrix), **options)

    def die(p: Progress) -> None:
        if p.done >= 50:
            raise KilledError

    with pytest.raises(KilledError):
        spectral_density(Dense(matrix), **options, checkpoint=tmp_path, progress=die)
    counter = Counting(matrix)
    resumed = spectral_density(counter, **options, checkpoint=tmp_path)
    for name in ("grid", "density", "stderr", "nodes", "weights"):
        torch.testing.assert_close(getattr(resumed, name), getattr(whole, name), rtol=0, atol=0)
    assert counter.count < 69 - 25


def test_progress_counts_products() -> None:
    seen: list[Progress] = []
    A = Dense(with_spectrum(SPECTRA["decaying"](20)))
    spectral_density(A, num_steps=4, num_probes=3, memory_budget=1, progress=seen.append)
    assert [p.done for p in seen] == list(range(1, 13))
    assert {p.total for p in seen} == {12}


def test_refusals() -> None:
    A = Dense(torch.eye(5))
    with pytest.raises(UnknownNameError, match="'linear', 'log'"):
        spectral_density(A, scale="sqrt")
    with pytest.raises(NotSymmetricError):
        spectral_density(Dense(torch.tensor([[0.0, 1.0], [0.0, 0.0]])))
    spikes = eigsh(A, num_pairs=5)
    with pytest.raises(InvalidArgumentError, match="leaves nothing"):
        spectral_density(A, outliers=spikes)
    with pytest.raises(InvalidArgumentError, match="one per value"):
        spectral_density(Dense(torch.eye(6)), outliers=eigsh(A, num_pairs=2))


def test_redrawing_costs_no_product_and_gives_the_same_curve() -> None:
    A = Counting(with_spectrum(SPECTRA["indefinite"](60)))
    linear = spectral_density(A, num_steps=15, num_probes=3)
    spent = A.count
    again = linear.redraw(scale="log").redraw()
    assert A.count == spent
    torch.testing.assert_close(again.density, linear.density, rtol=0, atol=0)
    log = spectral_density(A, num_steps=15, num_probes=3, scale="log", kernel=Kernel(width=0.3))
    redrawn = linear.redraw(scale="log", kernel=Kernel(width=0.3))
    for name in ("grid", "density", "stderr"):
        torch.testing.assert_close(getattr(redrawn, name), getattr(log, name), rtol=0, atol=0)


def test_without_reorthogonalisation_there_may_be_more_steps_than_dimensions() -> None:
    values = SPECTRA["indefinite"](30)
    rho = spectral_density(
        Dense(with_spectrum(values)), num_steps=50, num_probes=20, reorthogonalise=False
    )
    assert rho.nodes.shape == (20, 50)
    mean, stderr = rho.moment(2)
    assert abs(mean - float((values**2).mean())) < 4 * stderr
