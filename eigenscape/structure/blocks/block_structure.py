"""Is a matrix block-diagonal? Scores of its squared block norms, each with its null value.

Letters: H the matrix, E_ab = ‖H_ab‖_F² for its blocks, s_a the number of entries of block a, n
their sum, B the number of blocks; Q a random rotation.

A null value is what the score would be with E replaced by its mean over matrices without structure
of the same block sizes: entries of one mean square, where E_ab is proportional to s_a s_b, or,
where the trace is known, Q H Qᵀ: the same eigenvalues in a random basis.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.errors import InvalidArgumentError, WrongTypeError, require_count
from eigenscape.records import Columns, Picture, Record
from eigenscape.structure.blocks._pictures import stripes_picture, structure_picture
from eigenscape.structure.blocks.block_norms import SquaredBlockNorms


@dataclass(frozen=True, eq=False)
class BlockStructure(Record):
    """How near to block-diagonal a matrix is.

    Attributes:
        ratio: r, Dong's ratio of squared norms: the mean of E_ab over a ≠ b, over the mean of E_aa.
            0 for a block-diagonal matrix.
        ratio_stderr: Its standard error.
        ratio_null: Its null value; 1 for equal sizes and entries of one mean square.
        inside: Σ_a E_aa / Σ_ab E_ab; 1 for a block-diagonal matrix.
        inside_stderr: Its standard error.
        inside_null: Its null value; 1/B for equal sizes and entries of one mean square.
        pair_ratios: E_ab / E_aa for each pair (B, B), float64: r of Dong's figures for one pair.
        pair_ratios_stderr: Their standard errors (B, B).
        names: Names of the blocks.
    """

    ratio: float
    ratio_stderr: float
    ratio_null: float
    inside: float
    inside_stderr: float
    inside_null: float
    pair_ratios: Tensor
    pair_ratios_stderr: Tensor
    names: tuple[str, ...]

    def columns(self) -> Columns:
        """Return one row for each score."""
        return {
            "score": ["off-diagonal to diagonal ratio", "share inside the blocks"],
            "value": [self.ratio, self.inside],
            "stderr": [self.ratio_stderr, self.inside_stderr],
            "null": [self.ratio_null, self.inside_null],
        }

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (structure_picture(self),)


@dataclass(frozen=True, eq=False)
class Stripes(Record):
    """How much of a grid of blocks lies on its wrapped diagonals.

    Attributes:
        shares: For each shift t, the share of the grid's Σ E that the pairs (i, (i + t) mod m) hold
            (m,), float64; they add up to 1.
        stderr: Their standard errors (m,).
        null: Their null values (m,); 1/m where all blocks have one size.
        shift: The shift of the largest share.
    """

    shares: Tensor
    stderr: Tensor
    null: Tensor
    shift: int

    def columns(self) -> Columns:
        """Return one row for each shift."""
        return {
            "shift": range(len(self.shares)),
            "share": self.shares.tolist(),
            "stderr": self.stderr.tolist(),
            "null": self.null.tolist(),
        }

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (stripes_picture(self),)


def block_structure(norms: SquaredBlockNorms, *, trace: float | None = None) -> BlockStructure:
    """Score how near to block-diagonal a matrix is.

    Only the blocks of the partition count: for the hidden layer alone, as Dong has it, measure
    `Partition.by_output(space, "fc1")`; what lies between blocks and entries of no block is left
    out. Cost: no product.

    Args:
        norms: From `squared_block_norms`, of two blocks or more.
        trace: tr H, where known and the blocks cover the matrix: the null values are then those of
            a matrix with its eigenvalues in a random basis. It matters for blocks of few entries:
            the diagonal of a positive matrix is large in every basis.

    Returns:
        The scores with standard errors and null values.

    Raises:
        WrongTypeError: If the norms are of another kind.
        InvalidArgumentError: If there is one block, or nothing in the diagonal blocks.

    Examples:
        Entries of one size in blocks of 2 and 1: r = (2 + 2)/2 over (4 + 1)/2.

        >>> from eigenscape.structure import squared_block_norms
        >>> from eigenscape.operator import Dense
        >>> from eigenscape.space.partition import Partition
        >>> from eigenscape.space.param_space import ParamSpace
        >>> space = ParamSpace({"a": (2,), "b": (1,)})
        >>> A = Dense(torch.ones(3, 3), space=space)
        >>> norms = squared_block_norms(A, Partition.by_tensor(space), num_products=3)
        >>> found = block_structure(norms)
        >>> found.ratio, found.ratio_null, round(found.inside, 4), round(found.inside_null, 4)
        (0.8, 0.8, 0.5556, 0.5556)

    References:
        Dong, (26) and Figures 8 and 9.
    """
    _require(norms, "block_structure")
    B = len(norms.sizes)
    if B < 2 or not float(norms.values.trace()) > 0:
        raise InvalidArgumentError(
            "`block_structure(norms)` compares two blocks or more, with something in the diagonal "
            f"ones; got {B} blocks with Σ E_aa = {float(norms.values.trace()):.2e}. Refine the "
            "partition, or spend more products."
        )
    null = null_block_norms(norms.sizes)
    if trace is not None:
        null = null_block_norms(norms.sizes, trace=trace, square=float(norms.values.sum()))
    ratio, ratio_stderr = norms.estimate(_ratio)
    inside, inside_stderr = norms.estimate(_inside)
    pairs, pairs_stderr = norms.estimate(lambda E: E / E.diagonal()[:, None])
    return BlockStructure(
        status=norms.status,
        num_products=norms.num_products,
        seed=norms.seed,
        ratio=float(ratio),
        ratio_stderr=float(ratio_stderr),
        ratio_null=float(_ratio(null)),
        inside=float(inside),
        inside_stderr=float(inside_stderr),
        inside_null=float(_inside(null)),
        pair_ratios=pairs,
        pair_ratios_stderr=pairs_stderr,
        names=norms.names,
    )


def null_block_norms(
    sizes: Sequence[int], *, trace: float = 0.0, square: float | None = None
) -> Tensor:
    """Return the mean squared norms of all pairs of blocks in a matrix without structure.

    Without `square`: entries of mean square 1, so s_a s_b. With it: a symmetric matrix of this
    trace and squared norm in a random basis. For Q uniform over the rotations of n dimensions, a
    diagonal entry of Q H Qᵀ has mean square (tr² + 2‖H‖²) / (n (n + 2)), and the others share the
    rest of ‖H‖².

    Args:
        sizes: Number of entries of each block; together they are the whole matrix.
        trace: tr H.
        square: ‖H‖_F²; at least tr²/n.

    Returns:
        The mean squared norms (B, B), float64.

    Raises:
        InvalidArgumentError: If no symmetric matrix has this trace and norm.

    Examples:
        The identity looks the same in every basis.

        >>> null_block_norms([2, 1], trace=3.0, square=3.0).tolist()
        [[2.0, 0.0], [0.0, 1.0]]
    """
    s = torch.tensor([require_count(size, "null_block_norms(sizes)") for size in sizes]).double()
    if square is None:
        return torch.outer(s, s)
    n = float(s.sum())
    if not square * (1 + 1e-6) >= trace**2 / n:
        raise InvalidArgumentError(
            f"`null_block_norms(trace={trace:.4e}, square={square:.4e})` fits no symmetric matrix "
            f"of size {n:.0f}: ‖H‖² is at least tr²/n = {trace**2 / n:.4e}. Pass the trace of the "
            "matrix that the blocks cover."
        )
    on_diagonal = (trace**2 + 2 * square) / (n * (n + 2))
    elsewhere = max(square - n * on_diagonal, 0.0) / (n * (n - 1)) if n > 1 else 0.0
    return elsewhere * torch.outer(s, s) + torch.diag(s * (on_diagonal - elsewhere))


def stripes(norms: SquaredBlockNorms, rows: Sequence[str], columns: Sequence[str]) -> Stripes:
    """Measure the periodic stripes of a cross-layer block, as shares of its squared norm.

    In a network with one hidden layer under cross-entropy, the derivative by w_i and v_j has one
    strong column, number i, at the start of training (Dong (20), (21)). Drawn for all i and j these
    columns are the stripes of a block-circulant pattern. They are the pairs of row i of the hidden
    layer and column i of the next one: shift 0 in

        units = Partition.by_output(space, "fc1") + Partition.by_input(space, "fc2")

    The blocks on a stripe need not be equal; what is measured is where they lie. Cost: no product.

    Args:
        norms: From `squared_block_norms`, of a partition with these blocks.
        rows: Names of m blocks, in order.
        columns: Names of m blocks, in order.

    Returns:
        The share of each wrapped diagonal. A structureless matrix has the null values in the mean;
        the largest of m shares is by chance a little larger.

    Raises:
        WrongTypeError: If the norms are of another kind.
        InvalidArgumentError: If a name is unknown, or the numbers of names differ.

    Examples:
        >>> from eigenscape.structure import squared_block_norms
        >>> from eigenscape.operator import Dense
        >>> from eigenscape.space.partition import Partition
        >>> from eigenscape.space.param_space import ParamSpace
        >>> space = ParamSpace({"a": (), "b": (), "c": (), "d": ()})
        >>> A = Dense(torch.eye(4).roll(2, 0) + torch.ones(4, 4), space=space)
        >>> norms = squared_block_norms(A, Partition.by_tensor(space), num_products=4)
        >>> stripes(norms, ["a", "b"], ["c", "d"]).shares.tolist()
        [0.8, 0.2]
    """
    _require(norms, "stripes")
    number = {name: i for i, name in enumerate(norms.names)}
    unknown = [name for name in (*rows, *columns) if name not in number]
    if unknown or len(rows) != len(columns) or len(rows) == 0:
        raise InvalidArgumentError(
            "`stripes(norms, rows, columns)` needs as many names of rows as of columns, all of "
            f"blocks of the partition; got {len(rows)} and {len(columns)}"
            + (f", and no block is called {unknown[0]!r}" if unknown else "")
            + ". Measure `Partition.by_output(space, first) + Partition.by_input(space, second)`."
        )
    r, c = [number[name] for name in rows], [number[name] for name in columns]
    m = len(r)
    shift = (torch.arange(m) - torch.arange(m)[:, None]).remainder(m)

    def shares(E: Tensor) -> Tensor:
        grid = E.cpu()[r][:, c]
        sums = grid.new_zeros(m).index_add_(0, shift.flatten(), grid.flatten())
        return sums / sums.sum()

    values, stderr = norms.estimate(shares)
    return Stripes(
        status=norms.status,
        num_products=norms.num_products,
        seed=norms.seed,
        shares=values,
        stderr=stderr,
        null=shares(null_block_norms(norms.sizes)),
        shift=int(values.argmax()),
    )


def _ratio(E: Tensor) -> Tensor:
    B = len(E)
    return (E.sum() - E.trace()) / (B * (B - 1)) / (E.trace() / B)


def _inside(E: Tensor) -> Tensor:
    return E.trace() / E.sum()


def _require(norms: object, call: str) -> None:
    if not isinstance(norms, SquaredBlockNorms):
        raise WrongTypeError(
            f"`{call}(norms)` needs what `squared_block_norms` returns; got {type(norms).__name__}."
        )
