"""Wu Def. 4.1 for all numbers of vectors at once."""

import pytest
import torch

from eigenscape.analyses import eigenspace_overlap
from eigenscape.errors import InvalidArgumentError, ShapeError
from eigenscape.linalg import eigsh
from eigenscape.operator import Dense
from tests.linalg.matrices import with_spectrum


def basis(n: int, k: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(n, k)).Q


def test_it_is_the_trace_of_projections() -> None:
    U, V = basis(11, 5), basis(11, 5)
    overlaps = eigenspace_overlap(U, V).overlaps
    for j in range(1, 6):
        P, Q = U[:, :j] @ U[:, :j].T, V[:, :j] @ V[:, :j].T
        assert float(overlaps[j - 1]) == pytest.approx(float((P @ Q).trace() / j))


def test_rotations_within_the_space_do_not_matter() -> None:
    U = basis(9, 4)
    rotated = U @ torch.linalg.qr(torch.randn(4, 4)).Q
    assert float(eigenspace_overlap(U, rotated).overlaps[-1]) == pytest.approx(1.0)


def test_random_spaces_have_the_overlap_of_chance() -> None:
    draws = torch.stack(
        [eigenspace_overlap(basis(40, 6), basis(40, 6)).overlaps for _ in range(200)]
    )
    stderr = draws.std(0) / 200**0.5
    chance = torch.arange(1, 7) / 40
    assert bool(((draws.mean(0) - chance).abs() < 4 * stderr).all())


def test_pairs_and_different_numbers() -> None:
    matrix = with_spectrum([9.0, 7.0, 5.0, 3.0, 1.0, 0.5])
    three, two = eigsh(Dense(matrix), num_pairs=3), eigsh(Dense(matrix), num_pairs=2, seed=5)
    record = eigenspace_overlap(three, two)
    assert record.overlaps.tolist() == pytest.approx([1.0, 1.0])
    assert record.to_frame().shape == (2, 3)


def test_columns_are_as_orthonormal_as_their_dtype_allows() -> None:
    exact = torch.linalg.qr(torch.randn(50, 4, generator=torch.Generator().manual_seed(0))).Q
    rounded = exact.bfloat16()
    off = 2 * torch.finfo(torch.bfloat16).eps  # of a squared inner product, twice that of one
    assert eigenspace_overlap(rounded, exact).overlaps[-1].item() == pytest.approx(1, abs=off)
    with pytest.raises(InvalidArgumentError, match="orthonormal"):
        eigenspace_overlap(1.05 * exact, exact)


@pytest.mark.parametrize(
    ("U", "error", "words"),
    [
        (torch.eye(4)[:, :2], ShapeError, "one length"),
        (torch.eye(5)[:, :0], ShapeError, "one length"),
        (2 * torch.eye(5)[:, :2], InvalidArgumentError, "qr"),
        (torch.full((5, 1), float("nan")), InvalidArgumentError, "orthonormal"),
    ],
)
def test_refusals(U: torch.Tensor, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        eigenspace_overlap(torch.eye(5)[:, :2], U)
