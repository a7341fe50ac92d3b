"""Records to figures, tables and pages that open in a browser: the one renderer."""

from eigenscape.report import _analysis_page as _analysis_page  # registers the page of an analysis
from eigenscape.report.compare import Comparison as Comparison
from eigenscape.report.compare import compare as compare
from eigenscape.report.draw import draw as draw
from eigenscape.report.figures import write_figures as write_figures
from eigenscape.report.files import write_files as write_files
from eigenscape.report.page import Card as Card
from eigenscape.report.page import Page as Page
from eigenscape.report.page import Section as Section
from eigenscape.report.page import Sheet as Sheet
from eigenscape.report.page import cells as cells
from eigenscape.report.page import page_of as page_of
from eigenscape.report.page import write_report as write_report

__all__ = [
    "Card",
    "Comparison",
    "Page",
    "Section",
    "Sheet",
    "compare",
    "draw",
    "page_of",
    "write_figures",
    "write_files",
    "write_report",
]
