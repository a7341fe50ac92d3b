"""Lanczos tridiagonalisation of a symmetric operator, several starting vectors at once.

Letters: A the operator (n, n); p starting vectors, each with its own Krylov space; m steps;
V (p, m, n) orthonormal bases; T (m, m) tridiagonal with diagonal α and off-diagonal β; Q (n, r) a
subspace that is left out. Products and bases have the operator's dtype, α and β are float64.

Without reorthogonalisation rounding makes copies ("ghosts") of converged eigenvalues; with two
passes of it, bases stay orthogonal to rounding (Parlett, The Symmetric Eigenvalue Problem, §6.9).
Papyan's SlowLanczos (Alg. 1) and FastLanczos (Alg. 2) are `reorthogonalise=True` and `False`.
"""

import os
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eigenscape.device import eigh, full_precision
from eigenscape.errors import InvalidArgumentError, NonFiniteError, require_count
from eigenscape.linalg._pictures import lanczos_picture
from eigenscape.linalg._products import (
    InUnits,
    carries_self_test,
    dots,
    require_same_product,
    require_symmetric,
    sums_of,
    unit_of,
)
from eigenscape.linalg.pairs import require_columns
from eigenscape.linalg.probes import draw_probes
from eigenscape.operator import LinearOperator
from eigenscape.records import (
    Checkpoint,
    Columns,
    Picture,
    ProgressCallback,
    Record,
    Status,
    Ticker,
    crc,
)


@dataclass(frozen=True, eq=False)
class LanczosRun(Record):
    """Tridiagonal matrices of p Krylov spaces.

    Attributes:
        alphas: Diagonals α (p, m), float64.
        betas: Off-diagonals β (p, m), float64; the last column couples to the step not taken.
        basis: Bases V (p, m, n), or None where they were not kept.
        reorthogonalised: Whether Ritz values can be counted; if not, some may be ghosts.
    """

    alphas: Tensor
    betas: Tensor
    basis: Tensor | None
    reorthogonalised: bool

    def columns(self) -> Columns:
        """Return one row for each step of each probe."""
        probes, steps = self.alphas.shape
        return {
            "probe": [p for p in range(probes) for _ in range(steps)],
            "step": [s for _ in range(probes) for s in range(steps)],
            "alpha": self.alphas.flatten().tolist(),
            "beta": self.betas.flatten().tolist(),
        }

    def quadrature(self) -> tuple[Tensor, Tensor]:
        """Return Gauss nodes (p, m) and weights (p, m) of v ↦ vᵀ f(A) v for unit v.

        The rule is exact for polynomials f of degree 2m − 1; weights of a row add up to 1.
        """
        nodes, first, _ = self._ends
        return nodes, first.square()

    def ritz(self) -> tuple[Tensor, Tensor]:
        """Return Ritz values (p, m) ascending and the residual norms of their vectors (p, m)."""
        nodes, _, last = self._ends
        return nodes, (self.betas[:, -1:] * last).abs()

    @cached_property
    def _ends(self) -> tuple[Tensor, Tensor, Tensor]:
        """Eigenvalues of the tridiagonal matrices, first and last rows of their vectors (p, m)."""
        rules = []
        unit = unit_of(float(torch.maximum(self.alphas.abs(), self.betas.abs()).max()))
        for alpha, beta in zip(self.alphas / unit, self.betas[:, :-1] / unit, strict=True):
            # As a full matrix: divide and conquer is thrice as fast as QR on the tridiagonal one.
            nodes, vectors = eigh(torch.diag(alpha) + torch.diag(beta, -1))
            rules.append((nodes * unit, vectors[0].clone(), vectors[-1].clone()))
        nodes, first, last = (torch.stack(rows) for rows in zip(*rules, strict=True))
        return nodes, first, last

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (lanczos_picture(self),)


