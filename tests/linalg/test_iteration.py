import pytest
import torch

from eigenscape.errors import (
    ConvergenceWarning,
    InvalidArgumentError,
    NonFiniteError,
    NotSymmetricError,
    ShapeError,
    WrongTypeError,
)
from eigenscape.linalg.iteration import power_iteration, subspace_iteration
from eigenscape.operators import Dense
from eigenscape.progress import Progress
from tests.linalg.matrices import Counting, nan_operator, with_spectrum

SPECTRUM = torch.cat([torch.tensor([-9.0, 6.0, -4.0, 3.0]), torch.linspace(-1, 1, 36)]).to(
    torch.float64
)


def test_power_iteration_finds_the_largest_magnitude_with_its_sign() -> None:
    matrix = with_spectrum(SPECTRUM)
    A = Counting(matrix)
    found = power_iteration(A, tolerance=1e-9)
    assert found.status.converged
    assert float(found.values) == pytest.approx(-9.0, abs=1e-12)
    true = (matrix @ found.vectors - found.values * found.vectors).norm()
    assert float(found.residuals) == pytest.approx(float(true), rel=1e-6)
    assert float(found.residuals) <= 9e-9
    assert A.count == found.num_products < 80
    assert (found.which, len(found)) == ("magnitude", 1)


@pytest.mark.parametrize("gap", [0.0, 1e-9])
def test_equal_magnitudes_of_opposite_sign_are_not_taken_for_convergence(gap) -> None:
    spectrum = torch.cat([torch.tensor([5.0, -5.0 * (1 - gap)]), torch.linspace(-1, 1, 20)])
    with pytest.warns(ConvergenceWarning, match="opposite signs.*eigsh"):
        found = power_iteration(Dense(with_spectrum(spectrum)), max_products=5000)
    assert not found.status
    assert found.num_products < 200  # It sees the swing and does not spend the rest.
    # The residual tells the truth: an eigenvalue lies in the interval.
    low, high = found.intervals()[0]
    assert ((spectrum >= low) & (spectrum <= high)).any()
    assert float(found.residuals) > 1e-2  # and it is far above the tolerance


def test_nearly_equal_magnitudes_converge_if_they_may() -> None:
    spectrum = torch.cat([torch.tensor([5.0, -4.9]), torch.linspace(-1, 1, 20)])
    A = Dense(with_spectrum(spectrum))
    found = power_iteration(A, max_products=5000)
    assert float(found.values) == pytest.approx(5.0)
    with pytest.warns(ConvergenceWarning, match="opposite signs"):
        power_iteration(A, max_products=100)


def test_slow_convergence_is_a_status_with_another_advice() -> None:
    spectrum = torch.cat([torch.tensor([5.0, 4.999]), torch.linspace(-1, 1, 20)])
    with pytest.warns(ConvergenceWarning, match="max_products"):
        found = power_iteration(Dense(with_spectrum(spectrum)), max_products=50)
    assert "opposite" not in found.status.text
    assert found.num_products == 50


@pytest.mark.parametrize("spectrum", [[3.0], [-2.0, 1.0], [0.0, 0.0, 0.0], [4.0, 4.0, 4.0]])
def test_power_iteration_on_small_and_degenerate_operators(spectrum) -> None:
    found = power_iteration(Dense(with_spectrum(spectrum)))
    top = max(spectrum, key=abs)
    assert float(found.values) == pytest.approx(top, abs=1e-10)
    assert found.status.converged


def test_start_and_seed() -> None:
    matrix = with_spectrum(SPECTRUM)
    top = torch.linalg.eigh(matrix).eigenvectors[:, 0]
    given = 3 * top
    assert power_iteration(Dense(matrix), start=given).num_products == 1
    assert torch.equal(given, 3 * top)
    one, same, other = (power_iteration(Dense(matrix), seed=s) for s in (1, 1, 2))
    assert torch.equal(one.vectors, same.vectors)
    assert not torch.equal(one.vectors, other.vectors)


def test_float32_reaches_its_rounding() -> None:
    matrix = with_spectrum(SPECTRUM).float()
    found = power_iteration(Dense(matrix))
    assert found.status.converged
    assert found.vectors.dtype == torch.float32
    assert float(found.values) == pytest.approx(-9.0, rel=1e-5)
    many = subspace_iteration(Dense(matrix), num_pairs=3)
    assert many.status.converged
    torch.testing.assert_close(many.values, SPECTRUM[:3], rtol=1e-5, atol=0)


def test_a_wrong_operator_does_not_converge() -> None:
    # It answers differently each time: no vector has a small residual.
    wrong = Counting(with_spectrum(SPECTRUM), spoil=lambda Y: Y + 0.1 * torch.randn(Y.shape))
    with pytest.warns(ConvergenceWarning):
        assert not power_iteration(wrong, max_products=200).status
    with pytest.warns(ConvergenceWarning):
        assert not subspace_iteration(wrong, num_pairs=2, max_products=400).status


# --- subspace iteration ------------------------------------------------------------------------


