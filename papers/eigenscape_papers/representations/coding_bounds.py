"""What chapter 2 of the thesis proves, as numbers: overfitting dictionaries, and masked losses.

Letters as in `sparse_data.py`; M the coordinates that are decoded from, Λ_S the atoms of a support
S on M and C_S the same atoms on the other coordinates, both as columns; σ_z the scale of codes.
"""

import itertools
import math

import torch
from torch import Tensor

from eigenscape.errors import (
    InvalidArgumentError,
    ShapeError,
    TooLargeError,
    WrongTypeError,
    require_count,
    require_positive,
)
from eigenscape_papers.representations._checks import require_matrix, require_wide, widened
from eigenscape_papers.representations.omp import orthogonal_matching_pursuit, require_sparsity
from eigenscape_papers.representations.sparse_data import unit_rows

_MOST_SUPPORTS = 200_000


def coherence(dictionary: Tensor, observed: Tensor | None = None) -> float:
    """Return the largest |cosine| between two atoms.

    Args:
        dictionary: Atoms (p, d), two or more.
        observed: Look at these coordinates alone.

    Returns:
        μ, from 0 to 1.

    Raises:
        InvalidArgumentError: If there are fewer than two atoms, or an observed coordinate is none.

    Examples:
        >>> round(coherence(torch.tensor([[1.0, 0.0], [3.0, 4.0]])), 6)
        0.6
    """
    A = require_matrix(dictionary, "coherence(dictionary)")
    require_count(len(A), "coherence(dictionary)'s number of atoms", at_least=2)
    if observed is not None:
        A = A[:, _split(observed, A.shape[1], "coherence(observed)")[0]]
    A = unit_rows(widened(A))
    return min(1.0, float((A @ A.T).abs().fill_diagonal_(0.0).max()))


