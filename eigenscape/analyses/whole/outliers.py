"""How many eigenvalues stand apart from the rest, and is that the number of classes?"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.analyses.whole._pictures import scree
from eigenscape.errors import InvalidArgumentError
from eigenscape.records import Columns, EigenPairs, Picture, Record, Status

# A ratio below this is no gap: neighbours in a bulk edge differ by as much.
_LEAST_RATIO = 1.5
# Nor is one that is not so many times as wide as usual, in logarithms: eigenvalues that fall evenly
# by a factor of two each have no outliers.
_TIMES_USUAL = 3.0


@dataclass(frozen=True, eq=False)
class Outliers(Record):
    """The gaps between the largest eigenvalues.

    Attributes:
        values: The largest eigenvalues (k,), descending.
        residuals: Their residuals (k,).
        gaps: Ratios λ_i / λ_{i+1} of consecutive eigenvalues (k−1,); NaN where λ_{i+1} ≤ 0.
        num_outliers: The i with the largest ratio; 0 where that is no gap: below 1.5, less than
            three times as wide as the other ratios' median (in logarithms), or not certain.
        gap: The largest ratio, whether it is a gap or not; NaN where there is none.
        is_certain: Whether the intervals λ ± residual on its two sides are disjoint.
        num_classes: C, or None where the model is no classifier.
    """

    values: Tensor
    residuals: Tensor
    gaps: Tensor
    num_outliers: int
    gap: float
    is_certain: bool
    num_classes: int | None

    def columns(self) -> Columns:
        """Return one row for each eigenvalue, with the ratio to the next."""
        return {
            "rank": range(1, self.values.numel() + 1),
            "eigenvalue": self.values.tolist(),
            "residual": self.residuals.tolist(),
            "ratio to next": [*self.gaps.tolist(), None],
        }

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (scree(self),)


def outliers(pairs: EigenPairs, *, num_classes: int | None = None) -> Outliers:
    """Find the widest gap, as a ratio, between consecutive eigenvalues. Cost: no product.

    Networks that separate C classes tend to have about C outliers: C − 1, or C, above a gap (Sagun
    et al. 2016; Papyan §1). The first eigenvalue alone often stands far above the others, so all
    ratios are kept in the record beside the widest. There always is a widest ratio; it counts as a
    gap only where it is beyond the residuals and wider than the slope around it.

    Args:
        pairs: The largest eigenpairs, three or more, reaching beyond the expected outliers.
        num_classes: C, for the comparison.

    Returns:
        All ratios and the widest. Not converged where the pairs are not.

    Raises:
        InvalidArgumentError: If there are fewer than three pairs or they are not the largest.

    Examples:
        >>> from eigenscape.linalg import eigsh
        >>> from eigenscape.operator import Dense
        >>> A = Dense(torch.diag(torch.tensor([9.0, 8.0, 1.0, 0.9, 0.8])))
        >>> outliers(eigsh(A, num_pairs=4)).num_outliers
        2
    """
    if len(pairs) < 3 or pairs.which != "largest":
        raise InvalidArgumentError(
            "`outliers(pairs)` needs three or more of the largest eigenpairs, "
            f"`eigsh(A, num_pairs=k)`; got {len(pairs)} with which={pairs.which!r}."
        )
    upper, lower = pairs.values[:-1], pairs.values[1:]
    gaps = torch.where(lower > 0, upper / lower, torch.nan)
    widest = int(torch.nan_to_num(gaps, nan=0.0).argmax())
    gap = float(gaps[widest])
    low, high = pairs.intervals()[widest, 0], pairs.intervals()[widest + 1, 1]
    is_certain = bool(low > high)
    others = torch.cat([gaps[:widest], gaps[widest + 1 :]])
    others = others[others.isfinite()].log()
    usual = float(others.median()) if others.numel() else 0.0
    stands_out = is_certain and gap >= _LEAST_RATIO and math.log(gap) >= _TIMES_USUAL * usual
    return Outliers(
        status=Status(bool(pairs.status), str(pairs.status)),
        num_products=0,
        seed=pairs.seed,
        values=pairs.values,
        residuals=pairs.residuals,
        gaps=gaps,
        num_outliers=widest + 1 if stands_out else 0,
        gap=gap,
        is_certain=is_certain,
        num_classes=num_classes,
    )
