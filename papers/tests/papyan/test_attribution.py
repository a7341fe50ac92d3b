"""Outliers, their causes, and what random causes would have done."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from eigenscape.curvature import ClassGradients
from eigenscape.errors import (
    ConvergenceWarning,
    InvalidArgumentError,
    NotSymmetricError,
    ShapeError,
    WrongTypeError,
)
from eigenscape.operator import Dense, LinearOperator
from eigenscape.records import pack, unpack
from eigenscape.risk import CrossEntropy, EmpiricalRisk
from eigenscape_papers.papyan import Attribution, attribution
from eigenscape_papers.papyan.attribution import _rotation, _rounding

N, K = 90, 3
STRENGTHS = torch.tensor([60.0, 20.0, 12.0], dtype=torch.float64)


def parts(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return a bulk of edge near 1 and a cause of rank 3 in directions of its own."""
    generator = torch.Generator().manual_seed(seed)
    Z = torch.randn(N, 2 * N, generator=generator, dtype=torch.float64)
    bulk = Z @ Z.T / (6 * N)
    V = torch.linalg.qr(torch.randn(N, K, generator=generator, dtype=torch.float64))[0]
    return bulk, V @ torch.diag(STRENGTHS) @ V.T


def alike(signs: Tensor, n: int = 200, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return a bulk within ±1 and a cause whose outliers, of these signs, are 10 to 8."""
    generator = torch.Generator().manual_seed(seed)
    W = torch.randn(n, n, generator=generator)
    V = torch.linalg.qr(torch.randn(n, len(signs), generator=generator))[0]
    strengths = signs * torch.linspace(10.0, 8.0, len(signs))
    return 0.35 * (W + W.T) / n**0.5, V @ torch.diag(strengths) @ V.T


def dense(matrix: Tensor) -> Dense:
    return Dense(0.5 * (matrix + matrix.T))


def unseen(matrix: Tensor) -> LinearOperator:
    """Hide a matrix, so that it is known by its products only."""
    return dense(matrix) * 1.0


def scores(found: Attribution) -> list[float]:
    return [found.mass_subtracted, found.gap_subtracted, found.mass_projected, found.gap_projected]


def test_the_cause_explains_all_and_random_ones_nothing() -> None:
    bulk, cause = parts()
    found = attribution(dense(bulk + cause), dense(cause), num_outliers=K, num_draws=3)
    assert min(scores(found)) > 0.97
    assert found.null.shape == (3, 4)
    # A random rank-3 projection removes about 3/90 of the mass; a subtraction as little.
    assert float(found.null.max()) < 0.15
    assert found.rank == K
    assert found.num_products == 0
    # What is said to bound the rounding does: here of a sum of which the large part cancels.
    errors = (found.subtracted - torch.linalg.eigvalsh(bulk).flip(0)[: K + 1]).abs()
    assert float(errors.max()) < float(found.residuals[0].max()) < 2e-12
    P = torch.eye(N, dtype=torch.float64) - cause @ torch.linalg.pinv(cause)
    left = P @ (bulk + cause) @ P
    errors = (found.projected - torch.linalg.eigvalsh(0.5 * (left + left.T)).flip(0)[: K + 1]).abs()
    assert float(errors.max()) < 1e-13
    assert list(found.to_frame()["knockout"]) == ["subtraction", "projection"]


def test_scores_by_hand() -> None:
    A = torch.diag(torch.tensor([11.0, 6.0, 1.0, 0.5, 0.5], dtype=torch.float64))
    B = torch.diag(torch.tensor([5.0, 5.0, 0.0, 0.0, 0.0], dtype=torch.float64))
    found = attribution(dense(A), dense(B), num_outliers=2, num_draws=0)
    # Before 11, 6 | 1: mass 10 + 5, gap 5. After 6, 1 | 1: mass 5, widest gap 5.
    assert found.mass_subtracted == pytest.approx(2 / 3)
    assert found.gap_subtracted == pytest.approx(0.0)
    assert found.mass_projected == pytest.approx(1.0)
    assert found.gap_projected == pytest.approx(1.0 - 0.5 / 5)
    assert found.null.shape == (0, 4)
    assert "–" in str(found)


def test_new_outliers_of_the_other_sign_do_not_hide_the_gap() -> None:
    A = dense(torch.diag(torch.tensor([10.0, 9.0, 1.0, 0.5, 0.0, 0.0])))
    B = dense(torch.diag(torch.tensor([0.0, 0.0, 0.0, 0.0, 10.0, 9.5])))
    # After: 10, 9 | 1, 0.5 above and 10, 9.5 below. By magnitude 10, 10, 9.5, 9 | 1.
    for which in ("magnitude", "largest"):
        found = attribution(A, B, num_outliers=2, num_draws=0, which=which)
        assert found.gap_subtracted == 0.0
    # The record keeps the first k + 1.
    assert attribution(A, B, num_outliers=2, num_draws=0).subtracted.abs().tolist() == [10, 10, 9.5]


def test_a_bulk_of_the_other_sign_ends_a_gap() -> None:
    A = dense(torch.diag(torch.tensor([10.0, 8.0, 1.0, -3.0])))
    B = dense(torch.diag(torch.tensor([5.0, 3.0, 0.0, 0.0])))
    # Before 10, 8 | 3, 1: gap 5. After 5, 5 | 3, 1: gap 2, where with signs it is 4 of 7.
    found = attribution(A, B, num_outliers=2, num_draws=0)
    assert found.gap_subtracted == pytest.approx(1.0 - 2 / 5)
    found = attribution(A, B, num_outliers=2, num_draws=0, which="largest")
    assert found.gap_subtracted == pytest.approx(1.0 - 4 / 7)


@pytest.mark.parametrize("hide", [dense, unseen], ids=["dense", "products"])
@pytest.mark.parametrize("minus", [0, 4, 10])
def test_the_gap_tells_a_cause_from_a_random_matrix(
    hide: Callable[[Tensor], LinearOperator], minus: int
) -> None:
    """Ten outliers alike in size: nothing but the gap to the bulk is wide."""
    signs = torch.ones(10)
    signs[:minus] = -1.0
    bulk, cause = alike(signs)
    found = attribution(hide(bulk + cause), hide(cause), num_outliers=10, tolerance=1e-4)
    assert min(scores(found)) > 0.98
    # A random projection of rank 10 takes about 10/200 of each of them, of the smallest more; and
    # new outliers push old ones of the same sign.
    assert float(found.null.max()) < 0.2
    if minus == 0:  # what stays is above, and so it is with signs
        found = attribution(hide(bulk + cause), hide(cause), num_outliers=10, which="largest")
        assert min(scores(found)) > 0.98
        assert float(found.null.max()) < 0.15


@pytest.mark.parametrize("which", ["magnitude", "largest"])
def test_a_cause_with_the_wrong_sign_adds_outliers_to_the_old_ones(which: str) -> None:
    A = dense(torch.diag(torch.tensor([10.0, 9.0, 1.0, 0.5, 0.0, 0.0])))
    B = dense(torch.diag(torch.tensor([0.0, 0.0, 0.0, 0.0, -9.8, -9.5])))
    # After 10, 9.8, 9.5, 9 | 1: the first two gaps are 0.2 and 0.3, the fourth is 8.
    found = attribution(A, B, num_outliers=2, num_draws=0, which=which)
    assert found.gap_subtracted == 0.0
    assert found.mass_subtracted == 0.0


def test_a_cause_of_many_directions_fills_no_gap_of_the_other_sign() -> None:
    bulk, cause = alike(torch.ones(10))
    more = torch.linspace(12.0, 1.5, 60)  # all over the gap
    V = torch.linalg.qr(torch.randn(200, 60))[0]
    A, B = bulk + cause, V @ torch.diag(more) @ V.T
    found = attribution(dense(A), dense(B), num_outliers=10)
    assert float(found.null[0, 1]) < 0.35  # as much as a perturbation of that size moves
    # By products only k + r + 1 of A − B are known: more where `rank` says so.
    few, many = (attribution(unseen(A), unseen(B), num_outliers=10, rank=r) for r in (10, 60))
    assert float(few.null[0, 1]) > 0.8
    assert float(many.null[0, 1]) == pytest.approx(float(found.null[0, 1]), abs=1e-3)


def test_rounding_makes_no_directions() -> None:
    bulk, cause = parts()
    rounded = cause.float()  # of rank 3 but for rounding
    found = attribution(
        dense((bulk + cause).float()), dense(rounded), num_outliers=K, rank=20, num_draws=0
    )
    assert found.rank == K
    # Products of a large network in float32 still have directions.
    assert _rounding(10**7, torch.finfo(torch.float32).eps, exact=False) < 1e-5


@pytest.mark.parametrize("hide", [dense, unseen], ids=["dense", "products"])
@pytest.mark.parametrize("which", ["magnitude", "largest"])
def test_a_cause_of_zero_takes_nothing(
    hide: Callable[[Tensor], LinearOperator], which: str
) -> None:
    bulk, cause = parts()
    found = attribution(
        hide(bulk + cause), hide(torch.zeros(N, N)), num_outliers=K, which=which, num_draws=2
    )
    assert found.rank == 0
    assert max(scores(found)) < 1e-6
    assert float(found.null.max()) < 1e-6


def test_two_classes_have_no_cross_part_to_blame() -> None:
    x, y = torch.randn(40, 3), torch.arange(40) % 2
    risk = EmpiricalRisk(torch.nn.Linear(3, 2), CrossEntropy(), (x + 2.0 * y[:, None], y))
    gradients = ClassGradients(risk)
    G, cross = gradients.total, gradients.part("cross")
    assert float(cross.to_dense().norm()) == 0.0
    for A, B in ((G, cross), (dense(G.to_dense()), dense(cross.to_dense()))):
        found = attribution(A, B, num_outliers=1)
        assert found.rank == 0
        assert max(scores(found)) < 1e-6
        assert float(found.null.max()) < 1e-6


def test_one_direction_of_three_moves_the_gap_and_does_not_close_it() -> None:
    bulk, cause = parts()
    first = torch.linalg.eigh(cause)[1][:, -1:]
    found = attribution(
        dense(bulk + cause), dense(60.0 * first @ first.T), num_outliers=K, rank=5, num_draws=0
    )
    assert found.rank == 1  # a cause of rank 1 has no five directions
    assert found.gap_subtracted < 1e-3
    assert found.mass_subtracted == pytest.approx(59 / (59 + 19 + 11), abs=0.02)


def test_the_right_directions_in_the_wrong_size() -> None:
    bulk, cause = parts()
    A = dense(bulk + cause)
    doubled = attribution(A, dense(2.0 * cause), num_outliers=K, num_draws=0)
    assert doubled.mass_subtracted < 0.05  # the outliers stand below now
    assert doubled.mass_projected > 0.97
    assert doubled.subtracted[0] < 0
    above = attribution(A, dense(2.0 * cause), num_outliers=K, num_draws=0, which="largest")
    assert above.mass_subtracted > 0.97
    halved = attribution(A, dense(0.5 * cause), num_outliers=K, num_draws=0)
    assert halved.mass_subtracted == pytest.approx(0.5, abs=0.03)


def test_products_alone_give_the_same_scores() -> None:
    bulk, cause = parts(1)
    exact = attribution(dense(bulk + cause), dense(cause), num_outliers=K)
    found = attribution(unseen(bulk + cause), unseen(cause), num_outliers=K, tolerance=1e-8)
    assert scores(found) == pytest.approx(scores(exact), abs=1e-7)
    torch.testing.assert_close(found.null, exact.null, atol=1e-7, rtol=0.0)
    assert found.num_products > 0
    assert found.status
    errors = (found.projected - exact.projected).abs()
    assert bool((errors <= found.residuals[2] + 1e-12).all())


def test_a_cause_of_full_rank_is_subtracted_whole() -> None:
    bulk, cause = parts(2)
    residual = torch.diag(torch.linspace(-0.2, 0.2, N, dtype=torch.float64))
    found = attribution(dense(bulk + cause + residual), dense(bulk + cause), num_outliers=K)
    assert min(found.mass_subtracted, found.gap_subtracted, found.mass_projected) > 0.97
    swapped = attribution(dense(bulk + cause + residual), dense(residual), num_outliers=K)
    assert max(swapped.mass_subtracted, swapped.mass_projected) < 0.2


def test_too_few_products_are_a_status() -> None:
    bulk, cause = parts(3)
    with pytest.warns(ConvergenceWarning):
        found = attribution(
            unseen(bulk + cause),
            unseen(cause),
            num_outliers=K,
            tolerance=1e-12,
            max_products=17,  # seven pairs of A − B, with their certificates, take 15
            num_draws=0,
        )
    assert not found.status
    assert "not converged" in str(found.status)


@pytest.mark.parametrize("n", [2, 6, 7, 9, 250])
def test_the_rotation_is_orthogonal_and_its_transpose_undoes_it(n: int) -> None:
    eye = torch.eye(n, dtype=torch.float64)
    Q = _rotation(Dense(eye), 5, 1)(eye, False)
    torch.testing.assert_close(Q.T @ Q, eye, atol=1e-14, rtol=0.0)
    torch.testing.assert_close(_rotation(Dense(eye), 5, 1)(eye, True), Q.T, atol=1e-14, rtol=0.0)
    assert not torch.allclose(Q, _rotation(Dense(eye), 5, 2)(eye, False))
    assert n < 3 or float(Q.abs().max()) < min(1.0 - 1e-6, 6 / n**0.5)


def test_the_rotation_takes_a_few_columns_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[_rotation.__module__]  # the room has a function of its name
    X = torch.randn(7, 5, dtype=torch.float64)
    rotation = _rotation(Dense(torch.eye(7, dtype=torch.float64)), 0, 0)
    whole = rotation(X, False), rotation(X, True)
    seen, fft = [], torch.fft.fft

    def watched(Y: torch.Tensor, **how: object) -> torch.Tensor:
        seen.append(Y.shape[-1])
        found: torch.Tensor = fft(Y, **how)
        return found

    monkeypatch.setattr(module, "_AT_ONCE", 15)
    monkeypatch.setattr(torch.fft, "fft", watched)
    torch.testing.assert_close((rotation(X, False), rotation(X, True)), whole)
    assert seen == ([2] * 8 + [1] * 4) * 2


def test_the_seed_fixes_the_random_causes_and_records_can_be_kept() -> None:
    bulk, cause = parts()
    A, B = dense(bulk + cause), dense(cause)
    one, two, other = (attribution(A, B, num_outliers=K, seed=seed) for seed in (4, 4, 5))
    assert torch.equal(one.null, two.null)
    assert not torch.equal(one.null, other.null)
    assert torch.equal(unpack(*pack(one)).before, one.before)


def test_refusals() -> None:
    A, B = dense(torch.diag(torch.arange(4.0))), dense(torch.eye(4))
    matrix: Any = torch.eye(4)
    with pytest.raises(WrongTypeError, match="cause"):
        attribution(A, matrix, num_outliers=1)
    with pytest.raises(NotSymmetricError, match="operator"):
        attribution(Dense(torch.tensor([[1.0, 2.0], [0.0, 1.0]])), B, num_outliers=1)
    rounded = torch.diag(torch.arange(4.0))
    rounded[0, 1] = 1e-17
    with pytest.raises(
        NotSymmetricError, match=r"but for rounding, pass `Dense\(\(M \+ M.T\) / 2\)`"
    ):
        attribution(Dense(rounded), B, num_outliers=1)
    attribution(Dense((rounded + rounded.T) / 2), B, num_outliers=1)
    with pytest.raises(ShapeError, match="one size"):
        attribution(A, dense(torch.eye(3)), num_outliers=1)
    with pytest.raises(InvalidArgumentError, match="from 1 to 3"):
        attribution(A, B, num_outliers=4)
    with pytest.raises(InvalidArgumentError, match="needs a gap"):
        attribution(dense(torch.eye(4)), B, num_outliers=2)
