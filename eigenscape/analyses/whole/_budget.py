"""How much an analysis may spend, and on which of its parts."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from eigenscape.analyses.whole.matrix_spectrum import edge_products, eigsh_products
from eigenscape.errors import (
    EmptySelectionError,
    UnknownNameError,
    WrongTypeError,
    near_matches,
    require_choice,
    require_count,
)
from eigenscape.records import storable

POINT, LAYERS, BLOCKS, OTHERS = "loss and gradient", "layers", "block norms", "other samples"
MATRICES = ("Hessian", "Gauss-Newton", "residual")
STAGES = (POINT, *MATRICES, LAYERS, BLOCKS)
_FIRST_LOOK = (POINT, "Hessian")


@storable
@dataclass(frozen=True)
class Budget:
    """How much to spend.

    Attributes:
        name: "first-look", "quick", "standard" or "thorough", or a name of your own.
        num_pairs: Largest eigenpairs of each matrix. C + 4 are taken for C classes where that is
            more, but no more than `most_pairs` for the classes' sake.
        num_smallest: Smallest eigenpairs.
        tolerance: Bound on residuals, as a fraction of the eigenvalue.
        num_steps: Lanczos steps per probe of a density.
        num_probes: Probes of a density.
        num_layer_pairs: Largest eigenpairs of each layer's block.
        num_layer_probes: Probes for each layer's trace, norm and Kronecker error.
        num_block_probes: Probes for the map of block norms.
        most_pairs: The most pairs that are taken because there are many classes.
        max_products: The most products for one end of a spectrum; None leaves it to `eigsh`.
        sample_seconds: If given, only so many samples are used that all products take about so
            long on an ordinary machine, and they are named; else all.
    """

    name: str
    num_pairs: int
    num_smallest: int
    tolerance: float
    num_steps: int
    num_probes: int
    num_layer_pairs: int
    num_layer_probes: int
    num_block_probes: int
    most_pairs: int = 64
    max_products: int | None = None
    sample_seconds: float | None = None

    @property
    def stages(self) -> tuple[str, ...]:
        """The parts that are computed if nothing else is asked for."""
        return STAGES if self.sample_seconds is None else _FIRST_LOOK


BUDGETS = {
    "first-look": Budget(
        "first-look", 2, 0, 1e-1, 2, 4, 1, 2, 2, most_pairs=2, max_products=14, sample_seconds=20.0
    ),
    "quick": Budget("quick", 8, 1, 1e-2, 40, 2, 4, 4, 4, most_pairs=24),
    "standard": Budget("standard", 20, 2, 1e-3, 100, 6, 10, 10, 16, most_pairs=64),
    "thorough": Budget("thorough", 40, 4, 1e-5, 160, 16, 20, 40, 40, most_pairs=256),
}


def as_budget(budget: str | Budget, *, num_pairs: int | None = None) -> Budget:
    """Return the budget of that name, or the budget itself, with another number of pairs.

    Args:
        budget: "first-look", "quick", "standard", "thorough", or a `Budget`.
        num_pairs: Largest eigenpairs of each matrix, exactly so many.

    Returns:
        The budget.

    Raises:
        WrongTypeError: If it is neither.
        InvalidArgumentError: If there is no such budget, or the number is out of range.
    """
    if not isinstance(budget, str | Budget):
        raise WrongTypeError(
            f"`analyze(budget=...)` must be one of {', '.join(BUDGETS)} or a `Budget`; got "
            f"{type(budget).__name__}."
        )
    if isinstance(budget, str):
        budget = BUDGETS[require_choice(budget, tuple(BUDGETS), "analyze(budget=...)")]
    if num_pairs is None:
        return budget
    require_count(num_pairs, "analyze(num_pairs=...)")
    most = None if budget.max_products is None else max(budget.max_products, 10 * num_pairs)
    return dataclasses.replace(budget, num_pairs=num_pairs, most_pairs=0, max_products=most)


def as_stages(stages: str | Iterable[str] | None, budget: Budget) -> tuple[str, ...]:
    """Return the parts to compute, in their order.

    Args:
        stages: Names such as "Hessian", "gauss-newton" or "block norms"; None for those of the
            budget. Loss and gradient are always among them.
        budget: The budget.

    Returns:
        The names as a plan writes them.

    Raises:
        WrongTypeError: If they are no names.
        UnknownNameError: If there is no part of that name.
        EmptySelectionError: If there is no name.
    """
    if stages is None:
        return budget.stages
    names = [stages] if isinstance(stages, str) else list(stages)
    if not names:
        raise EmptySelectionError(
            "`analyze(stages=...)` must name at least one part; got none. Leave it out for all: "
            f"{', '.join(STAGES)}."
        )
    every = STAGES if budget.sample_seconds is None else (*STAGES, OTHERS)
    known = {_plain(name): name for name in every}
    for name in names:
        if not isinstance(name, str):
            raise WrongTypeError(
                f"`analyze(stages=...)` must be names of parts; got {type(name).__name__}."
            )
        if _plain(name) not in known:
            raise UnknownNameError(
                f"`analyze(stages=...)` must name parts of the analysis; got {name!r}. "
                f"{near_matches(_plain(name), known)}"
            )
    wanted = {POINT, *(known[_plain(name)] for name in names)}
    return tuple(name for name in known.values() if name in wanted)


def _plain(name: str) -> str:
    """Write a name as a command line does: small letters and hyphens."""
    return name.strip().lower().replace(" ", "-").replace("_", "-")


def num_pairs(matrix: str, budget: Budget, num_classes: int | None) -> tuple[int, int]:
    """Return how many of a matrix's largest and smallest pairs to find.

    Args:
        matrix: "Hessian", "Gauss-Newton" or "residual".
        budget: The budget.
        num_classes: C, or None.

    Returns:
        Of H and G some largest pairs beyond the expected C outliers, as far as the budget goes.
        The smallest eigenvalue of G is nearly always 0; both ends of H − G are edges of a bulk,
        where more pairs say little.
    """
    ends = budget.num_smallest
    if matrix == "residual":
        return ends, ends
    for_classes = 0 if num_classes is None else min(num_classes + 4, budget.most_pairs)
    return max(budget.num_pairs, for_classes), 0 if matrix == "Gauss-Newton" else ends


def capped_pairs(budget: Budget, num_classes: int | None) -> str | None:
    """Say that fewer pairs are taken than there are classes, if so."""
    count, _ = num_pairs("Hessian", budget, num_classes)
    if num_classes is None or count >= num_classes + 4:
        return None
    return (
        f"{count} of the largest eigenpairs are taken, not {num_classes + 4}: with "
        f"{num_classes} classes there may be more outliers than pairs. `num_pairs=` takes more."
    )


def spectrum_products(name: str, budget: Budget, pairs: tuple[int, int], size: int) -> int:
    """Predict the products for both ends of a spectrum and its density.

    Args:
        name: The matrix.
        budget: The budget.
        pairs: How many largest and smallest pairs are looked for.
        size: How many rows the matrix has.

    Returns:
        The number; eigenvalues that lie close together take more.
    """
    largest, smallest = pairs
    top = edge_products(largest) if name == "residual" else eigsh_products(largest)
    ends, most = top + edge_products(smallest), budget.max_products
    return (ends if most is None else min(ends, 2 * most)) + density_products(budget, size)


def density_products(budget: Budget, size: int) -> int:
    """Return the products for the density of a matrix with so many rows."""
    return min(budget.num_steps, size) * budget.num_probes
