"""The page that puts the papers' numbers beside ours, made from the results and nothing else."""

import dataclasses
import os
from collections.abc import Iterable, Sequence, Set
from pathlib import Path

from eigenscape.files import write_bytes
from eigenscape.report import STATUSES, Finding, Picture, Sheet, StudyResult, write_figures
from eigenscape.studies.claim import summary
from eigenscape.studies.results import all_findings
from eigenscape.studies.study import DOUBT, SCALES, Study

_IMAGES = "images/reproduction"
_MOST_ROWS, _MOST_COLUMNS = 40, 9  # of a table that stands open on the page
_OPENING = """# Reproduction

Every claim of the source papers that was made checkable: what they say, what we measured, at which
scale. This page is made from the records in `results/studies/` by `make reproduction`; nothing in
it is written by hand. A claim that fails stays here, with what is known about why.

`laptop` is a narrow network on the bundled digits, minutes on two cores; `paper` is the papers' own
setting on a GPU. Run one yourself: `eigenscape study NAME --scale laptop`. A check of our own is
something that the paper does not say; it holds or it does not.
"""


def write_page(
    studies: Sequence[Study], results: Sequence[StudyResult], path: str | os.PathLike[str]
) -> Path:
    """Write the page and its figures.

    Args:
        studies: All studies.
        results: What was measured.
        path: The page; figures go to `images/reproduction/` beside it.

    Returns:
        The path.
    """
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    findings = all_findings(studies, results)
    lines = [_OPENING, _total(findings), "", *_contents(studies, results)]
    for study in studies:
        about = [r for r in results if r.study == study.name and r.scale in SCALES]
        lines += _study(study, about, all_findings([study], results), place.parent)
    text = "\n".join(lines).rstrip() + "\n"
    _sweep(place.parent, text)
    write_bytes(place, text.encode())
    return place


def _total(findings: Sequence[Finding]) -> str:
    """Count all claims, and apart from them the checks of our own."""
    theirs, ours = _counts(findings, is_check=False), _counts(findings, is_check=True)
    text = f"{sum(theirs)} claims: {theirs[0]} agree, {theirs[1]} differ, {theirs[2]} have not "
    text += "been run."
    if sum(ours):
        text += f" {sum(ours)} checks of our own: {ours[0]} hold, {ours[1]} do not, "
        text += f"{ours[2]} have not been run."
    return text


def _counts(findings: Sequence[Finding], *, is_check: bool) -> list[int]:
    found = [finding.status for finding in findings if finding.is_check == is_check]
    return [found.count(status) for status in STATUSES]


def _contents(studies: Sequence[Study], results: Sequence[StudyResult]) -> list[str]:
    """List the studies with what became of their claims."""
    lines = [
        "| paper | study | question | agree | differ | not run | our checks that hold |",
        "|---|---|---|---|---|---|---|",
    ]
    for study in studies:
        found = all_findings([study], results)
        counts = " | ".join(str(count) for count in _counts(found, is_check=False))
        checks = _counts(found, is_check=True)
        held = f"{checks[0]} of {sum(checks)}" if sum(checks) else "–"
        link = f"[{study.name}](#{study.name})"
        lines.append(f"| {study.paper} | {link} | {_cell(study.title)} | {counts} | {held} |")
    return [*lines, ""]


def _sweep(folder: Path, text: str) -> None:
    """Remove figures of an earlier page that this one does not show."""
    for path in (folder / _IMAGES).glob("*/*.png"):
        if path.relative_to(folder).as_posix() not in text:
            path.unlink()


def _study(
    study: Study, results: Sequence[StudyResult], findings: Sequence[Finding], folder: Path
) -> list[str]:
    lines = [f"## {study.name}", "", f"{study.title} ({study.paper}, {study.where})", ""]
    for result in results:
        # Counted anew: claims may have changed since it was measured.
        _, doubt, what = result.status.text.partition(DOUBT)
        text = f"{summary(all_findings([study], [result]))}{doubt}{what}"
        lines += [f"*{result.scale}*: {text} {_provenance(result)}", ""]
        lines += [f"> {note}\n" for note in result.notes]
    lines += _claims(study, findings, {result.scale for result in results})
    kinds: set[str] = set()
    ordered = sorted(results, key=lambda r: r.scale != "paper")
    for result in ordered:
        # Of another scale only figures that the first has none of: not all may have been run.
        missing = [picture for picture in result.pictures if _kind(picture) not in kinds]
        kinds |= {_kind(picture) for picture in result.pictures}
        lines += _pictures(dataclasses.replace(result, pictures=tuple(missing)), folder)
    for result in ordered[:1]:
        for sheet in result.sheets:
            lines += _sheet(sheet, result.scale)
    return lines


