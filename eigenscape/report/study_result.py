"""What a study found: pictures, tables, and each claim of its paper beside what was measured."""

from dataclasses import dataclass
from typing import Any

from eigenscape.records import Columns, Record, storable
from eigenscape.report._marks import Picture

STATUSES = ("pass", "fail", "not run")


@storable
@dataclass(frozen=True)
class Finding:
    """One claim of a paper, and what was measured.

    Attributes:
        id: Its name, e.g. "wu.table6.f200x2.spectral-ratio".
        paper: Short name of the paper, the first part of the id.
        where: Figure, table or section.
        says: The claim in words.
        theirs: What the paper says: a number or a shape, as text.
        ours: What was measured; None where it was not.
        spread: How far it varies over seeds or pairs of networks; None where it does not.
        expected: What counts as agreement.
        status: "pass", "fail" or "not run".
        scale: "laptop", "paper", or "own" for a reader's own network.
        why: The reason for the tolerance.
        known: What is known about why ours differs, where it does; empty in older records.
    """

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

    @property
    def is_check(self) -> bool:
        """Whether it is a check of our own: the paper says nothing that it could agree with."""
        return self.theirs.startswith("(our")

    @property
    def verdict(self) -> str:
        """The status in words: of a paper's claim, a check of our own, or a reader's network."""
        if self.status == "not run":
            return self.status
        if self.scale == "own":
            return "holds" if self.status == "pass" else "does not hold for this network"
        if self.is_check:
            return "holds" if self.status == "pass" else "does not hold"
        return "agrees" if self.status == "pass" else "differs"

    @property
    def explanation(self) -> str:
        """What is known about a difference; empty where there is none, or the network is another.

        Examples:
            >>> of_paper = ("wu.x", "wu", "Table 6", "the ratio", "3")
            >>> Finding(*of_paper, 4.0, None, "3 to 3", "fail", "paper", "exact").explanation
            'not explained yet'
        """
        if self.status != "fail" or self.scale == "own":
            return ""
        return self.known or "not explained yet"


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
    """A finished study.

    Attributes:
        study: Its name, e.g. "wu-overlap".
        paper: Short name of the paper.
        where: Figures and tables that it reproduces.
        title: What it asks.
        scale: "laptop", "paper", or "own" for a reader's own network.
        settings: What was run, in plain values.
        findings: Every claim, measured or not.
        pictures: The figures.
        sheets: The tables.
        notes: What a reader should know.
        seconds: Wall time; 0 where it was put together from what earlier runs had measured.
        device: Where it ran.
    """

    study: str
    paper: str
    where: str
    title: str
    scale: str
    settings: dict[str, Any]
    findings: tuple[Finding, ...]
    pictures: tuple[Picture, ...]
    sheets: tuple[Sheet, ...]
    notes: tuple[str, ...]
    seconds: float
    device: str

    def columns(self) -> Columns:
        """Return one row for each claim, those that were measured first."""
        names = ("id", "verdict", "ours", "spread", "expected", "theirs", "where", "says", "why")
        rows = sorted(self.findings, key=lambda finding: finding.status == "not run")
        return {
            name: [getattr(finding, name) for finding in rows] for name in (*names, "explanation")
        }
