"""Extreme eigenpairs of a symmetric operator by thick-restart Lanczos, with certificates.

A single starting vector sees only one direction of a repeated eigenvalue. So after convergence a
random vector joins the frontier, and the run ends only if it brings no eigenvalue that was missed.
"""

import dataclasses
import os

from torch import Tensor

from eigenscape.checkpoint import Checkpoint
from eigenscape.errors import (
    ShapeError,
    require_choice,
    require_count,
    require_positive,
)
from eigenscape.files import crc
from eigenscape.linalg._basis import Basis, Place, on_device
from eigenscape.linalg._products import require_symmetric
from eigenscape.linalg._thick_restart import ThickRestart
from eigenscape.linalg.pairs import WHICH, certify
from eigenscape.linalg.probes import draw_probes
from eigenscape.linear_operator import LinearOperator
from eigenscape.pairs import EigenPairs
from eigenscape.precision import full_precision
from eigenscape.progress import ProgressCallback, Ticker
from eigenscape.records import Status

_DEVICE_BYTES = 8 * 2**30
_OFFLOADED_BYTES = 64 * 2**30
_SMALL = 1024  # up to this size the basis may span the whole space
_TINY = 64  # up to this size it does
_LEAST_LOOK = 2  # a random vector says nothing before its own product was multiplied too
_MOST_BLOCK = 8


