"""The eigensolver: right values, multiplicities and certificates, in float64 and float32."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import LinearOperator as ScipyOperator
from scipy.sparse.linalg import eigsh as scipy_eigsh
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from eigenscape.errors import (
    CheckpointError,
    ConvergenceWarning,
    FileError,
    InvalidArgumentError,
    NonFiniteError,
    NotSymmetricError,
    ShapeError,
    TooLargeError,
    UnknownNameError,
    WrongTypeError,
)
from eigenscape.linalg import _krylov, eigsh
from eigenscape.linalg._krylov import Basis
from eigenscape.linalg.pairs import WHICH
from eigenscape.operator import Dense
from eigenscape.records import EigenPairs, Progress
from tests.linalg.matrices import Counting, Diagonal, nan_operator, with_spectrum


def over_a_bulk(tops: list[float], n: int = 400, width: float = 0.05) -> Tensor:
    bulk = width * torch.from_numpy(np.random.default_rng(7).standard_normal(n))
    bulk[: len(tops)] = torch.tensor(tops, dtype=torch.float64)
    return bulk


F64 = {"dtype": torch.float64}  # module level: before the fixture that makes it the default
SPECTRA: dict[str, Tensor] = {
    "ten outliers": over_a_bulk([1.0 + i for i in range(10)]),
    "repeated outliers": over_a_bulk([5.0] * 3 + [3.0] * 2 + [2.0] * 4 + [1.0]),
    "clustered": over_a_bulk([5.0, 5.0001, 5.0002, 5.0003, 1.0, 2.0, 3.0]),
    "indefinite": over_a_bulk([4.0, -4.0, 3.0, -3.001, 2.0, -2.0, 1.0, -1.0]),
    "rank three": torch.cat([torch.tensor([3.0, 2.0, 1.0], **F64), torch.zeros(397, **F64)]),
    "negative": -over_a_bulk([1.0 + i for i in range(10)]),
    "decaying": 1.0 / torch.arange(1, 401, **F64) ** 2,
    "semicircle": torch.from_numpy(np.sort(np.cos(np.linspace(0.01, np.pi - 0.01, 400)))),
    "constant": torch.full((400,), 2.0, **F64),
}


def expected(values: Tensor, which: str, k: int) -> Tensor:
    descending = values.sort(descending=True).values
    if which == "largest":
        return descending[:k]
    if which == "smallest":
        return descending[-k:]
    if which == "both":
        return torch.cat([descending[:k], descending[-k:]])
    return values[values.abs().argsort(descending=True)][:k]


def check(pairs: EigenPairs, matrix: Tensor, values: Tensor, which: str, k: int) -> None:
    """Compare values, vectors and residuals with the dense truth."""
    assert pairs.status, pairs.status
    eps = torch.finfo(pairs.vectors.dtype).eps
    norm = values.abs().max()
    found, wanted = pairs.values, expected(values, which, k)
    if which == "magnitude":  # ± of one magnitude may come in any order
        found, wanted = found.abs(), wanted.abs()
    torch.testing.assert_close(found, wanted, rtol=0, atol=float(2e-6 * norm + 20 * eps * norm))
    V = pairs.vectors.double()
    gram = V.T @ V
    assert (gram - torch.eye(V.shape[1])).abs().max() < 50 * eps
    true = (matrix.double() @ V - V * pairs.values).norm(dim=0)
    torch.testing.assert_close(pairs.residuals, true, rtol=1e-3, atol=float(30 * eps * norm))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("name", SPECTRA)
def test_every_spectrum_and_end(name: str, which: str, dtype: torch.dtype) -> None:
    values = SPECTRA[name]
    matrix = with_spectrum(values).to(dtype)
    matrix = (matrix + matrix.T) / 2
    pairs = eigsh(Dense(matrix), num_pairs=7, which=which, seed=1)
    check(pairs, matrix, values, which, 7)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("block_size", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_repeated_outliers_have_their_multiplicity(
    seed: int, block_size: int, dtype: torch.dtype
) -> None:
    values = over_a_bulk([4.0] * 5 + [3.0] * 3, n=500)
    matrix = with_spectrum(values, seed=seed).to(dtype)
    pairs = eigsh(Dense((matrix + matrix.T) / 2), num_pairs=8, block_size=block_size, seed=seed)
    assert [round(v) for v in pairs.values.tolist()] == [4] * 5 + [3] * 3


def test_the_look_for_copies_is_what_finds_them() -> None:
    values = over_a_bulk([4.0] * 5 + [3.0] * 3, n=500)
    A = Dense(with_spectrum(values))
    pairs = eigsh(A, num_pairs=8, num_check=0, seed=0)
    assert [round(v) for v in pairs.values.tolist()] != [4] * 5 + [3] * 3


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("which", ["largest", "smallest", "magnitude"])
def test_tiny_matrices_and_all_pairs(n: int, which: str) -> None:
    values = torch.arange(1.0, n + 1) - 1.5
    matrix = with_spectrum(values)
    for k in range(1, n + 1):
        check(eigsh(Dense(matrix), num_pairs=k, which=which), matrix, values, which, k)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 64),
    data=st.data(),
    which=st.sampled_from(WHICH),
    block=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_any_small_matrix(n: int, data: st.DataObject, which: str, block: int, seed: int) -> None:
    numbers = st.sampled_from([0.0, 1.0, -1.0, 2.0, 2.0 + 1e-9, -3.0, 1e-3, 7.0])
    values = torch.tensor(data.draw(st.lists(numbers, min_size=n, max_size=n)))
    k = data.draw(st.integers(1, max(1, n // 2 if which == "both" else n)))
    if which == "both" and n == 1:
        return
    matrix = with_spectrum(values, seed=seed)
    pairs = eigsh(Dense(matrix), num_pairs=k, which=which, block_size=block, seed=seed)
    if values.abs().max() > 0:
        check(pairs, matrix, values, which, k)


@pytest.mark.parametrize("name", ["decaying", "semicircle"])
def test_restarts_with_a_small_basis(name: str) -> None:
    values = SPECTRA[name]
    matrix = with_spectrum(values)
    A = Counting(matrix)
    pairs = eigsh(A, num_pairs=4, max_basis=12, max_products=5000)
    check(pairs, matrix, values, "largest", 4)
    assert pairs.num_products == A.count


def test_no_more_products_than_arpack() -> None:
    # Certificates are extra: one product per pair, which ARPACK does not spend.
    for name in ("semicircle", "decaying", "ten outliers", "clustered"):
        matrix = with_spectrum(SPECTRA[name]).numpy()
        count = [0]

        def product(x: np.ndarray, count: list[int] = count, M: np.ndarray = matrix) -> np.ndarray:
            count[0] += 1
            return M @ x

        v0 = np.random.default_rng(0).standard_normal(400)
        scipy_eigsh(
            ScipyOperator((400, 400), matvec=product, dtype=np.float64),
            k=10,
            which="LA",
            tol=1e-6,
            v0=v0,
        )
        ours = eigsh(Dense(torch.from_numpy(matrix)), num_pairs=10, start=torch.from_numpy(v0))
        assert ours.status
        bare = eigsh(
            Dense(torch.from_numpy(matrix)),
            num_pairs=10,
            start=torch.from_numpy(v0),
            num_check=0,
        )
        assert bare.num_products - 10 <= count[0], name


def test_long_float32_vectors_reach_their_rounding() -> None:
    n = 200_000
    values = torch.rand(n, generator=torch.Generator().manual_seed(0)).float()
    values[:10] = torch.arange(2.0, 12.0)
    pairs = eigsh(Diagonal(values), num_pairs=10)
    torch.testing.assert_close(pairs.values, torch.arange(11.0, 1.0, -1.0), rtol=1e-6, atol=0)
    assert (pairs.residuals / pairs.values).max() < 5e-6


def test_a_warm_start_costs_little() -> None:
    matrix = with_spectrum(SPECTRA["semicircle"])
    cold = eigsh(Dense(matrix), num_pairs=5, tolerance=1e-8)
    nearby = matrix + 1e-6 * with_spectrum(SPECTRA["indefinite"], seed=3)
    again = eigsh(Dense(nearby), num_pairs=5, tolerance=1e-8)
    warm = eigsh(Dense(nearby), num_pairs=5, tolerance=1e-8, start=cold.vectors)
    torch.testing.assert_close(warm.values, again.values, rtol=1e-7, atol=0)
    assert warm.num_products < again.num_products
    exact = eigsh(Dense(matrix), num_pairs=5, tolerance=1e-5, start=cold.vectors)
    assert 5 + 2 + 5 <= exact.num_products <= 5 + 8 + 5  # vectors, look for copies, certificates


def test_along_a_trajectory_each_run_starts_from_the_one_before() -> None:
    spectrum = over_a_bulk([1.0 + 0.1 * i for i in range(8)], width=0.3).clamp_min(-0.9)
    matrix, drift = with_spectrum(spectrum), with_spectrum(SPECTRA["semicircle"], seed=3)
    before = eigsh(Dense(matrix), num_pairs=8).vectors
    for step in range(1, 4):
        A = Dense(matrix + 0.01 * step * drift)
        cold, warm = (eigsh(A, num_pairs=8, start=start) for start in (None, before.sum(1)))
        torch.testing.assert_close(warm.values, cold.values, rtol=1e-9, atol=0)
        assert warm.num_products < cold.num_products
        before = warm.vectors
    # An operator that has hardly changed is another matter: then all vectors are best.
    near = Dense(matrix + 0.03 * drift + 1e-7 * with_spectrum(spectrum, seed=5))
    every, one = (eigsh(near, num_pairs=8, start=start) for start in (before, before.sum(1)))
    assert every.num_products < one.num_products


def test_not_converging_is_a_status_and_a_warning() -> None:
    matrix = with_spectrum(SPECTRA["semicircle"])
    with pytest.warns(ConvergenceWarning, match="max_products"):
        pairs = eigsh(Dense(matrix), num_pairs=5, max_products=12)
    assert not pairs.status
    assert len(pairs) == 5
    assert pairs.num_products <= 12
    # The certificate holds all the same: each interval has an eigenvalue in it.
    exact = torch.linalg.eigvalsh(matrix)
    for low, high in pairs.intervals().tolist():
        assert bool(((exact >= low - 1e-12) & (exact <= high + 1e-12)).any())


@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("block_size", [1, 2, 3, 5])
@pytest.mark.parametrize("more", range(4))
def test_the_budget_is_kept_and_all_pairs_are_returned(
    which: str, block_size: int, more: int
) -> None:
    A = Counting(with_spectrum(SPECTRA["semicircle"]))
    wanted = 8 if which == "both" else 4
    budget = 2 * wanted + block_size + more
    with pytest.warns(ConvergenceWarning):
        pairs = eigsh(A, num_pairs=4, which=which, block_size=block_size, max_products=budget)
    assert A.count == pairs.num_products <= budget
    assert len(pairs) == wanted
    with pytest.raises(InvalidArgumentError, match="max_products"):
        eigsh(A, num_pairs=4, which=which, block_size=block_size, max_products=2 * wanted)


def test_a_product_that_is_only_roughly_linear_is_found_out() -> None:
    matrix = with_spectrum(SPECTRA["ten outliers"])
    noise = torch.Generator().manual_seed(0)

    def spoil(Y: Tensor) -> Tensor:
        return Y + 1e-3 * torch.randn(Y.shape, generator=noise)

    with pytest.warns(ConvergenceWarning):
        pairs = eigsh(Counting(matrix, spoil=spoil), num_pairs=3, max_products=200)
    assert pairs.residuals.max() > 1e-3


def test_products_that_are_too_rough_are_told_from_too_few() -> None:
    matrix = with_spectrum(SPECTRA["ten outliers"])
    A = Counting(matrix, spoil=lambda Y: Y.float().double())
    with pytest.warns(ConvergenceWarning, match="rounding"):
        eigsh(A, num_pairs=3, tolerance=1e-10)


def test_seed_and_repeat() -> None:
    A = Dense(with_spectrum(SPECTRA["decaying"]))
    first, second = (eigsh(A, num_pairs=3, seed=4) for _ in range(2))
    torch.testing.assert_close(first.vectors, second.vectors, rtol=0, atol=0)


class KilledError(Exception):
    """Stands for a kill."""


def test_killed_and_resumed_it_gives_the_same_bits(tmp_path: Path) -> None:
    matrix = with_spectrum(SPECTRA["semicircle"])
    options = {"num_pairs": 4, "max_basis": 14, "max_products": 4000}
    whole = eigsh(Dense(matrix), **options)
    assert whole.num_products > 60

    def die(p: Progress) -> None:
        if p.done >= 50:
            raise KilledError

    with pytest.raises(KilledError):
        eigsh(Dense(matrix), **options, checkpoint=tmp_path, progress=die)
    counter = Counting(matrix)
    resumed = eigsh(counter, **options, checkpoint=tmp_path)
    torch.testing.assert_close(resumed.vectors, whole.vectors, rtol=0, atol=0)
    torch.testing.assert_close(resumed.values, whole.values, rtol=0, atol=0)
    assert resumed.num_products == whole.num_products
    assert counter.count <= whole.num_products - 40
    with pytest.raises(CheckpointError, match="num_pairs"):
        eigsh(Dense(matrix), **{**options, "num_pairs": 3}, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="another operator"):
        eigsh(Dense(2 * matrix), **options, checkpoint=tmp_path)


# --- where the basis lives ---------------------------------------------------------------------


SLOPE = torch.linspace(0.0, 1.0, 400, **F64) ** 4


class LargestOperand(TorchDispatchMode):
    """Remembers the most bytes of rows that one matrix product took."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.bytes, self._n = 0, n

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type-free: torch's own names
        if func is torch.ops.aten.mm.default:
            long = (t for t in args if self._n in t.shape)
            self.bytes = max(self.bytes, *(t.nelement() * t.element_size() for t in long), 0)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("block_size", [1, 3])
