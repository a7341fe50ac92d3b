import math

import pytest
import torch

from eigenscape.errors import (
    ConvergenceWarning,
    InvalidArgumentError,
    NonFiniteError,
    ShapeError,
    UnknownNameError,
    WrongTypeError,
)
from eigenscape.linalg import (
    Hutchinson,
    HutchPlusPlus,
    TraceMethod,
    XTrace,
    block_traces,
    draw_probes,
    trace,
)
from eigenscape.linalg._few_samples import widening
from eigenscape.operator import Dense
from eigenscape.records import Progress
from eigenscape.space import Block, ParamSpace, Partition
from tests.linalg.matrices import SPECTRA, Counting, nan_operator, with_spectrum

METHODS = [Hutchinson(), HutchPlusPlus(), XTrace()]
NUM_SEEDS = 300


def runs(
    matrix: torch.Tensor, method: TraceMethod, num_products: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Errors and standard errors over all seeds."""
    A, true = Dense(matrix), float(matrix.trace())
    found = [
        trace(A, num_products=num_products, method=method, seed=s, tolerance=None)
        for s in range(NUM_SEEDS)
    ]
    errors = torch.tensor([estimate.value - true for estimate in found])
    return errors, torch.tensor([estimate.stderr for estimate in found])


def check_unbiased(errors: torch.Tensor) -> None:
    # The mean of NUM_SEEDS independent errors is normal with this standard deviation; 4 of them are
    # passed with probability 6e-5, for all cases of this file together 2e-3.
    assert abs(errors.mean()) <= 4 * errors.std() / math.sqrt(NUM_SEEDS)


def check_variance(errors: torch.Tensor, stderr: torch.Tensor, probes: int) -> None:
    # Both sides are means over seeds: of stderr² and of error², the first without what is added for
    # few probes. The bound is 4 standard deviations of their difference, measured from the same
    # sample, since the errors are not normal.
    difference = (stderr / widening(probes)).square() - errors.square()
    spread = difference.std() / math.sqrt(NUM_SEEDS)
    assert abs(difference.mean()) <= 4 * spread


def check_coverage(errors: torch.Tensor, stderr: torch.Tensor) -> None:
    # 95.4 % of normal errors are below 2 standard errors. Over N seeds the share is binomial: 4
    # standard deviations are 4 √(p(1−p)/N) ≈ 0.048, and 0.02 more allow for quadratic forms being
    # skewed, which no factor knows.
    share = float((errors.abs() <= 2 * stderr + 1e-12).double().mean())
    assert share >= 0.954 - 0.048 - 0.02


@pytest.mark.parametrize("spectrum", SPECTRA.values(), ids=SPECTRA.keys())
@pytest.mark.parametrize(
    ("method", "probes"),
    [(Hutchinson(), 36), (Hutchinson(kind="gaussian"), 36), (HutchPlusPlus(), 12), (XTrace(), 18)],
    ids=["rademacher", "gaussian", "hutch++", "xtrace"],
)
def test_standard_errors_are_calibrated(method, probes, spectrum) -> None:
    errors, stderr = runs(with_spectrum(spectrum(60)), method, 36)
    check_unbiased(errors)
    check_variance(errors, stderr, probes)
    check_coverage(errors, stderr)


@pytest.mark.parametrize("spectrum", SPECTRA.values(), ids=SPECTRA.keys())
@pytest.mark.parametrize("kind", ["rademacher", "gaussian", "sphere"])
def test_two_probes_have_an_honest_error(kind, spectrum) -> None:
    errors, stderr = runs(with_spectrum(spectrum(60)), Hutchinson(kind=kind), 2)
    check_coverage(errors, stderr)


@pytest.mark.parametrize("spectrum", SPECTRA.values(), ids=SPECTRA.keys())
@pytest.mark.parametrize("method", [HutchPlusPlus(), XTrace()])
@pytest.mark.parametrize("num_products", [6, 8])
def test_few_products_have_an_honest_error(num_products, method, spectrum) -> None:
    errors, stderr = runs(with_spectrum(spectrum(40)), method, num_products)
    check_coverage(errors, stderr)


def test_a_diagonal_spike_is_exact_for_signs_and_honest_for_all_else() -> None:
    matrix = torch.diag(torch.cat([torch.tensor([30.0]), torch.linspace(0, 1, 39)]).double())
    assert trace(Dense(matrix), num_products=2).stderr == 0.0
    errors, stderr = runs(matrix, Hutchinson(kind="sphere"), 3)
    check_coverage(errors, stderr)
    errors, stderr = runs(matrix, XTrace(), 6)
    check_coverage(errors, stderr)


def test_the_spread_of_two_samples_alone_would_be_no_error() -> None:
    # What the check above is there for: two samples of one direction, taken for their spread.
    u = torch.ones(40, 1, dtype=torch.float64)
    A = Dense(u @ u.T)
    V = [draw_probes(A, 2, seed=seed) for seed in range(NUM_SEEDS)]
    samples = torch.stack([(v * (A @ v)).sum(0) for v in V])
    with pytest.raises(AssertionError):
        check_coverage(samples.mean(1) - 40.0, samples.std(1) / math.sqrt(2))
    errors, stderr = runs(A.to_dense(), Hutchinson(), 2)
    check_coverage(errors, stderr)


def test_xtrace_error_needs_the_covariance_of_its_estimates() -> None:
    # Without it the variance comes out at half: the check above can tell.
    from eigenscape.linalg import _xtrace

    matrix = with_spectrum(SPECTRA["decaying"](60))
    errors, _ = runs(matrix, XTrace(), 36)
    naive = []
    for seed in range(NUM_SEEDS):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_xtrace, "_covariance", lambda *a: 0.0)
            naive.append(trace(Dense(matrix), num_products=36, method=XTrace(), seed=seed).stderr)
    small = torch.tensor(naive) / float(widening(18))
    assert small.square().mean() < 0.7 * errors.square().mean()
    with pytest.raises(AssertionError):
        check_variance(errors, small, 10**9)


def left_out(matrix: torch.Tensor, probes: torch.Tensor, i: int, skip: set[int]) -> torch.Tensor:
    """XTrace's estimate from probe i with the range of all probes not in `skip`, by definition."""
    n, m = probes.shape
    others = [j for j in range(m) if j not in skip]
    Q, _ = torch.linalg.qr(matrix @ probes[:, others])
    z = probes[:, i] - Q @ (Q.T @ probes[:, i])
    return (Q.T @ matrix @ Q).trace() + (n - len(others)) * (z @ matrix @ z) / (z @ z)


def variance_left(matrix: torch.Tensor, probes: torch.Tensor, i: int) -> torch.Tensor:
    """The variance of XTrace's estimate from probe i given the others, as probe i shows it."""
    n, m = probes.shape
    Q, _ = torch.linalg.qr(matrix @ probes[:, [j for j in range(m) if j != i]])
    P = torch.eye(n, dtype=torch.float64) - Q @ Q.T
    z, d = P @ probes[:, i], n - m + 1
    z = z * (d**0.5 / z.norm())
    y = P @ matrix @ z
    return 2 * (y - (z @ y / d) * z).square().sum()


@pytest.mark.parametrize("seed", [14, 15])  # a covariance below 0, cut off, is among them
@pytest.mark.parametrize("symmetric", [True, False])
def test_xtrace_against_its_definition(symmetric, seed) -> None:
    matrix, m = with_spectrum(SPECTRA["decaying"](25) - 0.1), 6
    matrix = matrix if symmetric else matrix.triu(-1)
    A = Dense(matrix)
    probes = draw_probes(A, m, seed=seed, kind="sphere")
    one = torch.stack([left_out(matrix, probes, i, {i}) for i in range(m)])
    moved = [
        (one[i] - left_out(matrix, probes, i, {i, j}))
        * (one[j] - left_out(matrix, probes, j, {i, j}))
        for i in range(m)
        for j in range(m)
        if i != j
    ]
    own = float(torch.stack([variance_left(matrix, probes, i) for i in range(m)]).mean())
    covariance = min(max(float(torch.stack(moved).mean()), 0.0), own)
    found = trace(A, num_products=2 * m, method=XTrace(), seed=seed)
    assert found.value == pytest.approx(float(one.mean()), rel=1e-10)
    variance = own / m + (1 - 1 / m) * covariance
    assert found.stderr == pytest.approx(float(widening(m)) * math.sqrt(variance), rel=1e-8)


def test_calibration_checks_find_a_biased_operator() -> None:
    matrix = with_spectrum(SPECTRA["indefinite"](60))
    errors, stderr = runs(matrix, Hutchinson(), 36)
    with pytest.raises(AssertionError):
        check_unbiased(errors + 0.5 * errors.std())
    with pytest.raises(AssertionError):
        check_variance(errors, 2 * stderr, 36)


@pytest.mark.parametrize("method", [HutchPlusPlus(), XTrace()])
def test_steep_spectra_are_nearly_exact(method) -> None:
    # 0.5^i: what 20 directions leave is 1e-6 of the trace.
    spectrum = 0.5 ** torch.arange(80.0)
    estimate = trace(Dense(with_spectrum(spectrum)), num_products=60, method=method)
    assert estimate.value == pytest.approx(2.0, abs=1e-5)
    assert estimate.stderr < 1e-5
    assert abs(estimate.value - 2.0) <= 5 * estimate.stderr + 1e-13


@pytest.mark.parametrize("method", [HutchPlusPlus(), XTrace()])
@pytest.mark.parametrize("rank", [0, 1, 4])
def test_low_rank_is_exact_and_costs_less(method, rank) -> None:
    spectrum = torch.zeros(50)
    spectrum[:rank] = torch.tensor([3.0, -1.0, 2.0, 0.5])[:rank]
    A = Counting(with_spectrum(spectrum))
    estimate = trace(A, num_products=36, method=method)
    assert estimate.value == pytest.approx(float(spectrum.sum()), abs=1e-12)
    assert estimate.stderr < 1e-12
    assert A.count == estimate.num_products <= 36
    if isinstance(method, XTrace):
        assert A.count == 18 + rank


@pytest.mark.parametrize("method", METHODS)
def test_operators_that_are_not_symmetric(method) -> None:
    matrix = torch.triu(with_spectrum(SPECTRA["decaying"](40)), diagonal=-1)
    errors, stderr = runs(matrix, method, 24)
    check_unbiased(errors)
    check_coverage(errors, stderr)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_enough_products_are_exact(method, n) -> None:
    matrix = torch.arange(1.0, n * n + 1).reshape(n, n)
    A = Counting(matrix)
    estimate = trace(A, num_products=max(n, 1), method=method)
    assert (estimate.value, estimate.stderr) == (float(matrix.trace()), 0.0)
    assert (estimate.num_products, A.count, estimate.method) == (n, n, "exact")
    assert "Exact" in estimate.status.text


@pytest.mark.parametrize("method", METHODS)
def test_budget_is_kept_and_seed_and_batch_do_what_they_say(method) -> None:
    A = Counting(with_spectrum(SPECTRA["indefinite"](60)))
    first = trace(A, num_products=31, method=method, seed=3)
    assert A.count == first.num_products <= 31
    assert first.num_products >= 30
    assert trace(A, num_products=31, method=method, seed=3).to_dict() == first.to_dict()
    assert trace(A, num_products=31, method=method, seed=4).value != first.value
    small = trace(A, num_products=31, method=type(method)(batch=3), seed=3)
    assert small.value == pytest.approx(first.value, rel=1e-12)
    assert small.stderr == pytest.approx(first.stderr, rel=1e-9)


def test_batch_bounds_the_columns_of_a_product() -> None:
    for method in (Hutchinson(batch=4), HutchPlusPlus(batch=4), XTrace(batch=4)):
        A = Counting(with_spectrum(SPECTRA["indefinite"](60)))
        trace(A, num_products=30, method=method)
        assert A.widest == 4
    wide = Counting(with_spectrum(SPECTRA["indefinite"](60)))
    trace(wide, num_products=30, method=Hutchinson(batch=30))
    assert wide.widest == 30


@pytest.mark.parametrize("method", METHODS)
def test_tolerance_stops_early_and_holds(method) -> None:
    A = Counting(with_spectrum(0.9 ** torch.arange(400.0) + 1.0))
    estimate = trace(A, num_products=390, method=method, tolerance=0.05)
    assert estimate.status.converged
    assert estimate.num_probes >= 10
    assert estimate.stderr <= 0.05 * abs(estimate.value)
    assert A.count == estimate.num_products < 390


def test_tolerance_is_not_fooled_by_few_probes() -> None:
    # A constant diagonal gives equal samples, so two probes would do; ten are asked for.
    estimate = trace(
        Dense(torch.eye(50)), num_products=40, method=Hutchinson(batch=1), tolerance=0.1
    )
    assert (estimate.num_probes, estimate.value) == (10, 50.0)


def test_early_stopping_keeps_the_coverage() -> None:
    # Stopping when the standard error looks small favours those that came out too small. With
    # 10 probes or more that costs a few per cent: 0.95 − 4 binomial deviations (0.05) − 0.05.
    A = Dense(with_spectrum(SPECTRA["indefinite"](400) + 1.0))
    method = Hutchinson(batch=2)
    found = [trace(A, num_products=399, method=method, tolerance=0.02, seed=s) for s in range(300)]
    inside = [abs(e.value - 600.0) <= 2 * e.stderr for e in found]
    assert sum(inside) / 300 >= 0.85


@pytest.mark.parametrize("method", METHODS)
def test_tolerance_not_reached_is_a_status_and_a_warning(method) -> None:
    A = Dense(with_spectrum(SPECTRA["indefinite"](60) - 0.49))
    with pytest.warns(ConvergenceWarning, match="num_products"):
        estimate = trace(A, num_products=30, method=method, tolerance=1e-6)
    assert not estimate.status
    assert math.isfinite(estimate.value)


def test_float32_is_as_good_as_its_products() -> None:
    matrix = with_spectrum(SPECTRA["low rank and noise"](60))
    for method in METHODS:
        double = trace(Dense(matrix), num_products=36, method=method)
        single = trace(Dense(matrix.float()), num_products=36, method=method)
        assert single.value == pytest.approx(double.value, rel=1e-4)
        assert isinstance(single.value, float)


def test_sums_are_accumulated_in_float64() -> None:
    # A float32 sum of 2**25 and many ones stands still; each probe's dot is one of these.
    diagonal = torch.ones(3000, dtype=torch.float32)
    diagonal[0] = 2.0**25
    estimate = trace(Dense(torch.diag(diagonal)), num_products=2)
    assert estimate.value == 2.0**25 + 2999


def test_progress_counts_products() -> None:
    seen: list[Progress] = []
    trace(Dense(torch.eye(90)), num_products=40, progress=seen.append)
    assert [p.done for p in seen] == [16, 32, 40]
    assert {p.total for p in seen} == {40}


def test_a_wrong_operator_gives_a_wrong_trace() -> None:
    matrix = with_spectrum(SPECTRA["indefinite"](40) + 2.0)
    wrong = Counting(matrix, spoil=lambda Y: 1.5 * Y)
    for method in METHODS:
        estimate = trace(wrong, num_products=30, method=method)
        assert abs(estimate.value - float(matrix.trace())) > 4 * estimate.stderr


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"operator": torch.eye(3)}, WrongTypeError),
        ({"operator": Dense(torch.ones(3, 4))}, ShapeError),
        ({"operator": nan_operator()}, NonFiniteError),
        ({"num_products": 1}, InvalidArgumentError),
        ({"num_products": 5.0}, WrongTypeError),
        ({"num_products": 5, "method": XTrace()}, InvalidArgumentError),
        ({"num_products": 5, "method": HutchPlusPlus()}, InvalidArgumentError),
        ({"method": "hutchinson"}, WrongTypeError),
        ({"tolerance": 0.0}, InvalidArgumentError),
        ({"seed": -1}, InvalidArgumentError),
    ],
)
def test_refusals(change, error) -> None:
    arguments = {"operator": Dense(torch.eye(8)), "num_products": 6} | change
    with pytest.raises(error):
        trace(arguments.pop("operator"), **arguments)


