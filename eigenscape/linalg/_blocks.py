"""Squared Frobenius norms of pairs of blocks, from unit vectors or from masked probes.

Letters: A the operator (m × n); A_ab the block of rows a and columns b; v a probe, v^(b) the same
with all entries outside b set to 0, so that E‖(A v^(b))_a‖² = ‖A_ab‖_F².
"""

import torch
from torch import Tensor

from eigenscape.linalg._products import block_sums, multiply, unit_columns
from eigenscape.linalg.probes import draw_probes
from eigenscape.operator import LinearOperator
from eigenscape.records import Ticker
from eigenscape.space import Partition


class BlockRun:
    """Squared norms of blocks from batches of masked columns; counts the products."""

    def __init__(
        self,
        operator: LinearOperator,
        rows: Partition,
        columns: Partition,
        batch: int,
        seed: int,
    ) -> None:
        self._operator, self._rows, self._columns = operator, rows, columns
        self._batch, self._seed = batch, seed
        self._row_labels = rows.labels().to(operator.device)
        self._column_labels = columns.labels().to(operator.device)
        self.spent = 0

    def _squares(self, X: Tensor) -> Tensor:
        """Return ‖(A x)_a‖² for each row block a and column x."""
        Y = multiply(self._operator, X, "block_norms", batch=self._batch)
        self.spent += X.shape[1]
        return block_sums(Y.square(), self._row_labels, len(self._rows))

    def _empty(self) -> Tensor:
        shape = len(self._rows), len(self._columns)
        return torch.zeros(shape, dtype=torch.float64, device=self._operator.device)

    def exact_columns(self, chosen: Tensor, ticker: Ticker) -> Tensor:
        """Return ‖A_ab‖² for the chosen column blocks b from unit vectors, 0 for the others."""
        inside = torch.where(self._column_labels >= 0, chosen[self._column_labels], False)
        entries = inside.nonzero()[:, 0]
        total = self._empty()
        for index in entries.split(self._batch):
            squares = self._squares(unit_columns(self._operator, index))
            total.index_add_(1, self._column_labels[index], squares)
            ticker.tick(self.spent)
        return total

    def probe_columns(self, chosen: Tensor, number: int, ticker: Ticker) -> Tensor:
        """Return one sample of ‖A_ab‖² for the chosen column blocks b, 0 for the others."""
        v = draw_probes(self._operator, 1, seed=self._seed, first=number)
        total = self._empty()
        # Masked copies are made a batch at a time: B_c copies of a large vector need not fit.
        for blocks in chosen.nonzero()[:, 0].split(self._batch):
            masked = torch.where(self._column_labels[:, None] == blocks, v, 0.0)
            total[:, blocks] = self._squares(masked)
            ticker.tick(self.spent)
        return total


def mirror(squares: Tensor, exact: Tensor) -> Tensor:
    """Merge the two looks at each symmetric pair: the exact one, else the mean."""
    rows, columns = exact[:, None], exact[None, :]
    mean = (squares + squares.T) / 2
    return torch.where(columns & ~rows, squares, torch.where(rows & ~columns, squares.T, mean))
