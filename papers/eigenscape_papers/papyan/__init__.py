"""Papyan (2018, 2020): spectra, classes and cross-classes."""

from eigenscape_papers.papyan.attribution import Attribution as Attribution
from eigenscape_papers.papyan.attribution import attribution as attribution
from eigenscape_papers.papyan.attribution_study import AttributionNetwork as AttributionNetwork
from eigenscape_papers.papyan.attribution_study import bulk_share as bulk_share
from eigenscape_papers.papyan.backpropagated_errors import (
    BackpropagatedErrors as BackpropagatedErrors,
)
from eigenscape_papers.papyan.backpropagated_errors import (
    backpropagated_errors as backpropagated_errors,
)
from eigenscape_papers.papyan.dynamics_study import DynamicsMoment as DynamicsMoment
from eigenscape_papers.papyan.dynamics_study import DynamicsPanel as DynamicsPanel
from eigenscape_papers.papyan.khatri_rao import KhatriRao as KhatriRao
from eigenscape_papers.papyan.kronecker_spectra import KroneckerSpectra as KroneckerSpectra
from eigenscape_papers.papyan.kronecker_spectra import kronecker_spectra as kronecker_spectra
from eigenscape_papers.papyan.kronecker_study import KroneckerNetwork as KroneckerNetwork
from eigenscape_papers.papyan.kronecker_study import range_ratio as range_ratio
from eigenscape_papers.papyan.kronecker_study import shifted_ratio as shifted_ratio
from eigenscape_papers.papyan.layers_study import LayerCross as LayerCross
from eigenscape_papers.papyan.layers_study import LayersNetwork as LayersNetwork
from eigenscape_papers.papyan.mixture_study import exactness as exactness
from eigenscape_papers.papyan.networks import DIGITS_MLP as DIGITS_MLP
from eigenscape_papers.papyan.networks import MLP as MLP
from eigenscape_papers.papyan.networks import RATES as RATES
from eigenscape_papers.papyan.networks import RESNET_FEW as RESNET_FEW
from eigenscape_papers.papyan.networks import SMALL as SMALL
from eigenscape_papers.papyan.networks import SMALL_SIZES as SMALL_SIZES
from eigenscape_papers.papyan.networks import VGG as VGG
from eigenscape_papers.papyan.networks import VGG_FEW as VGG_FEW
from eigenscape_papers.papyan.networks import VGG_SIZES as VGG_SIZES
from eigenscape_papers.papyan.networks import network as network
from eigenscape_papers.papyan.parts import LayerPart as LayerPart
from eigenscape_papers.papyan.parts import LayerProducts as LayerProducts
from eigenscape_papers.papyan.parts import error_part as error_part
from eigenscape_papers.papyan.parts import feature_part as feature_part
from eigenscape_papers.papyan.parts import layer_products as layer_products
from eigenscape_papers.papyan.parts import weight_part as weight_part
from eigenscape_papers.papyan.power_tail import PowerTail as PowerTail
from eigenscape_papers.papyan.power_tail import TailFit as TailFit
from eigenscape_papers.papyan.power_tail import power_tail as power_tail
from eigenscape_papers.papyan.regression import fisher_matrix as fisher_matrix
from eigenscape_papers.papyan.regression import mixture as mixture
from eigenscape_papers.papyan.regression import regress as regress
from eigenscape_papers.papyan.regression import train as train
from eigenscape_papers.papyan.separation import Separation as Separation
from eigenscape_papers.papyan.separation import separation as separation
from eigenscape_papers.papyan.spectra_study import SpectraDeflation as SpectraDeflation
from eigenscape_papers.papyan.spectra_study import SpectraLook as SpectraLook
from eigenscape_papers.papyan.spectra_study import paper_density as paper_density
from eigenscape_papers.papyan.whole_spectra import Spectrum as Spectrum

__all__ = [
    "Attribution",
    "BackpropagatedErrors",
    "KhatriRao",
    "KroneckerSpectra",
    "PowerTail",
    "Separation",
    "TailFit",
    "attribution",
    "backpropagated_errors",
    "kronecker_spectra",
    "power_tail",
    "separation",
]
