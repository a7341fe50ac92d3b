"""Student's factor, and variances that come from products rather than from their spread."""

import math

import pytest
import torch
from scipy import stats

from eigenscape.linalg import draw_probes
from eigenscape.linalg._few_samples import Moments, QuadraticSamples, root_of, widening
from eigenscape.linalg.probes import KINDS
from eigenscape.operator import Dense
from tests.linalg.matrices import SPECTRA, with_spectrum


@pytest.mark.parametrize("freedom", [1, 2, 5, 30.5])
def test_two_widened_errors_cover_what_two_normal_ones_do(freedom: float) -> None:
    inside = 1 - 2 * stats.t.sf(2 * float(widening(freedom)), freedom)
    assert inside == pytest.approx(1 - 2 * stats.norm.sf(2), abs=1e-9)


def test_many_samples_need_no_widening() -> None:
    assert float(widening(1e6)) == pytest.approx(1.0, abs=1e-5)
    assert widening(torch.tensor([1.0, 2.0])).tolist() == [float(widening(n)) for n in (1, 2)]


@pytest.mark.parametrize("kind", KINDS)
def test_variances_from_products_are_those_of_the_samples(kind: str) -> None:
    A = Dense(with_spectrum(SPECTRA["indefinite"](40)))
    V = draw_probes(A, 4000, seed=0, kind=kind)
    found, Y = QuadraticSamples(kind), A @ V
    for part in range(0, 4000, 500):
        found.add(V[:, part : part + 500], Y[:, part : part + 500])
    samples = (V * Y).sum(0)
    assert found.value == pytest.approx(float(samples.mean()), rel=1e-12)
    # The variance of 4000 samples deviates by √(2/4000), 2 %; a standard error by half of it.
    expected = float(samples.std()) / math.sqrt(4000)
    assert found.stderr == pytest.approx(expected, rel=4 * 0.011)


def test_portions_do_not_change_moments() -> None:
    samples = 1e6 + torch.randn(3, 50, generator=torch.Generator().manual_seed(0)).double()
    whole, parts = Moments(), Moments()
    whole.add(samples)
    for portion in samples.split(7, dim=1):
        parts.add(portion)
    torch.testing.assert_close(parts.mean, whole.mean, rtol=1e-14, atol=0)
    torch.testing.assert_close(parts.variance, samples.var(1), rtol=1e-8, atol=0)
    torch.testing.assert_close(
        parts.stderr, samples.std(1) / math.sqrt(50) * widening(49), rtol=1e-8, atol=0
    )


def test_one_sample_has_no_error() -> None:
    moments, quadratic = Moments(), QuadraticSamples("rademacher")
    moments.add(torch.ones(2, 1))
    quadratic.add(torch.ones(2, 1), torch.ones(2, 1))
    assert bool(moments.stderr.isinf().all())
    assert math.isinf(quadratic.stderr)
    assert bool(root_of(moments)[1].isinf().all())


def test_the_error_of_a_root_is_half_of_that_of_its_square_where_it_is_small() -> None:
    moments = Moments()
    draw = torch.Generator().manual_seed(0)
    moments.add(4.0 + 0.01 * torch.randn(1, 1000, generator=draw, dtype=torch.float64))
    root, stderr = root_of(moments)
    assert float(root) == pytest.approx(2.0, rel=1e-3)
    assert float(stderr) == pytest.approx(float(moments.stderr) / 4, rel=1e-3)


def test_equal_squares_have_a_root_without_an_error() -> None:
    moments = Moments()
    moments.add(torch.tensor([[9.0, 9.0], [0.0, 0.0]], dtype=torch.float64))
    root, stderr = root_of(moments)
    assert (root.tolist(), stderr.tolist()) == ([3.0, 0.0], [0.0, 0.0])