def _kind(picture: Picture) -> str:
    """Return which figure a picture shows: networks have one each."""
    return picture.name.partition("-")[0]


def _pictures(result: StudyResult, folder: Path) -> list[str]:
    """Draw a result's figures, as PNG alone since a page needs no PDF, and return their lines."""
    stem, lines = f"{result.study}-{result.scale}", list[str]()
    for path in write_figures(result, folder / _IMAGES / stem) if result.pictures else ():
        if path.suffix != ".png":
            path.unlink()
    for picture in result.pictures:
        lines += [
            f"![{picture.title}]({_IMAGES}/{stem}/{picture.name}.png)",
            "",
            f"*{picture.title} ({result.scale} scale).* {picture.shows}",
            "",
        ]
    return lines


def _provenance(result: StudyResult) -> str:
    time = f"in {result.seconds:.0f} s" if result.seconds else "in several runs"
    return f"Measured on {result.device} {time}."


def _claims(study: Study, findings: Sequence[Finding], scales: Set[str]) -> list[str]:
    """Return what was measured as a table, and below it what needs more words or was not run."""
    measured = [finding for finding in findings if finding.status != "not run"]
    missing = [finding for finding in findings if finding.status == "not run"]
    lines = _table(measured) if measured else []
    differ = [finding for finding in measured if finding.explanation]
    if differ:
        lines += ["What is known about the differences:", ""]
        lines += [*_reasons(differ, "explanation"), ""]
    if missing:
        why = _missing_words(study, {finding.id for finding in missing}, scales)
        rows = [(_name(f), _cell(f.theirs), f.expected) for f in missing]
        lines += _folded(why, _rows(("claim", "theirs", "expected"), rows))
    return [*lines, *_folded("Reasons for what is expected", _reasons(findings, "why"))]


def _table(findings: Sequence[Finding]) -> list[str]:
    rows = []
    for f in findings:
        ours = f"{f.ours:.4g}" + ("" if f.spread is None else f" ± {f.spread:.2g}")
        verdict = f.verdict if f.status == "pass" else f"**{f.verdict}**"
        rows.append((_name(f), _cell(f.theirs), ours, f.expected, verdict, f.scale))
    return [*_rows(("claim", "theirs", "ours", "expected", "verdict", "scale"), rows), ""]


def _name(finding: Finding) -> str:
    return f"`{finding.id}` ({_cell(finding.where)}): {_cell(finding.says)}"


def _missing_words(study: Study, ids: Set[str], scales: Set[str]) -> str:
    """Say how many claims were not run, and why not."""
    claims = [claim for claim in study.claims if claim.id in ids]
    elsewhere = sum(scales.isdisjoint(claim.scales) for claim in claims)
    away, here = "at a scale that was not run", "not measured by what was run"
    why = away if elsewhere else here
    if 0 < elsewhere < len(ids):
        why = f"{elsewhere} {away}, {len(ids) - elsewhere} {here}"
    were = "claim was" if len(ids) == 1 else "claims were"
    return f"{len(ids)} {were} not run: {why}"


def _reasons(findings: Sequence[Finding], field: str) -> list[str]:
    """Return a list of reasons, each once, with the claims that it is for."""
    groups: dict[str, list[str]] = {}
    for finding in findings:
        groups.setdefault(getattr(finding, field), []).append(f"`{finding.id}`")
    return [f"- {', '.join(ids)}: {_cell(reason)}" for reason, ids in groups.items()]


def _sheet(sheet: Sheet, scale: str) -> list[str]:
    """Return a table, folded away and cut where it is long."""
    rows = list(zip(*sheet.columns.values(), strict=True))
    names = [_cell(name) for name in sheet.columns]
    cells = [tuple(_value(value) for value in row) for row in rows[:_MOST_ROWS]]
    title = f"{sheet.title} ({scale} scale)"
    if len(rows) <= _MOST_ROWS and len(names) <= _MOST_COLUMNS:
        return [f"*{title}*", "", *_rows(names, cells), ""]
    shown = f": the first {_MOST_ROWS} of {len(rows)} rows" if len(rows) > _MOST_ROWS else ""
    return _folded(title + shown, _rows(names, cells))


def _folded(title: str, lines: Sequence[str]) -> list[str]:
    # Some renderers read markdown inside only after an empty line, others only where told to.
    head = f"<summary>{title.replace('<', '&lt;')}</summary>"
    return ['<details markdown="1">', head, "", *lines, "", "</details>", ""]


def _rows(names: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [names, ["---"] * len(names), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _value(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else _cell(str(value))


def _cell(text: str) -> str:
    """Return text that stays inside its cell."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
