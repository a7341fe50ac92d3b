"""Anchor vectors: is log Z_bulk linear in the state? Section 3.4 of the thesis.

Letters as in `log_linear.py`; v₀ an anchor, for which ⟨v, v₀⟩ ≈ log Z_bulk(v). With one, what
a logit has above the anchor stands for a probability, and what a model learned of words carries
over to tasks about words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.errors import (
    InvalidArgumentError,
    ShapeError,
    require_count,
    require_not_negative,
    require_seed,
)
from eigenscape.records import Columns, Record, Status
from eigenscape_papers.representations._checks import (
    require_matrix,
    require_sizes,
    require_states,
    require_vector,
)
from eigenscape_papers.representations.log_linear import log_bulk_partitions
from eigenscape_papers.representations.sparse_data import unit_rows

_ROUNDS, _STARTS = 100, 8


@dataclass(frozen=True, eq=False)
class AnchorFit(Record):
    """Anchors, and how well they tell the partition function.

    Attributes:
        anchors: One a row (K, d).
        assignment: The anchor of each context (N,).
        mse: Mean of (⟨v, v₀⟩ − target)².
        max_error: Largest |⟨v, v₀⟩ − target|.
        variance: Of the targets: the mse of the best constant.
    """

    anchors: Tensor
    assignment: Tensor
    mse: float
    max_error: float
    variance: float


@dataclass(frozen=True, eq=False)
class AnchorTable(Record):
    """A row of the thesis's Table B.2: the fit for several sizes of the top.

    Attributes:
        num_top: How many of the most probable words were left out.
        mse: Mean squared error of each fit.
        variance: Of log Z_bulk; an mse near it says that the state tells nothing.
        mean: Of log Z_bulk.
        anchors: The anchors of each fit (len(num_top), K, d).
    """

    num_top: tuple[int, ...]
    mse: tuple[float, ...]
    variance: tuple[float, ...]
    mean: tuple[float, ...]
    anchors: Tensor

    def columns(self) -> Columns:
        """Return one row for each size of the top."""
        return {
            "left out": self.num_top,
            "mse": self.mse,
            "variance of log Z": self.variance,
            "mean of log Z": self.mean,
        }


@dataclass(frozen=True, eq=False)
class EmbeddingDiagnostics(Record):
    """The shape of an output embedding (Figs 3.2, B.1, B.2 of the thesis).

    Attributes:
        singular_values: Largest first.
        norms: Length of each word's vector.
        cosines: Between random pairs of different words.
        mean_cosine: Their mean; well above 0, words lie in a cone.
        effective_rank: (Σ σ²)²/Σ σ⁴, how many directions carry the embedding.
    """

    singular_values: Tensor
    norms: Tensor
    cosines: Tensor
    mean_cosine: float
    effective_rank: float


def fit_anchors(
    states: Tensor, targets: Tensor, *, num_anchors: int = 1, ridge: float = 0.0, seed: int = 0
) -> AnchorFit:
    """Fit anchors to given values of log Z_bulk by least squares, without intercept.

    With K anchors each context takes the one that suits it best: fits and choices alternate, from
    several starts, and the best is kept. More anchors always fit better; compare with what K − 1
    leave. Computed in float64.

    Args:
        states: (N, d), more contexts than dimensions for each anchor.
        targets: log Z_bulk of each (N,).
        num_anchors: K.
        ridge: Added to the diagonal of E[vvᵀ], relative to its mean, where states do not span their
            space; 0 for plain least squares.
        seed: Fixes the starts.

    Returns:
        The anchors and their errors.

    Raises:
        WrongTypeError: If one of them is no tensor.
        ShapeError: If states and targets do not fit each other.
        InvalidArgumentError: If there are too few contexts, or the design is singular.
        NonFiniteError: If an entry is NaN or infinite.

    Examples:
        >>> v = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
        >>> fit = fit_anchors(v, torch.tensor([3.0, 5.0, 7.0]))
        >>> fit.anchors.round(decimals=6).tolist(), fit.mse < 1e-20
        ([[3.0, 2.0]], True)
    """
    V = require_states(states, "fit_anchors(states)").double()
    if isinstance(targets, Tensor) and targets.ndim == 2:
        raise ShapeError(
            "`fit_anchors(targets)` must be a floating-point vector, log Z_bulk of each context; "
            f"got {tuple(targets.shape)}. Of an embedding pass `log_bulk_partitions(states, "
            "embedding, (k,))[:, 0]`, or use `anchor_table(states, embedding)`."
        )
    t = require_vector(targets, "fit_anchors(targets)").to(V)
    if len(t) != len(V):
        raise ShapeError(
            f"`fit_anchors(states, targets)` must be of one length; got {len(V)} and {len(t)}."
        )
    K = require_count(num_anchors, "fit_anchors(num_anchors=...)")
    require_seed(seed, "fit_anchors")
    if len(V) <= K * V.shape[1]:
        raise InvalidArgumentError(
            f"`fit_anchors(states)` has {len(V)} contexts for {K} anchors of dimension "
            f"{V.shape[1]}: they would be fitted exactly, whatever they are. Pass more contexts."
        )
    require_not_negative(ridge, "fit_anchors(ridge=...)")
    _require_regular(V, ridge)
    draw = torch.Generator().manual_seed(seed)
    runs = [_alternate(V, t, K, ridge, draw, start) for start in range(_STARTS if K > 1 else 1)]
    anchors, choice, settled = min(runs, key=lambda run: _mse(V, t, run[0]))
    squares = _errors(V, t, anchors).amin(1)
    text = "Least squares." if settled else f"Choices still changed after {_ROUNDS} rounds."
    return AnchorFit(
        status=Status(settled, text).warn(),
        num_products=0,
        seed=seed,
        anchors=anchors,
        assignment=choice,
        mse=float(squares.mean()),
        max_error=float(squares.max().sqrt()),
        variance=float(t.var(correction=0)),
    )


def anchor_table(
    states: Tensor,
    embedding: Tensor,
    *,
    num_top: Sequence[int] = (0, 10, 100, 1000, 10000),
    num_anchors: int = 1,
    ridge: float = 0.0,
    seed: int = 0,
) -> AnchorTable:
    """Fit anchors to a language model, leaving out more and more of the most probable words.

    Cost: that of `log_bulk_partitions`, and one least-squares problem for each size.

    Args:
        states: What the output layer multiplies by the embedding, one row a position (N, d).
        embedding: The output embedding (n, d), one row a word.
        num_top: Sizes of the top; those of the thesis by default, as far as the vocabulary goes.
        num_anchors: K, as for `fit_anchors`.
        ridge: As for `fit_anchors`.
        seed: As for `fit_anchors`.

    Returns:
        The errors by size.

    Raises:
        WrongTypeError: If `num_top` is a single number.
        ShapeError: If states and embedding do not fit.
        InvalidArgumentError: If no size is below the vocabulary's, there are too few states, or
            they do not span their space.

    Examples:
        >>> draw = torch.Generator().manual_seed(0)
        >>> v = torch.cat([torch.randn(50, 3, generator=draw), torch.ones(50, 1)], dim=1)
        >>> anchor = torch.tensor([1.0, -2.0, 0.5, 0.0])
        >>> table = anchor_table(v, anchor.repeat(8, 1), num_top=(0, 4))  # all words alike
        >>> [mse < 1e-10 for mse in table.mse]
        [True, True]
        >>> table.anchors[1, 0].round(decimals=3).tolist()  # Z_bulk is four of them: log 4 = 1.386
        [1.0, -2.0, 0.5, 1.386]
    """
    words = require_matrix(embedding, "anchor_table(embedding)")
    V = require_states(states, "anchor_table(states)", columns=words.shape[1])
    require_count(num_anchors, "anchor_table(num_anchors=...)")
    require_seed(seed, "anchor_table")
    require_sizes(num_top, "anchor_table(num_top=...)")
    sizes = tuple(size for size in num_top if size < len(words))
    if not sizes:
        raise InvalidArgumentError(
            f"`anchor_table(num_top=...)` must have a size below that of the vocabulary, "
            f"{len(words)}; got {tuple(num_top)}."
        )
    targets = log_bulk_partitions(V, words, sizes)
    fits = [
        fit_anchors(V, column, num_anchors=num_anchors, ridge=ridge, seed=seed)
        for column in targets.T
    ]
    best = min(range(len(sizes)), key=lambda i: fits[i].mse)
    text = (
        f"{len(V)} states; the smallest error, {fits[best].mse:.4g}, without {sizes[best]} words."
    )
    return AnchorTable(
        status=Status(all(fit.status for fit in fits), text),
        num_products=0,
        seed=seed,
        num_top=sizes,
        mse=tuple(fit.mse for fit in fits),
        variance=tuple(fit.variance for fit in fits),
        mean=tuple(targets.mean(0).tolist()),
        anchors=torch.stack([fit.anchors for fit in fits]),
    )


def embedding_diagnostics(
    embedding: Tensor, *, num_pairs: int = 10_000, seed: int = 0
) -> EmbeddingDiagnostics:
    """Look at the shape of an output embedding.

    Cost: a singular value decomposition.

    Args:
        embedding: (n, d), two words or more.
        num_pairs: Random pairs of words whose cosine is taken.
        seed: Fixes the pairs.

    Returns:
        Singular values, lengths and cosines.

    Raises:
        ShapeError: If it is no matrix.
        InvalidArgumentError: If there are fewer than two words, or all are zero.

    Examples:
        >>> found = embedding_diagnostics(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), num_pairs=5)
        >>> found.singular_values.tolist(), found.norms.tolist(), found.mean_cosine
        ([4.0, 3.0], [3.0, 4.0], 0.0)
    """
    E = require_matrix(embedding, "embedding_diagnostics(embedding)").double()
    require_count(len(E), "embedding_diagnostics(embedding)'s number of words", at_least=2)
    count = require_count(num_pairs, "embedding_diagnostics(num_pairs=...)")
    require_seed(seed, "embedding_diagnostics")
    if not bool(E.any()):
        raise InvalidArgumentError(
            f"`embedding_diagnostics(embedding)` is zero in all {len(E)} words: it has no rank and "
            "no angles. Pass the weights of a model's output layer."
        )
    draw = torch.Generator().manual_seed(seed)
    first = torch.randint(len(E), (count,), generator=draw)
    # Never the word itself.
    second = (first + torch.randint(1, len(E), (count,), generator=draw)) % len(E)
    U = unit_rows(E)
    cosines = (U[first.to(E.device)] * U[second.to(E.device)]).sum(1)
    s = torch.linalg.svdvals(E)
    weights = s.square() / s.square().sum()
    return EmbeddingDiagnostics(
        status=Status(True, f"{len(E)} words in {E.shape[1]} dimensions."),
        num_products=0,
        seed=seed,
        singular_values=s,
        norms=E.norm(dim=1),
        cosines=cosines,
        mean_cosine=float(cosines.mean()),
        effective_rank=float(1.0 / weights.square().sum()),
    )


def _alternate(
    V: Tensor, t: Tensor, K: int, ridge: float, draw: torch.Generator, start: int
) -> tuple[Tensor, Tensor, bool]:
    """Fit and choose in turn until no choice changes."""
    if start == 0:  # by the size of the target: clusters of it are what the thesis saw
        rank = t.argsort().argsort()
        choice = (rank * K) // len(t)
    else:
        choice = torch.randint(K, (len(t),), generator=draw).to(V.device)
    anchors = V.new_zeros(K, V.shape[1])
    for _ in range(_ROUNDS):
        for i in range(K):
            mine = choice == i
            if int(mine.sum()) > V.shape[1]:  # fewer would fit anything
                anchors[i] = _solve(V[mine], t[mine], ridge)
        new = _errors(V, t, anchors).argmin(1)
        if torch.equal(new, choice):
            return anchors, choice, True
        choice = new
    return anchors, choice, False


def _solve(V: Tensor, t: Tensor, ridge: float) -> Tensor:
    if ridge == 0.0:
        # A part of the contexts may span less than all.
        least_squares: Tensor = torch.linalg.pinv(V) @ t
        return least_squares
    second = V.T @ V / len(V)
    second.diagonal().add_(ridge * float(second.diagonal().mean()))
    # Regular, but for states that are all 0 and ridges below rounding.
    solved: Tensor = torch.linalg.pinv(second, hermitian=True) @ (V.T @ t / len(V))
    return solved


def _errors(V: Tensor, t: Tensor, anchors: Tensor) -> Tensor:
    squares: Tensor = (V @ anchors.T - t.unsqueeze(1)).square()
    return squares


def _require_regular(V: Tensor, ridge: float) -> None:
    s = torch.linalg.svdvals(V)
    if ridge == 0.0 and float(s[-1]) <= 1e-7 * float(s[0]):
        raise InvalidArgumentError(
            f"`fit_anchors(states)`: the states span fewer than their {V.shape[1]} dimensions "
            f"(singular values {float(s[0]):.3g} to {float(s[-1]):.3g}), so that no single anchor "
            "fits best. Pass `ridge=1e-6`, or drop dimensions."
        )


def _mse(V: Tensor, t: Tensor, anchors: Tensor) -> float:
    return float(_errors(V, t, anchors).amin(1).mean())
