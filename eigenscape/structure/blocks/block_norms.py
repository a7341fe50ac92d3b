"""How much of a matrix lies in each pair of blocks, with what a score of all pairs needs.

Letters: A the operator (n × n), A_ab its block of rows a and columns b, s_b the size of block b, B
the number of blocks, P the products to spend; z Rademacher probes, y = A z, z^(b) a probe with all
entries outside block b set to 0.

- masked: ‖(A z^(b))_a‖² has mean ‖A_ab‖². P products are P/B looks at each column of blocks, and
  the error is that of the block alone: variance 2‖A_abᵀ A_ab‖² at most for each look.
- shared: every probe serves every block. For two independent probes k and l the number
  (y_kᵀ y_l)_a (z_kᵀ z_l)_b has mean ‖A_ab‖²; the mean over all pairs of P probes is unbiased, with
  variance of about 2 s_b ‖(A Aᵀ)_aa‖² / P². It suffers from all of row a, not only from A_ab.

For a pair of average norm the second variance is n/P times the first, far more where A_ab is weak
beside its row. So probes are masked wherever P allows two looks, and shared only below. Scores of
many pairs can gain from sharing even then, if all blocks are alike, and lose much if they are not.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.device import full_precision
from eigenscape.errors import (
    InvalidArgumentError,
    NonFiniteError,
    require_choice,
    require_count,
)
from eigenscape.linalg import draw_probes, require_partition
from eigenscape.operator import LinearOperator, require_operator, require_square
from eigenscape.records import Columns, Picture, ProgressCallback, Record, Status, Ticker
from eigenscape.space import Partition
from eigenscape.structure.blocks._pictures import norms_picture

METHODS = ("auto", "exact", "masked", "shared")

# An unbiased variance of a mean over pairs compares two pairs without a common probe.
_LEAST_SHARED = 4


@dataclass(frozen=True, eq=False)
class SquaredBlockNorms(Record):
    """Squared Frobenius norms ‖A_ab‖² of all pairs of blocks.

    Attributes:
        values: Unbiased estimates (B, B), float64; "shared" ones of weak blocks may be negative.
        stderr: Their standard errors (B, B); 0 where exact.
        left_out: The same estimates with probe k left out (K, B, B); K = 0 where all is exact.
        names: Names of the blocks.
        sizes: Number of entries of each.
        method: "exact", "masked" or "shared".
        num_probes: K.
        is_symmetric: Whether the operator was.
    """

    values: Tensor
    stderr: Tensor
    left_out: Tensor
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    method: str
    num_probes: int
    is_symmetric: bool

    def columns(self) -> Columns:
        """Return one row for each pair of blocks."""
        places = [(r, c) for r in self.names for c in self.names]
        return {
            "row": [row for row, _ in places],
            "column": [column for _, column in places],
            "squared norm": self.values.flatten().tolist(),
            "stderr": self.stderr.flatten().tolist(),
        }

    def estimate(self, score: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Evaluate a score of the squared norms, with its standard error by the jackknife.

        Args:
            score: A function of the matrix of squared norms (B, B); its result may have any shape.

        Returns:
            The score and its standard error, 0 where the norms are exact.

        Examples:
            >>> from eigenscape.operator import Dense
            >>> A = Dense(torch.diag(torch.tensor([1.0, 2.0, 4.0])))
            >>> space = A.space
            >>> from eigenscape.space.param_space import Block
            >>> halves = Partition(space, [Block("a", (range(2),)), Block("b", (range(2, 3),))])
            >>> norms = squared_block_norms(A, halves, num_products=3)
            >>> [part.item() for part in norms.estimate(torch.trace)]
            [21.0, 0.0]
        """
        value = score(self.values)
        if len(self.left_out) == 0:
            return value, torch.zeros_like(value)
        return value, jackknife(torch.stack([score(values) for values in self.left_out]))

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (norms_picture(self),)


