"""Records to figures, tables, run folders and a report that opens in a browser."""

from eigenscape.report._marks import Axis as Axis
from eigenscape.report._marks import Band as Band
from eigenscape.report._marks import Bars as Bars
from eigenscape.report._marks import Line as Line
from eigenscape.report._marks import Mark as Mark
from eigenscape.report._marks import Panel as Panel
from eigenscape.report._marks import Picture as Picture
from eigenscape.report._marks import Points as Points
from eigenscape.report._marks import Raster as Raster
from eigenscape.report._marks import Rule as Rule
from eigenscape.report._marks import numbers as numbers
from eigenscape.report._provenance import provenance as provenance
from eigenscape.report.block_pictures import block_panel as block_panel
from eigenscape.report.block_pictures import law_panel as law_panel
from eigenscape.report.block_pictures import pool_magnitudes as pool_magnitudes
from eigenscape.report.compare import Comparison as Comparison
from eigenscape.report.compare import compare as compare
from eigenscape.report.draw import draw as draw
from eigenscape.report.figures import write_figures as write_figures
from eigenscape.report.page import write_report as write_report
from eigenscape.report.runs import Run as Run
from eigenscape.report.runs import RunSummary as RunSummary
from eigenscape.report.runs import list_runs as list_runs
from eigenscape.report.runs import read_run as read_run
from eigenscape.report.runs import save_run as save_run
from eigenscape.report.study_result import STATUSES as STATUSES
from eigenscape.report.study_result import Finding as Finding
from eigenscape.report.study_result import Sheet as Sheet
from eigenscape.report.study_result import StudyResult as StudyResult

__all__ = [
    "STATUSES",
    "Axis",
    "Band",
    "Bars",
    "Comparison",
    "Finding",
    "Line",
    "Mark",
    "Panel",
    "Picture",
    "Points",
    "Raster",
    "Rule",
    "Run",
    "RunSummary",
    "Sheet",
    "StudyResult",
    "block_panel",
    "compare",
    "draw",
    "law_panel",
    "list_runs",
    "numbers",
    "pool_magnitudes",
    "provenance",
    "read_run",
    "save_run",
    "write_figures",
    "write_report",
]
