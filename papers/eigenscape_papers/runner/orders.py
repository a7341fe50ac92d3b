"""What is said of numbers in an order: where their gap is, and whether they rise."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

# Eigenvalues among which a gap is looked for.
MOST_VALUES = 20


def gap_place(values: Tensor, most: int = MOST_VALUES) -> int:
    """Return after how many eigenvalues the largest ratio of neighbours stands, first one left out.

    Args:
        values: Descending.
        most: Look at so many.

    Returns:
        The number of eigenvalues before the gap, 2 or more; of one or two eigenvalues, all.

    Examples:
        >>> gap_place(torch.tensor([100.0, 10.0, 9.0, 1.0, 0.9]))
        3
    """
    if len(values) < 3:
        return len(values)
    top = values[: most + 1].clamp_min(torch.finfo(values.dtype).tiny)
    ratios = top[:-1] / top[1:]
    return int(ratios[1:].argmax()) + 2


def rank_correlation(values: Sequence[float]) -> float:
    """Return Spearman's correlation of numbers with their place; equal ones share a rank.

    Args:
        values: In order of depth.

    Returns:
        From −1 to 1; NaN for fewer than two numbers, or where all are equal.

    Examples:
        >>> round(rank_correlation([1.0, 3.0, 2.0, 9.0]), 6)
        0.8
    """
    if len(values) < 2 or len(set(values)) < 2:
        return math.nan
    return float(np.corrcoef(rankdata(values), np.arange(len(values)))[0, 1])
