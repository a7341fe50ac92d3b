"""What overlap should the same layer of two networks have, if Kronecker products were all (Wu F.3)?

Letters: τ_i, r_i eigenvalues and eigenvectors of the output Hessian E[M] (m, m); γ_j, t_j those of
the input autocorrelation E[xxᵀ] (n, n). The layer's eigenvectors are then r_i ⊗ t_j, by descending
τ_i γ_j. a_j(k) of the first k have t_j in the first network, b_j(k) in the second.
"""

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from eigenscape.analyses import require_orthonormal
from eigenscape.curvature import KroneckerHessian
from eigenscape.device import eigh
from eigenscape.errors import NonFiniteError, ShapeError, require_count
from eigenscape.records import Columns, Picture, Record, Status
from eigenscape_papers.wu._pictures import prediction_picture

Spectra: TypeAlias = tuple[Tensor, Tensor, Tensor]
_TEXTS = {
    "linear growth": "Theorem F.1 holds: the overlap grows linearly and peaks at dimension {m}.",
    "constant": "App. F.3.2: the overlap of an output layer stays the same up to dimension {m}.",
    "early peak": "App. F.3.3: the overlap follows Theorem F.1 up to dimension {q} only, where "
    "τ γ₁ falls below τ₁ γ₂, and peaks at {peak}, before dimension {m}.",
    "delayed peak": "App. F.3.3: from dimension {q} on, other inputs mix in, but the output "
    "Hessian has a heavy tail: the overlap peaks at {peak}, not before dimension {m}.",
    "early drop": "The output layer's overlap stays the same up to dimension {q} only, where τ γ₁ "
    "falls below τ₁ γ₂.",
}


@dataclass(frozen=True, eq=False)
class OverlapPrediction(Record):
    """The predicted overlap of two networks' top eigenspaces in one layer.

    Attributes:
        overlaps: Predicted overlap (K,) of the spaces of the first k eigenvectors, k = 1, …, K.
        chance: What two random spaces have: k/(mn) (K,).
        shares: a_1(k)/k and b_1(k)/k (2, K): how many of the first k eigenvectors are r ⊗ t_1.
        alignment: (t_1 · t_1')², the peak of Theorem F.1.
        reach: The dimension up to which Theorem F.1 holds in both networks: how many τ_i have
            τ_i γ_1 > τ_1 γ_2.
        rank: The smaller rank of the two E[M]; m, unless units are dead or the layer is the output
            of a softmax, whose E[M] has a zero eigenvalue.
        peak: Where the overlap is furthest above chance, among the first 2m dimensions, or K if
            that is more.
        regime: "linear growth" (Theorem F.1: k/m · alignment for k ≤ m), "constant" (an output
            layer: the alignment for k ≤ m), "early peak" or "delayed peak" (App. F.3.3), "early
            drop" (an output layer for which the theorem fails).
    """

    overlaps: Tensor
    chance: Tensor
    shares: Tensor
    alignment: float
    reach: int
    rank: int
    peak: int
    regime: str

    def columns(self) -> Columns:
        """Return one row for each dimension."""
        return {
            "num_vectors": range(1, len(self.overlaps) + 1),
            "overlap": self.overlaps.tolist(),
            "chance": self.chance.tolist(),
            "first input share": self.shares.mean(0).tolist(),
        }

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (prediction_picture(self),)


def overlap_prediction(
    first: KroneckerHessian | Spectra,
    second: KroneckerHessian | Spectra,
    *,
    num_vectors: int | None = None,
    num_inputs: int = 1,
    is_output_layer: bool = False,
) -> OverlapPrediction:
    """Predict the eigenspace overlap of one layer in two networks from its Kronecker factors.

    In a hidden layer the units of two networks come in unrelated orders, so that the r_i of one are
    random to the other, and the expected overlap is

        1/(k m) Σ_jj' a_j(k) b_j'(k) (t_j · t_j')².

    While only t_1 is in use this is (k/m)(t_1 · t_1')², Theorem F.1. In an output layer the
    units are the classes and r_i the same: (1/k) Σ_jj' min(a_j, b_j') (t_j · t_j')². Of the t_j the
    first `num_inputs` are compared; the others count as random (F.3.1). Wu's example, fc2 of
    F-200² on MNIST, has (t_1 · t_1')² ≈ 0.25 and reach 9: 9/200 · 0.25 ≈ 0.012 at its early peak.

    Args:
        first: A layer's `KroneckerHessian`, or (τ, γ, t): eigenvalues of E[M] (m,) and of E[xxᵀ]
            (n,), and eigenvectors of E[xxᵀ], (n,) for the first alone or (n, r), normalised.
        second: The same layer of another network.
        num_vectors: Largest dimension K; 2m by default.
        num_inputs: How many t_j of each network to compare; 1 as in the theorem.
        is_output_layer: Whether its outputs are those of the network, in a fixed order.

    Returns:
        The predicted curve, and which regime applies.

    Raises:
        ShapeError: If the layers differ in shape, or eigenvectors are missing.
        InvalidArgumentError: If eigenvectors are not normalised.
        NonFiniteError: If an eigenvalue is NaN or infinite.

    Examples:
        >>> tau, gamma = torch.tensor([3.0, 2.0]), torch.tensor([9.0, 1.0, 0.5])
        >>> t = torch.tensor([1.0, 0.0, 0.0])
        >>> found = overlap_prediction((tau, gamma, t), (tau, gamma, t), num_vectors=2)
        >>> found.regime, found.overlaps.tolist()
        ('linear growth', [0.5, 1.0])

    References:
        Wu Theorem F.1, App. F.3.
    """
    one, two = (_spectra(network, num_inputs) for network in (first, second))
    if len(one[0]) != len(two[0]) or len(one[1]) != len(two[1]):
        raise ShapeError(
            "`overlap_prediction(first, second)` needs layers of one shape; got "
            f"{len(one[0])}×{len(one[1])} and {len(two[0])}×{len(two[1])}."
        )
    m, n = len(one[0]), len(one[1])
    wanted = min(2 * m, m * n) if num_vectors is None else num_vectors
    K = require_count(wanted, "overlap_prediction(num_vectors=...)", at_most=m * n)
    count = max(K, min(2 * m, m * n))
    A, B = (_counts(tau, gamma, count) for tau, gamma, _ in (one, two))
    J = max(A.shape[1], B.shape[1])
    A, B = (torch.nn.functional.pad(counts, (0, J - counts.shape[1])) for counts in (A, B))
    T = _squared_products(one[2], two[2], J)
    k = torch.arange(1, count + 1, dtype=torch.float64)
    if is_output_layer:
        common = [torch.minimum(a[:, None], b[None, :]) for a, b in zip(A, B, strict=True)]
        overlaps = torch.stack([(shared * T).sum() for shared in common]) / k
    else:
        overlaps = ((A @ T) * B).sum(1) / (k * m)
    chance = k / (m * n)
    reach, rank = (min(pair) for pair in zip(_reach(one), _reach(two), strict=True))
    peak = int((overlaps - chance).argmax()) + 1
    regime = _regime(reach, rank, peak, is_output_layer)
    return OverlapPrediction(
        status=Status(True, _TEXTS[regime].format(m=rank, q=reach, peak=peak)),
        num_products=0,
        seed=0,
        overlaps=overlaps[:K],
        chance=chance[:K],
        shares=torch.stack([A[:, 0], B[:, 0]])[:, :K] / k[:K],
        alignment=float(T[0, 0]),
        reach=reach,
        rank=rank,
        peak=peak,
        regime=regime,
    )


