"""One question about a network a file, one function, one record."""

from eigenscape.analyses.layers._orthonormal import require_orthonormal as require_orthonormal
from eigenscape.analyses.layers._slopes import Slopes as Slopes
from eigenscape.analyses.layers._slopes import all_slopes as all_slopes
from eigenscape.analyses.layers._slopes import batch_slopes as batch_slopes
from eigenscape.analyses.layers.autocorrelation import Autocorrelation as Autocorrelation
from eigenscape.analyses.layers.autocorrelation import Autocorrelations as Autocorrelations
from eigenscape.analyses.layers.autocorrelation import autocorrelation as autocorrelation
from eigenscape.analyses.layers.autocorrelation import autocorrelations as autocorrelations
from eigenscape.analyses.layers.eigenspace_overlap import EigenspaceOverlap as EigenspaceOverlap
from eigenscape.analyses.layers.eigenspace_overlap import eigenspace_overlap as eigenspace_overlap
from eigenscape.analyses.layers.eigenvector_rank import EigenvectorRank as EigenvectorRank
from eigenscape.analyses.layers.eigenvector_rank import eigenvector_rank as eigenvector_rank
from eigenscape.analyses.layers.eigenvector_rank import rank_one_share as rank_one_share
from eigenscape.analyses.layers.kronecker_fit import (
    KroneckerApproximation as KroneckerApproximation,
)
from eigenscape.analyses.layers.kronecker_fit import KroneckerFit as KroneckerFit
from eigenscape.analyses.layers.kronecker_fit import kronecker_fit as kronecker_fit
from eigenscape.analyses.layers.layer_curvature import LayerBlock as LayerBlock
from eigenscape.analyses.layers.layer_curvature import LayerCurvature as LayerCurvature
from eigenscape.analyses.layers.layer_curvature import layer_curvature as layer_curvature
from eigenscape.analyses.layers.layer_curvature import layer_names as layer_names
from eigenscape.analyses.layers.layer_spectrum import LayerSpectrum as LayerSpectrum
from eigenscape.analyses.layers.layer_spectrum import layer_spectrum as layer_spectrum
from eigenscape.analyses.whole._budget import BUDGETS as BUDGETS
from eigenscape.analyses.whole._budget import Budget as Budget
from eigenscape.analyses.whole._budget import num_pairs as num_pairs
from eigenscape.analyses.whole._spectrum_pictures import letter_of as letter_of
from eigenscape.analyses.whole._squared_gradients import by_position as by_position
from eigenscape.analyses.whole._squared_gradients import covered_layers as covered_layers
from eigenscape.analyses.whole._squared_gradients import normalised as normalised
from eigenscape.analyses.whole._stages import Timed as Timed
from eigenscape.analyses.whole._subsample import OtherSamples as OtherSamples
from eigenscape.analyses.whole._subsample import Subsample as Subsample
from eigenscape.analyses.whole.analyze import Analysis as Analysis
from eigenscape.analyses.whole.analyze import analyze as analyze
from eigenscape.analyses.whole.exact_trace import ExactTrace as ExactTrace
from eigenscape.analyses.whole.exact_trace import exact_trace as exact_trace
from eigenscape.analyses.whole.gradient_overlap import GradientOverlap as GradientOverlap
from eigenscape.analyses.whole.gradient_overlap import gradient_overlap as gradient_overlap
from eigenscape.analyses.whole.matrix_spectrum import MatrixSpectrum as MatrixSpectrum
from eigenscape.analyses.whole.matrix_spectrum import matrix_spectrum as matrix_spectrum
from eigenscape.analyses.whole.outliers import Outliers as Outliers
from eigenscape.analyses.whole.outliers import outliers as outliers
from eigenscape.analyses.whole.plan import Plan as Plan
from eigenscape.analyses.whole.plan import Stage as Stage
from eigenscape.analyses.whole.plan import plan_analysis as plan_analysis
from eigenscape.analyses.whole.point import Point as Point
from eigenscape.analyses.whole.point import point as point
from eigenscape.analyses.whole.spectral_distance import spectral_distance as spectral_distance

__all__ = [
    "BUDGETS",
    "Analysis",
    "Autocorrelation",
    "Autocorrelations",
    "Budget",
    "EigenspaceOverlap",
    "EigenvectorRank",
    "ExactTrace",
    "GradientOverlap",
    "KroneckerApproximation",
    "KroneckerFit",
    "LayerBlock",
    "LayerCurvature",
    "LayerSpectrum",
    "MatrixSpectrum",
    "Outliers",
    "Plan",
    "Point",
    "Stage",
    "analyze",
    "autocorrelation",
    "autocorrelations",
    "eigenspace_overlap",
    "eigenvector_rank",
    "exact_trace",
    "gradient_overlap",
    "kronecker_fit",
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