def test_method_refusals() -> None:
    with pytest.raises(UnknownNameError):
        Hutchinson(kind="cauchy")
    for method in (Hutchinson, HutchPlusPlus, XTrace):
        with pytest.raises(InvalidArgumentError):
            method(batch=0)


# --- blocks ----------------------------------------------------------------------------------

SPACE = ParamSpace({"a.weight": (3, 4), "a.bias": (4,), "b.weight": (21,), "c": (3,)})


def test_block_traces_are_calibrated() -> None:
    matrix = with_spectrum(SPECTRA["indefinite"](40))
    A, partition = Dense(matrix, space=SPACE), Partition.by_tensor(SPACE)
    true = torch.stack([block.take(matrix.diagonal()).sum() for block in partition])
    found = [block_traces(A, partition, num_products=20, seed=s) for s in range(NUM_SEEDS)]
    errors = torch.stack([f.values for f in found]) - true
    stderr = torch.stack([f.stderr for f in found])
    for b in range(len(partition)):
        check_unbiased(errors[:, b])
        check_coverage(errors[:, b], stderr[:, b])
        # Σ of the entries' variances is within a factor 2 of that of their sum; the mean of 300
        # squared errors deviates by 8 %, of which 3 are allowed for.
        ratio = float((stderr[:, b] / widening(20)).square().mean() / errors[:, b].square().mean())
        assert 0.76 < ratio < 2.48
    assert found[0].names == ("a.weight", "a.bias", "b.weight", "c")


