"""What every solver does around a product: the self-test it carries, units, refusals."""

import math

import pytest
import torch

from eigenscape.linalg import eigsh, trace
from eigenscape.linalg._products import InUnits, unit_of, unit_of_each
from eigenscape.operator import Dense
from eigenscape.records import SelfTest
from tests.linalg.matrices import SPECTRA, Counting, with_spectrum

VERDICT = SelfTest("passed", "Compared with the user's own function.")


class Compared(Counting):
    """A matrix that was compared with something."""

    @property
    def self_test(self) -> SelfTest:
        return VERDICT


@pytest.mark.parametrize("make", [lambda A: trace(A, num_products=2), lambda A: eigsh(A)])
def test_the_record_has_it(make) -> None:
    assert make(Compared(torch.eye(70))).self_test is VERDICT
    assert make(Dense(torch.eye(70))).self_test is None


def test_by_name_too_and_through_what_is_made_of_the_operator() -> None:
    assert trace(operator=Compared(torch.eye(9)), num_products=2).self_test is VERDICT
    assert trace(2.0 * Compared(torch.eye(9)), num_products=2).self_test is VERDICT


def test_functions_keep_their_names() -> None:
    assert trace.__name__ == "trace"
    assert "Estimate the trace" in (trace.__doc__ or "")


def test_ordinary_sizes_have_no_unit() -> None:
    for size in (1e-30, 1.0, 1e30, 0.0, math.inf):
        assert unit_of(size) == 1.0
    assert unit_of(1e-6, torch.float32) == 1.0


@pytest.mark.parametrize("size", [1e-300, 1e-100, 1e100, 1e300])
def test_a_unit_is_a_power_of_two_near_the_size(size: float) -> None:
    unit = unit_of(size)
    assert math.frexp(unit)[0] == 0.5
    assert 0.4 < size / unit < 1.0


def test_each_column_has_its_own_unit() -> None:
    columns = torch.tensor([[1.0, 1e200, 0.0], [2.0, 0.0, 0.0]], dtype=torch.float64)
    assert unit_of_each(columns).tolist() == [1.0, unit_of(1e200), 1.0]


def test_products_of_ordinary_operators_are_untouched_and_cost_nothing_more() -> None:
    A = Counting(with_spectrum(SPECTRA["indefinite"](20)))
    scaled, x = InUnits(A), torch.ones(20, 1, dtype=torch.float64)
    assert torch.equal(scaled @ x, A @ x)
    assert (A.count, scaled.looks, scaled.unit) == (2, 0, 1.0)


@pytest.mark.parametrize("scale", [2.0**-900, 2.0**900])
def test_products_in_units_are_those_of_the_matrix_before_it_was_scaled(scale: float) -> None:
    matrix = with_spectrum(SPECTRA["indefinite"](20))
    A = Counting(scale * matrix)
    scaled, x = InUnits(A), torch.ones(20, 1, dtype=torch.float64)
    found = scaled @ x
    torch.testing.assert_close(found * (scaled.unit / scale), matrix @ x, rtol=1e-14, atol=1e-14)
    assert (A.count, scaled.looks) == (2, 1)
    assert repr(scaled) == repr(A)


def test_a_first_column_of_another_size_does_not_decide() -> None:
    matrix = torch.diag(torch.tensor([1e-200, 1.0, 1.0], dtype=torch.float64))
    scaled = InUnits(Dense(matrix))
    scaled @ torch.eye(3, 1, dtype=torch.float64)
    assert scaled.unit == 1.0


def test_what_stands_beside_the_operator_counts() -> None:
    scaled = InUnits(Dense(torch.full((1, 1), 1e-200, dtype=torch.float64)), beside=1.0)
    scaled @ torch.ones(1, 1, dtype=torch.float64)
    assert scaled.unit == 1.0


def test_zero_waits_for_a_product_that_is_not() -> None:
    scaled = InUnits(Dense(torch.diag(torch.tensor([0.0, 1e-200], dtype=torch.float64))))
    scaled @ torch.eye(2, dtype=torch.float64)[:, :1]
    assert scaled.unit == 1.0
    scaled @ torch.eye(2, dtype=torch.float64)[:, 1:]
    assert scaled.unit == unit_of(1e-200)


def test_the_unit_of_an_earlier_run_is_kept() -> None:
    scaled = InUnits(Dense(torch.eye(2, dtype=torch.float64)))
    scaled.adopt(2.0)
    assert float((scaled @ torch.ones(2, dtype=torch.float64))[0]) == 0.5
