"""Do the diagonal blocks of a matrix have the same spectrum? Distances between all pairs of them.

Both distances are taken on the axis log(|λ| + ε): Wasserstein-1 in natural logarithms, which tells
by what factor eigenvalues differ, and the Jensen-Shannon distance, the root of the divergence in
bits, which is 0 for equal spectra and 1 for spectra without overlap.
"""

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.analyses import spectral_distance
from eigenscape.device import full_precision
from eigenscape.errors import (
    InvalidArgumentError,
    require_count,
    require_positive,
)
from eigenscape.linalg import (
    Kernel,
    SpectralDensity,
    require_partition,
    require_symmetric,
    spectral_density,
)
from eigenscape.operator import LinearOperator, require_operator
from eigenscape.records import Columns, Picture, Record, Status
from eigenscape.space import Partition
from eigenscape.structure.blocks._pictures import spectra_picture

_EPSILON = 1e-6  # of the largest |λ|: below it, eigenvalues count as zero
_DENSE = 4096  # blocks up to this size may be multiplied out
_POINTS = 1024
_COUNTED = re.compile(r"[a-z]?\d+")  # "0" of "blocks.0.qkv", "b1" of "b1-qkv", not "fc1"


@dataclass(frozen=True, eq=False)
class BlockSpectra(Record):
    """Spectra of the diagonal blocks, and how far apart they are.

    Attributes:
        names: Names of the blocks.
        kinds: Kind of each block.
        spectra: Density of each block's eigenvalues on the axis log(|λ| + ε).
        exact: Whether each one holds all eigenvalues of its block.
        epsilon: ε, the same for all.
        wasserstein: Wasserstein-1 distances (B, B), float64.
        jensen_shannon: Jensen-Shannon distances (B, B), float64.
        wasserstein_floor: For each block (B,), the distance between the two halves of its own
            probes; 0 where exact. Distances below the floors of their blocks mean nothing.
        jensen_shannon_floor: The same of the other distance.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    spectra: tuple[SpectralDensity, ...]
    exact: tuple[bool, ...]
    epsilon: float
    wasserstein: Tensor
    jensen_shannon: Tensor
    wasserstein_floor: Tensor
    jensen_shannon_floor: Tensor

    def columns(self) -> Columns:
        """Return one row for each pair of kinds: the mean over pairs of different blocks."""
        kinds = list(dict.fromkeys(self.kinds))
        rows = []
        for i, first in enumerate(kinds):
            for second in kinds[i:]:
                pairs = [
                    (a, b)
                    for a in range(len(self.names))
                    for b in range(a + 1, len(self.names))
                    if {self.kinds[a], self.kinds[b]} == {first, second}
                ]
                if pairs:
                    a, b = torch.tensor(pairs).T
                    distances = self.wasserstein[a, b].mean(), self.jensen_shannon[a, b].mean()
                    rows.append((first, second, len(pairs), *map(float, distances)))
        names = ("kind", "other kind", "pairs", "Wasserstein", "Jensen-Shannon")
        return {name: [row[i] for row in rows] for i, name in enumerate(names)}

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (spectra_picture(self),)


@full_precision()
def block_spectra(
    operator: LinearOperator,
    partition: Partition,
    *,
    kinds: Sequence[str] | None = None,
    num_steps: int = 48,
    num_probes: int = 4,
    epsilon: float | None = None,
    width: float = 0.3,
    seed: int = 0,
) -> BlockSpectra:
    """Find the spectrum of each diagonal block, and compare all of them.

    Blocks whose spectra differ by large factors are what one learning rate cannot serve. A block is
    multiplied out where that costs no more products than Lanczos quadrature.

    Cost: for each block its size or `num_steps · num_probes` products, whichever is less.

    Args:
        operator: Symmetric operator A.
        partition: Blocks of its space.
        kinds: A kind for each block, such as "query" or "mlp". By default its name without the
            parts that count: "blocks.0.attn.qkv" and "blocks.1.attn.qkv" are "blocks.attn.qkv".
        num_steps: Lanczos steps per probe.
        num_probes: Probes, 2 or more.
        epsilon: ε; by default 1e-6 of the largest |λ| of all blocks, or where quadrature was used
            the distance of its nodes at 0, if larger.
        width: Width of the kernel under the Jensen-Shannon distance, in natural logarithms.
        seed: Fixes the probes.

    Returns:
        Spectra and distances.

    Raises:
        WrongTypeError: If the operator is none.
        NotSymmetricError: If the operator is not symmetric.
        ShapeError: If the partition divides another space.
        InvalidArgumentError: If a number is out of range, or there is not one kind per block.

    Examples:
        Eigenvalues e times as large are 1 away.

        >>> from eigenscape.operator import Dense
        >>> from eigenscape.space.param_space import ParamSpace
        >>> space = ParamSpace({"a": (2,), "b": (2,)})
        >>> values = torch.tensor([1.0, 2.0, math.e, 2 * math.e], dtype=torch.float64)
        >>> A = Dense(torch.diag(values), space=space)
        >>> found = block_spectra(A, Partition.by_tensor(space), epsilon=1e-12)
        >>> round(float(found.wasserstein[0, 1]), 6), found.exact
        (1.0, (True, True))

    References:
        Zhang et al., "Why transformers need Adam: a Hessian perspective", 2024.
    """
    require_operator(operator, "block_spectra(operator)")
    require_symmetric(operator, "block_spectra(operator)")
    require_partition(partition, operator.space, "block_spectra(partition)")
    require_count(num_steps, "block_spectra(num_steps=...)", at_least=2)
    require_count(num_probes, "block_spectra(num_probes=...)", at_least=2)
    require_positive(width, "block_spectra(width=...)")
    kinds = tuple(map(_kind, partition.names)) if kinds is None else tuple(kinds)
    if len(kinds) != len(partition):
        raise InvalidArgumentError(
            f"`block_spectra(kinds=...)` needs one kind for each of {len(partition)} blocks; got "
            f"{len(kinds)}."
        )
    cost = num_steps * num_probes
    exact = tuple(size <= min(cost, _DENSE) for size in partition.sizes)
    densities = [
        _all(operator[block], seed)
        if is_exact
        else spectral_density(
            operator[block], num_steps=num_steps, num_probes=num_probes, seed=seed
        )
        for block, is_exact in zip(partition, exact, strict=True)
    ]
    if epsilon is None:
        epsilon = _resolution(densities, exact)
    require_positive(epsilon, "block_spectra(epsilon=...)")
    drawn = [
        density.redraw(scale="log", epsilon=epsilon, kernel=Kernel(width)) for density in densities
    ]
    halves = [_halves(density) for density in drawn]
    floors = torch.tensor(
        [
            (0.0, 0.0) if is_exact else (spectral_distance(*half), _jensen_shannon(half)[0, 1])
            for half, is_exact in zip(halves, exact, strict=True)
        ]
    ).double()
    return BlockSpectra(
        status=Status(True, f"{sum(exact)} of {len(exact)} spectra are exact; ε = {epsilon:.2e}."),
        num_products=sum(density.num_products for density in densities),
        seed=seed,
        names=partition.names,
        kinds=kinds,
        spectra=tuple(drawn),
        exact=exact,
        epsilon=epsilon,
        wasserstein=_wasserstein(drawn),
        jensen_shannon=_jensen_shannon(drawn),
        wasserstein_floor=floors[:, 0],
        jensen_shannon_floor=floors[:, 1],
    )


def _kind(name: str) -> str:
    words = [word for word in re.split(r"[.-]", name) if not _COUNTED.fullmatch(word)]
    return ".".join(words) or name


def _all(block: LinearOperator, seed: int) -> SpectralDensity:
    """Return all eigenvalues as a density; `redraw` gives it a curve."""
    matrix = block.to_dense().double()
    values = torch.linalg.eigvalsh((matrix + matrix.T) / 2).cpu()
    n, empty = len(values), torch.zeros(0, dtype=torch.float64)
    return SpectralDensity(
        status=Status(True, f"All {n} eigenvalues."),
        num_products=n,
        seed=seed,
        grid=empty,
        density=empty,
        stderr=empty,
        nodes=values[None],
        weights=torch.full((1, n), 1 / n, dtype=torch.float64),
        spikes=empty,
        size=n,
        sigma=0.0,
        scale="linear",
        epsilon=0.0,
        edges=(float(values[0]), float(values[-1])),
        unit=torch.finfo(block.dtype).eps,
    )


def _resolution(densities: Sequence[SpectralDensity], exact: Sequence[bool]) -> float:
    """Return the ε below which eigenvalues cannot, or need not, be told apart."""
    top = max(max(map(abs, density.edges)) for density in densities)
    spacing = [
        # Gauss nodes near an end of their range, like those of Chebyshev.
        math.pi**2 * (density.edges[1] - density.edges[0]) / (4 * density.nodes.shape[1] ** 2)
        for density, is_exact in zip(densities, exact, strict=True)
        if not is_exact
    ]
    return max([_EPSILON * top, *spacing]) or 1.0  # of zeros alone all are equal


def _halves(density: SpectralDensity) -> list[SpectralDensity]:
    """Return the same density from the first and from the last half of the probes."""
    half = len(density.nodes) // 2
    return [
        dataclasses.replace(
            density,
            nodes=density.nodes[chosen],
            weights=density.weights[chosen],
            residuals=None if density.residuals is None else density.residuals[chosen],
        )
        for chosen in (slice(0, half), slice(half, None))
    ]


def _wasserstein(densities: Sequence[SpectralDensity]) -> Tensor:
    distances = torch.zeros(len(densities), len(densities), dtype=torch.float64)
    for a, first in enumerate(densities):
        for b, second in enumerate(densities[:a]):
            distances[a, b] = distances[b, a] = spectral_distance(first, second)
    return distances


def _jensen_shannon(densities: Sequence[SpectralDensity]) -> Tensor:
    """Return the root of ½ KL(p, m) + ½ KL(q, m) in bits, m = (p + q)/2, for all pairs."""
    sigma = densities[0].sigma
    low = min(float(density.grid[0]) for density in densities)
    high = max(float(density.grid[-1]) for density in densities)
    count = max(_POINTS, math.ceil(4 * (high - low) / sigma))
    grid = torch.linspace(low, high, count, dtype=torch.float64)
    p = torch.stack([density.evaluate(grid)[0] for density in densities])
    p = p / p.sum(1, keepdim=True)
    entropy = -torch.special.xlogy(p, p).sum(1)
    divergence = torch.zeros(len(p), len(p), dtype=torch.float64)
    for a in range(len(p)):
        middle = (p[a] + p) / 2
        mixed = -torch.special.xlogy(middle, middle).sum(1)
        divergence[a] = mixed - (entropy[a] + entropy) / 2
    # Differences of entropies round: of a spectrum with itself they would leave √eps.
    return divergence.fill_diagonal_(0.0).clamp_min(0.0).div(math.log(2)).sqrt()
