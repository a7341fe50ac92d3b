"""Eigenpairs with the residuals that certify them.

Letters: A the symmetric operator; λ its eigenvalue estimates; r = ‖Av − λv‖. A has an eigenvalue in
[λ − r, λ + r].
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.errors import InvalidArgumentError, WrongTypeError
from eigenscape.records.axes import indices, table_of
from eigenscape.records.numbers import short
from eigenscape.records.pictures import Axis, Panel, Picture, Points, numbers
from eigenscape.records.record import Columns, Record
from eigenscape.space import ParamSpace

_SHOWN = 20


@dataclass(frozen=True, eq=False)
class EigenPairs(Record):
    """Eigenvalues and eigenvectors of a symmetric operator, each with its residual.

    Attributes:
        values: Eigenvalues (k,), float64, descending: by magnitude if `which` is "magnitude", else
            with their signs.
        vectors: Orthonormal eigenvectors (n, k) in the operator's dtype.
        residuals: ‖Av − λv‖ (k,), float64, from real products.
        which: Which pairs were asked for: "largest", "smallest", "both" (ends) or "magnitude".
        tolerance: The residual asked for, as a fraction of |λ|; for λ near 0 the rounding of ‖A‖ is
            enough.
        shapes: Names and shapes of the tensors that a vector's entries belong to, in order: the
            operator's space. None in records of before 0.3.
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    which: str
    tolerance: float
    shapes: Mapping[str, tuple[int, ...]] | None = None

    def __len__(self) -> int:
        """Return the number of pairs."""
        return self.values.shape[0]

    def __getitem__(self, key: slice) -> "EigenPairs":
        """Return some of the pairs, e.g. `pairs[:9]`; the status still speaks of all.

        Args:
            key: A slice.

        Returns:
            Those pairs.

        Raises:
            WrongTypeError: If it is not a slice.
        """
        if not isinstance(key, slice):
            raise WrongTypeError(
                f"`pairs[...]` takes a slice, e.g. `pairs[:9]`; got {key!r}. A single value is "
                "`pairs.values[i]`."
            )
        return dataclasses.replace(
            self,
            values=self.values[key],
            vectors=self.vectors[:, key],
            residuals=self.residuals[key],
        )

    @property
    def space(self) -> ParamSpace:
        """The space that the vectors live in.

        Raises:
            InvalidArgumentError: If the record does not hold it, as those of before 0.3.
        """
        if self.shapes is None:
            raise InvalidArgumentError(
                "`pairs.space` must be known; got pairs of before 0.3, or without `shapes=`. Take "
                "that of their operator, e.g. `A.space.block('fc1').take(pairs.vectors)`."
            )
        return ParamSpace(self.shapes)

    def entries(self, *patterns: str) -> Tensor:
        """Return the vectors' entries of some tensors or layers, (q, k).

        Args:
            *patterns: As in `ParamSpace.block`: a tensor ("fc1.weight"), a layer ("fc1"), a glob.

        Returns:
            The rows of `vectors` that belong to them; their squares add up to each vector's share.

        Examples:
            >>> from eigenscape.linalg import eigsh
            >>> from eigenscape.operator import Dense
            >>> layers = ParamSpace({"fc1.weight": (2, 1), "fc2.weight": (1, 1)})
            >>> A = Dense(torch.diag(torch.tensor([1.0, 3.0, 2.0])), space=layers)
            >>> eigsh(A, num_pairs=2).entries("fc1").square().sum(0).round().tolist()
            [1.0, 0.0]
        """
        return self.space.block(*patterns).take(self.vectors)

    def intervals(self) -> Tensor:
        """Return [λ − r, λ + r] (k, 2): the operator has an eigenvalue in each of them.

        The bound is for exact arithmetic; products in float32 add their own rounding to it.

        References:
            Parlett, "The Symmetric Eigenvalue Problem", 1998, theorem 4.5.1.
        """
        return torch.stack([self.values - self.residuals, self.values + self.residuals], dim=1)

    def columns(self) -> Columns:
        """Return rank, eigenvalue and residual of each pair."""
        return {
            "rank": range(1, len(self) + 1),
            "eigenvalue": self.values.tolist(),
            "residual": self.residuals.tolist(),
        }

    def __str__(self) -> str:
        """Return a short table of values, to seven digits, and residuals."""
        rows = zip(self.values.tolist(), self.residuals.tolist(), strict=True)
        lines = [f"{'':>4}  {'eigenvalue':>13}  {'residual':>9}"]
        lines += [f"{i:>4}  {v:>13.6e}  {r:>9.1e}" for i, (v, r) in enumerate(rows, 1)][:_SHOWN]
        if len(self) > _SHOWN:
            lines.append(f"{'…':>4}  {len(self) - _SHOWN} more")
        return "\n".join([*lines, *self.remarks()])

    def pictures(self) -> tuple[Picture, ...]:
        """Return its picture."""
        return (pairs_picture(self),)


def pair_hover(pairs: "EigenPairs", end: str) -> list[str]:
    """Return what to say about each pair: value, residual, rank."""
    rows = zip(numbers(pairs.values), numbers(pairs.residuals), strict=True)
    return [
        f"λ = {short(value, 6)}\nresidual {short(residual, 2)}\nrank {i} {end}"
        for i, (value, residual) in enumerate(rows, 1)
    ]


def pairs_picture(pairs: "EigenPairs") -> Picture:
    """Draw eigenvalues by rank with their residuals."""
    values, residuals = numbers(pairs.values), numbers(pairs.residuals)
    signed = any(value <= 0 for value in values)
    axis = Axis("eigenvalue λ", log=not signed)
    hover = pair_hover(pairs, "in the list")
    points = Points(indices(len(values)), values, "hessian", y_error=residuals, hover=hover)
    panel = Panel([points], Axis("rank", whole=True), axis)
    return Picture("eigenvalues", "Eigenvalues with their residuals", [panel], table_of(pairs))