@carries_self_test
@full_precision()
def lanczos(
    operator: LinearOperator,
    *,
    num_steps: int,
    num_probes: int = 1,
    start: Tensor | None = None,
    leave_out: Tensor | None = None,
    reorthogonalise: bool = True,
    seed: int = 0,
    first_probe: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 10,
    progress: ProgressCallback | None = None,
) -> LanczosRun:
    """Run Lanczos from random or given starting vectors.

    Cost: `num_steps` products per starting vector, taken for all of them together, and memory for
    p·m·n numbers; with `reorthogonalise=False`, 3·p·n numbers.

    Args:
        operator: Symmetric operator A.
        num_steps: Steps m; a space that is exhausted earlier ends by itself.
        num_probes: Random starting vectors p, uniform on the sphere.
        start: Starting vectors (n,) or (n, p) instead of random ones.
        leave_out: Orthonormal vectors (n, r); the run stays in their orthogonal complement.
        reorthogonalise: Two passes against all earlier vectors at each step. Without, nothing is
            kept, for vectors too long to keep.
        seed: Fixes the starting vectors.
        first_probe: Number of the first of them, to go on where another run ended.
        checkpoint: Folder to save to and to resume from. A resumed run gives the same bits (on
            devices whose products do).
        checkpoint_every: Steps between saves.
        progress: Called after each step.

    Returns:
        The tridiagonal matrices.

    Raises:
        EigenscapeError: One of its kinds, for arguments that do not fit, products that are not
            finite, or a checkpoint of something else.

    Examples:
        >>> from eigenscape.operator import Dense
        >>> A = Dense(torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)))
        >>> nodes, weights = lanczos(A, num_steps=3).quadrature()
        >>> nodes.round(decimals=10).tolist()
        [[1.0, 2.0, 3.0]]
    """
    require_symmetric(operator, "lanczos(operator)")
    require_count(checkpoint_every, "lanczos(checkpoint_every=...)")
    V0 = _starting_rows(operator, start, num_probes, seed, first_probe, leave_out)
    left = operator.space.size - (0 if leave_out is None else leave_out.shape[1])
    m = require_count(num_steps, "lanczos(num_steps=...)")
    if reorthogonalise:  # more orthogonal vectors than dimensions there are not
        m = min(m, max(left, 1))
    scaled = InUnits(operator)
    run = _Run(scaled, V0, m, reorthogonalise, leave_out)
    saved = None
    if checkpoint is not None:
        key = {
            "what": "lanczos",
            "version": 2,
            "size": operator.space.size,
            "dtype": str(operator.dtype),
            "num_steps": m,
            "reorthogonalise": reorthogonalise,
            "start": crc(V0),
            "leave_out": 0 if leave_out is None else crc(leave_out),
        }
        saved = Checkpoint(checkpoint, key)
        for piece in saved.load():
            run.restore(piece)
        if run.step > 0:
            scaled.adopt(run.unit)
            require_same_product(scaled, V0[0], run.first_product)
    ticker = Ticker(progress, "lanczos", m, first=run.step)
    last_saved = run.step
    while run.step < m:
        run.advance()
        ticker.tick(run.step)
        if saved is not None and (run.step - last_saved >= checkpoint_every or run.step == m):
            saved.append(run.piece(last_saved))
            last_saved = run.step
    return LanczosRun(
        status=Status(True, f"{m} steps from {V0.shape[0]} starting vectors."),
        num_products=m * V0.shape[0] + scaled.looks,
        seed=seed,
        alphas=run.alphas * scaled.unit,
        betas=run.betas * scaled.unit,
        basis=run.basis[:, :m] if run.basis is not None else None,
        reorthogonalised=reorthogonalise,
    )


