"""Random probe vectors that a seed fixes, whatever the device, the dtype and the number drawn.

Column j of a seed is the same vector on CPU and GPU, in float32 (rounded) and float64, and whether
it is drawn alone or among a thousand. It is drawn on the host in float64 for that reason.
"""

import numpy as np
import torch
from torch import Tensor

from eigenscape.errors import require_choice
from eigenscape.linear_operator import LinearOperator

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
        >>> from eigenscape.operators import Dense
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
