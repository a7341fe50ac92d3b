"""A sentence of a paper made checkable, and the judgement on what was measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eigenscape.records import storable
from eigenscape.report import Finding


@storable
@dataclass(frozen=True)
class Measured:
    """What a study measured for one claim.

    Attributes:
        ours: The number.
        spread: Its standard deviation, or half its range, over seeds or pairs; None for none.
    """

    ours: float
    spread: float | None = None

    @classmethod
    def over(cls, values: Sequence[float] | Tensor) -> "Measured":
        """Return the mean of one number for each seed, and its standard deviation over them."""
        found = torch.as_tensor(values, dtype=torch.float64)
        return cls(float(found.mean()), float(found.std()) if len(found) > 1 else None)


@dataclass(frozen=True)
class Claim:
    """What a paper says, and how far a measurement may be from it.

    Attributes:
        id: "paper.place.subject.quantity", small letters; the first part names the paper.
        where: Figure, table or section of the paper.
        says: The claim, in words of our own.
        theirs: The paper's number, or its shape in words.
        low: The least that agrees.
        high: The most that agrees.
        why: The reason for these ends.
        scales: Where the claim is meant to hold.
        known: What is known about why ours differs; told only where it does.

    Examples:
        >>> claim = Claim("wu.x", "Table 6", "the ratio", "12.3", low=9.7, why="their range")
        >>> claim.judge(Measured(11.0), scale="paper").status
        'pass'
    """

    id: str
    where: str
    says: str
    theirs: str
    low: float = -math.inf
    high: float = math.inf
    why: str = ""
    scales: tuple[str, ...] = ("laptop", "paper", "own")
    known: str = ""

    @property
    def paper(self) -> str:
        """Short name of the paper, from the id."""
        return self.id.partition(".")[0]

    def expected(self) -> str:
        """Return what agrees, in words."""
        if math.isinf(self.low) and math.isinf(self.high):
            return "any"
        if math.isinf(self.high):
            return f"≥ {self.low:.4g}"
        if math.isinf(self.low):
            return f"≤ {self.high:.4g}"
        # Four digits, and more where rounding would move the ends.
        ends, slack = (self.low, self.high), (self.high - self.low) / 10
        digits = 4
        while slack > 0 and digits < 10 and any(_rounding(v, digits) > slack for v in ends):
            digits += 1
        return f"{self.low:.{digits}g} to {self.high:.{digits}g}"

    def judge(self, measured: Measured | None, *, scale: str) -> Finding:
        """Compare.

        Args:
            measured: What was measured; None where it was not. A number that is not finite counts
                as not measured.
            scale: The scale of the study.

        Returns:
            The finding.
        """
        if measured is not None and not (scale in self.scales and math.isfinite(measured.ours)):
            measured = None
        agrees = measured is not None and self.low <= measured.ours <= self.high
        return Finding(
            id=self.id,
            paper=self.paper,
            where=self.where,
            says=self.says,
            theirs=self.theirs,
            ours=None if measured is None else measured.ours,
            spread=None if measured is None else measured.spread,
            expected=self.expected(),
            status="not run" if measured is None else "pass" if agrees else "fail",
            scale=scale,
            why=self.why,
            known=self.known,
        )


def _rounding(value: float, digits: int) -> float:
    return abs(float(f"{value:.{digits}g}") - value)


def summary(findings: Sequence[Finding]) -> str:
    """Say what became of claims; checks of our own are counted apart.

    Args:
        findings: The claims of one study at one scale.

    Returns:
        A sentence.

    Examples:
        >>> claim = Claim("wu.x", "Table 6", "the ratio", "3", low=3, high=3)
        >>> summary([claim.judge(Measured(4.0), scale="paper")])
        '0 of 1 claims that were measured agree with the paper.'
        >>> summary([claim.judge(Measured(3.0), scale="own")])
        '1 of 1 claims that were measured hold for this network.'
        >>> summary([claim.judge(None, scale="paper")])
        'No claim is judged at this scale.'
    """
    judged = [finding for finding in findings if finding.status != "not run"]
    if not judged:
        return "No claim is judged at this scale."
    own = any(finding.scale == "own" for finding in judged)
    verb = "hold for this network" if own else "agree with the paper"
    ends = {False: f"claims that were measured {verb}", True: "checks of our own hold"}
    parts = []
    for is_check, words in ends.items():
        kind = [finding.status for finding in judged if finding.is_check == is_check]
        if kind:
            parts.append(f"{kind.count('pass')} of {len(kind)} {words}")
    return "; ".join(parts) + "."