@full_precision()
def squared_block_norms(
    operator: LinearOperator,
    partition: Partition,
    *,
    num_products: int,
    method: str = "auto",
    seed: int = 0,
    batch: int = 16,
    progress: ProgressCallback | None = None,
) -> SquaredBlockNorms:
    """Measure the squared Frobenius norms of all pairs of blocks within a budget of products.

    From as many products as the blocks have entries on, all of them are exact, and no matrix is
    ever held: columns of the identity are multiplied `batch` at a time. With fewer, each column
    block gets the same number of masked probes, and those that are no larger are multiplied out.
    With less than two probes for each block, probes are shared by all blocks; single pairs are then
    rough, but scores of many pairs are not. In a symmetric matrix A_ab and A_ba are two independent
    looks at one number, and their mean is taken.

    `linalg.block_norms` gives the norms themselves, at a number of probes per block; here the
    squares, which have no bias, are kept with all that standard errors of scores need.

    Cost: at most `num_products` products. Memory: K B² numbers beside the columns; shared probes
    need 2 K n and 2 B K².

    Args:
        operator: Square operator A.
        partition: Blocks of its space.
        num_products: Products to spend at most.
        method: "exact", "masked" or "shared", or "auto" for the most exact that they allow.
        seed: Fixes the probes.
        batch: Columns multiplied at a time.
        progress: Called after each batch.

    Returns:
        The squared norms with their standard errors.

    Raises:
        WrongTypeError: If an argument is of another kind.
        ShapeError: If the operator is not square or the partition divides another space.
        InvalidArgumentError: If `num_products` is too small for the method.
        NonFiniteError: If a product is NaN or infinite.

    Examples:
        >>> from eigenscape.operator import Dense
        >>> from eigenscape.space.param_space import ParamSpace
        >>> space = ParamSpace({"a": (2,), "b": (1,)})
        >>> matrix = torch.tensor([[2.0, 0.0, 3.0], [0.0, 0.0, 4.0], [3.0, 4.0, 1.0]])
        >>> A = Dense(matrix, space=space)
        >>> squared_block_norms(A, Partition.by_tensor(space), num_products=3).values.tolist()
        [[4.0, 25.0], [25.0, 1.0]]
    """
    require_operator(operator, "squared_block_norms(operator)")
    require_square(operator, "squared_block_norms(operator)")
    require_partition(partition, operator.space, "squared_block_norms(partition)")
    require_count(num_products, "squared_block_norms(num_products=...)")
    require_choice(method, METHODS, "squared_block_norms(method=...)")
    require_count(seed, "squared_block_norms(seed=...)", at_least=0)
    require_count(batch, "squared_block_norms(batch=...)")
    chosen, num_probes = _chosen(method, num_products, partition.sizes)
    run = _Run(operator, partition, seed, batch, progress, _cost(chosen, num_probes, partition))
    if chosen == "shared":
        values, left_out = run.shared(num_probes)
    else:
        values, left_out = run.masked(num_probes)
    K = len(left_out)
    return SquaredBlockNorms(
        status=Status(True, _text(chosen, num_probes, partition)),
        num_products=run.spent,
        seed=seed,
        values=values,
        stderr=jackknife(left_out) if K else torch.zeros_like(values),
        left_out=left_out,
        names=partition.names,
        sizes=partition.sizes,
        method=chosen,
        num_probes=K,
        is_symmetric=operator.is_symmetric,
    )


def jackknife(left_out: Tensor) -> Tensor:
    """Return the standard error of an estimate from its values with each sample left out (K, ...).

    For a mean it is the usual one.
    """
    K = len(left_out)
    return (left_out - left_out.mean(0)).square().sum(0).mul((K - 1) / K).sqrt()