@pytest.mark.parametrize("which", ["largest", "both"])
def test_the_answer_does_not_depend_on_where_the_basis_lives(
    tmp_path: Path, dtype: torch.dtype, block_size: int, which: str
) -> None:
    matrix = with_spectrum(SPECTRA["indefinite"]).to(dtype)
    options = {"num_pairs": 4, "which": which, "block_size": block_size, "max_basis": 17}
    A = Dense((matrix + matrix.T) / 2)
    plain = eigsh(A, **options)
    for place in ("device", "host", tmp_path, str(tmp_path)):
        pairs = eigsh(A, **options, basis=place)
        # All rows are one chunk here, so that the bits are the same.
        assert torch.equal(pairs.values, plain.values)
        assert torch.equal(pairs.vectors, plain.vectors)
        assert pairs.num_products == plain.num_products
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rows", [1, 3])
def test_rows_pass_through_the_device_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    n = 400
    A = Dense(with_spectrum(SLOPE))
    options = {"num_pairs": 4, "max_basis": 16}
    with LargestOperand(n) as seen:
        plain = eigsh(A, **options)
    assert plain.num_products > 2 * 16  # it restarts
    assert seen.bytes >= 12 * n * 8  # the mode can see a whole basis
    monkeypatch.setattr(_krylov, "CHUNK_BYTES", rows * n * 8 + 5)
    for place in ("host", tmp_path):
        with Basis(A, 16, place) as basis, LargestOperand(n) as seen:
            basis.append(torch.eye(n)[:13])
            left, coefficients = basis.project_out(torch.ones(2, n))
            combined = basis.combine(torch.eye(13)[[0, 2, 12]])
            basis.rotate(torch.eye(13)[:, [4, 1]])
            assert torch.equal(basis.rows, torch.eye(n)[[4, 1]])
        assert seen.bytes <= max(rows, 3) * n * 8  # the three rows asked for are as long
        assert torch.equal(left, torch.ones(2, n) - torch.eye(n)[:13].sum(0))
        assert torch.equal(coefficients, torch.ones(2, 13))
        assert torch.equal(combined, torch.eye(n)[[0, 2, 12]])
        pairs = eigsh(A, **options, basis=place)
        assert pairs.num_products == plain.num_products
        torch.testing.assert_close(pairs.values, plain.values, rtol=0, atol=1e-12)