@pytest.mark.parametrize(("num_pairs", "num_extra"), [(1, 0), (3, 0), (4, 3)])
def test_subspace_iteration_against_eigh(num_pairs, num_extra) -> None:
    matrix = with_spectrum(SPECTRUM)
    A = Counting(matrix)
    found = subspace_iteration(A, num_pairs=num_pairs, num_extra=num_extra, tolerance=1e-8)
    assert found.status.converged
    torch.testing.assert_close(found.values, SPECTRUM[:num_pairs])
    V = found.vectors
    torch.testing.assert_close(V.T @ V, torch.eye(num_pairs))
    true = (matrix @ V - V * found.values).norm(dim=0)
    torch.testing.assert_close(found.residuals, true, atol=1e-13, rtol=1e-6)
    assert A.count == found.num_products
    assert found.num_products % (num_pairs + num_extra) == 0


def test_opposite_signs_are_told_apart() -> None:
    spectrum = torch.cat([torch.tensor([5.0, -5.0]), torch.linspace(-1, 1, 20)])
    found = subspace_iteration(Dense(with_spectrum(spectrum)), num_pairs=2)
    # Which of the two is larger in magnitude is a matter of rounding.
    torch.testing.assert_close(found.values.sort().values, torch.tensor([-5.0, 5.0]))


def test_extra_columns_save_iterations() -> None:
    spectrum = torch.cat([torch.tensor([5.0, 4.0, 3.9, 3.8]), torch.linspace(-1, 1, 20)])
    A = Dense(with_spectrum(spectrum))
    plain = subspace_iteration(A, num_pairs=2)
    helped = subspace_iteration(A, num_pairs=2, num_extra=2)
    assert helped.num_products < plain.num_products / 3


def test_fixed_iterations_are_kept() -> None:
    A = Counting(with_spectrum(SPECTRUM))
    with pytest.warns(ConvergenceWarning, match="eigsh"):
        few = subspace_iteration(A, num_pairs=3, num_iterations=4)
    assert (few.num_products, A.count) == (12, 12)
    many = subspace_iteration(A, num_pairs=3, num_iterations=100)
    assert many.num_products == 300
    assert many.status.converged
    with pytest.warns(ConvergenceWarning):
        assert subspace_iteration(A, num_pairs=3, max_products=11).num_products == 9


@pytest.mark.parametrize("spectrum", [[3.0], [-2.0, 1.0], [0.0, 0.0, 0.0], [2.0, 1.0, 0.0, 0.0]])
def test_whole_spaces_and_missing_rank(spectrum) -> None:
    n = len(spectrum)
    found = subspace_iteration(Dense(with_spectrum(spectrum)), num_pairs=n, num_extra=2)
    expected = torch.tensor(sorted(spectrum, key=abs, reverse=True))
    torch.testing.assert_close(found.values, expected, atol=1e-12, rtol=1e-12)
    assert found.num_products == n  # One Rayleigh–Ritz step in the whole space is exact.


def test_subspace_start() -> None:
    matrix = with_spectrum(SPECTRUM)
    U = torch.linalg.eigh(matrix).eigenvectors[:, [0, 39]]
    assert subspace_iteration(Dense(matrix), num_pairs=2, start=U).num_products == 2
    with pytest.raises(ShapeError):
        subspace_iteration(Dense(matrix), num_pairs=3, start=U)


def test_progress() -> None:
    seen: list[Progress] = []
    found = power_iteration(Dense(with_spectrum(SPECTRUM)), progress=seen.append)
    assert [p.done for p in seen] == list(range(1, found.num_products + 1))
    seen.clear()
    A = Dense(with_spectrum(SPECTRUM))
    subspace_iteration(A, num_pairs=1, num_iterations=60, progress=seen.append)
    assert (seen[-1].done, seen[-1].total) == (60, 60)


@pytest.mark.parametrize("run", [power_iteration, subspace_iteration])
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"operator": torch.eye(3)}, WrongTypeError),
        ({"operator": Dense(torch.ones(4, 3))}, ShapeError),
        ({"operator": Dense(torch.ones(4, 4).triu())}, NotSymmetricError),
        ({"operator": nan_operator(4)}, NonFiniteError),
        ({"start": torch.ones(3)}, ShapeError),
        ({"start": torch.zeros(4)}, ShapeError),
        ({"tolerance": 0.0}, InvalidArgumentError),
        ({"max_products": 0}, InvalidArgumentError),
        ({"seed": -1}, InvalidArgumentError),
    ],
)
def test_refusals(run, change, error) -> None:
    arguments = {"operator": Dense(torch.eye(4))} | change
    if run is subspace_iteration:
        arguments["num_pairs"] = 1
    with pytest.raises(error):
        run(arguments.pop("operator"), **arguments)


def test_subspace_refusals() -> None:
    A = Dense(torch.eye(4))
    for bad in ({"num_pairs": 5}, {"num_pairs": 0}, {"num_pairs": 2, "num_extra": -1}):
        with pytest.raises(InvalidArgumentError):
            subspace_iteration(A, **bad)
    with pytest.raises(InvalidArgumentError):
        subspace_iteration(A, num_pairs=2, num_iterations=0)
    with pytest.raises(InvalidArgumentError):
        subspace_iteration(A, num_pairs=2, max_products=1)
