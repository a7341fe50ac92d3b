"""Results of studies as files in `papers/results/studies/`, and all claims judged by them."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from eigenscape.errors import FileError
from eigenscape.records import pack, unpack, write_bytes
from eigenscape.runs import provenance
from eigenscape_papers.runner.claims import Finding
from eigenscape_papers.runner.study import Study
from eigenscape_papers.runner.study_result import StudyResult

_FORMAT = 2  # 1 held the words of claims beside the numbers
_ORDER = ("paper", "laptop")  # which scale counts where both were run


def results_folder() -> Path:
    """Return where the project keeps its results: here, or beside the package."""
    here = Path("papers") / "results" / "studies"
    return here if here.is_dir() else Path(__file__).parents[2] / "results" / "studies"


def write_result(result: StudyResult, folder: str | os.PathLike[str]) -> Path:
    """Write a result as `<study>-<scale>.json`, with where it comes from.

    Args:
        result: The result of a study.
        folder: Where; made if it is not there.

    Returns:
        The file.

    Raises:
        FileError: If the result holds arrays.
    """
    plain, tensors = pack(result)
    if tensors:
        raise FileError(f"A study's result must be numbers and text; it holds {sorted(tensors)}.")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    path = target / f"{result.study}-{result.scale}.json"
    content = {"format": _FORMAT, "provenance": provenance(result), "result": plain}
    write_bytes(path, (json.dumps(content, ensure_ascii=False) + "\n").encode())
    return path


def read_result(path: str | os.PathLike[str]) -> StudyResult:
    """Read a result.

    Args:
        path: The file.

    Returns:
        The result.

    Raises:
        FileError: If it is damaged or something else.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        version, result = content["format"], unpack(content["result"], {})
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
    return result


def read_results(folder: str | os.PathLike[str]) -> list[StudyResult]:
    """Read all results in a folder, sorted by name.

    Args:
        folder: Where; one that is not there holds none.

    Returns:
        The results.
    """
    return [read_result(path) for path in sorted(Path(folder).glob("*.json"))]


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