class _Run:
    """Multiplies columns, counts them, and adds up squares by block."""

    def __init__(
        self,
        operator: LinearOperator,
        partition: Partition,
        seed: int,
        batch: int,
        progress: ProgressCallback | None,
        total: int,
    ) -> None:
        self._operator, self._partition = operator, partition
        self._seed, self._batch = seed, batch
        self._labels = partition.labels().to(operator.device)
        self._ticker = Ticker(progress, "block norms", total)
        self.spent = 0

    def masked(self, num_probes: int) -> tuple[Tensor, Tensor]:
        """Return the estimates, and those with each probe left out; small blocks exactly."""
        sizes = torch.tensor(self._partition.sizes, device=self._operator.device)
        exact = sizes <= num_probes
        known = self._exact(exact)
        if bool(exact.all()):
            return self._mirrored(known, exact), known.new_zeros(0, *known.shape)
        samples = []
        for number in range(num_probes):
            sample = torch.where(exact, known, self._sample(~exact, number))
            samples.append(self._mirrored(sample, exact))
        looks = torch.stack(samples)
        total = looks.sum(0)
        left_out = (total - looks) / (num_probes - 1)
        # Exact norms are one number, not a mean of equal ones that rounds.
        sure = exact.expand(len(exact), -1)
        if self._operator.is_symmetric:
            sure = sure | exact[:, None]
        return total / num_probes, torch.where(sure, looks[0], left_out)

    def shared(self, num_probes: int) -> tuple[Tensor, Tensor]:
        """Return the estimates from all pairs of probes, and those with each probe left out."""
        Z = draw_probes(self._operator, num_probes, seed=self._seed)
        Z[self._labels < 0] = 0.0  # entries of no block would only add noise
        Y = self._multiply(Z)
        return _over_pairs(self._gram(Y), self._gram(Z.double()), self._operator.is_symmetric)

    def _gram(self, X: Tensor) -> Tensor:
        """Return the inner products of columns within each block (B, K, K), without a square."""
        products = [block.take(X).T @ block.take(X) for block in self._partition]
        gram = torch.stack(products)
        gram.diagonal(dim1=1, dim2=2).zero_()
        return gram

    def _multiply(self, X: Tensor) -> Tensor:
        """Return A X in float64."""
        products = []
        for columns in X.split(self._batch, dim=1):
            product = self._operator @ columns
            if not bool(torch.isfinite(product).all()):
                raise NonFiniteError(
                    f"`squared_block_norms` needs finite products; {self._operator!r} gave NaN or "
                    "infinity. Check that loss and gradient are finite at these parameters."
                )
            products.append(product.double())
            self.spent += columns.shape[1]
            self._ticker.tick(self.spent)
        return torch.cat(products, dim=1)

    def _squares(self, X: Tensor) -> Tensor:
        """Return ‖(A x)_a‖² for each block a and column x: (B, k)."""
        squares = self._multiply(X).square()
        B = len(self._partition)
        sums = squares.new_zeros(B + 1, X.shape[1])
        # Entries of no block, with label −1, go to one more row, which is cut off.
        return sums.index_add_(0, self._labels.remainder(B + 1), squares)[:B]

    def _empty(self) -> Tensor:
        B = len(self._partition)
        return torch.zeros(B, B, dtype=torch.float64, device=self._operator.device)

    def _exact(self, chosen: Tensor) -> Tensor:
        """Return ‖A_ab‖² for the chosen column blocks b from unit vectors, 0 for the others."""
        total, n = self._empty(), self._operator.space.size
        wanted = (self._labels >= 0) & chosen[self._labels.clamp_min(0)]
        for index in wanted.nonzero()[:, 0].split(self._batch):
            columns = torch.zeros(n, len(index)).to(self._operator.device, self._operator.dtype)
            columns[index, torch.arange(len(index), device=index.device)] = 1.0
            total.index_add_(1, self._labels[index], self._squares(columns))
        return total

    def _sample(self, chosen: Tensor, number: int) -> Tensor:
        """Return one look at ‖A_ab‖² for the chosen column blocks b, 0 for the others."""
        v = draw_probes(self._operator, 1, seed=self._seed, first=number)
        total = self._empty()
        for blocks in chosen.nonzero()[:, 0].split(self._batch):
            masked = torch.where(self._labels[:, None] == blocks, v, 0.0)
            total[:, blocks] = self._squares(masked)
        return total

    def _mirrored(self, squares: Tensor, exact: Tensor) -> Tensor:
        """Merge the two looks at each pair of a symmetric matrix: the exact one, else the mean."""
        if not self._operator.is_symmetric:
            return squares
        rows, columns = exact[:, None], exact[None, :]
        mean = (squares + squares.T) / 2
        return torch.where(columns & ~rows, squares, torch.where(rows & ~columns, squares.T, mean))


