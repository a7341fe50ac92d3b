"""What a run folder holds for people: the figures of a record, and its page."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eigenscape.errors import EigenscapeWarning, MissingPackageError, require_packages
from eigenscape.records import Record
from eigenscape.report.figures import write_figures
from eigenscape.report.page import write_report
from eigenscape.runs import FIGURES, REPORT


def write_files(record: Record, folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the figures of a record and its page, as far as what draws them is installed.

    Args:
        record: Any record.
        folder: Where.
        settings: Plain values to note on the page.
    """
    if record.pictures() and _installed("figures", "matplotlib"):
        write_figures(record, folder / FIGURES)
    if _installed("report", "plotly", "jinja2"):
        write_report(record, folder / REPORT, settings=settings)


def _installed(what: str, *packages: str) -> bool:
    """Say whether optional packages are there; a result is not lost because one is not."""
    try:
        require_packages("record.save(folder)", *packages)
    except MissingPackageError as error:
        warnings.warn(
            f"The run is saved without its {what}. {error} Then save it again with "
            "`overwrite=True`.",
            EigenscapeWarning,
            stacklevel=6,
        )
        return False
    return True
