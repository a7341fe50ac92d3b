"""Thick-restart Lanczos: the decomposition that `eigsh` extends and compresses.

Letters: A the operator (n, n); V (j, n) rows of an orthonormal basis to which A was applied;
F (f, n) the frontier, orthonormal rows orthogonal to V to which it was not; H = V A Vᵀ (j, j);
C (f, j) the coupling. Always A Vᵀ = Vᵀ H + Fᵀ C, so a Ritz pair (θ, Vᵀy) has residual ‖C y‖.

One step multiplies some frontier vectors, moves them into V, and puts what is new into F. When V is
full, its best Ritz vectors are kept (thick restart: Wu and Simon 2000; Krylov–Schur: Stewart 2001).
Converged vectors stay in V and are thereby locked. H, C and all decisions are on the host. What a
step needs there comes in three transfers: after the product, after a pass of reorthogonalisation,
and the length of each new direction.
"""

import math

import torch
from torch import Tensor

from eigenscape.device import eigh
from eigenscape.errors import NonFiniteError
from eigenscape.linalg._krylov import Basis
from eigenscape.linalg._products import InUnits, dots, require_same_product, sums_of
from eigenscape.linalg.probes import chances_to_miss, copies_seen, draw_probes

# Ritz values of a basis of j vectors cost about j³: look at them once in j / _LOOK products.
_LOOK = 32
# Rows this far from dependent are made orthonormal by two Cholesky factorisations of their Gram
# matrix: the least eigenvalue of the Gram matrix of rows scaled to length one.
_INDEPENDENT = 0.01


