"""New directions of `eigsh`: the quick way and the careful one agree, and each knows its place."""

import pytest
import torch

from eigenscape.linalg import _thick_restart
from eigenscape.linalg._thick_restart import _by_cholesky, _orthonormal_rows


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_both_ways_give_the_same_rows(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    W = torch.randn(5, 301, generator=torch.Generator().manual_seed(0), dtype=dtype)
    W *= torch.tensor([1.0, 1e-3, 1e3, 1.0, 1.0], dtype=dtype)[:, None]
    quick, R, chosen = _orthonormal_rows(W, floor=0.0)
    monkeypatch.setattr(_thick_restart, "_by_cholesky", lambda W, floor: None)
    slow, S, same = _orthonormal_rows(W, floor=0.0)
    assert chosen == same == [0, 1, 2, 3, 4]
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(quick, slow, rtol=0, atol=100 * eps)
    torch.testing.assert_close(R, S, rtol=0, atol=100 * eps * 1e3 * 301**0.5)
    gram = quick.double() @ quick.double().T
    assert float((gram - torch.eye(5)).abs().max()) < 10 * eps
    torch.testing.assert_close(R.T @ quick.double(), W.double(), rtol=1e-4, atol=100 * eps)


def test_rows_near_to_dependent_are_left_to_the_careful_way() -> None:
    draw = torch.Generator().manual_seed(0)
    W = torch.randn(3, 50, generator=draw, dtype=torch.float64)
    assert _by_cholesky(W, 0.0) is not None
    W[2] = W[0] + 1e-3 * W[1]
    assert _by_cholesky(W, 0.0) is None
    assert _by_cholesky(W[:1], 0.0) is None
    assert _by_cholesky(torch.zeros_like(W), 0.0) is None
    rows, _, chosen = _orthonormal_rows(W, floor=1e-2)
    assert chosen == [0, 1]
    torch.testing.assert_close(rows @ rows.T, torch.eye(2, dtype=torch.float64))


def test_a_row_that_adds_little_gives_no_direction() -> None:
    W = torch.eye(2, 30, dtype=torch.float64)
    W[1] *= 1e-8
    assert _by_cholesky(W, 1e-6) is None
    assert _orthonormal_rows(W, floor=1e-6)[2] == [0]