def test_block_traces_add_up_to_the_trace_of_the_same_probes() -> None:
    A = Dense(with_spectrum(SPECTRA["decaying"](40)), space=SPACE)
    parts = block_traces(A, Partition.by_layer(SPACE), num_products=25, seed=5, batch=7)
    whole = trace(A, num_products=25, seed=5)
    assert float(parts.values.sum()) == pytest.approx(whole.value, rel=1e-12)
    assert parts.num_products == parts.num_probes == 25


def test_block_traces_are_exact_with_enough_products_and_need_not_cover() -> None:
    matrix = with_spectrum(SPECTRA["indefinite"](40))
    strided = Partition(SPACE, [Block("even", (range(0, 40, 2),)), Block("five", (range(5, 6),))])
    A = Counting(matrix, space=SPACE)
    found = block_traces(A, strided, num_products=40)
    expected = torch.stack([matrix.diagonal()[::2].sum(), matrix[5, 5]])
    torch.testing.assert_close(found.values, expected)
    assert float(found.stderr.abs().max()) == 0.0
    assert A.count == found.num_products == 40


def test_block_traces_refuse_a_foreign_partition() -> None:
    A = Dense(torch.eye(40), space=SPACE)
    with pytest.raises(ShapeError):
        block_traces(A, Partition.by_tensor(ParamSpace.flat(40)), num_products=4)
    with pytest.raises(WrongTypeError):
        block_traces(A, "a", num_products=4)
    with pytest.raises(InvalidArgumentError):
        block_traces(A, Partition.by_tensor(SPACE), num_products=1)
