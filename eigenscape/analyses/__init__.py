"""One question about a network a file, one function, one record."""

from eigenscape.analyses.adam_diagonal import adam_diagonal as adam_diagonal
from eigenscape.analyses.analyze import Analysis as Analysis
from eigenscape.analyses.analyze import analyze as analyze
from eigenscape.analyses.attribution import Attribution as Attribution
from eigenscape.analyses.attribution import attribution as attribution
from eigenscape.analyses.autocorrelation import Autocorrelation as Autocorrelation
from eigenscape.analyses.autocorrelation import Autocorrelations as Autocorrelations
from eigenscape.analyses.autocorrelation import autocorrelation as autocorrelation
from eigenscape.analyses.autocorrelation import autocorrelations as autocorrelations
from eigenscape.analyses.backpropagated_errors import (
    BackpropagatedErrors as BackpropagatedErrors,
)
from eigenscape.analyses.backpropagated_errors import (
    backpropagated_errors as backpropagated_errors,
)
from eigenscape.analyses.block_norms import SquaredBlockNorms as SquaredBlockNorms
from eigenscape.analyses.block_norms import squared_block_norms as squared_block_norms
from eigenscape.analyses.block_preconditioning import BlockPreconditioning as BlockPreconditioning
from eigenscape.analyses.block_preconditioning import block_preconditioning as block_preconditioning
from eigenscape.analyses.block_spectra import BlockSpectra as BlockSpectra
from eigenscape.analyses.block_spectra import block_spectra as block_spectra
from eigenscape.analyses.block_structure import BlockStructure as BlockStructure
from eigenscape.analyses.block_structure import Stripes as Stripes
from eigenscape.analyses.block_structure import block_structure as block_structure
from eigenscape.analyses.block_structure import null_block_norms as null_block_norms
from eigenscape.analyses.block_structure import stripes as stripes
from eigenscape.analyses.class_span import ClassSpan as ClassSpan
from eigenscape.analyses.class_span import class_span as class_span
from eigenscape.analyses.class_structure import ClassStructure as ClassStructure
from eigenscape.analyses.class_structure import class_structure as class_structure
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
from eigenscape.analyses.kronecker_spectra import KroneckerSpectra as KroneckerSpectra
from eigenscape.analyses.kronecker_spectra import kronecker_spectra as kronecker_spectra
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
from eigenscape.analyses.power_tail import PowerTail as PowerTail
from eigenscape.analyses.power_tail import TailFit as TailFit
from eigenscape.analyses.power_tail import power_tail as power_tail
from eigenscape.analyses.separation import Separation as Separation
from eigenscape.analyses.separation import separation as separation
from eigenscape.analyses.spectral_distance import spectral_distance as spectral_distance

__all__ = [
    "BUDGETS",
    "Analysis",
    "Attribution",
    "Autocorrelation",
    "Autocorrelations",
    "BackpropagatedErrors",
    "BlockPreconditioning",
    "BlockSpectra",
    "BlockStructure",
    "Budget",
    "ClassSpan",
    "ClassStructure",
    "EigenspaceOverlap",
    "EigenvectorCorrespondence",
    "EigenvectorRank",
    "ExactTrace",
    "FullApproximation",
    "GradientOverlap",
    "KroneckerApproximation",
    "KroneckerFit",
    "KroneckerSpectra",
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
    "PowerTail",
    "Separation",
    "SquaredBlockNorms",
    "Stage",
    "Stripes",
    "TailFit",
    "adam_diagonal",
    "analyze",
    "attribution",
    "autocorrelation",
    "autocorrelations",
    "backpropagated_errors",
    "block_preconditioning",
    "block_spectra",
    "block_structure",
    "class_span",
    "class_structure",
    "eigenspace_overlap",
    "eigenvector_correspondence",
    "eigenvector_rank",
    "exact_trace",
    "full_approximation",
    "gradient_overlap",
    "kronecker_fit",
    "kronecker_spectra",
    "layer_curvature",
    "layer_names",
    "layer_spectrum",
    "logit_gradients",
    "matrix_spectrum",
    "null_block_norms",
    "outliers",
    "output_space_overlap",
    "overlap_prediction",
    "plan_analysis",
    "point",
    "power_tail",
    "rank_one_share",
    "separation",
    "spectral_distance",
    "squared_block_norms",
    "stripes",
]
