"""Results of studies as files in `papers/results/studies/`, and all claims judged by them.

`wu-rank-paper.json` holds numbers and tables, `pictures/wu-rank-paper.json` beside it what is
drawn. The first are a tenth of all, and are part of the wheel; the others are known by checksum.
"""

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from eigenscape.errors import FileError
from eigenscape.records import pack, unpack, write_bytes
from eigenscape.runs import provenance
from eigenscape_papers.runner.claims import Finding, Measured
from eigenscape_papers.runner.study import Study
from eigenscape_papers.runner.study_result import StudyResult

_FORMAT = 2  # 1 held the words of claims beside the numbers
_ORDER = ("paper", "laptop")  # which scale counts where both were run
_PICTURES = "pictures"


def results_folder() -> Path:
    """Return where our results are: here, in the clone we are of, or in the installed package."""
    package = Path(__file__).parents[1]
    clone = Path("papers") / "results" / "studies"
    clones = (clone, package.parent / "results" / "studies")
    return next((folder for folder in clones if folder.is_dir()), package / "results")


def write_result(result: StudyResult, folder: str | os.PathLike[str]) -> Path:
    """Write a result as `<study>-<scale>.json`, with where it comes from.

    Args:
        result: The result of a study.
        folder: Where; made if it is not there. Pictures go to `pictures/` in it.

    Returns:
        The file.

    Raises:
        FileError: If the result holds arrays.
    """
    plain, tensors = pack(result)
    if tensors:
        raise FileError(f"A study's result must be numbers and text; it holds {sorted(tensors)}.")
    path = Path(folder) / f"{result.study}-{result.scale}.json"
    pictures = _as_bytes(plain["fields"].pop("figures"))
    path.with_name(_PICTURES).mkdir(parents=True, exist_ok=True)
    write_bytes(_pictures_of(path), pictures)
    content = {"format": _FORMAT, "provenance": provenance(result), "result": plain}
    content[_PICTURES] = hashlib.sha256(pictures).hexdigest()
    write_bytes(path, _as_bytes(content))
    return path


def read_result(path: str | os.PathLike[str], *, pictures: bool = True) -> StudyResult:
    """Read a result.

    Args:
        path: The file.
        pictures: Whether to read its pictures, too; without them it has none.

    Returns:
        The result, with the numbers that were judged from its tables later.

    Raises:
        FileError: If it or its pictures are damaged, missing or something else.
    """
    try:
        content = read_content(path)
        fields = content["result"]["fields"]
        if _PICTURES in content:  # files of before 0.3 hold them as a field
            known = content[_PICTURES] if pictures else None
            fields["figures"] = [] if known is None else _read_pictures(Path(path), known)
        version, result = content["format"], unpack(content["result"], {})
        judged = {
            id: Measured(entry["ours"], entry["spread"])
            for id, entry in content.get("judged", {}).items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError, FileError) as error:
        raise FileError(
            f"{path} is no result of a study ({type(error).__name__}: {error}). Run the study "
            "again, or take the file away."
        ) from error
    if version not in {1, _FORMAT} or not isinstance(result, StudyResult):
        raise FileError(
            f"{path} holds a {type(result).__name__} in format {version}, not the result of a "
            f"study in format {_FORMAT}."
        )
    # What the study's function measured itself goes first.
    return dataclasses.replace(result, measured=judged | result.measured)


def read_content(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a result's file holds, unread: "provenance", "result", "judged" and so on."""
    content: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return content


def write_judged(path: str | os.PathLike[str], judged: Mapping[str, Mapping[str, Any]]) -> None:
    """Add numbers that were judged from a result's tables to its file, and change nothing else.

    Args:
        path: The file.
        judged: By claim: "ours", "spread", "says", "number", "date" and "commit".
    """
    content = read_content(path)
    content["judged"] = {**content.get("judged", {}), **judged}
    write_bytes(Path(path), _as_bytes(content))


def read_results(folder: str | os.PathLike[str], *, pictures: bool = True) -> list[StudyResult]:
    """Read all results in a folder, sorted by name.

    Args:
        folder: Where; one that is not there holds none.
        pictures: As for `read_result`.

    Returns:
        The results.
    """
    return [read_result(path, pictures=pictures) for path in sorted(Path(folder).glob("*.json"))]


def _as_bytes(plain: Any) -> bytes:
    return (json.dumps(plain, ensure_ascii=False) + "\n").encode()


def _pictures_of(path: Path) -> Path:
    return path.with_name(_PICTURES) / path.name


def _read_pictures(path: Path, checksum: str) -> Any:
    """Return a result's pictures as plain values, if they are those that it was written with."""
    file = _pictures_of(path)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise FileError(
            f"its pictures must be in {file}; got {error}. An installed package has none: take "
            "papers/results/studies/pictures of the repository"
        ) from error
    if hashlib.sha256(content).hexdigest() != checksum:
        raise FileError(f"{file} must have the SHA-256 {checksum}; it has another")
    return json.loads(content)


def all_findings(studies: Iterable[Study], results: Iterable[StudyResult]) -> list[Finding]:
    """Return every claim of every study: as measured at paper scale, else at laptop scale.

    Numbers come from the results, all else from the claims: what is learnt about a number after it
    was measured needs no second measurement.

    Args:
        studies: The studies.
        results: What was measured.

    Returns:
        One finding for each claim.
    """
    of_study: Mapping[tuple[str, str], StudyResult] = {(r.study, r.scale): r for r in results}
    findings = []
    for study in studies:
        results_of = [of_study[study.name, s] for s in _ORDER if (study.name, s) in of_study]
        for claim in study.claims:
            judged = [r.judged((claim,))[0] for r in results_of]
            not_run = claim.judge(None, scale="–")
            findings.append(next((f for f in judged if f.status != "not run"), not_run))
    return findings


def to_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return findings as plain objects; numbers that are not finite become None.

    Args:
        findings: The findings.

    Returns:
        One dict for each, ready for `json.dumps`.
    """
    return [
        {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in vars(finding).items()
        }
        for finding in findings
    ]
