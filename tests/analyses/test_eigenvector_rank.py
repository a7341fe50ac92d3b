"""How close matrices are to rank one."""

import pytest
import torch

from eigenscape.analyses import rank_one_share


def test_outer_products_are_rank_one() -> None:
    u, v = torch.randn(3, 4), torch.randn(3, 7)
    shares = rank_one_share(u[:, :, None] * v[:, None, :])
    torch.testing.assert_close(shares, torch.ones(3))


def test_it_is_the_first_singular_values_share() -> None:
    A = torch.randn(2, 5, 3)
    expected = torch.linalg.matrix_norm(A, 2) / torch.linalg.matrix_norm(A)
    torch.testing.assert_close(rank_one_share(A), expected)


def test_the_least_is_a_multiple_of_an_isometry() -> None:
    assert float(rank_one_share(torch.eye(4, 9)[None])) == pytest.approx(0.5)
