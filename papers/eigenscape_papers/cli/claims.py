"""`eigenscape claims`: every claim of the papers, theirs and ours."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eigenscape.cli.verbs import AsJson, Debug, Screen
from eigenscape.errors import UnknownNameError, near_matches

if TYPE_CHECKING:
    from eigenscape_papers.runner import Finding, Judged


def claims(
    study: Annotated[str | None, typer.Argument(help="Only this study, e.g. wu-rank.")] = None,
    paper: Annotated[str | None, typer.Option(help="Only this paper, e.g. wu.")] = None,
    results: Annotated[
        Path | None, typer.Option(help="Folder with results [default: papers/results/studies].")
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only those that differ.")] = False,
    page: Annotated[
        Path | None, typer.Option(help="Write the pages of the documentation to this folder.")
    ] = None,
    judge: Annotated[
        bool, typer.Option("--judge", help="First judge claims from the tables of the results.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List every claim of the papers: theirs, ours, pass or fail, at which scale, of which kind.

    Examples:
      eigenscape claims --paper wu
      eigenscape claims --failed --json
      eigenscape claims wu-rank --judge

    Kinds: measured (could fail, fixed before the number was seen), revised (changed after a first
    run), identity (true by construction), ours (not the paper's).

    A claim that says where in its study's tables its number stands needs no run of the study:
    `--judge` writes the number into the results, and names the claims that no table answers.

    Raises:
        UnknownNameError: If there is no such paper or study.
    """
    from eigenscape_papers.runner import (
        all_findings,
        judge_stored,
        read_results,
        results_folder,
        to_json,
    )
    from eigenscape_papers.studies import STUDIES

    screen = Screen(quiet=as_json)
    if study is not None and study not in STUDIES:
        raise UnknownNameError(
            f"`eigenscape claims {study}`: there is no such study. {near_matches(study, STUDIES)}"
        )
    studies = list(STUDIES.values()) if study is None else [STUDIES[study]]
    papers = sorted({claim.paper for each in studies for claim in each.claims})
    if paper is not None and paper.lower() not in papers:
        raise UnknownNameError(
            f"`--paper {paper}` is no paper of ours. {near_matches(paper, papers)}"
        )
    folder = results or results_folder()
    if judge:
        _tell(screen, [one for each in studies for one in judge_stored(each, folder)])
    recorded = read_results(folder, pictures=page is not None)
    if page is not None:
        from eigenscape_papers.runner import write_pages

        screen.result(f"Scoreboard: {write_pages(list(STUDIES.values()), recorded, page)}")
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


def _tell(screen: Screen, outcomes: "list[Judged]") -> None:
    """Say which claims were judged, and which no stored number can answer."""
    judged = [f"{one.id} in {one.record}: {one.measured}" for one in outcomes if one.measured]
    screen.list(judged or ["No claim was judged: none that lacks a number says where it stands."])
    for why in dict.fromkeys(one.why for one in outcomes if one.why):
        names = [f"{one.id} ({one.record})" for one in outcomes if one.why == why]
        screen.list([f"No stored number for {', '.join(names)}: {why}."])


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