def test_a_basis_in_a_file_is_there_and_gone_afterwards(tmp_path: Path) -> None:
    def mapped() -> list[str]:
        return [line for line in Path("/proc/self/maps").read_text().splitlines() if here in line]

    here, seen = str(tmp_path), []
    A = Dense(with_spectrum(SPECTRA["decaying"]))
    eigsh(A, num_pairs=3, basis=tmp_path, progress=lambda _: seen.extend(mapped()))
    assert seen
    assert not mapped()

    def die(p: Progress) -> None:
        raise KilledError

    with pytest.raises(KilledError) as caught:
        eigsh(A, num_pairs=3, basis=tmp_path, progress=die)
    assert caught.value.__traceback__ is not None  # it still holds the frames
    assert not mapped()
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_goes_on_wherever_the_basis_lives(tmp_path: Path) -> None:
    matrix = with_spectrum(SLOPE)
    options = {"num_pairs": 4, "max_basis": 14}
    whole = eigsh(Dense(matrix), **options)

    def die(p: Progress) -> None:
        if p.done >= 25:
            raise KilledError

    saved, rows = tmp_path / "saved", tmp_path / "rows"
    rows.mkdir()
    with pytest.raises(KilledError):
        eigsh(Dense(matrix), **options, checkpoint=saved, progress=die, basis=rows)
    counter = Counting(matrix)
    resumed = eigsh(counter, **options, checkpoint=saved, basis="host")
    assert counter.count < whole.num_products
    assert torch.equal(resumed.vectors, whole.vectors)
    assert resumed.num_products == whole.num_products


