"""Judge claims from what stored results hold, without running a study again."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eigenscape.errors import FileError
from eigenscape.runs import commit, now
from eigenscape_papers.runner.claims import Claim, Measured
from eigenscape_papers.runner.results import read_content, read_result, write_judged
from eigenscape_papers.runner.study import Study
from eigenscape_papers.runner.study_result import Sheet, StudyResult
from eigenscape_papers.runner.tables import read_number

# Columns of a table that has a number for each layer of each network.
_FINEST = ("layer", "seed")


@dataclass(frozen=True)
class Judged:
    """What became of a claim that a stored result had no number for.

    Attributes:
        id: The claim.
        record: The result's file.
        measured: Its number; None where the tables have none.
        why: Why they have none.
    """

    id: str
    record: str
    measured: Measured | None
    why: str = ""


def judge_stored(study: Study, folder: str | os.PathLike[str]) -> list[Judged]:
    """Judge those claims of a study that its stored results have no number for, where they can.

    A number that is found is written into the result's file, with the claim's words, the date and
    the commit; where the result comes from stays as it is.

    Args:
        study: The study, with its claims of today.
        folder: Where the results are.

    Returns:
        What became of each such claim, for each result whose scale it is meant for.
    """
    outcomes = []
    for path in sorted(Path(folder).glob(f"{study.name}-*.json")):
        result = read_result(path, pictures=False)
        if result.study != study.name:
            continue  # wu-overlap-deep is no result of wu-overlap
        earlier = read_content(path).get("judged", {})
        open_claims = {
            claim.id: claim
            for claim in study.claims
            if result.scale in claim.scales
            and (claim.id not in result.measured or _is_stale(claim, earlier.get(claim.id)))
        }
        of_record = [_judge(claim, result, path.stem) for claim in open_claims.values()]
        judged = {
            one.id: {
                "ours": one.measured.ours,
                "spread": one.measured.spread,
                **_asked(open_claims[one.id]),
                "date": now(),
                "commit": commit(),
            }
            for one in of_record
            if one.measured is not None
        }
        if judged:
            write_judged(path, judged)
        outcomes += of_record
    return outcomes


def _asked(claim: Claim) -> dict[str, Any]:
    return {"says": claim.says, "number": dict(claim.number)}


def _is_stale(claim: Claim, entry: Mapping[str, Any] | None) -> bool:
    """Tell whether a number was judged of the claim as it was worded, or looked up, before."""
    return entry is not None and {key: entry[key] for key in _asked(claim)} != _asked(claim)


def _judge(claim: Claim, result: StudyResult, record: str) -> Judged:
    if not claim.number:
        return Judged(claim.id, record, None, f"it has no `number`; {_tables(result.sheets)}")
    try:
        return Judged(claim.id, record, read_number(result.sheets, claim.number))
    except FileError as error:
        return Judged(claim.id, record, None, f"{error}; {_tables(result.sheets)}")


def _tables(sheets: Iterable[Sheet]) -> str:
    """Say which tables there are, and what none of them has a number for each of."""
    columns = {sheet.name: set(sheet.columns) for sheet in sheets}
    finest = max((names & set(_FINEST) for names in columns.values()), key=len, default=set())
    lacking = [f"each {name}" for name in _FINEST if name not in finest]
    words = f"no table has a number for {' and '.join(lacking)}" if lacking else ""
    return "; ".join(filter(None, [f"tables: {', '.join(columns) or 'none'}", words]))