@full_precision()
def eigsh(
    operator: LinearOperator,
    *,
    num_pairs: int = 6,
    which: str = "largest",
    tolerance: float = 1e-6,
    max_products: int | None = None,
    block_size: int | None = None,
    max_basis: int | None = None,
    basis: Place = None,
    start: Tensor | None = None,
    search: LinearOperator | None = None,
    num_check: int = 8,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: ProgressCallback | None = None,
) -> EigenPairs:
    """Find the eigenpairs at either or both ends of the spectrum.

    Cost: about 3 products per pair for well separated eigenvalues, more for clusters; then 2 to
    `num_check` products that look for missed copies, and one per returned pair for its
    certificate. Memory: `max_basis` vectors where `basis` says, a few on the device, and in the end
    the wanted ones, there and in float64.

    Repeated eigenvalues that stand out of the rest are found with their multiplicity; inside a bulk
    of comparable size copies may be missed, unless `block_size` is at least the multiplicity. See
    `subspace_iteration(degree=...)` for those.

    Args:
        operator: Symmetric operator A.
        num_pairs: How many pairs k.
        which: "largest" or "smallest" (by sign), "magnitude", or "both": k from each end.
        tolerance: Asked of ‖Av − λv‖ / |λ|; for λ near zero, rounding of ‖A‖ is enough.
        max_products: Products to spend at most, certificates included; the status says if they
            were not enough.
        block_size: Vectors multiplied per step. More than 1 shares passes over the data and
            resolves clusters, at more products. By default one for every 15 pairs, 1 to 8: where
            many pairs are wanted, what it adds is little (18 % for 120 pairs in blocks of 8, which
            took 0.6 of the time).
        max_basis: Vectors to keep before a restart; by default four per pair and some, as far as
            they fit 8 GiB, or 64 GiB off the device.
        basis: Where to keep them: "device" (the default), "host", for memory of the CPU, or a
            folder, for a file in it that is never left behind. Off the device they pass through it
            256 MiB at a time; answers are the same to rounding.
        start: Vectors (n,) or (n, q) to start from. Of a nearby operator take the sum of its
            vectors, `pairs.vectors.sum(1)`; where it differs by less than about 1e-5 of its size,
            all of them, which are then multiplied and improved one by one.
        search: A cheaper operator near this one, or near a multiple of it, such as that of the
            `sharpest_samples`. The iteration is run with it, and only certificates are made with
            `operator`: what separates the two is then in the residuals. It ends at a tenth of
            the tolerance.
        num_check: Most products spent on one look for copies that were missed; 0 for none.
        seed: Fixes the starting vectors.
        checkpoint: Folder to save to at every restart, and to resume from.
        progress: Called after each step.

    Returns:
        The pairs with a residual each from a real product. Products of both operators are counted.

    Raises:
        EigenscapeError: One of its kinds, for arguments that do not fit or products that are not
            finite.

    Examples:
        >>> import torch
        >>> from eigenscape.operators import Dense
        >>> A = Dense(torch.diag(torch.arange(1.0, 51.0, dtype=torch.float64)))
        >>> eigsh(A, num_pairs=2, which="both").values.round(decimals=8).tolist()
        [50.0, 49.0, 2.0, 1.0]
    """
    require_symmetric(operator, "eigsh(operator)")
    n = operator.space.size
    searched = operator if search is None else _require_size(search, n)
    # The last digits of a search cost little, and leave room for what separates the two.
    aim = tolerance if search is None else 0.1 * tolerance
    require_choice(which, WHICH, "eigsh(which=...)")
    most = n // 2 if which == "both" and n > 1 else n
    k = require_count(num_pairs, "eigsh(num_pairs=...)", at_most=most)
    require_positive(tolerance, "eigsh(tolerance=...)")
    wanted = 2 * k if which == "both" else k
    block_size = max(1, min(_MOST_BLOCK, wanted // 15)) if block_size is None else block_size
    b = min(require_count(block_size, "eigsh(block_size=...)"), n)
    require_count(num_check, "eigsh(num_check=...)", at_least=0)
    # Tiny matrices are gone through whole: certain, and no more than n products.
    look = (num_check, _LEAST_LOOK) if n > _TINY or num_check == 0 else (n, n)
    capacity = _capacity(searched, wanted, b, max_basis, basis)
    rows = _starting_rows(searched, start, b, seed)
    # A basis that holds the wanted pairs, and a certificate for each.
    least = wanted + max(wanted + b, len(rows))
    limit = 100 * wanted + 500 + least if max_products is None else max_products
    require_count(limit, "eigsh(max_products=...)", at_least=least)
    with Basis(searched, capacity, basis) as kept:
        solver = ThickRestart(searched, k, which, aim, kept, b, seed, rows)
        saved = None
        if checkpoint is not None:
            key = {
                "what": "eigsh",
                "size": n,
                "dtype": str(searched.dtype),
                "num_pairs": k,
                "which": which,
                "capacity": capacity,
                "block_size": b,
                "tolerance": aim,
                "num_check": num_check,
                "seed": seed,
                "start": crc(solver.F),
            }
            saved = Checkpoint(checkpoint, key)
            for piece in saved.load()[-1:]:
                solver.restore(piece)
        ticker = Ticker(progress, "eigsh", limit, first=solver.num_products)
        _iterate(solver, limit - wanted - b, look, saved, ticker)
        solver.refresh()
        vectors = solver.wanted_vectors()
    pairs = certify(
        operator,
        vectors.to(operator.device),
        which=which,
        tolerance=tolerance,
        norm=solver.norm if search is None else 0.0,  # a multiple has another
        num_products=solver.num_products,
        seed=seed,
    )
    status = _status(pairs, solver, limit, is_other=search is not None)
    pairs = dataclasses.replace(pairs, status=status)
    pairs.status.warn()
    return pairs


def _status(pairs: EigenPairs, solver: ThickRestart, limit: int, *, is_other: bool) -> Status:
    """Say what kept pairs from their tolerance: too few products, or products too rough."""
    if pairs.status:
        return pairs.status
    worst = f"the largest residual is {float(pairs.residuals.max()):.1e}"
    if solver.has_converged() and is_other:
        return Status(
            False,
            f"The iteration with `search` converged, but {worst} in products of the operator, more "
            "than `tolerance` allows. Take one that is nearer to it, or a larger `tolerance`.",
        )
    if solver.has_converged():
        return Status(
            False,
            f"The iteration converged, but {worst} in real products: their own rounding is that "
            "large (or the operator is random). Use a float64 model, or a larger `tolerance`.",
        )
    return Status(
        False,
        f"Not converged after {solver.num_products} products, {worst}. Raise `max_products` (now "
        f"{limit}) or `max_basis`, or accept a larger `tolerance`.",
    )


def _iterate(
    solver: ThickRestart,
    limit: int,
    look: tuple[int, int],
    saved: Checkpoint | None,
    ticker: Ticker,
) -> None:
    """Step until the wanted pairs have converged and a random look found no other."""
    most, least = look
    looked: int | None = None  # products spent on the current look, None while converging
    seen = None
    while solver.num_products <= limit:
        if looked is None and solver.has_converged():
            if most == 0 or not solver.add_random():
                return
            looked, seen = 0, solver.wanted_values()
        if looked is not None and (looked >= most or (looked >= least and not solver.may_miss())):
            solver.refresh()
            if solver.has_converged() and solver.same_values(seen):
                return
            looked = None  # something new turned up: converge again, then look again
            continue
        if solver.F.shape[0] == 0 and not solver.add_random():
            return  # the basis spans the whole space
        solver.step(probing=looked is not None)
        if looked is not None:
            looked += 1
        if solver.is_full():
            solver.restart()
            if saved is not None and looked is None:
                saved.replace(solver.piece())
        ticker.tick(solver.num_products)


def _require_size(search: LinearOperator, n: int) -> LinearOperator:
    if require_symmetric(search, "eigsh(search=...)") != n:
        raise ShapeError(
            f"`eigsh(search=...)` must have the size of the operator, {n}; got {search.shape[0]}."
        )
    return search


def _starting_rows(operator: LinearOperator, start: Tensor | None, b: int, seed: int) -> Tensor:
    if start is None:
        return draw_probes(operator, b, seed=seed, kind="gaussian").T
    n = operator.space.size
    columns = start[:, None] if start.ndim == 1 else start
    if columns.ndim != 2 or columns.shape[0] != n or not 0 < columns.shape[1] <= n:
        raise ShapeError(
            f"`eigsh(start=...)` needs shape ({n},) or ({n}, q) with q from 1 to {n}; got "
            f"{tuple(start.shape)}."
        )
    return columns.to(operator.device, operator.dtype).T


def _capacity(
    operator: LinearOperator, wanted: int, b: int, given: int | None, place: Place
) -> int:
    """Return how many vectors to keep before a restart."""
    n = operator.space.size
    least = min(n, wanted + 2 * b + 2)
    if given is not None:
        require_count(given, "eigsh(max_basis=...)", at_least=least)
        return min(given, n)
    if n <= _SMALL:  # the whole space is cheap, and then hard ends of a spectrum are easy
        return n
    roomy = max(4 * wanted + 40, 2 * wanted + 8 * b)
    budget = _DEVICE_BYTES if on_device(place) else _OFFLOADED_BYTES
    affordable = budget // max(1, n * operator.dtype.itemsize)
    return min(n, max(least, min(roomy, affordable)))
