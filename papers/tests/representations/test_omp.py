import numpy as np
import pytest
import torch
from sklearn.linear_model import orthogonal_mp

from eigenscape.errors import InvalidArgumentError, NonFiniteError, ShapeError, WrongTypeError
from eigenscape_papers.representations import (
    SparseCodes,
    orthogonal_matching_pursuit,
    pursue,
    random_dictionary,
    sparse_samples,
)


def by_the_book(y: torch.Tensor, B: torch.Tensor, k: int, *, rescale: bool) -> torch.Tensor:
    """The algorithm as it is written: residuals and least squares, one sample."""
    chosen: list[int] = []
    z, r = torch.zeros(len(B)), y
    for _ in range(k):
        scores = (B @ r).abs() / (B.norm(dim=1) if rescale else 1.0)
        scores[chosen] = -1.0
        chosen.append(int(scores.argmax()))
        found = torch.linalg.lstsq(B[chosen].T, y.unsqueeze(1)).solution.squeeze(1)
        r = y - found @ B[chosen]
    z[chosen] = found
    return z


@pytest.fixture
def case() -> tuple[torch.Tensor, torch.Tensor]:
    A = random_dictionary(13, 9)
    return sparse_samples(A, 30, sparsity=3, noise=0.1)[0], random_dictionary(17, 9, seed=1)


def test_it_agrees_with_scikit_learn(case: tuple[torch.Tensor, torch.Tensor]) -> None:
    Y, B = case
    codes = orthogonal_matching_pursuit(Y, B, sparsity=4)
    theirs = orthogonal_mp(B.T.numpy(), Y.T.numpy(), n_nonzero_coefs=4)
    np.testing.assert_allclose(codes.dense().T.numpy(), theirs, atol=1e-12)


@pytest.mark.parametrize("rescale", [True, False])
def test_atoms_of_any_length(case: tuple[torch.Tensor, torch.Tensor], rescale: bool) -> None:
    Y, B = case
    B = B * torch.linspace(0.2, 3.0, len(B)).unsqueeze(1)
    codes = orthogonal_matching_pursuit(Y, B, sparsity=3, rescale=rescale).dense()
    torch.testing.assert_close(
        codes, torch.stack([by_the_book(y, B, 3, rescale=rescale) for y in Y])
    )
    other = orthogonal_matching_pursuit(Y, B, sparsity=3, rescale=not rescale).dense()
    assert (codes - other).abs().max() > 0.1  # the option does something


@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize(
    ("scale", "dtype"),
    [
        (1e-25, torch.float32),
        (1e25, torch.float32),
        (1e-37, torch.float32),
        (1e-170, torch.float64),
        (1e160, torch.float64),
        (1e307, torch.float64),
    ],
)
def test_lengths_far_from_1(scale: float, dtype: torch.dtype, rescale: bool) -> None:
    B = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]], dtype=dtype) * scale
    codes = orthogonal_matching_pursuit(
        torch.tensor([[0.0, 3.0, -4.0]], dtype=dtype), B, sparsity=3, rescale=rescale
    )
    expected = torch.tensor([[-3.0, 6.0, -4.0]])
    torch.testing.assert_close(codes.dense().double() * scale, expected, atol=1e-5, rtol=1e-5)


def test_atoms_at_a_small_angle() -> None:
    """Below 10√ε nothing tells an angle from rounding in a Gram matrix; float64 sees further."""
    B, Y = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.003, 0.0]]), torch.tensor([[1.0, 1.0, 0.0]])
    double = orthogonal_matching_pursuit(Y, B, sparsity=2)
    expected = torch.linalg.solve(B[:, :2].T, Y[0, :2])
    torch.testing.assert_close(double.dense()[0], expected, rtol=1e-8, atol=0)
    single = orthogonal_matching_pursuit(Y.float(), B.float(), sparsity=2)
    assert (single.values != 0).tolist() == [[True, False]]
    B[1, 1] = 0.004
    single = orthogonal_matching_pursuit(Y.float(), B.float(), sparsity=2)
    assert (single.values != 0).all()