def best_sparse_losses(Y: Tensor, dictionary: Tensor, *, sparsity: int) -> Tensor:
    """Return min ‖y − Σ z_j b_j‖² over all codes with k entries, by trying every support.

    Computed in float64. Of atoms that are linearly dependent but for rounding (a singular value
    below 100 ε of the largest, by the dtype of the atoms) only their span counts.

    Cost: (p choose k) least-squares problems of size d by k, and a product with every sample.

    Args:
        Y: Samples (n, d).
        dictionary: Atoms (p, d).
        sparsity: k.

    Returns:
        The losses (n,).

    Raises:
        TooLargeError: If there are more than 200 000 supports; matching pursuit is for those.
        InvalidArgumentError: If `sparsity` exceeds atoms or coordinates.
        ShapeError: If samples and atoms do not fit each other, or are of half precision.

    Examples:
        >>> Y = torch.tensor([[1.0, 2.0, 3.0]])
        >>> best_sparse_losses(Y, torch.eye(3), sparsity=1).tolist()  # all but the largest
        [5.0]
    """
    call = "best_sparse_losses"
    B = require_wide(require_matrix(dictionary, f"{call}(dictionary)"), f"{call}(dictionary)")
    Y = require_matrix(Y, f"{call}(Y)", columns=B.shape[1])
    k = require_sparsity(sparsity, len(B), B.shape[1], f"{call}(sparsity=...)")
    supports = _all_supports(len(B), k, call).to(B.device)
    least, atoms, wide = 100 * torch.finfo(B.dtype).eps, unit_rows(B.double()), Y.double()
    most = wide.new_zeros(len(Y))
    for chunk in supports.split(max(1, 2**22 // (len(Y) * k))):
        # The left singular vectors of atoms that may depend on one another; zeros where they do.
        U, s, _ = torch.linalg.svd(atoms[chunk].mT, full_matrices=False)
        U = U * (s > s[:, :1] * least).to(U).unsqueeze(1)
        most = torch.maximum(most, (wide @ U).square().sum(2).amax(0))
    return (wide.square().sum(1) - most).clamp_min(0.0).to(Y)


def net_dictionary(dictionary: Tensor, *, num_directions: int, clearance: float) -> Tensor:
    """Return directions spread over the plane of every two atoms, none of them near an atom.

    One atom of it explains a sample about as well as two true ones do, noise included: the
    dictionary that beats the truth in Theorem 2.3.2, for k = 1. Coefficients absorb lengths, so a
    half circle in each plane is enough.

    Args:
        dictionary: A (p, d), two atoms or more.
        num_directions: Directions of each plane, before those near an atom are dropped.
        clearance: Smallest angle to any true atom, in radians. The theorem takes it, and the mesh,
            to be of the order of σ.

    Returns:
        The net (q, d), q at most `num_directions` · p(p − 1)/2.

    Raises:
        InvalidArgumentError: If a number is out of range, or nothing is left.

    Examples:
        >>> net = net_dictionary(torch.eye(2), num_directions=2, clearance=0.1)
        >>> net.shape, round(coherence(torch.cat([net[:1], torch.eye(2)])), 4)  # 45 degrees
        (torch.Size([2, 2]), 0.7071)
    """
    call = "net_dictionary"
    A = unit_rows(require_matrix(dictionary, f"{call}(dictionary)"))
    m = require_count(num_directions, f"{call}(num_directions=...)")
    angle = require_positive(clearance, f"{call}(clearance=...)")
    first, second = torch.combinations(torch.arange(len(A), device=A.device)).T
    across = A[second] - (A[first] * A[second]).sum(1, keepdim=True) * A[first]
    turns = (torch.arange(m, device=A.device, dtype=A.dtype) + 0.5) * (math.pi / m)
    along = turns.cos()[:, None, None] * A[first] + turns.sin()[:, None, None] * unit_rows(across)
    net = along.flatten(0, 1)
    net = net[(net @ A.T).abs().amax(1) <= math.cos(angle)] if len(net) else net
    if not len(net):
        raise InvalidArgumentError(
            f"`{call}(clearance=...)` of {angle:g} leaves no direction. Take fewer atoms or a "
            "smaller angle; there must be two atoms at least."
        )
    return net


def masked_losses(
    Y: Tensor, dictionary: Tensor, observed: Tensor, *, sparsity: int, rescale: bool = True
) -> Tensor:
    """Return ‖y − Σ z_j b_j‖² on the coordinates that matching pursuit did not see.

    Args:
        Y: Samples (n, d).
        dictionary: Atoms (p, d).
        observed: M, the coordinates that are decoded from: numbers, or a mask of booleans.
        sparsity: k.
        rescale: As for `orthogonal_matching_pursuit`.

    Returns:
        The losses (n,); their mean estimates L_mask.

    Raises:
        InvalidArgumentError: If the mask hides everything or nothing, or `sparsity` exceeds the
            atoms or the coordinates that are seen.

    Examples:
        >>> B = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> Y = torch.tensor([[2.0, 5.0, 1.0]])  # decoded from the first: 2·b₁
        >>> masked_losses(Y, B, torch.tensor([0]), sparsity=1).tolist()  # (5 − 2)² + 1²
        [10.0]
    """
    call = "masked_losses"
    B = require_wide(require_matrix(dictionary, f"{call}(dictionary)"), f"{call}(dictionary)")
    Y = require_matrix(Y, f"{call}(Y)", columns=B.shape[1])
    visible, hidden = _split(observed, B.shape[1], f"{call}(observed)")
    require_sparsity(sparsity, len(B), len(visible), f"{call}(sparsity=...)")
    codes = orthogonal_matching_pursuit(
        Y[:, visible], B[:, visible], sparsity=sparsity, rescale=rescale
    )
    return (Y[:, hidden] - codes.combine(B[:, hidden])).square().sum(1)


def masked_oracle_loss(
    dictionary: Tensor,
    observed: Tensor,
    *,
    sparsity: int,
    noise: float,
    scale: float | None = None,
    supports: Tensor | None = None,
) -> float:
    """Return the masked loss of one who is told the support, in closed form.

    Without `scale` it is that of least squares, (d − |M|)σ² + σ² E tr(C_S(Λ_SᵀΛ_S)⁻¹C_Sᵀ). With it,
    that of the Bayes estimator for codes N(0, σ_z²), which no dictionary can beat: the same with
    Λ_SᵀΛ_S + (σ²/σ_z²)I. ((A.15) of the thesis prints 1/σ_z², right for σ = 1.)

    Args:
        dictionary: A (p, d).
        observed: M: numbers, or a mask of booleans.
        sparsity: k.
        noise: σ.
        scale: σ_z.
        supports: Supports to average over (s, k), atoms from 0; all of them by default.

    Returns:
        The loss.

    Raises:
        InvalidArgumentError: If the mask hides everything or nothing, a number is out of range, or
            atoms of a support cannot be told apart on the coordinates that are seen, or one is
            none or named twice.
        ShapeError: If the supports are not (s, k), or not of integers.
        TooLargeError: If there are more than 200 000 supports.

    Examples:
        >>> A = torch.tensor([[0.6, 0.8]])
        >>> loss = masked_oracle_loss(A, torch.tensor([0]), sparsity=1, noise=0.5)
        >>> round(loss, 4)  # 0.25 (1 + 0.64/0.36)
        0.6944
    """
    call = "masked_oracle_loss"
    A = require_matrix(dictionary, f"{call}(dictionary)").double()
    visible, hidden = _split(observed, A.shape[1], f"{call}(observed)")
    k = require_sparsity(sparsity, len(A), len(visible), f"{call}(sparsity=...)")
    variance = require_positive(noise, f"{call}(noise=...)") ** 2
    S = _all_supports(len(A), k, call) if supports is None else supports
    _require_supports(S, len(A), k, f"{call}(supports=...)")
    total = 0.0
    ridge = 0.0 if scale is None else variance / require_positive(scale, f"{call}(scale=...)") ** 2
    for chunk in S.to(A.device).split(2**16):
        inner = A[chunk][..., visible] @ A[chunk][..., visible].mT
        inner.diagonal(dim1=1, dim2=2).add_(ridge)
        factor, info = torch.linalg.cholesky_ex(inner)
        least = factor.diagonal(dim1=1, dim2=2).amin(1) ** 2
        if bool((info != 0).any()) or bool((least < 1e-12 * inner.amax((1, 2))).any()):
            raise InvalidArgumentError(
                f"`{call}`: on the {len(visible)} coordinates that are seen some {k} atoms are "
                "linearly dependent, so that least squares has no single answer. See more of them."
            )
        C = A[chunk][..., hidden]
        total += float((torch.cholesky_solve(C, factor) * C).sum())
    return variance * (len(hidden) + total / len(S))


def pursuit_guarantee(
    *, noise: float, sparsity: int, num_atoms: int, mu: float, eta: float = 0.0
) -> tuple[float, float]:
    """Return how large entries must be for matching pursuit to choose them, and how likely it does.

    Theorem A.1.1 of the thesis (Cai and Wang): while entries of at least the first number are left,
    each step chooses one of them, with at least the second as probability. The exponent of p is η;
    the thesis prints n.

    Args:
        noise: σ.
        sparsity: k.
        num_atoms: p, two or more.
        mu: Coherence of the atoms of length 1, below 1/(2k − 1).
        eta: η ≥ 0; more asks for larger entries and promises more.

    Returns:
        The threshold 2σ√k √(2(1 + η) log p)/(1 − (2k − 1)μ), and 1 − 1/(p^η √(2 log p)).

    Raises:
        InvalidArgumentError: If a number is out of range.

    Examples:
        >>> size, chance = pursuit_guarantee(noise=0.5, sparsity=1, num_atoms=100, mu=0.5)
        >>> round(size / (2 * math.sqrt(2 * math.log(100))), 6), round(chance, 4)
        (1.0, 0.6705)
    """
    call = "pursuit_guarantee"
    k = require_count(sparsity, f"{call}(sparsity=...)")
    p = require_count(num_atoms, f"{call}(num_atoms=...)", at_least=2)
    sigma = require_positive(noise, f"{call}(noise=...)")
    if not 0.0 <= mu < 1.0 / (2 * k - 1) or not 0.0 <= eta < math.inf:
        raise InvalidArgumentError(
            f"`{call}(mu=..., eta=...)` needs 0 ≤ mu < 1/(2k − 1) = {1 / (2 * k - 1):.4g} and "
            f"eta ≥ 0; got {mu} and {eta}. The theorem says nothing of more coherent atoms."
        )
    size = 2 * sigma * math.sqrt(2 * k * (1 + eta) * math.log(p)) / (1 - (2 * k - 1) * mu)
    return size, 1.0 - 1.0 / (p**eta * math.sqrt(2 * math.log(p)))


def largest_chi_square_bound(count: int) -> float:
    """Return 3 log n + 1.5 log 3, which bounds the mean of the largest of n squared Gaussians.

    Lemma A.1.2 of the thesis, the moment-generating function at 1/3.

    Args:
        count: n.

    Returns:
        The bound.

    Examples:
        >>> round(largest_chi_square_bound(1), 4)  # the mean of one is 1
        1.6479
    """
    n = require_count(count, "largest_chi_square_bound(count)")
    return 3.0 * math.log(n) + 1.5 * math.log(3.0)


def _require_supports(supports: object, num_atoms: int, sparsity: int, call: str) -> None:
    """Refuse what names no supports."""
    if not isinstance(supports, Tensor):
        raise WrongTypeError(f"`{call}` must be a tensor; got {type(supports).__name__}.")
    fits = supports.ndim == 2 and len(supports) > 0 and supports.shape[1] == sparsity
    if not fits or supports.dtype not in (torch.int64, torch.int32):
        raise ShapeError(
            f"`{call}` must be integers (s, {sparsity}), one support or more; got "
            f"{tuple(supports.shape)} of {supports.dtype}."
        )
    low, high = int(supports.min()), int(supports.max())
    if low < 0 or high >= num_atoms:
        raise InvalidArgumentError(
            f"`{call}` must name atoms from 0 to {num_atoms - 1}; got {low} to {high}."
        )
    if bool((supports.sort(1).values.diff(dim=1) == 0).any()):
        raise InvalidArgumentError(f"`{call}` names an atom twice in one support. Name it once.")


def _split(observed: Tensor, dimension: int, call: str) -> tuple[Tensor, Tensor]:
    """Return the coordinates that are seen and those that are hidden, or refuse."""
    if not isinstance(observed, Tensor):
        raise WrongTypeError(
            f"`{call}` must be a tensor of coordinates or booleans; got {type(observed).__name__}."
        )
    visible = torch.zeros(dimension, dtype=torch.bool, device=observed.device)
    if observed.dtype == torch.bool and observed.shape == (dimension,):
        visible |= observed
    elif observed.ndim == 1 and observed.dtype in (torch.int64, torch.int32):
        if bool(((observed < 0) | (observed >= dimension)).any()):
            raise InvalidArgumentError(f"`{call}` must name coordinates from 0 to {dimension - 1}.")
        visible[observed.long()] = True
    else:
        raise ShapeError(
            f"`{call}` must be a vector of coordinates or {dimension} booleans; got "
            f"{tuple(observed.shape)} of {observed.dtype}."
        )
    if not 0 < int(visible.sum()) < dimension:
        what = "nothing" if bool(visible.all()) else "everything"
        raise InvalidArgumentError(
            f"`{call}` hides {what}: of {dimension} coordinates some must be seen, others not."
        )
    return visible.nonzero().squeeze(1), (~visible).nonzero().squeeze(1)


def _all_supports(num_atoms: int, sparsity: int, call: str) -> Tensor:
    if (count := math.comb(num_atoms, sparsity)) > _MOST_SUPPORTS:
        raise TooLargeError(
            f"`{call}` would try {count} supports of {sparsity} among {num_atoms} atoms, more than "
            f"{_MOST_SUPPORTS}. Take a smaller dictionary."
        )
    return torch.tensor(list(itertools.combinations(range(num_atoms), sparsity)))