class ThickRestart:
    """The decomposition A Vᵀ = Vᵀ H + Fᵀ C and the ways to extend and compress it."""

    def __init__(
        self,
        operator: InUnits,
        k: int,
        which: str,
        tolerance: float,
        basis: Basis,
        block_size: int,
        seed: int,
        start: Tensor,
    ) -> None:
        self._operator, self._k, self._which = operator, k, which
        self._tolerance, self._capacity, self._block = tolerance, basis.capacity, block_size
        self._seed, self._drawn = seed, block_size
        self.num_products, self.repeats = 0, False  # whether a look has met a missed copy
        self._eps, self._noise = torch.finfo(operator.dtype).eps, operator.noise
        self._basis = basis
        self.F, _, _ = _orthonormal_rows(start, floor=0.0)
        self._first, self._first_product = self.F[0], torch.zeros(256, dtype=torch.float64)
        self._S = torch.zeros(self.F.shape[0], 0, dtype=torch.float64)  # the start on the basis
        self._H = torch.zeros(0, 0, dtype=torch.float64)
        self._C = torch.zeros(self.F.shape[0], 0, dtype=torch.float64)
        self._theta = torch.zeros(0, dtype=torch.float64)
        self._Y = torch.zeros(0, 0, dtype=torch.float64)
        self._stale = 0  # products since Ritz values were last computed
        self._look = 0  # size of the basis when the last random vector joined
        self._fresh = False  # whether a random vector waits to be multiplied

    @property
    def size(self) -> int:
        """The dimension n."""
        return self._operator.space.size

    @property
    def block_size(self) -> int:
        """Vectors multiplied per step."""
        return self._block

    @property
    def _j(self) -> int:
        return len(self._basis)

    @property
    def _needed(self) -> int:
        return 2 * self._k if self._which == "both" else self._k

    def step(self, *, probing: bool = False) -> None:
        """Multiply a few frontier vectors: those that the unconverged pairs lean on most."""
        chosen = self._choose(probing)
        self._fresh = False
        kept = [i for i in range(self.F.shape[0]) if i not in chosen]
        P, others = _pick(self.F, chosen), _pick(self.F, kept)
        W = (self._operator @ P.T.contiguous()).T.contiguous()
        PAP, finite = _fetch(dots(P, W), torch.isfinite(W).all())
        if not bool(finite):
            raise NonFiniteError(
                "A product is NaN or infinite. Check the operator: "
                "`(A @ torch.ones(n)).isfinite().all()`."
            )
        self.num_products += P.shape[0]
        j = self._j
        known = self._C[chosen]  # = P A Vᵀ, by symmetry
        PAP = (PAP + PAP.T) / 2
        if j == 0:
            self._first_product = sums_of(W[0])
            self._S = torch.eye(self._S.shape[0], P.shape[0], dtype=torch.float64)
        else:
            self._S = torch.nn.functional.pad(self._S, (0, P.shape[0]))
        W = W - PAP.to(W, non_blocking=True) @ P
        W = W - self._basis.combine(known)
        self._basis.append(P)
        W, onto_V, onto_others = self._orthogonal(W, others)
        onto_V[:, :j] += known
        onto_V[:, j:] += PAP
        scale = max(self.norm, float(onto_V.norm()))
        fresh, R, _ = _orthonormal_rows(W, floor=10 * self._eps * scale)
        fresh, R = self._without_rounding(fresh, R, others, scale)
        self._extend(onto_V, onto_others, R, kept)
        self.F = torch.cat([others, fresh])
        self._stale += P.shape[0]
        # Where all of the frontier is multiplied next, Ritz values only say when to stop.
        if self._stale > self._j // _LOOK or self.is_full() or self.F.shape[0] > self._block:
            self._ritz()

    def _without_rounding(
        self, fresh: Tensor, R: Tensor, others: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Clean new directions that are a small rest of a product; drop those that are rounding.

        Such a rest still holds rounding errors of the product, and these lie in the basis.

        Returns:
            The directions that are real, and their rows of R.
        """
        lengths = R.diagonal()  # of the new directions before normalisation
        enough = max(self._eps**0.5 * scale, 0.1 * float(R.norm(dim=0).max()))
        if fresh.shape[0] == 0 or bool((lengths > enough).all()):
            return fresh, R
        for _ in range(2):
            fresh, _, _ = self._removed(fresh, others)
        # A row that had length 1 and is short now was rounding.
        clean, _, chosen = _orthonormal_rows(fresh, floor=0.5)
        room = self.size - self._j - others.shape[0]
        return clean[:room], R[chosen[:room]]

    def _orthogonal(self, W: Tensor, others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Remove V and the rest of the frontier from rows W; return also what was removed.

        The couplings that are known were taken out before, so one pass removes only rounding and
        what lies in `others`; a second follows where it removed enough to leave rounding behind
        (Daniel, Gragg, Kaufman, Stewart 1976).

        Returns:
            What is left of W, and its coefficients on V and on the other frontier rows.
        """
        onto_V = torch.zeros(W.shape[0], self._j, dtype=torch.float64)
        onto_others = torch.zeros(W.shape[0], others.shape[0], dtype=torch.float64)
        for _ in range(3):
            length = W.double().norm(dim=1)
            W, on_V, on_others = self._removed(W, others)
            c, d, before, after = _fetch(on_V, on_others, length, W.double().norm(dim=1))
            onto_V, onto_others = onto_V + c, onto_others + d
            if bool((after > 0.7 * before).all()):
                break
        return W, onto_V, onto_others

    def _removed(self, W: Tensor, others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Remove V and other rows in one pass; return the coefficients on both, too."""
        d = dots(W, others)
        W, c = self._basis.project_out(W)
        return W - d.to(W) @ others, c, d

    def _extend(self, onto_V: Tensor, onto_rest: Tensor, R: Tensor, kept: list[int]) -> None:
        """Write the coefficients of new columns into H and C."""
        b, size = onto_V.shape
        old = size - b
        H = torch.zeros(size, size, dtype=torch.float64)
        H[:old, :old] = self._H
        H[old:, :old], H[:old, old:] = onto_V[:, :old], onto_V[:, :old].T
        H[old:, old:] = (onto_V[:, old:] + onto_V[:, old:].T) / 2
        C = torch.zeros(len(kept) + R.shape[0], size, dtype=torch.float64)
        C[: len(kept), :old] = self._C[kept]
        C[: len(kept), old:] = onto_rest.T
        C[len(kept) :, old:] = R
        self._H, self._C = H, C

    def _ritz(self) -> None:
        self._theta, self._Y = eigh(self._H)
        self._stale = 0

    @property
    def norm(self) -> float:
        """The size of A as seen so far."""
        return float(self._theta.abs().max()) if self._theta.numel() else 0.0

    def _wanted(self) -> Tensor:
        """Return the positions of the wanted Ritz values, best first."""
        return _order(self._theta, self._which, self._k)

    def refresh(self) -> None:
        """Bring Ritz values up to date."""
        if self._stale:
            self._ritz()

    def wanted_values(self) -> Tensor:
        """Return the wanted Ritz values."""
        return self._theta[self._wanted()]

    def wanted_vectors(self) -> Tensor:
        """Return the wanted Ritz vectors (n, k)."""
        return self._basis.combine(self._Y[:, self._wanted()].T).T

    def _unconverged(self) -> Tensor:
        """Return positions of wanted pairs above tolerance."""
        wanted = self._wanted()
        residuals = (self._C @ self._Y[:, wanted]).norm(dim=0)
        floor = torch.tensor(4 * self._eps * self.norm)
        bar = torch.maximum(self._tolerance * self._theta[wanted].abs(), floor)
        # A real residual has the noise of its product too, and both must stay within the floor.
        return wanted[residuals > bar + self._noise / 2 * self.norm]

    def has_converged(self) -> bool:
        """Say whether all wanted pairs are there and within tolerance, as last looked at."""
        if self._stale:
            return False
        return self._j >= self._needed and self._unconverged().numel() == 0

    def may_miss(self) -> bool:
        """Say whether a pair outside the wanted ones could still belong among them.

        Its Ritz value is off by its residual at most, so it can where value plus residual reaches
        the least wanted one.

        Returns:
            True if one could.
        """
        self.refresh()
        wanted = self._wanted()
        theta, radius = self._others()
        if self._which == "magnitude":
            return bool((theta.abs() + radius > self._theta[wanted].abs().min()).any())
        above = self._theta[wanted[: self._k]].min()
        below = self._theta[wanted[-self._k :]].max()
        enters_top, enters_bottom = theta + radius > above, theta - radius < below
        enters = {"largest": enters_top, "smallest": enters_bottom}
        return bool(enters.get(self._which, enters_top | enters_bottom).any())

    def _others(self) -> tuple[Tensor, Tensor]:
        """Return the Ritz values that are not wanted, and their residuals."""
        others = torch.ones(self._j, dtype=torch.bool)
        others[self._wanted()] = False
        return self._theta[others], (self._C @ self._Y[:, others]).norm(dim=0)

    def _farthest(self) -> Tensor:
        """Return the position of the pair that reaches farthest of those that are not wanted."""
        reach = (self._C @ self._Y).norm(dim=0)
        signs = {"largest": self._theta, "smallest": -self._theta}
        reach = reach + signs.get(self._which, self._theta.abs())
        reach[self._wanted()] = -math.inf
        position: Tensor = reach.argmax()[None]
        return position

    def copies_seen(self) -> tuple[float, float]:
        """Say how many eigenvectors the random start saw where the wanted ones were found.

        Returns:
            See `_copies.copies_seen`.
        """
        self.refresh()
        wanted, b = self._wanted(), self._S.shape[0]
        share = float((self._S @ self._Y[:, wanted]).square().sum()) * self.size
        return copies_seen(share, wanted.numel(), b)

    def chances_to_miss(self, looked: int, planned: int) -> Tensor:
        """Bound the probabilities that another pair is beyond each of the wanted ones.

        Such a pair lies in the basis, and then a Ritz value with its residual reaches as far; or it
        is for the random vector to meet.

        Args:
            looked: Products since the look began.
            planned: Products when it will end; if they are more, it is assumed to meet no larger
                value until then, and residuals to vanish.

        Returns:
            The bounds, in the order of the pairs; 1 where nothing can be said.
        """
        self.refresh()
        wanted, first = self._theta[self._wanted()], self._j - looked
        if looked == 0 or first < self._look:  # a restart has mixed them with the others
            return torch.ones_like(wanted)
        reached = torch.linalg.eigvalsh(self._H[first:, first:])
        if planned == looked:
            theta, radius = self._others()
            reached = torch.cat([reached, theta + radius, theta - radius])
        return chances_to_miss(
            wanted,
            self._which,
            met=(float(reached.min()), float(reached.max())),
            spread=(float(self._theta[0]), float(self._theta[-1])),
            size=self.size,
            num_steps=planned // self._block,
        )

    def widen(self, block_size: int) -> None:
        """From now on multiply blocks of so many vectors, with new random ones among them."""
        most = (self._capacity - self._needed - 2) // 2
        for _ in range(min(block_size, most) - self._block):
            self.add_random()
            self._block += 1

    def same_values(self, previous: Tensor | None) -> bool:
        """Say whether the wanted values are still those seen before, to the tolerance."""
        now = self.wanted_values()
        if previous is None or previous.shape != now.shape:
            return False
        slack = (max(self._tolerance, 16 * self._eps) + self._noise) * self.norm
        return bool(((now - previous).abs() <= slack).all())

    def _choose(self, probing: bool) -> list[int]:
        f = self.F.shape[0]
        if probing:  # the random vector, then what each product of the look brought anew
            return [f - 1]
        if self._j == 0:  # the starting vectors go together
            return list(range(min(f, self._capacity)))
        b = min(self._block, f, self._capacity - self._j)
        if b == f:
            return list(range(f))
        self.refresh()
        pairs = self._unconverged()
        if pairs.numel() == 0 and self._j > self._needed:
            pairs = self._farthest()
        lean = self._C @ self._Y[:, pairs] if self._C.numel() else self._C
        strength = lean.norm(dim=1) if lean.numel() else torch.zeros(f, dtype=torch.float64)
        # Ties (all zero before anything is known) go to the newest vectors.
        strength = strength + torch.arange(f) * 1e-300
        return sorted(strength.topk(b).indices.tolist())

    def add_random(self) -> bool:
        """Make a random direction the last of the frontier; False if V is the whole space.

        The direction is random in all that is orthogonal to V, the frontier included: a missed
        eigenvector may lie there. So the frontier is turned until the direction is one of it.

        Returns:
            Whether there was room for one.
        """
        if self._j >= self.size:
            return False
        r = draw_probes(self._operator, 1, seed=self._seed, kind="gaussian", first=self._drawn).T
        self._drawn += 1
        F, C = self.F, self._C
        for _ in range(2):
            r, _ = self._basis.project_out(r)
        inside = dots(r, F)
        outside, _, _ = self._removed(r - inside.to(r) @ F, F)
        norm = outside.double().norm()
        u, length, r_norm = _fetch(inside, norm, r.double().norm())
        if bool(length > 1e-3 * r_norm):
            F = torch.cat([F, outside / norm.to(r)])
            C = torch.cat([C, torch.zeros(1, self._j, dtype=torch.float64)])
            u = torch.cat([u, length.reshape(1, 1)], dim=1)
        turn = torch.linalg.qr(u.T, mode="complete")[0].flip(1).T  # its last row is ±u, of length 1
        self.F, self._C = turn.to(F) @ F, turn @ C
        self._fresh, self._look = True, self._j
        return True

    def is_full(self) -> bool:
        """Say whether the next step has no room."""
        return self._j >= self._capacity and self._j < self.size

    def restart(self) -> None:
        """Keep the wanted Ritz vectors and half of the rest, nearest to them in order."""
        extra = (self._capacity - self._needed) // 2
        count = self._k + (extra // 2 if self._which == "both" else extra)
        keep = _order(self._theta, self._which, count)
        keep = keep[: self._capacity - self._block]
        Y = self._Y[:, keep]
        self._basis.rotate(Y)
        self._H = torch.diag(self._theta[keep])
        self._C, self._S = self._C @ Y, self._S @ Y
        self._look = self._capacity
        self._ritz()

    def piece(self) -> dict[str, Tensor]:
        """Return the whole state."""
        return {
            "V": self._basis.rows,
            "F": self.F,
            "H": self._H,
            "C": self._C,
            "S": self._S,
            "counts": torch.tensor([self.num_products, self._drawn, self._block, self.repeats]),
            "first_product": self._first_product,
            "unit": torch.tensor(self._operator.unit, dtype=torch.float64),
        }

    def restore(self, piece: dict[str, Tensor]) -> None:
        """Take over a saved state, after one product that compares the operator with it."""
        self._operator.adopt(float(piece["unit"]))
        require_same_product(self._operator, self._first, piece["first_product"])
        self._first_product = piece["first_product"]
        self._basis.append(piece["V"])
        self.F = piece["F"].to(self.F)
        self._H, self._C, self._S = piece["H"], piece["C"], piece["S"]
        counts = (int(count) for count in piece["counts"])
        self.num_products, self._drawn, self._block, repeats = counts
        self.repeats = bool(repeats)
        self._ritz()


def _order(theta: Tensor, which: str, k: int) -> Tensor:
    """Return positions of the k wanted values, best first; `theta` is ascending."""
    size = theta.numel()
    k = min(k, size)
    if which == "largest":
        return torch.arange(size - 1, size - 1 - k, -1)
    if which == "smallest":
        return torch.arange(k)
    if which == "magnitude":
        return theta.abs().argsort(descending=True)[:k]
    positions = [*range(size - 1, size - 1 - k, -1), *range(k)]
    return torch.tensor(list(dict.fromkeys(positions)), dtype=torch.long)


def _pick(rows: Tensor, numbers: list[int]) -> Tensor:
    """Return these rows; a list of numbers as an index would stop the device for its transfer."""
    return torch.stack([rows[i] for i in numbers]) if numbers else rows[:0]


def _fetch(*tensors: Tensor) -> list[Tensor]:
    """Bring small tensors to the host in one transfer, in float64."""
    flat = torch.cat([tensor.double().flatten() for tensor in tensors]).cpu()
    pieces = flat.split([tensor.numel() for tensor in tensors])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


def _orthonormal_rows(W: Tensor, floor: float) -> tuple[Tensor, Tensor, list[int]]:
    """Factor rows W = Rᵀ·fresh with orthonormal `fresh` (g, n).

    Args:
        W: The rows (b, n).
        floor: A row that adds no more than this to those before it gives no direction.

    Returns:
        The fresh rows, R (g, b) with the coefficients of each given row on them, on the host in
        float64, and the numbers of the rows that gave them.
    """
    if (quick := _by_cholesky(W, floor)) is not None:
        return *quick, list(range(W.shape[0]))
    fresh: list[Tensor] = []
    chosen: list[int] = []
    R = torch.zeros(W.shape[0], W.shape[0], dtype=W.dtype)
    taken: list[tuple[int, int, Tensor]] = []
    for i, row in enumerate(W):
        for _ in range(2):
            for g, basis in enumerate(fresh):
                c = basis @ row
                row = row - c * basis
                taken.append((g, i, c))
        norm = row.double().norm()
        if (length := float(norm)) > floor:
            R[len(fresh), i] = length
            fresh.append(row / norm.to(row))
            chosen.append(i)
    if taken:
        places, columns, coefficients = zip(*taken, strict=True)
        where = torch.tensor(places), torch.tensor(columns)
        R.index_put_(where, torch.stack(coefficients).cpu(), accumulate=True)
    stacked = torch.stack(fresh) if fresh else W.new_empty(0, W.shape[1])
    return stacked, R[: len(fresh)].double(), chosen


def _by_cholesky(W: Tensor, floor: float) -> tuple[Tensor, Tensor] | None:
    """Factor clearly independent rows as `_orthonormal_rows` does, in two transfers.

    Cholesky QR, twice: Yamamoto, Nakatsukasa, Yanagisawa, Fukaya 2015.

    Returns:
        Orthonormal rows and R, or None where rows are too near to dependent.
    """
    if W.shape[0] < 2:
        return None
    identity = torch.eye(W.shape[0], dtype=torch.float64)
    R = identity
    for _ in range(2):
        (gram,) = _fetch(dots(W, W))
        length = gram.diagonal().sqrt()
        if not bool(((length > 0) & torch.isfinite(length)).all()):
            return None
        if float(torch.linalg.eigvalsh(gram / length.outer(length))[0]) < _INDEPENDENT:
            return None
        L = torch.linalg.cholesky(gram)
        W = torch.linalg.solve_triangular(L, identity, upper=False).to(W) @ W
        R = L.T @ R
    return (W, R) if bool((R.diagonal() > floor).all()) else None
