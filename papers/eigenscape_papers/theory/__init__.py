"""Closed forms and limits that the papers derive."""

from eigenscape_papers.theory._two_layer_samples import HiddenLaw as HiddenLaw
from eigenscape_papers.theory.block_limits import BlockLimits as BlockLimits
from eigenscape_papers.theory.block_limits import block_law as block_law
from eigenscape_papers.theory.block_limits import hidden_block_limits as hidden_block_limits
from eigenscape_papers.theory.block_limits import hidden_class_limits as hidden_class_limits
from eigenscape_papers.theory.block_limits import linear_block_limits as linear_block_limits
from eigenscape_papers.theory.block_limits import linear_class_limits as linear_class_limits
from eigenscape_papers.theory.block_limits import output_block_limits as output_block_limits
from eigenscape_papers.theory.block_limits import output_class_limits as output_class_limits
from eigenscape_papers.theory.dense_hessians import hidden_block_norms as hidden_block_norms
from eigenscape_papers.theory.dense_hessians import linear_block_norms as linear_block_norms
from eigenscape_papers.theory.dense_hessians import linear_hessian as linear_hessian
from eigenscape_papers.theory.dense_hessians import (
    one_hidden_layer_hessian as one_hidden_layer_hessian,
)
from eigenscape_papers.theory.logistic_mixture import FisherLevels as FisherLevels
from eigenscape_papers.theory.logistic_mixture import error_from_ratio as error_from_ratio
from eigenscape_papers.theory.logistic_mixture import expected_fisher as expected_fisher
from eigenscape_papers.theory.logistic_mixture import fisher_levels as fisher_levels
from eigenscape_papers.theory.logistic_mixture import mixture_error as mixture_error
from eigenscape_papers.theory.logistic_mixture import mixture_uncertainty as mixture_uncertainty
from eigenscape_papers.theory.logistic_mixture import optimal_fisher_levels as optimal_fisher_levels
from eigenscape_papers.theory.marchenko_pastur import SpectralLaw as SpectralLaw
from eigenscape_papers.theory.marchenko_pastur import spectral_law as spectral_law
from eigenscape_papers.theory.marchenko_pastur import spectral_moments as spectral_moments
from eigenscape_papers.theory.marchenko_pastur import stieltjes_transform as stieltjes_transform
from eigenscape_papers.theory.multilayer import centred_row_space as centred_row_space
from eigenscape_papers.theory.multilayer import (
    multilayer_output_hessian as multilayer_output_hessian,
)
from eigenscape_papers.theory.multilayer import row_overlap_limit as row_overlap_limit
from eigenscape_papers.theory.softmax_hessian import (
    expected_softmax_hessian as expected_softmax_hessian,
)
from eigenscape_papers.theory.two_layer import Decoupling as Decoupling
from eigenscape_papers.theory.two_layer import FiniteWidthCurve as FiniteWidthCurve
from eigenscape_papers.theory.two_layer import TwoLayerHessian as TwoLayerHessian
from eigenscape_papers.theory.two_layer import decoupling as decoupling
from eigenscape_papers.theory.two_layer import estimate_output_hessian as estimate_output_hessian
from eigenscape_papers.theory.two_layer import finite_width_curve as finite_width_curve
from eigenscape_papers.theory.two_layer import hidden_law as hidden_law
from eigenscape_papers.theory.two_layer import limit_output_eigenvalue as limit_output_eigenvalue
from eigenscape_papers.theory.two_layer import limit_output_hessian as limit_output_hessian

__all__ = [
    "BlockLimits",
    "Decoupling",
    "FiniteWidthCurve",
    "FisherLevels",
    "HiddenLaw",
    "SpectralLaw",
    "TwoLayerHessian",
    "block_law",
    "centred_row_space",
    "decoupling",
    "error_from_ratio",
    "estimate_output_hessian",
    "expected_fisher",
    "expected_softmax_hessian",
    "finite_width_curve",
    "fisher_levels",
    "hidden_block_limits",
    "hidden_block_norms",
    "hidden_class_limits",
    "hidden_law",
    "limit_output_eigenvalue",
    "limit_output_hessian",
    "linear_block_limits",
    "linear_block_norms",
    "linear_class_limits",
    "linear_hessian",
    "mixture_error",
    "mixture_uncertainty",
    "multilayer_output_hessian",
    "one_hidden_layer_hessian",
    "optimal_fisher_levels",
    "output_block_limits",
    "output_class_limits",
    "row_overlap_limit",
    "spectral_law",
    "spectral_moments",
    "stieltjes_transform",
]
