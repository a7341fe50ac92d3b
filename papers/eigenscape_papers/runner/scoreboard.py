"""Pages that put the papers' numbers beside ours: a scoreboard, and a page for each study."""

import dataclasses
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path

from eigenscape.records import Picture, write_bytes
from eigenscape.report import write_figures
from eigenscape_papers.runner.claims import (
    KINDS,
    SCALES,
    STATUSES,
    Finding,
    Measured,
    counts,
    summary,
)
from eigenscape_papers.runner.results import all_findings
from eigenscape_papers.runner.study import Study
from eigenscape_papers.runner.study_result import Sheet, StudyResult

_IMAGES = "images/reproduction"
_MOST_ROWS, _MOST_COLUMNS = 40, 9  # of a table that stands open on the page
_MOST_LETTERS = 60  # of a cell of the scoreboard
# Verdicts on several claims at once.
_SEVERAL = {"agrees": "agree", "differs": "differ", "holds": "hold"} | {
    "does not hold": "do not hold",
    "not run": "not run",
}
_OPENING = """# Reproduction

What the source papers say beside what we measured: a row for each figure, table and section, and a
page for each study. The pages are made from the records in `papers/results/studies/` and the claims
in `papers/eigenscape_papers/*/claims/` by `make reproduction`. A claim that fails stays, with what
is known about why.

`laptop` is a narrow network on the bundled digits, minutes on two cores; `paper` is the larger
setting, on a GPU, and each study says where it differs from the paper's own. Run one yourself:
`eigenscape study NAME --scale laptop`.
"""


def write_pages(
    studies: Sequence[Study], results: Sequence[StudyResult], folder: str | os.PathLike[str]
) -> Path:
    """Write the scoreboard, a page for each study, and the figures.

    Args:
        studies: All studies.
        results: What was measured.
        folder: For the pages; figures go to `images/reproduction/` beside it.

    Returns:
        The scoreboard, `index.md` in the folder.
    """
    pages = Path(folder)
    pages.mkdir(parents=True, exist_ok=True)
    findings = {study.name: all_findings([study], results) for study in studies}
    texts = {"index.md": [_OPENING, *_headline(findings), *_contents(studies, findings)]}
    texts["index.md"] += _scoreboard(studies, findings)
    for study in studies:
        of_study = [r for r in results if r.study == study.name and r.scale in SCALES]
        lines = _study(study, of_study, findings[study.name], pages.parent)
        texts[f"{study.name}.md"] = lines
    for name, lines in texts.items():
        write_bytes(pages / name, ("\n".join(lines).rstrip() + "\n").encode())
    _sweep(pages)
    return pages / "index.md"


def _headline(findings: Mapping[str, Sequence[Finding]]) -> list[str]:
    """Count the measured claims, and all kinds in a table."""
    by_kind = counts(finding for of_study in findings.values() for finding in of_study)
    passed, failed, missing = by_kind["measured"].values()
    text = f"**{passed + failed} claims were measured: {passed} agree, {failed} differ;** "
    rows = [
        (kind, KINDS[kind], *(str(of_kind[status]) for status in STATUSES))
        for kind, of_kind in by_kind.items()
    ]
    names = ("kind", "what it proves", "agree or hold", "differ or do not hold", "not run")
    text += f"{missing} more were not run. Other kinds of claims count apart:"
    return [text, "", *_rows(names, rows), ""]


def _contents(studies: Sequence[Study], findings: Mapping[str, Sequence[Finding]]) -> list[str]:
    """List the studies with what became of their claims."""
    rows = []
    for study in studies:
        by_kind = counts(findings[study.name])
        numbers = [str(by_kind["measured"][status]) for status in STATUSES]
        for kind in tuple(KINDS)[1:]:
            judged = by_kind[kind]["pass"] + by_kind[kind]["fail"]
            numbers.append(f"{by_kind[kind]['pass']} of {judged}" if judged else "–")
        link = f"[{study.name}]({study.name}.md)"
        rows.append((link, _cell(study.title), *numbers))
    names = ("study", "question", "agree", "differ", "not run", *tuple(KINDS)[1:])
    return ["## Studies", "", *_rows(names, rows), ""]


def _scoreboard(studies: Sequence[Study], findings: Mapping[str, Sequence[Finding]]) -> list[str]:
    """Return a row for each figure, table or section of each study, and kind of claims on it."""
    lines: list[str] = []
    for paper in dict.fromkeys(study.paper for study in studies):
        groups: dict[tuple[str, str, str], list[Finding]] = {}
        for study in studies:
            for finding in findings[study.name] if study.paper == paper else ():
                groups.setdefault((study.name, finding.where, finding.kind), []).append(finding)
        rows = [_row(name, kind, of_row) for (name, _, kind), of_row in groups.items()]
        names = ("figure, table or section", "theirs", "ours", "verdict", "scale", "kind", "study")
        lines += [f"## {paper}", "", *_rows(names, rows), ""]
    return lines


