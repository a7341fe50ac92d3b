"""The parts of a second moment by class and candidate label, as linear maps of its means.

For vectors v_{i,c,c'} with weights w_{i,c,c'} let w_{c,c'} and v_{c,c'} be the weights and weighted
means of the cells, w_c = Σ_{c'≠c} w_{c,c'}, v_c = Σ_{c'≠c} (w_{c,c'}/w_c) v_{c,c'}, and v_G the
mean of the v_c by their weights w_c (Papyan §6, with the correction that the cross part subtracts
v_c). Every part is F Fᵀ with the columns of F

    global    √(Σ w_c) v_G                  class = global + centred
    class     √w_c v_c
    centred   √w_c (v_c − v_G)
    cross     √w_{c,c'} (v_{c,c'} − v_c)    c' ≠ c
    same      √w_{c,c} v_{c,c}              the part (c = c')
    between   √w_{c,c'} v_{c,c'}            between = class + cross + same

Vectors without a candidate label, v_{i,c}, have one column of cells, and the first three parts.
Letters: C classes, L candidate labels (C, or 1), T (C, L, k) numbers for the cells, r columns of F.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from eigenscape.device import eigh
from eigenscape.errors import require_choice

PLAIN = ("global", "centred", "class")
LOW_RANK = (*PLAIN, "cross", "same", "between")
# Parts with a column for every cell; the others need the v_c or v_{c,c} alone, C columns at most.
WIDE = ("cross", "between")
SMALL = tuple(name for name in LOW_RANK if name not in WIDE)


class ClassParts:
    """The maps T ↦ FᵀT and their transposes, for given weights of the cells."""

    def __init__(self, weights: Tensor, *, extended: bool) -> None:
        """Take the weights of the cells.

        Args:
            weights: w_{c,c'} (C, L), float64, none below 0. An empty cell has weight 0.
            extended: Whether cells have candidate labels, so that c' = c is kept apart.
        """
        C, L = weights.shape
        self.names = LOW_RANK if extended else PLAIN
        eye = torch.eye(C, L, dtype=torch.bool, device=weights.device)
        self._all = weights
        self._other = weights.where(~eye, 0.0) if extended else weights
        self._same = weights.diagonal() if extended else weights.new_zeros(0)
        self.class_weights = self._other.sum(1)
        self._total = self.class_weights.sum()
        # π_{c,c'} = w_{c,c'}/w_c, zero for c' = c, and π_c = w_c/Σ w_c.
        self.shares = _shares(self._other, self.class_weights[:, None])
        self.class_shares = _shares(self.class_weights, self._total)

    def class_means(self, T: Tensor, classes: slice = slice(None)) -> Tensor:
        """Average cells to classes (C, k), without c' = c; T may hold some of the classes."""
        return torch.einsum("cl,clk->ck", self.shares[classes].to(T), T)

    def global_mean(self, T: Tensor) -> Tensor:
        """Average cells to one mean (k,), without c' = c."""
        return self.class_shares.to(T) @ self.class_means(T)

    def columns(self, name: str, T: Tensor) -> Tensor:
        """Return FᵀT (r, k): with the means (C, L, n) for T, the columns of F as rows.

        Args:
            name: The part.
            T: Numbers for the cells (C, L, k).

        Returns:
            One row for each column of F; the cross part has zeros where c' = c.
        """
        require_choice(name, self.names, "part")
        if name in WIDE:
            return self.wide_columns(name, T)
        return self.small_columns(
            name, diagonal_means(T) if name == "same" else self.class_means(T)
        )

    def wide_columns(self, name: str, T: Tensor, classes: slice = slice(None)) -> Tensor:
        """Return the rows of `columns` that belong to some classes, for "cross" or "between".

        Args:
            name: The part.
            T: Numbers for the cells of these classes (c, L, k).
            classes: Which they are; all by default.

        Returns:
            L rows for each of the classes.
        """
        if name == "between":
            return (self._all[classes].to(T).sqrt()[:, :, None] * T).flatten(0, 1)
        away = T - self.class_means(T, classes)[:, None]
        return (self._other[classes].to(T).sqrt()[:, :, None] * away).flatten(0, 1)

    def small_columns(self, name: str, V: Tensor) -> Tensor:
        """Return `columns` of the other parts from averages of the cells.

        Args:
            name: The part.
            V: `class_means` (C, k); for "same" the `own_means`.

        Returns:
            One row for each column of F.
        """
        w = self.class_weights.to(V).sqrt()[:, None]
        if name == "global":
            return self._total.to(V).sqrt() * (self.class_shares.to(V) @ V)[None]
        if name == "class":
            return w * V
        if name == "centred":
            return w * (V - self.class_shares.to(V) @ V)
        return self._same.to(V).sqrt()[:, None] * V

    def spread(self, name: str, Y: Tensor) -> Tensor:
        """Return the transpose of `columns`, numbers for the cells (C, L, k) from rows (r, k)."""
        C, L = self._other.shape
        w = self.class_weights.to(Y).sqrt()[:, None]
        shares, class_shares = self.shares.to(Y)[:, :, None], self.class_shares.to(Y)[:, None]
        if name == "global":
            return shares * (class_shares * self._total.to(Y).sqrt() * Y)[:, None]
        if name == "class":
            return shares * (w * Y)[:, None]
        if name == "centred":
            return shares * (w * Y - class_shares * (w * Y).sum(0))[:, None]
        if name == "same":
            same = Y.new_zeros(C, L, Y.shape[1])
            same.diagonal(dim1=0, dim2=1).copy_((self._same.to(Y).sqrt()[:, None] * Y).T)
            return same
        if name == "between":
            return self._all.to(Y).sqrt()[:, :, None] * Y.reshape(C, L, -1)
        cross = self._other.to(Y).sqrt()[:, :, None] * Y.reshape(C, L, -1)
        return cross - shares * cross.sum(1, keepdim=True)

    def most_pairs(self, name: str) -> int:
        """Return the number of columns of F that are not zero by definition."""
        C = len(self.class_weights)
        return {"global": 1, "cross": C * (C - 1), "between": C * C}.get(name, C)


def diagonal_means(T: Tensor) -> Tensor:
    """Return the numbers (C, k) of the cells (c, c)."""
    return T.diagonal(dim1=0, dim2=1).T


def gram_matrix(pieces: Iterable[Tensor], *, of_rows: bool) -> Tensor:
    """Return R Rᵀ or RᵀR for the rows R (r, d) of `columns`: one takes the smaller of the two.

    Args:
        pieces: R in pieces; of its columns for R Rᵀ, of its rows for RᵀR.
        of_rows: Whether to form R Rᵀ.

    Returns:
        The matrix (r, r) or (d, d). Both have the eigenvalues of the part that are not zero.
    """
    factors = ((R, R.T) if of_rows else (R.T, R) for R in pieces)
    left, right = next(factors)
    total = left @ right
    for left, right in factors:
        total.addmm_(left, right)
    return total


def top_eigenvalues(gram: Tensor, most: int) -> Tensor:
    """Return the largest eigenvalues of a `gram_matrix`, descending; below 0 they are rounding."""
    try:
        values: Tensor = torch.linalg.eigvalsh(gram)
    except RuntimeError:  # LAPACK gave up; `eigh` knows other ways, and says what is wrong
        values, _ = eigh(gram)
    return values.flip(0)[:most].clamp_min(0.0)


def _shares(weights: Tensor, total: Tensor) -> Tensor:
    """Divide; zero where the total is zero."""
    return torch.where(total > 0, weights / total.where(total > 0, 1.0), 0.0)
