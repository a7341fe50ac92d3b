"""Eigenvectors, also where a device returns wrong ones."""

import pytest
import scipy.linalg
import torch
from torch import Tensor

from eigenscape.device import eigenvectors as dense
from eigenscape.device import eigh
from eigenscape.errors import EigenscapeError, NonFiniteError


def symmetric(*shape: int) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    A = torch.randn(*shape, shape[-1], generator=draw)
    return A + A.mT


@pytest.mark.parametrize("shape", [(7,), (3, 5), (0,), (1,)])
def test_eigenvectors(shape: tuple[int, ...]) -> None:
    A = symmetric(*shape)
    values, vectors = eigh(A)
    torch.testing.assert_close(vectors * values[..., None, :] @ vectors.mT, A)
    assert bool((values.diff() >= 0).all())


class _OnGpu(Tensor):
    """Says that it is on a GPU."""

    is_cuda = True


@pytest.mark.parametrize("off", [0.0, 1e-9, 3.0, float("nan")])
def test_wrong_ones_of_a_device_are_computed_again(
    off: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    A, real, asked = symmetric(7), torch.linalg.eigh, []

    def solver(matrix: Tensor) -> tuple[Tensor, Tensor]:
        values, vectors = real(matrix.as_subclass(Tensor))
        asked.append(type(matrix))
        if isinstance(matrix, _OnGpu):
            vectors[2, 3] += off
        return values, vectors

    monkeypatch.setattr(torch.linalg, "eigh", solver)
    monkeypatch.setattr(_OnGpu, "cpu", lambda self: self.as_subclass(Tensor), raising=False)
    values, vectors = eigh(A.as_subclass(_OnGpu))
    assert asked == ([_OnGpu] if off == 0 else [_OnGpu, Tensor])
    torch.testing.assert_close(vectors @ torch.diag(values) @ vectors.T, A)


@pytest.mark.parametrize("failures", [1, 2])
@pytest.mark.parametrize("shape", [(7,), (3, 5)])
def test_where_a_solver_gives_up_others_go_on(
    failures: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    A, real, asked = symmetric(*shape), torch.linalg.eigh, []
    A[..., 2, :] = A[..., :, 2] = 0  # a unit that never fires

    def solver(matrix: Tensor) -> tuple[Tensor, Tensor]:
        asked.append(matrix)
        if len(asked) <= failures:
            raise torch.linalg.LinAlgError
        return real(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", solver)
    values, vectors = eigh(A.tril() + torch.ones_like(A).triu(1))  # the lower triangle is read
    torch.testing.assert_close(values, real(A)[0])
    torch.testing.assert_close(vectors * values[..., None, :] @ vectors.mT, A)
    assert len(asked) == 2
    assert not bool((asked[1] == 0).any())


def test_what_no_solver_can_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def solver(*_: object, **__: object) -> tuple[Tensor, Tensor]:
        raise torch.linalg.LinAlgError

    monkeypatch.setattr(torch.linalg, "eigh", solver)
    with pytest.raises(NonFiniteError, match=r"\(7, 7\) has NaN"):
        eigh(symmetric(7).fill_(float("nan")))
    monkeypatch.setattr(scipy.linalg, "eigh", solver)
    with pytest.raises(EigenscapeError, match="No solver"):
        eigh(symmetric(7))


def test_lapack_is_well_within_the_room(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rank-deficient, with zero rows and a wide range: what factors of a layer look like.
    draw = torch.Generator().manual_seed(1)
    A = torch.randn(200, 40, generator=draw) * 10.0 ** -torch.arange(40.0).div(4)
    A[::3] = 0
    monkeypatch.setattr(dense, "_LOOSEST", 1)
    for matrix in (A @ A.T, (A @ A.T).float(), 1e-30 * A @ A.T):
        assert dense._is_orthonormal(torch.linalg.eigh(matrix)[1])