def _row(study: str, kind: str, findings: Sequence[Finding]) -> tuple[str, ...]:
    verdicts = Counter(finding.verdict for finding in findings)
    words = [
        word if count == len(findings) == 1 else f"{count} {_SEVERAL[word] if count > 1 else word}"
        for word, count in verdicts.items()
    ]
    verdict = ", ".join(words)
    return (
        _cell(findings[0].where),
        _short(finding.theirs for finding in findings),
        _short(_ours(finding) for finding in findings),
        f"**{verdict}**" if any(f.status == "fail" for f in findings) else verdict,
        ", ".join(dict.fromkeys(finding.scale for finding in findings)),
        kind,
        f"[{study}]({study}.md)",
    )


def _short(texts: Iterable[str]) -> str:
    """Join what several claims say, as far as a cell goes."""
    text = "; ".join(dict.fromkeys(texts))
    cut = text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 1].rstrip()}…"
    return _cell(cut)


def _ours(finding: Finding) -> str:
    return "–" if finding.ours is None else str(Measured(finding.ours, finding.spread))


def _verdict(finding: Finding) -> str:
    return f"**{finding.verdict}**" if finding.status == "fail" else finding.verdict


def _sweep(pages: Path) -> None:
    """Remove figures of earlier pages that these do not show."""
    shown = "".join(path.read_text("utf-8") for path in pages.glob("*.md"))
    for path in (pages.parent / _IMAGES).glob("*/*.png"):
        if path.relative_to(pages.parent).as_posix() not in shown:
            path.unlink()


def _study(
    study: Study, results: Sequence[StudyResult], findings: Sequence[Finding], folder: Path
) -> list[str]:
    lines = [f"# {study.name}", "", f"{study.title} ({study.paper}, {study.where})", ""]
    lines += ["[All studies](index.md)", ""]
    for result in results:
        doubts = "" if result.status else f" {result.status.text}"
        text = f"{summary(result.judged(study.claims))}{doubts}"
        lines += [f"*{result.scale}*: {text} {_provenance(result)}", ""]
        lines += [f"> {note}\n" for note in result.notes]
    lines += _claims(study, findings, {result.scale for result in results})
    kinds: set[str] = set()
    ordered = sorted(results, key=lambda r: r.scale != "paper")
    for result in ordered:
        # Of another scale only figures that the first has none of: not all may have been run.
        missing = [picture for picture in result.figures if _kind(picture) not in kinds]
        kinds |= {_kind(picture) for picture in result.figures}
        lines += _pictures(dataclasses.replace(result, figures=tuple(missing)), folder)
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
    for path in write_figures(result, folder / _IMAGES / stem) if result.figures else ():
        if path.suffix != ".png":
            path.unlink()
    for picture in result.figures:
        lines += [
            f"![{picture.title}](../{_IMAGES}/{stem}/{picture.name}.png)",
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
    rows = [
        (_name(f), _cell(f.theirs), _ours(f), f.expected, _verdict(f), f.kind, f.scale)
        for f in measured
    ]
    names = ("claim", "theirs", "ours", "expected", "verdict", "kind", "scale")
    lines = [*_rows(names, rows), ""] if measured else []
    differ = [finding for finding in measured if finding.explanation]
    if differ:
        lines += ["What is known about the differences:", ""]
        lines += [*_reasons(differ, "explanation"), ""]
    revised = [finding for finding in findings if finding.was]
    if revised:
        lines += ["What was checked before a first run was seen:", ""]
        lines += [*(f"- `{f.id}`: {_cell(_was(f))}" for f in revised), ""]
    if missing:
        why = _missing_words(study, {finding.id for finding in missing}, scales)
        cells = [(_name(f), _cell(f.theirs), f.expected, f.kind) for f in missing]
        lines += _folded(why, _rows(("claim", "theirs", "expected", "kind"), cells))
    return [*lines, *_folded("Reasons for what is expected", _reasons(findings, "reason"))]


def _was(finding: Finding) -> str:
    words = {"says": "{}", "low": "≥ {:.4g}", "high": "≤ {:.4g}", "ours": "ours was {:.4g}"}
    return "; ".join(form.format(finding.was[k]) for k, form in words.items() if k in finding.was)


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
