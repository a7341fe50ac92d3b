import math

import pytest
import torch

from eigenscape.errors import (
    ConvergenceWarning,
    InvalidArgumentError,
    NonFiniteError,
    ShapeError,
    WrongTypeError,
)
from eigenscape.linalg import diagonal
from eigenscape.linalg._few_samples import widening
from eigenscape.operator import Dense
from eigenscape.records import Progress
from tests.linalg.matrices import SPECTRA, Counting, nan_operator, with_spectrum

NUM_SEEDS = 300


@pytest.mark.parametrize("spectrum", SPECTRA.values(), ids=SPECTRA.keys())
def test_every_entry_is_unbiased_and_calibrated(spectrum) -> None:
    n, m = 40, 20
    matrix = with_spectrum(spectrum(n))
    matrix[:4, 4:] *= 0.1  # rows of unequal size, and no symmetry
    found = [diagonal(Dense(matrix), num_products=m, seed=s) for s in range(NUM_SEEDS)]
    errors = torch.stack([f.values for f in found]) - matrix.diagonal()
    variance = torch.stack([f.stderr for f in found]).square().mean(0)
    true = (matrix.square().sum(1) - matrix.diagonal().square()) / m
    # Theory: the mean error has variance true/N, and of n entries the worst stays within 4.5
    # deviations with probability 1 − n · 7e-6.
    assert (errors.mean(0).abs() <= 4.5 * (true / NUM_SEEDS).sqrt()).all()
    # A variance from m samples has relative deviation of at most √(2/(m−1)) (Rademacher sums have
    # negative excess kurtosis), a mean of N of them √N less: 4.5 of those.
    bound = 4.5 * math.sqrt(2 / (m - 1) / NUM_SEEDS)
    variance = variance / widening(m - 1).square()  # what is added for few samples
    assert ((variance / true - 1).abs() <= bound).all()
    # Binomial share of |error| ≤ 2 stderr; entries of one seed are dependent, so only the seeds
    # count as independent: 4 √(0.046·0.954/300) = 0.048.
    inside = errors.abs() <= 2 * torch.stack([f.stderr for f in found])
    assert float(inside.double().mean()) == pytest.approx(0.954, abs=0.048)


def test_two_probes_have_honest_errors() -> None:
    matrix = with_spectrum(SPECTRA["decaying"](40))
    found = [diagonal(Dense(matrix), num_products=2, seed=s) for s in range(NUM_SEEDS)]
    errors = torch.stack([f.values for f in found]) - matrix.diagonal()
    inside = errors.abs() <= 2 * torch.stack([f.stderr for f in found])
    assert float(inside.double().mean()) == pytest.approx(0.954, abs=0.048)


def test_a_wrong_operator_is_noticed() -> None:
    matrix = with_spectrum(SPECTRA["indefinite"](40) + 3.0)
    wrong = Counting(matrix, spoil=lambda Y: Y.roll(1, 0))
    found = diagonal(wrong, num_products=30)
    off = (found.values - matrix.diagonal()).abs() > 3.5 * found.stderr
    assert off.double().mean() > 0.9


@pytest.mark.parametrize("n", [1, 2, 7, 33])
def test_enough_products_are_exact(n) -> None:
    matrix = torch.arange(1.0, n * n + 1).reshape(n, n)
    A = Counting(matrix)
    found = diagonal(A, num_products=n + 3)
    assert torch.equal(found.values, matrix.diagonal())
    assert torch.equal(found.stderr, torch.zeros(n))
    assert A.count == found.num_products == n
    assert found.num_probes == 0
    assert "Exact" in found.status.text


def test_a_diagonal_matrix_is_exact_from_two_probes() -> None:
    values = torch.linspace(-2, 3, 9)
    found = diagonal(Dense(torch.diag(values)), num_products=2)
    torch.testing.assert_close(found.values, values)
    assert float(found.stderr.max()) == 0.0


def test_batches_change_nothing_and_seeds_do() -> None:
    A = Counting(with_spectrum(SPECTRA["decaying"](30)))
    one, other = (diagonal(A, num_products=20, seed=2, batch=b) for b in (3, 20))
    torch.testing.assert_close(one.values, other.values)
    torch.testing.assert_close(one.stderr, other.stderr)
    assert A.widest == 20
    assert not torch.equal(one.values, diagonal(A, num_products=20, seed=3).values)


def test_float32_products_are_accumulated_in_float64() -> None:
    matrix = with_spectrum(SPECTRA["decaying"](30))
    single = diagonal(Dense(matrix.float()), num_products=20)
    double = diagonal(Dense(matrix), num_products=20)
    assert single.values.dtype == torch.float64
    torch.testing.assert_close(single.values, double.values, rtol=1e-5, atol=1e-6)


def test_tolerance_stops_early_or_warns() -> None:
    A = Counting(with_spectrum(SPECTRA["indefinite"](200) + 4.0))
    found = diagonal(A, num_products=150, tolerance=0.1)
    assert found.status.converged
    assert 10 <= found.num_products == A.count < 150
    assert found.stderr.norm() <= 0.1 * found.values.norm()
    with pytest.warns(ConvergenceWarning, match="num_products"):
        assert not diagonal(A, num_products=20, tolerance=1e-6).status


def test_progress() -> None:
    seen: list[Progress] = []
    diagonal(Dense(torch.eye(9)), num_products=7, batch=3, progress=seen.append)
    assert [p.done for p in seen] == [3, 6, 7]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"operator": torch.eye(3)}, WrongTypeError),
        ({"operator": Dense(torch.ones(3, 4))}, ShapeError),
        ({"operator": nan_operator()}, NonFiniteError),
        ({"num_products": 1}, InvalidArgumentError),
        ({"batch": 0}, InvalidArgumentError),
        ({"tolerance": -1.0}, InvalidArgumentError),
        ({"seed": 0.5}, WrongTypeError),
    ],
)
def test_refusals(change, error) -> None:
    arguments = {"operator": Dense(torch.eye(8)), "num_products": 6} | change
    with pytest.raises(error):
        diagonal(arguments.pop("operator"), **arguments)