def _spectra(network: KroneckerHessian | Spectra, num_inputs: int) -> Spectra:
    """Return τ (m,), γ (n,) and t (n, num_inputs), descending, in float64 on the host."""
    if isinstance(network, KroneckerHessian):
        tau = torch.linalg.eigvalsh(network.output_factor)
        gamma, t = eigh(network.input_factor)
        network = (tau, gamma, t.flip(1))
    tau, gamma, t = (tensor.double().cpu() for tensor in network)
    t = t[:, None] if t.ndim == 1 else t
    require_count(num_inputs, "overlap_prediction(num_inputs=...)", at_most=max(1, len(gamma)))
    fits = tau.ndim == gamma.ndim == 1 and t.ndim == 2 and len(tau) > 0
    if not fits or len(t) != len(gamma) or t.shape[1] < num_inputs:
        raise ShapeError(
            "`overlap_prediction((τ, γ, t), ...)` needs τ (m,), γ (n,) and t (n, r) with r ≥ "
            f"num_inputs = {num_inputs}; got {tuple(tau.shape)}, {tuple(gamma.shape)} and "
            f"{tuple(t.shape)}."
        )
    if not bool(tau.isfinite().all() and gamma.isfinite().all()):
        raise NonFiniteError(
            "`overlap_prediction((τ, γ, t), ...)` has eigenvalues that are NaN or infinite. Check "
            "the networks they come from."
        )
    t = require_orthonormal(t[:, :num_inputs], "overlap_prediction((τ, γ, t), ...)")
    # Eigenvalues of positive semi-definite matrices: what is below zero is rounding.
    tau, gamma = (
        eigenvalues.clamp(min=0.0).sort(descending=True).values for eigenvalues in (tau, gamma)
    )
    return tau, gamma, t


def _counts(tau: Tensor, gamma: Tensor, count: int) -> Tensor:
    """Return a_j(k) (count, J) for k = 1, …, count, with J the number of t_j in use."""
    which = torch.outer(tau, gamma).flatten().topk(count).indices % len(gamma)
    return torch.nn.functional.one_hot(which).cumsum(0).double()


def _squared_products(t: Tensor, other: Tensor, size: int) -> Tensor:
    """Return (t_j · t_j')² (size, size); beyond those given, what is left is spread evenly.

    Rows and columns of the whole matrix (n, n) add up to 1.
    """
    n, r = t.shape
    known = (t.T @ other).square().clamp(max=1.0)
    if r == n:
        return known[:size, :size]
    even_share = (n - 2 * r + known.sum()) / (n - r) ** 2
    T = even_share.repeat(max(size, r), max(size, r))
    T[:r, :r] = known
    T[:r, r:] = ((1 - known.sum(1)) / (n - r))[:, None]
    T[r:, :r] = ((1 - known.sum(0)) / (n - r))[None, :]
    return T[:size, :size]


def _reach(spectra: Spectra) -> tuple[int, int]:
    """Count the τ_i with τ_i γ_1 > τ_1 γ_2, and those that are not zero."""
    tau, gamma, _ = spectra
    second = float(gamma[1]) if len(gamma) > 1 else 0.0
    # Networks are mostly in float32, and know a zero eigenvalue to its rounding only.
    rank = int((tau > tau[0] * len(tau) * torch.finfo(torch.float32).eps).sum())
    return min(rank, int((tau * gamma[0] > tau[0] * second).sum())), rank


def _regime(reach: int, rank: int, peak: int, is_output_layer: bool) -> str:
    if reach >= rank:
        return "constant" if is_output_layer else "linear growth"
    if is_output_layer:
        return "early drop"
    return "early peak" if peak < rank else "delayed peak"
