"""Eigenvectors of symmetric matrices that fit into memory."""

from collections.abc import Callable, Iterator

import scipy.linalg
import torch
from torch import Tensor

from eigenscape.errors import EigenscapeError, NonFiniteError

# How far from orthonormal the eigenvectors may be, in units of size · machine precision. LAPACK's
# stay below 1.
_LOOSEST = 64

Pairs = tuple[Tensor, Tensor]
# Documented, but not exported for type checkers.
_TORCH_ERROR: type[Exception] = vars(torch.linalg)["LinAlgError"]


def eigh(matrix: Tensor) -> Pairs:
    """Take symmetric matrices apart, with eigenvectors that are orthonormal on every device.

    On a GPU those of cuSOLVER are looked at, and computed again on the host if they are not: of
    nine bases of a posterior that were made there (Kronecker factors of 600 rows, float64, H200,
    torch 2.11) three were 2e-7, 4e-6 and 3 away from orthonormal, without any warning. On that
    machine's host LAPACK (MKL) gave up on others of them, we do not know why. So where a solver
    fails the matrix is turned before, and in the end given to another algorithm.

    Args:
        matrix: Symmetric (…, n, n); only its lower triangle is read.

    Returns:
        Eigenvalues (…, n), rising, and eigenvectors (…, n, n), the columns.

    Raises:
        NonFiniteError: If a solver fails on a matrix that has NaN or infinite entries.
        EigenscapeError: If all solvers fail.

    Examples:
        >>> values, vectors = eigh(torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64))
        >>> values.round(decimals=9)
        tensor([1., 3.], dtype=torch.float64)
    """
    for number, attempt in enumerate(_attempts(matrix)):
        try:
            values, vectors = attempt()
        except (_TORCH_ERROR, scipy.linalg.LinAlgError):
            continue
        # What LAPACK returns at once is as good as it says.
        if (number == 0 and not matrix.is_cuda) or _is_orthonormal(vectors):
            return values.to(matrix.device), vectors.to(matrix.device)
    shape = tuple(matrix.shape)
    if not bool(matrix.isfinite().all()):
        raise NonFiniteError(f"The matrix {shape} has NaN or infinite entries. Check the model.")
    raise EigenscapeError(
        f"No solver found the eigenvectors of a symmetric matrix {shape} with entries up to "
        f"{float(matrix.abs().max()):.3g}. Scale it, or look at what it was made from."
    )


def _attempts(matrix: Tensor) -> Iterator[Callable[[], Pairs]]:
    yield lambda: torch.linalg.eigh(matrix)
    host = matrix.cpu()
    if matrix.is_cuda:
        yield lambda: torch.linalg.eigh(host)
    yield lambda: _turned(host, torch.linalg.eigh)
    yield lambda: _turned(host, _relatively_robust)


def _turned(matrix: Tensor, solve: Callable[[Tensor], Pairs]) -> Pairs:
    """Solve for HAH with a reflection H that mixes all rows: no zeros are left to trip over."""
    A, n = matrix.tril() + matrix.tril(-1).mT, matrix.shape[-1]
    u = torch.randn(n, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(A)
    u = (u / u.norm()).unsqueeze(1)

    def reflected(columns: Tensor) -> Tensor:
        return torch.sub(columns, u @ (u.T @ columns), alpha=2)

    values, vectors = solve(reflected(reflected(A).mT))
    return values, reflected(vectors)


def _relatively_robust(matrix: Tensor) -> Pairs:
    """Return eigenpairs by multiple relatively robust representations, one matrix at a time."""
    flat = matrix.reshape(-1, *matrix.shape[-2:]).numpy()
    pairs = [scipy.linalg.eigh(one, driver="evr", check_finite=False) for one in flat]
    values, vectors = (
        torch.stack([torch.from_numpy(pair[i]) for pair in pairs]).to(matrix) for i in (0, 1)
    )
    return values.view(matrix.shape[:-1]), vectors.view(matrix.shape)


def _is_orthonormal(vectors: Tensor) -> bool:
    n = vectors.shape[-1]
    gram = vectors.mT @ vectors
    gram.diagonal(dim1=-2, dim2=-1).sub_(1)
    # Not `>`: what is not a number is not orthonormal.
    room = _LOOSEST * max(n, 1) * torch.finfo(vectors.dtype).eps
    return gram.numel() == 0 or bool(gram.abs().max() <= room)
