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
from eigenscape.linalg import block_norms, frobenius_norm, spectral_norm
from eigenscape.operator import Dense
from eigenscape.records import Progress
from eigenscape.space import Block, ParamSpace, Partition
from tests.linalg.matrices import SPECTRA, Counting, nan_operator, with_spectrum

NUM_SEEDS = 300


def check_calibrated(errors: torch.Tensor, stderr: torch.Tensor, scale: float) -> None:
    """Check N seeds of one estimate; 4.5 deviations of each mean, measured from the sample."""
    # A root is biased low by stderr²/(2 value), second order beside its stderr: added to the bound.
    bias = float(errors.square().mean()) / (2 * scale)
    assert abs(errors.mean()) <= 4.5 * errors.std() / math.sqrt(NUM_SEEDS) + bias
    # 4 binomial deviations of 95.4 % are 0.048; sums of squares with few dominant directions are
    # skewed otherwise than χ², for which 0.02 are allowed.
    assert float((errors.abs() <= 2 * stderr).double().mean()) >= 0.954 - 0.048 - 0.02
    # And not far too large: 1.5 for samples of a single direction, the most skewed.
    assert float(stderr.square().mean() / errors.square().mean()) < 2.0**2


@pytest.mark.parametrize("spectrum", SPECTRA.values(), ids=SPECTRA.keys())
def test_frobenius_norm_is_calibrated(spectrum) -> None:
    matrix = with_spectrum(spectrum(60))
    true = float(matrix.norm())
    found = [frobenius_norm(Dense(matrix), num_products=20, seed=s) for s in range(NUM_SEEDS)]
    errors = torch.tensor([f.value for f in found]) - true
    check_calibrated(errors, torch.tensor([f.stderr for f in found]), true)


@pytest.mark.parametrize("num_products", [2, 5])
@pytest.mark.parametrize("spectrum", SPECTRA.values(), ids=SPECTRA.keys())
def test_few_products_have_an_honest_error(spectrum, num_products) -> None:
    matrix = with_spectrum(spectrum(60))
    A, true = Dense(matrix), float(matrix.norm())
    found = [frobenius_norm(A, num_products=num_products, seed=s) for s in range(NUM_SEEDS)]
    inside = [abs(f.value - true) <= 2 * f.stderr for f in found]
    assert sum(inside) / NUM_SEEDS >= 0.954 - 0.048 - 0.02


@pytest.mark.parametrize("shape", [(7, 40), (40, 7), (1, 30), (30, 1), (1, 1), (2, 2)])
def test_frobenius_norm_of_rectangles(shape) -> None:
    matrix = torch.arange(1.0, shape[0] * shape[1] + 1).reshape(shape)
    A = Counting(matrix)
    exact = frobenius_norm(A, num_products=shape[1])
    assert exact.value == pytest.approx(float(matrix.norm()), rel=1e-14)
    assert (exact.stderr, exact.num_probes, A.count) == (0.0, 0, shape[1])
    if shape[1] > 20:
        found = frobenius_norm(A, num_products=20)
        assert abs(found.value - exact.value) <= 4 * found.stderr


def test_frobenius_norm_of_zero_and_of_a_wrong_operator() -> None:
    zero = frobenius_norm(Dense(torch.zeros(9, 9)), num_products=3)
    assert (zero.value, zero.stderr) == (0.0, 0.0)
    matrix = with_spectrum(SPECTRA["indefinite"](40))
    wrong = frobenius_norm(Counting(matrix, spoil=lambda Y: 1.5 * Y), num_products=30)
    assert abs(wrong.value - float(matrix.norm())) > 4 * wrong.stderr


def test_frobenius_norm_tolerance() -> None:
    A = Counting(with_spectrum(SPECTRA["indefinite"](300)))
    found = frobenius_norm(A, num_products=200, tolerance=0.02)
    assert found.status.converged
    assert 10 <= found.num_products == A.count < 200
    with pytest.warns(ConvergenceWarning, match="num_products"):
        assert not frobenius_norm(A, num_products=20, tolerance=1e-5).status


