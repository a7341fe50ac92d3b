"""Generalisation certificates: upper bounds on the error on new data, with their arithmetic."""

from eigenscape.bounds.certify import NetworkCertificate as NetworkCertificate
from eigenscape.bounds.certify import certify as certify
from eigenscape.bounds.kl import binary_kl as binary_kl
from eigenscape.bounds.kl import gaussian_kl as gaussian_kl
from eigenscape.bounds.kl import kl_inverse as kl_inverse
from eigenscape.bounds.multilayer import multilayer_output_hessian as multilayer_output_hessian
from eigenscape.bounds.optimise import PosteriorFit as PosteriorFit
from eigenscape.bounds.optimise import optimise_posterior as optimise_posterior
from eigenscape.bounds.pac_bayes import Certificate as Certificate
from eigenscape.bounds.pac_bayes import grid_indices as grid_indices
from eigenscape.bounds.pac_bayes import grid_variance as grid_variance
from eigenscape.bounds.pac_bayes import pac_bayes_bound as pac_bayes_bound
from eigenscape.bounds.pac_bayes import pac_bayes_certificate as pac_bayes_certificate
from eigenscape.bounds.pac_bayes import sampled_error_bound as sampled_error_bound
from eigenscape.bounds.posterior import Basis as Basis
from eigenscape.bounds.posterior import LayerBasis as LayerBasis
from eigenscape.bounds.posterior import Posterior as Posterior
from eigenscape.bounds.posterior import basis_curvature as basis_curvature
from eigenscape.bounds.posterior import layer_basis as layer_basis
from eigenscape.bounds.posterior import make_posterior as make_posterior
from eigenscape.bounds.recipe import BoundRecipe as BoundRecipe
from eigenscape.bounds.recipe import bound_recipe as bound_recipe

__all__ = [
    "Basis",
    "BoundRecipe",
    "Certificate",
    "LayerBasis",
    "NetworkCertificate",
    "Posterior",
    "PosteriorFit",
    "basis_curvature",
    "binary_kl",
    "bound_recipe",
    "certify",
    "gaussian_kl",
    "grid_indices",
    "grid_variance",
    "kl_inverse",
    "layer_basis",
    "make_posterior",
    "multilayer_output_hessian",
    "optimise_posterior",
    "pac_bayes_bound",
    "pac_bayes_certificate",
    "sampled_error_bound",
]
