"""The page that puts the papers' numbers beside ours, made from the results and nothing else."""

import os
from collections.abc import Sequence
from pathlib import Path

from eigenscape.files import write_bytes
from eigenscape.report import Finding, StudyResult, write_figures
from eigenscape.studies.results import all_findings
from eigenscape.studies.study import SCALES, Study

_IMAGES = "images/reproduction"
_MARKS = {"pass": "agrees", "fail": "**differs**", "not run": "not run"}
_OPENING = """# Reproduction

Every claim of the source papers that was made checkable: what they say, what we measured, at which
scale. This page is made from the records in `results/studies/` by `make reproduction`; nothing in
it is written by hand. A claim that fails stays here, with what is known about why.

`laptop` is a narrow network on the bundled digits, minutes on two cores; `paper` is the papers' own
setting on a GPU. Run one yourself: `eigenscape study NAME --scale laptop`.
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
    counts = {s: sum(f.status == s for f in findings) for s in _MARKS}
    lines = [
        _OPENING,
        f"{len(findings)} claims: {counts['pass']} agree, {counts['fail']} differ, "
        f"{counts['not run']} have not been run.",
        "",
        *_contents(studies, results),
    ]
    for study in studies:
        about = [r for r in results if r.study == study.name and r.scale in SCALES]
        lines += _study(study, about, all_findings([study], results), place.parent)
    text = "\n".join(lines).rstrip() + "\n"
    _sweep(place.parent, text)
    write_bytes(place, text.encode())
    return place


def _contents(studies: Sequence[Study], results: Sequence[StudyResult]) -> list[str]:
    """List the studies with what became of their claims."""
    lines = ["| paper | study | question | agree | differ | not run |", "|---|---|---|---|---|---|"]
    for study in studies:
        found = [f.status for f in all_findings([study], results)]
        counts = " | ".join(str(found.count(status)) for status in _MARKS)
        link = f"[{study.name}](#{study.name})"
        lines.append(f"| {study.paper} | {link} | {_cell(study.title)} | {counts} |")
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
        lines += [f"*{result.scale}*: {result.status.text} {_provenance(result)}", ""]
        lines += [f"> {note}\n" for note in result.notes]
    lines += _table(findings)
    shown = [r for r in results if r.scale == "paper"] or list(results)
    for result in shown[:1]:
        stem = f"{result.study}-{result.scale}"
        _draw(result, folder / _IMAGES / stem)
        for picture in result.pictures:
            lines += [
                f"![{picture.title}]({_IMAGES}/{stem}/{picture.name}.png)",
                "",
                f"*{picture.title} ({result.scale} scale).* {picture.shows}",
                "",
            ]
    return lines


def _draw(result: StudyResult, folder: Path) -> None:
    """Draw a result's figures as PNG alone: a page of the documentation needs no PDF."""
    for path in write_figures(result, folder):
        if path.suffix != ".png":
            path.unlink()


def _provenance(result: StudyResult) -> str:
    return f"Measured on {result.device} in {result.seconds:.0f} s."


def _table(findings: Sequence[Finding]) -> list[str]:
    lines = ["| claim | theirs | ours | expected | verdict | scale |", "|---|---|---|---|---|---|"]
    for f in findings:
        says, theirs, why = (_cell(text) for text in (f.says, f.theirs, f.why))
        ours = "–" if f.ours is None else f"{f.ours:.4g}"
        if f.spread is not None:
            ours += f" ± {f.spread:.2g}"
        verdict = _MARKS[f.status] + (f": {why}" if f.status == "fail" else "")
        lines.append(
            f"| `{f.id}` ({f.where}): {says} | {theirs} | {ours} | {f.expected} | {verdict} | "
            f"{f.scale} |"
        )
    return [*lines, ""]


def _cell(text: str) -> str:
    """Return text that stays inside its cell."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
