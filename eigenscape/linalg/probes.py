"""Random probe vectors that a seed fixes, whatever the device, the dtype and the number drawn.

Column j of a seed is the same vector on CPU and GPU, in float32 (rounded) and float64, and whether
it is drawn alone or among a thousand. It is drawn on the host in float64 for that reason.
"""

import math

import numpy as np
import torch
from scipy.special import chdtrc
from torch import Tensor

from eigenscape.errors import require_choice
from eigenscape.operator import LinearOperator

KINDS = ("rademacher", "gaussian", "sphere")


def draw_probes(
    operator: LinearOperator,
    num_probes: int,
    *,
    seed: int,
    kind: str = "rademacher",
    first: int = 0,
) -> Tensor:
    """Draw probes v with E[v vᵀ] = I in the operator's space.

    Args:
        operator: Gives the size, dtype and device.
        num_probes: How many columns.
        seed: Fixes every entry.
        kind: "rademacher" (entries ±1, least variance for traces), "gaussian", or "sphere"
            (Gaussian scaled to norm √n).
        first: Number of the first column, to go on where an earlier call ended.

    Returns:
        The columns (n, num_probes).

    Examples:
        >>> from eigenscape.operator import Dense
        >>> A = Dense(torch.eye(3))
        >>> both = draw_probes(A, 2, seed=7)
        >>> bool((draw_probes(A, 1, seed=7, first=1) == both[:, 1:]).all())
        True
    """
    require_choice(kind, KINDS, "draw_probes(kind=...)")
    n = operator.space.size
    columns = torch.empty(n, num_probes, dtype=operator.dtype)
    for j in range(num_probes):
        columns[:, j] = _column(n, kind, seed, first + j)
    return columns.to(operator.device)


def _column(n: int, kind: str, seed: int, number: int) -> Tensor:
    # A seed sequence spreads (seed, number) over the generator's whole state, so that neighbouring
    # seeds and columns share nothing. PyTorch's own generator reads only 32 bits of a seed.
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, number])))
    if kind == "rademacher":
        return torch.from_numpy(generator.integers(0, 2, n, dtype=np.int8)).double() * 2 - 1
    column = torch.from_numpy(generator.standard_normal(n))
    return column if kind == "gaussian" else column * (n**0.5 / column.norm())


def copies_seen(share: float, num_pairs: int, num_starts: int) -> tuple[float, float]:
    """Say how many eigenvectors random starting vectors saw where some were found.

    A random vector has on a unit eigenvector a share whose mean is 1/n, and on an eigenspace of g
    dimensions one of g/n, though a single vector finds one pair in it.

    Args:
        share: n times the sum of squares of the starting vectors' parts on the pairs found.
        num_pairs: How many pairs were found.
        num_starts: b, orthonormal ones.

    Returns:
        The number, and the probability to see so many if there are no more than were found.
    """
    return share / num_starts, float(chdtrc(num_starts * num_pairs, share))


def chances_to_miss(
    wanted: Tensor,
    which: str,
    *,
    met: tuple[float, float],
    spread: tuple[float, float],
    size: int,
    num_steps: int,
) -> Tensor:
    """Bound the probabilities that a random vector met no pair beyond each of the wanted ones.

    Lanczos from a random vector comes within ε of the range to the largest eigenvalue in s steps,
    but for a probability of 1.648 √n exp(−√ε (2s − 1)).

    Args:
        wanted: Eigenvalues of the wanted pairs, in order.
        which: As in `eigsh`.
        met: Least and largest value that was met beside them.
        spread: Least and largest value met at all.
        size: n.
        num_steps: s.

    Returns:
        The bounds, in the order of the pairs.

    References:
        Kuczyński, Woźniakowski, "Estimating the largest eigenvalue by the power and Lanczos
        algorithms with a random start", SIAM J. Matrix Anal. Appl. 13, 1992.
    """

    def beyond(ends: Tensor, best: float, least: float) -> Tensor:
        gaps = (ends - best).clamp_min(0.0) / (ends - least).clamp_min(1e-300)
        rarely = (-(2 * num_steps - 1) * gaps.sqrt()).exp()
        return (1.648 * math.sqrt(size) * rarely).clamp_max(1.0)

    def above(values: Tensor) -> Tensor:
        return beyond(values, met[1], spread[0])

    def below(values: Tensor) -> Tensor:
        return beyond(-values, -met[0], -spread[1])

    if which == "magnitude":
        return (above(wanted.abs()) + below(-wanted.abs())).clamp_max(1.0)
    if which == "both":
        half = (len(wanted) + 1) // 2
        return torch.cat([above(wanted[:half]), below(wanted[half:])])
    return above(wanted) if which == "largest" else below(wanted)
