r"""The output Hessian of a wide random two-layer network (Wu App. H, Thesis 4.4).

Letters: W1 (n, d) with entries of variance 1/d and W2 (c, n) of variance 1/n; x the input;
u = W1 x; D = diag(u > 0); z = W2 relu(u); p = softmax(z); A = diag(p) − ppᵀ;
M = E[D W2ᵀ A W2 D] the output Hessian of the first layer (Wu (67), Thesis (4.4)); M* the same with
D independent of A; π_j the probability that unit j is active. R(W2) \ {1ᵀW2}, in the papers, is
the row space of the centred weights (I − 11ᵀ/c) W2.

Inputs are "gaussian", N(0, I) as in Wu, or "rectified", max(N(0, I), 0) as in the Thesis. Rectified
inputs have a mean, the sums Σ_i W1_ji do not vanish (they are N(0, 1), not N(0, 1/d) as in Thesis
Lemma C.2.1), and so π_j = Φ(m_j/s_j) is not ½. The formulae here have π where the papers have ½;
π = ½ gives the papers' back.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.errors import InvalidArgumentError, ShapeError, require_count, require_positive
from eigenscape.linalg import eigsh
from eigenscape.operator import Dense
from eigenscape.records import Columns, EigenPairs, Picture, Record, Status
from eigenscape_papers.theory._pictures import decoupling_picture, two_layer_picture, width_picture
from eigenscape_papers.theory._two_layer_samples import (
    FirstLayerHessian,
    HiddenLaw,
    draw_network,
    moments,
    pre_activations,
    softmax_roots,
)
from eigenscape_papers.theory.multilayer import centred_row_space, row_overlap_limit
from eigenscape_papers.theory.softmax_hessian import expected_softmax_hessian

# The c-th eigenvalue stands at the edge of a bulk, where vectors converge slowly; its value is good
# to the square of this.
_TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class TwoLayerHessian(Record):
    """An output Hessian of a first layer, predicted or estimated, with what the theorems say of it.

    Attributes:
        matrix: M or M* (n, n), float64.
        standard_error: Expected Frobenius distance of `matrix` from M: 0 for a prediction.
        softmax_hessian: E[A] (c, c).
        softmax_stderr: Standard error of its entries (c, c).
        firing: π (n,), or the share of samples at which each unit was active.
        pairs: The c largest eigenpairs.
        ratio: λ_c / λ_{c−1}; small where the matrix is nearly of rank c − 1.
        row_overlap: Overlap of the top c − 1 eigenspace with the row space of the centred W2.
        firing_overlap: The same with the columns of W2 scaled by π.
        num_samples: Inputs drawn; 0 for a prediction.
    """

    matrix: Tensor
    standard_error: float
    softmax_hessian: Tensor
    softmax_stderr: Tensor
    firing: Tensor
    pairs: EigenPairs
    ratio: float
    row_overlap: float
    firing_overlap: float
    num_samples: int

    def columns(self) -> Columns:
        """Return the c largest eigenvalues with their residuals."""
        return self.pairs.columns()

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (two_layer_picture(self),)


@dataclass(frozen=True, eq=False)
class FiniteWidthCurve(Record):
    """How fast the output Hessian of a random two-layer network reaches its limit.

    Attributes:
        widths: The widths n.
        num_classes: Number of classes c.
        num_samples: Inputs drawn for each network.
        inputs: Law of the inputs.
        ratios: λ_c / λ_{c−1} of the estimated M (w, s), for each width and seed.
        predicted_ratios: The same of M* (w, s), which has no sampling error.
        row_overlaps: Overlap of the top c − 1 eigenspace with the row space of the centred W2.
        firing_overlaps: The same with the columns of W2 scaled by π.
        row_limit: What `row_overlaps` tend to.
    """

    widths: tuple[int, ...]
    num_classes: int
    num_samples: int
    inputs: str
    ratios: Tensor
    predicted_ratios: Tensor
    row_overlaps: Tensor
    firing_overlaps: Tensor
    row_limit: float

    def columns(self) -> Columns:
        """Return one row for each width: means over seeds, and their standard deviations."""
        table: dict[str, list[float] | tuple[int, ...]] = {"width": self.widths}
        for name in ("ratio", "predicted_ratio", "row_overlap", "firing_overlap"):
            values: Tensor = getattr(self, f"{name}s")
            table[name] = values.mean(1).tolist()
            table[f"{name}_spread"] = values.std(1, correction=min(1, values.shape[1] - 1)).tolist()
        return table

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (width_picture(self),)


@dataclass(frozen=True, eq=False)
class Decoupling(Record):
    """A first layer's Hessian H against its Kronecker form Ĥ = M ⊗ E[xxᵀ].

    Attributes:
        pairs: The c largest eigenpairs of H, vectors (n·d, c), row-major.
        ratio: λ_c / λ_{c−1} of H.
        overlap: Overlap of the top c − 1 eigenspaces of H and Ĥ.
        num_samples: Inputs drawn.
    """

    pairs: EigenPairs
    ratio: float
    overlap: float
    num_samples: int

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (decoupling_picture(self),)


def hidden_law(first_weights: Tensor, *, inputs: str = "gaussian") -> HiddenLaw:
    """Return the law of each hidden unit before its ReLU, given W1.

    u_j has mean E[x] Σ_i W1_ji and variance Var[x] ‖W1_j‖². It is Gaussian for Gaussian inputs, and
    for rectified ones as d → ∞. Units are taken as independent, which d → ∞ makes them.

    Args:
        first_weights: W1 (n, d).
        inputs: "gaussian" or "rectified".

    Returns:
        The law; its `firing()` are the π_j.

    Raises:
        ShapeError: If it is not a matrix.
        UnknownNameError: If the inputs are of another kind.

    Examples:
        >>> hidden_law(torch.tensor([[3.0, -4.0]])).firing().tolist()
        [0.5]
    """
    W1 = _require_matrix(first_weights, "hidden_law(first_weights)")
    mean, variance = moments(inputs, "hidden_law")
    return HiddenLaw(mean * W1.sum(1), math.sqrt(variance) * W1.norm(dim=1))


def limit_output_hessian(
    second_weights: Tensor,
    *,
    softmax_hessian: Tensor | None = None,
    law: HiddenLaw | None = None,
) -> TwoLayerHessian:
    """Return M*, the output Hessian of a wide random two-layer network, with its eigenspace.

    With T = W2ᵀ E[A] W2, M* has π_j π_k T_jk off and π_j T_jj on the diagonal. For π = ½ that is
    ¼ (T + diag T), Wu (72) and Thesis (4.8). T is of rank c − 1; diag T, of the same trace, is
    spread over n directions, so that the top c − 1 eigenspace tends to the row space of the centred
    W2 with columns scaled by π (Wu Theorem H.1 and Thesis Theorem 4.4.2 for π = ½).

    Args:
        second_weights: W2 (c, n).
        softmax_hessian: E[A] (c, c). By default that of independent Gaussian logits with the means
            and variances that `law` gives them, which has errors of order 1/√n.
        law: Of the hidden units; N(0, 1) by default, for which π = ½.

    Returns:
        The prediction.

    Raises:
        ShapeError: If shapes do not fit.

    Examples:
        >>> W2 = torch.eye(2, 3)
        >>> limit_output_hessian(W2, softmax_hessian=torch.eye(2) - 0.5).matrix[:2, :2].tolist()
        [[0.25, -0.125], [-0.125, 0.25]]
    """
    W2 = _require_second(second_weights, "limit_output_hessian")
    c, n = W2.shape
    if law is None:
        law = HiddenLaw(W2.new_zeros(n), W2.new_ones(n))
    if len(law.means) != n:
        raise ShapeError(
            f"`limit_output_hessian(law=...)` needs {n} units, as W2 has; got {len(law.means)}."
        )
    if softmax_hessian is None:
        mean, variance = (moment.to(W2) for moment in law.activations())
        softmax_hessian = expected_softmax_hessian(W2 @ mean, W2.square() @ variance)
    A = softmax_hessian.to(W2)
    if A.shape != (c, c):
        raise ShapeError(
            f"`limit_output_hessian(softmax_hessian=...)` needs ({c}, {c}); got {tuple(A.shape)}."
        )
    pi = law.firing().to(W2)
    T = W2.T @ A @ W2
    matrix = torch.outer(pi, pi) * (0.5 * (T + T.T))
    matrix.diagonal().copy_(pi * T.diagonal())
    return _described(matrix, W2, A, torch.zeros_like(A), pi, 0.0, 0, 0)


def limit_output_eigenvalue(
    num_classes: int, *, first_variance: float = 1.0, second_variance: float = 1.0
) -> float:
    """Return the mean non-zero eigenvalue of M* at infinite width, averaged over networks.

    For Gaussian inputs. Over inputs and networks the logits are N(0, v₁v₂/2), so that E[A] is
    a (I − 11ᵀ/c), and the c − 1 eigenvalues are v₂ a/4 on average. In a single network the logits
    keep means of variance v₁v₂/2π, and the eigenvalues differ from one another (Wu Lemma 12 has no
    means, from a slip in Lemma 7).

    Args:
        num_classes: Number of classes c.
        first_variance: v₁ = d Var[W1_ij].
        second_variance: v₂ = n Var[W2_ij].

    Returns:
        The eigenvalue.

    Raises:
        InvalidArgumentError: If there are fewer than 2 classes or a variance is not positive.

    Examples:
        >>> round(limit_output_eigenvalue(4, first_variance=1e-12), 9)  # A = (I − 11ᵀ/4)/4
        0.0625
    """
    c = require_count(num_classes, "limit_output_eigenvalue(num_classes=...)", at_least=2)
    v1 = require_positive(first_variance, "limit_output_eigenvalue(first_variance=...)")
    v2 = require_positive(second_variance, "limit_output_eigenvalue(second_variance=...)")
    variances = torch.full((c,), 0.5 * v1 * v2, dtype=torch.float64)
    A = expected_softmax_hessian(torch.zeros_like(variances), variances)
    return 0.25 * v2 * float(A.trace()) / (c - 1)


def estimate_output_hessian(
    hidden: Tensor | HiddenLaw,
    second_weights: Tensor,
    *,
    inputs: str = "gaussian",
    num_samples: int = 4096,
    seed: int = 0,
) -> TwoLayerHessian:
    """Estimate M = E[D W2ᵀ A W2 D] (Wu (67), Thesis (4.4)) from random inputs.

    Cost: c num_samples n² multiplications, and num_samples n d more for a real first layer. λ_c of
    an estimate is a little too large, as tails are: by 2 % at n = 1600 and 4096 samples, and 0.4 %
    at 16384.

    Args:
        hidden: W1 (n, d); or the law of the hidden units, for d → ∞.
        second_weights: W2 (c, n). Its device does the work.
        inputs: "gaussian" or "rectified"; a law knows already.
        num_samples: Inputs to draw, at least 2.
        seed: Fixes the inputs, the same on every device.

    Returns:
        The estimate.

    Raises:
        ShapeError: If shapes do not fit.
        InvalidArgumentError: If an option is out of range.

    Examples:
        >>> law = HiddenLaw(torch.zeros(3), torch.ones(3))
        >>> estimate_output_hessian(law, torch.zeros(2, 3), num_samples=8).softmax_hessian.tolist()
        [[0.25, -0.25], [-0.25, 0.25]]
    """
    W2 = _require_second(second_weights, "estimate_output_hessian")
    c, n = W2.shape
    moments(inputs, "estimate_output_hessian")
    N = require_count(num_samples, "estimate_output_hessian(num_samples=...)", at_least=2)
    require_count(seed, "estimate_output_hessian(seed=...)", at_least=0)
    units = len(hidden.means if isinstance(hidden, HiddenLaw) else hidden)
    if units != n:
        raise ShapeError(
            f"`estimate_output_hessian(hidden, second_weights)` needs {n} hidden units, as W2 has; "
            f"got {units}."
        )
    matrix, firing = W2.new_zeros(n, n), W2.new_zeros(n)
    A, A_squares, squares = W2.new_zeros(c, c), W2.new_zeros(c, c), 0.0
    for piece in pre_activations(hidden, N, inputs, seed):
        u = piece.to(W2)
        p, R = softmax_roots(u, W2)
        rows = R.flatten(0, 1)
        matrix += rows.T @ rows
        firing += (u > 0).sum(0)
        squares += float((R @ R.mT).square().sum())
        each = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        A += each.sum(0)
        A_squares += each.square().sum(0)
    matrix, A = (matrix + matrix.T) / (2 * N), A / N
    # E‖M̂ − M‖² = (E‖M_x‖² − ‖M‖²)/N, and the same for each entry of A.
    error = math.sqrt(max(squares / N - float(matrix.square().sum()), 0.0) / (N - 1))
    A_error = ((A_squares / N - A.square()).clamp_min(0.0) / (N - 1)).sqrt()
    return _described(matrix, W2, A, A_error, firing / N, error, N, seed)


def finite_width_curve(
    widths: Sequence[int],
    *,
    num_classes: int = 5,
    num_samples: int = 8192,
    seeds: Sequence[int] = (0, 1, 2),
    inputs: str = "gaussian",
    inputs_per_unit: int | None = None,
    device: torch.device | str = "cpu",
) -> FiniteWidthCurve:
    """Follow eigenvalue gap and top eigenspace of M as a random two-layer network grows.

    Wu Theorem H.1 says that ratios tend to 0 and, for Gaussian inputs, row overlaps to 1. For
    rectified inputs row overlaps stop at 0.829 and firing overlaps tend to 1. See
    `estimate_output_hessian` for cost and for the bias of ratios; predicted ratios have none.

    Args:
        widths: Numbers of hidden units n, each more than `num_classes`.
        num_classes: Number of classes c, at least 2.
        num_samples: Inputs for each network.
        seeds: One network for each, at every width.
        inputs: "gaussian" or "rectified".
        inputs_per_unit: d/n of the first layer; None takes d → ∞ first, as Wu does.
        device: Where to compute.

    Returns:
        The curve.

    Raises:
        InvalidArgumentError: If an option is out of range.
    """
    call = "finite_width_curve"
    c = require_count(num_classes, f"{call}(num_classes=...)", at_least=2)
    moments(inputs, call)
    if inputs_per_unit is not None:
        require_count(inputs_per_unit, f"{call}(inputs_per_unit=...)")
    if not widths or not seeds:
        raise InvalidArgumentError(f"`{call}` needs at least one width and one seed.")
    measured = torch.empty(4, len(widths), len(seeds), dtype=torch.float64)
    num_products = 0
    for i, width in enumerate(widths):
        n = require_count(width, f"{call}(widths=...)", at_least=c + 1)
        for j, seed in enumerate(seeds):
            require_count(seed, f"{call}(seeds=...)", at_least=0)
            d = None if inputs_per_unit is None else inputs_per_unit * n
            hidden, W2 = draw_network(n, c, d, inputs, seed)
            law = hidden if isinstance(hidden, HiddenLaw) else hidden_law(hidden, inputs=inputs)
            if isinstance(hidden, Tensor):
                hidden = hidden.to(device)
            M = estimate_output_hessian(
                hidden, W2.to(device), inputs=inputs, num_samples=num_samples, seed=seed
            )
            limit = limit_output_hessian(W2.to(device), law=law)
            measured[:, i, j] = torch.tensor(
                [M.ratio, limit.ratio, M.row_overlap, M.firing_overlap], dtype=torch.float64
            )
            num_products += M.num_products + limit.num_products
    return FiniteWidthCurve(
        status=Status(True, f"{len(widths)} widths, {len(seeds)} networks each."),
        num_products=num_products,
        seed=seeds[0],
        widths=tuple(widths),
        num_classes=c,
        num_samples=num_samples,
        inputs=inputs,
        ratios=measured[0],
        predicted_ratios=measured[1],
        row_overlaps=measured[2],
        firing_overlaps=measured[3],
        row_limit=row_overlap_limit(inputs=inputs),
    )


def decoupling(
    first_weights: Tensor, second_weights: Tensor, *, num_samples: int = 2048, seed: int = 0
) -> Decoupling:
    """Compare a first layer's Hessian with its Kronecker form for rectified inputs (Thesis 4.4.1).

    H = E[D W2ᵀ A W2 D ⊗ xxᵀ] and Ĥ = M ⊗ E[xxᵀ] (Thesis (4.4), (4.5)). E[xxᵀ] = (1/2π) 11ᵀ +
    ((π − 1)/2π) I is known, so that the top vectors of Ĥ are those of M times 1/√d. H is never
    formed. Cost: some twenty products of 2 num_samples n (c + d) multiplications for each class;
    memory: c num_samples n numbers.

    Args:
        first_weights: W1 (n, d).
        second_weights: W2 (c, n). Its device does the work.
        num_samples: Inputs to draw, the same for H and for M, at least 2.
        seed: Fixes the inputs.

    Returns:
        The comparison.

    Raises:
        ShapeError: If shapes do not fit.
        InvalidArgumentError: If an option is out of range, or d is so small that the top vectors of
            Ĥ are others.
    """
    W2 = _require_second(second_weights, "decoupling")
    W1 = _require_matrix(first_weights, "decoupling(first_weights)").to(W2)
    M = estimate_output_hessian(W1, W2, inputs="rectified", num_samples=num_samples, seed=seed)
    c, d = W2.shape[0], W1.shape[1]
    values = M.pairs.values
    # λ₁ and λ₂ of E[xxᵀ] are as 1 + d/(π − 1) to 1 (Thesis Lemma C.2.28).
    if not float(values[c - 2]) * (1.0 + d / (math.pi - 1.0)) > float(values[0]):
        raise InvalidArgumentError(
            f"`decoupling(first_weights)` needs more inputs than d = {d}: λ₁/λ_{{c−1}} of M is "
            f"{float(values[0] / values[c - 2]):.3g}, more than λ₁/λ₂ of E[xxᵀ]."
        )
    pairs = eigsh(
        FirstLayerHessian(W1, W2, num_samples, seed), num_pairs=c, tolerance=_TOLERANCE, seed=seed
    )
    # ⟨v, u ⊗ 1/√d⟩ for all pairs of vectors at once.
    tops = pairs.vectors[:, : c - 1].reshape(len(W1), d, c - 1).sum(1) / math.sqrt(d)
    return Decoupling(
        status=pairs.status,
        num_products=pairs.num_products,
        seed=seed,
        pairs=pairs,
        ratio=float(pairs.values[c - 1] / pairs.values[c - 2]),
        overlap=_overlap(tops, M.pairs.vectors[:, : c - 1]),
        num_samples=num_samples,
    )


def _described(
    matrix: Tensor,
    W2: Tensor,
    A: Tensor,
    A_error: Tensor,
    firing: Tensor,
    error: float,
    num_samples: int,
    seed: int,
) -> TwoLayerHessian:
    """Add the top eigenpairs of an output Hessian and their overlaps with the predicted spaces."""
    c = len(W2)
    pairs = eigsh(Dense(matrix), num_pairs=c, tolerance=_TOLERANCE, seed=seed)
    top = pairs.vectors[:, : c - 1]
    return TwoLayerHessian(
        status=pairs.status,
        num_products=pairs.num_products,
        seed=seed,
        matrix=matrix,
        standard_error=error,
        softmax_hessian=A,
        softmax_stderr=A_error,
        firing=firing,
        pairs=pairs,
        ratio=float(pairs.values[c - 1] / pairs.values[c - 2]),
        row_overlap=_overlap(top, centred_row_space(W2)),
        firing_overlap=_overlap(top, centred_row_space(W2 * firing)),
        num_samples=num_samples,
    )


def _overlap(U: Tensor, V: Tensor) -> float:
    """Return ‖UᵀV‖_F²/k, Wu Def. 4.1."""
    return float((U.T @ V).square().sum()) / V.shape[1]


def _require_matrix(matrix: Tensor, call: str) -> Tensor:
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ShapeError(f"`{call}` needs a non-empty matrix; got {tuple(matrix.shape)}.")
    return matrix.double()


def _require_second(second_weights: Tensor, call: str) -> Tensor:
    W2 = _require_matrix(second_weights, f"{call}(second_weights)")
    if not 2 <= W2.shape[0] <= W2.shape[1]:
        raise ShapeError(
            f"`{call}(second_weights)` needs W2 (c, n) with 2 or more classes c and as many hidden "
            f"units n or more; got {tuple(W2.shape)}."
        )
    return W2
