"""The sparse model of chapter 2 of the thesis: y = Σ z_j a_j + ε with few z_j.

Letters: A the true dictionary, one atom of length 1 a row (p, d); z a code with k entries; ε noise
of standard deviation σ in each coordinate; B a learned dictionary (p', d).
"""

import torch
from torch import Tensor

from eigenscape.errors import (
    require_choice,
    require_count,
    require_not_negative,
    require_positive,
    require_seed,
)
from eigenscape_papers.representations._checks import require_matrix
from eigenscape_papers.representations.omp import SparseCodes, require_sparsity, row_scales

METRICS = ("cosine", "squared")


def random_dictionary(num_atoms: int, dimension: int, *, seed: int = 0) -> Tensor:
    """Draw atoms uniformly from the unit sphere, in float64.

    Args:
        num_atoms: p.
        dimension: d.
        seed: Fixes them.

    Returns:
        The atoms (p, d).

    Raises:
        InvalidArgumentError: If a number is out of range.

    Examples:
        >>> A = random_dictionary(5, 3)
        >>> torch.allclose(A.norm(dim=1), torch.ones(5, dtype=A.dtype))
        True
    """
    require_count(num_atoms, "random_dictionary(num_atoms)")
    require_count(dimension, "random_dictionary(dimension)")
    require_seed(seed, "random_dictionary")
    draw = torch.Generator().manual_seed(seed)
    return unit_rows(torch.randn(num_atoms, dimension, generator=draw, dtype=torch.float64))


def sparse_samples(
    dictionary: Tensor,
    num_samples: int,
    *,
    sparsity: int,
    noise: float = 0.0,
    scale: float | None = None,
    seed: int = 0,
) -> tuple[Tensor, SparseCodes]:
    """Draw samples of the sparse model.

    Supports are uniform, entries on them Gaussian.

    Args:
        dictionary: A.
        num_samples: n.
        sparsity: k.
        noise: σ.
        scale: Standard deviation of the entries. By default codes are scaled to length 1, as in the
            thesis's experiments; its Theorem 2.3.6 has a scale σ_z.
        seed: Fixes every number, whatever the device.

    Returns:
        The samples (n, d), and the codes that made them.

    Raises:
        InvalidArgumentError: If a number is out of range.

    Examples:
        >>> Y, codes = sparse_samples(torch.eye(4), 10, sparsity=2)
        >>> torch.allclose(Y.norm(dim=1), torch.ones(10))
        True
        >>> codes.support.shape
        torch.Size([10, 2])
    """
    call = "sparse_samples"
    A = require_matrix(dictionary, f"{call}(dictionary)")
    n = require_count(num_samples, f"{call}(num_samples)")
    k = require_sparsity(sparsity, len(A), A.shape[1], f"{call}(sparsity=...)")
    require_seed(seed, call)
    require_not_negative(noise, f"{call}(noise=...)")
    draw = torch.Generator().manual_seed(seed)
    support = torch.rand(n, len(A), generator=draw).topk(k).indices
    values = torch.randn(n, k, generator=draw, dtype=torch.float64)
    epsilon = noise * torch.randn(n, A.shape[1], generator=draw, dtype=torch.float64)
    if scale is None:
        values = unit_rows(values)
    else:
        values = require_positive(scale, f"{call}(scale=...)") * values
    codes = SparseCodes(support.to(A.device), values.to(A), len(A))
    return codes.combine(A) + epsilon.to(A), codes


def recovery_error(truth: Tensor, learned: Tensor, *, metric: str = "cosine") -> float:
    """Return how far the true atoms are from the learned ones nearest to them, signs aside.

    "cosine" is the mean over atoms of 1 − max_j |cos(a_i, b_j)|, which the thesis draws; "squared"
    is its (2.2), the mean of min_j min_± ‖a_i ∓ b_j‖². For atoms of length 1 it is twice the other.
    Atoms that the truth has no use for cost nothing.

    Args:
        truth: A (p, d).
        learned: B (p', d).
        metric: "cosine" or "squared".

    Returns:
        The error; 0 if every true atom was found.

    Raises:
        ShapeError: If the dictionaries are of different dimensions.
        UnknownNameError: If there is no such metric.

    Examples:
        >>> recovery_error(torch.eye(2), torch.tensor([[-3.0, 0.0]]))  # one found, one lost
        0.5
    """
    require_choice(metric, METRICS, "recovery_error(metric=...)")
    A = require_matrix(truth, "recovery_error(truth)").double()
    B = require_matrix(learned, "recovery_error(learned)", columns=A.shape[1]).to(A)
    if metric == "cosine":
        errors = 1.0 - (unit_rows(A) @ unit_rows(B).T).abs().amax(1)
    else:
        squares = A.square().sum(1, keepdim=True) + B.square().sum(1)
        errors = (squares - 2.0 * (A @ B.T).abs()).amin(1)
    return float(errors.clamp_min(0.0).mean())  # below 0 is rounding


def unit_rows(matrix: Tensor) -> Tensor:
    """Return rows scaled to length 1, however long they were; those of length 0 stay."""
    scaled = matrix / row_scales(matrix)
    lengths: Tensor = scaled.norm(dim=1, keepdim=True)
    return scaled / lengths.clamp_min(1.0)  # only rows of 0 are below