def test_more_vectors_are_kept_off_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.linspace(0.0, 1.0, 2000) ** 8
    capacities = []

    class Watched(Basis):
        def __init__(self, operator: Diagonal, capacity: int, place: str | None) -> None:
            capacities.append(capacity)
            super().__init__(operator, capacity, place)

    module = sys.modules["eigenscape.linalg.eigsh"]  # the name of the file is the function's too
    monkeypatch.setattr(module, "Basis", Watched)
    monkeypatch.setattr(module, "_DEVICE_BYTES", 12 * 2000 * 8)
    few = eigsh(Diagonal(values), num_pairs=4)
    many = eigsh(Diagonal(values), num_pairs=4, basis="host")
    assert capacities == [12, 56]
    assert many.num_products < few.num_products


def test_places_that_do_not_do(tmp_path: Path) -> None:
    A = Dense(torch.eye(6))
    with pytest.raises(FileError, match=r"'hots'.*can be written.*\"device\" or \"host\""):
        eigsh(A, num_pairs=1, basis="hots")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(FileError, match="Not a directory"):
        eigsh(A, num_pairs=1, basis=file)
    with pytest.raises(WrongTypeError, match="got int"):
        eigsh(A, num_pairs=1, basis=3)
    with pytest.raises(FileError, match=r"needs \d+\.\d GiB.* GiB left.*max_basis"):
        Basis(A, 2**60, tmp_path)
    with pytest.raises(TooLargeError, match=r"GiB of memory.*max_basis.*basis=path"):
        Basis(A, 2**56, "host")
    assert list(tmp_path.iterdir()) == [file]


