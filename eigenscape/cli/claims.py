"""`eigenscape claims`: every claim of the papers, theirs and ours."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eigenscape.cli._screen import Screen
from eigenscape.cli._verb import AsJson, Debug
from eigenscape.errors import UnknownNameError, near_matches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eigenscape.report import Finding


def claims(
    paper: Annotated[str | None, typer.Option(help="Only this paper, e.g. wu.")] = None,
    results: Annotated[
        Path | None, typer.Option(help="Folder with results [default: results/studies].")
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only those that differ.")] = False,
    page: Annotated[
        Path | None, typer.Option(help="Write the page of the documentation, with figures.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List every claim of the papers: theirs, ours, pass or fail, at which scale.

    Examples:
      eigenscape claims --paper wu
      eigenscape claims --failed --json

    Raises:
        UnknownNameError: If there is no such paper.
    """
    from eigenscape.studies import STUDIES, all_findings, read_results, results_folder, to_json

    screen = Screen()
    studies = list(STUDIES.values())
    papers = sorted({claim.paper for study in studies for claim in study.claims})
    if paper is not None and paper.lower() not in papers:
        raise UnknownNameError(
            f"`--paper {paper}` is no paper of ours. {near_matches(paper, papers)}"
        )
    found = read_results(results or results_folder())
    if page is not None:
        from eigenscape.studies import write_page

        screen.result(f"Page: {write_page(studies, found, page)}")
        return
    findings = [
        finding
        for finding in all_findings(studies, found)
        if (paper is None or finding.paper == paper.lower())
        and (not failed or finding.status == "fail")
    ]
    if as_json:
        screen.result(json.dumps(to_json(findings), indent=1, ensure_ascii=False))
        return
    _show(screen, findings)


def _show(screen: Screen, findings: "list[Finding]") -> None:
    screen.table(
        {
            "claim": [finding.id for finding in findings],
            "where": [finding.where for finding in findings],
            "theirs": [finding.theirs for finding in findings],
            "ours": [finding.ours for finding in findings],
            "spread": [finding.spread for finding in findings],
            "expected": [finding.expected for finding in findings],
            "status": [finding.status for finding in findings],
            "scale": [finding.scale for finding in findings],
        }
    )
    screen.say(f"{_counts(f for f in findings if not f.is_check)}.")
    if any(finding.is_check for finding in findings):
        screen.say(f"Checks of our own: {_counts(f for f in findings if f.is_check)}.")


def _counts(findings: "Iterable[Finding]") -> str:
    found = [finding.status for finding in findings]
    return ", ".join(f"{found.count(status)} {status}" for status in ("pass", "fail", "not run"))
