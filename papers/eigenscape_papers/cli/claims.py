"""`eigenscape claims`: every claim of the papers, theirs and ours."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eigenscape.cli.verbs import AsJson, Debug, Screen
from eigenscape.errors import UnknownNameError, near_matches

if TYPE_CHECKING:
    from eigenscape_papers.runner import Finding


def claims(
    paper: Annotated[str | None, typer.Option(help="Only this paper, e.g. wu.")] = None,
    results: Annotated[
        Path | None, typer.Option(help="Folder with results [default: papers/results/studies].")
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only those that differ.")] = False,
    page: Annotated[
        Path | None, typer.Option(help="Write the pages of the documentation to this folder.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List every claim of the papers: theirs, ours, pass or fail, at which scale, of which kind.

    Examples:
      eigenscape claims --paper wu
      eigenscape claims --failed --json

    Kinds: measured (could fail, fixed before the number was seen), revised (changed after a first
    run), identity (true by construction), ours (not the paper's).

    Raises:
        UnknownNameError: If there is no such paper.
    """
    from eigenscape_papers.runner import all_findings, read_results, results_folder, to_json
    from eigenscape_papers.studies import STUDIES

    screen = Screen()
    studies = list(STUDIES.values())
    papers = sorted({claim.paper for study in studies for claim in study.claims})
    if paper is not None and paper.lower() not in papers:
        raise UnknownNameError(
            f"`--paper {paper}` is no paper of ours. {near_matches(paper, papers)}"
        )
    recorded = read_results(results or results_folder())
    if page is not None:
        from eigenscape_papers.runner import write_pages

        screen.result(f"Scoreboard: {write_pages(studies, recorded, page)}")
        return
    findings = [
        finding
        for finding in all_findings(studies, recorded)
        if (paper is None or finding.paper == paper.lower())
        and (not failed or finding.status == "fail")
    ]
    if as_json:
        screen.result(json.dumps(to_json(findings), indent=1, ensure_ascii=False))
        return
    _show(screen, findings)


def _show(screen: Screen, findings: "list[Finding]") -> None:
    from eigenscape_papers.runner import counts

    screen.table(
        {
            "claim": [finding.id for finding in findings],
            "where": [finding.where for finding in findings],
            "theirs": [finding.theirs for finding in findings],
            "ours": [finding.ours for finding in findings],
            "spread": [finding.spread for finding in findings],
            "expected": [finding.expected for finding in findings],
            "status": [finding.status for finding in findings],
            "kind": [finding.kind for finding in findings],
            "scale": [finding.scale for finding in findings],
        }
    )
    for kind, of_kind in counts(findings).items():
        screen.say(f"{kind}: {', '.join(f'{n} {status}' for status, n in of_kind.items())}")
