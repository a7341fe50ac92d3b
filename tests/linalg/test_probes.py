"""Probes: fixed by the seed alone, and of unit covariance."""

import pytest
import torch

from eigenscape.errors import UnknownNameError
from eigenscape.linalg.probes import KINDS, draw_probes
from eigenscape.operators import Dense


def operator(n: int, dtype: torch.dtype = torch.float64) -> Dense:
    return Dense(torch.eye(n, dtype=dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_does_not_depend_on_its_company(kind: str) -> None:
    many = draw_probes(operator(13), 5, seed=4, kind=kind)
    for j in range(5):
        alone = draw_probes(operator(13), 1, seed=4, kind=kind, first=j)
        torch.testing.assert_close(alone[:, 0], many[:, j], rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_dtypes_share_their_probes(kind: str) -> None:
    wide = draw_probes(operator(13), 2, seed=4, kind=kind)
    narrow = draw_probes(operator(13, torch.float32), 2, seed=4, kind=kind)
    torch.testing.assert_close(narrow, wide.float(), rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_covariance_is_the_identity(kind: str) -> None:
    n, k = 5, 4000
    V = draw_probes(operator(n), k, seed=0, kind=kind)
    # Entries of the sample covariance have standard deviation at most √(2/k) here; 15 of them.
    assert (V @ V.T / k - torch.eye(n)).abs().max() < 4.5 * (2 / k) ** 0.5


def test_neighbouring_seeds_and_columns_differ() -> None:
    V = torch.cat([draw_probes(operator(64), 4, seed=s, kind="sphere") for s in range(4)], dim=1)
    cosines = V.T @ V / 64 - torch.eye(16)
    # 120 cosines of independent directions in 64 dimensions have deviation 1/8 each.
    assert cosines.abs().max() < 4 / 8


def test_unknown_kind() -> None:
    with pytest.raises(UnknownNameError, match="'rademacher', 'gaussian', 'sphere'"):
        draw_probes(operator(3), 1, seed=0, kind="cauchy")