def test_frobenius_norm_in_float32_sums_in_float64() -> None:
    matrix = with_spectrum(SPECTRA["low rank and noise"](50))
    single = frobenius_norm(Dense(matrix.float()), num_products=50)
    assert single.value == pytest.approx(float(matrix.norm()), rel=1e-6)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"operator": torch.eye(3)}, WrongTypeError),
        ({"operator": nan_operator()}, NonFiniteError),
        ({"num_products": 1}, InvalidArgumentError),
        ({"batch": 0}, InvalidArgumentError),
        ({"tolerance": 0.0}, InvalidArgumentError),
        ({"seed": -3}, InvalidArgumentError),
    ],
)
def test_frobenius_refusals(change, error) -> None:
    arguments = {"operator": Dense(torch.eye(8)), "num_products": 6} | change
    with pytest.raises(error):
        frobenius_norm(arguments.pop("operator"), **arguments)


# --- blocks ----------------------------------------------------------------------------------

SPACE = ParamSpace({"a": (30,), "b": (25,), "c": (3,), "d": (2,)})
ROWS = ParamSpace({"p": (22,), "q": (6,)})


def dense_norms(matrix, rows: Partition, columns: Partition) -> torch.Tensor:
    return torch.stack(
        [torch.stack([c.take(r.take(matrix).T).norm() for c in columns]) for r in rows]
    )


def test_block_norms_of_a_symmetric_operator_are_calibrated() -> None:
    matrix = with_spectrum(SPECTRA["decaying"](60))
    parts = Partition.by_tensor(SPACE)
    true = dense_norms(matrix, parts, parts)
    A = Dense(matrix, space=SPACE)
    found = [block_norms(A, parts, num_probes=20, seed=s) for s in range(NUM_SEEDS)]
    values, stderr = (torch.stack([getattr(f, x) for f in found]) for x in ("values", "stderr"))
    # Columns c and d are exact, and so by symmetry are rows c and d.
    assert torch.equal(stderr[0] == 0, torch.tensor([[0, 0, 1, 1]] * 2 + [[1, 1, 1, 1]] * 2).bool())
    torch.testing.assert_close(values[0][stderr[0] == 0], true[stderr[0] == 0])
    torch.testing.assert_close(values, values.transpose(1, 2))
    for i, j in [(0, 0), (0, 1), (1, 1)]:
        check_calibrated(values[:, i, j] - true[i, j], stderr[:, i, j], float(true[i, j]))


def test_symmetric_pairs_share_two_looks() -> None:
    # The mean of two independent estimates of equal variance has half of it. Shown against the same
    # matrix behind an operator that does not say it is symmetric.
    class Unsaid(Counting):
        is_symmetric = False

    matrix = with_spectrum(SPECTRA["indefinite"](60))
    parts = Partition.by_tensor(SPACE)

    def spread(A) -> float:
        runs = [block_norms(A, parts, num_probes=5, seed=s).values[0, 1] for s in range(200)]
        return float(torch.stack(runs).var())

    ratio = spread(Dense(matrix, space=SPACE)) / spread(Unsaid(matrix, space=SPACE))
    assert ratio < 0.75  # 0.5, and a ratio of two variances from 200 runs deviates by 14 %


def test_block_norms_of_a_rectangle() -> None:
    matrix = torch.sin(torch.arange(28.0 * 60)).reshape(28, 60)
    rows, columns = Partition.by_tensor(ROWS), Partition.by_tensor(SPACE)
    true = dense_norms(matrix, rows, columns)
    A = Counting(matrix, space=SPACE, output_space=ROWS)
    found = block_norms(A, rows, columns, num_probes=20, seed=1)
    assert A.count == found.num_products == 20 + 20 + 3 + 2
    assert torch.equal(found.stderr == 0, torch.tensor([[False, False, True, True]] * 2))
    assert ((found.values - true).abs() <= 4 * found.stderr + 1e-12).all()
    assert (found.row_names, found.column_names) == (("p", "q"), ("a", "b", "c", "d"))
    assert found.values.shape == (2, 4)


