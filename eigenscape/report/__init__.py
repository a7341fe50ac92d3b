"""Records to figures, tables, run folders and a report that opens in a browser."""

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

__all__ = [
    "Comparison",
    "Run",
    "RunSummary",
    "compare",
    "draw",
    "list_runs",
    "read_run",
    "save_run",
    "write_figures",
    "write_report",
]
