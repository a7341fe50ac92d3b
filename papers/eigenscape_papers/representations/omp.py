"""Orthogonal matching pursuit of many samples at once.

Letters: n samples y (rows of Y), p atoms b (rows of B), k of them a sample. The Gram matrix G = BBᵀ
is formed once. Each sample then grows a factor LDLᵀ of the block of G that it has chosen: with
q₁, …, qᵢ the chosen atoms made orthogonal, wᵢ = B qᵢ comes from one row of G, and the correlations
of all atoms with the residual lose (⟨qᵢ, y⟩/⟨qᵢ, qᵢ⟩) wᵢ. No residual is ever formed. To choose by
angle, atoms get length 1 first and the coefficients are scaled back.

Every pass over an (n, p) array counts: they take the time, not the matrix products.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.device import full_precision
from eigenscape.errors import InvalidArgumentError, ShapeError, require_count
from eigenscape_papers.representations._checks import require_matrix, require_wide

# Entries of the largest array of one chunk, n·k·p; on a CPU, few enough to stay in its cache.
_ENTRIES, _ENTRIES_CPU = 2**24, 2**20


@dataclass(frozen=True, eq=False)
class SparseCodes:
    """Which atoms make up each sample, and how much of each.

    Attributes:
        support: Atoms in the order in which they were chosen (n, k).
        values: Their coefficients (n, k); 0 for atoms that could add nothing any more.
        num_atoms: Size of the dictionary.
    """

    support: Tensor
    values: Tensor
    num_atoms: int

    def dense(self) -> Tensor:
        """Return the codes as a matrix (n, p)."""
        Z = self.values.new_zeros(len(self.values), self.num_atoms)
        return Z.scatter_(1, self.support, self.values)

    def combine(self, dictionary: Tensor) -> Tensor:
        """Return Σ z_j b_j of each sample.

        Args:
            dictionary: The atoms (p, d).

        Returns:
            The sums (n, d).

        Raises:
            ShapeError: If the dictionary has another number of atoms.
        """
        if dictionary.ndim != 2 or len(dictionary) != self.num_atoms:
            raise ShapeError(
                f"`combine(dictionary)` must have {self.num_atoms} atoms, one a row; got "
                f"{tuple(dictionary.shape)}."
            )
        return self.dense() @ dictionary


@full_precision()
def orthogonal_matching_pursuit(
    Y: Tensor, dictionary: Tensor, *, sparsity: int, rescale: bool = True
) -> SparseCodes:
    """Code each sample by a few atoms, chosen greedily.

    k times, the atom joins that correlates most with the residual, and all coefficients are solved
    for anew by least squares. To decode from a part of the coordinates, pass those columns of both
    matrices.

    Cost: dp² for the Gram matrix, ndp for the correlations, nk²p for the choices. It runs where the
    tensors are, and never waits for the device.

    Args:
        Y: Samples (n, d).
        dictionary: Atoms (p, d), of any length.
        sparsity: Atoms of a sample, k.
        rescale: Choose by the angle to the residual, |⟨b, r⟩|/‖b‖; otherwise by |⟨b, r⟩|, which
            favours long atoms. It matters where coordinates were taken away.

    Returns:
        The codes. An atom that depends linearly on those before it gets the coefficient 0. So does
        one at an angle to their span below 10√ε, which a Gram matrix cannot tell from rounding:
        0.0035 in float32, 1.5e-7 in float64.

    Raises:
        ShapeError: If the matrices do not fit each other, or are of half precision.
        InvalidArgumentError: If there are fewer atoms or coordinates than `sparsity`.
        NonFiniteError: If an entry is NaN or infinite.

    References:
        Rubinstein, Zibulevsky & Elad, "Efficient implementation of the K-SVD algorithm using batch
        orthogonal matching pursuit", 2008.

    Examples:
        >>> codes = orthogonal_matching_pursuit(
        ...     torch.tensor([[0.0, 3.0, -4.0]]), torch.eye(3), sparsity=2
        ... )
        >>> codes.support.tolist(), codes.values.tolist()
        ([[2, 1]], [[-4.0, 3.0]])
    """
    call = "orthogonal_matching_pursuit"
    B = require_wide(require_matrix(dictionary, f"{call}(dictionary)"), f"{call}(dictionary)")
    Y = require_matrix(Y, f"{call}(Y)", columns=B.shape[1])
    k = require_sparsity(sparsity, len(B), B.shape[1], f"{call}(sparsity=...)")
    if Y.dtype != B.dtype or Y.device != B.device:
        raise ShapeError(
            f"`{call}(Y, dictionary)` must share dtype and device; got {Y.dtype} on {Y.device} and "
            f"{B.dtype} on {B.device}."
        )
    # Lengths matter where atoms are not rescaled: then one scale for all.
    scales = row_scales(B if rescale else B.reshape(1, -1)).expand(len(B), 1)
    B = B / scales
    weights = _weights(B.square().sum(1), rescale=rescale)
    atoms = B * weights[:, None]
    gram = atoms @ atoms.T
    rows = max(1, (_ENTRIES_CPU if B.device.type == "cpu" else _ENTRIES) // (k * len(B)))
    codes = [_pursue(samples @ atoms.T, gram, k) for samples in Y.split(rows)]
    support, values = (torch.cat(tensors) for tensors in zip(*codes, strict=True))
    values = values.mul_(weights[support]).div_(scales[support, 0])
    return SparseCodes(support, values, len(B))


def row_scales(matrix: Tensor) -> Tensor:
    """Return the power of two at or below the largest |entry| of each row (p, 1); 1 for zeros.

    To divide by it rounds nothing, and squares of what is left neither overflow nor vanish.
    """
    largest = matrix.abs().amax(1, keepdim=True)
    mantissa, _ = torch.frexp(largest)  # from 1/2 to 1
    return torch.where(largest > 0, largest / (2.0 * mantissa), 1.0)


def require_sparsity(value: object, num_atoms: int, dimension: int, call: str) -> int:
    """Return k if that many atoms can be told apart, else refuse.

    Args:
        value: k.
        num_atoms: p.
        dimension: Coordinates that are seen.
        call: How the user wrote it.

    Returns:
        k.

    Raises:
        InvalidArgumentError: If k exceeds the number of atoms or of coordinates.
    """
    k = require_count(value, call)
    if k > num_atoms:
        raise InvalidArgumentError(
            f"`{call}` must not exceed the number of atoms, {num_atoms}; got {k}."
        )
    if k > dimension:
        raise InvalidArgumentError(
            f"`{call}` must not exceed the number of coordinates that are seen, {dimension}; got "
            f"{k}. More atoms than that are linearly dependent."
        )
    return k


def pursue(
    correlations: Tensor, gram: Tensor, sparsity: int, *, rescale: bool
) -> tuple[Tensor, Tensor]:
    """Run the pursuit from BYᵀ and BBᵀ alone, without checks.

    Args:
        correlations: ⟨y, b⟩ (n, p); overwritten.
        gram: G (p, p).
        sparsity: k.
        rescale: As for `orthogonal_matching_pursuit`.

    Returns:
        Support and values, each (n, k).
    """
    weights = _weights(gram.diagonal(), rescale=rescale)
    scaled = (gram * weights).mul_(weights[:, None])
    support, values = _pursue(correlations.mul_(weights), scaled, sparsity)
    return support, values.mul_(weights[support])


def _weights(squares: Tensor, *, rescale: bool) -> Tensor:
    """Return what the atoms are multiplied by before they are compared; 0 stays 0."""
    return torch.where(squares > 0, squares.rsqrt(), 0.0) if rescale else torch.ones_like(squares)


def _pursue(alpha: Tensor, gram: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Run the pursuit; `alpha`, the correlations with the residual, is overwritten."""
    n, p = alpha.shape
    # A pivot below it is rounding: the atom lies in the span of those before.
    least = 100 * torch.finfo(gram.dtype).eps * gram.diagonal()
    support = torch.zeros(n, k, dtype=torch.int64, device=gram.device)
    along, inverse = gram.new_zeros(n, k), gram.new_zeros(n, k)
    W, scores = gram.new_empty(k, n, p), torch.empty_like(alpha)
    for i in range(k):
        torch.abs(alpha, out=scores)
        j = scores.scatter_(1, support[:, :i], -1.0).argmax(1, keepdim=True)
        w = torch.index_select(gram, 0, j.squeeze(1), out=W[i])
        for h in range(i):
            w.addcmul_(W[h].gather(1, j).mul_(inverse[:, h : h + 1]), W[h], value=-1.0)
        pivot = w.gather(1, j)
        over = torch.where(pivot > least[j], pivot.reciprocal(), 0.0)
        step = alpha.gather(1, j).mul_(over)
        alpha.addcmul_(step, w, value=-1.0)
        support[:, i : i + 1], along[:, i : i + 1], inverse[:, i : i + 1] = j, step, over
    return support, _coefficients(W, support, along, inverse)


def _coefficients(W: Tensor, support: Tensor, along: Tensor, inverse: Tensor) -> Tensor:
    """Solve Lᵀz = D⁻¹⟨q, y⟩; rows of atoms that could add nothing are 0 beside the diagonal."""
    upper = torch.stack([w.gather(1, support) for w in W], 1).mul_(inverse.unsqueeze(2))
    solution: Tensor = torch.linalg.solve_triangular(
        upper, along.unsqueeze(2), upper=True, unitriangular=True
    )
    return solution.squeeze(2)
