"""The thesis: sparse coding, anchor vectors, learned step sizes."""

from eigenscape_papers.thesis.anchor_fit_study import make_network as make_network
from eigenscape_papers.thesis.anchor_fit_study import pairs as pairs
from eigenscape_papers.thesis.anchor_fit_study import synthetic as synthetic
from eigenscape_papers.thesis.anchor_transfer_study import (
    make_cautious_teacher as make_cautious_teacher,
)
from eigenscape_papers.thesis.anchor_transfer_study import make_rarely_wrong as make_rarely_wrong
from eigenscape_papers.thesis.anchor_transfer_study import make_student as make_student
from eigenscape_papers.thesis.anchor_transfer_study import make_teacher as make_teacher
from eigenscape_papers.thesis.coding_recovery_study import STARTS as STARTS
from eigenscape_papers.thesis.coding_recovery_study import run_grid as run_grid
from eigenscape_papers.thesis.stepsize_quadratic_study import CELLS as CELLS
from eigenscape_papers.thesis.stepsize_quadratic_study import least_rise as least_rise

__all__ = [
    "CELLS",
    "STARTS",
    "least_rise",
    "make_cautious_teacher",
    "make_network",
    "make_rarely_wrong",
    "make_student",
    "make_teacher",
    "pairs",
    "run_grid",
    "synthetic",
]
