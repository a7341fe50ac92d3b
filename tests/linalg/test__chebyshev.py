"""Filtered subspace iteration against dense eigenvalues: all ends, budgets, clusters."""

import pytest
import torch
from torch import Tensor

from eigenscape.linalg._chebyshev import LOOK, FilteredIteration, Found
from eigenscape.linalg._products import InUnits
from eigenscape.linalg.pairs import orthonormal
from eigenscape.records import Ticker
from tests.linalg.matrices import SPECTRA, Counting, with_spectrum

N, K, B = 150, 3, 7
WHICH = ["largest", "smallest", "magnitude"]


def filtered(
    A: Counting,
    which: str,
    *,
    degree: int = 12,
    most: int = 5000,
    tolerance: float = 1e-9,
    ticks: list[int] | None = None,
) -> Found:
    scaled = InUnits(A)
    n = A.shape[0]
    run = FilteredIteration(
        scaled, k=K, b=B, degree=degree, which=which, tolerance=tolerance, batch=5, seed=0
    )
    callback = None if ticks is None else lambda progress: ticks.append(progress.done)
    start = torch.randn(n, B, generator=torch.Generator().manual_seed(1))
    result = run.run(orthonormal(start), most, Ticker(callback, "test", most))
    return Found(
        result.values * scaled.unit,
        result.vectors,
        result.products * scaled.unit,
        result.num_products,
    )


def wanted(values: Tensor, which: str) -> Tensor:
    descending = values.sort(descending=True).values
    if which == "magnitude":
        return values[values.abs().argsort(descending=True)][:K]
    return descending[:K] if which == "largest" else descending[-K:]


def check(result: Found, matrix: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(result.values, expected, rtol=1e-8, atol=1e-10)
    V = result.vectors
    torch.testing.assert_close(V.T @ V, torch.eye(K), rtol=0, atol=1e-12)
    torch.testing.assert_close(result.products, matrix @ V, rtol=0, atol=1e-11 * matrix.norm())
    assert (matrix @ V - V * result.values).norm() <= 1e-8 * matrix.norm()


@pytest.mark.parametrize("degree", [2, 9, 30])
@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("name", SPECTRA)
def test_every_end_of_every_spectrum(name: str, which: str, degree: int) -> None:
    values = SPECTRA[name](N)
    if name != "indefinite" and which == "smallest":
        values = -values  # their own lower ends are clusters, which take very long
    matrix = with_spectrum(values)
    check(filtered(Counting(matrix), which, degree=degree), matrix, wanted(values, which))


def test_the_comparison_notices_the_wrong_end() -> None:
    values = SPECTRA["indefinite"](N)
    matrix = with_spectrum(values)
    with pytest.raises(AssertionError):
        check(filtered(Counting(matrix), "largest"), matrix, wanted(values, "smallest"))


@pytest.mark.parametrize("scale", [1e-150, 1e150])
def test_the_scale_of_the_matrix_does_not_matter(scale: float) -> None:
    values = SPECTRA["indefinite"](N)
    counts = []
    for size in (1.0, scale):
        A = Counting(with_spectrum(values) * size)
        result = filtered(A, "largest")
        torch.testing.assert_close(
            result.values / size, wanted(values, "largest"), rtol=1e-8, atol=0
        )
        counts.append(A.count)
    assert counts[0] == pytest.approx(counts[1], abs=5)  # the unit is another one


def test_both_signs_of_one_magnitude_are_told_apart() -> None:
    values = torch.cat([torch.tensor([3.0, -3.0, 2.0]), torch.linspace(-1.0, 1.0, 97)])
    matrix = with_spectrum(values)
    result = filtered(Counting(matrix), "magnitude")
    torch.testing.assert_close(result.values.sort().values, torch.tensor([-3.0, 2.0, 3.0]))
    residuals = (matrix @ result.vectors - result.vectors * result.values).norm(dim=0)
    assert float(residuals.max()) <= 1e-8


def test_a_block_that_is_one_cluster_is_found_too() -> None:
    values = torch.cat([torch.full((B,), 2.0), torch.linspace(-1.0, 1.9, 93)])
    matrix = with_spectrum(values)
    check(filtered(Counting(matrix), "largest", degree=20), matrix, torch.full((K,), 2.0))


@pytest.mark.parametrize("most", [LOOK + B, 60, 101])
def test_the_budget_is_kept_and_the_best_so_far_returned(most: int) -> None:
    A = Counting(with_spectrum(torch.linspace(0.0, 1.0, N)))
    result = filtered(A, "largest", most=most)
    assert A.count == result.num_products <= most
    V = result.vectors
    torch.testing.assert_close(V.T @ V, torch.eye(K), rtol=0, atol=1e-12)
    assert bool((result.values <= 1.0 + 1e-12).all())


def test_every_product_is_counted_and_told() -> None:
    ticks: list[int] = []
    A = Counting(with_spectrum(SPECTRA["indefinite"](N)))
    result = filtered(A, "largest", ticks=ticks)
    assert ticks == sorted(ticks)
    assert A.count == result.num_products == ticks[-1]
    assert A.widest <= 5


def test_a_filter_takes_fewer_products_than_powers() -> None:
    matrix = with_spectrum(SPECTRA["indefinite"](N))
    counts = [filtered(Counting(matrix), "largest", degree=d).num_products for d in (2, 20)]
    assert counts[1] < counts[0] / 2
