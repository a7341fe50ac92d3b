"""One question about a network a file, one function, one record."""

from eigenscape.analyses.analyze import Analysis as Analysis
from eigenscape.analyses.analyze import analyze as analyze
from eigenscape.analyses.autocorrelation import Autocorrelation as Autocorrelation
from eigenscape.analyses.autocorrelation import Autocorrelations as Autocorrelations
from eigenscape.analyses.autocorrelation import autocorrelation as autocorrelation
from eigenscape.analyses.autocorrelation import autocorrelations as autocorrelations
from eigenscape.analyses.eigenspace_overlap import EigenspaceOverlap as EigenspaceOverlap
from eigenscape.analyses.eigenspace_overlap import eigenspace_overlap as eigenspace_overlap
from eigenscape.analyses.eigenvector_correspondence import (
    EigenvectorCorrespondence as EigenvectorCorrespondence,
)
from eigenscape.analyses.eigenvector_correspondence import (
    eigenvector_correspondence as eigenvector_correspondence,
)
from eigenscape.analyses.eigenvector_rank import EigenvectorRank as EigenvectorRank
from eigenscape.analyses.eigenvector_rank import eigenvector_rank as eigenvector_rank
from eigenscape.analyses.eigenvector_rank import rank_one_share as rank_one_share
from eigenscape.analyses.exact_trace import ExactTrace as ExactTrace
from eigenscape.analyses.exact_trace import exact_trace as exact_trace
from eigenscape.analyses.full_approximation import FullApproximation as FullApproximation
from eigenscape.analyses.full_approximation import full_approximation as full_approximation
from eigenscape.analyses.gradient_overlap import GradientOverlap as GradientOverlap
from eigenscape.analyses.gradient_overlap import gradient_overlap as gradient_overlap
from eigenscape.analyses.kronecker_fit import KroneckerApproximation as KroneckerApproximation
from eigenscape.analyses.kronecker_fit import KroneckerFit as KroneckerFit
from eigenscape.analyses.kronecker_fit import kronecker_fit as kronecker_fit
from eigenscape.analyses.layer_curvature import LayerBlock as LayerBlock
from eigenscape.analyses.layer_curvature import LayerCurvature as LayerCurvature
from eigenscape.analyses.layer_curvature import layer_curvature as layer_curvature
from eigenscape.analyses.layer_curvature import layer_names as layer_names
from eigenscape.analyses.layer_spectrum import LayerSpectrum as LayerSpectrum
from eigenscape.analyses.layer_spectrum import layer_spectrum as layer_spectrum
from eigenscape.analyses.logit_gradients import LogitGradients as LogitGradients
from eigenscape.analyses.logit_gradients import logit_gradients as logit_gradients
from eigenscape.analyses.matrix_spectrum import MatrixSpectrum as MatrixSpectrum
from eigenscape.analyses.matrix_spectrum import matrix_spectrum as matrix_spectrum
from eigenscape.analyses.outliers import Outliers as Outliers
from eigenscape.analyses.outliers import outliers as outliers
from eigenscape.analyses.output_space import OutputSpaceOverlap as OutputSpaceOverlap
from eigenscape.analyses.output_space import output_space_overlap as output_space_overlap
from eigenscape.analyses.overlap_prediction import OverlapPrediction as OverlapPrediction
from eigenscape.analyses.overlap_prediction import overlap_prediction as overlap_prediction
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
    "Autocorrelation",
    "Autocorrelations",
    "Budget",
    "EigenspaceOverlap",
    "EigenvectorCorrespondence",
    "EigenvectorRank",
    "ExactTrace",
    "FullApproximation",
    "GradientOverlap",
    "KroneckerApproximation",
    "KroneckerFit",
    "LayerBlock",
    "LayerCurvature",
    "LayerSpectrum",
    "LogitGradients",
    "MatrixSpectrum",
    "Outliers",
    "OutputSpaceOverlap",
    "OverlapPrediction",
    "Plan",
    "Point",
    "Stage",
    "analyze",
    "autocorrelation",
    "autocorrelations",
    "eigenspace_overlap",
    "eigenvector_correspondence",
    "eigenvector_rank",
    "exact_trace",
    "full_approximation",
    "gradient_overlap",
    "kronecker_fit",
    "layer_curvature",
    "layer_names",
    "layer_spectrum",
    "logit_gradients",
    "matrix_spectrum",
    "outliers",
    "output_space_overlap",
    "overlap_prediction",
    "plan_analysis",
    "point",
    "rank_one_share",
    "spectral_distance",
]
