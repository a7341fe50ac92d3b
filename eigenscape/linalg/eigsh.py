"""Extreme eigenpairs of a symmetric operator by thick-restart Lanczos, with certificates.

A single starting vector sees only one direction of a repeated eigenvalue. So after convergence a
random vector joins the frontier, and the run ends only if it brings no eigenvalue that was missed.
The starting vectors also show, at no cost, how many copies there are: on an eigenspace of g
dimensions a random vector has g times the squared length that it has on one vector. Where they have
more on the pairs found than that many pairs explain, whole blocks go on until none can be missing.
"""

import dataclasses
import math
import os

import torch
from torch import Tensor

from eigenscape.device import full_precision
from eigenscape.errors import ShapeError, require_choice, require_count, require_positive
from eigenscape.linalg._krylov import Basis, Place, on_device
from eigenscape.linalg._products import InUnits, carries_self_test, require_symmetric
from eigenscape.linalg._thick_restart import ThickRestart
from eigenscape.linalg.lanczos import lanczos
from eigenscape.linalg.pairs import WHICH, certify, require_columns
from eigenscape.linalg.probes import draw_probes
from eigenscape.operator import LinearOperator
from eigenscape.records import Checkpoint, EigenPairs, ProgressCallback, Status, Ticker, crc

_DEVICE_BYTES = 8 * 2**30
_OFFLOADED_BYTES = 64 * 2**30
_SMALL = 1024  # up to this size the basis may span the whole space
_TINY = 64  # up to this size it does
_LEAST_LOOK = 2  # a random vector says nothing before its own product was multiplied too
_MOST_BLOCK = 8
_WIDEST = 32
_CHANCE = 1e-3  # of eigenvalues that are not repeated to look as if they were
# A look costs at least 8 products, and up to 32 if so many can be sure of more pairs, but no more
# than a third of what the pairs have cost; where values do repeat, as much as half of that.
_LOOK, _LONG_LOOK = 8, 32
_MISS = 0.01


