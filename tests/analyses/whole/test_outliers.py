"""The widest gap, found and not invented."""

import math

import pytest
import torch

from eigenscape.analyses import Outliers, outliers
from eigenscape.errors import InvalidArgumentError
from eigenscape.linalg import eigsh
from eigenscape.operator import Dense
from eigenscape.records import EigenPairs, Status


def pairs_of(values: list[float], residual: float = 0.0, which: str = "largest") -> EigenPairs:
    k = len(values)
    return EigenPairs(
        status=Status(True, "fine"),
        num_products=3,
        seed=0,
        values=torch.tensor(values),
        vectors=torch.eye(k),
        residuals=torch.full((k,), residual),
        which=which,
        tolerance=1e-6,
    )


def found(values: list[float], **settings: float) -> Outliers:
    return outliers(pairs_of(values, **settings), num_classes=3)


def test_the_widest_ratio_counts() -> None:
    record = found([20.0, 9.0, 8.0, 2.0, 1.9, 1.8])
    assert record.num_outliers == 3
    assert record.gap == pytest.approx(4.0)
    assert record.is_certain
    assert record.gaps.tolist() == pytest.approx([20 / 9, 9 / 8, 4.0, 2 / 1.9, 1.9 / 1.8])
    assert record.to_frame()["ratio to next"].isna().tolist() == [False] * 5 + [True]


@pytest.mark.parametrize("ratio", [1.25, 2.0, 10.0])
def test_an_even_slope_has_no_outliers(ratio: float) -> None:
    values = [5.0 / ratio**i for i in range(6)]
    assert found(values).num_outliers == 0
    assert found([5.0 * ratio**4, *values]).num_outliers == 1


def test_a_gap_within_the_residuals_is_none() -> None:
    certain = found([9.0, 2.0, 1.9], residual=1.0)
    assert (certain.is_certain, certain.num_outliers) == (True, 1)
    unsure = found([9.0, 2.0, 1.9], residual=4.0)
    assert (unsure.is_certain, unsure.num_outliers) == (False, 0)
    assert unsure.gap == pytest.approx(4.5)  # kept all the same


def test_negative_eigenvalues_are_no_gap() -> None:
    record = found([3.0, 1.0, -0.5, -1.0])
    assert record.num_outliers == 1
    assert math.isnan(record.gaps[1])
    nothing = found([-1.0, -2.0, -3.0])
    assert nothing.num_outliers == 0


def test_from_a_matrix_with_known_outliers() -> None:
    spectrum = torch.cat([torch.tensor([30.0, 12.0, 11.0, 10.0]), torch.linspace(0, 1, 60)])
    record = outliers(eigsh(Dense(torch.diag(spectrum)), num_pairs=8), num_classes=5)
    assert (record.num_outliers, record.num_classes) == (4, 5)


@pytest.mark.parametrize("bad", [pairs_of([2.0, 1.0]), pairs_of([3.0, 2.0, 1.0], which="both")])
def test_refusals(bad: EigenPairs) -> None:
    with pytest.raises(InvalidArgumentError, match="three or more of the largest"):
        outliers(bad)