class _Run:
    """The state of p Krylov recurrences, all at the same step."""

    def __init__(
        self, operator: InUnits, V0: Tensor, m: int, keep: bool, leave_out: Tensor | None
    ) -> None:
        p, n = V0.shape
        self._operator, self._leave_out = operator, leave_out
        self.step = 0
        self.alphas = torch.zeros(p, m, dtype=torch.float64)
        self.betas = torch.zeros(p, m, dtype=torch.float64)
        self.basis = V0.new_empty(p, m + 1, n) if keep else None
        if self.basis is not None:
            self.basis[:, 0] = V0
        self._now, self._before = V0, torch.zeros_like(V0)
        self.first_product, self.unit = torch.zeros(256, dtype=torch.float64), 1.0

    def advance(self) -> None:
        """Take one step."""
        j, v = self.step, self._now
        # Contiguous, so that a resumed run adds in the same order, to the same bits.
        w = (self._operator @ v.T.contiguous()).T.contiguous()
        if not bool(torch.isfinite(w).all()):
            raise NonFiniteError(
                f"The product of step {j + 1} is NaN or infinite. Check the operator: "
                "`(A @ torch.ones(n)).isfinite().all()`."
            )
        if j == 0:
            self.first_product, self.unit = sums_of(w[0]), self._operator.unit
        alpha = _dots(v, w)
        w = w - alpha.to(w)[:, None] * v
        if j > 0:
            w = w - self.betas[:, j - 1].to(w)[:, None] * self._before
        w = self._orthogonal(w, j)
        beta = _dots(w, w).sqrt()
        # What is left of an exhausted Krylov space is rounding: end it with exact zeros, which
        # decouple all later steps from the starting vector.
        largest = torch.maximum(self.alphas.abs().amax(1), self.betas.amax(1)).to(alpha)
        scale = torch.maximum(alpha.abs(), largest) + beta
        ended = beta <= 10 * torch.finfo(w.dtype).eps * scale
        beta = torch.where(ended, 0.0, beta)
        inverse = torch.where(ended, 0.0, 1.0 / beta)
        self.alphas[:, j], self.betas[:, j] = alpha.cpu(), beta.cpu()
        self._before, self._now = v, inverse.to(w)[:, None] * w
        if self.basis is not None:
            self.basis[:, j + 1] = self._now
        self.step += 1

    def _orthogonal(self, w: Tensor, j: int) -> Tensor:
        """Remove what rounding brought back of earlier vectors.

        The two neighbours of the recurrence are already out, so one pass removes rounding alone; a
        second follows where a pass removed enough to leave rounding of its own behind (Daniel,
        Gragg, Kaufman, Stewart 1976: twice is enough).

        Returns:
            What is left of w.
        """
        for _ in range(2):
            before = w.norm(dim=1)
            if self._leave_out is not None:
                Q = self._leave_out.T
                w = w - dots(w, Q).to(w) @ Q
            if self.basis is not None:
                V = self.basis[:, : j + 1]
                for i in range(w.shape[0]):
                    w[i] -= (dots(w[i : i + 1], V[i]).to(w) @ V[i])[0]
            if bool((w.norm(dim=1) > 0.7 * before).all()):
                break
        return w

    def piece(self, since: int) -> dict[str, Tensor]:
        """Return what the steps from `since` on have added."""
        piece = {
            "steps": torch.tensor([since, self.step]),
            "alphas": self.alphas[:, since : self.step],
            "betas": self.betas[:, since : self.step],
            "now": self._now,
            "before": self._before,
            "first_product": self.first_product,
            "unit": torch.tensor(self.unit, dtype=torch.float64),
        }
        if self.basis is not None:
            piece["basis"] = self.basis[:, since + 1 : self.step + 1]
        return piece

    def restore(self, piece: dict[str, Tensor]) -> None:
        """Take the steps of a saved piece without computing them."""
        first, last = piece["steps"].tolist()
        self.alphas[:, first:last], self.betas[:, first:last] = piece["alphas"], piece["betas"]
        self.first_product, self.unit = piece["first_product"], float(piece["unit"])
        self._now = piece["now"].to(self._now)
        self._before = piece["before"].to(self._now)
        if self.basis is not None:
            self.basis[:, first + 1 : last + 1] = piece["basis"].to(self._now)
        self.step = int(last)


def _starting_rows(
    operator: LinearOperator,
    start: Tensor | None,
    num_probes: int,
    seed: int,
    first: int,
    leave_out: Tensor | None,
) -> Tensor:
    """Return p unit starting vectors as rows."""
    if start is None:
        require_count(num_probes, "lanczos(num_probes=...)")
        columns = draw_probes(operator, num_probes, seed=seed, kind="gaussian", first=first)
    else:
        columns = require_columns(start, operator.space.size, "lanczos(start=...)")
        columns = columns.to(operator.device, operator.dtype)
    rows = columns.T.double()
    if leave_out is not None:
        Q = leave_out.double()
        rows = rows - (rows @ Q) @ Q.T
    norms = rows.norm(dim=1, keepdim=True)
    if not bool((norms > 0).all()) or not bool(norms.isfinite().all()):
        raise InvalidArgumentError(
            "`lanczos` needs starting vectors that are finite and neither zero nor inside "
            "`leave_out`."
        )
    unit: Tensor = (rows / norms).to(operator.dtype)
    return unit


def _dots(a: Tensor, b: Tensor) -> Tensor:
    return (a.double() * b.double()).sum(1)