@carries_self_test
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
    num_check: int | None = None,
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
    of comparable size single copies may be missed, and the status says how sure it is of none. A
    `block_size` of at least the multiplicity finds them, as does `subspace_iteration(degree=...)`.

    Args:
        operator: Symmetric operator A.
        num_pairs: How many pairs k.
        which: "largest" or "smallest" (by sign), "magnitude", or "both": k from each end.
        tolerance: Bound on ‖Av − λv‖ / |λ|; for λ near zero, rounding of ‖A‖ is enough.
        max_products: Products to spend at most, certificates included; the status says if they
            were not enough.
        block_size: Vectors multiplied per step. More than 1 shares passes over the data and
            resolves clusters, at more products. By default one for every 15 pairs, 1 to 8: where
            many pairs are wanted, what it adds is little (18 % for 120 pairs in blocks of 8, which
            took 0.6 of the time); more where the pairs show that eigenvalues are repeated.
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
            the tolerance. A few more products with `operator` look for what only it has.
        num_check: Most products spent on one look for copies that were missed; 0 for none. By
            default 8 to 32, as long as a longer look can be 99 % sure of more pairs; more where
            the pairs show that copies are missing.
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
        >>> from eigenscape.operator import Dense
        >>> A = Dense(torch.diag(torch.arange(1.0, 51.0, dtype=torch.float64)))
        >>> eigsh(A, num_pairs=2, which="both").values.round(decimals=8).tolist()
        [50.0, 49.0, 2.0, 1.0]
    """
    require_symmetric(operator, "eigsh(operator)")
    n = operator.space.size
    searched = InUnits(operator if search is None else _require_size(search, n))
    # The last digits of a search cost little, and leave room for what separates the two.
    aim = tolerance if search is None else 0.1 * tolerance
    require_choice(which, WHICH, "eigsh(which=...)")
    most = n // 2 if which == "both" and n > 1 else n
    k = require_count(num_pairs, "eigsh(num_pairs=...)", at_most=most)
    require_positive(tolerance, "eigsh(tolerance=...)")
    wanted = 2 * k if which == "both" else k
    block_size = max(1, min(_MOST_BLOCK, wanted // 15)) if block_size is None else block_size
    b = min(require_count(block_size, "eigsh(block_size=...)"), n)
    if num_check is not None:
        require_count(num_check, "eigsh(num_check=...)", at_least=0)
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
                "version": 2,
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
        missed_note = _iterate(solver, limit - wanted - b, num_check, saved, ticker, start is None)
        solver.refresh()
        vectors = solver.wanted_vectors()
    pairs = certify(
        operator,
        vectors.to(operator.device),
        which=which,
        tolerance=tolerance,
        norm=solver.norm * searched.unit if search is None else 0.0,  # a multiple has another
        num_products=solver.num_products + searched.looks,
        seed=seed,
    )
    status = _status(pairs, solver, limit, missed_note, is_other=search is not None)
    pairs = dataclasses.replace(pairs, status=status)
    if search is not None and num_check != 0 and n > wanted:
        pairs = _look_with(operator, pairs, num_check or _LOOK, seed)
    pairs.status.warn()
    return pairs


def _look_with(
    operator: LinearOperator, pairs: EigenPairs, num_check: int, seed: int
) -> EigenPairs:
    """Look for pairs that the operator has and the one that was searched has not."""
    run = lanczos(operator, num_steps=num_check, leave_out=pairs.vectors, seed=seed)
    values = run.ritz()[0][0]
    cost = pairs.num_products + run.num_products
    slack = 10 * max(pairs.tolerance, operator.noise) * float(pairs.values.abs().max())
    k = len(pairs.values) // 2 if pairs.which == "both" else len(pairs.values)
    if pairs.which == "magnitude":
        values = values[values.abs().argmax()][None]
        beyond = float(values[0].abs() - pairs.values.abs().min())
    else:
        above, below = values.max() - pairs.values[:k].min(), pairs.values[-k:].max() - values.min()
        beyond = {
            "largest": float(above),
            "smallest": float(below),
            "both": float(torch.maximum(above, below)),
        }[pairs.which]
    if beyond <= slack:
        return dataclasses.replace(pairs, num_products=cost)
    status = Status(
        False,
        f"`operator` has an eigenvalue that `search` lacks: {num_check} products with it went "
        f"beyond the pairs found by {beyond:.1e} or more. Leave `search=` out, or take one that is "
        "nearer to the operator.",
    )
    return dataclasses.replace(pairs, num_products=cost, status=status)


def _status(
    pairs: EigenPairs, solver: ThickRestart, limit: int, missed_note: str, *, is_other: bool
) -> Status:
    """Say what kept pairs from their tolerance: too few products, or products too rough."""
    if pairs.status:
        return Status(True, f"{pairs.status.text} {missed_note}")
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
    num_check: int | None,
    saved: Checkpoint | None,
    ticker: Ticker,
    is_random: bool,
) -> str:
    """Step until the wanted pairs have converged and a random look found no other.

    Returns:
        What is known about pairs that were missed.
    """
    # Tiny matrices are gone through whole: certain, and no more than n products.
    least = solver.size if solver.size <= _TINY else _LEAST_LOOK
    most = num_check or 0
    looked: int | None = None  # products spent on the current look, None while converging
    values_before = None
    thorough = False  # copies are missing: look in blocks until no pair can be
    while solver.num_products <= limit:
        if looked is None and solver.has_converged():
            if num_check == 0:
                return "Missed copies of eigenvalues were not looked for: `num_check=0`."
            if num_check is None:
                spent = solver.num_products
                long = spent // 2 if solver.repeats else min(_LONG_LOOK, spent // 3)
                most = max(_LOOK, least, long)
            thorough = is_random and _lacks_copies(solver)
            if not solver.add_random():
                return ""
            looked, values_before = 0, solver.wanted_values()
        if looked is not None and looked >= least:
            if thorough:
                ends = looked >= 3 * solver.block_size and not solver.may_miss()
                if ends and 2 * looked < solver.num_products:  # are they still missing?
                    ends = solver.copies_seen()[1] >= _CHANCE
            else:  # a longer look that would exclude no more is not worth its products
                sure = _sure(solver, looked, looked)
                useless = looked >= _LOOK and sure >= _sure(solver, looked, most)
                ends = looked >= most or useless or sure == len(solver.wanted_values())
            if ends:
                solver.refresh()
                if solver.has_converged() and solver.same_values(values_before):
                    return _known(solver, looked)
                # Something new turned up: converge again, then look again, and longer.
                looked, solver.repeats = None, True
                continue
        if solver.F.shape[0] == 0 and not solver.add_random():
            return ""  # the basis spans the whole space
        before = solver.num_products
        # The second half of a long look follows what the first half met.
        probing = (
            looked is not None and not thorough and not (solver.repeats and 2 * looked >= most)
        )
        solver.step(probing=probing)
        if looked is not None:
            looked += solver.num_products - before
        if solver.is_full():
            solver.restart()
            if saved is not None and looked is None:
                saved.replace(solver.piece())
        ticker.tick(solver.num_products)
    return ""


def _sure(solver: ThickRestart, looked: int, planned: int) -> int:
    """Return how many of the pairs have none beyond them that was missed, to a small chance."""
    return int((solver.chances_to_miss(looked, planned) <= _MISS).sum())


def _known(solver: ThickRestart, looked: int) -> str:
    sure, all_of_them = _sure(solver, looked, looked), len(solver.wanted_values())
    if sure == all_of_them:
        return f"With a chance of {_MISS:.0%} at most another pair that belongs here was missed."
    return (
        f"A look of {looked} products met no pair that was missed. It excludes copies of {sure} of "
        f"the {all_of_them} pairs, but for a chance of {_MISS:.0%}; the others have neighbours too "
        "near for that: give `num_check=` or `block_size=`."
    )


def _lacks_copies(solver: ThickRestart) -> bool:
    """Say whether the start saw more copies than were found, and widen the block to find them."""
    copies, chance = solver.copies_seen()
    if chance >= _CHANCE:
        return False
    each = copies / len(solver.wanted_values())
    solver.widen(min(_WIDEST, math.ceil(each) + 2))
    return True


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
    columns = require_columns(start, n, "eigsh(start=...)", most=n)
    return columns.to(operator.device, operator.dtype).T


def _capacity(
    operator: LinearOperator, wanted: int, b: int, max_basis: int | None, basis: Place
) -> int:
    """Return how many vectors to keep before a restart."""
    n = operator.space.size
    least = min(n, wanted + 2 * b + 2)
    if max_basis is not None:
        require_count(max_basis, "eigsh(max_basis=...)", at_least=least)
        return min(max_basis, n)
    if n <= _SMALL:  # the whole space is cheap, and then hard ends of a spectrum are easy
        return n
    roomy = max(4 * wanted + 40, 2 * wanted + 8 * b)
    budget = _DEVICE_BYTES if on_device(basis) else _OFFLOADED_BYTES
    affordable = budget // max(1, n * operator.dtype.itemsize)
    return min(n, max(least, min(roomy, affordable)))
