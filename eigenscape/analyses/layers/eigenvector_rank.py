"""Is an eigenvector of a layer, as a matrix, close to rank one (Wu Def. 4.2)?

Letters: h_i eigenvectors of a layer's block, Mat(h) (m, n) the same as a matrix, output by input.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.analyses.layers._pictures import rank_picture
from eigenscape.errors import ShapeError, UnsupportedModelError, WrongTypeError, require_count
from eigenscape.operator import LinearOperator
from eigenscape.records import Columns, EigenPairs, Picture, Record, Status
from eigenscape.space import ParamSpace

# Random vectors for the null value; the share of one of them varies by a few per cent.
_DRAWS = 16


@dataclass(frozen=True, eq=False)
class EigenvectorRank(Record):
    """How close each eigenvector of a layer is to u ⊗ v.

    Attributes:
        shares: ‖Mat(h_i)‖₂/‖Mat(h_i)‖_F (k,), from 1/√min(m, n) to 1; 1 exactly for u ⊗ v.
        singular: The largest singular values of Mat(h_i) (k, r), descending; ‖h_i‖ = 1.
        null: The mean share of random vectors of the same shape.
        null_stderr: Its standard error.
        num_outputs: m.
        num_inputs: n, with the bias as one more input.
    """

    shares: Tensor
    singular: Tensor
    null: float
    null_stderr: float
    num_outputs: int
    num_inputs: int

    def columns(self) -> Columns:
        """Return one row for each eigenvector."""
        second = self.singular[:, 1].tolist() if self.singular.shape[1] > 1 else None
        return {
            "eigenvector": range(1, len(self.shares) + 1),
            "share": self.shares.tolist(),
            "second singular value": second or [0.0] * len(self.shares),
            "null": [self.null] * len(self.shares),
        }

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (rank_picture(self),)


def eigenvector_rank(
    pairs: EigenPairs | Tensor,
    block: LinearOperator | None = None,
    *,
    num_values: int = 10,
    seed: int = 0,
) -> EigenvectorRank:
    """Measure how close the eigenvectors of a layer's block are to rank one.

    Wu §5.2 and Fig. 6 have shares "usually much larger than 0.5" for the first 200 eigenvectors of
    LeNet5; Fig. 1b shows the ten largest singular values of the first four. Wu looks at weights
    alone: pass the block of "fc1.weight" for that, and the block of "fc1" to have the bias as one
    more column. Cost: one SVD for each vector, and for 16 random ones.

    Args:
        pairs: Eigenpairs of the block, or its eigenvectors (q, k).
        block: Any operator on one layer's parameters: `LayerHessian`, `KroneckerHessian`,
            `Hessian(risk)["fc1"]`, …; only its space is used. Eigenpairs know theirs; give it with
            vectors.
        num_values: Singular values to keep, at most min(m, n) of them.
        seed: Fixes the random vectors.

    Returns:
        Shares, singular values, and what random vectors have.

    Raises:
        UnsupportedModelError: If the block is not that of one weight, with or without a bias.
        ShapeError: If vectors and block do not fit.
        WrongTypeError: If vectors come without a block.

    Examples:
        >>> from eigenscape.operator import Dense
        >>> space = ParamSpace({"fc.weight": (2, 3)})
        >>> vectors = torch.stack([torch.ones(6), torch.eye(2, 3).flatten()], dim=1)
        >>> eigenvector_rank(vectors, Dense(torch.eye(6), space=space)).shares.tolist()
        [1.0, 0.7071067811865475]
    """
    require_count(num_values, "eigenvector_rank(num_values=...)")
    h = pairs.vectors if isinstance(pairs, EigenPairs) else pairs
    known = pairs if block is None else block
    if isinstance(known, Tensor):
        raise WrongTypeError(
            "`eigenvector_rank(vectors, block)` needs the block that the vectors belong to; got "
            "none. Give an operator on the layer, or `EigenPairs`, which know their space."
        )
    matrices = _matrices(h, known.space)
    k, m, n = matrices.shape
    singular = torch.linalg.svdvals(matrices.double()).cpu()
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(_DRAWS, m, n, generator=generator, dtype=torch.float64)
    null = rank_one_share(drawn.to(matrices.device))
    return EigenvectorRank(
        status=Status(True, f"{k} eigenvectors as {m}×{n} matrices."),
        num_products=0,
        seed=seed,
        shares=_share(singular),
        singular=singular[:, :num_values],
        null=float(null.mean()),
        null_stderr=float(null.std() / _DRAWS**0.5),
        num_outputs=m,
        num_inputs=n,
    )


def rank_one_share(matrices: Tensor) -> Tensor:
    """Return ‖Mat(h)‖₂/‖Mat(h)‖_F of each matrix: 1 exactly where h = u ⊗ v.

    For a random m × n matrix it is about (√m + √n)/√(mn). Cost: one SVD for each matrix.

    Args:
        matrices: Eigenvectors as matrices (k, m, n), output by input.

    Returns:
        The shares (k,), float64, from 1/√min(m, n) to 1.

    Examples:
        >>> u, v = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0, 1.0])
        >>> rank_one_share(torch.stack([torch.outer(u, v), torch.eye(2, 3)])).tolist()
        [1.0, 0.7071067811865475]
    """
    return _share(torch.linalg.svdvals(matrices.double()).cpu())


def _share(singular: Tensor) -> Tensor:
    shares: Tensor = singular[:, 0] / torch.linalg.vector_norm(singular, dim=1)
    return shares


def _matrices(vectors: Tensor, space: ParamSpace) -> Tensor:
    """Reshape columns (q, k) to Mat(h) (k, m, n), a bias as last column."""
    if vectors.ndim != 2 or len(vectors) != space.size or vectors.shape[1] == 0:
        raise ShapeError(
            f"`eigenvector_rank(pairs, block)` needs vectors ({space.size}, k) for this block; got "
            f"{tuple(vectors.shape)}."
        )
    shapes = list(space.shapes.values())
    m = shapes[0][0] if len(shapes[0]) > 1 else 0
    if m == 0 or len(shapes) > 2 or (len(shapes) == 2 and shapes[1] != (m,)):
        raise UnsupportedModelError(
            "`eigenvector_rank(pairs, block)` needs the block of one weight matrix, with or "
            f"without its bias; got parameters {dict(space.shapes)}. Use "
            "`LayerHessian(risk, layer)`."
        )
    rows = vectors.T
    if len(shapes) == 1:
        return rows.reshape(len(rows), m, -1)
    weight, bias = rows[:, :-m].reshape(len(rows), m, -1), rows[:, -m:, None]
    return torch.cat([weight, bias], dim=2)
