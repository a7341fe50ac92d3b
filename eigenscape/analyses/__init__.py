"""One question about a network a file, one function, one record."""

from eigenscape.analyses.analyze import Analysis as Analysis
from eigenscape.analyses.analyze import analyze as analyze
from eigenscape.analyses.eigenspace_overlap import EigenspaceOverlap as EigenspaceOverlap
from eigenscape.analyses.eigenspace_overlap import eigenspace_overlap as eigenspace_overlap
from eigenscape.analyses.eigenvector_rank import rank_one_share as rank_one_share
from eigenscape.analyses.exact_trace import ExactTrace as ExactTrace
from eigenscape.analyses.exact_trace import exact_trace as exact_trace
from eigenscape.analyses.gradient_overlap import GradientOverlap as GradientOverlap
from eigenscape.analyses.gradient_overlap import gradient_overlap as gradient_overlap
from eigenscape.analyses.layer_curvature import LayerBlock as LayerBlock
from eigenscape.analyses.layer_curvature import LayerCurvature as LayerCurvature
from eigenscape.analyses.layer_curvature import layer_curvature as layer_curvature
from eigenscape.analyses.layer_curvature import layer_names as layer_names
from eigenscape.analyses.layer_spectrum import LayerSpectrum as LayerSpectrum
from eigenscape.analyses.layer_spectrum import layer_spectrum as layer_spectrum
from eigenscape.analyses.matrix_spectrum import MatrixSpectrum as MatrixSpectrum
from eigenscape.analyses.matrix_spectrum import matrix_spectrum as matrix_spectrum
from eigenscape.analyses.outliers import Outliers as Outliers
from eigenscape.analyses.outliers import outliers as outliers
from eigenscape.analyses.plan import BUDGETS as BUDGETS
from eigenscape.analyses.plan import Budget as Budget
from eigenscape.analyses.plan import Plan as Plan
from eigenscape.analyses.plan import Stage as Stage
from eigenscape.analyses.plan import plan_analysis as plan_analysis
from eigenscape.analyses.point import Point as Point
from eigenscape.analyses.point import point as point
from eigenscape.analyses.spectral_distance import spectral_distance as spectral_distance

__all__ = [
    "BUDGETS",
    "Analysis",
    "Budget",
    "EigenspaceOverlap",
    "ExactTrace",
    "GradientOverlap",
    "LayerBlock",
    "LayerCurvature",
    "LayerSpectrum",
    "MatrixSpectrum",
    "Outliers",
    "Plan",
    "Point",
    "Stage",
    "analyze",
    "eigenspace_overlap",
    "exact_trace",
    "gradient_overlap",
    "layer_curvature",
    "layer_names",
    "layer_spectrum",
    "matrix_spectrum",
    "outliers",
    "plan_analysis",
    "point",
    "rank_one_share",
    "spectral_distance",
]