def test_chunks_do_not_change_codes(
    case: tuple[torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = orthogonal_matching_pursuit(*case, sparsity=2)
    monkeypatch.setattr("eigenscape_papers.representations.omp._ENTRIES_CPU", 150)
    parts = orthogonal_matching_pursuit(*case, sparsity=2)
    torch.testing.assert_close(parts.dense(), whole.dense())
    assert torch.equal(parts.support, whole.support)


@pytest.mark.parametrize("rescale", [True, False])
def test_products_alone_give_the_same_codes(
    case: tuple[torch.Tensor, torch.Tensor], rescale: bool
) -> None:
    Y, B = case
    B = B * torch.linspace(0.2, 3.0, len(B)).unsqueeze(1)
    support, values = pursue(Y @ B.T, B @ B.T, 3, rescale=rescale)
    codes = orthogonal_matching_pursuit(Y, B, sparsity=3, rescale=rescale)
    assert torch.equal(support, codes.support)
    torch.testing.assert_close(values, codes.values)


def test_dependent_atoms_and_explained_samples_get_nothing() -> None:
    B = torch.tensor([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    codes = orthogonal_matching_pursuit(
        torch.tensor([[3.0, 1.0, 0.0], [0.0, 0.0, 0.0]]), B, sparsity=3
    )
    assert codes.values.isfinite().all()
    torch.testing.assert_close(codes.combine(B)[0], torch.tensor([3.0, 0.0, 0.0]))
    assert (codes.values != 0).sum(1).tolist() == [1, 0]
    assert all(len(set(row)) == 3 for row in codes.support.tolist())  # no atom twice


def test_float32_is_near_float64(case: tuple[torch.Tensor, torch.Tensor]) -> None:
    single = orthogonal_matching_pursuit(*(part.float() for part in case), sparsity=3)
    double = orthogonal_matching_pursuit(*case, sparsity=3)
    assert single.values.dtype == torch.float32
    torch.testing.assert_close(single.dense().double(), double.dense(), atol=1e-5, rtol=0)


def test_dense_and_combine() -> None:
    codes = SparseCodes(torch.tensor([[2, 0]]), torch.tensor([[5.0, -1.0]]), 3)
    assert codes.dense().tolist() == [[-1.0, 0.0, 5.0]]
    assert codes.combine(torch.tensor([[1.0, 0.0], [9.0, 9.0], [0.0, 2.0]])).tolist() == [
        [-1.0, 10.0]
    ]
    with pytest.raises(ShapeError, match="must have 3 atoms"):
        codes.combine(torch.eye(2))


def test_refusals() -> None:
    Y, B = torch.ones(2, 4), torch.eye(4)
    with pytest.raises(InvalidArgumentError, match="number of atoms, 3; got 4"):
        orthogonal_matching_pursuit(Y, B[:3], sparsity=4)
    with pytest.raises(InvalidArgumentError, match="coordinates that are seen, 2; got 3"):
        orthogonal_matching_pursuit(Y[:, :2], B[:, :2], sparsity=3)
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        orthogonal_matching_pursuit(Y, B, sparsity=0)
    with pytest.raises(NonFiniteError, match=r"\(Y\).*NaN"):
        orthogonal_matching_pursuit(Y * torch.nan, B, sparsity=1)
    with pytest.raises(ShapeError, match="4 columns"):
        orthogonal_matching_pursuit(Y[:, :3], B, sparsity=1)
    with pytest.raises(ShapeError, match="dtype and device"):
        orthogonal_matching_pursuit(Y.float(), B, sparsity=1)
    with pytest.raises(WrongTypeError, match="must be a tensor; got ndarray"):
        orthogonal_matching_pursuit(Y.numpy(), B, sparsity=1)
    for narrow in (torch.float16, torch.bfloat16):
        with pytest.raises(ShapeError, match=r"torch.float32 or torch.float64.*Pass `.float\(\)`"):
            orthogonal_matching_pursuit(Y.to(narrow), B.to(narrow), sparsity=2)