def test_refusals() -> None:
    A = Dense(torch.eye(6))
    with pytest.raises(InvalidArgumentError, match="from 1 to 6; got 7"):
        eigsh(A, num_pairs=7)
    with pytest.raises(InvalidArgumentError, match="from 1 to 3; got 4"):
        eigsh(A, num_pairs=4, which="both")
    with pytest.raises(UnknownNameError, match="'largest', 'smallest', 'both', 'magnitude'"):
        eigsh(A, num_pairs=1, which="LM")
    with pytest.raises(NotSymmetricError, match="gram"):
        eigsh(Dense(torch.tensor([[0.0, 1.0], [0.0, 0.0]])), num_pairs=1)
    with pytest.raises(ShapeError, match=r"got \(5,\)"):
        eigsh(A, num_pairs=1, start=torch.ones(5))
    with pytest.raises(InvalidArgumentError, match="max_basis"):
        eigsh(A, num_pairs=2, max_basis=2)
    with pytest.raises(NonFiniteError):
        eigsh(nan_operator(), num_pairs=1)


def test_a_search_is_made_with_one_operator_and_certified_with_another() -> None:
    near = with_spectrum(over_a_bulk([1.0 + i for i in range(10)]))
    shift = with_spectrum(over_a_bulk([1e-3] * 5, width=1e-5), seed=3)
    exact, rough = Counting(near), Counting(5.0 * (near + shift))  # near a multiple
    # Residuals are up to 1e-3, what separates the two; eigenvalues wrong by their square over 1.
    found = eigsh(exact, num_pairs=4, search=rough, tolerance=1e-3)
    assert found.status
    assert exact.count == 4 + 8  # certificates, and a look for what only this operator has
    assert found.num_products == rough.count + 4 + 8
    residuals = (near @ found.vectors - found.vectors * found.values).norm(dim=0)
    torch.testing.assert_close(found.residuals, residuals)
    torch.testing.assert_close(
        found.values, torch.linalg.eigvalsh(near).flip(0)[:4], rtol=1e-5, atol=0
    )
    with pytest.warns(ConvergenceWarning, match="with `search` converged"):
        strict = eigsh(Dense(near), num_pairs=4, search=Dense(near + shift), tolerance=1e-8)
    assert not strict.status


def test_a_search_may_have_another_dtype() -> None:
    A = with_spectrum(over_a_bulk([1.0 + i for i in range(10)]))
    found = eigsh(Dense(A), num_pairs=4, search=Dense(A.float()), tolerance=1e-5)
    assert found.vectors.dtype == torch.float64
    torch.testing.assert_close(found.values, torch.linalg.eigvalsh(A).flip(0)[:4])


def test_a_search_of_another_size_is_refused() -> None:
    with pytest.raises(ShapeError, match="size of the operator, 4; got 5"):
        eigsh(Dense(torch.eye(4)), num_pairs=1, search=Dense(torch.eye(5)))