def _over_pairs(G: Tensor, F: Tensor, symmetric: bool) -> tuple[Tensor, Tensor]:
    """Return the mean of h_kl = G_a,kl F_b,kl over all pairs of probes, and with each left out.

    The plain jackknife counts what two probes do together twice: its variance is up to two times
    too large here. The values with a probe left out are drawn together until it is the unbiased
    one, h̄² − the mean of h_kl h_ij over pairs without a common probe, or half of itself at least.

    Args:
        G: Inner products of y_k and y_l in block a, (B, K, K) with zeros for k = l.
        F: The same of z_k and z_l.
        symmetric: Whether to take the mean with h_kl of (b, a).
    """
    K = G.shape[1]
    per_probe = torch.einsum("akl,bkl->kab", G, F)  # Σ_l h_kl
    squares = torch.einsum("akl,bkl->ab", G.square(), F.square())  # Σ_kl h_kl²
    if symmetric:
        both = torch.einsum("akl,bkl->ab", G * F, G * F)
        per_probe, squares = (per_probe + per_probe.mT) / 2, (squares + squares.T + 2 * both) / 4
    total = per_probe.sum(0)
    mean = total / (K * (K - 1))
    left_out = (total - 2 * per_probe) / ((K - 1) * (K - 2))
    apart = total.square() - 4 * per_probe.square().sum(0) + 2 * squares
    variance = mean.square() - apart / (K * (K - 1) * (K - 2) * (K - 3))
    jack = jackknife(left_out).square()
    shrink = (variance / jack).nan_to_num(1.0).clamp(0.5, 1.0).sqrt()
    return mean, mean + (left_out - mean) * shrink


def _chosen(method: str, num_products: int, sizes: tuple[int, ...]) -> tuple[str, int]:
    """Return the method and its number of probes: as many as the budget allows."""
    largest = max(sizes)
    if num_products >= sum(sizes) and method in ("auto", "exact"):
        return "exact", largest
    # The most probes p with Σ_b min(p, s_b) within the budget.
    low, high = 0, largest - 1
    while low < high:
        middle = (low + high + 1) // 2
        fits = sum(min(middle, size) for size in sizes) <= num_products
        low, high = (middle, high) if fits else (low, middle - 1)
    if low >= 2 and method in ("auto", "masked"):
        return "masked", low
    if num_products >= _LEAST_SHARED and method in ("auto", "shared"):
        return "shared", num_products
    need = {"exact": sum(sizes), "masked": sum(min(2, size) for size in sizes)}
    raise InvalidArgumentError(
        f"`squared_block_norms(num_products={num_products}, method={method!r})` is too little: it "
        f"needs {need.get(method, _LEAST_SHARED)} for {len(sizes)} blocks of {sum(sizes)} entries "
        "in all (masked probes also need a block of 3 entries or more). Raise `num_products`, or "
        'take `method="auto"`.'
    )


def _cost(method: str, num_probes: int, partition: Partition) -> int:
    if method == "shared":
        return num_probes
    return sum(min(num_probes, size) for size in partition.sizes)


def _text(method: str, num_probes: int, partition: Partition) -> str:
    if method == "exact":
        return f"Exact: {sum(partition.sizes)} products, one for each entry of the blocks."
    if method == "shared":
        return f"All pairs of {num_probes} probes that the {len(partition)} blocks share."
    exact = sum(size <= num_probes for size in partition.sizes)
    return (
        f"{num_probes} masked probes for each of {len(partition) - exact} blocks; {exact} smaller "
        "ones exactly."
    )
