"""What a study measured: a number for each claim, pictures and tables."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from eigenscape.records import Columns, Picture, Record, Status, storable
from eigenscape_papers.runner.claims import Claim, Finding, Measured, claims_of, summary

CONVERGED = "Everything converged."
DOUBT = "Not everything converged: "


@storable
@dataclass(frozen=True)
class RecordedFinding:
    """A claim as records of before version 0.3 have it; all but its number is left unread."""

    id: str
    paper: str
    where: str
    says: str
    theirs: str
    ours: float | None
    spread: float | None
    expected: str
    status: str
    scale: str
    why: str
    known: str = ""


@storable
@dataclass(frozen=True)
class Sheet:
    """A table with a title.

    Attributes:
        name: Short name, for links.
        title: What it shows.
        columns: Columns of equal length.
    """

    name: str
    title: str
    columns: dict[str, tuple[Any, ...]]


@dataclass(frozen=True, eq=False)
class StudyResult(Record):
    """A finished study. It holds no words of claims: they are judged when they are shown.

    Attributes:
        study: Its name, e.g. "wu-overlap".
        paper: Short name of the paper.
        where: Figures and tables that it reproduces.
        title: What it asks.
        scale: "laptop", "paper", or "own" for a user's own network.
        settings: What was run, in plain values.
        measured: A number for each claim that was measured, by its id.
        figures: The figures.
        sheets: The tables.
        notes: What a reader should know.
        seconds: Wall time; 0 where it was put together from what earlier runs had measured.
        device: Where it ran.
        network: The name of a user's own network; empty for those of the study.
    """

    # Fields that had another name in older files.
    RENAMED: ClassVar[dict[str, str]] = {"pictures": "figures", "findings": "measured"}

    study: str
    paper: str
    where: str
    title: str
    scale: str
    settings: dict[str, Any]
    measured: dict[str, Measured]
    figures: tuple[Picture, ...]
    sheets: tuple[Sheet, ...]
    notes: tuple[str, ...]
    seconds: float
    device: str
    network: str = ""

    def __post_init__(self) -> None:
        """Take the numbers out of what records of before version 0.3 hold."""
        recorded: Any = self.measured
        if isinstance(recorded, tuple):
            numbers = {f.id: Measured(f.ours, f.spread) for f in recorded if f.ours is not None}
            doubts = self.status.text.partition(f" {DOUBT}")[2]
            text = f"{DOUBT}{doubts}" if doubts else CONVERGED
            object.__setattr__(self, "measured", numbers)
            object.__setattr__(self, "status", Status(self.status.converged, text))

    def judged(self, claims: tuple[Claim, ...]) -> tuple[Finding, ...]:
        """Judge claims by what was measured.

        Args:
            claims: Those of the study.

        Returns:
            One finding for each, in their order.
        """
        return tuple(
            claim.judge(self.measured.get(claim.id), scale=self.scale, network=self.network)
            for claim in claims
        )

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Every claim of the study as it is worded now, beside what was measured."""
        return self.judged(claims_of(self.study))

    @property
    def summary(self) -> str:
        """What became of the claims, in a sentence."""
        return summary(self.findings)

    def columns(self) -> Columns:
        """Return one row for each claim, those that were measured first."""
        names = ["id", "verdict", "ours", "spread", "expected", "theirs", "kind", "where", "says"]
        names += ["reason", "explanation"]
        rows = sorted(self.findings, key=lambda finding: finding.status == "not run")
        return {name: [getattr(finding, name) for finding in rows] for name in names}

    def pictures(self) -> tuple[Picture, ...]:
        """Return the figures."""
        return self.figures
