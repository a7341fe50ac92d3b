import pytest
import torch
from torch import Tensor

from eigenscape.errors import (
    ConvergenceWarning,
    InvalidArgumentError,
    NonFiniteError,
    NotSymmetricError,
    ShapeError,
    WrongTypeError,
)
from eigenscape.linalg import eigsh, power_iteration, subspace_iteration
from eigenscape.operator import Dense
from eigenscape.records import Progress
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
    # Columns that are missing are random, and the given ones help all the same.
    third = subspace_iteration(Dense(matrix), num_pairs=3, start=U)
    assert third.num_products < subspace_iteration(Dense(matrix), num_pairs=3).num_products
    with pytest.raises(ShapeError, match="at least one column and at most 1; got 2"):
        subspace_iteration(Dense(matrix), num_pairs=1, start=U)


# --- the Chebyshev filter ----------------------------------------------------------------------

F64 = {"dtype": torch.float64}  # module level: before the fixture that makes it the default


def five_over_a_bulk(n: int = 600) -> Tensor:
    """Return five times 1.02 just above a dense bulk from 0 to 1."""
    return torch.cat([torch.full((5,), 1.02, **F64), torch.linspace(0.0, 1.0, n - 5, **F64)])


FILTERED = {
    "repeated, near a bulk": five_over_a_bulk(),
    "more copies than columns": torch.cat([torch.full((15,), 1.02, **F64), five_over_a_bulk(400)]),
    "outliers over a cluster": torch.cat(
        [torch.tensor([1000.0, 300.0, -1.0], **F64), five_over_a_bulk(300)]
    ),
    "both signs": torch.cat([torch.tensor([3.0, -3.0, 2.0, -2.5, 2.0], **F64), SPECTRUM / 10]),
    "rank three": torch.cat([torch.tensor([3.0, 2.0, 1.0], **F64), torch.zeros(97, **F64)]),
    "constant": torch.full((100,), -2.0, **F64),
    "zero": torch.zeros(50, **F64),
    "decaying": 1.0 / torch.arange(1, 301, **F64) ** 2,
    "fewer rows than columns": torch.tensor([2.0, 1.0, 0.5, -1.5, 3.0, 2.0], **F64),
}


@pytest.mark.parametrize("degree", [3, 12, 30])
@pytest.mark.parametrize("which", ["largest", "smallest", "magnitude"])
@pytest.mark.parametrize("name", FILTERED)
def test_filtered_pairs_of_every_spectrum_and_end(name, which, degree) -> None:
    spectrum = -FILTERED[name] if which == "smallest" else FILTERED[name]
    matrix = with_spectrum(spectrum)
    A = Counting(matrix)
    found = subspace_iteration(A, num_pairs=5, which=which, degree=degree, max_products=50_000)
    assert found.status, found.status
    assert A.count == found.num_products
    down = spectrum.sort(descending=True).values
    by_size = spectrum[spectrum.abs().argsort(descending=True)]
    wanted = {"largest": down[:5], "smallest": down[-5:], "magnitude": by_size[:5]}[which]
    values = found.values
    if which == "magnitude":  # ± of one magnitude may come in any order
        values, wanted = values.abs(), wanted.abs()
    torch.testing.assert_close(
        values, wanted, atol=1e-9 * max(1.0, float(down.abs().max())), rtol=0
    )
    V = found.vectors
    torch.testing.assert_close(V.T @ V, torch.eye(5), atol=1e-12, rtol=0)
    true = (matrix @ V - V * found.values).norm(dim=0)
    torch.testing.assert_close(found.residuals, true, atol=1e-11, rtol=1e-6)


def test_the_filter_finds_copies_that_one_starting_vector_misses() -> None:
    A = Dense(with_spectrum(five_over_a_bulk()))
    single = eigsh(A, num_pairs=5, block_size=1, num_check=0)
    assert single.status  # each pair is one, but not all of the five copies are among them
    assert int((single.values > 1.01).sum()) < 5
    found = subspace_iteration(A, num_pairs=5, which="largest", degree=10)
    torch.testing.assert_close(found.values, torch.full((5,), 1.02), atol=1e-9, rtol=0)
    with_powers = subspace_iteration(A, num_pairs=5, num_extra=5, max_products=20_000)
    assert with_powers.status
    # Measured: 686 and 3910.
    assert found.num_products < with_powers.num_products / 4


def test_the_filter_in_float32() -> None:
    found = subspace_iteration(
        Dense(with_spectrum(five_over_a_bulk()).float()), num_pairs=5, which="largest", degree=10
    )
    assert found.status, found.status
    assert found.vectors.dtype == torch.float32
    torch.testing.assert_close(found.values, torch.full((5,), 1.02), atol=1e-6, rtol=0)


def test_a_high_degree_neither_overflows_nor_drowns_small_pairs() -> None:
    # T_400 at the first value would be about 1e2400.
    spectrum = torch.cat([torch.tensor([1e6, 1e3, 7.0, 5.0]), torch.linspace(0.0, 1.0, 196)])
    A = Dense(with_spectrum(spectrum))
    found = subspace_iteration(A, num_pairs=4, which="largest", degree=400)
    assert found.status
    torch.testing.assert_close(found.values, spectrum[:4], rtol=1e-9, atol=1e-8)


def test_locked_pairs_are_multiplied_no_more() -> None:
    class Widths(Counting):
        widths: list[int]

        def matmat(self, X: Tensor) -> Tensor:
            self.widths.append(X.shape[1])
            return super().matmat(X)

    spectrum = torch.cat([torch.tensor([50.0, 40.0, 30.0, 1.05]), torch.linspace(0.0, 1.0, 296)])
    A = Widths(with_spectrum(spectrum))
    A.widths = []
    found = subspace_iteration(A, num_pairs=4, which="largest", degree=10)
    assert found.status
    assert A.widths[:16] == [1] * 16  # the look at the spectrum's ends
    assert A.widths[16] == 4 + 5
    assert A.widths[-1] == 4 + 5 - 3


def test_a_filter_from_nearby_vectors_and_its_budget() -> None:
    matrix = with_spectrum(five_over_a_bulk())
    cold = subspace_iteration(Dense(matrix), num_pairs=5, which="largest", degree=10)
    nearby = Counting(matrix + 1e-4 * with_spectrum(five_over_a_bulk(), seed=4))
    options = {"num_pairs": 5, "which": "largest", "degree": 10}
    warm = subspace_iteration(nearby, **options, start=cold.vectors)
    again = subspace_iteration(nearby, **options)
    assert warm.num_products < again.num_products
    torch.testing.assert_close(warm.values, again.values, rtol=1e-9, atol=0)
    seen: list[Progress] = []
    nearby.count = 0
    with pytest.warns(ConvergenceWarning, match="degree"):
        few = subspace_iteration(nearby, **options, max_products=150, progress=seen.append)
    assert (seen[-1].done, seen[-1].total) == (few.num_products, 150)
    assert 140 < few.num_products == nearby.count <= 150


def test_filter_refusals() -> None:
    A = Dense(with_spectrum(SPECTRUM))
    for bad, words in (
        ({"degree": 0}, "degree"),
        ({"which": "largest"}, "degree=20"),
        ({"which": "both", "degree": 8}, "'magnitude', 'largest', 'smallest'"),
        ({"degree": 8, "num_extra": 0}, "num_extra"),
        ({"degree": 8, "num_iterations": 3}, "max_products"),
        ({"degree": 8, "max_products": 16}, "at least 22"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            subspace_iteration(A, num_pairs=2, **bad)


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