def test_block_norms_exact_throughout() -> None:
    matrix = with_spectrum(SPECTRA["indefinite"](60))
    parts = Partition.by_tensor(SPACE)
    A = Counting(matrix, space=SPACE)
    found = block_norms(A, parts, num_probes=30, batch=7)
    torch.testing.assert_close(found.values, dense_norms(matrix, parts, parts))
    assert float(found.stderr.max()) == 0.0
    assert (A.count, A.widest, found.num_probes) == (60, 7, 0)


def test_blocks_need_not_cover_and_may_interleave() -> None:
    matrix = with_spectrum(SPECTRA["indefinite"](60))
    parts = Partition(SPACE, [Block("even", (range(0, 50, 2),)), Block("odd", (range(1, 40, 2),))])
    A = Counting(matrix, space=SPACE)
    found = block_norms(A, parts, num_probes=25)
    torch.testing.assert_close(found.values, dense_norms(matrix, parts, parts))
    assert A.count == 25 + 20


def test_block_norms_batches_change_nothing() -> None:
    A = Counting(with_spectrum(SPECTRA["indefinite"](60)), space=SPACE)
    parts = Partition.by_tensor(SPACE)
    one = block_norms(A, parts, num_probes=10, batch=1)
    assert A.widest == 1
    other = block_norms(A, parts, num_probes=10)
    torch.testing.assert_close(one.values, other.values)
    torch.testing.assert_close(one.stderr, other.stderr)


def test_block_norms_of_zero_blocks_and_of_a_wrong_operator() -> None:
    matrix = with_spectrum(SPECTRA["indefinite"](60))
    matrix[:30, 30:] = 0.0
    matrix[30:, :30] = 0.0
    parts = Partition.by_tensor(SPACE)
    found = block_norms(Dense(matrix, space=SPACE), parts, num_probes=10)
    assert float(found.values[0, 1]) == float(found.stderr[0, 1]) == 0.0
    wrong = Counting(matrix, spoil=lambda Y: 2 * Y, space=SPACE)
    true = dense_norms(matrix, parts, parts)
    off = block_norms(wrong, parts, num_probes=10)
    assert ((off.values - true).abs() > 4 * off.stderr)[0, 0]


def test_block_norms_progress_and_float32() -> None:
    seen: list[Progress] = []
    matrix = with_spectrum(SPECTRA["indefinite"](60))
    parts = Partition.by_tensor(SPACE)
    single = block_norms(
        Dense(matrix.float(), space=SPACE), parts, num_probes=8, progress=seen.append
    )
    double = block_norms(Dense(matrix, space=SPACE), parts, num_probes=8)
    torch.testing.assert_close(single.values, double.values, rtol=1e-5, atol=1e-6)
    assert seen[-1].done == seen[-1].total == single.num_products == 8 + 8 + 3 + 2


def test_block_norms_refusals() -> None:
    A = Dense(torch.eye(60), space=SPACE)
    parts = Partition.by_tensor(SPACE)
    for bad, error in [(Partition.by_tensor(ROWS), ShapeError), ("a", WrongTypeError)]:
        with pytest.raises(error):
            block_norms(A, bad, num_probes=4)
        with pytest.raises(error):
            block_norms(A, parts, bad, num_probes=4)
    with pytest.raises(InvalidArgumentError):
        block_norms(A, parts, num_probes=1)
    nan = nan_operator(60)
    with pytest.raises(NonFiniteError):
        block_norms(nan, Partition.by_tensor(nan.space), num_probes=4)


@pytest.mark.parametrize("name", SPECTRA)
def test_spectral_norm_of_symmetric_operators(name: str) -> None:
    values = SPECTRA[name](60)
    A = Counting(with_spectrum(values))
    found = spectral_norm(A)
    assert found.status
    assert found.num_products == A.count
    assert found.value == pytest.approx(float(values.abs().max()), rel=1e-9)


@pytest.mark.parametrize("shape", [(7, 13), (13, 7), (1, 5), (5, 1)])
def test_spectral_norm_of_rectangular_operators(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape)
    found = spectral_norm(Dense(matrix))
    exact = float(torch.linalg.matrix_norm(matrix, 2))
    assert found.value == pytest.approx(exact, rel=1e-9)
    assert abs(found.value - exact) <= found.residual + 1e-12 * exact
